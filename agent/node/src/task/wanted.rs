//! What is wanted of one job's channels on one GPU: one word that the shell and the GPU's issue thread share.
//!
//! ```text
//!            shell: order                  thread: fire
//!   Disable <------------- any    Armed -----------------> Fired
//!   Enable  <------------- any      | shell: disarm          | shell: order, as from any
//!   Armed   <------------- any      v                        v
//!                                 Enable                  (too late: its calls are made, or were)
//! ```
//!
//! An armed order lets the thread disable what runs, once, for the edge for which policy would order it a moment later.
//! The shell takes it back by its next order, or before a pair leaves the lists. One compare-and-swap decides which of
//! the two came first, and the other one learns of it.

use crate::kinds::Switch;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_abi::word::Word;
use tidegate_policy::ids::Generation;

/// The state's bits; the generation is above them.
const STATE: u64 = 3;
const ENABLE: u64 = 0;
const DISABLE: u64 = 1;
const ARMED: u64 = 2;
const FIRED: u64 = 3;

/// `generation << 2 | state`, written by the shell with every order.
#[derive(Debug, Default)]
pub struct Wanted<W = AtomicU64>(W);

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Nothing runs.
    Disable,
    /// The job may run.
    Enable,
    /// It may run, and once it does the thread disables it for an edge without being told.
    EnableArmed,
}

impl Wish {
    const fn state(self) -> u64 {
        match self {
            Self::Disable => DISABLE,
            Self::Enable => ENABLE,
            Self::EnableArmed => ARMED,
        }
    }

    /// What the order does.
    #[must_use]
    pub const fn switch(self) -> Switch {
        match self {
            Self::Disable => Switch::Disable,
            Self::Enable | Self::EnableArmed => Switch::Enable,
        }
    }
}

/// Whether an armed order was taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum TakenBack {
    /// No thread will act on it.
    InTime,
    /// One does, or did: the channels that it names may be disabled.
    TooLate,
}

impl<W: Word> Wanted<W> {
    /// Over this word, which is to be 0.
    #[must_use]
    pub const fn new(word: W) -> Self {
        Self(word)
    }

    /// Says that this is the newest order, and takes back what was armed before.
    pub fn order(&self, generation: Generation, wish: Wish) -> TakenBack {
        self.replace(|_| generation.0 << 2 | wish.state())
    }

    /// Takes back what is armed; what was ordered stands.
    pub fn disarm(&self) -> TakenBack {
        self.replace(|found| match found & STATE {
            ARMED => found & !STATE | ENABLE,
            _ => found,
        })
    }

    fn replace(&self, by: impl Fn(u64) -> u64) -> TakenBack {
        let mut found = self.0.load(Ordering::Acquire);
        while let Err(other) = self.0.compare_exchange(found, by(found)) {
            found = other;
        }
        if found & STATE == FIRED {
            TakenBack::TooLate
        } else {
            TakenBack::InTime
        }
    }

    /// Whether the order of that generation is armed.
    pub fn is_armed(&self, generation: Generation) -> bool {
        self.0.load(Ordering::Acquire) == generation.0 << 2 | ARMED
    }

    /// The thread is about to disable, without being told, what the order of that generation enabled; false: it must
    /// not.
    #[must_use]
    pub fn fire(&self, generation: Generation) -> bool {
        let word = generation.0 << 2;
        self.0.compare_exchange(word | ARMED, word | FIRED).is_ok()
    }

    /// Whether the order of that generation, which enables, is the newest.
    pub(super) fn enables(&self, generation: Generation) -> bool {
        let word = self.0.load(Ordering::Acquire);
        word >> 2 == generation.0 && matches!(word & STATE, ENABLE | ARMED)
    }
}
