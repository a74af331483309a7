//! Temporal sharing (FlexLLM, section 8.2): one whole training iteration after so many of online's.

use super::{Idle, Lease, Policy, Profile, Seen, Stop, Truth};

/// The policy.
#[derive(Clone, Copy, Debug)]
pub struct Temporal {
    /// Iterations of online for one of the trainer.
    pub every: u32,
    /// Units of a sample.
    pub units: u32,
    /// Iterations since the last.
    pub since: u32,
}

impl Policy for Temporal {
    fn before(&mut self, _seen: &Seen, _profile: &Profile<'_>, _truth: &Truth) -> Lease {
        self.since += 1;
        if self.since < self.every {
            return Lease::default();
        }
        self.since = 0;
        Lease {
            units: self.units,
            ..Lease::default()
        }
    }

    fn idle(&mut self, _seen: &Seen, _truth: &Truth) -> Idle {
        Idle {
            stop: Stop::Sample,
            ..Idle::UNITS
        }
    }
}
