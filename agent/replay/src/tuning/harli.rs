//! HARLI's scheduler (arXiv 2511.11729, section 6.2): shares of the multiprocessors, chosen for each
//! decode so that its predicted time is the nearest below the target.
//!
//! Ten steps, as in the paper. The predictor is given exact times. The paper's service decodes only;
//! a prompt, where there is one, has the GPU to itself.

use tidegate_device::sharing::Shares;
use tidegate_policy::lease::plan::{self, Favour};

use super::{Beside, Lease, Policy, Profile, Seen, Truth};

/// Steps of a partition (HARLI, section 6.1: 10 % each).
pub const STEPS: u32 = 10;

/// The policy.
#[derive(Clone, Copy, Debug)]
pub struct Harli {
    /// What a decode may take, ns.
    pub budget_ns: u64,
    /// The trainer's share, in force until the next iteration.
    pub share: f64,
}

impl Policy for Harli {
    fn before(&mut self, _seen: &Seen, _profile: &Profile<'_>, _truth: &Truth) -> Lease {
        Lease {
            keeps: Some(self.share).filter(|share| *share > 0.0),
            ..Lease::default()
        }
    }

    fn beside(&mut self, seen: &Seen, profile: &Profile<'_>) -> Beside {
        self.share = 0.0;
        if seen.next.prompt > 0 {
            return Beside::default();
        }
        let shares = |at: plan::Partition| Shares {
            online: f64::from(at.online) / f64::from(STEPS),
            trainer: f64::from(at.trainer) / f64::from(STEPS),
        };
        let ns = |at| Some(profile.beside_ns(&seen.next, shares(at))[0] as u64);
        let found = plan::partition(STEPS, self.budget_ns, Favour::Nearest, ns);
        if found.trainer == 0 {
            return Beside::default();
        }
        let shares = shares(found);
        self.share = shares.trainer;
        Beside {
            units: u32::MAX,
            shares: (shares.online, shares.trainer),
            fixed: true,
            fused: 0,
        }
    }
}
