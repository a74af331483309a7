//! How allocations behave for the application: as if this library were not there.
//!
//! An allocation in a KV scope consists of many handles, and the driver would show that. Here it is one allocation
//! again: one base and size, freed only by its base and after its context is done, gone with its context, and
//! accessible to whoever may reach that context. If another party may hold the memory (inter-process handles,
//! registrations), nothing is taken from the allocation any more, and one event says so. All other allocations are the
//! driver's own, and are counted.

use super::grant::{self, Wants};
use super::scope::scope;
use super::service::serve;
use crate::activity::contexts;
use crate::activity::gone::forget_caches;
use crate::activity::hold;
use crate::outbox::say;
use crate::process::{Process, Start, guarded, known, process};
use crate::real::driver;
use crate::real::row::Row;
use crate::state::memory::backed::{HANDLE_BYTES, Range, vmm};
use crate::state::memory::kv::SHARED;
use crate::{env, sys};
use core::ffi::{c_int, c_void};
use tidegate_abi::cuda::{CUcontext, CUdevice, CUdeviceptr, CUresult};
use tidegate_core::gate::Role;
use tidegate_proto::v1::{self, client_event::Event};

/// What a thread's current context is, and its device.
fn current() -> Option<(usize, usize)> {
    contexts::current(driver::driver()?)
}

