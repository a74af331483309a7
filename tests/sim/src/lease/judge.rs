//! The checker: what must hold, judged from the script and the device's own history.
//!
//! - *ran without leave*: while requests are in flight, work of a trainer is on the engine only during a lease, as the
//!   words on its page say. After the lease it may stay for grace, the latency that was drawn for the disables under
//!   way, and 100 us. A trainer that reports its return has a grace from then on. A request that arrives and rings ends
//!   the lease of a trainer that keeps to its units: one unit more, and grace.
//! - *late*: if the engine alone keeps the promised 99th percentile with a hundredth to spare, it keeps it beside
//!   trainers.
//!
//! The agent has to keep this while it runs and every process that was attached before has attached to it.

use crate::dice::{MS, US};
use crate::timeline::{Timeline, Who};
use std::collections::BTreeMap;
use tidegate_device::TsgId;

/// What the agent and its issue threads may take on top of the device's drawn latency.
const ALLOWANCE: u64 = 100 * US;
/// How long a word or a ring takes to be heard.
const HEARD: u64 = 50 * US;
/// A turn of the engine, with the switches around it.
const SLICE: u64 = 2_200 * US;
/// Calls older than that are over.
const STUCK: u64 = 1_000 * MS;
/// Violations that are kept of one schedule.
const KEPT: usize = 5;

/// Sums over schedules.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Leases given.
    pub leases: u64,
    /// Leases that their trainers overran, as the agent counts them.
    pub overruns: u64,
    /// Requests later than was promised.
    pub late: u64,
    /// Times that something ran without leave.
    pub ran_without_leave: u64,
    /// Requests judged.
    pub requests: u64,
    /// Time that trainers had the engine while requests were in flight, ns.
    pub beside_ns: u64,
    /// Of the agent's predictions of iterations, and schedules with some.
    pub errors: (f64, u64),
}

impl Figures {
    /// Takes another schedule's figures in.
    pub fn add(&mut self, other: &Self) {
        self.leases += other.leases;
        self.overruns += other.overruns;
        self.late += other.late;
        self.ran_without_leave += other.ran_without_leave;
        self.requests += other.requests;
        self.beside_ns += other.beside_ns;
        self.errors.0 += other.errors.0;
        self.errors.1 += other.errors.1;
    }
}

/// When a job may be on the engine.
#[derive(Clone, Copy, Debug, Default)]
struct Leave {
    /// The end of what it was given last, with grace.
    until: u64,
    /// The number of that lease.
    number: u64,
    /// The last moment at which it had leave for another reason.
    last: u64,
    /// What the longest unit that it has submitted takes; None: it does not keep to them.
    longest: Option<u64>,
}

/// What was measured of one request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Served {
    pub ttft: u64,
    pub tpot: u64,
    /// It was in flight while no agent was in control.
    pub spoiled: bool,
}

#[derive(Debug, Default)]
pub(super) struct Judge {
    grace: u64,
    in_flight: u64,
    leaves: BTreeMap<u32, Leave>,
    /// Whose groups.
    groups: BTreeMap<TsgId, u32>,
    running: BTreeMap<TsgId, u64>,
    calls: Vec<(u64, u64)>,
    pub controlled: bool,
    controlled_since: u64,
    pub served: Vec<Option<Served>>,
    open: Vec<usize>,
    pub violations: Vec<String>,
    pub figures: Figures,
    pub timeline: Option<Timeline>,
}

impl Judge {
    pub fn new(grace: u64, requests: usize) -> Self {
        Self {
            grace,
            served: vec![None; requests],
            ..Self::default()
        }
    }

    pub fn violated(&mut self, now: u64, what: &str) {
        if let Some(timeline) = &self.timeline {
            timeline.put(now, Who::Judge, what);
        }
        if self.violations.len() < KEPT {
            let (ms, ns) = (now / MS, now % MS);
            self.violations.push(format!("at {ms}.{ns:06} ms: {what}"));
        }
    }

    pub fn control(&mut self, now: u64, controlled: bool) {
        if self.controlled == controlled {
            return;
        }
        (self.controlled, self.controlled_since) = (controlled, now);
        for request in &self.open {
            if let Some(served) = &mut self.served[*request] {
                served.spoiled = true;
            }
        }
    }

    /// A group of a trainer. `keeps`: it does what the library tells it.
    pub fn trainer(&mut self, job: u32, tsg: TsgId, keeps: bool) {
        self.groups.insert(tsg, job);
        let leave = self.leaves.entry(job).or_default();
        leave.longest = keeps.then_some(0);
    }

