//! Drawn durations. Seeded, so that a schedule is its seed.

/// A small deterministic generator (splitmix64).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The same seed gives the same draws.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// How long something takes, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Latency {
    /// Always the same.
    Fixed(u64),
    /// Log-normal through its median and 99th percentile, cut off at four times the latter.
    LogNormal {
        /// Half of the draws are below.
        p50: u64,
        /// One draw in a hundred is above.
        p99: u64,
    },
}

impl Latency {
    /// Draws one duration.
    pub fn draw(self, rng: &mut Rng) -> u64 {
        match self {
            Self::Fixed(ns) => ns,
            Self::LogNormal { p50, p99 } => {
                // Twelve uniforms less six: normal enough out to three deviations.
                let normal = (0..12).map(|_| rng.unit()).sum::<f64>() - 6.0;
                let p50 = p50.max(1) as f64;
                let p99 = (p99 as f64).max(p50);
                let sigma = (p99 / p50).ln() / 2.326;
                (p50 * (normal * sigma).exp()).min(4.0 * p99) as u64
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_normal_keeps_its_median_and_its_99th_percentile() {
        let mut rng = Rng::new(1);
        let latency = Latency::LogNormal {
            p50: 300_000,
            p99: 900_000,
        };
        let mut draws: Vec<u64> = (0..20_000).map(|_| latency.draw(&mut rng)).collect();
        draws.sort_unstable();
        let (p50, p99) = (draws[10_000], draws[19_800]);
        assert!((285_000..315_000).contains(&p50), "{p50}");
        assert!((780_000..1_000_000).contains(&p99), "{p99}");
    }

    #[test]
    fn the_same_seed_draws_the_same() {
        let latency = Latency::LogNormal {
            p50: 10,
            p99: 1_000,
        };
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            (0..100).map(|_| latency.draw(&mut rng)).collect::<Vec<_>>()
        };
        assert_eq!(draw(3), draw(3));
        assert_ne!(draw(3), draw(4));
    }
}
