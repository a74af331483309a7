//! Two clients of MPS with a fixed share for the trainer (LLMStation, section 2: vLLM and torchtune under
//! `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`). HARLI's StaticMode is the same with 40 %.
//!
//! The trainer has its share whether online is there or not. Kinder than MPS, which gives no
//! reservation: online keeps the rest to itself. Of ten percentages the best counts.

use super::{Beside, Idle, Lease, Policy, Profile, Seen, Stop, Truth};

/// Percentages tried.
pub const PERCENT: [u32; 10] = [10, 20, 30, 40, 50, 60, 70, 80, 90, 95];

/// The policy.
#[derive(Clone, Copy, Debug)]
pub struct StaticMps {
    /// The trainer's share, percent.
    pub percent: u32,
}

impl StaticMps {
    fn share(self) -> f64 {
        f64::from(self.percent) / 100.0
    }
}

impl Policy for StaticMps {
    fn before(&mut self, _seen: &Seen, _profile: &Profile<'_>, _truth: &Truth) -> Lease {
        Lease {
            keeps: Some(self.share()),
            ..Lease::default()
        }
    }

    fn beside(&mut self, _seen: &Seen, _profile: &Profile<'_>) -> Beside {
        Beside {
            units: u32::MAX,
            shares: (1.0 - self.share(), self.share()),
            fixed: true,
            fused: 0,
        }
    }

    fn idle(&mut self, _seen: &Seen, _truth: &Truth) -> Idle {
        Idle {
            stop: Stop::Never,
            share: self.share(),
            ..Idle::UNITS
        }
    }
}
