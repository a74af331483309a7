//! Requests to the thread that keeps a job's memory open.

use core::sync::atomic::{AtomicU8, AtomicU64};
use std::sync::mpsc;
use tidegate_core::joblog::{Member, Shared};

/// The table of one process of a job.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Entries of the job's log that the process has promised itself.
    pub promised: &'static AtomicU64,
    /// The parts of each block that it misses.
    pub missing: &'static [AtomicU8],
}

impl Table {
    /// The process whose table it is.
    pub const fn member(self, shared: &'static Shared) -> Member<'static> {
        Member::new(shared, self.missing, self.promised)
    }
}

/// What the thread that keeps the job's memory open is asked.
#[derive(Debug)]
pub enum Ask {
    /// Be the reader of this rank's losses, and say whether you are.
    Read(u32, mpsc::Sender<bool>),
    /// A table of this process' own, with places for so many blocks; none: there is no room for one.
    Table(u32, mpsc::Sender<Option<Table>>),
    /// Take back what processes missed that are gone.
    Look,
    /// Whether a process reads what any rank loses.
    IsRead(mpsc::Sender<bool>),
}

/// To that thread.
pub type Readers = mpsc::Sender<Ask>;
