//! The state of a node as operators see it. `status` reads it; no decision does.

use crate::words::account::Account;
use crate::words::choice::{Backing, Choice};
use crate::words::config::Slo;
use crate::words::ids::{
    BlockId, Bytes, Channels, GpuId, GpuSet, Handles, JobId, KvId, SessionId, StripeId, Tokens,
};
use crate::words::reclaim::Phase;
use crate::words::time::Instant;
use core::time::Duration;

/// Where a gate stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateState {
    /// Offline may run.
    Open,
    /// Online is busy.
    Closed,
    /// Online is idle, not for long enough yet.
    Cooling,
}

/// One GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuView {
    /// Which.
    pub gpu: GpuId,
    /// Its gate.
    pub gate: GateState,
    /// Since when.
    pub since: Instant,
    /// An online process counts as busy on it.
    pub online_busy: bool,
    /// The process whose requests in flight keep the gate shut, busy or not; the first of several.
    pub held: Option<SessionId>,
    /// Cooldown in force. With an SLO the gate may wait for longer than gaps ask for.
    pub cooldown: Duration,
    /// What gaps ask for: nothing where every online process tells of its requests.
    pub gap_cooldown: Duration,
    /// Longest decode gap in the window; zero before the first.
    pub longest_gap: Duration,
    /// Decode gaps seen since the start.
    pub decode_gaps: u64,
    /// Busy edges seen since the start.
    pub edges: u64,
    /// Busy edges that found offline running.
    pub preemptions: u64,
    /// Times offline got the GPU back.
    pub wakes: u64,
    /// Preemptions per unit.
    pub per_unit: PerUnit,
    /// What offline cost online here.
    pub budget: BudgetView,
}

/// What online did on a GPU in the last ten minutes, and what offline cost it there; the rule stands
/// in [`crate::budget`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BudgetView {
    /// Iterations that read prompts.
    pub prompts: Duration,
    /// All iterations.
    pub busy: Duration,
    /// Waits for offline to go.
    pub preempted: Duration,
    /// Waits for memory: what they cost first tokens.
    pub short: Duration,
    /// What they cost further ones.
    pub short_tpot: Duration,
    /// How many those were.
    pub shortages: u64,
    /// What the operator allows; `None`: nothing is steered by it.
    pub allowed: Option<Slo>,
}

/// What preemptions are counted against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// A busy period of the GPU: no process on it gives lifecycle hints.
    #[default]
    BusyPeriod,
    /// A request, known from lifecycle hints.
    Request,
}

impl Unit {
    /// The name every table prints.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BusyPeriod => "busy_period",
            Self::Request => "request",
        }
    }
}

/// Preemptions per unit, over the units that ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerUnit {
    /// Which unit.
    pub unit: Unit,
    /// Units that ended.
    pub units: u64,
    /// Preemptions charged to them.
    pub preemptions: u64,
    /// Most charged to one.
    pub max: u64,
    /// Units that were charged none.
    pub untouched: u64,
    /// Units that were charged one.
    pub once: u64,
}

/// What holds at one instant, for whoever adds up time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// GPUs on which an online process counts as busy.
    pub busy: GpuSet,
    /// GPUs whose gate is open.
    pub open: GpuSet,
}

/// How a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// All of it is enabled.
    Running,
    /// A turn of `breathe_ms` beside online.
    Breathing,
    /// It runs units between two iterations of online, or has just returned from that.
    Leased,
    /// Orders to disable are under way.
    Disabling,
    /// All of it is disabled.
    Gated,
    /// Orders to enable are under way.
    Enabling,
    /// A disable failed: everything is being enabled, then decided about anew.
    Unknown,
    /// Given up: only its launch gate is used.
    Unmanaged,
}

/// Why a job does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Nothing holds it.
    None,
    /// Online is busy, or was until just now, on these GPUs of it.
    Gate(GpuSet),
    /// The operator paused it.
    Paused,
    /// Memory is being taken from it or given back.
    Reclaim,
    /// Another job has its turn.
    Turn,
}

