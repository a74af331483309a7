//! Random schedules of the gate: online bursts and decode gaps, forks, execs, kills and agent restarts beside offline
//! programs that use every gap.
//!
//! The checker ([`judge`]) judges from the script and the device's own history. Tests break something on purpose
//! ([`Break`]) to show that the checker detects it.

mod breaks;
mod faults;
mod judge;
mod launches;
mod online;
mod play;
mod script;

use crate::sweep;
use crate::timeline::Timeline;
pub use breaks::Break;
pub use judge::Figures;
use play::Gate;
pub use play::Played;
use tidegate_vgpu::personality::Personality;

/// One schedule that broke a promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Replays it.
    pub seed: u64,
    /// What happened, and when in virtual time.
    pub what: String,
}

/// All schedules together.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Schedules judged.
    pub schedules: u64,
    /// In order of seed; at most a few of each schedule.
    pub violations: Vec<Violation>,
    /// Sums and maxima over all schedules.
    pub figures: Figures,
    /// Real processes of which launches are all that can be held: short requests end before it shows.
    pub launches_only: bool,
    /// Jobs take turns: some must have been swapped. How many is a matter of how busy the machine is.
    pub swaps_needed: bool,
    /// Virtual time: threads must have acted on armed orders. Real processes are judged by their device alone.
    pub armed_needed: bool,
    /// Real processes: from each busy edge that met offline work to the stop of all of it, ns.
    pub stops_ns: Vec<u64>,
}

impl Totals {
    /// Median of [`Self::stops_ns`].
    #[must_use]
    pub fn stop_p50_ns(&self) -> Option<u64> {
        let mut sorted = self.stops_ns.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied()
    }

    /// Too little happened for the verdict to mean anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let few = if self.launches_only { 1 } else { 3 } * self.schedules;
        self.schedules == 0
            || self.figures.wakes < few
            || self.figures.preemptions < few
            || self.armed_needed && self.figures.fired < self.schedules / 2
            || self.swaps_needed && self.figures.swaps == 0
    }
}

/// Runs one schedule.
#[must_use]
pub fn run(seed: u64, played: Played) -> (Vec<String>, Figures) {
    Gate::schedule(seed, played, None)
}

/// Runs one schedule again and tells it on a time line.
#[must_use]
pub fn explain(seed: u64, played: Played) -> Timeline {
    let timeline = Timeline::default();
    let _ = Gate::schedule(seed, played, Some(&timeline));
    timeline
}

