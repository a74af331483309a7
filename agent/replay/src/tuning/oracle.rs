//! Knows arrivals, gaps and true times, and is greedy at each iteration.
//!
//! Between two iterations it trains until the request nearest to its promise would be late, with one
//! percent of margin for what arrives in between and no tail; while online is away it leaves just in
//! time. It does not plan over iterations: a policy that did could be above it.

use tidegate_policy::lease::event::Event;
use tidegate_policy::lease::slo::{Guards, Promise, Running};

use super::{Idle, Lease, Policy, Profile, Seen, Stop, Truth};

/// The policy.
#[derive(Debug)]
pub struct Oracle {
    promise: Promise,
    switch_ns: u64,
    running: Running,
    guards: Guards,
}

impl Oracle {
    /// With this promise, and one switch, ns.
    #[must_use]
    pub fn new(promise: Promise, switch_ns: u64) -> Self {
        let pace = promise.tpot_ns().unwrap_or(u64::MAX / 1_000_000) / 100 * 99;
        Self {
            promise,
            switch_ns,
            running: Running::new(pace),
            guards: Guards::new(&promise),
        }
    }
}

impl Policy for Oracle {
    fn see(&mut self, event: &Event, now: u64) {
        match *event {
            Event::First { request, .. } => {
                self.running.joined(request, now);
            }
            Event::Ended {
                request,
                ttft_ns,
                tpot_ns,
            } => {
                self.running.left(request);
                self.guards.ended(&self.promise, ttft_ns, tpot_ns);
            }
            Event::Beat { iteration, .. } if iteration.batch > 0 => self.running.stepped(),
            _ => {}
        }
    }

    fn before(&mut self, seen: &Seen, profile: &Profile<'_>, truth: &Truth) -> Lease {
        let slack = match self.promise {
            Promise::Mean { .. } => 0.0,
            Promise::Each { decode_ns } => 0.99 * decode_ns as f64 - truth.iteration_ns,
            Promise::Tail { tpot_ns, .. } => {
                let ahead = self.running.slack(seen.now).unwrap_or(0) as f64;
                let slack = (ahead - truth.iteration_ns) * self.guards.scale() / 2.0;
                slack.min(2.0 * tpot_ns as f64)
            }
        };
        let slack = if seen.next.prompt > 0 { 0.0 } else { slack };
        // What fits into the gap costs nobody anything.
        let gap = (truth.launch - seen.now) as f64;
        let span = slack.max(gap) - 2.0 * self.switch_ns as f64;
        Lease {
            units: if span >= profile.unit_ns() {
                u32::MAX
            } else {
                0
            },
            by_time: true,
            granted_ns: span.max(0.0) as u64,
            withdrawn: !matches!(self.promise, Promise::Each { .. }),
            ..Lease::default()
        }
    }

    fn idle(&mut self, _seen: &Seen, _truth: &Truth) -> Idle {
        Idle {
            stop: Stop::Gate,
            ..Idle::UNITS
        }
    }
}
