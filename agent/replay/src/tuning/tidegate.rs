//! Ours: the agent's lease policy, [`tidegate_policy::lease::Leaser`], and in one process
//! [`tidegate_policy::lease::together`] beside it.
//!
//! It is told what an agent or an engine sees, and nothing of the model that this world is made of.

use tidegate_policy::lease::event::Event;
use tidegate_policy::lease::together::{Ask, Plan, STEPS, Together};
use tidegate_policy::lease::{Leaser, Leasing};

use super::{Beside, Idle, Lease, Policy, Profile, Seen, Stop, Truth};

/// The policy.
#[derive(Debug)]
pub struct Tidegate {
    leaser: Leaser,
    /// Both are one process: no gate, and passes and multiprocessors are shared.
    one: Option<One>,
}

#[derive(Debug, Default)]
struct One {
    together: Together,
    plan: Plan,
    alone_ns: f64,
}

impl Tidegate {
    /// With these settings.
    #[must_use]
    pub fn new(leasing: Leasing, one: bool) -> Self {
        Self {
            leaser: Leaser::new(leasing),
            one: one.then(One::default),
        }
    }
}

fn share(steps: u32) -> f64 {
    f64::from(steps) / STEPS as f64
}

impl Policy for Tidegate {
    fn see(&mut self, event: &Event, now: u64) {
        self.leaser.step(event, now);
    }

    fn before(&mut self, seen: &Seen, _profile: &Profile<'_>, _truth: &Truth) -> Lease {
        let plan = self.one.as_mut().map_or(Plan::default(), |one| {
            one.alone_ns = self.leaser.predicted(&seen.next);
            one.plan = one.together.plan(&Ask {
                next: seen.next,
                alone_ns: one.alone_ns,
                room_ns: self.leaser.slack(&seen.next, seen.now) as f64,
                forward_tokens: if self.leaser.may_ride() {
                    seen.forward_tokens
                } else {
                    0
                },
            });
            one.plan
        });
        let grant = self
            .leaser
            .serial_and(&seen.next, &seen.unit, plan.more_ns, seen.now);
        Lease {
            units: grant.units,
            granted_ns: grant.granted_ns,
            by_time: true,
            until_ns: grant.until_ns,
            withdrawn: true,
            gap_from: self.leaser.from(true).filter(|_| self.one.is_none()),
            keeps: (grant.units == 0 && plan.trainer > 0).then(|| share(plan.trainer)),
        }
    }

    fn beside(&mut self, seen: &Seen, _profile: &Profile<'_>) -> Beside {
        let Some(one) = self.one.as_mut().filter(|_| seen.next.prompt == 0) else {
            return Beside::default();
        };
        one.plan.fused = one.plan.fused.min(seen.forward_tokens);
        let steps = one.plan.trainer;
        if steps == 0 {
            return Beside {
                fused: one.plan.fused,
                ..Beside::default()
            };
        }
        Beside {
            fused: 0,
            units: u32::MAX,
            shares: (1.0 - share(steps), share(steps)),
            fixed: true,
        }
    }

    fn ran(&mut self, seen: &Seen, beside: &Beside, took: f64, trained: f64) {
        let Some(one) = self.one.as_mut().filter(|_| seen.next.prompt == 0) else {
            return;
        };
        let plan = if beside.fused > 0 || beside.units > 0 {
            one.plan
        } else {
            Plan::default()
        };
        let more = one.together.ran(plan, one.alone_ns, took, trained);
        self.leaser.spent(more);
        one.plan = Plan::default();
    }

    fn idle(&mut self, _seen: &Seen, _truth: &Truth) -> Idle {
        Idle {
            from: self.leaser.from(false),
            stop: if self.one.is_some() {
                Stop::Unit
            } else {
                Stop::Gate
            },
            ..Idle::UNITS
        }
    }
}
