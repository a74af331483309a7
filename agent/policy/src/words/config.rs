//! What the operator chose, with unit and default. The shell checks ranges before it builds one.

use crate::words::ids::Bytes;
use crate::words::lease::Leasing;
use core::time::Duration;

/// Settings of a [`crate::node::Node`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How long online must stay idle before offline wakes.
    pub cooldown: Cooldown,
    /// What gates offline work: decides which jobs are ordered about and when launch gates move.
    pub means: Means,
    /// A busy online process whose prober makes no progress for this long no longer counts; nor do requests in flight
    /// of a process that works on none of them for this long.
    pub frozen_after: Duration,
    /// Whether a process that is busy without launching keeps counting as busy.
    pub suspects: Suspects,
    /// A job gated this long without a turn is reported; below the shortest timeout of the engines.
    pub max_gated: Duration,
    /// What happens to such a job.
    pub on_max_gated: OnMaxGated,
    /// Disables of one job that may fail in a row before it is given up.
    pub disable_retries: u32,
    /// First wait before a failed enable is tried again; doubles up to [`Config::ENABLE_RETRY_MAX`].
    pub enable_retry: Duration,
    /// A new agent knows nothing of online: its gates stay shut at least this long after the start.
    pub start_hold: Duration,
    /// How memory is shared.
    pub sharing: Sharing,
    /// How several jobs share a GPU.
    pub fair: Fair,
    /// What online's users may pay for it; `None`: [`Reserving::pressure_every`] says how often online may
    /// run out of headroom.
    pub slo: Option<Slo>,
    /// How trainers run beside online; `None`: they do not, and wait for gates as every job does.
    pub leases: Option<Leasing>,
}

/// By how much the means of online's users may rise, hundredths of a percent; the rule stands in
/// [`crate::budget`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slo {
    /// The time to first token.
    pub ttft: u32,
    /// The time per further token.
    pub tpot: u32,
}

impl Config {
    /// Longest wait between two tries to enable: a channel that stays disabled hangs a tenant.
    pub const ENABLE_RETRY_MAX: Duration = Duration::from_secs(1);
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cooldown: Cooldown::default(),
            means: Means::Channels,
            frozen_after: Duration::from_secs(5),
            suspects: Suspects::Busy,
            max_gated: Duration::from_secs(240),
            on_max_gated: OnMaxGated::Hold,
            disable_retries: 3,
            enable_retry: Duration::from_millis(10),
            start_hold: Duration::from_millis(500),
            sharing: Sharing::default(),
            fair: Fair::default(),
            slo: None,
            leases: None,
        }
    }
}

/// Where the cooldown comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cooldown {
    /// Twice the longest decode gap seen.
    Learnt(Learning),
    /// Always this long; nothing is learnt.
    Fixed(Duration),
}

impl Default for Cooldown {
    fn default() -> Self {
        Self::Learnt(Learning::default())
    }
}

/// How the cooldown is learnt; the rule stands in [`crate::gap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learning {
    /// A decode gap counts at least this long ...
    pub window: Duration,
    /// ... and at least until this many more were seen.
    pub window_gaps: u64,
    /// Decode gaps needed before the estimate is believed at all; until then the cooldown is `max`,
    /// and of n gaps it is at least `max * sqrt(warm_up / n)`.
    pub warm_up: u64,
    /// Equal iterations in a row that make a launch pattern a decode step.
    pub repeats: u32,
    /// Shortest cooldown.
    pub min: Duration,
    /// Longest cooldown.
    pub max: Duration,
}

impl Default for Learning {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(60),
            window_gaps: 65_536,
            warm_up: 32,
            repeats: 8,
            min: Duration::from_millis(2),
            max: Duration::from_millis(200),
        }
    }
}

/// What gates offline work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Means {
    /// L1 to L4. Orders go to GPUs on which a job holds channels; its launch gate stays open beside
    /// them, save while channels are stalled or given up.
    #[default]
    Channels,
    /// L5. Orders go to every GPU a job uses, and the shell carries them out on the launch gate
    /// itself; [`crate::effect::Effect::CloseLaunchGate`] and its opposite are not used.
    LaunchGate,
}

/// What becomes of an online process that is busy without launching.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Suspects {
    /// It counts: a persistent kernel is work.
    #[default]
    Busy,
    /// It does not count until it launches again.
    Ignore,
}

