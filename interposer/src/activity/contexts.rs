//! Contexts and streams that exist, and their devices: what the prober may query.
//!
//! A call that destroys a context or a stream first removes it from the registry, and waits for the prober's queries
//! ([`crate::state::activity::registry`]), so the prober never uses a dead handle. A launch never takes the registry's
//! lock: it reads [`crate::state::activity::streams`], or asks for the thread's current context.

use crate::activity::gone;
use crate::process::{Process, Start, guarded, known, process};
use crate::real::driver::{self, Driver};
use crate::state::activity::registry::{Orphan, Stream};
use crate::state::activity::slots::{self, ANNOUNCE};
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

/// Makes a call that may end something of `device`, while the prober asks nothing there.
fn ending(process: &Process, device: usize, call: impl FnOnce() -> CUresult) -> CUresult {
    let thread = sys::gettid();
    // The prober's questions are a few hundred nanoseconds each.
    while !sys::lock(&process.contexts).ends(device, thread) {
        std::thread::yield_now();
    }
    let result = call();
    sys::lock(&process.contexts).ended(device, thread);
    result
}

/// A call that ends one context.
pub fn destroy(context: CUcontext, call: impl FnOnce() -> CUresult) -> CUresult {
    let Some(process) = known() else {
        return call();
    };
    let device = sys::lock(&process.contexts).device_of(context as usize);
    let Some(device) = device else {
        return call();
    };
    let mut leaving = None;
    let result = ending(process, device, || {
        // The handle may be another context's before the call is back.
        let mut contexts = sys::lock(&process.contexts);
        leaving = contexts.take_context(&process.stream_devices, context as usize);
        drop(contexts);
        call()
    });
    if result.is_ok() {
        context_gone(process, context as usize);
    } else if let Some(leaving) = leaving {
        sys::lock(&process.contexts).put_back(&process.stream_devices, leaving);
    }
    result
}

/// After a context is gone.
fn context_gone(process: &Process, context: usize) {
    let captures = sys::lock(&process.contexts).captures_gone(|_, of| of == context);
    (0..captures).for_each(|_| ANNOUNCE.capture_ended());
    slots::forget_stream();
    gone::context_gone(process, context);
}

/// A call that may end a device's primary context.
pub fn release(device: CUdevice, call: impl FnOnce() -> CUresult) -> CUresult {
    let (Some(process), Ok(at)) = (known(), usize::try_from(device)) else {
        return call();
    };
    let result = ending(process, at, call);
    if result.is_ok()
        && let Some(driver) = driver::driver()
    {
        let (mut flags, mut active) = (0, 0);
        // SAFETY: both out-parameters are live.
        let known =
            unsafe { (driver.primary_state)(device, &raw mut flags, &raw mut active) }.is_ok();
        if known && active == 0 {
            forget_dead(process, driver, at);
        }
        slots::forget_stream();
    }
    result
}

/// Forgets the contexts of a device that do not answer. A primary context and those made by cuCtxCreate look alike; only
/// the driver can tell which still answer, and a context that does not is skipped by the prober.
fn forget_dead(process: &Process, driver: &Driver, device: usize) {
    let (noted, all) = {
        let contexts = sys::lock(&process.contexts);
        let all: Vec<usize> = contexts.contexts_of(device).collect();
        (contexts.noted(), all)
    };
    let dead = all.into_iter().filter(|context| !lives(driver, *context));
    let dead: Vec<usize> = dead.collect();
    let mut contexts = sys::lock(&process.contexts);
    if contexts.noted() != noted {
        // One of them may have come back under its old handle.
        return;
    }
    for context in &dead {
        contexts.take_context(&process.stream_devices, *context);
    }
    drop(contexts);
    for context in dead {
        context_gone(process, context);
    }
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
    let handle = stream as usize;
    let known = sys::lock(&process.contexts).stream(handle);
    let Some(known) = known else {
        let result = call();
        if result.is_ok() {
            captures_gone(process, handle);
        }
        return result;
    };
    let mut orphan = None;
    let result = ending(process, known.device, || {
        orphan = Some(known)
            .filter(|_| process.role().counts())
            .and_then(|known| mark_end(stream, known));
        // The handle may be another stream's before the call is back.
        sys::lock(&process.contexts).take_stream(handle);
        process.stream_devices.remove(handle as u64);
        let result = call();
        let mut contexts = sys::lock(&process.contexts);
        if !result.is_ok() {
            contexts.insert_stream(handle, known);
            process.stream_devices.insert(handle as u64, known.device);
        }
        if let Some(orphan) = orphan {
            contexts.leave(orphan);
        }
        result
    });
    if result.is_ok() {
        captures_gone(process, handle);
    }
    result
}

/// After a stream is gone: a capture that began on it has no end.
fn captures_gone(process: &Process, stream: usize) {
    let captures = sys::lock(&process.contexts).captures_gone(|of, _| of == stream);
    (0..captures).for_each(|_| ANNOUNCE.capture_ended());
}

fn mark_end(stream: *mut core::ffi::c_void, known: Stream) -> Option<Orphan> {
    let driver = driver::driver()?;
    if ANNOUNCE.capturing() {
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
