//! FineInfer: deferred continuous batching (He, Lu and Alonso, EuroMLSys 2024), as LLMStation runs it
//! beside itself (section 2).
//!
//! Samples are trained whole, only while nothing is served; a request that comes may be deferred by a
//! bound, so that others join it and a sample ends. The bound is a setting, and of several the best
//! counts.

use super::{Idle, Policy, Seen, Stop, Truth};

/// Bounds tried, ns (LLMStation, section 6.2: tuned; their values are not given).
pub const BOUNDS: [u64; 5] = [0, 100_000_000, 200_000_000, 300_000_000, 400_000_000];

/// The policy.
#[derive(Clone, Copy, Debug)]
pub struct FineInfer {
    /// The bound, ns.
    pub defer_ns: u64,
}

impl Policy for FineInfer {
    fn idle(&mut self, _seen: &Seen, _truth: &Truth) -> Idle {
        Idle {
            stop: Stop::Sample,
            defer_ns: self.defer_ns,
            ..Idle::UNITS
        }
    }
}
