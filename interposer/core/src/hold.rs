//! Calls that may hold the driver's locks, and changes of mappings that need those locks.
//!
//! ```text
//! a call                             the thread that changes mappings
//!   leave a mark, fence                write that it moves, fence
//!   look: ordered, or moving?          look: still ordered, and no mark?
//!     no: call the driver                yes: change mappings, write that it rests, wake
//!     yes: take the mark back, wait      no: write that it rests, wake
//! ```
//!
//! Whichever comes second sees the other. The agent's gate word *orders* the hold. The agent can die while mappings
//! change, and its word is then replaced. So the agent's word does not *keep* the hold: a word of the process itself
//! does, until the changes have ended.

use crate::word::Word;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const RESTS: u64 = 0;
/// Mappings that nobody uses change: calls go on.
const MAPS: u64 = 1;
/// Mappings that may be in use change: no call may be inside the driver.
const MOVES: u64 = 2;

/// What is done to mappings. One thread writes it.
#[derive(Debug, Default)]
pub struct Changing<W>(W);

impl<W: Word> Changing<W> {
    /// In a word that is zero.
    pub const fn new(word: W) -> Self {
        Self(word)
    }

    /// Says that mappings are about to move. `false`: `clear` has found somebody inside, or that it is no longer
    /// ordered, and nothing may move.
    #[must_use = "mappings move only where nobody is inside"]
    pub fn begins_to_move(&self, fence: impl FnOnce(), clear: impl FnOnce() -> bool) -> bool {
        self.0.store(MOVES, Relaxed);
        fence();
        let clear = clear();
        if !clear {
            self.rests();
        }
        clear
    }

    /// Says that mappings change which nobody uses.
    pub fn begins_to_map(&self) {
        self.0.store(MAPS, Release);
    }

    /// Says that nothing changes any more. Whoever sleeps on the word has to be woken.
    pub fn rests(&self) {
        self.0.store(RESTS, Release);
    }

    /// Whether a call that may hold the driver's locks has to wait.
    pub fn moves(&self) -> bool {
        self.0.load(Acquire) == MOVES
    }

    /// Whether anything changes.
    pub fn changes(&self) -> bool {
        self.0.load(Acquire) != RESTS
    }

    /// The word, and what the low half of it is while mappings move.
    pub const fn sleeps_on(&self) -> (&W, u32) {
        (&self.0, MOVES as u32)
    }
}

/// Whether a call may go in that has left its mark.
pub fn may_enter<W: Word>(
    changing: &Changing<W>,
    fence: impl FnOnce(),
    ordered: impl FnOnce() -> bool,
) -> bool {
    fence();
    !ordered() && !changing.moves()
}