    /// It submitted a unit, which takes turns with the engine: as long again, and a slice.
    pub fn unit(&mut self, job: u32, ns: u64) {
        let ns = 2 * ns + SLICE;
        let leave = self.leaves.entry(job).or_default();
        leave.longest = leave.longest.map(|longest| longest.max(ns));
    }

    /// The page of one of its processes says that it has that lease until then.
    pub fn given(&mut self, job: u32, number: u64, until: u64, now: u64) {
        let grace = self.grace;
        let leave = self.leaves.entry(job).or_default();
        leave.last = leave.last.max(leave.until.min(now));
        (leave.number, leave.until) = (number, until + grace);
        self.figures.leases += 1;
    }

    /// It says that this one is over.
    pub fn returned(&mut self, job: u32, number: u64, now: u64) {
        let grace = self.grace;
        let leave = self.leaves.entry(job).or_default();
        if leave.number != number {
            return;
        }
        leave.until = leave.until.min(now + HEARD + grace);
    }

    /// Its page has no lease any more that stands.
    pub fn ended(&mut self, job: u32, now: u64) {
        let grace = self.grace;
        let leave = self.leaves.entry(job).or_default();
        let unit = leave.longest.unwrap_or(STUCK);
        leave.until = leave.until.min(now + unit + grace);
    }

    /// A request came. `heard`: the engine rang.
    pub fn arrived(&mut self, request: usize, heard: bool, now: u64) {
        self.served[request] = Some(Served {
            spoiled: !self.controlled,
            ..Served::default()
        });
        self.open.push(request);
        self.in_flight += 1;
        let (first, grace) = (self.in_flight == 1, self.grace);
        for leave in self.leaves.values_mut() {
            if first {
                leave.last = now;
            }
            if heard && let Some(unit) = leave.longest {
                leave.until = leave.until.min(now + HEARD + unit + grace);
            }
        }
    }

    pub fn served(&mut self, request: usize, ttft: u64, tpot: u64, now: u64) {
        if let Some(served) = &mut self.served[request] {
            (served.ttft, served.tpot) = (ttft, tpot);
        }
        self.open.retain(|open| *open != request);
        if self.in_flight == 1 {
            self.look(now);
        }
        self.in_flight -= 1;
    }

    pub fn called(&mut self, now: u64, drawn: u64) {
        self.calls.retain(|(at, drawn)| at + drawn + STUCK > now);
        self.calls.push((now, drawn));
    }

    pub fn runs(&mut self, tsg: TsgId, at: u64) {
        if self.groups.contains_key(&tsg) {
            self.running.insert(tsg, at);
        }
    }

    pub fn stops(&mut self, tsg: TsgId, at: u64) {
        if let Some(since) = self.running.remove(&tsg) {
            self.check(tsg, since, at);
        }
    }

    /// Whoever runs has run until now.
    fn look(&mut self, now: u64) {
        for (tsg, since) in self.running.clone() {
            self.check(tsg, since, now);
        }
    }

    fn check(&mut self, tsg: TsgId, since: u64, at: u64) {
        let Some(job) = self.groups.get(&tsg).copied() else {
            return;
        };
        if self.in_flight == 0 || !self.controlled {
            return;
        }
        self.figures.beside_ns += at - since;
        let leave = self.leaves.entry(job).or_default();
        let last = leave
            .last
            .max(leave.until.min(at))
            .max(self.controlled_since);
        let calls = self
            .calls
            .iter()
            .filter(|(called, drawn)| called + drawn >= last);
        let drawn: u64 = calls.map(|call| call.1).sum();
        if at > last + drawn + ALLOWANCE {
            self.figures.ran_without_leave += 1;
            let late = (at - last - drawn) / US;
            let number = leave.number;
            self.violated(
                at,
                &format!("job {job} ran without leave, {late} us after lease {number}"),
            );
        }
    }
}

/// The 99th percentiles of those that count.
pub(super) fn tails(served: &[Served]) -> (u64, u64) {
    let tail = |of: fn(&Served) -> u64| {
        let mut all: Vec<u64> = served.iter().map(of).collect();
        all.sort_unstable();
        let rank = (all.len() * 99).div_ceil(100);
        all.get(rank.saturating_sub(1)).copied().unwrap_or(0)
    };
    (tail(|own| own.ttft), tail(|own| own.tpot))
}
