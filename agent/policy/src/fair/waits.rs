//! How long jobs waited for their turns, as a histogram.

/// Upper bounds, ns: a turn is 10 ms to 10 s, and there may be several to wait for.
pub const WAITS_NS: [u64; 9] = [
    10_000_000,
    30_000_000,
    100_000_000,
    300_000_000,
    1_000_000_000,
    3_000_000_000,
    10_000_000_000,
    30_000_000_000,
    100_000_000_000,
];

/// The waits for all turns so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// By upper bound; the last are above all.
    pub counts: [u64; WAITS_NS.len() + 1],
    /// Of all, ns.
    pub sum_ns: u64,
}

impl Waits {
    /// A turn began after so long. One that nobody stood before is none that was waited for.
    pub fn add(&mut self, ns: u64) {
        if ns > 0 {
            self.counts[WAITS_NS.partition_point(|bound| *bound < ns)] += 1;
            self.sum_ns = self.sum_ns.saturating_add(ns);
        }
    }
}
