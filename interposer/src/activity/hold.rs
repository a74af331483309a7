//! Calls that may hold the driver's locks while they wait for the GPU.
//!
//! A reclaim changes mappings while every channel is disabled. A thread inside one of these calls may hold a lock that
//! the change needs, and then holds it until a channel runs again. So each such call leaves a mark while it is inside.
//! Before it begins, it waits while the gate word says that a reclaim is under way. The table lists these calls: rows
//! of class `Hold`, copies to the host, calls that destroy contexts and streams, and the synchronisation of a whole
//! context. Two others are marked by the count of launches entered and returned: a launch into a full queue, and a copy
//! that starts on the host.
//!
//! [`tidegate_core::hold`] describes how the two sides avoid each other, also if the agent that ordered the reclaim
//! dies.

use crate::activity::gate;
use crate::process::{self, Process};
use crate::real::row::Row;
use crate::state::activity::slots;
use crate::sys::{self, Membarrier};
use core::sync::atomic::Ordering::{Acquire, SeqCst};
use core::sync::atomic::fence;
use tidegate_core::gate::{RECHECK_NS, Role};
use tidegate_core::hold::may_enter;
use tidegate_core::word::Fences as _;

/// A call that may hold the driver's locks.
pub fn around<T>(row: &'static Row, call: impl FnOnce() -> T) -> T {
    let Some(process) = process::known().filter(|process| process.role() == Role::Offline) else {
        return call();
    };
    loop {
        let memory = &process.memory;
        let mark = memory.marks.leave(row);
        if may_enter(&memory.changing, || fence(SeqCst), || gate::held(process)) {
            let result = call();
            drop(mark);
            return result;
        }
        drop(mark);
        sys::keeping_errno(|| {
            gate::wait_while_held(process);
            memory.wait_while_moving(RECHECK_NS);
        });
    }
}

/// The call that a thread of the application is inside of, if one may hold the driver's locks.
pub fn inside(process: &Process) -> Option<String> {
    if let Some(call) = process.memory.marks.any() {
        return Some(call);
    }
    let all = slots::all()?;
    Membarrier.heavy();
    let high = all.high.load(Acquire) as usize;
    let mut slots = all.own.iter().take(high).chain(&all.shared);
    slots
        .any(|slot| {
            let returned = slot.counts.returned.load(Acquire);
            slot.counts.entered.load(Acquire) != returned
        })
        .then(|| "a launch".to_owned())
}
