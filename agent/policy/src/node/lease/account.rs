//! What was decided about leases on one GPU and what came of it, for people; and what they have to be told once.

use crate::effect::Report;
use crate::ids::{GpuId, JobId, LeaseId};
use crate::lease::Leasing;
use crate::lease::event::{Iteration, Kind};
use crate::lending::{Decision, Outlook};
use crate::no_lease::NoLease;
use crate::time::Instant;
use core::time::Duration;

/// Leases that are kept with what became of them.
const KEPT: usize = 16;
/// Intervals without a trainer before they are compared with what was promised. Ours: about three seconds.
const SEEN: u64 = 64;
/// Weight of the newest of them.
const WEIGHT: f64 = 0.02;
/// Times in a row that a unit has to be too long before that is told. Ours: about ten seconds.
const NEVER: u32 = 256;
/// People are told again of a promise that is too low after so long. Ours.
const AGAIN: Duration = Duration::from_secs(600);

/// What online needs for a token while no trainer runs.
#[derive(Clone, Copy, Debug, Default)]
struct Alone {
    mean_ns: f64,
    seen: u64,
    low: bool,
    told: Option<Instant>,
}

impl Alone {
    fn add(&mut self, interval_ns: u64) {
        self.seen += 1;
        let weight = WEIGHT.max(1.0 / self.seen as f64);
        self.mean_ns += weight * (interval_ns as f64 - self.mean_ns);
    }

    /// Compares it with what was promised. Says so where that is too low from now on, unless it was said lately.
    fn judge(&mut self, config: &Leasing, now: Instant) -> Option<(Duration, Duration)> {
        let tpot = config.promise.tpot_ns().filter(|_| self.seen >= SEEN)?;
        let margin = f64::from(config.margin_permille.min(1_000)) / 1e3;
        let kept = tpot as f64 * (1.0 - margin);
        let was = self.low;
        self.low = self.mean_ns > if was { kept } else { tpot as f64 };
        let silent = self.told.is_some_and(|told| now.since(told) < AGAIN);
        if was || !self.low || silent {
            return None;
        }
        self.told = Some(now);
        Some((self.mean(), Duration::from_nanos(tpot)))
    }

    fn mean(&self) -> Duration {
        if self.seen < SEEN {
            return Duration::ZERO;
        }
        Duration::from_nanos(self.mean_ns as u64)
    }
}

/// Units of one kind that were too long.
#[derive(Clone, Copy, Debug, Default)]
struct TooLong {
    times: u32,
    /// The most that would have fit, ns.
    fits: Duration,
    told: bool,
}

/// How often units of one trainer were too long.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::node) struct Misses([TooLong; 2]);

impl Misses {
    fn of(&mut self, kind: Kind) -> &mut TooLong {
        &mut self.0[usize::from(kind == Kind::Backward)]
    }

    /// A unit of this kind fits.
    pub(in crate::node) fn fit(&mut self, kind: Kind) {
        let own = self.of(kind);
        (own.times, own.fits) = (0, Duration::ZERO);
    }

    /// A unit of this kind took longer than what fits. Says what would have, once, if none ever does.
    pub(in crate::node) fn missed(&mut self, kind: Kind, fits: Duration) -> Option<Duration> {
        let own = self.of(kind);
        own.times = own.times.saturating_add(1);
        own.fits = own.fits.max(fits);
        if own.times < NEVER || own.told {
            return None;
        }
        own.told = true;
        Some(own.fits)
    }
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub(in crate::node) struct Account {
    /// Units that ran within leases.
    pub(in crate::node) units: u64,
    /// What was known when online last said what comes next.
    pub(in crate::node) outlook: Option<Outlook>,
    /// When online last reported an iteration.
    pub(in crate::node) reported: Option<Instant>,
    /// The last leases, the oldest first.
    kept: [Option<Decision>; KEPT],
    /// Iterations before which no lease was given although units were offered, by the number of the reason.
    pub(in crate::node) refused: [u64; NoLease::KINDS],
    alone: Alone,
    /// A trainer had the GPU since the last iteration.
    beside: bool,
}

impl Default for Account {
    fn default() -> Self {
        Self {
            units: 0,
            outlook: None,
            reported: None,
            kept: [None; KEPT],
            refused: [0; NoLease::KINDS],
            alone: Alone::default(),
            beside: false,
        }
    }
}

impl Account {
    /// An iteration is over; `lent`: a lease stands.
    pub(in crate::node) fn beat(
        &mut self,
        gpu: GpuId,
        (iteration, took_ns, interval_ns): (&Iteration, u64, u64),
        lent: bool,
        config: &Leasing,
        now: Instant,
    ) -> Option<Report> {
        self.reported = Some(now);
        if took_ns > 0
            && let Some(last) = self.kept.last_mut().and_then(Option::as_mut)
            && last.took.is_none()
        {
            last.took = Some(Duration::from_nanos(took_ns));
        }
        let beside = core::mem::replace(&mut self.beside, lent);
        if beside || lent || took_ns == 0 || iteration.prompt > 0 || iteration.batch == 0 {
            return None;
        }
        self.alone.add(interval_ns);
        let (alone, tpot) = self.alone.judge(config, now)?;
        Some(Report::LeaseTpotTooLow { gpu, alone, tpot })
    }

    /// Another promise is in force: the next iteration is compared with it.
    pub(in crate::node) const fn configure(&mut self) {
        self.alone.low = false;
        self.alone.told = None;
    }

    /// What online needs for a token alone, and whether that is more than it promised.
    pub(in crate::node) fn alone(&self) -> (Duration, bool) {
        (self.alone.mean(), self.alone.low)
    }

    /// Why nothing is lent whatever fits.
    pub(in crate::node) fn too_low(&self, config: &Leasing) -> Option<NoLease> {
        let tpot = config.promise.tpot_ns().filter(|_| self.alone.low)?;
        Some(NoLease::TpotTooLow(
            self.alone.mean(),
            Duration::from_nanos(tpot),
        ))
    }

    /// A lease was given.
    pub(in crate::node) fn lent(&mut self, decision: Decision) {
        self.kept.rotate_left(1);
        self.kept[KEPT - 1] = Some(decision);
        self.beside = true;
    }

    /// None was given although units were offered.
    pub(in crate::node) fn refuse(&mut self, why: &NoLease) {
        self.refused[why.number()] += 1;
    }

    /// A lease is over.
    pub(in crate::node) fn over(&mut self, lease: LeaseId, ran: (u32, Duration), overran: bool) {
        self.units = self.units.saturating_add(u64::from(ran.0));
        let mut kept = self.kept.iter_mut().flatten();
        if let Some(own) = kept.find(|own| own.lease == lease) {
            (own.ran, own.overran) = (Some(ran), overran);
        }
    }

    /// The last leases, the oldest first.
    pub(in crate::node) fn decisions(&self) -> impl Iterator<Item = &Decision> {
        self.kept.iter().flatten()
    }

    /// Whether the lease that was given last, at that moment, was this job's.
    pub(in crate::node) fn was_lent(&self, job: JobId, at: Instant) -> bool {
        let last = self.kept[KEPT - 1];
        last.is_some_and(|last| last.job == job && last.outlook.at == at)
    }
}
