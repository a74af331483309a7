//! Latencies of one GPU, counted without allocation: exact enough for quantiles, and in a few buckets that can be added
//! up over any number of nodes.

use hdrhistogram::Histogram;

/// Longer ones count as this long.
const MOST_NS: u64 = 60_000_000_000;

/// Bounds of the buckets, ns: around the promised millisecond.
pub const BOUNDS_NS: [u64; 10] = [
    50_000, 100_000, 200_000, 300_000, 500_000, 750_000, 1_000_000, 2_000_000, 5_000_000,
    10_000_000,
];

/// Counts of times between fixed bounds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Buckets {
    bounds: &'static [u64],
    /// One more than bounds: the last is beyond them.
    counts: Vec<u64>,
    sum_ns: u64,
    /// s^2.
    squares: f64,
}

impl Buckets {
    /// Empty ones, up to each of `bounds` (ns, rising).
    #[must_use]
    pub fn new(bounds: &'static [u64]) -> Self {
        Self {
            bounds,
            counts: vec![0; bounds.len() + 1],
            ..Self::default()
        }
    }

    /// Counts one.
    pub fn record(&mut self, ns: u64) {
        let place = self.bounds.partition_point(|&bound| bound < ns);
        if let Some(count) = self.counts.get_mut(place) {
            *count += 1;
        }
        self.sum_ns = self.sum_ns.saturating_add(ns);
        #[expect(clippy::cast_precision_loss, reason = "a moment, for people")]
        let seconds = ns as f64 / 1e9;
        self.squares += seconds * seconds;
    }

    /// How many were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Up to where each counts, rising.
    #[must_use]
    pub const fn bounds(&self) -> &'static [u64] {
        self.bounds
    }

    /// How many were counted up to each bound, and beyond the last.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// All of them together.
    #[must_use]
    pub const fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Their squares together, s^2.
    #[must_use]
    pub const fn squares(&self) -> f64 {
        self.squares
    }
}

/// A histogram with three significant figures, 1 ns to a minute.
#[derive(Debug)]
pub struct Latencies {
    exact: Option<Histogram<u64>>,
    buckets: Buckets,
}

impl Latencies {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self {
            exact: Histogram::new_with_bounds(1, MOST_NS, 3).ok(),
            buckets: Buckets::new(&BOUNDS_NS),
        }
    }

    /// Counts one.
    pub fn record(&mut self, ns: u64) {
        if let Some(histogram) = &mut self.exact {
            histogram.saturating_record(ns.max(1));
        }
        self.buckets.record(ns);
    }

    /// What was counted, exactly; None: nothing yet.
    #[must_use]
    pub fn exact(&self) -> Option<&Histogram<u64>> {
        self.exact
            .as_ref()
            .filter(|histogram| !histogram.is_empty())
    }

    /// The same in buckets.
    #[must_use]
    pub const fn buckets(&self) -> &Buckets {
        &self.buckets
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_empty_before_the_first_and_bounded_after_an_absurd_one() {
        let mut latencies = Latencies::new();
        assert!(latencies.exact().is_none());
        for _ in 0..99 {
            latencies.record(1_000);
        }
        latencies.record(u64::MAX);
        let summary = latencies.exact().expect("some were counted");
        assert_eq!(summary.len(), 100);
        assert!((990..=1_010).contains(&summary.value_at_quantile(0.5)));
        assert!(summary.max() >= MOST_NS);
    }
}
