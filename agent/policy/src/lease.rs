//! Which unit, when: training beside online as far as online's promise allows.
//!
//! The gate lets a trainer have the time in which online is away. A *lease* gives it more: units
//! between two iterations of online, sized by what its users were promised. The parts decide nothing
//! by themselves and know nothing of each other:
//!
//! ```text
//!   slo        what was promised, what of it is left, how many were late
//!   predict    what an iteration takes: least squares, in two stages
//!   record     what it took: mean and tail, by fingerprint
//!   forecast   when online will be back
//!   plan       how much fits: in series, beside layers, in the same pass, on a share of the GPU
//!   priority   decode, prompt, forward, backward in one process
//!   share      whose turn it is, of several trainers
//! ```
//!
//! [`Leaser`] puts them together for one GPU whose trainer and online are two processes, which can only
//! take turns. At the end of each iteration:
//!
//! ```text
//!   slack = what the request nearest to being late has left, less a margin, times the guard
//!         - the next iteration: record, else prediction, at its tail
//!         ; a prompt waits: at most what its time to first token leaves
//!   units = (slack - a switch there and back) / the unit's tail
//!   units halve for a fingerprint when a lease before it overran, and grow by one in 100 that did not
//! ```
//!
//! Where online is away it says from which idle age on the trainer may run: at once in a pause, and in
//! a decode gap as soon as the chance of a return is worth it.
//!
//! A *unit* is the least piece of training that is run or not run: one layer of one window of
//! tokens, forward or backward. Spans in here are whole nanoseconds: they are divided all day.

pub mod event;
pub mod forecast;
pub mod plan;
pub mod predict;
pub mod priority;
pub mod record;
pub mod share;
pub mod slo;

use event::{Event, Grant, Iteration, Unit};
use forecast::Forecast;
use predict::{Solo, SoloFit};
use record::{Key, Kind, Records};
use slo::{Guard, Promise, Running};

/// What the operator and the node say.
#[derive(Clone, Copy, Debug, PartialEq)]
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

/// Seen so often, a record is taken for what it says.
const KNOWN: u64 = 8;
/// Iterations after which the fit is made anew.
const REFIT: u64 = 64;
/// What the past weighs then: half of it is from the last 1,400 iterations.
const FADE: f64 = 0.97;
/// Clean leases that give back a unit after an overrun (plan: one in a hundred).
const CLEAN: u32 = 100;
/// Overruns are too often from one in so many leases on.
const OFTEN: f64 = 4.0;
/// Fingerprints whose overruns are remembered.
const LIMITS: usize = 64;
/// Weight of the newest value in means over requests.
const WEIGHT: f64 = 0.02;
/// Of a means' budget, what is planned for: the rest is for what is learnt late.
const MEANT: f64 = 0.7;

#[derive(Clone, Copy, Debug, Default)]
struct Limit {
    fingerprint: u64,
    units: u32,
    clean: u32,
    /// Share of the leases that overran, moving.
    rate: f64,
    /// How far, ns: the most of late.
    excess: f64,
}

/// Leases of one GPU.
#[derive(Clone, Debug)]
pub struct Leaser {
    config: Leasing,
    running: Running,
    guard: Guard,
    records: Records,
    fit: SoloFit,
    solo: Option<Solo>,
    fitted: u64,
    pauses: Forecast,
    gaps: Forecast,
    limits: [Limit; LIMITS],
    /// Means over requests and iterations, without what leases added, ns.
    ttft: f64,
    interval: f64,
    /// What of the means' budgets is unspent, ns.
    credit: f64,
    /// Arrivals that wait for their first token, oldest first by number.
    waiting: Vec<(u64, u64)>,
    overruns: u64,
}

impl Leaser {
    /// Nothing known.
    #[must_use]
    pub fn new(config: Leasing) -> Self {
        Self {
            running: Running::new(Self::allowed(&config)),
            guard: Guard::new(config.promise.late_permille()),
            config,
            records: Records::default(),
            fit: SoloFit::default(),
            solo: None,
            fitted: 0,
            pauses: Forecast::default(),
            gaps: Forecast::default(),
            limits: [Limit::default(); LIMITS],
            ttft: 0.0,
            interval: 0.0,
            credit: 0.0,
            waiting: Vec::with_capacity(slo::RUNNING),
            overruns: 0,
        }
    }

    /// The promised pace less the margin, ns.
    fn allowed(config: &Leasing) -> u64 {
        let permille = u64::from(1_000 - config.margin_permille.min(1_000));
        config.promise.tpot_ns().map_or(u64::MAX / 1_000_000, |ns| {
            ns.saturating_mul(permille) / 1_000
        })
    }

