//! Random draws, and the units of what is drawn.

use tidegate_device::Rng;

/// A microsecond.
pub(crate) const US: u64 = 1_000;
/// A millisecond.
pub(crate) const MS: u64 = 1_000_000;

/// Draws.
#[derive(Clone, Debug)]
pub(crate) struct Dice(Rng);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(Rng::new(seed))
    }

    /// Uniform in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.0.next_u64() % (high - low + 1)
    }

    /// True in `percent` of 100.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.0.next_u64() % 100 < percent
    }

    /// Log-uniform in `low..=high`: every scale is as likely as every other.
    pub fn scale(&mut self, low: u64, high: u64) -> u64 {
        let (low, high) = (low as f64, high as f64);
        (low * (high / low).powf(self.0.unit())) as u64
    }

    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        let count = u64::try_from(all.len()).ok().filter(|count| *count > 0)?;
        all.get(usize::try_from(self.between(0, count - 1)).ok()?)
            .copied()
    }
}
