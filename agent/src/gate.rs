//! The gate words of a page: whether launches on a device wait.

use crate::sys;
use std::sync::atomic::Ordering;
use tidegate_abi::page::{GATE_CLOSED, GATE_HELD, GATE_OPEN, GATE_STATE, GateWords};

/// What launches do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// They pass.
    Open,
    /// They wait.
    Closed,
    /// They wait, and so do calls that may hold the driver's locks: a reclaim is under way.
    Held,
}

/// Sets a gate, and wakes what waits on it and may no longer have to. One writer a page.
pub fn set(words: &GateWords, gate: Gate) {
    let before = words.gate.load(Ordering::Relaxed);
    let state = match gate {
        Gate::Open => GATE_OPEN,
        Gate::Closed => GATE_CLOSED,
        Gate::Held => GATE_HELD,
    };
    if before & GATE_STATE == state {
        return;
    }
    let next = ((before >> 2) + 1) << 2 | state;
    words.gate.store(next, Ordering::Release);
    if gate == Gate::Open || before & GATE_STATE == GATE_HELD {
        sys::futex_wake_low(&words.gate);
    }
}
