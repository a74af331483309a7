//! The calls on contexts: made, current, primary, destroyed.

use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tidegate_abi::cuda::{CUcontext, CUdevice, CUresult};

use crate::capturing;
use crate::driver;
use crate::handle::Pinned;
use crate::locks;
use crate::objects::context::{Context, PRIORITIES};
use crate::objects::current::{self, named_context, named_or_current, with_stack};
use crate::objects::memory;
use crate::objects::sms::Sms;
use crate::pool;
use crate::result::{CudaResult, store};

/// Every `cuCtxCreate`: makes a context and pushes it.
pub fn create(out: *mut CUcontext, flags: u32, ordinal: CUdevice) -> CudaResult {
    driver::get()?;
    if out.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let context = Context::new(ordinal, flags, Sms::ALL)?;
    with_stack(|stack| stack.push(Some(context)))?;
    // SAFETY: `out` is the caller's place for a context.
    unsafe { store(out, context.handle()) }
}

/// `cuCtxCreate_v3`: execution affinity is accepted and has no effect, as without MPS.
pub fn create_v3(
    out: *mut CUcontext,
    _affinity: *mut c_void,
    _count: i32,
    flags: u32,
    ordinal: CUdevice,
) -> CudaResult {
    create(out, flags, ordinal)
}

/// `cuCtxCreate_v4`.
pub fn create_v4(
    out: *mut CUcontext,
    _parameters: *mut c_void,
    flags: u32,
    ordinal: CUdevice,
) -> CudaResult {
    create(out, flags, ordinal)
}

/// Destroys a context and what was allocated in it.
fn end(context: &'static Pinned<Context>) {
    let _held = locks::call(context.gpu);
    context.close();
    memory::drop_context(context.id);
}

/// `cuCtxDestroy`.
pub fn destroy(handle: CUcontext) -> CudaResult {
    let context = named_context(handle)?;
    let primary = primaries()[context.ordinal as usize].context;
    if primary.is_some_and(|primary| std::ptr::eq(primary, context)) {
        return Err(CUresult::INVALID_CONTEXT);
    }
    with_stack(|stack| {
        if stack
            .last()
            .copied()
            .flatten()
            .is_some_and(|top| std::ptr::eq(top, context))
        {
            stack.pop();
        }
    })?;
    end(context);
    Ok(())
}

/// `cuCtxPushCurrent`.
pub fn push(handle: CUcontext) -> CudaResult {
    let context = named_context(handle)?;
    with_stack(|stack| stack.push(Some(context)))
}

/// `cuCtxPopCurrent`.
pub fn pop(out: *mut CUcontext) -> CudaResult {
    driver::get()?;
    let top = with_stack(Vec::pop)?
        .flatten()
        .ok_or(CUresult::INVALID_CONTEXT)?;
    // SAFETY: `out` is null or the caller's place for a context.
    unsafe { crate::result::store_optional(out, top.handle()) };
    Ok(())
}

/// `cuCtxSetCurrent`: null empties the top of the stack.
pub fn set_current(handle: CUcontext) -> CudaResult {
    driver::get()?;
    let context = if handle.is_null() {
        None
    } else {
        Some(named_context(handle)?)
    };
    with_stack(|stack| {
        stack.pop();
        if context.is_some() {
            stack.push(context);
        }
    })
}

/// `cuCtxGetCurrent`: null when there is none.
pub fn get_current(out: *mut CUcontext) -> CudaResult {
    driver::get()?;
    let top = with_stack(|stack| stack.last().copied().flatten())?;
    let handle = top.map_or(std::ptr::null_mut(), |context| context.handle());
    // SAFETY: `out` is the caller's place for a context.
    unsafe { store(out, handle) }
}

/// `cuCtxGetDevice`.
pub fn get_device(out: *mut CUdevice) -> CudaResult {
    // SAFETY: `out` is the caller's place for a device.
    unsafe { store(out, current::context()?.ordinal) }
}

/// `cuCtxGetDevice_v2`.
pub fn get_device_v2(out: *mut CUdevice, context: CUcontext) -> CudaResult {
    // SAFETY: `out` is the caller's place for a device.
    unsafe { store(out, named_or_current(context)?.ordinal) }
}

/// `cuCtxGetFlags`.
pub fn get_flags(out: *mut u32) -> CudaResult {
    // SAFETY: `out` is the caller's place for the flags.
    unsafe { store(out, current::context()?.flags.load(Ordering::Relaxed)) }
}

