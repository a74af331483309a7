//! How memory moves from and to a job, and the state of a move.

/// Which way memory moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the job.
    Reclaim,
    /// Back to it.
    Restore,
}

/// Where a reclaim stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// There is none.
    #[default]
    Idle,
    /// Processes look whether a thread is inside the driver.
    Checking,
    /// Channels are being disabled.
    Disabling,
    /// Processes change their mappings.
    Moving,
}

/// How a process answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// As ordered.
    Done,
    /// Not, or not in full: a thread is inside, the driver refused.
    Refused,
    /// It is still at it: another answer follows.
    Late,
    /// Not, or not in full: the order was called off, or came to it too late to begin.
    Missed,
}
