//! Records the events of [`tidegate_core::witness`]. An event stays with its slot, whichever thread has the slot next,
//! and is destroyed with its context.

use super::contexts;
use crate::process::process;
use crate::real::driver::{self, Driver};
use crate::state::activity::slots::{ANNOUNCE, Slot};
use crate::sys;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::Relaxed;
use tidegate_abi::cuda::{CU_STREAM_PER_THREAD, CUevent, CUstream};
use tidegate_core::witness::Event;

/// Records the slot's event behind what its thread, which calls this, launched into its own stream, if that can be done.
pub fn record(slot: &Slot) {
    let Some(driver) = driver::driver() else {
        return;
    };
    let launched = slot.thread_stream.entered.load(Relaxed);
    let recorded = if ANNOUNCE.capturing() {
        // Another thread's capture ends with an error where a call like these is not announced as harmless.
        relaxed(driver, || recorded(slot, driver))
    } else {
        recorded(slot, driver)
    };
    if recorded.is_some() {
        slot.witness.covers(launched);
    }
}

fn recorded(slot: &Slot, driver: &Driver) -> Option<()> {
    let (context, _) = contexts::current(driver)?;
    let record = |event: u64| {
        let stream = CU_STREAM_PER_THREAD as CUstream;
        // SAFETY: an event of ours, and a constant handle.
        unsafe { (driver.event_record)(event as CUevent, stream) }
            .is_ok()
            .then_some(())
    };
    if let Some(event) = slot.witness.event() {
        let of = event.context as usize;
        if of == context && record(event.handle).is_some() {
            return Some(());
        }
        // It went with its context, whose handle may be another's. One whose context lives is kept for that.
        if of != context && sys::lock(&process()?.contexts).device_of(of).is_some() {
            return None;
        }
    }
    let fresh = Event {
        handle: made(driver)?,
        context: context as u64,
    };
    slot.witness.set(fresh);
    record(fresh.handle)
}

fn made(driver: &Driver) -> Option<u64> {
    const DISABLE_TIMING: u32 = 2;
    let mut event = null_mut();
    // SAFETY: the place is live for the call.
    unsafe { (driver.event_create)(&raw mut event, DISABLE_TIMING) }
        .is_ok()
        .then_some(event as u64)
}

/// Makes calls that no capture of another thread's is harmed by.
fn relaxed<T>(driver: &Driver, calls: impl FnOnce() -> Option<T>) -> Option<T> {
    const RELAXED: i32 = 2;
    let mut mode = RELAXED;
    // SAFETY: `mode` is live; the call concerns this thread only.
    if !unsafe { (driver.exchange_capture_mode)(&raw mut mode) }.is_ok() {
        return None;
    }
    let done = calls();
    // SAFETY: as above: it is what it was before.
    unsafe { (driver.exchange_capture_mode)(&raw mut mode) };
    done
}
