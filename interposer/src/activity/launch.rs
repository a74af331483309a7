//! The slow path of a launch: everything of which the hot path cannot be sure.
//!
//! These are the first launch of a thread, another stream or device than last time, an idle device, a closed gate, a
//! capture somewhere in the process, and counts that must be atomic. The slow path finds the device and the thread's
//! slot, and waits at the gate if the process is offline. It notes the stream before the count, because a prober that
//! sees the count must see the stream. Then it rings the busy edge, and leaves the slot where the hot path finds it.

use super::{contexts, gate, sync, witness};
use crate::activity::hold;
use crate::clock;
use crate::process::{self, Process, Start, process};
use crate::real::driver::{self, Driver};
use crate::real::row::Row;
use crate::state::activity::slots::{self, ANNOUNCE, STREAMS, Slot, Slots};
use crate::sys::{self, Membarrier};
use core::ffi::{c_int, c_uint};
use core::mem::offset_of;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::fence;
use tidegate_abi::cuda::{CUlaunchConfig, CUresult, CUstream, CudaLaunchParams};
use tidegate_abi::page::{DEVICES, DeviceWords, Page};
use tidegate_core::activity::busy_edge;
use tidegate_core::gate::{self as core_gate, Admission, Capture, Role};

/// What a launch touches.
#[derive(Clone, Copy, Debug)]
pub struct Touch {
    /// The stream as [`slots::named`].
    pub stream: u64,
    /// The graph launched, or 0.
    pub graph: u64,
    /// The stream may then wait for the host.
    pub waits_on_host: bool,
}

/// The result of a launch that waited for an agent and was told to fail without one: "all required
/// driver daemons are actively running" is what this error asks its reader to see to. Also of one that a signal
/// interrupted while it waited. It was not launched, and the context is as good as before.
const REFUSED: CUresult = CUresult::SYSTEM_NOT_READY;

/// Copies below this are over before anything could be gated for them.
const LARGE_COPY: usize = 64 << 10;

/// The stream of a `cuLaunchKernelEx`.
#[inline(always)]
pub fn stream_of(config: *const CUlaunchConfig) -> CUstream {
    // SAFETY: null, or the structure that the driver is about to read itself.
    match unsafe { config.as_ref() } {
        Some(config) => config.stream,
        None => core::ptr::null_mut(),
    }
}

/// A launch that is under way, or that must not be.
enum Entered {
    Counted { slot: &'static Slot, shared: bool },
    Refused,
}

impl Entered {
    fn leave(&self) {
        if let Self::Counted { slot, shared } = *self {
            if shared {
                slot.counts.add_returned();
            } else {
                slot.counts.raise_returned();
            }
        }
    }
}

/// A launch on the slow path.
pub fn slow(
    row: &'static Row,
    start: Start,
    touch: Touch,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let entered = process::guarded(|| sys::keeping_errno(|| enter(row, start, touch))).flatten();
    if let Some(Entered::Refused) = entered {
        return REFUSED;
    }
    let result = call();
    if let Some(entered) = entered {
        if let Entered::Counted { slot, .. } = entered
            && touch.stream == 2
            && slot.is_own()
        {
            process::guarded(|| sys::keeping_errno(|| witness::record(slot)));
        }
        entered.leave();
    }
    result
}

/// A copy to the host, which has happened when it returns.
pub fn to_host(
    row: &'static Row,
    start: Start,
    stream: u64,
    bytes: usize,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let result = if bytes >= LARGE_COPY {
        let touch = Touch {
            stream,
            graph: 0,
            waits_on_host: false,
        };
        slow(row, start, touch, call)
    } else {
        row.count();
        hold::around(row, call)
    };
    sync::returned(sync::Proof::Event, result);
    result
}

/// `cuLaunchCooperativeKernelMultiDevice`: one stream on each of several devices.
///
/// # Safety
/// `list` is the driver's argument of that name.
pub unsafe fn multi_device(
    row: &'static Row,
    start: Start,
    list: *mut CudaLaunchParams,
    count: c_uint,
    _flags: c_uint,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let mut entered = [const { None }; DEVICES];
    process::guarded(|| {
        sys::keeping_errno(|| {
            if list.is_null() {
                return;
            }
            // SAFETY: the driver is about to read the same array.
            let list = unsafe { core::slice::from_raw_parts(list, count as usize) };
            // One launch for each device at most; the driver refuses more.
            for (place, params) in entered.iter_mut().zip(list) {
                let touch = Touch {
                    stream: slots::named::<false>(params.stream as usize),
                    graph: 0,
                    waits_on_host: false,
                };
                *place = enter(row, start, touch);
            }
        });
    });
    let entered = entered.iter().flatten();
    let refused = |entered: &Entered| matches!(entered, Entered::Refused);
    let result = if entered.clone().any(refused) {
        REFUSED
    } else {
        call()
    };
    entered.for_each(Entered::leave);
    result
}

/// Whether a stream captures, as the driver says.
pub fn captures(driver: &Driver, stream: u64) -> Capture {
    let mut status: c_int = 0;
    // SAFETY: the stream is the caller's own; the call is legal in every capture mode.
    let known =
        unsafe { (driver.stream_is_capturing)(stream as usize as CUstream, &raw mut status) };
    // An error says that a capture is invalid or that the legacy stream would break one: either
    // way nothing launched there runs.
    if known.is_ok() && status == 0 {
        Capture::None
    } else {
        Capture::Active
    }
}

fn enter(row: &'static Row, start: Start, touch: Touch) -> Option<Entered> {
    let process = process()?;
    if process.role() == Role::Ignore {
        row.count();
        return None;
    }
    let driver = driver::driver()?;
    if ANNOUNCE.capturing() && captures(driver, touch.stream) == Capture::Active {
        row.count();
        return None;
    }
    let device = device_of(process, start, driver, touch.stream)?;
    let (slot, shared) = slot_for(process, device)?;
    if let (Some(calls), false) = (slot.calls.get(row.index), shared) {
        calls.store(calls.load(Relaxed).wrapping_add(1), Relaxed);
    } else {
        row.count();
    }
    note(slot, touch);
    let Some(page) = begin(process, slot, shared, device) else {
        return Some(Entered::Refused);
    };
    if slot.owner.load(Relaxed) != 0 {
        // SAFETY: a slot with an owner was given its word by `claim`.
        unsafe { slot.show(page) };
    }
    let words = &page.devices[device];
    if let Some(_edge) = busy_edge(&words.activity)
        && process.role().counts()
    {
        words.busy_since_ns.store(clock::now_ns(), Release);
        process::ring(page);
    }
    if !shared {
        // A per-thread stream is counted launch by launch, so it stays on this path.
        let known = if touch.stream == 2 { 0 } else { touch.stream };
        slot.last_stream.store(known, Relaxed);
    }
    Some(Entered::Counted { slot, shared })
}

/// Raises `entered` once the gate lets the launch through; the page it saw. None: it never will.
fn begin(
    process: &'static Process,
    slot: &Slot,
    shared: bool,
    device: usize,
) -> Option<&'static Page> {
    loop {
        let mut page = process.page();
        let passes = || {
            fence(SeqCst);
            page = process.page();
            gate::admission(process, page, device) == Admission::Pass
        };
        if core_gate::enter::<_, Membarrier>(&slot.counts, shared, passes) {
            return Some(page);
        }
        if gate::wait(process, page, device) == Admission::Fail {
            return None;
        }
    }
}