/// `cuCtxSetFlags`.
pub fn set_flags(flags: u32) -> CudaResult {
    current::context()?.flags.store(flags, Ordering::Relaxed);
    Ok(())
}

/// `cuCtxGetId`.
pub fn get_id(context: CUcontext, out: *mut u64) -> CudaResult {
    // SAFETY: `out` is the caller's place for the number.
    unsafe { store(out, named_or_current(context)?.id) }
}

/// `cuCtxGetApiVersion`.
pub fn api_version(context: CUcontext, out: *mut u32) -> CudaResult {
    named_or_current(context)?;
    // SAFETY: `out` is the caller's place for the version.
    unsafe { store(out, 3020) }
}

/// `cuCtxSynchronize`.
pub fn synchronize() -> CudaResult {
    synchronize_v2(std::ptr::null_mut())
}

/// `cuCtxSynchronize_v2`.
pub fn synchronize_v2(context: CUcontext) -> CudaResult {
    let context = named_or_current(context)?;
    capturing::ask_context(context.id)?;
    context.synchronize()?;
    pool::reap();
    Ok(())
}

/// `cuCtxGetStreamPriorityRange`.
pub fn priority_range(least: *mut i32, greatest: *mut i32) -> CudaResult {
    current::context()?;
    // SAFETY: both are null or the caller's places.
    unsafe {
        crate::result::store_optional(least, PRIORITIES.1);
        crate::result::store_optional(greatest, PRIORITIES.0);
    }
    Ok(())
}

#[derive(Clone, Copy, Default)]
struct Primary {
    context: Option<&'static Pinned<Context>>,
    retained: u32,
    flags: u32,
}

fn primaries() -> MutexGuard<'static, Vec<Primary>> {
    static PRIMARIES: Mutex<Vec<Primary>> = Mutex::new(Vec::new());
    let mut primaries = PRIMARIES.lock().unwrap_or_else(PoisonError::into_inner);
    let count = driver::get().map_or(0, |driver| driver.gpus.len());
    if primaries.len() < count {
        primaries.resize(count, Primary::default());
    }
    primaries
}

/// `cuDevicePrimaryCtxRetain`.
pub fn primary_retain(out: *mut CUcontext, ordinal: CUdevice) -> CudaResult {
    driver::device(ordinal)?;
    let mut primaries = primaries();
    let primary = &mut primaries[ordinal as usize];
    let context = match primary.context {
        Some(context) => context,
        None => Context::new(ordinal, primary.flags, Sms::ALL)?,
    };
    primary.context = Some(context);
    primary.retained += 1;
    // SAFETY: `out` is the caller's place for a context.
    unsafe { store(out, context.handle()) }
}

/// `cuDevicePrimaryCtxRelease`: the last one destroys.
pub fn primary_release(ordinal: CUdevice) -> CudaResult {
    driver::device(ordinal)?;
    let mut primaries = primaries();
    let primary = &mut primaries[ordinal as usize];
    match primary.retained {
        0 => return Err(CUresult::INVALID_CONTEXT),
        1 => {
            let context = primary.context.take();
            primary.retained = 0;
            drop(primaries);
            if let Some(context) = context {
                end(context);
            }
        }
        _ => primary.retained -= 1,
    }
    Ok(())
}

/// `cuDevicePrimaryCtxReset`: destroys whatever the count.
pub fn primary_reset(ordinal: CUdevice) -> CudaResult {
    driver::device(ordinal)?;
    let context = {
        let primary = &mut primaries()[ordinal as usize];
        primary.retained = 0;
        primary.context.take()
    };
    if let Some(context) = context {
        end(context);
    }
    Ok(())
}

/// `cuDevicePrimaryCtxSetFlags`.
pub fn primary_set_flags(ordinal: CUdevice, flags: u32) -> CudaResult {
    driver::device(ordinal)?;
    let primary = &mut primaries()[ordinal as usize];
    primary.flags = flags;
    if let Some(context) = primary.context {
        context.flags.store(flags, Ordering::Relaxed);
    }
    Ok(())
}

/// `cuDevicePrimaryCtxGetState`.
pub fn primary_state(ordinal: CUdevice, flags: *mut u32, active: *mut i32) -> CudaResult {
    driver::device(ordinal)?;
    let primary = primaries()[ordinal as usize];
    // SAFETY: both are the caller's places.
    unsafe {
        store(flags, primary.flags)?;
        store(active, i32::from(primary.context.is_some()))
    }
}
