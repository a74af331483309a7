//! Decode gaps: how long the GPU idles between two iterations of one engine.
//!
//! The cooldown is twice the longest of them, so their tail decides what can be harvested. Neither
//! a paper nor a public trace gives the distribution; two published step counts bound it, and the
//! presets are our choice around those bounds:
//!
//! * Hugging Face transformers, continuous batching of an 8B model on an H200: 72.1 s of 300.6 s
//!   idle over 8,192 synchronous steps, so 8.8 ms a step; with asynchronous batching 99.4 % busy,
//!   so 0.17 ms a step.
//! * The TensorRT-LLM overlap scheduler leaves no residual against the iteration costs of
//!   [`crate::engine`] (0 +- 0.3 ms).

use std::time::Duration;

use tidegate_text::rng::Rng;

/// A distribution of decode gaps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GapModel {
    /// Name on the command line.
    pub name: &'static str,
    /// Median of the log-normal body, milliseconds.
    pub median_ms: f64,
    /// Sigma of the log-normal body.
    pub sigma: f64,
    /// Share of gaps from the tail.
    pub tail_share: f64,
    /// The tail is uniform between these, milliseconds.
    pub tail_ms: (f64, f64),
}

/// An engine that prepares the next step while the GPU runs the last.
pub const OVERLAP: GapModel = GapModel {
    name: "overlap",
    median_ms: 0.15,
    sigma: 0.4,
    tail_share: 0.0,
    tail_ms: (0.0, 0.0),
};

/// An engine in vLLM's shape: short gaps, and one in a thousand where the scheduler does more.
pub const VLLM: GapModel = GapModel {
    name: "vllm",
    median_ms: 0.6,
    sigma: 0.5,
    tail_share: 0.001,
    tail_ms: (5.0, 10.0),
};

/// A synchronous engine.
pub const SYNC: GapModel = GapModel {
    name: "sync",
    median_ms: 8.8,
    sigma: 0.15,
    tail_share: 0.0,
    tail_ms: (0.0, 0.0),
};

/// Every preset.
pub const PRESETS: [GapModel; 3] = [OVERLAP, VLLM, SYNC];

impl GapModel {
    /// The next gap.
    pub fn draw(&self, rng: &mut Rng) -> Duration {
        let ms = if rng.uniform() < self.tail_share {
            self.tail_ms.0 + (self.tail_ms.1 - self.tail_ms.0) * rng.uniform()
        } else {
            rng.lognormal(self.median_ms, self.sigma)
        };
        Duration::from_secs_f64(ms / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_preset_has_its_median() {
        for preset in PRESETS {
            let mut rng = Rng::new(1);
            let mut gaps: Vec<Duration> = (0..20_001).map(|_| preset.draw(&mut rng)).collect();
            gaps.sort();
            let median = gaps[10_000].as_secs_f64() * 1e3;
            assert!(
                (median / preset.median_ms - 1.0).abs() < 0.02,
                "{}: {median}",
                preset.name
            );
        }
    }

    #[test]
    fn the_vllm_tail_is_rare_and_bounded() {
        let mut rng = Rng::new(2);
        let gaps: Vec<Duration> = (0..200_000).map(|_| VLLM.draw(&mut rng)).collect();
        let long = gaps
            .iter()
            .filter(|gap| **gap >= Duration::from_millis(5))
            .count();
        assert!((150..=260).contains(&long), "{long} of 200000");
        assert!(gaps.iter().max() < Some(&Duration::from_millis(11)));
    }
}
