//! Which samples a step learns from.
//!
//! Each epoch has every sample once, in an order that follows from the seed and the epoch. A run that goes on after it
//! was killed therefore learns from the same samples as one that was not.

use tidegate_text::rng::Rng;

/// Steps of an epoch; its last has fewer samples than the others where they do not divide.
#[must_use]
pub const fn steps_of_epoch(samples: usize, batch: usize) -> u64 {
    samples.div_ceil(batch) as u64
}

/// The samples of a step, by their places in the file. The first step is 0.
#[must_use]
#[allow(
    clippy::cast_possible_truncation,
    reason = "a place within an epoch, below the number of samples"
)]
pub fn of_step(seed: u64, samples: usize, batch: usize, step: u64) -> Vec<usize> {
    let steps = steps_of_epoch(samples, batch);
    if steps == 0 {
        return Vec::new();
    }
    let order = of_epoch(seed, samples, step / steps);
    let from = (step % steps) as usize * batch;
    order[from..(from + batch).min(samples)].to_vec()
}

/// All samples in the order of an epoch, by Fisher and Yates.
#[allow(
    clippy::cast_possible_truncation,
    reason = "below the number of samples"
)]
fn of_epoch(seed: u64, samples: usize, epoch: u64) -> Vec<usize> {
    let mut rng = Rng::stream(seed, epoch);
    let mut order: Vec<usize> = (0..samples).collect();
    for last in (1..samples).rev() {
        order.swap(last, (rng.bits() % (last as u64 + 1)) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// P-TUNE-2: each epoch has every sample once.
        #[test]
        fn an_epoch_has_every_sample_once(seed: u64, samples in 1usize..60, batch in 1usize..20, epoch in 0u64..5) {
            let steps = steps_of_epoch(samples, batch);
            let mut seen: Vec<usize> =
                (0..steps).flat_map(|step| of_step(seed, samples, batch, epoch * steps + step)).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..samples).collect::<Vec<_>>());
        }
    }

    #[test]
    fn epochs_and_seeds_have_different_orders() {
        let order = |seed, epoch| of_step(seed, 50, 50, epoch);
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), order(2, 0));
        assert_eq!(order(1, 1), order(1, 1));
    }
}
