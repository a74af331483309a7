//! Latencies of one GPU, counted without allocating.

use hdrhistogram::Histogram;
use tidegate_proto::v1;

/// Longer ones count as this long.
const MOST_NS: u64 = 60_000_000_000;

/// A histogram with three significant figures, 1 ns to a minute.
#[derive(Debug)]
pub struct Latencies(Option<Histogram<u64>>);

impl Latencies {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self(Histogram::new_with_bounds(1, MOST_NS, 3).ok())
    }

    /// Counts one.
    pub fn record(&mut self, ns: u64) {
        if let Some(histogram) = &mut self.0 {
            histogram.saturating_record(ns.max(1));
        }
    }

    /// As the protocol says it.
    #[must_use]
    pub fn summary(&self) -> v1::Latency {
        self.0
            .as_ref()
            .filter(|histogram| !histogram.is_empty())
            .map_or_else(v1::Latency::default, |histogram| v1::Latency {
                count: histogram.len(),
                p50_ns: histogram.value_at_quantile(0.5),
                p99_ns: histogram.value_at_quantile(0.99),
                max_ns: histogram.max(),
            })
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
        assert_eq!(latencies.summary(), v1::Latency::default());
        for _ in 0..99 {
            latencies.record(1_000);
        }
        latencies.record(u64::MAX);
        let summary = latencies.summary();
        assert_eq!(summary.count, 100);
        assert!((990..=1_010).contains(&summary.p50_ns));
        assert!(summary.max_ns >= MOST_NS);
    }
}