/// What becomes of a job that was gated for too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnMaxGated {
    /// It stays gated.
    #[default]
    Hold,
    /// It gets one turn of this length in an idle gap about as long as the longest seen meanwhile.
    Breathe(Duration),
}

/// Whether jobs on one GPU run one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FairMode {
    /// One at a time, each for a turn, by weight; the rule stands in [`crate::fair`].
    #[default]
    Turns,
    /// All at once: the GPU divides its time among their channels, whosever they are.
    Together,
    /// All at once, and the GPU divides its time by weight; in turns where that cannot be.
    Slices,
}

/// How several jobs share a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fair {
    /// Whether they take turns.
    pub mode: FairMode,
    /// How long a job runs before another that wants to has its turn.
    pub turn: Duration,
    /// Jobs for which a GPU's memory is divided before they are there.
    pub slots: u32,
}

impl Default for Fair {
    fn default() -> Self {
        Self {
            mode: FairMode::default(),
            // A swap costs about 0.6 ms of it on the virtual GPU, 0.6 per cent.
            turn: Duration::from_millis(100),
            slots: 1,
        }
    }
}

/// How an online process' reservation grows and shrinks; the rule stands in [`crate::reserve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserving {
    /// Mean time between two shortages that the operator accepts: one minute over the target
    /// rate per minute.
    pub pressure_every: Duration,
    /// Share of the reservation, in per cent, whose use is pressure: more is mapped ahead of need.
    pub pressure_percent: u8,
    /// What is given back at once: a handle, or a stripe where layers are outermost.
    pub step: Bytes,
    /// Least headroom; at least a step.
    pub min: Bytes,
    /// Most headroom.
    pub max: Bytes,
}

impl Reserving {
    /// The headroom times this on a shortage, in per cent, until it has once sufficed for
    /// `pressure_every`: a first burst is met by doubling.
    pub const FIRST_GROWTH: u64 = 200;
    /// The same from then on. Small steps follow the load better than large ones: of 10 to
    /// 100 per cent more, 10 to 15 left offline the most memory over hours of twelve traces.
    pub const GROWTH: u64 = 112;
    /// Natural logarithm of that growth, in thousandths.
    pub const GROWTH_LN: u64 = 113;

    /// Most that the least headroom is by itself: two long prompts of a chat and what runs beside.
    const USUAL_MIN: Bytes = Bytes::mib(1_280);

    /// The usual rules for a pool of so many bytes: the least headroom is an eighth of it, 1.25 GiB at
    /// most. Of 0.5 to 2 GiB this kept the most for offline over ten recorded workloads, at a tenth of
    /// what their users would notice.
    #[must_use]
    pub fn of_pool(pool: Bytes) -> Self {
        let usual = Self::default();
        Self {
            min: Bytes(pool.0 / 8).clamp(usual.step, Self::USUAL_MIN),
            ..usual
        }
    }
}

impl Default for Reserving {
    fn default() -> Self {
        Self {
            pressure_every: Duration::from_secs(15),
            pressure_percent: 90,
            step: Bytes::mib(2),
            min: Bytes::mib(64),
            max: Bytes::mib(16 << 10),
        }
    }
}

/// How memory is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// From a demand to the last answer of a reclaim; beyond, the job is unreclaimable for now and
    /// the demand is not met.
    pub reclaim_deadline: Duration,
    /// Memory is given back to a job that runs at most this often.
    pub restore_interval: Duration,
    /// Most that moves in one reclaim, on each GPU: the first of it is mapped for online while the
    /// rest is still being taken, and a demand never waits behind more than this being given back.
    pub batch: Bytes,
    /// A process that could not map what it was promised is promised nothing more for this long.
    pub map_retry: Duration,
    /// What was promised to an allocation and is not allocated after this long is taken back.
    pub promise_lasts: Duration,
    /// How online's reservations grow and shrink.
    pub reserving: Reserving,
}

impl Default for Sharing {
    fn default() -> Self {
        Self {
            reclaim_deadline: Duration::from_millis(20),
            restore_interval: Duration::from_secs(1),
            batch: Bytes::mib(256),
            map_retry: Duration::from_millis(100),
            promise_lasts: Duration::from_secs(1),
            reserving: Reserving::default(),
        }
    }
}
