//! Calls that prove work done: when the last one returned, and what it says about the thread's own stream.
//!
//! The idle edge carries that time, so that the cooldown counts from the moment at which the work was known to be done,
//! not from the probe that found out. Only the thread itself can query its own default stream, and it does so here. If
//! a thread makes no such call, an event shows it ([`tidegate_core::witness`]).

use super::prober;
use crate::activity::hold;
use crate::process::{Process, guarded, known};
use crate::real::driver::driver;
use crate::real::row::Row;
use crate::state::activity::slots::{self, ANNOUNCE};
use crate::state::activity::turns;
use crate::{clock, sys};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use tidegate_abi::cuda::{CU_STREAM_PER_THREAD, CUresult, CUstream};

/// What a synchronising call proves when it succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Everything in the context.
    Context,
    /// One stream.
    Stream(u64),
    /// Some work of some stream.
    Event,
}

/// A synchronising call.
pub fn around(row: &'static Row, proof: Proof, call: impl FnOnce() -> CUresult) -> CUresult {
    row.count();
    if proof == Proof::Context && known().is_some() {
        return hold::around(row, || context(call));
    }
    let result = call();
    returned(proof, result);
    result
}

/// Threads whose own streams one context synchronisation vouches for; those of more prove
/// themselves by their threads' own calls.
const VOUCHED: usize = 64;

/// A context's synchronisation proves what every thread had launched before it.
fn context(call: impl FnOnce() -> CUresult) -> CUresult {
    let mut before = [const { None::<(&slots::Slot, u64)> }; VOUCHED];
    if let Some(all) = slots::all() {
        let high = all.high.load(Acquire) as usize;
        let launched = all
            .own
            .iter()
            .take(high)
            .map(|slot| (slot, slot.thread_stream.entered.load(Acquire)))
            .filter(|(_, launched)| *launched != 0);
        for (place, launched) in before.iter_mut().zip(launched) {
            *place = Some(launched);
        }
    }
    let result = call();
    if result.is_ok() {
        for (slot, launched) in before.into_iter().flatten() {
            slot.thread_stream.returned.fetch_max(launched, Release);
        }
    }
    returned(Proof::Context, result);
    result
}

/// Counts a turn of the device whose work the thread with that slot waited for. Of a thread that launches nothing itself
/// that is the only device in use; with several nobody knows.
fn turned(process: &'static Process, own: Option<&'static slots::Slot>) {
    let device = own.map_or_else(
        || {
            let mut seen = process.seen_devices();
            seen.next().filter(|_| seen.next().is_none())
        },
        |slot| Some(slot.device.load(Relaxed) as usize),
    );
    if let Some(device) = device
        && let Some(turns) = process.turns.get(device)
    {
        turns.returned(turns::is_due(device, own), || {
            prober::entered(process, device)
        });
    }
}

/// After a synchronising call returned.
pub fn returned(proof: Proof, result: CUresult) {
    // SAFETY: null or into the array, which is never unmapped.
    let slot = unsafe { slots::current().as_ref() };
    if !result.is_ok() {
        return;
    }
    let own = slot.filter(|slot| slot.is_own());
    if let Some(process) = known() {
        turned(process, own);
    }
    let Some(slot) = own else {
        return;
    };
    slot.sync_ns.store(clock::now_ns(), Relaxed);
    slot.sync_entered
        .store(slot.counts.entered.load(Relaxed), Release);
    let launched = slot.thread_stream.entered.load(Acquire);
    if launched == slot.thread_stream.returned.load(Acquire) {
        return;
    }
    let done = match proof {
        Proof::Stream(2) => true,
        _ if ANNOUNCE.capturing() => false,
        _ => guarded(|| {
            sys::keeping_errno(|| {
                // SAFETY: a constant handle, asked by the thread whose stream it is.
                driver().is_some_and(|driver| unsafe {
                    (driver.stream_query)(CU_STREAM_PER_THREAD as CUstream).is_ok()
                })
            })
        })
        .unwrap_or(false),
    };
    if done {
        slot.thread_stream.returned.fetch_max(launched, Release);
    }
}
