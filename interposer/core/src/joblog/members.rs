//! The log as one process of the job counts in it.
//!
//! A process counts what it misses twice: in the counts of all, and in a table of its own that outlives it. It does the same
//! with the room that it promises itself for the length of a call. When it is gone, whoever finds that subtracts what its
//! table says.
//!
//! The table never says more than the process has in the counts of all: it is raised after them and lowered before
//! them. So a block is never reported as back while another process still misses it. If a process is killed between the
//! two steps, what it counted last stays missing.

use super::{BLOCKS, CUTS, ENTRIES, Refused, Shared};
use crate::word::{Tally, Word};
use core::sync::atomic::Ordering::{Acquire, Release};
use core::sync::atomic::{AtomicU8, AtomicU64};

/// Blocks that are taken back at once.
const AT_ONCE: usize = 1024;

/// A process of the job, alive or not.
#[derive(Debug)]
pub struct Member<
    'a,
    W = AtomicU64,
    B = AtomicU8,
    const E: usize = ENTRIES,
    const C: usize = CUTS,
    const N: usize = BLOCKS,
> {
    shared: &'a Shared<W, B, E, C, N>,
    own: &'a [B],
    promised: Option<&'a W>,
}

impl<'a, W: Word, B: Tally, const E: usize, const C: usize, const N: usize>
    Member<'a, W, B, E, C, N>
{
    /// One that has no table yet, and loses nothing.
    pub const fn without_table(shared: &'a Shared<W, B, E, C, N>) -> Self {
        Self {
            shared,
            own: &[],
            promised: None,
        }
    }

    /// The one whose table has `own`, a place for each block that the process may lose, and `promised`, the entries that it
    /// has promised itself.
    pub const fn new(shared: &'a Shared<W, B, E, C, N>, own: &'a [B], promised: &'a W) -> Self {
        Self {
            shared,
            own,
            promised: Some(promised),
        }
    }

    /// Where it counts the entries that it has promised itself.
    #[must_use]
    pub const fn promised(&self) -> Option<&'a W> {
        self.promised
    }

    /// The job's log.
    #[must_use]
    pub const fn shared(&self) -> &'a Shared<W, B, E, C, N> {
        self.shared
    }

    /// Blocks that its table has a place for.
    #[must_use]
    pub const fn room(&self) -> usize {
        self.own.len()
    }

    fn range(&self, first: u32, count: u32) -> Result<&'a [B], Refused> {
        let end = (first as usize).checked_add(count as usize);
        end.and_then(|end| self.own.get(first as usize..end))
            .ok_or(Refused::Block)
    }

    /// As [`Shared::lose`].
    ///
    /// # Errors
    /// As there, and for a block that its table has no place for.
    pub fn lose(&self, first: u32, count: u32) -> Result<u64, Refused> {
        let own = self.range(first, count)?;
        let number = self.shared.lose_as(self.promised, first, count)?;
        for block in own {
            block.raise();
        }
        Ok(number)
    }

    /// As [`Shared::regain`]; what it did not lose is left alone.
    ///
    /// # Errors
    /// As there, and for a block that its table has no place for.
    pub fn regain(&self, first: u32, count: u32) -> Result<u64, Refused> {
        let own = self.range(first, count)?;
        let blocks = self.shared.range(first, count)?;
        let _promise = self.shared.promise(count, self.promised)?;
        // One that ended in the middle of a loss has a part of it in its table.
        let mut at = 0;
        while at < own.len() {
            let run = own[at..].iter().take_while(|block| block.lower() != 0);
            let run = run.count();
            let first = first + u32::try_from(at).unwrap_or(0);
            self.shared
                .give_back(first, &blocks[at..at + run], self.promised);
            at += run + 1;
        }
        Ok(self.shared.head())
    }

    /// Gives back the room that a process promised itself that is gone.
    fn keeps_no_promise(&self) {
        if let Some(own) = self.promised {
            // More than there are entries nobody promises: a process has written where it should not.
            let left = own.load(Acquire).min(E as u64);
            own.store(0, Release);
            self.shared.promised.fetch_add(left.wrapping_neg());
        }
    }

    /// Takes back all that a process missed that is gone. Only one may do so at a time.
    ///
    /// # Errors
    /// When the log has no room: then the rest is to be taken back later.
    pub fn end(&self) -> Result<(), Refused> {
        self.keeps_no_promise();
        let mut at = 0;
        while let Some(next) = self.own[at..].iter().position(|block| block.load() != 0) {
            let first = at + next;
            let run = self.own[first..].iter().take(AT_ONCE);
            let count = run.take_while(|block| block.load() != 0).count().max(1);
            let number = |at: usize| u32::try_from(at).map_err(|_| Refused::Block);
            self.regain(number(first)?, number(count)?)?;
            // Some may have been lost more than once.
            at = first;
        }
        Ok(())
    }
}
