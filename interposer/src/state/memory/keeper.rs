//! Requests to the thread that keeps a job's memory open.

use core::sync::atomic::AtomicU8;
use std::sync::mpsc;

/// What the thread that keeps the job's memory open is asked.
#[derive(Debug)]
pub enum Ask {
    /// Be the reader of this rank's losses, and say whether you are.
    Read(u32, mpsc::Sender<bool>),
    /// A table of this process' own, with places for so many blocks; none: there is no room for one.
    Table(u32, mpsc::Sender<Option<&'static [AtomicU8]>>),
    /// Take back what processes missed that are gone.
    Look,
    /// Whether a process reads what any rank loses.
    IsRead(mpsc::Sender<bool>),
}

/// To that thread.
pub type Readers = mpsc::Sender<Ask>;
