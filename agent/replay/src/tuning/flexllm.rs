//! FlexLLM's hybrid token scheduler (arXiv 2402.18789, section 6.2).
//!
//! What is served is fixed first; then as many training tokens go into the iteration as its budget
//! leaves: `s = max { s : f(c, s) <= SLO }`. Forward they ride in the pass; backward goes by layers of
//! windows, and as many follow as fit. `f` is profiled and here exact. The public artifact has no `f`: two
//! constants bound its windows, and its backward is whole sequences; the paper's form is run.

use tidegate_policy::lease::plan;

use super::{Beside, Lease, Policy, Profile, Seen, Truth};
use crate::trainer::Phase;

/// Tokens of a tile (FlexLLM gives none; 16 is a tensor core's).
pub const TILE: u32 = 16;

/// The policy.
#[derive(Clone, Copy, Debug)]
pub struct FlexLlm {
    /// What an iteration may take, ns.
    pub budget_ns: u64,
}

impl Policy for FlexLlm {
    fn before(&mut self, seen: &Seen, profile: &Profile<'_>, _truth: &Truth) -> Lease {
        if seen.phase == Phase::Forward || seen.next.prompt > 0 {
            return Lease::default();
        }
        let slack = self.budget_ns as f64 - profile.iteration_ns(&seen.next);
        let units = plan::serial(slack.max(0.0) as u64, 0, profile.unit_ns() as u64, u32::MAX);
        Lease {
            units,
            granted_ns: u64::from(units) * profile.unit_ns() as u64,
            ..Lease::default()
        }
    }

    fn beside(&mut self, seen: &Seen, profile: &Profile<'_>) -> Beside {
        if seen.phase != Phase::Forward {
            return Beside::default();
        }
        let pass = |tokens| profile.pass_ns(&seen.next, tokens) as u64;
        Beside {
            fused: plan::tokens(seen.forward_tokens, TILE, self.budget_ns, pass),
            ..Beside::default()
        }
    }
}
