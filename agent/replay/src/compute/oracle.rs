//! The limit: a policy that knows when online will be idle, and for how long.
//!
//! It takes the run of online alone as its plan. Offline is let in the moment an idle time begins
//! and is off the GPU the moment it ends, so online is never delayed and its run stays the planned
//! one. What is left to choose is which idle times are worth a switch.
//!
//! Under the at-most-once rule a preemption is charged to every request in flight at it, or else to
//! the next to start, and none may be charged twice. Two idle times exclude each other exactly when
//! some request is charged at both; as requests are in flight over one stretch of time each, that
//! is so when the oldest request charged at the later one had arrived by the earlier one. Hence the
//! best choice is that of weighted intervals, found exactly in one pass.
//!
//! It leaves the allowances of the bounds (TTFT +2 %, TPOT +0.5 %) unspent: by delaying each request
//! by what it may be, offline could gain at most those shares of online's own time.

use std::collections::VecDeque;

use super::policy::{Boundary, Command, Event, NEVER, Policy, ns};
use crate::costs::Costs;
use crate::plan::{Alone, Stretch};

#[derive(Debug)]
pub(crate) struct Oracle {
    /// Let in then, and told to go then.
    plan: VecDeque<(u64, u64)>,
    inside: bool,
    disable: u64,
    enable: u64,
}

impl Oracle {
    /// No request is preempted twice.
    pub fn at_most_once(costs: &Costs, alone: Option<&Alone>) -> Self {
        Self::with(costs, alone, best_at_most_once)
    }

    /// Every idle time that pays for its switches.
    pub fn unlimited(costs: &Costs, alone: Option<&Alone>) -> Self {
        Self::with(costs, alone, |gains| (0..gains.len()).collect())
    }

    fn with(costs: &Costs, alone: Option<&Alone>, choose: impl Fn(&[Gain]) -> Vec<usize>) -> Self {
        let (disable, enable) = (ns(costs.disable_save), ns(costs.enable_restore));
        let stretches = alone.map_or(&[][..], |alone| &alone.stretches);
        let gains: Vec<Gain> = stretches
            .iter()
            .filter_map(|stretch| Gain::of(stretch, disable + enable))
            .collect();
        let plan = choose(&gains)
            .into_iter()
            .map(|place| (gains[place].from, gains[place].to - disable))
            .collect();
        Self {
            plan,
            inside: false,
            disable,
            enable,
        }
    }
}

/// An idle time that is worth its switches.
#[derive(Clone, Copy, Debug)]
struct Gain {
    from: u64,
    to: u64,
    /// Arrival of the oldest request that is charged at its end.
    oldest: u64,
    ns: u64,
}

impl Gain {
    fn of(stretch: &Stretch, switches: u64) -> Option<Self> {
        let ns = (stretch.to - stretch.from).checked_sub(switches)?;
        (ns > 0).then_some(Self {
            from: stretch.from,
            to: stretch.to,
            oldest: stretch.oldest,
            ns,
        })
    }
}

/// The choice with the greatest sum in which no request is charged twice.
fn best_at_most_once(gains: &[Gain]) -> Vec<usize> {
    // best[n]: of the first n; before[n]: how many of them are compatible with the n-th.
    let mut best = vec![0; gains.len() + 1];
    let mut before = vec![0; gains.len()];
    for (n, gain) in gains.iter().enumerate() {
        before[n] = gains[..n].partition_point(|earlier| earlier.to < gain.oldest);
        best[n + 1] = best[n].max(best[before[n]] + gain.ns);
    }
    let mut chosen = Vec::new();
    let mut n = gains.len();
    while n > 0 {
        if best[n] == best[n - 1] {
            n -= 1;
        } else {
            chosen.push(n - 1);
            n = before[n - 1];
        }
    }
    chosen.reverse();
    chosen
}

impl Policy for Oracle {
    fn step(&mut self, _event: Event, now: u64, out: &mut Vec<Command>) {
        while let Some((from, to)) = self.plan.front().copied() {
            if !self.inside && now >= from {
                self.inside = true;
                out.push(Command::Run { takes: self.enable });
            }
            if !self.inside || now < to {
                return;
            }
            self.inside = false;
            self.plan.pop_front();
            out.push(Command::Stop {
                at: Boundary::After(0),
                takes: self.disable,
            });
        }
    }

    fn next(&self) -> u64 {
        match (self.plan.front(), self.inside) {
            (Some((_, to)), true) => *to,
            (Some((from, _)), false) => *from,
            (None, _) => NEVER,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against every subset.
        #[test]
        fn no_other_choice_has_more(
            points in prop::collection::vec((1u64..20, 1u64..30, 0u64..40), 1..10),
        ) {
            let mut at = 0;
            let gains: Vec<Gain> = points
                .iter()
                .map(|(after, ns, age)| {
                    at += after;
                    Gain { from: at, to: at, oldest: at.saturating_sub(*age), ns: *ns }
                })
                .collect();
            let compatible = |chosen: &[usize]| {
                chosen.iter().enumerate().all(|(n, later)| {
                    chosen[..n].iter().all(|earlier| gains[*earlier].to < gains[*later].oldest)
                })
            };
            let sum = |chosen: &[usize]| chosen.iter().map(|place| gains[*place].ns).sum::<u64>();
            let chosen = best_at_most_once(&gains);
            prop_assert!(compatible(&chosen));
            for mask in 0u32..1 << gains.len() {
                let subset: Vec<usize> =
                    (0..gains.len()).filter(|place| mask & (1 << place) != 0).collect();
                if compatible(&subset) {
                    prop_assert!(sum(&subset) <= sum(&chosen), "{:?} beats {:?}", subset, chosen);
                }
            }
        }
    }
}
