//! Random numbers that are the same in every version, and on every machine up to the last bit of
//! its `ln` and `cos`.
//!
//! A seed printed in a report has to give the same trace years later, so the generator is written
//! out here instead of taken from a library whose streams may change between releases:
//! SplitMix64 to spread the seed, xoshiro256++ for the stream (Blackman and Vigna, public domain).

/// The SplitMix64 output function of counter `x`: one good hash of 64 bits.
///
/// Thinning keeps request `i` when this of `i` is divisible by the factor, so that which requests
/// survive depends on their place in the trace and on nothing else.
#[must_use]
pub const fn splitmix64(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A stream of random numbers: xoshiro256++.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The stream of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let word = |i: u64| splitmix64(seed.wrapping_add(GOLDEN.wrapping_mul(i)));
        Self {
            state: [word(0), word(1), word(2), word(3)],
        }
    }

    /// An independent stream for purpose `label` of the same seed: drawing more of one thing then
    /// does not change another.
    #[must_use]
    pub fn stream(seed: u64, label: u64) -> Self {
        Self::new(splitmix64(seed) ^ splitmix64(!label))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let c = c ^ a;
        let d = d ^ b;
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// Uniform in the open interval (0, 1): never a value whose logarithm is not finite.
    pub fn uniform(&mut self) -> f64 {
        ((self.bits() >> 12) as f64 + 0.5) / (1u64 << 52) as f64
    }

    /// Standard normal, by Box and Muller.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Log-normal with this median and sigma.
    pub fn lognormal(&mut self, median: f64, sigma: f64) -> f64 {
        median * (sigma * self.normal()).exp()
    }

    /// Gamma with this shape and mean `shape * scale`, by Marsaglia and Tsang; a shape below one is
    /// drawn one higher and scaled by `uniform^(1/shape)`.
    pub fn gamma(&mut self, shape: f64, scale: f64) -> f64 {
        if shape < 1.0 {
            let boost = self.uniform().powf(1.0 / shape);
            return self.gamma(shape + 1.0, scale) * boost;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 && self.uniform().ln() < 0.5 * x * x + d * (1.0 - v + v.ln()) {
                return d * v * scale;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix_is_the_published_function() {
        // First outputs of the reference implementation seeded with 0.
        assert_eq!(splitmix64(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(splitmix64(0x9e37_79b9_7f4a_7c15), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn a_seed_gives_the_same_stream_for_ever() {
        let mut rng = Rng::new(42);
        let first: Vec<u64> = (0..3).map(|_| rng.bits()).collect();
        let known = [
            15_021_278_609_987_233_951,
            5_881_210_131_331_364_753,
            18_149_643_915_985_481_100,
        ];
        assert_eq!(first, known);
    }

    #[test]
    fn gamma_has_its_mean_and_spread() {
        for shape in [0.1, 0.5, 1.0, 4.0] {
            let mut rng = Rng::new(7);
            let draws: Vec<f64> = (0..200_000)
                .map(|_| rng.gamma(shape, 1.0 / shape))
                .collect();
            let mean = draws.iter().sum::<f64>() / draws.len() as f64;
            let variance =
                draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / draws.len() as f64;
            assert!((mean - 1.0).abs() < 0.03, "shape {shape}: mean {mean}");
            assert!(
                (variance * shape - 1.0).abs() < 0.05,
                "shape {shape}: variance {variance}"
            );
        }
    }

    #[test]
    fn streams_of_one_seed_differ() {
        assert_ne!(Rng::stream(1, 0).bits(), Rng::stream(1, 1).bits());
        assert_ne!(Rng::stream(1, 0).bits(), Rng::stream(2, 0).bits());
    }
}
