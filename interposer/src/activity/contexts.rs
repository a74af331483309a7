//! Contexts and streams that live, and on which device: what the prober may ask.
//!
//! Every call that ends a context or a stream runs under this registry's lock, and so does every
//! question of the prober: it never uses a dead handle. A launch never takes the lock: it reads
//! [`crate::streams`], or asks for the thread's current context.

use crate::activity::slots;
use crate::hook::driver::{self, Driver};
use crate::memory::answers;
use crate::process::{Process, process};
use crate::start;
use crate::sys;
use std::collections::BTreeMap;
use tidegate_abi::cuda::{CUcontext, CUdevice, CUresult};
use tidegate_abi::page::DEVICES;

/// What lives.
#[derive(Debug, Default)]
pub struct Contexts {
    contexts: BTreeMap<usize, usize>,
    streams: BTreeMap<usize, Stream>,
    /// Events recorded on streams that were destroyed with work in them.
    orphans: Vec<Orphan>,
}

/// A stream.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// Its context.
    pub context: usize,
    /// Its device.
    pub device: usize,
}

/// The end of a destroyed stream's work.
#[derive(Clone, Copy, Debug)]
pub struct Orphan {
    /// Recorded before the stream went.
    pub event: usize,
    /// Its context.
    pub context: usize,
    /// Its device.
    pub device: usize,
}

impl Contexts {
    /// The stream of this handle.
    pub fn stream(&self, handle: usize) -> Option<Stream> {
        self.streams.get(&handle).copied()
    }

    /// Contexts of a device.
    pub fn contexts_of(&self, device: usize) -> impl Iterator<Item = usize> {
        self.contexts
            .iter()
            .filter(move |(_, at)| **at == device)
            .map(|(context, _)| *context)
    }

    /// Streams of a device.
    pub fn streams_of(&self, device: usize) -> impl Iterator<Item = (usize, Stream)> {
        self.streams
            .iter()
            .filter(move |(_, stream)| stream.device == device)
            .map(|(handle, stream)| (*handle, *stream))
    }

    /// What destroyed streams of a device left behind.
    pub fn orphans_of(&self, device: usize) -> Vec<Orphan> {
        self.orphans
            .iter()
            .filter(|orphan| orphan.device == device)
            .copied()
            .collect()
    }

    /// Forgets an orphan whose work is done.
    pub fn adopt(&mut self, event: usize) {
        self.orphans.retain(|orphan| orphan.event != event);
    }

    fn forget_context(&mut self, process: &Process, context: usize) {
        self.contexts.remove(&context);
        self.streams.retain(|handle, stream| {
            let stays = stream.context != context;
            if !stays {
                process.stream_devices.remove(*handle as u64);
            }
            stays
        });
        self.orphans.retain(|orphan| orphan.context != context);
    }
}

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
pub fn look(process: &'static Process) -> Option<(usize, usize)> {
    let (context, device) = current(driver::driver()?)?;
    sys::lock(&process.contexts)
        .contexts
        .insert(context, device);
    if process.see_device(device) {
        process.bell.ring();
    }
    start::once(process);
    Some((context, device))
}

/// After a call that may have changed the thread's current context.
pub fn changed(result: CUresult) -> CUresult {
    if result.is_ok() {
        crate::process::guarded(|| {
            sys::keeping_errno(|| {
                slots::forget_stream();
                if let Some(process) = process() {
                    look(process);
                }
            });
        });
    }
    result
}

/// After a device's primary context was retained: current nowhere yet, but the process uses CUDA.
pub fn retained(context: *mut CUcontext, device: CUdevice, result: CUresult) -> CUresult {
    if result.is_ok() && !context.is_null() {
        crate::process::guarded(|| {
            sys::keeping_errno(|| {
                let (Some(process), Ok(at)) = (process(), usize::try_from(device)) else {
                    return;
                };
                if at < DEVICES {
                    // SAFETY: the driver wrote it and reported success.
                    let context = unsafe { *context };
                    sys::lock(&process.contexts)
                        .contexts
                        .insert(context as usize, at);
                    if process.see_device(at) {
                        process.bell.ring();
                    }
                    start::once(process);
                }
            });
        });
    }
    result
}

/// A call that ends one context.
pub fn destroy(context: CUcontext, call: impl FnOnce() -> CUresult) -> CUresult {
    let Some(process) = crate::process::known() else {
        return call();
    };
    let mut contexts = sys::lock(&process.contexts);
    let result = call();
    if result.is_ok() {
        contexts.forget_context(process, context as usize);
        slots::forget_stream();
        answers::context_gone(process, context as usize);
    }
    result
}

/// A call that may end a device's primary context.
pub fn release(device: CUdevice, call: impl FnOnce() -> CUresult) -> CUresult {
    let Some(process) = crate::process::known() else {
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
                    contexts.forget_context(process, context);
                    answers::context_gone(process, context);
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
pub fn stream_made(stream: *mut *mut core::ffi::c_void, result: CUresult) -> CUresult {
    if result.is_ok() && !stream.is_null() {
        crate::process::guarded(|| {
            sys::keeping_errno(|| {
                if let Some(process) = process()
                    && let Some((context, device)) = look(process)
                {
                    // SAFETY: the driver wrote it and reported success.
                    let handle = unsafe { *stream } as usize;
                    let mut contexts = sys::lock(&process.contexts);
                    let stream = Stream { context, device };
                    contexts.streams.insert(handle, stream);
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
    let Some(process) = crate::process::known() else {
        return call();
    };
    let mut contexts = sys::lock(&process.contexts);
    let orphan = contexts
        .stream(stream as usize)
        .filter(|_| process.role().counts())
        .and_then(|known| mark_end(stream, known));
    let result = call();
    if result.is_ok() {
        contexts.streams.remove(&(stream as usize));
        process.stream_devices.remove(stream as u64);
    }
    contexts.orphans.extend(orphan);
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