/// Runs `f` on the allocation that holds `at`, if a KV scope made it.
fn on<T>(at: u64, f: impl FnOnce(&'static Process, &mut Range) -> T) -> Option<T> {
    guarded(|| {
        sys::keeping_errno(|| {
            let process = known()?;
            let mut state = sys::lock(&process.memory.state);
            state.backed.find_mut(at).map(|range| f(process, range))
        })
    })
    .flatten()
}

/// `cuMemAlloc`.
pub fn alloc(
    row: &'static Row,
    start: Start,
    at: *mut CUdeviceptr,
    bytes: usize,
    call: impl Fn() -> CUresult,
) -> CUresult {
    let asked = bytes as u64;
    grant::through(row, Wants::here(asked).cache(is_cache(asked)), || {
        in_scope(start, at, asked).unwrap_or_else(|| (counted(at, bytes, call()), Some(asked)))
    })
}

/// `cuMemAllocAsync`, `cuMemAllocFromPoolAsync`, `cuMemAllocManaged`.
pub fn plain(
    row: &'static Row,
    at: *mut CUdeviceptr,
    bytes: usize,
    call: impl Fn() -> CUresult,
) -> CUresult {
    let asked = bytes as u64;
    grant::through(row, Wants::here(asked), || {
        (counted(at, bytes, call()), Some(asked))
    })
}

/// The scope that the calling thread is in, or that is guessed for an allocation of so many bytes.
fn scope_of(asked: u64) -> Option<(u64, bool)> {
    let guessed = || Some((0, false)).filter(|_| env::kv_guess().is_some_and(|min| asked >= min));
    scope().or_else(guessed)
}

/// Whether an allocation of so many bytes is a cache, from which may be taken.
fn is_cache(asked: u64) -> bool {
    scope_of(asked).is_some_and(|(handle_bytes, _)| asked >= handle_bytes.max(HANDLE_BYTES))
}

/// An allocation in a KV scope, and the room that it needs if that may be asked for; `None`: it is the driver's.
fn in_scope(start: Start, at: *mut CUdeviceptr, asked: u64) -> Option<(CUresult, Option<u64>)> {
    let (handle_bytes, bare) = scope_of(asked)?;
    if at.is_null() || asked < handle_bytes.max(HANDLE_BYTES) {
        return None;
    }
    guarded(|| {
        sys::keeping_errno(|| {
            let (process, vmm) = (process()?, vmm()?);
            let (context, device) = contexts::note_current(process, start)?;
            let mut state = sys::lock(&process.memory.state);
            let place = (device, context);
            let made = state.backed.allocate(vmm, place, asked, handle_bytes, bare);
            drop(state);
            process.memory.changed();
            serve(process);
            // Online's cache grows by what it is given.
            let needs = asked.checked_next_multiple_of(handle_bytes.max(HANDLE_BYTES));
            let needs = needs.filter(|_| !bare && process.role() == Role::Offline);
            let result = match made {
                Ok(base) => {
                    // SAFETY: the caller's place for an address, not null.
                    unsafe { at.write(base) };
                    CUresult::SUCCESS
                }
                Err(refused) => refused.result(),
            };
            Some((result, needs))
        })
    })
    .flatten()
}

/// An allocation of the driver's, after it was made.
pub fn counted(at: *mut CUdeviceptr, bytes: usize, result: CUresult) -> CUresult {
    if result.is_ok() && !at.is_null() {
        guarded(|| {
            sys::keeping_errno(|| {
                if let (Some(process), Some((_, device))) = (process(), current()) {
                    // SAFETY: the driver wrote it and reported success.
                    let base = unsafe { at.read() };
                    let mut state = sys::lock(&process.memory.state);
                    state.plain.insert(base, (device, bytes as u64));
                    process.memory.changed();
                }
            });
        });
    }
    result
}

/// `cuMemAllocPitch`: how long its rows are is known afterwards.
pub fn pitched(
    row: &'static Row,
    at: *mut CUdeviceptr,
    pitch: *mut usize,
    (width, height): (usize, usize),
    call: impl Fn() -> CUresult,
) -> CUresult {
    let asked = width.saturating_mul(height);
    grant::through(row, Wants::here(asked as u64), || {
        let result = call();
        if result.is_ok() && !pitch.is_null() {
            // SAFETY: the driver wrote it and reported success.
            counted(at, unsafe { pitch.read() }.saturating_mul(height), result);
        }
        (result, Some(asked as u64))
    })
}

/// An allocation of the driver's, after it was freed.
pub fn freed(at: CUdeviceptr, result: CUresult) -> CUresult {
    if result.is_ok()
        && let Some(process) = known()
    {
        sys::lock(&process.memory.state).plain.remove(&at);
        process.memory.changed();
    }
    result
}

/// `cuMemFree`.
pub fn free(row: &'static Row, at: CUdeviceptr, call: impl FnOnce() -> CUresult) -> CUresult {
    hold::around(row, || {
        let Some((base, context)) = on(at, |_, range| (range.base, range.context)) else {
            return freed(at, call());
        };
        let (Some(process), Some(vmm), true) = (process(), vmm(), base == at) else {
            return CUresult::INVALID_VALUE;
        };
        // Without the lock: this waits for the GPU.
        if let Err(refused) = vmm.settle(context) {
            return refused.result();
        }
        let mut state = sys::lock(&process.memory.state);
        if state.backed.end(vmm, base).is_none() {
            return CUresult::INVALID_VALUE;
        }
        forget_caches(process, &mut state, &[base]);
        process.memory.changed();
        CUresult::SUCCESS
    })
}

/// `cuMemGetAddressRange`.
pub fn address_range(
    base: *mut CUdeviceptr,
    bytes: *mut usize,
    at: CUdeviceptr,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let result = call();
    if result.is_ok() {
        on(at, |_, range| {
            // SAFETY: null or the caller's places, which the driver has just written to.
            unsafe {
                if let Some(base) = base.as_mut() {
                    *base = range.base;
                }
                if let Some(bytes) = bytes.as_mut() {
                    *bytes = range.asked as usize;
                }
            }
        });
    }
    result
}

/// What an attribute of a pointer into an allocation is, where the driver would speak of one handle.
fn attribute_of(range: &Range, attribute: c_int) -> Option<u64> {
    const CONTEXT: c_int = 1;
    const BUFFER_ID: c_int = 7;
    const IS_LEGACY_IPC_CAPABLE: c_int = 10;
    const RANGE_START: c_int = 11;
    const RANGE_SIZE: c_int = 12;
    const MAPPING_SIZE: c_int = 18;
    const MAPPING_BASE: c_int = 19;
    const MEMORY_BLOCK_ID: c_int = 20;
    Some(match attribute {
        CONTEXT => range.context as u64,
        BUFFER_ID | MEMORY_BLOCK_ID => range.id,
        IS_LEGACY_IPC_CAPABLE => 0,
        RANGE_START | MAPPING_BASE => range.base,
        RANGE_SIZE => range.asked,
        MAPPING_SIZE => range.bytes,
        _ => return None,
    })
}

/// Writes an attribute in its width.
///
/// # Safety
/// `data` is null or the caller's place for this attribute.
unsafe fn put(data: *mut c_void, attribute: c_int, value: u64) {
    const IS_LEGACY_IPC_CAPABLE: c_int = 10;
    if data.is_null() {
        return;
    }
    // SAFETY: the attribute's width by the manual: a word for the flag, 64 bits for the others.
    unsafe {
        if attribute == IS_LEGACY_IPC_CAPABLE {
            data.cast::<u8>().write(u8::from(value != 0));
        } else {
            data.cast::<u64>().write_unaligned(value);
        }
    }
}

/// `cuPointerGetAttribute`.
pub fn attribute(
    data: *mut c_void,
    attribute: c_int,
    at: CUdeviceptr,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let result = call();
    let ours = on(at, |_, range| attribute_of(range, attribute)).flatten();
    match ours {
        // The driver has no context for mapped memory, and may say so with an error.
        Some(value) => {
            // SAFETY: the caller's place for this attribute.
            unsafe { put(data, attribute, value) };
            CUresult::SUCCESS
        }
        None => result,
    }
}

/// `cuPointerGetAttributes`.
pub fn attributes(
    count: u32,
    attributes: *const c_int,
    data: *mut *mut c_void,
    at: CUdeviceptr,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let result = call();
    if result.is_ok() {
        on(at, |_, range| {
            for index in 0..count as usize {
                // SAFETY: both arrays have `count` entries, by the call that has just succeeded.
                unsafe {
                    let attribute = *attributes.add(index);
                    if let Some(value) = attribute_of(range, attribute) {
                        put(*data.add(index), attribute, value);
                    }
                }
            }
        });
    }
    result
}

/// `cuMemRetainAllocationHandle`: memory of `cuMemAlloc` has none.
pub fn retain(handle: *mut u64, at: *mut c_void, call: impl FnOnce() -> CUresult) -> CUresult {
    if on(at as u64, |_, _| ()).is_some() {
        return CUresult::INVALID_VALUE;
    }
    let result = call();
    if result.is_ok() {
        grant::retained(handle, at as u64);
    }
    result
}

/// A call that gives memory to others in a way that pins its pages. The driver answers it as it
/// does for mapped memory.
pub fn shared(at: CUdeviceptr, call: impl FnOnce() -> CUresult) -> CUresult {
    let first = on(at, |process, range| {
        let first = !core::mem::replace(&mut range.shared, true);
        first.then_some((process, range.base))
    });
    if let Some((process, base)) = first.flatten() {
        guarded(|| {
            sys::keeping_errno(|| {
                let mut state = sys::lock(&process.memory.state);
                let hit = state.kvs.values_mut().filter(|kv| kv.bases.contains(&base));
                for kv in hit {
                    SHARED.clone_into(&mut kv.refused);
                    let membership = sys::lock(&process.memory.job.membership);
                    let said = membership.describe(kv);
                    drop(membership);
                    say(process, Event::KvRegistered(said));
                }
                let text = format!("memory at {base:#x} is never reclaimed: {SHARED}");
                let kind = "kv_shared".to_owned();
                say(process, Event::Note(v1::Note { kind, text }));
            });
        });
    }
    call()
}

/// What is shown of a device, and what others yield of it; `None`: what the driver says.
fn room(device: usize, whole: Option<usize>) -> Option<(usize, usize, usize)> {
    let process = known()?;
    let shown = &process.memory.shown.sizes;
    // One that is not attached yet may turn out to be offline, and is to see the same size then.
    let asks_online = process.start.wished == Role::Online && shown.share_of(device).is_none();
    if process.role() == Role::Online || asks_online {
        return None;
    }
    let held = sys::lock(&process.memory.state).held_bytes(device);
    let (size, left) = shown.room(device, whole.map(|bytes| bytes as u64), held)?;
    shown.share_of(device)?;
    let yields = shown.yields_of(device);
    Some((size as usize, left as usize, yields as usize))
}

/// What others give up of the current context's device for what this process allocates, if it is online.
fn yielded() -> Option<usize> {
    let process = known().filter(|process| process.role() == Role::Online)?;
    let (_, device) = current()?;
    usize::try_from(process.memory.shown.sizes.yields_of(device)).ok()
}

/// `cuMemGetInfo`.
pub fn info(free: *mut usize, total: *mut usize, result: CUresult) -> CUresult {
    if !result.is_ok() {
        return result;
    }
    // SAFETY: null or the caller's places, which the driver has just written to.
    let (free, total) = unsafe { (free.as_mut(), total.as_mut()) };
    let whole = total.as_ref().map(|total| **total);
    let shown = || {
        let (_, device) = current()?;
        room(device, whole)
    };
    if let Some((size, left, yields)) = guarded(|| sys::keeping_errno(shown)).flatten() {
        if let Some(total) = total {
            *total = size.min(*total);
        }
        if let Some(free) = free {
            *free = free.saturating_add(yields).min(left);
        }
    } else if let (Some(free), Some(total)) = (free, total)
        && let Some(yields) = guarded(|| sys::keeping_errno(yielded)).flatten()
    {
        // An engine takes memory that is not free for somebody's who was there before, and sizes its cache without it.
        *free = free.saturating_add(yields).min(*total);
    }
    result
}

/// `cuDeviceTotalMem`.
pub fn total(bytes: *mut usize, device: CUdevice, result: CUresult) -> CUresult {
    if !result.is_ok() {
        return result;
    }
    // SAFETY: null or the caller's place, which the driver has just written to.
    if let Some(bytes) = unsafe { bytes.as_mut() } {
        let size = || room(usize::try_from(device).ok()?, Some(*bytes));
        if let Some((size, ..)) = guarded(|| sys::keeping_errno(size)).flatten() {
            *bytes = size.min(*bytes);
        }
    }
    result
}

/// `cuCtxEnablePeerAccess`: the current context may use what was allocated in `peer`.
pub fn peer(peer: CUcontext, result: CUresult) -> CUresult {
    if result.is_ok() || result == CUresult::PEER_ACCESS_ALREADY_ENABLED {
        guarded(|| {
            sys::keeping_errno(|| {
                if let (Some(process), Some(vmm), Some((_, device))) = (process(), vmm(), current())
                {
                    let device = c_int::try_from(device).unwrap_or(0);
                    let mut state = sys::lock(&process.memory.state);
                    state.backed.peer(vmm, peer as usize, device);
                }
            });
        });
    }
    result
}
