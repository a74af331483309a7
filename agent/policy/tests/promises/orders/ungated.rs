//! What a block without gates does to jobs, and that nothing of it is left when it is over.

use super::{COOLDOWN, GPUS, Op, apply, beside_busy, config, op};
use crate::bench::Bench;
use proptest::prelude::*;
use std::time::Duration;
use tidegate_policy::config::{Config, Fair, FairMode};
use tidegate_policy::effect::{Effect, Look, Report};
use tidegate_policy::event::Event;
use tidegate_policy::ids::{GpuId, GpuSet, JobId, SessionId};
use tidegate_policy::time::Instant;
use tidegate_policy::view::JobState;

const ENGINE: SessionId = SessionId(1);
const BATCH: SessionId = SessionId(10);
const JOB: JobId = JobId(0);
const GPU: GpuId = GpuId(0);
const BLOCK: u64 = 1_000 * COOLDOWN;

fn ungate(bench: &mut Bench, until: u64) {
    bench.send(Event::Ungate {
        until: Instant::from_nanos(until),
    });
}

/// Begins a block of that length, if there is one; its end.
fn begin(bench: &mut Bench, block: Option<u64>) -> Option<u64> {
    let until = bench.now + block?;
    ungate(bench, until);
    Some(until)
}

/// No turns: a job that waits for its turn waits in a block too.
fn together() -> Config {
    Config {
        fair: Fair {
            mode: FairMode::Together,
            ..Fair::default()
        },
        ..config()
    }
}

/// A job beside an engine that is busy, stopped for it.
fn gated() -> Bench {
    let mut bench = Bench::new(together(), GPUS);
    bench.attach_online(ENGINE);
    bench.attach_offline(BATCH, JOB, GpuSet::first(GPUS));
    bench.busy(ENGINE, GPU);
    bench.answer_all();
    assert!(nothing_runs(&bench));
    bench.effects.clear();
    bench.reports.clear();
    bench
}

fn nothing_runs(bench: &Bench) -> bool {
    bench.held.values().all(|(_, enabled)| !enabled)
}

fn all_runs(bench: &Bench) -> bool {
    bench.held.values().all(|(_, enabled)| *enabled)
}

fn over(bench: &Bench) -> Vec<Report> {
    let over = bench.reports.iter().copied();
    over.filter(|report| matches!(report, Report::GatedAgain { .. }))
        .collect()
}

/// P-BENCH-7: in an ungated block offline runs beside online, edges stop nothing and count as no preemption, and the
/// block ends by its time.
#[test]
fn a_job_runs_beside_online_until_the_time_is_over() {
    let mut bench = gated();
    let until = bench.now + BLOCK;
    ungate(&mut bench, until);
    bench.answer_all();
    assert!(all_runs(&bench));
    let looks = bench.effects.iter().filter_map(|(_, effect)| match effect {
        Effect::Enable { look, .. } => Some(*look),
        _ => None,
    });
    let looks: Vec<Look> = looks.collect();
    assert_eq!(
        looks,
        [Look::Unconditional; GPUS as usize],
        "busy online withholds none"
    );
    let state = |bench: &Bench| bench.node.job(JOB).map(|job| job.state);
    assert_eq!(state(&bench), Some(JobState::Running));
    bench.effects.clear();
    for _ in 0..3 {
        bench.idle(ENGINE, GPU, 1, 0);
        bench.pass(2 * COOLDOWN);
        bench.busy(ENGINE, GPU);
        bench.pass(2 * COOLDOWN);
    }
    let later = SessionId(11);
    bench.attach_offline(later, JobId(1), GpuSet::first(1));
    bench.answer_all();
    assert!(all_runs(&bench), "one that comes meanwhile too");
    let stops = |bench: &Bench| {
        let effects = bench.effects.iter();
        effects
            .filter(|(_, effect)| matches!(effect, Effect::Disable(_)))
            .count()
    };
    assert_eq!(stops(&bench), 0);
    bench.pass(until - bench.now - 1);
    assert_eq!((stops(&bench), over(&bench)), (0, vec![]));
    bench.pass(1);
    bench.answer_all();
    assert!(nothing_runs(&bench));
    let lasted = Duration::from_nanos(BLOCK);
    let expired = true;
    assert_eq!(over(&bench), [Report::GatedAgain { lasted, expired }]);
    let preempted = |report: &&Report| matches!(report, Report::Preempted { .. });
    assert_eq!(bench.reports.iter().filter(preempted).count(), 0);
    let preemptions = bench.node.job(JOB).map(|job| job.preemptions);
    assert_eq!(preemptions, Some(0), "online preempted nobody");
}

