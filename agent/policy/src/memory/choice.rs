//! Why one stripe was taken: what `explain` says of it.

use crate::ids::ReclaimId;
use crate::select::Pick;
use crate::time::Instant;

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
