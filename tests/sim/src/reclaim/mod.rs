//! Random schedules of reclaims: engines whose tokens are computed from their KV pages, beside an online process that
//! starts, ends and needs memory.
//!
//! ```text
//!   online: bursts, demands, use ~> Shell ~> orders: check, move   ~> library: service, talk
//!                                     |                                   |
//!                                 issue thread                 pages and the job's log
//!                                     v                                   v
//!                                device model  ------------------> engine: steps run, tokens come out
//! ```
//!
//! A schedule draws when online needs how much, how long every message and call takes, who is stopped or killed and
//! when (at a time, or just after a certain order), when the agent dies and returns, when an order fails, and when a
//! scheduler starts over between a reclaim and its next look at the log. The checker ([`judge`]) judges from the device
//! model and the tokens. [`Break`] shows that each of its checks can fail.

mod engine;
mod fault;
mod figures;
mod judge;
mod online;
mod play;
mod running;
mod script;
mod service;
mod talk;

use crate::sweep;
use crate::timeline::Timeline;
pub use figures::{Break, Figures};
use play::Reclaim;

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
    Reclaim::schedule(seed, broken, None)
}

/// Runs one schedule again and tells it on a time line.
#[must_use]
pub fn explain(seed: u64, broken: Break) -> Timeline {
    let timeline = Timeline::default();
    let _ = Reclaim::schedule(seed, broken, Some(&timeline));
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

    #[test]
    fn two_hundred_schedules_have_no_wrong_token_no_lost_request_and_no_fault() {
        let totals = run_all(1, 200, 2, Break::Nothing);
        assert_eq!(totals.violations, []);
        assert!(!totals.is_empty(), "{totals:?}");
    }

    /// An agent that dies in the middle of a move whose process had attached anew.
    #[test]
    fn nothing_is_enabled_by_an_older_record_of_its_channel() {
        for seed in [13_000, 14_172, 14_728, 18_596] {
            assert_eq!(run(seed, Break::Nothing).0, Vec::<String>::new(), "{seed}");
        }
    }

    #[test]
    fn a_schedule_that_broke_a_promise_is_told_on_one_time_line() {
        let totals = run_all(1, 20, 1, Break::UnmapEnabled);
        let (seed, what) = totals.violations.first().expect("it is broken");
        let told = explain(*seed, Break::UnmapEnabled).to_string();
        let what = what.split_once(" ms: ").expect("a time").1;
        let marked = told.lines().find(|line| line.starts_with(">>>"));
        assert!(marked.is_some_and(|line| line.ends_with(what)), "{told}");
        for who in [
            "  schedule  ",
            "  event     ",
            "  effect    ",
            "  agent     ",
            "  device    ",
        ] {
            assert!(
                told.contains(who),
                "the time line does not name{who}: {told}"
            );
        }
    }

    #[test]
    fn a_schedule_is_its_seed() {
        assert_eq!(run(7, Break::Nothing), run(7, Break::Nothing));
    }

    #[test]
    fn orders_fail_at_once_processes_leave_and_answers_come_late() {
        let Figures {
            untaken,
            left,
            late,
            void,
            ..
        } = run_all(1, 200, 2, Break::Nothing).figures;
        for (what, times) in [
            ("an order fails at once", untaken),
            ("a process leaves before it has answered", left),
            ("an answer comes after its deadline", late),
            ("a move ends without a session", void),
        ] {
            assert!(times >= 10, "{what}: {times} times in 200 schedules");
        }
    }

    /// What the judge has to see.
    fn is_noticed(broken: Break, totals: &Totals) -> bool {
        let figures = totals.figures;
        match broken {
            Break::Nothing => false,
            Break::UnmapEnabled
            | Break::EarlyAnswer
            | Break::HiddenRefusal
            | Break::LandsMoving
            | Break::AttachesMoving
            | Break::ForgottenMover => figures.faults > 0,
            Break::LateLog | Break::NoWithhold | Break::KeepLaterBlocks | Break::KeepInFlight => {
                figures.wrong_tokens > 0
            }
            Break::StaleOrder | Break::LostOrder => !totals.violations.is_empty(),
        }
    }

    #[test]
    fn every_break_is_noticed() {
        for (name, broken) in Break::NAMES.into_iter().skip(1) {
            let seen = |nth| is_noticed(broken, &run_all(1 + 100 * nth, 100, 2, broken));
            assert!((0..20_u64).any(seen), "{name} went unnoticed");
        }
    }
}
