//! Which unit runs when: training beside online, as far as online's promise allows.
//!
//! The gate gives a trainer the time in which online is away. A *lease* gives it more: units between two iterations of
//! online, sized by what online promised its users. The parts decide nothing by themselves and do not know each other:
//!
//! ```text
//!   slo        what was promised, what of it is left, how many were late
//!   predict    how long an iteration takes: least squares, in two stages
//!   record     how long it took: mean and tail, by fingerprint
//!   forecast   when online will be back
//!   plan       how much fits: in series, beside layers, in the same pass, on a share of the GPU
//!   share      which of several trainers is next
//!   priority   decode, prompt, forward, backward in one process
//!   together   what runs beside an iteration of the same process, learnt from what it cost
//!   ride       rows of background requests in the users' own steps, learnt the same way
//!   train      units between two steps of the same process
//! ```
//!
//! [`Leaser`] combines them for one GPU whose trainer and online are two processes, which can only take turns. At the
//! end of each iteration:
//!
//! ```text
//!   slack = what the request nearest to being late has left, less a margin, times the guard
//!         - the next iteration: record, else prediction, at its tail
//!         ; a prompt waits: none
//!   units = (slack - a switch there and back) / the unit's tail
//!   units halve for a fingerprint when a lease before it overran, and grow by one in 100 that did not
//! ```
//!
//! While online is away, it says from which idle age on the trainer may run: at once in a pause, and in a decode gap as
//! soon as the probability of a return is low enough.
//!
//! A *unit* is the least piece of training that runs as a whole: one layer of one window of tokens, forward or
//! backward. Times in here are whole nanoseconds, because they are divided often.

pub mod plan;
pub mod predict;
pub mod priority;
pub mod record;
pub mod ride;
pub mod share;
pub mod slo;
pub mod together;
pub mod train;

use crate::forecast::Forecast;
use crate::no_lease::NoLease;
pub use crate::words::lease::{self as event, Leasing};
use crate::words::lease::{Event, Grant, Iteration, Unit};
use core::time::Duration;
use predict::{Solo, SoloFit};
use record::{Key, Kind, Known, Records, Took};
use slo::{Guards, Promise, Running};

/// How often a shape must be seen until its record is used.
const KNOWN: u64 = 8;
/// Iterations after which the fit is made anew.
const REFIT: u64 = 64;
/// The weight of the past then: half of it comes from the last 1,400 iterations.
const FADE: f64 = 0.97;
/// Clean leases that give back a unit after an overrun (plan: one in a hundred).
const CLEAN: u32 = 100;
/// Overruns are too frequent from one in this many leases on.
const OFTEN: f64 = 4.0;
/// Of what the request nearest to being late is ahead, a lease takes this part at most. Ours: a half
/// keeps as much in reserve as one token leaves.
const USED: f64 = 0.5;
/// So many of the longest prompt of late are kept back at most: another may come right behind it. Ours, of 1, 1.5 and 2
/// over ten recorded workloads: with 1 throughout, the 99th percentile of time per further token was above what was
/// promised in two. How much of it is needed is learnt ([`Guards::needed`]): all of it cost 4 % of what is trained.
const PROMPTS: f64 = 2.0;
/// A request that has waited for this part of what its first token may take, while none is read, finds no room. Ours.
const WAITED: f64 = 0.1;
/// The factor by which the longest recent prompt fades with each. No source: half of it is gone after 70.
const FORGOTTEN: f64 = 0.01;
/// If each token has a promise, the guard leaves this part: the prediction itself must be right.
const LEAST: f64 = 0.5;
/// Idle age from which on a trainer may run while nobody knows when online will be back, ns: few
/// pauses are shorter, and a gate at the end of one that is costs a hundredth of its age at most.
const UNKNOWN_NS: u64 = 100_000_000;
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
    /// Share of the leases that overran, as a moving mean.
    rate: f64,
    /// By how much, ns: the largest recent value.
    excess: f64,
}

