//! What the operator chose, with unit and default. The shell checks ranges before it builds one.

use crate::words::ids::Bytes;
use crate::words::lease::Leasing;
use core::time::Duration;

/// Settings of a [`crate::node::Node`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How long online must be idle before offline starts.
    pub cooldown: Cooldown,
    /// Whether offline is gated by channels or by launch gates only.
    pub means: Means,
    /// A busy online process whose prober makes no progress for this long no longer counts. Neither do requests in
    /// flight of a process that works on none of them for this long.
    pub frozen_after: Duration,
    /// Whether a process that is busy without launching still counts as busy.
    pub suspects: Suspects,
    /// A job that is gated for this long without running is reported. Below the shortest timeout of the engines.
    pub max_gated: Duration,
    /// What happens to such a job.
    pub on_max_gated: OnMaxGated,
    /// How many disables of one job may fail in a row before the job is given up.
    pub disable_retries: u32,
    /// The first delay before a failed enable is tried again. It doubles up to [`Config::ENABLE_RETRY_MAX`].
    pub enable_retry: Duration,
    /// A new agent knows nothing about online, so its gates stay closed at least this long after the start.
    pub start_hold: Duration,
    /// How memory is shared.
    pub sharing: Sharing,
    /// How several jobs share a GPU.
    pub fair: Fair,
    /// By how much offline may delay online's users; `None`: [`Reserving::pressure_every`] says how often online may
    /// run out of headroom.
    pub slo: Option<Slo>,
    /// How trainers run beside online; `None`: they do not, and wait for gates like every job.
    pub leases: Option<Leasing>,
}

/// By how much the mean times of online's users may rise, in hundredths of a percent. [`crate::budget`] has the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slo {
    /// The time to first token.
    pub ttft: u32,
    /// The time per further token.
    pub tpot: u32,
}

impl Config {
    /// The longest delay between two tries to enable: a channel that stays disabled stops a tenant.
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

/// How the cooldown is learnt. [`crate::gap`] has the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learning {
    /// A decode gap counts at least this long ...
    pub window: Duration,
    /// ... and at least until this many more were seen.
    pub window_gaps: u64,
    /// How many decode gaps are needed before the estimate is used. Until then the cooldown is `max`; after n gaps it
    /// is at least `max * sqrt(warm_up / n)`.
    pub warm_up: u64,
    /// How many equal iterations in a row make a launch pattern a decode step.
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
    /// L1 to L3. Orders go to the GPUs on which a job holds channels. Its launch gate stays open, except while channels
    /// are stalled or given up.
    #[default]
    Channels,
    /// L5. Orders go to every GPU that a job uses, and the shell carries them out on the launch gate itself.
    /// [`crate::effect::Effect::CloseLaunchGate`] and its opposite are not used.
    LaunchGate,
}

/// How an online process counts that is busy without launching.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Suspects {
    /// It counts: a persistent kernel is work.
    #[default]
    Busy,
    /// It does not count until it launches again.
    Ignore,
}

/// What happens to a job that was gated for too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnMaxGated {
    /// It stays gated.
    #[default]
    Hold,
    /// It runs once for this long, in an idle gap about as long as the longest seen meanwhile.
    Breathe(Duration),
}

/// Whether jobs on one GPU run one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FairMode {
    /// One at a time, each for a turn, by weight. [`crate::fair`] has the rule.
    #[default]
    Turns,
    /// All at once. The GPU divides its time among their channels.
    Together,
    /// All at once. The GPU divides its time by weight; where that is impossible, jobs take turns.
    Slices,
}

/// How several jobs share a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fair {
    /// Whether they take turns.
    pub mode: FairMode,
    /// How long a job runs before the next one that wants to run.
    pub turn: Duration,
    /// The least number of jobs among which a GPU's memory is divided.
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

/// How an online process' reservation grows and shrinks. [`crate::reserve`] has the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserving {
    /// The mean time between two allocation stalls that the operator accepts: one minute, divided by the target rate
    /// per minute.
    pub pressure_every: Duration,
    /// Use of more than this share of the reservation, in per cent, is pressure: then more is mapped ahead of need.
    pub pressure_percent: u8,
    /// How much is given back at a time: a handle, or a stripe if layers are outermost.
    pub step: Bytes,
    /// The smallest headroom; at least a step.
    pub min: Bytes,
    /// The largest headroom.
    pub max: Bytes,
}

impl Reserving {
    /// Factor of the headroom on an allocation stall, in per cent, until the headroom has once sufficed for
    /// `pressure_every`: the first burst doubles it.
    pub const FIRST_GROWTH: u64 = 200;
    /// The same factor afterwards. Small steps follow the load better than large ones: among increases of 10 to 100 per
    /// cent, 10 to 15 left offline the most memory over hours of twelve traces.
    pub const GROWTH: u64 = 112;
    /// Natural logarithm of that growth, in thousandths.
    pub const GROWTH_LN: u64 = 113;

    /// The largest default of the smallest headroom: two long prompts of a chat, and what runs beside them.
    const USUAL_MIN: Bytes = Bytes::mib(1_280);

    /// The default rules for a pool of this size: the smallest headroom is an eighth of it, at most 1.25 GiB. Among 0.5
    /// to 2 GiB, this value kept the most for offline over ten recorded workloads, at a tenth of what their users would
    /// notice.
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
    /// The longest time from a demand to the last answer of a reclaim. After it, nothing more is taken from the job for
    /// the time being, and the demand is not met.
    pub reclaim_deadline: Duration,
    /// The shortest time between two restores to a job that runs.
    pub restore_interval: Duration,
    /// The most that moves in one reclaim, on each GPU. The first batch is mapped for online while the next is being
    /// taken, and a demand never waits for a larger restore than this.
    pub batch: Bytes,
    /// A process that could not map what it was promised gets no further promise for this long.
    pub map_retry: Duration,
    /// A promise to an allocation ends after this long if the memory was not allocated.
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
