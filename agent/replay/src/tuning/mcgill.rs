//! McGill's scheduler (Chen and Balmau): decode, then prompts and samples in one pass, then backward.
//!
//! Samples ride with prompts up to the batch's tokens; backward runs only while no request is there,
//! and is interrupted at a unit's end. The loop's holes are closed as in
//! [`tidegate_policy::lease::priority`]; online's batches are those of everybody here, which read a
//! prompt at once, so that its first correction has nothing to do.

use super::{Beside, Policy, Profile, Seen};

/// Tokens of a pass, prompts and samples (the slides give a number of samples, `MAX_BSZ`, and no
/// value; 2,048 is vLLM's default for a pass with latency in view).
pub const BATCH_TOKENS: u32 = 2_048;

/// The policy.
#[derive(Clone, Copy, Debug)]
pub struct McGill;

impl Policy for McGill {
    fn beside(&mut self, seen: &Seen, _profile: &Profile<'_>) -> Beside {
        if seen.next.prompt == 0 {
            return Beside::default();
        }
        let room = BATCH_TOKENS.saturating_sub(seen.next.prompt + seen.next.batch);
        Beside {
            fused: room.min(seen.forward_tokens),
            ..Beside::default()
        }
    }
}
