//! Shares of the last minute, from totals that only grow.

use std::collections::VecDeque;
use tidegate_proto::v1;

/// How far back, in samples of a second.
const SAMPLES: usize = 61;

/// Shares of one GPU's time, each from 0 to 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shares {
    /// Online was busy.
    pub online_busy: f64,
    /// Offline work could run.
    pub offline_running: f64,
    /// By GPU: overlapping busy time over busy time of either; 1 where neither was busy, as nothing
    /// was misaligned.
    pub aligned: Vec<f64>,
}

/// Totals of the last minute, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Recent(VecDeque<Vec<v1::GpuUsage>>);

fn ratio(part: u64, whole: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a share, for people")]
    let ratio = part as f64 / whole.max(1) as f64;
    ratio.min(1.0)
}

impl Recent {
    /// Takes the totals of every GPU.
    pub fn push(&mut self, gpus: &[v1::GpuStatus]) {
        if self.0.len() == SAMPLES {
            self.0.pop_front();
        }
        let totals = gpus.iter().map(|gpu| gpu.usage.clone().unwrap_or_default());
        self.0.push_back(totals.collect());
    }

    /// Shares between the oldest sample and the newest, by GPU; of all time when there is one only.
    #[must_use]
    pub fn shares(&self) -> Vec<Shares> {
        let Some(newest) = self.0.back() else {
            return Vec::new();
        };
        let none = vec![v1::GpuUsage::default(); newest.len()];
        let oldest = if self.0.len() > 1 { &self.0[0] } else { &none };
        let busy = |at: usize| newest[at].online_busy_ns - oldest[at].online_busy_ns;
        let gpus = newest.iter().zip(oldest).enumerate();
        gpus.map(|(at, (new, old))| {
            let observed = new.observed_ns - old.observed_ns;
            let both = |other: usize| {
                let before = old.overlap_ns.get(other).copied().unwrap_or(0);
                new.overlap_ns[other] - before
            };
            Shares {
                online_busy: ratio(busy(at), observed),
                offline_running: ratio(new.offline_running_ns - old.offline_running_ns, observed),
                aligned: (0..new.overlap_ns.len())
                    .map(|other| match busy(at) + busy(other) - both(other) {
                        0 => 1.0,
                        either => ratio(both(other), either),
                    })
                    .collect(),
            }
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(observed: u64, busy: u64, overlap: [u64; 2]) -> v1::GpuStatus {
        v1::GpuStatus {
            usage: Some(v1::GpuUsage {
                observed_ns: observed,
                online_busy_ns: busy,
                offline_running_ns: observed - busy,
                overlap_ns: overlap.to_vec(),
                ..v1::GpuUsage::default()
            }),
            ..v1::GpuStatus::default()
        }
    }

    #[test]
    fn only_the_last_minute_counts_and_alignment_is_overlap_over_union() {
        let mut recent = Recent::default();
        assert!(recent.shares().is_empty());
        recent.push(&[gpu(1_000, 1_000, [1_000, 0]), gpu(1_000, 0, [0, 0])]);
        for second in 1..=SAMPLES as u64 {
            let at = 1_000 + second * 100;
            let (a, b) = (1_000 + second * 40, second * 20);
            recent.push(&[gpu(at, a, [a, second * 10]), gpu(at, b, [second * 10, b])]);
        }
        let shares = recent.shares();
        assert!((shares[0].online_busy - 0.4).abs() < 1e-9);
        assert!((shares[1].offline_running - 0.8).abs() < 1e-9);
        assert!((shares[0].aligned[1] - 10.0 / 50.0).abs() < 1e-9);
        assert!((shares[0].aligned[1] - shares[1].aligned[0]).abs() < 1e-9);
    }
}
