//! Contexts and streams that live, and on which device: what the prober may ask.
//!
//! Every call that ends a context or a stream runs under this registry's lock, and so does every
//! question of the prober: it never uses a dead handle. A launch never takes the lock: it reads
//! [`super::streams`], or asks for the thread's current context.

use super::registry::{Orphan, Stream};
use super::slots;
use crate::hook::driver::{self, Driver};
use crate::memory::gone;
use crate::process::{Process, Start, guarded, known, process};
use crate::sys;
use tidegate_abi::cuda::{CUcontext, CUdevice, CUresult};
use tidegate_abi::page::DEVICES;

/// The calling thread's current context and its device.
pub fn current(driver: &Driver) -> Option<(usize, usize)> {
    let mut context: CUcontext = core::ptr::null_mut();
    let mut device: CUdevice = -1;
    // SAFETY: both out-parameters are live; neither call needs a current context.
    let known = unsafe {
        (driver.ctx_get_current)(&raw mut context).is_ok()
            && !context.is_null()
            && (driver.ctx_get_device)(&raw mut device).is_ok()
    };
    let device = usize::try_from(device).ok()?;
    (known && device < DEVICES).then_some((context as usize, device))
}

/// Notes the calling thread's current context, and starts the library with the first.
pub fn note_current(process: &'static Process, start: Start) -> Option<(usize, usize)> {
    let (context, device) = current(driver::driver()?)?;
    sys::lock(&process.contexts).insert_context(context, device);
    if process.see_device(device) {
        process.bell.ring();
    }
    start(process);
    Some((context, device))
}

/// After a call that may have changed the thread's current context.
pub fn changed(start: Start, result: CUresult) -> CUresult {
    if result.is_ok() {
        guarded(|| {
            sys::keeping_errno(|| {
                slots::forget_stream();
                if let Some(process) = process() {
                    note_current(process, start);
                }
            });
        });
    }
    result
}

/// After a device's primary context was retained: current nowhere yet, but the process uses CUDA.
pub fn retained(
    start: Start,
    context: *mut CUcontext,
    device: CUdevice,
    result: CUresult,
) -> CUresult {
    if result.is_ok() && !context.is_null() {
        guarded(|| {
            sys::keeping_errno(|| {
                let (Some(process), Ok(at)) = (process(), usize::try_from(device)) else {
                    return;
                };
                if at < DEVICES {
                    // SAFETY: the driver wrote it and reported success.
                    let context = unsafe { *context };
                    sys::lock(&process.contexts).insert_context(context as usize, at);
                    if process.see_device(at) {
                        process.bell.ring();
                    }
                    start(process);
                }
            });
        });
    }
    result
}

/// A call that ends one context.
pub fn destroy(context: CUcontext, call: impl FnOnce() -> CUresult) -> CUresult {
    let Some(process) = known() else {
        return call();
    };
    let mut contexts = sys::lock(&process.contexts);
    let result = call();
    if result.is_ok() {
        contexts.forget_context(&process.stream_devices, context as usize);
        slots::forget_stream();
        gone::context_gone(process, context as usize);
    }
    result
}

/// A call that may end a device's primary context.
pub fn release(device: CUdevice, call: impl FnOnce() -> CUresult) -> CUresult {
    let Some(process) = known() else {
        return call();
    };
    let mut contexts = sys::lock(&process.contexts);
    let result = call();
    if result.is_ok()
        && let Some(driver) = driver::driver()
    {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: both out-parameters are live.
        let known =
            unsafe { (driver.primary_state)(device, &raw mut flags, &raw mut active) }.is_ok();
        if known && active == 0 {
            // A primary context and those made by cuCtxCreate look alike; only the driver can tell
            // which still answer, and a context that does not is skipped by the prober.
            let gone: Vec<usize> = usize::try_from(device)
                .map(|at| contexts.contexts_of(at).collect())
                .unwrap_or_default();
            for context in gone {
                if !lives(driver, context) {
                    contexts.forget_context(&process.stream_devices, context);
                    gone::context_gone(process, context);
                }
            }
        }
        slots::forget_stream();
    }
    result
}

fn lives(driver: &Driver, context: usize) -> bool {
    let mut version = 0;
    // SAFETY: the driver checks context handles; `version` is live.
    unsafe { (driver.ctx_get_api_version)(context as CUcontext, &raw mut version) }.is_ok()
}

/// After a stream was made.
pub fn stream_made(
    start: Start,
    stream: *mut *mut core::ffi::c_void,
    result: CUresult,
) -> CUresult {
    if result.is_ok() && !stream.is_null() {
        guarded(|| {
            sys::keeping_errno(|| {
                if let Some(process) = process()
                    && let Some((context, device)) = note_current(process, start)
                {
                    // SAFETY: the driver wrote it and reported success.
                    let handle = unsafe { *stream } as usize;
                    let mut contexts = sys::lock(&process.contexts);
                    let stream = Stream { context, device };
                    contexts.insert_stream(handle, stream);
                    process.stream_devices.insert(handle as u64, device);
                }
            });
        });
    }
    result
}

/// A call that ends a stream. Its work goes on after it, so the end of that work is marked first.
pub fn stream_destroyed(
    stream: *mut core::ffi::c_void,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let Some(process) = known() else {
        return call();
    };
    let mut contexts = sys::lock(&process.contexts);
    let orphan = contexts
        .stream(stream as usize)
        .filter(|_| process.role().counts())
        .and_then(|known| mark_end(stream, known));
    let result = call();
    if result.is_ok() {
        contexts.forget_stream(stream as usize);
        process.stream_devices.remove(stream as u64);
    }
    if let Some(orphan) = orphan {
        contexts.leave(orphan);
    }
    result
}

fn mark_end(stream: *mut core::ffi::c_void, known: Stream) -> Option<Orphan> {
    let driver = driver::driver()?;
    if slots::ANNOUNCE.capturing() {
        return None;
    }
    // SAFETY: the caller is about to destroy the stream, so it is live; the event is ours.
    unsafe {
        if (driver.stream_query)(stream) != CUresult::NOT_READY {
            return None;
        }
        let mut event = core::ptr::null_mut();
        const DISABLE_TIMING: u32 = 2;
        if !(driver.event_create)(&raw mut event, DISABLE_TIMING).is_ok() {
            return None;
        }
        if !(driver.event_record)(event, stream).is_ok() {
            (driver.event_destroy)(event);
            return None;
        }
        Some(Orphan {
            event: event as usize,
            context: known.context,
            device: known.device,
        })
    }
}
