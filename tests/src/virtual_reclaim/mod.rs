//! Random schedules of reclaims in virtual time: the policy's step, the device model, and engines
//! whose tokens are what their KV pages contain, in one process.
//!
//! ```text
//!   online: bursts, demands, use --> Node::step <--> processes: prepare, move, registrations
//!                                       |                  |
//!                                  issue thread        pages and the job's log
//!                                       v                  v
//!                                  device model  -->  engine: steps run, tokens come out
//! ```
//!
//! A schedule is its seed: when online wants how much, how long every message and call takes, who is
//! stopped or killed when, when the agent dies and comes back, when a scheduler starts over between a
//! reclaim and its next look at the log. What must hold is judged from the device model and from the
//! tokens, never from what the policy believes: nothing is unmapped while a channel of its process
//! is enabled, no token is wrong, every request ends, sums are exact at every step, and nothing
//! stays disabled or held. That each of these can fail is tested by [`Break`].

mod engine;
mod figures;
mod world;

use crate::sweep;
pub use figures::{Break, Figures};

/// All schedules together.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Schedules judged.
    pub schedules: u64,
    /// Seed and what happened, in order of seed.
    pub violations: Vec<(u64, String)>,
    /// Sums.
    pub figures: Figures,
}

impl Totals {
    /// Too little happened for the verdict to mean anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Figures {
            reclaims,
            restores,
            hit,
            ..
        } = self.figures;
        self.schedules == 0
            || [reclaims, restores, hit]
                .iter()
                .any(|sum| *sum < self.schedules)
    }
}

/// Runs one schedule.
#[must_use]
pub fn run(seed: u64, broken: Break) -> (Vec<String>, Figures) {
    world::World::new(seed, broken).run()
}

/// Runs `schedules` schedules with the seeds from `seed` on, on `threads` threads.
#[must_use]
pub fn run_all(seed: u64, schedules: u64, threads: usize, broken: Break) -> Totals {
    let mut all = Totals::default();
    for (seed, (violations, figures)) in sweep::seeds(seed, schedules, threads, |s| run(s, broken))
    {
        all.schedules += 1;
        all.figures.add(&figures);
        let violations = violations.into_iter().map(|what| (seed, what));
        all.violations.extend(violations);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_hundred_schedules_have_no_wrong_token_no_lost_request_and_no_fault() {
        let totals = run_all(1, 200, 2, Break::Nothing);
        assert_eq!(totals.violations, []);
        assert!(!totals.is_empty(), "{totals:?}");
    }

    #[test]
    fn a_schedule_is_its_seed() {
        assert_eq!(run(7, Break::Nothing), run(7, Break::Nothing));
    }

    #[test]
    fn every_break_is_noticed() {
        for (name, broken) in Break::NAMES.into_iter().skip(1) {
            let totals = run_all(1, 200, 2, broken);
            let figures = totals.figures;
            let seen = match broken {
                Break::UnmapEnabled => figures.faults,
                _ => figures.wrong_tokens,
            };
            assert!(seen > 0, "{name} went unnoticed: {figures:?}");
        }
    }
}