fn device_of(
    process: &'static Process,
    start: Start,
    driver: &Driver,
    stream: u64,
) -> Option<usize> {
    if let Some(device) = process.stream_devices.get(stream) {
        return Some(device);
    }
    let (_, device) = contexts::current(driver)?;
    if process.devices.load(Acquire) & (1 << device) == 0 {
        // A context made by a way no hook sees.
        contexts::note_current(process, start);
    }
    Some(device)
}

/// Notes what a launch touches, before it is counted.
fn note(slot: &Slot, touch: Touch) {
    if touch.graph != 0 {
        slot.graph.store(touch.graph, Relaxed);
    }
    if touch.waits_on_host {
        slot.waits_on_host.store(1, Relaxed);
    }
    if touch.stream == 2 {
        slot.thread_stream.entered.fetch_add(1, AcqRel);
        return;
    }
    for place in &slot.streams {
        let known = place.load(Relaxed);
        if known == touch.stream {
            return;
        }
        if known == 0
            && place
                .compare_exchange(0, touch.stream, AcqRel, Relaxed)
                .is_ok_and(|_| true)
        {
            return;
        }
        if place.load(Relaxed) == touch.stream {
            return;
        }
    }
    slot.all_streams.store(1, Release);
}

/// The calling thread's slot on `device`, and whether its counts must be atomic. A thread asks for
/// its id with its first launch only.
fn slot_for(process: &Process, device: usize) -> Option<(&'static Slot, bool)> {
    let all = slots::all()?;
    let atomic = !process.start.membarrier;
    // SAFETY: null or into the array, which is never unmapped.
    let current = unsafe { slots::current().as_ref() };
    let on_device = |slot: &&Slot| slot.device.load(Relaxed) as usize == device;
    let own = current.filter(|slot| slot.is_own());
    if let Some(slot) = own.filter(on_device) {
        return Some((slot, atomic));
    }
    let shared = all.shared.get(device)?;
    if current.is_some_and(|slot| core::ptr::eq(slot, shared)) {
        return Some((shared, true));
    }
    let tid = match own {
        Some(slot) => slot.owner.load(Relaxed),
        None => sys::gettid().cast_unsigned(),
    };
    let high = all.high.load(Acquire) as usize;
    let is_mine = |slot: &&Slot| slot.owner.load(Relaxed) == tid && on_device(slot);
    let found = all.own.iter().take(high).find(is_mine);
    if let Some(slot) = found.or_else(|| claim(all, tid, device)) {
        // A slot of the same id may be that of a thread that is gone.
        slot.thread.store(slots::thread_pointer(), Relaxed);
        slots::set_current(slot);
        return Some((slot, atomic));
    }
    shared.device.store(u32::try_from(device).ok()?, Relaxed);
    shared.all_streams.store(1, Release);
    slots::set_current(shared);
    Some((shared, true))
}

fn claim(all: &'static Slots, tid: u32, device: usize) -> Option<&'static Slot> {
    let (index, slot) = all
        .own
        .iter()
        .enumerate()
        .find(|(_, slot)| slot.owner.compare_exchange(0, tid, AcqRel, Relaxed).is_ok())?;
    let words_at = offset_of!(Page, devices) + device.min(DEVICES - 1) * size_of::<DeviceWords>();
    slot.device
        .store(u32::try_from(device).unwrap_or(0), Relaxed);
    slot.words_at.store(words_at as u64, Relaxed);
    slot.last_stream.store(0, Relaxed);
    slot.take_tally(index, device.min(DEVICES - 1));
    debug_assert!(STREAMS == slot.streams.len());
    all.high
        .fetch_max(u32::try_from(index + 1).unwrap_or(u32::MAX), AcqRel);
    Some(slot)
}
