//! Whether an offline job gets what it was promised on its node, and what happens if it does not.
//!
//! A job has an SLA: a share of the throughput that it would have with the GPUs to itself. Its throughput is judged
//! window by window:
//!
//! ```text
//!   strike   a whole window below the SLA, by more than the tolerance
//!   evict    as many strikes in a row as configured, and: nothing better to be expected here, enough on another node,
//!            the job's and the node's limits not reached, and the engine may start it again
//!   report   as many strikes, but one of the last three conditions does not hold: the job stays
//! ```
//!
//! Each window also teaches a [`Correction`] of what [`crate::placement`] predicts for that kind of job here, so that
//! the node stops promising too much. An evicted job has a [`Hold`] on the node: it does not return while the hold
//! stands. In constant conditions it never returns, because the node would have to promise more than before by as much
//! as it fell short of the SLA. Nothing is stored here: the caller keeps the few numbers, and passes the time.

use crate::placement::Wrong;
use crate::time::Instant;
use core::time::Duration;

/// What the operator chose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tending {
    /// Length of a window: in ten minutes a job has run through several bursts of online.
    pub window: Duration,
    /// Windows in a row below the SLA that are too many.
    pub strikes: u8,
    /// Share of the SLA by which it may be missed: what a window's length and its measurement are worth.
    pub tolerance: f64,
    /// Times one job is evicted in its life.
    pub evictions_per_job: u32,
    /// Least time between two evictions from one node.
    pub node_every: Duration,
    /// Least time that an evicted job stays away.
    pub hold_off: Duration,
    /// What one window weighs in the correction, the rest of it what was known.
    pub weight: f64,
    /// Where no such job runs, half of a correction is forgotten after this long.
    pub half_life: Duration,
}

impl Default for Tending {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(600),
            strikes: 3,
            tolerance: 0.02,
            evictions_per_job: 3,
            node_every: Duration::from_secs(600),
            hold_off: Duration::from_secs(24 * 3_600),
            weight: 0.5,
            half_life: Duration::from_secs(24 * 3_600),
        }
    }
}

impl Tending {
    /// Whether it can be gone by.
    ///
    /// # Errors
    /// The first setting that is out of range.
    pub fn check(&self) -> Result<(), Wrong> {
        let wrong = |field, told: &str| {
            let told = told.to_owned();
            Err(Wrong { field, told })
        };
        if self.window.is_zero() {
            return wrong("window", "0 s is no window: give more");
        }
        if self.strikes == 0 {
            return wrong("strikes", "0 would evict at once: give 1 or more");
        }
        if !(0.0..1.0).contains(&self.tolerance) {
            return wrong("tolerance", "give a share of the SLA, from 0 to below 1");
        }
        if !(self.weight > 0.0 && self.weight <= 1.0) {
            return wrong("weight", "give a share above 0 and at most 1");
        }
        if self.half_life.is_zero() {
            return wrong("half_life", "0 s would forget at once: give more");
        }
        Ok(())
    }

    /// Whether `got` is less than a job with this SLA was promised.
    #[must_use]
    pub fn is_short(&self, got: f64, sla: f64) -> bool {
        got < sla * (1.0 - self.tolerance)
    }
}

/// Bounds of a correction: below, the profile is wrong and not the node; above, so is a measurement.
pub const CORRECTION: (f64, f64) = (0.1, 1.2);

/// What a kind of job got on a node over what was predicted: a mean that forgets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Correction {
    /// The factor, when it was last learnt.
    pub factor: f64,
    /// When that was.
    pub at: Instant,
}

impl Correction {
    /// Nothing learnt.
    pub const NONE: Self = Self {
        factor: 1.0,
        at: Instant::from_nanos(0),
    };

    /// The factor at `now`: half as far from 1 after every half-life.
    #[must_use]
    pub fn now(&self, now: Instant, tending: &Tending) -> f64 {
        self.after(now.since(self.at), tending)
    }

    fn after(&self, age: Duration, tending: &Tending) -> f64 {
        let ages = age.as_secs_f64() / tending.half_life.as_secs_f64();
        let left = if ages.is_finite() {
            (-ages).exp2()
        } else {
            0.0
        };
        let factor = 1.0 + (self.factor - 1.0) * left;
        if factor.is_finite() {
            factor.clamp(CORRECTION.0, CORRECTION.1)
        } else {
            1.0
        }
    }

