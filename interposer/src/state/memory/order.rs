//! The agent's orders about memory.

/// What the agent wants done.
#[derive(Clone, Debug)]
pub enum What {
    /// Say when no thread is inside a call that may hold the driver's locks.
    Check,
    /// Reclaim stripes.
    Reclaim(u32, Vec<u32>),
    /// Restore stripes.
    Restore(u32, Vec<u32>),
    /// Have this many bytes of an elastic cache mapped.
    Map(u32, u64),
    /// The same where no agent orders it: at least so many, and nothing is unmapped.
    MapAlone(u32, u64),
}

/// One order.
#[derive(Clone, Debug)]
pub struct Order {
    /// The agent's number for it.
    pub seq: u64,
    /// Monotonic; `u64::MAX`: none.
    pub deadline_ns: u64,
    /// The session it came in.
    pub session: u64,
    /// What to do.
    pub what: What,
}

/// An order that has not been answered.
#[derive(Clone, Debug)]
pub struct Open {
    /// The order.
    pub order: Order,
    /// The agent has been told that it is late.
    pub late: bool,
}
