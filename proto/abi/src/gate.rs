//! The gate word of a page: the agent that sets it, and the launches that wait on it.
//!
//! ```text
//! agent                              launch of an offline process
//!   store generation + 1 | state       raise `entered`, fence, read the word
//!   wake, unless it only closed          open: call the driver
//!                                        else lower `entered`, sleep while the low half is
//!                                        what was read, and begin again
//! ```
//!
//! Invariant: a launch sleeps only on a word that it has seen closed. Every change of such a word to one on which it
//! would not sleep is followed by a wake. Only the low half is compared: two words with the same low half are 2^30
//! changes apart.

use crate::page::{GATE_CLOSED, GATE_HELD, GATE_OPEN, GATE_STATE};
use crate::word::Word;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Firmware counts disables of a channel and lets it run after as many enables (found on an H100 and an H200, driver
/// 580.159.04); an enable too many is harmless. Who does not know how often a channel was disabled enables it so often:
/// the agent counts no further.
pub const MOST_DISABLES: u32 = 8;

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

impl Gate {
    /// The state bits.
    #[must_use]
    pub const fn state(self) -> u64 {
        match self {
            Self::Open => GATE_OPEN,
            Self::Closed => GATE_CLOSED,
            Self::Held => GATE_HELD,
        }
    }
}

/// Sets a gate. `true`: who sleeps on the word may no longer have to, and is to be woken. One writer a
/// page.
#[must_use = "who waits on it has to be woken"]
pub fn set<W: Word>(word: &W, gate: Gate) -> bool {
    let before = word.load(Relaxed);
    // A word that nobody has written is closed, whatever its state bits say.
    if before != 0 && before & GATE_STATE == gate.state() {
        return false;
    }
    word.store(((before >> 2) + 1) << 2 | gate.state(), Release);
    gate == Gate::Open || before & GATE_STATE == GATE_HELD
}

/// Whether launches wait on a gate word. One that no agent has written yet is closed: a process is
/// shown its page before the agent has heard of the device.
#[must_use]
pub const fn waits(word: u64) -> bool {
    word == 0 || word & GATE_STATE != GATE_OPEN
}

/// Whether a reclaim is under way.
#[must_use]
pub const fn is_held(word: u64) -> bool {
    word & GATE_STATE == GATE_HELD
}

/// What a futex on the low half has to find there for its caller to sleep; `None`: it must not, because
/// the word is no longer one that it waits for.
pub fn sleeps_on<W: Word>(word: &W, waits: impl FnOnce(u64) -> bool) -> Option<u32> {
    let seen = word.load(Acquire);
    waits(seen).then_some((seen & 0xffff_ffff) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;

    #[test]
    fn a_gate_that_nobody_has_written_is_opened_by_the_first_word() {
        let word = AtomicU64::new(0);
        assert!(waits(word.load(Acquire)));
        assert!(set(&word, Gate::Open), "who waits is woken");
        assert!(!waits(word.load(Acquire)));
        assert!(!set(&word, Gate::Open), "it stands already");
    }
}
