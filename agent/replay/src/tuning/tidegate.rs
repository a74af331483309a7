//! Ours, where both take turns: the agent's lease policy, [`tidegate_policy::lease::Leaser`].
//!
//! It is told what an agent sees, and nothing of the model that this world is made of.

use tidegate_policy::lease::event::Event;
use tidegate_policy::lease::{Leaser, Leasing};

use super::{Idle, Lease, Policy, Profile, Seen, Stop, Truth};

/// The policy.
#[derive(Debug)]
pub struct Tidegate {
    leaser: Leaser,
    /// Both are one process: no gate, and passes may be shared.
    one: bool,
}

impl Tidegate {
    /// With these settings.
    #[must_use]
    pub fn new(leasing: Leasing, one: bool) -> Self {
        Self {
            leaser: Leaser::new(leasing),
            one,
        }
    }
}

impl Policy for Tidegate {
    fn see(&mut self, event: &Event, now: u64) {
        self.leaser.step(event, now);
    }

    fn before(&mut self, seen: &Seen, _profile: &Profile<'_>, _truth: &Truth) -> Lease {
        let grant = self.leaser.serial(&seen.next, &seen.unit, seen.now);
        Lease {
            units: grant.units,
            granted_ns: grant.granted_ns,
            by_time: true,
            until_ns: grant.until_ns,
            withdrawn: true,
            gap_from: self.leaser.from(true).filter(|_| !self.one),
            keeps: None,
        }
    }

    fn idle(&mut self, _seen: &Seen, _truth: &Truth) -> Idle {
        Idle {
            from: self.leaser.from(false),
            stop: if self.one { Stop::Unit } else { Stop::Gate },
            ..Idle::UNITS
        }
    }
}