/// One job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobView {
    /// Which.
    pub job: JobId,
    /// How it stands.
    pub state: JobState,
    /// Since when.
    pub since: Instant,
    /// What holds it.
    pub reason: Reason,
    /// The operator paused it.
    pub paused: bool,
    /// Every GPU its processes use.
    pub gpus: GpuSet,
    /// Its processes.
    pub sessions: u32,
    /// Its channels.
    pub channels: Channels,
    /// Busy edges that stopped it.
    pub preemptions: u64,
    /// Its launch gate is closed although channels do the gating: stalled, given up or not settled.
    pub launch_gate_closed: bool,
}

/// What a job uses at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobUse {
    /// Which.
    pub job: JobId,
    /// Every GPU its processes use.
    pub gpus: GpuSet,
    /// It may run on them.
    pub runs: bool,
    /// The operator paused it, or drained the node.
    pub paused: bool,
    /// What its processes hold of the pools.
    pub held: Bytes,
}

/// Memory of one offline job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobMemoryView {
    /// Stripes of its KV cache.
    pub stripes: u32,
    /// Of these, without memory of their own, or pinned.
    pub taken: u32,
    /// Where a reclaim of it stands.
    pub phase: Phase,
    /// Whether anything can be taken from it.
    pub fit: bool,
    /// Requests whose blocks are known.
    pub requests: u32,
    /// Reclaims so far.
    pub reclaims: u64,
    /// Tokens that those made its requests compute again.
    pub tokens: Tokens,
    /// Blocks that they invalidated.
    pub blocks_lost: u64,
}

/// What a job has of the memory of GPUs on which others have caches too, and what it deserves of it by weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weighed {
    /// Once what was begun is done.
    pub has: Bytes,
    /// Of what online leaves.
    pub deserves: Bytes,
}

/// What one process has of a GPU's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerView {
    /// Who.
    pub session: SessionId,
    /// Its part of the pool by place. Over all owners, each place adds up to the pool's.
    pub account: Account,
    /// What it holds beyond what the pool has.
    pub excess: Bytes,
    /// Handles of its KV caches. What is no KV cache, or a fixed part of one, has none here.
    pub handles: HandlesView,
}

/// Handles of KV caches by where they stand, each counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandlesView {
    /// Back it.
    pub held: Handles,
    /// Being taken, not yet released.
    pub quarantined: Handles,
    /// Promised, not mapped yet.
    pub in_flight: Handles,
    /// Taken and released: the quarantine page stands behind them.
    pub taken: Handles,
}

impl HandlesView {
    /// Those of both.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        const fn sum(one: Handles, other: Handles) -> Handles {
            Handles(one.0.saturating_add(other.0))
        }
        Self {
            held: sum(self.held, other.held),
            quarantined: sum(self.quarantined, other.quarantined),
            in_flight: sum(self.in_flight, other.in_flight),
            taken: sum(self.taken, other.taken),
        }
    }
}

/// One elastic cache of an online process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ElasticView {
    /// Whose.
    pub session: SessionId,
    /// Where.
    pub gpu: GpuId,
    /// Which of its caches.
    pub kv: KvId,
    /// In blocks with content.
    pub used: Bytes,
    /// With memory behind it.
    pub mapped: Bytes,
    /// To be mapped.
    pub reservation: Bytes,
    /// To be mapped beyond use.
    pub headroom: Bytes,
    /// Calm that costs the headroom one step.
    pub interval: Duration,
    /// Times its use went beyond the reservation.
    pub events: u64,
    /// The same per minute, lately.
    pub rate_per_minute: f64,
    /// What that is steered towards, if there is such a rate.
    pub target_per_minute: Option<f64>,
}

/// One stripe, and why it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeView {
    /// Which.
    pub stripe: StripeId,
    /// Handles of it, per rank.
    pub handles: u32,
    /// Its first and last block.
    pub blocks: Option<(BlockId, BlockId)>,
    /// Whether it can be taken.
    pub backing: Backing,
    /// Requests that hold a block of it.
    pub requests: u32,
    /// What taking it would make them compute again.
    pub tokens: Tokens,
    /// The last time it was chosen.
    pub choice: Option<Choice>,
}
