//! The learning rate of each step.

use serde::{Deserialize, Serialize};

/// How the rate falls after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// Not at all.
    Constant,
    /// In a straight line, to 0 after the last step.
    Linear,
    /// Along half a cosine, to 0 after the last step.
    Cosine,
}

/// A schedule of the rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// The highest rate.
    pub peak: f64,
    /// Steps of the warm-up, in which the rate rises in a straight line.
    pub warmup: u64,
    /// What comes after.
    pub shape: Shape,
}

impl Schedule {
    /// The rate of a step of `steps`; the first is 0.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "counts of steps are small")]
    pub fn at(&self, step: u64, steps: u64) -> f64 {
        if step < self.warmup {
            return self.peak * (step + 1) as f64 / (self.warmup + 1) as f64;
        }
        let left = steps.saturating_sub(self.warmup).max(1) as f64;
        let part = ((step - self.warmup) as f64 / left).min(1.0);
        self.peak
            * match self.shape {
                Shape::Constant => 1.0,
                Shape::Linear => 1.0 - part,
                Shape::Cosine => f64::midpoint(1.0, (std::f64::consts::PI * part).cos()),
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_rate_rises_to_its_peak_and_falls_by_its_shape() {
        let of = |shape| Schedule {
            peak: 2.0,
            warmup: 3,
            shape,
        };
        let rates = |shape| [0, 2, 3, 5, 7, 10].map(|step| of(shape).at(step, 7));
        assert_eq!(rates(Shape::Constant), [0.5, 1.5, 2.0, 2.0, 2.0, 2.0]);
        assert_eq!(rates(Shape::Linear), [0.5, 1.5, 2.0, 1.0, 0.0, 0.0]);
        let cosine = rates(Shape::Cosine);
        assert!(
            (cosine[3] - 1.0).abs() < 1e-12 && cosine[4].abs() < 1e-12,
            "{cosine:?}"
        );
    }

    proptest! {
        #[test]
        fn no_rate_is_negative_or_above_the_peak(step in 0u64..1000, steps in 0u64..1000, warmup in 0u64..1000) {
            for shape in [Shape::Constant, Shape::Linear, Shape::Cosine] {
                let rate = Schedule { peak: 1e-3, warmup, shape }.at(step, steps);
                prop_assert!((0.0..=1e-3).contains(&rate), "{shape:?}: {rate}");
            }
        }
    }
}
