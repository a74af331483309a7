//! What the thread that keeps a job's memory open is asked.

use std::sync::mpsc;

/// What the thread that keeps the job's memory open is asked.
#[derive(Debug)]
pub enum Ask {
    /// Be the reader of this rank's losses, and say whether you are.
    Read(u32, mpsc::Sender<bool>),
    /// Whether a process reads what any rank loses.
    IsRead(mpsc::Sender<bool>),
}

/// To that thread.
pub type Readers = mpsc::Sender<Ask>;
