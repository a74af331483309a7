//! What one replay is of: a trace, two models, a GPU, and who decides.

use std::sync::Arc;

use crate::costs::Costs;
use crate::engine::Limits;
use crate::gap::GapModel;
use crate::hardware::{Gpu, Model};
use crate::trace::{Lengths, Trace};
use tidegate_policy::config::Slo;

/// What runs in an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Batching {
    /// Decodes, and prompt tokens up to the limit beside them (vLLM's order).
    #[default]
    Mixed,
    /// Prompts first and by themselves, decodes when none waits (the demo's programs).
    PrefillFirst,
    /// Decodes alone: prompts are read elsewhere, and a request joins with its cache (HARLI, section 3). Its first
    /// token here is that of its first decode.
    DecodeOnly,
}

/// The online workload.
#[derive(Clone, Debug)]
pub struct Online {
    /// Its model.
    pub model: Model,
    /// Its requests.
    pub trace: Arc<Trace>,
    /// Its decode gaps.
    pub gaps: GapModel,
    /// What its iterations may hold.
    pub limits: Limits,
    /// How they are put together.
    pub batching: Batching,
}

/// The offline workload: a backlog that never ends, drawn from these lengths in turn.
#[derive(Clone, Debug)]
pub struct Offline {
    /// Its model.
    pub model: Model,
    /// Its requests' lengths.
    pub lengths: Arc<[Lengths]>,
    /// What its iterations may hold: `prefill_tokens` is its chunk.
    pub limits: Limits,
    /// How they are put together.
    pub batching: Batching,
}

/// One replay.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Name, for people.
    pub scenario: String,
    /// Draws gaps and where the offline backlog begins.
    pub seed: u64,
    /// The GPU.
    pub gpu: Gpu,
    /// Who must not notice.
    pub online: Online,
    /// Who harvests.
    pub offline: Offline,
    /// Memory for the KV caches of both, bytes.
    pub kv_pool_bytes: u64,
    /// Who gets the GPU when.
    pub compute: Compute,
    /// Who gets the memory when.
    pub memory: Memory,
    /// What it costs.
    pub costs: Costs,
    /// What online's users may pay, as the agent is told; `None`: its usual rate of shortages.
    pub slo: Option<Slo>,
    /// Whether to keep the timeline; a long replay has millions of spans.
    pub timeline: bool,
}

/// Why a replay cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// No online requests.
    #[error("the online trace has no requests")]
    NoRequests,
    /// No offline lengths.
    #[error("the offline workload has no requests")]
    NoOffline,
    /// Zero tokens.
    #[error("offline request {index} has zero {what} tokens")]
    ZeroTokens {
        /// Its place, from 0.
        index: usize,
        /// Which kind: "input" or "output".
        what: &'static str,
    },
    /// A request that does not fit alone.
    #[error(
        "{side} request {index} needs {needs} bytes of KV cache and the pool has {pool}; \
         enlarge kv_pool_gib or leave the request out"
    )]
    TooLarge {
        /// "online" or "offline".
        side: &'static str,
        /// Its place, from 0.
        index: usize,
        /// Bytes it needs at its longest.
        needs: u64,
        /// Bytes there are.
        pool: u64,
    },
}

/// Who gets the GPU when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compute {
    /// Online alone: what everything is compared with.
    Standalone,
    /// Both run whenever they can; the GPU slices its time.
    NoControl,
    /// Offline launches wait while online is active; what was launched ends first.
    KernelPreempt,
    /// Offline stops at the next layer and does the iteration again.
    LayerPreempt,
    /// Online has a long time slice and offline a short one.
    GPreempt,
    /// One offline iteration for so many online iterations.
    TemporalShare(u32),
    /// Channels disabled and enabled, with a cooldown of twice the longest decode gap known ahead.
    Channel,
    /// The same without a cooldown.
    ChannelNoCooldown,
    /// The agent's own policy, which learns the cooldown from what the interposer sees.
    Tidegate,
    /// The same with lifecycle hints from an engine plugin.
    TidegateHints,
    /// One engine for both: batch requests have low priority (vLLM's `--scheduling-policy priority`), so many of them
    /// at once. It has one model, online's.
    OneEngine(u32),
    /// Knows the future; preempts each request at most once and delays none.
    Oracle,
    /// The same without the at-most-once rule.
    OracleUnlimited,
}

/// Who gets the memory when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// Offline memory is paged out by the driver.
    Uvm,
    /// One pool, first come, first served, nothing is taken back.
    Prism,
    /// Offline has what online never used in the past hour.
    StaticMem,
    /// A fixed share each.
    StaticSplit,
    /// Headroom that adapts, reclamation at any time, chosen by marginal token cost.
    Tidegate,
    /// The same with fixed headroom.
    TidegateNoMiad,
    /// The same, taking the oldest handles.
    TidegateFifo,
    /// The same, taking from whoever came last, as vLLM preempts.
    TidegateLifo,
    /// The same, taking any stripe.
    TidegateRandom,
    /// The same, reclaiming only between two layers.
    TidegateLayerBoundary,
    /// Knows the future, at the same costs.
    Oracle,
    /// Moving and losing memory costs nothing: what no policy can have.
    Bound,
}