/// Leases of one GPU.
#[derive(Clone, Debug)]
pub struct Leaser {
    config: Leasing,
    running: Running,
    guards: Guards,
    records: Records,
    fit: SoloFit,
    solo: Option<Solo>,
    fitted: u64,
    pauses: Forecast,
    gaps: Forecast,
    limits: [Limit; LIMITS],
    means: Means,
    counts: Counts,
    /// When the last iteration was over, ns.
    beaten: u64,
    /// How long iterations that read prompts took, ns: about the longest recent one.
    prompts: f64,
    predictions: Predictions,
}

/// How well iterations were predicted.
#[derive(Clone, Copy, Debug, Default)]
struct Predictions {
    /// How many were compared.
    count: u64,
    /// Relative error, as a moving mean.
    error: f64,
}

/// Means over requests and iterations, without what leases added, ns.
#[derive(Clone, Copy, Debug, Default)]
struct Means {
    ttft: f64,
    interval: f64,
    /// What of the means' budgets is unspent.
    credit: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Requests, and those of them that came after a pause.
    arrivals: u64,
    returns: u64,
    overruns: u64,
}

impl Leaser {
    /// Nothing is known.
    #[must_use]
    pub fn new(config: Leasing) -> Self {
        Self {
            running: Running::new(Self::allowed(&config)),
            guards: Guards::new(&config.promise),
            config,
            records: Records::default(),
            fit: SoloFit::default(),
            solo: None,
            fitted: 0,
            pauses: Forecast::default(),
            gaps: Forecast::default(),
            limits: [Limit::default(); LIMITS],
            means: Means::default(),
            counts: Counts::default(),
            beaten: 0,
            prompts: 0.0,
            predictions: Predictions::default(),
        }
    }

    /// Goes on with other settings. What was learnt of times stays; of requests in flight nothing is leased beside
    /// until the first that begins under them.
    pub fn configure(&mut self, config: Leasing) {
        if config.promise != self.config.promise
            || config.margin_permille != self.config.margin_permille
        {
            self.running.restart(Self::allowed(&config));
            self.guards = Guards::new(&config.promise);
            self.means.credit = 0.0;
        }
        self.config = config;
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
            Event::Arrived { .. } => {
                self.counts.arrivals += 1;
                self.running.waits(now_ns);
            }
            Event::First { request, ttft_ns } => {
                self.running.read();
                self.running.joined(request, now_ns);
                mean(&mut self.means.ttft, ttft_ns as f64);
            }
            Event::Ended {
                request,
                ttft_ns,
                tpot_ns,
            } => {
                self.running.left(request);
                self.guards.ended(&self.config.promise, ttft_ns, tpot_ns);
            }
            Event::Beat {
                iteration,
                took_ns,
                interval_ns,
                delayed_ns,
            } => {
                self.beaten = now_ns;
                self.blocked(&iteration, now_ns);
                self.beat(&iteration, took_ns, interval_ns, delayed_ns);
            }
            Event::Returned {
                idle_ns,
                gap,
                delayed_ns,
            } => {
                let budget = self.may_delay(gap);
                if gap {
                    self.gaps.ended(idle_ns, budget, delayed_ns);
                    self.means.credit -= delayed_ns as f64;
                } else {
                    self.counts.returns += 1;
                    self.pauses.ended(idle_ns, budget, delayed_ns);
                }
            }
            Event::Unit { key, ns } => self.records.add(key, ns as f64),
            Event::Known {
                key,
                mean_ns,
                spread_ns,
                p95_ns,
                seen,
            } => self.records.restore(
                &Known {
                    key,
                    mean_ns,
                    spread_ns,
                    p95_ns,
                    seen,
                },
                KNOWN,
            ),
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
        if let Some(expected) = self.expected(iteration).filter(|_| took > 0) {
            let error = (expected / took as f64 - 1.0).abs();
            let weight = WEIGHT.max(1.0 / (self.predictions.count + 1) as f64);
            self.predictions.count += 1;
            self.predictions.error += weight * (error - self.predictions.error);
        }
        self.records.add(shape(iteration), took as f64);
        if iteration.prompt > 0 {
            self.prompts = (self.prompts * (1.0 - FORGOTTEN)).max(interval as f64);
        }
        if iteration.prompt > 0 || iteration.batch == 0 {
            return;
        }
        self.fit.add(iteration.batch, iteration.cached, took as f64);
        if self.fit.samples() >= self.fitted + REFIT {
            self.fitted = self.fit.samples();
            self.solo = self.fit.fit().ok().or(self.solo);
            self.fit.forget(FADE);
        }
        mean(
            &mut self.means.interval,
            interval.saturating_sub(delayed) as f64,
        );
        match self.config.promise {
            Promise::Each { decode_ns } => self.guards.token(interval > decode_ns),
            Promise::Mean { tpot, .. } => {
                // A credit is spent in a moment and not saved up for one.
                let share = f64::from(tpot) / 1e4 * MEANT;
                self.means.credit =
                    (self.means.credit + share * self.means.interval).min(self.means.interval);
            }
            Promise::Tail { .. } => {}
        }
    }