    /// Something happened at `now_ns`.
    pub fn step(&mut self, event: &Event, now_ns: u64) {
        match *event {
            Event::Arrived { request } => {
                if self.waiting.len() < slo::RUNNING {
                    self.waiting.push((request, now_ns));
                }
            }
            Event::First { request, ttft_ns } => {
                self.waiting.retain(|waiting| waiting.0 != request);
                self.running.joined(request, now_ns);
                mean(&mut self.ttft, ttft_ns as f64);
            }
            Event::Ended {
                request,
                ttft_ns,
                tpot_ns,
            } => {
                self.running.left(request);
                if let Promise::Tail {
                    ttft_ns: first,
                    tpot_ns: further,
                    ..
                } = self.config.promise
                {
                    self.guard.saw(ttft_ns > first || tpot_ns > further);
                }
            }
            Event::Beat {
                iteration,
                took_ns,
                interval_ns,
                delayed_ns,
            } => self.beat(&iteration, took_ns, interval_ns, delayed_ns),
            Event::Returned {
                idle_ns,
                gap,
                delayed_ns,
            } => {
                if gap {
                    self.gaps.ended(idle_ns);
                    self.credit -= delayed_ns as f64;
                } else {
                    self.pauses.ended(idle_ns);
                }
            }
            Event::Unit { key, ns } => self.records.add(key, ns as f64),
            Event::Lease {
                fingerprint,
                units,
                granted_ns,
                used_ns,
            } => self.ended(fingerprint, units, granted_ns, used_ns),
        }
    }

    fn beat(&mut self, iteration: &Iteration, took: u64, interval: u64, delayed: u64) {
        if iteration.batch > 0 {
            self.running.stepped();
        }
        self.records.add(
            Key {
                fingerprint: iteration.fingerprint,
                kind: Kind::Iteration,
            },
            took as f64,
        );
        if iteration.prompt > 0 || iteration.batch == 0 {
            return;
        }
        self.fit.add(iteration.batch, iteration.cached, took as f64);
        if self.fit.samples() >= self.fitted + REFIT {
            self.fitted = self.fit.samples();
            self.solo = self.fit.fit().ok().or(self.solo);
            self.fit.forget(FADE);
        }
        mean(&mut self.interval, interval.saturating_sub(delayed) as f64);
        match self.config.promise {
            Promise::Each { decode_ns } => self.guard.saw(interval > decode_ns),
            Promise::Mean { tpot, .. } => {
                // A credit is spent in a moment and not saved up for one.
                let share = f64::from(tpot) / 1e4 * MEANT;
                self.credit = (self.credit + share * self.interval).min(self.interval);
            }
            Promise::Tail { .. } => {}
        }
    }

    fn ended(&mut self, fingerprint: u64, units: u32, granted: u64, used: u64) {
        let excess = used.saturating_sub(granted);
        let over = excess > self.config.grace_ns;
        self.overruns += u64::from(over);
        let limit = &mut self.limits[(fingerprint % LIMITS as u64) as usize];
        if limit.fingerprint != fingerprint || limit.units == 0 {
            *limit = Limit {
                fingerprint,
                units: u32::MAX,
                ..Limit::default()
            };
        }
        limit.rate += WEIGHT * (f64::from(u8::from(over)) - limit.rate);
        limit.excess = (limit.excess * (1.0 - 1.0 / f64::from(CLEAN))).max(excess as f64);
        if over {
            limit.clean = 0;
            if limit.rate * OFTEN > 1.0 {
                limit.units = (limit.units.min(units) / 2).max(1);
            }
            return;
        }
        limit.clean += 1;
        if limit.clean >= CLEAN {
            limit.clean = 0;
            limit.units = limit.units.saturating_add(1);
        }
    }

    /// What the next iteration takes, at its tail, ns.
    pub fn predicted(&mut self, next: &Iteration) -> f64 {
        let key = Key {
            fingerprint: next.fingerprint,
            kind: Kind::Iteration,
        };
        let record = self.records.get(key).filter(|took| took.seen >= KNOWN);
        let fit = self.solo.filter(|_| next.batch > 0);
        let fit = fit.map(|solo| solo.predict(next.batch, next.cached));
        // A fingerprint is a shape; within it the cached tokens grow, and the fit knows by how much.
        match (record, fit) {
            (Some(record), Some(fit)) => record.p95.max(fit),
            (Some(record), None) => record.p95,
            (None, Some(fit)) => fit,
            (None, None) => f64::INFINITY,
        }
    }

