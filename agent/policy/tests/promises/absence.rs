//! Time in which the agent did not run counts against nobody.

use crate::bench::Bench;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::Duration;
use tidegate_policy::config::{Config, Cooldown};
use tidegate_policy::effect::{Effect, Report};
use tidegate_policy::event::Event;
use tidegate_policy::ids::{GpuId, GpuSet, JobId, RequestId, SessionId};

const ENGINE: SessionId = SessionId(1);
const JOB: JobId = JobId(0);
const GPU: GpuId = GpuId(0);
const MS: u64 = 1_000_000;
/// `frozen_after` here.
const PATIENCE: u64 = 1_000 * MS;
/// After an absence of so long gates stay shut for [`HOLD`].
const LONG: u64 = 500 * MS;
const HOLD: u64 = 500 * MS;

fn bench() -> Bench {
    let mut bench = Bench::new(
        Config {
            cooldown: Cooldown::Fixed(Duration::from_nanos(10 * MS)),
            frozen_after: Duration::from_nanos(PATIENCE),
            start_hold: Duration::from_nanos(HOLD),
            ..Config::default()
        },
        1,
    );
    bench.attach_online(ENGINE);
    bench.attach_offline(SessionId(10), JOB, GpuSet::of(GPU));
    bench
}

/// The agent does not run for so long: no timer comes.
fn away(bench: &mut Bench, ns: u64) {
    bench.now += ns;
    let lasted = Duration::from_nanos(ns);
    bench.send(Event::Absent { lasted });
}

fn progress(bench: &mut Bench) {
    let at = bench.at();
    bench.send(Event::Progress {
        session: ENGINE,
        at,
    });
}

/// How often the engine was taken for frozen, and how often its word on requests was doubted.
fn blames(bench: &Bench) -> [usize; 2] {
    let count = |said| {
        bench
            .reports
            .iter()
            .filter(|report| **report == said)
            .count()
    };
    [
        count(Report::Lapsed { session: ENGINE }),
        count(Report::Doubted { session: ENGINE }),
    ]
}

fn enables(bench: &Bench) -> impl Iterator<Item = u64> + '_ {
    let enables = bench.effects.iter();
    enables
        .filter(|(_, effect)| matches!(effect, Effect::Enable { .. }))
        .map(|(at, _)| *at)
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Pass(u64),
    Away(u64),
    Progress,
    Busy(bool),
    Request(bool),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..PATIENCE / 2).prop_map(Op::Pass),
        3 => (0..20 * PATIENCE).prop_map(Op::Away),
        2 => Just(Op::Progress),
        2 => any::<bool>().prop_map(Op::Busy),
        1 => any::<bool>().prop_map(Op::Request),
    ]
}

proptest! {
    /// P-LIFECYCLE-12: nobody is taken for frozen before the agent has watched it for `frozen_after` without a sign of
    /// life, and after a long absence nothing is enabled until those who left had the time to come back.
    #[test]
    fn only_time_in_which_the_agent_ran_counts(ops in prop::collection::vec(op(), 1..60)) {
        let mut bench = bench();
        // Watched since it last made progress, and since it last worked or a first request came.
        let (mut still, mut idle) = (0_u64, 0_u64);
        let (mut is_busy, mut requests, mut latest, mut back) = (false, BTreeSet::new(), 0, None);
        for op in ops {
            let [lapsed, doubted] = blames(&bench);
            let mut by_word = false;
            match op {
                Op::Pass(ns) => {
                    bench.pass(ns);
                    (still, idle) = (still + ns, idle + ns);
                }
                Op::Away(ns) => {
                    away(&mut bench, ns);
                    if ns >= LONG {
                        back = Some(bench.now);
                    }
                }
                Op::Progress => {
                    progress(&mut bench);
                    still = 0;
                }
                Op::Busy(busy) => {
                    if busy {
                        bench.busy(ENGINE, GPU);
                    } else {
                        bench.idle(ENGINE, GPU, 4, 7);
                    }
                    if std::mem::replace(&mut is_busy, busy) != busy {
                        (still, idle) = (0, 0);
                    }
                }
                Op::Request(true) => {
                    if requests.is_empty() {
                        idle = 0;
                    }
                    latest += 1;
                    requests.insert(latest);
                    let (session, request) = (ENGINE, RequestId(latest));
                    bench.send(Event::RequestStarted { session, request });
                }
                Op::Request(false) => {
                    // One that ends without work takes its own word back.
                    by_word = true;
                    if let Some(ended) = requests.pop_first() {
                        let (session, request) = (ENGINE, RequestId(ended));
                        bench.send(Event::RequestEnded { session, request });
                    }
                }
            }
            bench.answer_all();
            let [lapses, doubts] = blames(&bench);
            prop_assert!(lapses == lapsed || still >= PATIENCE, "frozen after {} ns", still);
            prop_assert!(doubts == doubted || by_word || idle >= PATIENCE, "doubted after {} ns", idle);
            if let Some(back) = back {
                let early = enables(&bench).find(|at| (back..back + HOLD).contains(at));
                prop_assert_eq!(early, None, "enabled right after an absence that ended at {}", back);
            }
        }
        // And who is frozen is taken for it, however often the agent is away.
        bench.busy(ENGINE, GPU);
        let [lapsed, _] = blames(&bench);
        for _ in 0..40 {
            bench.pass(PATIENCE / 10);
            away(&mut bench, 3 * PATIENCE);
        }
        let [lapses, _] = blames(&bench);
        prop_assert!(lapses > lapsed || bench.node.lapsed(ENGINE), "a frozen process holds the gate for ever");
    }
}

/// P-LIFECYCLE-12: gates that were open shut, for what their online processes do now nobody knows.
#[test]
fn an_agent_that_was_away_for_long_stops_offline_until_online_was_heard() {
    let mut bench = bench();
    bench.pass(2 * HOLD);
    bench.answer_all();
    assert!(bench.held[&(SessionId(10), GPU)].1, "offline runs");
    away(&mut bench, LONG - 1);
    bench.answer_all();
    assert!(bench.held[&(SessionId(10), GPU)].1, "nobody leaves so soon");
    away(&mut bench, LONG);
    bench.answer_all();
    assert!(
        !bench.held[&(SessionId(10), GPU)].1,
        "online may have come back busy"
    );
    bench.pass(HOLD - MS);
    bench.answer_all();
    assert!(!bench.held[&(SessionId(10), GPU)].1);
    bench.pass(11 * MS);
    bench.answer_all();
    assert!(bench.held[&(SessionId(10), GPU)].1, "offline runs again");
    assert!(
        !bench
            .reports
            .iter()
            .any(|report| matches!(report, Report::Preempted { .. })),
        "nothing of online preempted it"
    );
}

/// P-LIFECYCLE-12: a preemption is as long as the agent watched it, whether its call returned before or meanwhile.
#[test]
fn a_preemption_takes_no_time_in_which_the_agent_did_not_run() {
    for (watched, lasted) in [(3 * MS, 5_000 * MS), (3 * MS, 0), (0, LONG)] {
        let mut bench = bench();
        bench.pass(2 * HOLD);
        bench.answer_all();
        bench.busy(ENGINE, GPU);
        bench.pass(watched);
        away(&mut bench, lasted);
        bench.answer_all();
        let took: Vec<u64> = bench
            .reports
            .iter()
            .filter_map(|report| match report {
                Report::Preempted { rang, returned, .. } => Some(returned.since(*rang)),
                _ => None,
            })
            .map(|took| u64::try_from(took.as_nanos()).expect("a short time"))
            .collect();
        assert_eq!(took, [watched], "away for {lasted} ns");
    }
}
