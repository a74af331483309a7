//! The inputs of a decision about a lease, and the decision. All of it is plain data.

use crate::words::ids::{GpuId, JobId, LeaseId};

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
    pub key: Key,
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
    /// The agent leaves: whoever has a lease there, or has just returned from one, is off at once.
    Ends {
        /// Where.
        gpu: GpuId,
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
            | Self::Returned { gpu, .. }
            | Self::Ends { gpu } => gpu,
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
        key: Key,
        /// What it took alone, ns.
        ns: u64,
    },
    /// What an earlier agent learnt of a shape. What was seen since counts more.
    Known {
        /// What it was.
        key: Key,
        /// On average, ns.
        mean_ns: u64,
        /// Mean distance from that, ns.
        spread_ns: u64,
        /// At the 95th percentile, ns.
        p95_ns: u64,
        /// Times it was seen.
        seen: u64,
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

/// What was done, exactly enough that it takes about the same time again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Key {
    /// Of its graph, its launches or its shape.
    pub fingerprint: u64,
    /// What it was.
    pub kind: Kind,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// An iteration of online.
    #[default]
    Iteration,
    /// A forward unit.
    Forward,
    /// A backward unit.
    Backward,
    /// A step of the optimizer.
    Optimizer,
}

/// What the operator and the node say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leasing {
    /// What online promised.
    pub promise: Promise,
    /// Of the promise, what is left unused, in thousandths.
    pub margin_permille: u32,
    /// One switch between the two, ns; twice a lease. Zero within one process.
    pub switch_ns: u64,
    /// What a return costs online at most when the gate stops a trainer in mid-unit, ns.
    pub gate_ns: u64,
    /// A lease may take this much longer before the gate shuts, ns.
    pub grace_ns: u64,
}

/// What was promised. Times are those that users see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// All but a share of the requests are within both.
    Tail {
        /// Arrival to first token, ns.
        ttft_ns: u64,
        /// Mean time per further token of one request, ns.
        tpot_ns: u64,
        /// Of a thousand requests so many may be late.
        late_permille: u32,
    },
    /// Every token of a request that decodes comes this soon after the one before, unless prompts
    /// were read between them.
    Each {
        /// ns.
        decode_ns: u64,
    },
    /// The means rise by no more than this against online alone.
    Mean {
        /// Of the time to first token, in ten-thousandths.
        ttft: u32,
        /// Of the time per further token, in ten-thousandths.
        tpot: u32,
    },
}

impl Promise {
    /// Time per token that one iteration may take, ns; nothing where only means are promised.
    #[must_use]
    pub const fn tpot_ns(&self) -> Option<u64> {
        match *self {
            Self::Tail { tpot_ns, .. } => Some(tpot_ns),
            Self::Each { decode_ns } => Some(decode_ns),
            Self::Mean { .. } => None,
        }
    }

    /// Time to first token that was promised, ns; nothing where none was.
    #[must_use]
    pub const fn ttft_ns(&self) -> Option<u64> {
        match *self {
            Self::Tail { ttft_ns, .. } => Some(ttft_ns),
            Self::Each { .. } | Self::Mean { .. } => None,
        }
    }

    /// Of a thousand so many may be late.
    #[must_use]
    pub const fn late_permille(&self) -> u32 {
        match *self {
            Self::Tail { late_permille, .. } => late_permille,
            // HARLI, figure 14: all; the table asks for 99.9 %.
            Self::Each { .. } => 1,
            Self::Mean { .. } => 0,
        }
    }
}