    /// Nothing of a prompt was read although one waits: there was no room for it, because those that decode stay
    /// longer than they would alone.
    fn blocked(&mut self, iteration: &Iteration, now_ns: u64) {
        let Promise::Tail { ttft_ns, .. } = self.config.promise else {
            return;
        };
        let waited = self.running.waited(now_ns);
        if iteration.prompt == 0 && waited as f64 > ttft_ns as f64 * WAITED {
            self.guards.blocked();
        }
    }

    /// Whether tokens may ride in online's own pass.
    #[must_use]
    pub fn may_ride(&self) -> bool {
        !matches!(self.config.promise, Promise::Mean { .. }) || self.means.credit > 0.0
    }

    fn ended(&mut self, fingerprint: u64, units: u32, granted: u64, used: u64) {
        let excess = used.saturating_sub(granted);
        let over = excess > self.config.grace_ns;
        self.counts.overruns += u64::from(over);
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

    /// The expected duration of an iteration, ns: its mean if that is known, otherwise by the fit.
    fn expected(&mut self, of: &Iteration) -> Option<f64> {
        if of.prompt > 0 || of.batch == 0 {
            return None;
        }
        let record = self.records.get(shape(of));
        let record = record.filter(|took| took.seen >= KNOWN);
        let fit = self.solo.map(|solo| solo.predict(of.batch, of.cached));
        fit.or(record.map(|record| record.mean))
    }

    /// How many predictions were compared with the actual iteration, and their recent relative error.
    #[must_use]
    pub const fn predictions(&self) -> (u64, f64) {
        (self.predictions.count, self.predictions.error)
    }

    /// The duration of the next iteration, at its tail, ns.
    pub fn predicted(&mut self, next: &Iteration) -> f64 {
        let record = self.records.get(shape(next));
        self.tail(record, next)
    }

    fn tail(&self, record: Option<Took>, next: &Iteration) -> f64 {
        let record = record.filter(|took| took.seen >= KNOWN);
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

    /// The duration of a unit, at its tail, ns.
    pub fn unit(&mut self, unit: &Unit) -> u64 {
        taken(self.records.get(unit.key), unit)
    }

    /// The same, for readers.
    #[must_use]
    pub fn unit_seen(&self, unit: &Unit) -> u64 {
        taken(self.records.peek(unit.key), unit)
    }

    /// The durations of iterations and units, by their shape.
    #[must_use]
    pub const fn records(&self) -> &Records {
        &self.records
    }

    /// For whoever only looks: what the next iteration takes at its tail, where that is known, and the slack before it.
    #[must_use]
    pub fn outlook(&self, next: &Iteration, now_ns: u64) -> (Option<Duration>, Duration) {
        let predicted = self.tail(self.records.peek(shape(next)), next);
        let slack = Duration::from_nanos(self.slack_beside(predicted, next, now_ns));
        let known = predicted.is_finite();
        let predicted = known.then(|| Duration::from_nanos(predicted as u64));
        (predicted, slack)
    }

    /// Why no unit runs before `next`; `None`: one fits. Decides nothing: [`Self::serial`] does, from the same.
    #[must_use]
    pub fn refusal(&self, next: &Iteration, unit: &Unit, now_ns: u64) -> Option<NoLease> {
        if unit.most == 0 {
            return Some(NoLease::NoUnits);
        }
        if next.prompt > 0 {
            return Some(NoLease::Prompt);
        }
        let record = self.records.peek(shape(next));
        let predicted = self.tail(record, next);
        if !predicted.is_finite() {
            let seen = record.map_or(0, |took| took.seen);
            return Some(NoLease::Learning(seen, KNOWN));
        }
        let tail = matches!(self.config.promise, Promise::Tail { .. });
        if tail && self.running.is_empty() {
            return Some(NoLease::Idle);
        }
        let unit_ns = self.unit_seen(unit);
        if unit_ns == 0 {
            return Some(NoLease::NoTime);
        }
        let slack = self.slack_beside(predicted, next, now_ns);
        let fits = slack.saturating_sub(self.config.switch_ns.saturating_mul(2));
        if fits == 0 {
            return Some(NoLease::NoSlack);
        }
        let long = unit_ns > fits;
        let (unit, fits) = (Duration::from_nanos(unit_ns), Duration::from_nanos(fits));
        long.then_some(NoLease::UnitTooLong(unit, fits))
    }

    /// What of online's time the trainer may take before `next`, a switch there and back included, ns.
    pub fn slack(&mut self, next: &Iteration, now_ns: u64) -> u64 {
        let predicted = self.predicted(next);
        self.slack_beside(predicted, next, now_ns)
    }

    fn slack_beside(&self, predicted: f64, next: &Iteration, now_ns: u64) -> u64 {
        if !predicted.is_finite() {
            return 0;
        }
        let slack = match self.config.promise {
            Promise::Tail { .. } => {
                let Some(slack) = self.running.slack(now_ns) else {
                    return 0;
                };
                // Whoever decodes stands still while a prompt is read, so that the longest of late is kept
                // back: among the last tokens nobody makes up for it. What is left of a part is left for
                // the next token, so that all of a token's slack is used in the long run.
                let ahead =
                    slack as f64 - predicted - PROMPTS * self.guards.needed() * self.prompts;
                let slack = ahead * USED * self.guard();
                slack.min(2.0 * Self::allowed(&self.config) as f64)
            }
            Promise::Each { .. } => {
                let pace = Self::allowed(&self.config) as f64;
                let excess = self
                    .limit(next.fingerprint)
                    .map_or(0.0, |limit| limit.excess);
                let since = now_ns.saturating_sub(self.beaten) as f64;
                (pace - predicted - excess) * self.guards.further().max(LEAST) - since
            }
            Promise::Mean { .. } => self.means.credit,
        };
        if slack > 0.0 { slack as u64 } else { 0 }
    }

    /// Units that may run before `next`, where both take turns.
    pub fn serial(&mut self, next: &Iteration, unit: &Unit, now_ns: u64) -> Grant {
        self.serial_and(next, unit, 0.0, now_ns)
    }

    /// The same where the iteration takes `more_ns` longer, because of what runs beside it.
    pub fn serial_and(
        &mut self,
        next: &Iteration,
        unit: &Unit,
        more_ns: f64,
        now_ns: u64,
    ) -> Grant {
        // A prompt that waits is read next, and nothing before it.
        if unit.most == 0 || next.prompt > 0 {
            return Grant::default();
        }
        let slack = self.slack(next, now_ns).saturating_sub(more_ns as u64);
        let unit_ns = self.unit(unit);
        if unit_ns == 0 {
            return Grant::default();
        }
        let limit = self.limit(next.fingerprint);
        let most = limit.map_or(unit.most, |limit| unit.most.min(limit.units));
        let switches = self.config.switch_ns.saturating_mul(2);
        let fit = plan::serial(slack, switches, unit_ns, most);
        if fit == 0 {
            return Grant::default();
        }
        // Units of another kind may follow: the time is what is granted, unless it is the number that
        // is held back.
        let granted_ns = if fit == most {
            u64::from(fit) * unit_ns
        } else {
            slack - switches
        };
        if matches!(self.config.promise, Promise::Mean { .. }) {
            self.means.credit -= granted_ns as f64 + switches as f64;
        }
        Grant {
            units: most,
            granted_ns,
            until_ns: granted_ns.saturating_add(self.config.grace_ns),
        }
    }

    /// An iteration took `ns` longer because of what ran beside it.
    pub fn spent(&mut self, ns: f64) {
        self.means.credit -= ns;
    }

    fn limit(&self, fingerprint: u64) -> Option<&Limit> {
        let limit = &self.limits[(fingerprint % LIMITS as u64) as usize];
        (limit.fingerprint == fingerprint && limit.units > 0).then_some(limit)
    }

    /// By how much a return may be delayed on average, ns.
    fn may_delay(&self, gap: bool) -> u64 {
        match (self.config.promise, gap) {
            (Promise::Tail { ttft_ns, .. }, false) => ttft_ns.saturating_mul(2) / 100,
            (Promise::Tail { .. } | Promise::Each { .. }, _) => 0,
            (Promise::Mean { ttft, .. }, false) => {
                // Only who comes after a pause is delayed; the mean is over all.
                let each = self.counts.arrivals as f64 / self.counts.returns.max(1) as f64;
                (f64::from(ttft) / 1e4 * MEANT * self.means.ttft * each.max(1.0)) as u64
            }
            (Promise::Mean { tpot, .. }, true) => {
                (f64::from(tpot) / 1e4 * MEANT * self.means.interval) as u64
            }
        }
    }

    /// From which idle age on, ns, the trainer may have a GPU that online is away from. Nothing
    /// while that is not known.
    #[must_use]
    pub fn from(&self, gap: bool) -> Option<u64> {
        let (delay, budget) = (self.config.gate_ns, self.may_delay(gap));
        match (self.config.promise, gap) {
            // Gaps are leased, iteration by iteration.
            (Promise::Tail { .. } | Promise::Each { .. }, true) => None,
            (Promise::Each { .. }, false) => Some(0),
            (Promise::Tail { .. } | Promise::Mean { .. }, false) => {
                self.pauses.from(delay, budget).or(Some(UNKNOWN_NS))
            }
            (Promise::Mean { .. }, true) => self.gaps.from(delay, budget),
        }
    }

    /// Leases that took too long.
    #[must_use]
    pub const fn overruns(&self) -> u64 {
        self.counts.overruns
    }

    /// The part of the slack that is used, from 0 to 1.
    #[must_use]
    pub fn guard(&self) -> f64 {
        self.guards.scale()
    }
}

/// An iteration's place among the records.
const fn shape(of: &Iteration) -> Key {
    Key {
        fingerprint: of.fingerprint,
        kind: Kind::Iteration,
    }
}

/// What a unit takes, at its tail, ns: what was seen of it, else what is claimed.
fn taken(record: Option<Took>, unit: &Unit) -> u64 {
    match record {
        Some(took) if took.seen >= KNOWN => took.p95 as u64,
        _ => unit.claimed_ns,
    }
}

fn mean(mean: &mut f64, value: f64) {
    let weight = if *mean > 0.0 { WEIGHT } else { 1.0 };
    *mean += weight * (value - *mean);
}