/// Runs `schedules` schedules with the seeds from `seed` on, on `threads` threads.
#[must_use]
pub fn run_all(seed: u64, schedules: u64, threads: usize, played: Played) -> Totals {
    let mut all = Totals {
        swaps_needed: played.jobs > 1,
        // Engines that tell of requests have stopped offline before they work.
        armed_needed: played.personality != Personality::Deaf && !played.hints,
        ..Totals::default()
    };
    let one = |seed| run(seed, played);
    let broken = sweep::judged(seed, schedules, threads, one, |own| all.figures.add(own));
    let violation = |(seed, what)| Violation { seed, what };
    all.violations = broken.into_iter().map(violation).collect();
    all.schedules = schedules;
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn played(broken: Break, personality: Personality) -> Played {
        Played {
            broken,
            personality,
            jobs: 0,
            hints: false,
        }
    }

    fn breaks(broken: Break, word: &str) {
        breaks_within(60, broken, word);
    }

    fn breaks_within(schedules: u64, broken: Break, word: &str) {
        let totals = run_all(1, schedules, 2, played(broken, Personality::Evicts));
        assert!(
            totals
                .violations
                .iter()
                .any(|violation| violation.what.contains(word)),
            "{broken:?} went unnoticed: {:?}",
            totals.violations.first()
        );
    }

    #[test]
    fn two_hundred_schedules_keep_every_promise_and_are_about_something() {
        let totals = run_all(1, 200, 2, played(Break::Nothing, Personality::Evicts));
        assert_eq!(totals.violations, []);
        assert!(!totals.is_empty(), "{totals:?}");
    }

    #[test]
    fn every_firmware_is_stopped_by_its_method() {
        for personality in Personality::ALL {
            let totals = run_all(1, 60, 2, played(Break::Nothing, personality));
            assert_eq!(totals.violations, [], "{}", personality.name());
            assert!(!totals.is_empty(), "{}: {totals:?}", personality.name());
        }
    }

    #[test]
    fn the_judge_notices_a_method_that_stops_nothing() {
        for personality in [
            Personality::Restart,
            Personality::Preempt,
            Personality::Deaf,
        ] {
            let totals = run_all(1, 60, 2, played(Break::DisableOnly, personality));
            let seen = |v: &Violation| v.what.contains("ran beside");
            assert!(totals.violations.iter().any(seen), "{}", personality.name());
        }
    }

    /// P-EQUIPMENT-14: told or not, it is the same schedule. What broke stands on the time line, among what led to it.
    #[test]
    fn a_schedule_that_broke_a_promise_is_told_on_one_time_line() {
        let played = played(Break::NoCooldown, Personality::Evicts);
        let totals = run_all(1, 20, 1, played);
        let broken = totals.violations.first().expect("it has no cooldown");
        let told = explain(broken.seed, played).to_string();
        let (at, what) = broken.what.split_once(" ms: ").expect("a time");
        let at = at.trim_start_matches("at ");
        let marked = told.lines().find(|line| line.starts_with(">>>"));
        let marked = marked.expect("a violation is marked");
        assert!(marked.ends_with(what), "{marked}: {what}");
        assert!(marked.contains(&at[..at.len() - 3]), "{marked}: {at}");
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
        let times = told.lines().skip(2).map(|line| {
            let time = line[3..].trim_start().split(' ').next().unwrap_or_default();
            time.parse::<f64>().expect("a time")
        });
        assert!(times.is_sorted(), "{told}");
    }

    #[test]
    fn a_schedule_is_its_seed() {
        for personality in Personality::ALL {
            for broken in [Break::Nothing, Break::NoCooldown] {
                let once = run(7, played(broken, personality));
                assert_eq!(run(7, played(broken, personality)), once);
            }
        }
    }

    #[test]
    fn jobs_that_take_turns_keep_every_promise_on_every_firmware() {
        for personality in Personality::ALL {
            let played = Played {
                jobs: 3,
                ..played(Break::Nothing, personality)
            };
            let totals = run_all(1, 60, 2, played);
            assert_eq!(totals.violations, [], "{}", personality.name());
            assert!(!totals.is_empty(), "{}: {totals:?}", personality.name());
        }
    }

    #[test]
    fn the_judge_notices_jobs_that_run_at_once() {
        for personality in [Personality::Evicts, Personality::Deaf] {
            let played = Played {
                jobs: 3,
                ..played(Break::NoTurns, personality)
            };
            let totals = run_all(1, 20, 2, played);
            let seen = |v: &Violation| v.what.contains("two jobs");
            assert!(totals.violations.iter().any(seen), "{}", personality.name());
        }
    }

    fn hinted(broken: Break) -> Played {
        Played {
            hints: true,
            ..played(broken, Personality::Evicts)
        }
    }

    #[test]
    fn engines_that_tell_of_requests_and_one_that_lies_keep_every_promise() {
        let totals = run_all(1, 200, 2, hinted(Break::Nothing));
        assert_eq!(totals.violations, []);
        assert!(!totals.is_empty(), "{totals:?}");
    }

    #[test]
    fn the_judge_notices_who_is_believed_for_ever() {
        let totals = run_all(1, 60, 2, hinted(Break::Believed));
        let seen = |v: &Violation| v.what.contains("left disabled");
        assert!(totals.violations.iter().any(seen), "{totals:?}");
    }

    #[test]
    fn the_judge_notices_a_word_that_comes_too_early() {
        let totals = run_all(1, 60, 2, hinted(Break::EarlyWord));
        let seen = |v: &Violation| v.what.contains("within a request");
        assert!(totals.violations.iter().any(seen), "{totals:?}");
    }

    #[test]
    fn the_judge_notices_a_missing_cooldown() {
        breaks(Break::NoCooldown, "woke");
        breaks(Break::NoCooldown, "preempted");
    }

    #[test]
    fn the_judge_notices_a_lost_edge() {
        breaks(Break::LostEdge, "ran beside");
    }

    #[test]
    fn the_judge_notices_a_missing_disable_after_a_restart() {
        breaks(Break::NoDisableOnRestart, "ran beside");
    }

    #[test]
    fn the_judge_notices_an_older_order_carried_out_after_a_newer() {
        breaks(Break::StaleOrder, "left disabled");
    }

    #[test]
    fn the_judge_notices_an_enable_without_a_last_look() {
        breaks_within(200, Break::NoLook, "woke");
    }

    #[test]
    fn the_judge_notices_an_armed_order_that_is_not_carried_out() {
        breaks(Break::FakedFire, "ran beside");
    }

    #[test]
    fn the_judge_notices_a_missing_soft_landing() {
        breaks(Break::NoLanding, "without a live agent");
    }
}
