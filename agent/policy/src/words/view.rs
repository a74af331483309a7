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

/// State of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateState {
    /// Offline may run.
    Open,
    /// Online is busy.
    Closed,
    /// Online is idle, but not for long enough yet.
    Cooling,
}

/// One GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuView {
    /// Its number.
    pub gpu: GpuId,
    /// Its gate.
    pub gate: GateState,
    /// Since when the gate has been in this state.
    pub since: Instant,
    /// An online process counts as busy on it.
    pub online_busy: bool,
    /// The process whose requests in flight keep the gate closed, busy or not; the first one of several.
    pub held: Option<SessionId>,
    /// The cooldown in force. With an SLO the gate may wait longer than the gaps require.
    pub cooldown: Duration,
    /// The cooldown that the gaps require; zero if every online process reports its requests.
    pub gap_cooldown: Duration,
    /// The longest decode gap in the window; zero before the first.
    pub longest_gap: Duration,
    /// Decode gaps seen since the start.
    pub decode_gaps: u64,
    /// Busy edges seen since the start.
    pub edges: u64,
    /// Busy edges that found offline running.
    pub preemptions: u64,
    /// How often offline got the GPU back.
    pub wakes: u64,
    /// Preemptions per request or busy period.
    pub per_unit: PerUnit,
    /// By how much offline delayed online here.
    pub budget: BudgetView,
}

/// What online did on a GPU in the last ten minutes, and by how much offline delayed it there.
/// [`crate::budget`] has the rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BudgetView {
    /// Time of iterations that read prompts.
    pub prompts: Duration,
    /// Time of all iterations.
    pub busy: Duration,
    /// Time that online waited for offline to leave the GPU.
    pub preempted: Duration,
    /// By how much allocation stalls delayed first tokens.
    pub short: Duration,
    /// By how much allocation stalls delayed further tokens.
    pub short_tpot: Duration,
    /// Number of allocation stalls.
    pub shortages: u64,
    /// What the operator allows; `None`: nothing is adjusted by it.
    pub allowed: Option<Slo>,
}

/// The unit to which preemptions are charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// A busy period of the GPU: no process on it reports requests.
    #[default]
    BusyPeriod,
    /// A request that an engine reported.
    Request,
}

impl Unit {
    /// The name that every table prints.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BusyPeriod => "busy_period",
            Self::Request => "request",
        }
    }
}

/// Preemptions per unit, over the units that have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerUnit {
    /// The kind of unit.
    pub unit: Unit,
    /// Units that have ended.
    pub units: u64,
    /// Preemptions charged to them.
    pub preemptions: u64,
    /// The most that were charged to one unit.
    pub max: u64,
    /// Units that were charged no preemption.
    pub untouched: u64,
    /// Units that were charged one preemption.
    pub once: u64,
}

/// The state at one instant, for those who add up time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// GPUs on which an online process counts as busy.
    pub busy: GpuSet,
    /// GPUs whose gate is open.
    pub open: GpuSet,
}

/// State of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// All of it is enabled.
    Running,
    /// An anti-starvation window (`breathe`) while the gate is cooling.
    Breathing,
    /// It runs units between two iterations of online, or has just returned from a lease.
    Leased,
    /// Orders to disable are under way.
    Disabling,
    /// All of it is disabled.
    Gated,
    /// Orders to enable are under way.
    Enabling,
    /// A disable failed: everything is being enabled, then policy decides anew.
    Unknown,
    /// It was given up: only its launch gate is used.
    Unmanaged,
}

/// Why a job does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Nothing holds it.
    None,
    /// Online is busy, or was busy until just now, on these GPUs of the job.
    Gate(GpuSet),
    /// The operator paused the job.
    Paused,
    /// Memory is being taken from the job or given back.
    Reclaim,
    /// Another job has its turn.
    Turn,
}

/// One job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobView {
    /// Its number.
    pub job: JobId,
    /// Its state.
    pub state: JobState,
    /// Since when it has been in this state.
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
    /// How often a busy edge stopped it.
    pub preemptions: u64,
    /// Its launch gate is closed although channels gate it: they are stalled, given up or not settled.
    pub launch_gate_closed: bool,
}

/// What a job uses at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobUse {
    /// Its number.
    pub job: JobId,
    /// Every GPU its processes use.
    pub gpus: GpuSet,
    /// Whether it may run on them.
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
    /// Of these, stripes without memory of their own, or pinned.
    pub taken: u32,
    /// The phase of its reclaim.
    pub phase: Phase,
    /// Whether anything can be taken from it.
    pub fit: bool,
    /// Requests whose blocks are known.
    pub requests: u32,
    /// Reclaims so far.
    pub reclaims: u64,
    /// Tokens that its requests had to compute again because of them.
    pub tokens: Tokens,
    /// Blocks that they invalidated.
    pub blocks_lost: u64,
}

/// What a job has, and its fair share, of the memory of GPUs on which other jobs have caches too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weighed {
    /// What it has once the moves under way are done.
    pub has: Bytes,
    /// Its fair share of what online leaves.
    pub deserves: Bytes,
}

/// What one process has of a GPU's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerView {
    /// The process.
    pub session: SessionId,
    /// Its part of the pool by place. For each place, the sum over all owners is the pool's value.
    pub account: Account,
    /// What it holds in addition to what the pool has.
    pub excess: Bytes,
    /// Handles of its KV caches. Other memory, and fixed parts of a cache, have none here.
    pub handles: HandlesView,
}

/// Handles of KV caches by state, each counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandlesView {
    /// They have memory behind them.
    pub held: Handles,
    /// Being taken, not yet released.
    pub quarantined: Handles,
    /// Promised, not mapped yet.
    pub in_flight: Handles,
    /// Taken and released: the quarantine page stands behind them.
    pub taken: Handles,
}

impl HandlesView {
    /// The sums of both.
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
    /// The process.
    pub session: SessionId,
    /// The GPU.
    pub gpu: GpuId,
    /// Number of the cache.
    pub kv: KvId,
    /// Bytes in blocks with content.
    pub used: Bytes,
    /// Bytes with memory behind them.
    pub mapped: Bytes,
    /// Bytes that are to be mapped.
    pub reservation: Bytes,
    /// Bytes that are to be mapped beyond the use.
    pub headroom: Bytes,
    /// How long online must go without a stall until the headroom shrinks by one step.
    pub interval: Duration,
    /// How often its use exceeded the reservation.
    pub events: u64,
    /// The recent rate of that, per minute.
    pub rate_per_minute: f64,
    /// The rate that the headroom is adjusted to, if there is one.
    pub target_per_minute: Option<f64>,
}

/// One stripe, and why it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeView {
    /// Its number.
    pub stripe: StripeId,
    /// Its handles, per rank.
    pub handles: u32,
    /// Its first and last block.
    pub blocks: Option<(BlockId, BlockId)>,
    /// Whether it can be taken.
    pub backing: Backing,
    /// Requests that hold a block of it.
    pub requests: u32,
    /// Tokens that they would compute again if it were taken.
    pub tokens: Tokens,
    /// The last time it was chosen.
    pub choice: Option<Choice>,
}
