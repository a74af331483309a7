//! LLMStation's iteration-level multitasking (section 4).
//!
//! A prompt suspends the training. A decode shares its pass with training forward, up to its budget; beside
//! a decode run as many backward tasklets as equation 1 allows, in the form that has an optimum
//! ([`plan::parallel`]), each two of equal streams. Tasklets are a layer (artifact: a suspend every
//! 128 nodes of the graph, about one). Times are the means of a record cache. The artifact's own
//! scripts set four constants instead of planning; the paper's form is run.

use tidegate_device::sharing::Shares;
use tidegate_policy::lease::event::Event;
use tidegate_policy::lease::plan::{self, Layers};

use super::flexllm::TILE;
use super::{Beside, Policy, Profile, Seen};
use crate::trainer::Phase;

/// The policy.
#[derive(Clone, Copy, Debug)]
pub struct LlmStation {
    /// What a decode may take, ns.
    pub budget_ns: u64,
    /// Layers of online's model.
    pub layers: u32,
}

impl Policy for LlmStation {
    fn see(&mut self, _event: &Event, _now: u64) {}

    fn beside(&mut self, seen: &Seen, profile: &Profile<'_>) -> Beside {
        if seen.next.prompt > 0 {
            return Beside::default();
        }
        if seen.phase == Phase::Forward {
            let pass = |tokens| profile.pass_ns(&seen.next, tokens) as u64;
            return Beside {
                fused: plan::tokens(seen.forward_tokens, TILE, self.budget_ns, pass),
                ..Beside::default()
            };
        }
        let shares = Shares {
            online: 0.5,
            trainer: 0.5,
        };
        let [beside, unit] = profile.beside_ns(&seen.next, shares);
        let layers = f64::from(self.layers);
        let found = plan::parallel(&Layers {
            layers: self.layers,
            alone_ns: (profile.iteration_ns(&seen.next) / layers) as u64,
            beside_ns: (beside / layers) as u64,
            unit_ns: unit as u64,
            budget_ns: self.budget_ns,
            most: u32::MAX,
        });
        Beside {
            units: found.units,
            shares: (shares.online, shares.trainer),
            ..Beside::default()
        }
    }
}
