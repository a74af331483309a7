//! Events about the memory of a [`crate::node::Node`].
//!
//! As with every [`crate::event::Event`], any of them may come in any state, late, twice or with an unknown name.

use crate::words::ids::{
    AskId, BlockId, Bytes, GpuId, JobId, KvId, LogSeq, ReclaimId, RequestId, SessionId, StripeId,
    Tokens,
};
use crate::words::layout::Layout;
use crate::words::reclaim::Answer;

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryEvent<'a> {
    /// How much of a GPU's memory is shared out. Only the first word counts.
    Pool {
        /// Which GPU.
        gpu: GpuId,
        /// How much.
        bytes: Bytes,
    },
    /// An offline process registered a KV cache, or said again what it has. Replaces what was known
    /// of this session and KV cache.
    KvRegistered {
        /// The process.
        session: SessionId,
        /// Its job.
        job: JobId,
        /// Where the cache is.
        gpu: GpuId,
        /// Which of its caches.
        kv: KvId,
        /// Its stripes; every rank cuts alike.
        layout: &'a Layout,
        /// Per stripe: whether memory of its own stands behind it. Missing entries do not.
        backed: &'a [bool],
        /// Bytes that belong to no stripe.
        fixed: Bytes,
        /// Whether anything of it may be taken.
        reclaimable: bool,
        /// What of it was only counted until now, as what the process allocated.
        counted: Bytes,
    },
    /// An online process registered a KV cache that grows and shrinks.
    ElasticRegistered {
        /// The process.
        session: SessionId,
        /// Where the cache is.
        gpu: GpuId,
        /// Which of its caches.
        kv: KvId,
        /// What is mapped of it.
        mapped: Bytes,
        /// Bytes that always have memory, beside those.
        fixed: Bytes,
        /// What could be mapped of it at most.
        most: Bytes,
        /// Bytes of one of its handles.
        handle: Bytes,
        /// Bytes of its largest stripe: it maps whole ones.
        stripe: Bytes,
    },
    /// A KV cache is gone.
    KvGone {
        /// The process.
        session: SessionId,
        /// Which of its caches.
        kv: KvId,
    },
    /// An engine's request holds these blocks; replaces what it held.
    Published {
        /// The process that schedules.
        session: SessionId,
        /// Which request.
        request: RequestId,
        /// What it would compute again.
        tokens: Tokens,
        /// Every block it holds.
        blocks: &'a [BlockId],
    },
    /// An engine's request ended or gave up its blocks; `None`: all of them.
    Forgotten {
        /// The process that schedules.
        session: SessionId,
        /// Which request.
        request: Option<RequestId>,
    },
    /// The engine withholds what the log named up to here.
    Withheld {
        /// The process that schedules.
        session: SessionId,
        /// The last such entry.
        log: LogSeq,
    },
    /// Answer to `Check`.
    Checked {
        /// Which order.
        reclaim: ReclaimId,
        /// Who answers.
        session: SessionId,
        /// What.
        answer: Answer,
    },
    /// Answer to `Move`.
    Moved {
        /// Which order.
        reclaim: ReclaimId,
        /// Who answers.
        session: SessionId,
        /// What.
        answer: Answer,
        /// Stripes that were moved; for a late answer none yet.
        stripes: &'a [StripeId],
        /// The log entry that names their blocks.
        log: LogSeq,
    },
    /// What an online process uses of its elastic cache.
    Usage {
        /// The process.
        session: SessionId,
        /// Which of its caches.
        kv: KvId,
        /// In blocks that hold content.
        used: Bytes,
    },
    /// What an online process has mapped, after an order or of its own.
    Mapped {
        /// The process.
        session: SessionId,
        /// Which of its caches.
        kv: KvId,
        /// All that is mapped of it.
        mapped: Bytes,
        /// It answers the latest order; otherwise that is still to come.
        last: bool,
    },
    /// Memory that is only counted: weights, workspaces.
    Counted {
        /// The process.
        session: SessionId,
        /// Where.
        gpu: GpuId,
        /// All of it.
        bytes: Bytes,
    },
    /// Online needs more than is mapped for it, or an allocation of it would not fit; or an allocation of an offline
    /// process would not.
    Asked {
        /// The process.
        session: SessionId,
        /// Its number for the demand.
        ask: AskId,
        /// Where.
        gpu: GpuId,
        /// The elastic cache it is for, or an allocation.
        kv: Option<KvId>,
        /// How much more.
        bytes: Bytes,
        /// More than this, of the cache: a promise may be arriving while it asks. None: more than all
        /// that was promised.
        mapped: Option<Bytes>,
        /// The engine has not come to it yet: nobody waits.
        ahead: bool,
    },
    /// It no longer needs that.
    Withdrawn {
        /// The process.
        session: SessionId,
        /// Its number for the demand.
        ask: AskId,
    },
}