    /// In a whole window that ended `now` a job got `got`, where `predicted` was, for the same window and without any
    /// correction. A prediction of nothing teaches nothing.
    #[must_use]
    pub fn learn(&self, got: f64, predicted: f64, now: Instant, tending: &Tending) -> Self {
        let seen = got / predicted;
        if !(seen.is_finite() && predicted > 0.0 && got >= 0.0) {
            return *self;
        }
        let seen = seen.clamp(CORRECTION.0, CORRECTION.1);
        // Nothing is forgotten while such a job runs.
        let away = now.since(self.at).saturating_sub(tending.window);
        let known = self.after(away, tending);
        Self {
            factor: known + tending.weight * (seen - known),
            at: now,
        }
    }
}

/// A job stays away from a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hold {
    /// At least until then ...
    pub until: Instant,
    /// ... and until the node would give this much, before any correction.
    pub above: f64,
}

impl Hold {
    /// Whether the job may come back at `now` to a node that would give `uncorrected`.
    #[must_use]
    pub fn is_over(&self, uncorrected: f64, now: Instant) -> bool {
        now >= self.until && uncorrected >= self.above
    }
}

/// What is known of a job that runs here.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// Its SLA, as a share of its throughput with the GPUs to itself.
    pub sla: f64,
    /// What it got, a share as well, in each window since it began here, oldest first; `None`: it was not there for all
    /// of it, had no work, or nobody counted.
    pub windows: &'a [Option<f64>],
    /// What it is to expect here from now on, corrected; `None`: nobody knows, as without an agent.
    pub here: Option<f64>,
    /// The same, before the correction.
    pub uncorrected: f64,
    /// The most that any other node says it would give this job, and has room for.
    pub elsewhere: Option<f64>,
    /// Times it was evicted, anywhere.
    pub evictions: u32,
    /// When a job was last evicted here.
    pub last_here: Option<Instant>,
    /// The engine may start it again.
    pub may_restart: bool,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// It stays.
    Keep(Kept),
    /// It is told to go, and does not come back while this stands.
    Evict(Hold),
    /// It gets too little and stays: somebody is told.
    Report(Stuck),
}

/// Why a job stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The last window was not below its SLA, or nobody knows.
    Met,
    /// So many strikes so far.
    Strikes(u8),
    /// Enough strikes, and from now on enough is expected here.
    Better,
    /// Enough strikes, and nobody knows what is to be expected.
    Unknown,
}

/// Why a job stays that gets too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stuck {
    /// The engine may not start it again.
    MayNotRestart,
    /// It was moved as often as it may be.
    Capped,
    /// Another job left here a short while ago.
    NodeCapped,
    /// No other node gives enough.
    NowhereElse,
}

impl Stuck {
    /// In words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::MayNotRestart => "it may not be requeued",
            Self::Capped => "it was moved as often as a job may be",
            Self::NodeCapped => "another job left this node a short while ago",
            Self::NowhereElse => "no other node gives enough",
        }
    }
}

/// Windows below the SLA in a row, up to the newest.
#[must_use]
pub fn strikes(windows: &[Option<f64>], sla: f64, tending: &Tending) -> u8 {
    let newest = windows.iter().rev();
    let short = newest.take_while(|got| got.is_some_and(|got| tending.is_short(got, sla)));
    u8::try_from(short.count()).unwrap_or(u8::MAX)
}

/// What is to be done about a job at `now`.
#[must_use]
pub fn judge(case: &Case<'_>, now: Instant, tending: &Tending) -> Verdict {
    let strikes = strikes(case.windows, case.sla, tending);
    if strikes == 0 {
        return Verdict::Keep(Kept::Met);
    }
    if strikes < tending.strikes.max(1) {
        return Verdict::Keep(Kept::Strikes(strikes));
    }
    let Some(here) = case.here else {
        return Verdict::Keep(Kept::Unknown);
    };
    if here >= case.sla {
        return Verdict::Keep(Kept::Better);
    }
    if !case.may_restart {
        return Verdict::Report(Stuck::MayNotRestart);
    }
    if case.evictions >= tending.evictions_per_job {
        return Verdict::Report(Stuck::Capped);
    }
    if case.elsewhere.is_none_or(|elsewhere| elsewhere < case.sla) {
        return Verdict::Report(Stuck::NowhereElse);
    }
    let recent = |at: Instant| now < at.after(tending.node_every);
    if case.last_here.is_some_and(recent) {
        return Verdict::Report(Stuck::NodeCapped);
    }
    let judged = &case.windows[case.windows.len() - usize::from(tending.strikes.max(1))..];
    let got = judged.iter().flatten().copied().fold(0.0, f64::max);
    Verdict::Evict(Hold {
        until: now.after(tending.hold_off),
        above: case.uncorrected * case.sla / got,
    })
}
