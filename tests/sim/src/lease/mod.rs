//! Random schedules of leases: bursts and prompts in mid-unit, beside trainers that obey, are late, lie, die and
//! freeze, and agents that die between a lease and its end.
//!
//! The checker ([`judge`]) judges from the script and the device's own history. The same requests without trainers show
//! what the engine keeps alone. Tests break something on purpose ([`Break`]) to show that the checker detects it.

mod judge;
mod online;
mod play;
mod script;
mod trainer;
mod words;

use crate::sweep;
use crate::timeline::Timeline;
pub use judge::Figures;
pub use words::Break;
use words::Leases;

/// All schedules together.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Schedules judged.
    pub schedules: u64,
    /// With their seeds, in order of seed; at most a few of each schedule.
    pub violations: Vec<(u64, String)>,
    /// Sums over all schedules.
    pub figures: Figures,
}

impl Totals {
    /// Too little happened for the verdict to mean anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.schedules == 0
            || self.figures.leases < 10 * self.schedules
            || self.figures.overruns < self.schedules / 4
    }

    /// Mean error of the agent's predictions of iterations, as part of what they took.
    #[must_use]
    pub fn prediction_error(&self) -> f64 {
        self.figures.errors.0 / self.figures.errors.1.max(1) as f64
    }
}

/// Runs one schedule.
#[must_use]
pub fn run(seed: u64, broken: Break) -> (Vec<String>, Figures) {
    Leases::schedule(seed, broken, None)
}

/// Runs one schedule again and tells it on a time line.
#[must_use]
pub fn explain(seed: u64, broken: Break) -> Timeline {
    let timeline = Timeline::default();
    let _ = Leases::schedule(seed, broken, Some(&timeline));
    timeline
}

/// Runs `schedules` schedules with the seeds from `seed` on, on `threads` threads.
#[must_use]
pub fn run_all(seed: u64, schedules: u64, threads: usize, broken: Break) -> Totals {
    let mut figures = Figures::default();
    let one = |seed| run(seed, broken);
    let violations = sweep::judged(seed, schedules, threads, one, |own| figures.add(own));
    Totals {
        schedules,
        violations,
        figures,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaks(broken: Break, word: &str) {
        let totals = run_all(1, 40, 2, broken);
        let seen = |own: &(u64, String)| own.1.contains(word);
        assert!(totals.violations.iter().any(seen), "{broken:?}: {totals:?}");
    }

    /// P-LEASE-5: nobody trains without leave, and online keeps what it keeps alone.
    #[test]
    fn sixty_schedules_keep_every_promise_and_are_about_something() {
        let totals = run_all(1, 60, 2, Break::Nothing);
        assert_eq!(totals.violations, []);
        assert!(!totals.is_empty(), "{totals:?}");
    }

    #[test]
    fn a_schedule_is_its_seed() {
        for seed in 1..4 {
            assert_eq!(run(seed, Break::Nothing), run(seed, Break::Nothing));
        }
    }

    #[test]
    fn the_judge_notices_leases_that_nobody_ends() {
        breaks(Break::NoEnd, "without leave");
    }

    #[test]
    fn the_judge_notices_prompts_that_end_no_lease() {
        breaks(Break::Deaf, "without leave");
    }
}
