//! The gate words of a page: whether launches on a device wait.

use crate::sys;
pub use tidegate_abi::gate::Gate;
use tidegate_abi::page::GateWords;

/// Sets a gate, and wakes what waits on it and may no longer have to. One writer a page.
pub fn set(words: &GateWords, gate: Gate) {
    if tidegate_abi::gate::set(&words.gate, gate) {
        sys::futex_wake_low(&words.gate);
    }
}