    /// What a unit takes, at its tail, ns.
    pub fn unit(&mut self, unit: &Unit) -> u64 {
        match self.records.get(unit.key) {
            Some(took) if took.seen >= KNOWN => took.p95 as u64,
            _ => unit.claimed_ns,
        }
    }

    /// What of online's time the trainer may take before `next`, a switch there and back included, ns.
    pub fn slack(&mut self, next: &Iteration, now_ns: u64) -> u64 {
        let predicted = self.predicted(next);
        if !predicted.is_finite() {
            return 0;
        }
        let slack = match self.config.promise {
            Promise::Tail { ttft_ns, .. } => {
                let Some(slack) = self.running.slack(now_ns) else {
                    return 0;
                };
                // What a request is ahead is not used up at once: those that join later are not.
                let pace = Self::allowed(&self.config);
                let slack = (slack as f64).min(2.0 * pace as f64) - predicted;
                let slack = slack * self.guard.scale();
                self.waiting.first().map_or(slack, |(_, came)| {
                    let waited = now_ns.saturating_sub(*came) as f64;
                    slack.min((ttft_ns as f64 - waited - predicted) / 4.0)
                })
            }
            Promise::Each { .. } => {
                let pace = Self::allowed(&self.config) as f64;
                let excess = self
                    .limit(next.fingerprint)
                    .map_or(0.0, |limit| limit.excess);
                (pace - predicted - excess) * self.guard.scale()
            }
            Promise::Mean { .. } => self.credit,
        };
        if slack > 0.0 { slack as u64 } else { 0 }
    }

    /// Units that may run before `next`, where both take turns.
    pub fn serial(&mut self, next: &Iteration, unit: &Unit, now_ns: u64) -> Grant {
        if unit.most == 0 || (next.prompt > 0 && !self.reads_late()) {
            return Grant::default();
        }
        let slack = self.slack(next, now_ns);
        let unit_ns = self.unit(unit);
        if unit_ns == 0 {
            return Grant::default();
        }
        let limit = self.limit(next.fingerprint);
        let most = limit.map_or(unit.most, |limit| unit.most.min(limit.units));
        let units = plan::serial(slack, 2 * self.config.switch_ns, unit_ns, most);
        let spent = u64::from(units) * unit_ns;
        if units > 0 && matches!(self.config.promise, Promise::Mean { .. }) {
            self.credit -= (spent + 2 * self.config.switch_ns) as f64;
        }
        Grant {
            units,
            granted_ns: spent,
            until_ns: if units > 0 {
                spent + self.config.grace_ns
            } else {
                0
            },
        }
    }

    /// Whether a prompt that waits may wait for a lease.
    const fn reads_late(&self) -> bool {
        matches!(self.config.promise, Promise::Tail { .. })
    }

    fn limit(&self, fingerprint: u64) -> Option<&Limit> {
        let limit = &self.limits[(fingerprint % LIMITS as u64) as usize];
        (limit.fingerprint == fingerprint && limit.units > 0).then_some(limit)
    }

    /// From which idle age on, ns, the trainer may have a GPU that online is away from. Nothing
    /// while that is not known.
    #[must_use]
    pub fn from(&self, gap: bool) -> Option<u64> {
        let delay = self.config.gate_ns;
        match (self.config.promise, gap) {
            // Gaps are leased, iteration by iteration.
            (Promise::Tail { .. } | Promise::Each { .. }, true) => None,
            (Promise::Each { .. }, false) => Some(0),
            (Promise::Tail { ttft_ns, .. }, false) => {
                self.pauses.from(delay, ttft_ns.saturating_mul(2) / 100)
            }
            (Promise::Mean { ttft, .. }, false) => {
                let budget = f64::from(ttft) / 1e4 * MEANT * self.ttft;
                self.pauses.from(delay, budget as u64)
            }
            (Promise::Mean { tpot, .. }, true) => {
                let budget = f64::from(tpot) / 1e4 * MEANT * self.interval;
                self.gaps.from(delay, budget as u64)
            }
        }
    }

    /// Leases that took too long.
    #[must_use]
    pub const fn overruns(&self) -> u64 {
        self.overruns
    }

    /// What of the slack is used, from 0 to 1.
    #[must_use]
    pub const fn guard(&self) -> f64 {
        self.guard.scale()
    }
}

fn mean(mean: &mut f64, value: f64) {
    let weight = if *mean > 0.0 { WEIGHT } else { 1.0 };
    *mean += weight * (value - *mean);
}
