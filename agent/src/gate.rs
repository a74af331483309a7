//! The gate words of a page: whether launches on a device wait.

use crate::sys;
use std::sync::atomic::Ordering;
use tidegate_abi::page::{GATE_CLOSED, GATE_OPEN, GATE_STATE, GateWords};

/// Opens or closes a gate, and wakes the launches that wait on it. One writer a page.
pub fn set(words: &GateWords, closed: bool) {
    let before = words.gate.load(Ordering::Relaxed);
    let state = if closed { GATE_CLOSED } else { GATE_OPEN };
    if before & GATE_STATE == state {
        return;
    }
    let next = ((before >> 2) + 1) << 2 | state;
    words.gate.store(next, Ordering::Release);
    if !closed {
        sys::futex_wake_low(&words.gate);
    }
}