/// P-BENCH-7: what an operator holds stays held in an ungated block, and a block that is ended is over at once.
#[test]
fn pauses_and_drains_hold_and_an_end_is_an_end() {
    let mut bench = gated();
    let until = bench.now + BLOCK;
    bench.send(Event::Pause { job: Some(JOB) });
    ungate(&mut bench, until);
    bench.answer_all();
    assert!(nothing_runs(&bench), "paused");
    bench.send(Event::Drain { drained: true });
    bench.send(Event::Resume { job: None });
    bench.answer_all();
    assert!(nothing_runs(&bench), "drained");
    bench.send(Event::Drain { drained: false });
    bench.answer_all();
    assert!(all_runs(&bench));
    bench.pass(7);
    let now = bench.now;
    ungate(&mut bench, now);
    bench.answer_all();
    assert!(nothing_runs(&bench));
    let lasted = Duration::from_nanos(7);
    let expired = false;
    assert_eq!(over(&bench), [Report::GatedAgain { lasted, expired }]);
    assert_eq!(bench.node.ungated_until(), None);
}

/// An operation, or a block that lasts so long: none is over at once.
fn with_blocks(failures: bool) -> impl Strategy<Value = Vec<(Op, Option<u64>)>> {
    let block = prop::option::weighted(0.15, 0u64..4 * COOLDOWN);
    prop::collection::vec((op(failures), block), 0..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// P-BENCH-7: outside of blocks, and once orders are carried out, nothing runs beside busy online, whatever happened
    /// in them.
    #[test]
    fn outside_of_blocks_nothing_runs_beside_busy_online(ops in with_blocks(true)) {
        let mut bench = Bench::new(together(), GPUS);
        let mut until = 0;
        for (op, block) in ops {
            until = begin(&mut bench, block).unwrap_or(until);
            apply(&mut bench, op);
            prop_assert_eq!(bench.node.ungated_until().is_some(), bench.now < until);
            if bench.now >= until {
                prop_assert_eq!(beside_busy(&bench), None);
            }
        }
    }

    /// P-BENCH-7: within a block a job that nothing but its gates could hold runs, once orders are carried out.
    #[test]
    fn within_a_block_gates_hold_no_job(ops in with_blocks(false)) {
        let mut bench = Bench::new(together(), GPUS);
        let mut until = 0;
        for (op, block) in ops {
            until = begin(&mut bench, block).unwrap_or(until);
            apply(&mut bench, op);
            if bench.now >= until || bench.node.is_drained() {
                continue;
            }
            // What is withheld, for it came too late, is ordered anew a millisecond later.
            for _ in 0..4 {
                bench.answer_all();
            }
            if bench.now + 2_000_000 < until {
                bench.pass(2_000_000);
                bench.answer_all();
                for job in bench.node.jobs().filter(|job| !job.paused) {
                    let runs = matches!(job.state, JobState::Running | JobState::Unmanaged);
                    prop_assert!(runs, "{job:?}");
                }
            }
        }
    }

    /// P-BENCH-7: a block that is over as it comes changes no more than a word of a stranger.
    #[test]
    fn a_block_in_the_past_changes_nothing(ops in prop::collection::vec((op(true), any::<bool>()), 0..120)) {
        let mut benches = [(); 2].map(|()| Bench::new(config(), GPUS));
        for (op, ends) in ops {
            if ends {
                let at = benches[0].at();
                benches[0].send(Event::Ungate { until: at });
                benches[1].send(Event::Progress { session: SessionId(99), at });
            }
            benches.iter_mut().for_each(|bench| apply(bench, op));
        }
        prop_assert_eq!(&benches[0].effects, &benches[1].effects);
        let nodes = benches.map(|bench| format!("{:?}", bench.node));
        prop_assert_eq!(&nodes[0], &nodes[1]);
    }
}
