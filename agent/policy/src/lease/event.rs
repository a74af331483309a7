//! What a lease is decided from, and what is decided. All of it is plain data.

use crate::ids::{GpuId, JobId, LeaseId};

/// One iteration of online, over or to come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Iteration {
    /// Of its graph or its launches: the same for iterations of about the same shape.
    pub fingerprint: u64,
    /// Requests that decode; zero if it is not known.
    pub batch: u32,
    /// Cached tokens of them all.
    pub cached: u64,
    /// Prompt tokens that it reads, or that wait.
    pub prompt: u32,
}

/// What the trainer could run next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    /// Of its kind and shape.
    pub key: super::record::Key,
    /// Of them there are so many in a row.
    pub most: u32,
    /// What one takes by the trainer's own account, ns: used where none was seen. Zero if it says
    /// nothing.
    pub claimed_ns: u64,
}

/// What a node is told of leases on one of its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseEvent {
    /// Leases learn from it.
    Seen {
        /// Where.
        gpu: GpuId,
        /// What.
        event: Event,
    },
    /// A trainer says what it could run next; with `most` zero, that it takes no lease.
    Offered {
        /// Where.
        gpu: GpuId,
        /// Whose trainer.
        job: JobId,
        /// What.
        unit: Unit,
    },
    /// An iteration of online is over, and this one comes next.
    Next {
        /// Where.
        gpu: GpuId,
        /// It.
        next: Iteration,
    },
    /// A trainer ended its lease: nothing of it runs.
    Returned {
        /// Where.
        gpu: GpuId,
        /// Which.
        lease: LeaseId,
        /// Units that ran.
        units: u32,
    },
}

impl LeaseEvent {
    /// Where.
    #[must_use]
    pub const fn gpu(&self) -> GpuId {
        match *self {
            Self::Seen { gpu, .. }
            | Self::Offered { gpu, .. }
            | Self::Next { gpu, .. }
            | Self::Returned { gpu, .. } => gpu,
        }
    }
}

/// Something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request came.
    Arrived {
        /// Which.
        request: u64,
    },
    /// A request has its first token.
    First {
        /// Which.
        request: u64,
        /// What its user waited, ns.
        ttft_ns: u64,
    },
    /// A request has its last token.
    Ended {
        /// Which.
        request: u64,
        /// What its user waited for the first token, ns.
        ttft_ns: u64,
        /// And for each further one, ns; zero if there was none.
        tpot_ns: u64,
    },
    /// An iteration is over.
    Beat {
        /// What it was.
        iteration: Iteration,
        /// What it took by itself, ns.
        took_ns: u64,
        /// From the end of the one before, ns.
        interval_ns: u64,
        /// Of that, what online would not have waited alone, ns.
        delayed_ns: u64,
    },
    /// Online used the GPU again.
    Returned {
        /// After so long, ns.
        idle_ns: u64,
        /// Requests were in flight: it was a decode gap.
        gap: bool,
        /// What the trainer made it wait, ns.
        delayed_ns: u64,
    },
    /// A unit is over.
    Unit {
        /// What it was.
        key: super::record::Key,
        /// What it took alone, ns.
        ns: u64,
    },
    /// A lease is over.
    Lease {
        /// The iteration it came before.
        fingerprint: u64,
        /// Units that ran.
        units: u32,
        /// How long it was meant to be, ns.
        granted_ns: u64,
        /// How long it was, ns.
        used_ns: u64,
    },
}

/// What a trainer may run before online's next iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// Units at most.
    pub units: u32,
    /// What they may take, ns: the trainer begins none that it does not expect to end by then.
    pub granted_ns: u64,
    /// From now, ns: at its end the gate shuts, whatever runs.
    pub until_ns: u64,
}
