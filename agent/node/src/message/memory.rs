//! What processes report of their memory, and the orders that they get for it.

use crate::text::Text;
use std::fmt;
use tidegate_policy::ids::{
    AskId, BlockId, Bytes, KvId, LogSeq, ReclaimId, RequestId, StripeId, Tokens,
};
use tidegate_policy::layout::Layout;
use tidegate_policy::reclaim::{Answer, Direction};

/// What a process says of its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemorySaid {
    /// It has a KV cache.
    KvRegistered(KvRegistered),
    /// It has it no longer.
    KvGone {
        /// Which.
        kv: KvId,
    },
    /// Answer to [`MemoryOrder::Check`].
    Checked {
        /// Which.
        reclaim: ReclaimId,
        /// What.
        answer: Answer,
        /// What is in the way.
        blocker: Blocker,
    },
    /// Answer to [`MemoryOrder::Move`].
    Moved {
        /// Which.
        reclaim: ReclaimId,
        /// What.
        answer: Answer,
        /// Stripes that were moved.
        stripes: Vec<StripeId>,
        /// The log entry that names their blocks.
        log: LogSeq,
    },
    /// Who holds its blocks.
    Requests {
        /// `set` is everything there is.
        snapshot: bool,
        /// Requests and what they hold.
        set: Vec<HeldBlocks>,
        /// Requests that hold nothing any more.
        forgotten: Vec<RequestId>,
    },
    /// It withholds what the log named up to here.
    Withheld {
        /// The last such entry.
        log: LogSeq,
    },
    /// What it has allocated on a device.
    Usage {
        /// Place of the device.
        slot: u32,
        /// How much.
        usage: Usage,
    },
    /// Online needs more than is mapped for it, or an allocation of it would not fit.
    Demand {
        /// Its number for the demand.
        ask: AskId,
        /// Place of the device.
        slot: u32,
        /// The elastic cache it is for; None: an allocation.
        kv: Option<KvId>,
        /// How much more.
        bytes: Bytes,
        /// More than this, of the cache.
        mapped: Option<Bytes>,
        /// The engine has not come to it yet.
        ahead: bool,
        /// What the process has on the device as it asks. None: it does not say.
        usage: Option<Usage>,
    },
    /// What an online process has mapped.
    Mapped {
        /// Which cache.
        kv: KvId,
        /// All that is mapped of it.
        mapped: Bytes,
        /// The order it answers.
        seq: u64,
    },
    /// An online process came under pressure.
    Pressure {
        /// Which cache.
        kv: KvId,
        /// In use.
        used: Bytes,
    },
}

/// What a process has allocated on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All that is not of a registered cache.
    pub counted: Bytes,
    /// What of it was made for a cache that is not registered yet.
    pub unregistered: Bytes,
    /// All that it holds, registered caches included.
    pub held: Bytes,
}

/// See [`MemorySaid::KvRegistered`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvRegistered {
    /// Which.
    pub kv: KvId,
    /// Place of the device.
    pub slot: u32,
    /// It grows and shrinks.
    pub elastic: bool,
    /// Its stripes, and of each whether memory of its own stands behind it. None: what it says makes no sense.
    pub stripes: Option<(Layout, Vec<bool>)>,
    /// Bytes that belong to no stripe.
    pub fixed: Bytes,
    /// Why nothing of it may be taken; empty: it may.
    pub refused: Text,
}

/// The blocks of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBlocks {
    /// Which request.
    pub request: RequestId,
    /// What it would compute again.
    pub tokens: Tokens,
    /// Every block it holds.
    pub blocks: Vec<BlockId>,
}

/// Why memory is not taken from a process just now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocker {
    /// Nothing is in the way.
    None,
    /// It has not answered.
    Silent,
    /// One of its threads is inside this call, which may hold the driver's locks.
    Inside(Text),
    /// Not all of it can be stopped, or it does not listen.
    Unstoppable,
    /// It said no, in these words.
    Refused(Text),
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("nothing is in the way"),
            Self::Silent => f.write_str("it has not answered in time"),
            Self::Inside(call) => write!(f, "one of its threads is inside {call}"),
            Self::Unstoppable => f.write_str("not all of its channels can be disabled"),
            Self::Refused(why) => f.write_str(why),
        }
    }
}

/// What a process is to do with its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryOrder {
    /// Say whether a thread is inside a call that may hold the driver's locks.
    Check {
        /// Names the answer.
        reclaim: ReclaimId,
        /// When the answer is no use any more.
        deadline_ns: u64,
    },
    /// Reclaim or restore stripes.
    Move {
        /// Names the answer.
        reclaim: ReclaimId,
        /// Which cache.
        kv: KvId,
        /// Which way.
        direction: Direction,
        /// Which, in that order.
        stripes: Vec<StripeId>,
        /// When to be done.
        deadline_ns: u64,
    },
    /// Nobody waits for that move any more.
    Cancel {
        /// Which.
        reclaim: ReclaimId,
    },
    /// Map an elastic cache up or down to this.
    Map {
        /// Names the answer.
        seq: u64,
        /// Which cache.
        kv: KvId,
        /// All that is to be mapped.
        bytes: Bytes,
    },
    /// Whether a demand is met.
    Answer {
        /// Which.
        ask: AskId,
        /// Whether it is.
        granted: bool,
    },
    /// What the process is shown of a device.
    Share {
        /// Place of the device.
        slot: u32,
        /// Its share, which is the device's size to it; none of an online process, which sees the whole device.
        bytes: Option<Bytes>,
        /// Of what is not free, others give up so much for what it allocates.
        yields: Bytes,
    },
}