/// The six combinations of the paper's Figure 10, in its order.
pub const FIGURE_10: [(Compute, Memory); 6] = [
    (Compute::KernelPreempt, Memory::Uvm),
    (Compute::GPreempt, Memory::Uvm),
    (Compute::Channel, Memory::Uvm),
    (Compute::Channel, Memory::Prism),
    (Compute::Channel, Memory::StaticMem),
    (Compute::Tidegate, Memory::Tidegate),
];

impl Compute {
    /// Every compute policy with its name. `TemporalShare` takes its number in parentheses.
    pub const NAMES: [(&'static str, Self); 16] = [
        ("Standalone", Self::Standalone),
        ("NoControl", Self::NoControl),
        ("KernelPreempt", Self::KernelPreempt),
        ("LayerPreempt", Self::LayerPreempt),
        ("GPreempt", Self::GPreempt),
        ("TemporalShare(64)", Self::TemporalShare(64)),
        ("TemporalShare(128)", Self::TemporalShare(128)),
        ("OneEngine(1)", Self::OneEngine(1)),
        ("OneEngine(4)", Self::OneEngine(4)),
        ("OneEngine(16)", Self::OneEngine(16)),
        ("Channel", Self::Channel),
        ("ChannelNoCooldown", Self::ChannelNoCooldown),
        ("Tidegate", Self::Tidegate),
        ("TidegateHints", Self::TidegateHints),
        ("Oracle", Self::Oracle),
        ("OracleUnlimited", Self::OracleUnlimited),
    ];

    /// The name of this one.
    #[must_use]
    pub fn name(self) -> String {
        let known = Self::NAMES.into_iter().find(|known| known.1 == self);
        match (known, self) {
            (Some((name, _)), _) => name.to_owned(),
            (None, Self::TemporalShare(n)) => format!("TemporalShare({n})"),
            (None, Self::OneEngine(n)) => format!("OneEngine({n})"),
            (None, other) => format!("{other:?}"),
        }
    }

    /// What it does, in a few words for people.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::Standalone => "online alone",
            Self::NoControl => "both run whenever they can",
            Self::KernelPreempt => "while online is busy, offline launches wait",
            Self::LayerPreempt => "offline stops at its next layer, and does it again",
            Self::GPreempt => "a long time slice for online, a short one for offline",
            Self::TemporalShare(_) => "one offline iteration for N of online's",
            Self::OneEngine(_) => "one vLLM: N batch requests at low priority",
            Self::Channel => "channels disabled; the cooldown is known beforehand",
            Self::ChannelNoCooldown => "the same without a cooldown",
            Self::Tidegate => "what the agent does; it learns the cooldown",
            Self::TidegateHints => "the same; the engine says when requests are there",
            Self::Oracle => "knows the future; preempts a request once at most",
            Self::OracleUnlimited => "knows the future; preempts as often as it likes",
        }
    }
}

impl Memory {
    /// Every memory policy with its name.
    pub const NAMES: [(&'static str, Self); 12] = [
        ("UVM", Self::Uvm),
        ("Prism", Self::Prism),
        ("StaticMem", Self::StaticMem),
        ("StaticSplit", Self::StaticSplit),
        ("Tidegate", Self::Tidegate),
        ("TidegateNoMiad", Self::TidegateNoMiad),
        ("TidegateFifo", Self::TidegateFifo),
        ("TidegateLifo", Self::TidegateLifo),
        ("TidegateRandom", Self::TidegateRandom),
        ("TidegateLayerBoundary", Self::TidegateLayerBoundary),
        ("Oracle", Self::Oracle),
        ("Bound", Self::Bound),
    ];

    /// Whether it matters to it which of offline's blocks stand where.
    #[must_use]
    pub fn is_paged(self) -> bool {
        matches!(
            self,
            Self::Tidegate
                | Self::TidegateNoMiad
                | Self::TidegateFifo
                | Self::TidegateLifo
                | Self::TidegateRandom
                | Self::TidegateLayerBoundary
                | Self::Oracle
        )
    }

    /// Whether the agent decides about it, in one of its variants.
    #[must_use]
    pub fn is_agents(self) -> bool {
        self.is_paged() && self != Self::Oracle
    }

    /// The name of this one.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES
            .into_iter()
            .find(|known| known.1 == self)
            .map_or("", |known| known.0)
    }

    /// What it does, in a few words for people.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::Uvm => "unified virtual memory: the driver pages offline out",
            Self::Prism => "one pool, first come, first served; none is taken back",
            Self::StaticMem => "for offline what online left unused for an hour",
            Self::StaticSplit => "a fixed share for each",
            Self::Tidegate => "what the agent does: memory is taken for online",
            Self::TidegateNoMiad => "the same; online's headroom does not adapt",
            Self::TidegateFifo => "the same; the oldest goes, not the cheapest",
            Self::TidegateLifo => "the same; who came last goes first, as in vLLM",
            Self::TidegateRandom => "the same; any goes, not the cheapest",
            Self::TidegateLayerBoundary => "the same; it is taken between two layers only",
            Self::Oracle => "knows the future; moving memory costs what it does",
            Self::Bound => "knows the future; moving memory costs nothing",
        }
    }
}
