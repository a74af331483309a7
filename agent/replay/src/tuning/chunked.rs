//! Chunked training (Hao et al., as LLMStation compares it, section 2): a sample is cut into chunks of
//! one size, and each goes forward and backward by itself.
//!
//! In turn with online's iterations: a chunk's forward rides in the next pass, its backward follows it,
//! whole. The size is a setting for all of a run; of five the best counts.

use super::{Beside, Idle, Lease, Policy, Profile, Seen, Stop, Truth};
use crate::trainer::Phase;

/// Sizes tried, tokens.
pub const SIZES: [u32; 5] = [64, 128, 256, 512, 1_024];

/// The policy; the trainer's windows are its chunks.
#[derive(Clone, Copy, Debug)]
pub struct Chunked {
    /// Tokens of a chunk.
    pub tokens: u32,
    /// Layers of the model: units of a chunk's backward.
    pub layers: u32,
}

impl Policy for Chunked {
    fn before(&mut self, seen: &Seen, _profile: &Profile<'_>, _truth: &Truth) -> Lease {
        let units = if seen.phase == Phase::Forward {
            0
        } else {
            self.layers
        };
        Lease {
            units,
            ..Lease::default()
        }
    }

    fn beside(&mut self, seen: &Seen, _profile: &Profile<'_>) -> Beside {
        let forward = seen.phase == Phase::Forward;
        Beside {
            fused: if forward {
                self.tokens.min(seen.forward_tokens)
            } else {
                0
            },
            ..Beside::default()
        }
    }

    fn idle(&mut self, _seen: &Seen, _truth: &Truth) -> Idle {
        Idle {
            stop: Stop::Pass,
            ..Idle::UNITS
        }
    }
}
