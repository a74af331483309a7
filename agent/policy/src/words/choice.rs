//! Why one stripe was taken; `explain` shows it.

use crate::words::ids::{ReclaimId, StripeId, Tokens};
use crate::words::time::Instant;

/// Why a stripe was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// In which reclaim.
    pub reclaim: ReclaimId,
    /// When that began.
    pub at: Instant,
    /// In which place: 0 is the first that was chosen.
    pub nth: u32,
    /// What it cost, and whom.
    pub pick: Pick,
}

/// One stripe chosen, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Which.
    pub stripe: StripeId,
    /// What its chooser saw as its cost when it was chosen; its marginal token cost for [`crate::select::Greedy`].
    pub key: u64,
    /// Tokens of the requests that it hit and no earlier pick had.
    pub extra: Tokens,
    /// How many requests those are.
    pub requests: u32,
}

/// Whether a stripe can be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// It is backed and may be taken.
    Backed,
    /// It is taken already, or being taken or given back.
    Taken,
    /// It is backed and stays so: it holds a block the engine cannot do without.
    Pinned,
}
