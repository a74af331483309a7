//! Draws of the promises that need no property's shrinking: a failing case is a number.

use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};

/// The same seed gives the same draws.
#[derive(Clone, Debug)]
pub struct Dice(TestRng);

impl Dice {
    pub fn new(seed: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        Self(TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
    }

    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// From 0, below 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// From `low`, below `high`.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// A Poisson process' waiting time.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -(1.0 - self.unit()).ln() * mean
    }

    /// Mean 0, deviation 1.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (core::f64::consts::TAU * self.unit()).cos()
    }
}
