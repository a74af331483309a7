//! What an engine says of its requests: what it is worth, and how long it is believed.

use crate::bench::Bench;
use proptest::prelude::*;
use std::time::Duration;
use tidegate_policy::config::Config;
use tidegate_policy::effect::{Effect, Report};
use tidegate_policy::event::Event;
use tidegate_policy::ids::{GpuId, GpuSet, JobId, RequestId, SessionId};
use tidegate_policy::view::GateState;

const ENGINE: SessionId = SessionId(1);
const JOB: JobId = JobId(0);
const GPU: GpuId = GpuId(0);
const MS: u64 = 1_000_000;
/// `frozen_after` here.
const PATIENCE: u64 = 5_000 * MS;

/// An engine that has worked once, beside a job that runs.
fn open() -> Bench {
    let mut bench = Bench::new(
        Config {
            frozen_after: Duration::from_nanos(PATIENCE),
            ..Config::default()
        },
        1,
    );
    bench.attach_online(ENGINE);
    bench.attach_offline(SessionId(10), JOB, GpuSet::of(GPU));
    bench.busy(ENGINE, GPU);
    bench.pass(5 * MS);
    bench.idle(ENGINE, GPU, 4, 7);
    bench.pass(2_000 * MS);
    bench.answer_all();
    assert_eq!(gate(&bench), GateState::Open);
    bench
}

fn gate(bench: &Bench) -> GateState {
    let view = bench.node.gpu(GPU, bench.at());
    view.expect("the only GPU").gate
}

fn disables(bench: &Bench) -> usize {
    let orders = bench.effects.iter();
    orders
        .filter(|(_, effect)| matches!(effect, Effect::Disable(_)))
        .count()
}

fn doubts(bench: &Bench) -> usize {
    let said = Report::Doubted { session: ENGINE };
    bench.reports.iter().filter(|r| **r == said).count()
}

fn started(n: u64) -> Event<'static> {
    Event::RequestStarted {
        session: ENGINE,
        request: RequestId(n),
    }
}

fn ended(n: u64) -> Event<'static> {
    Event::RequestEnded {
        session: ENGINE,
        request: RequestId(n),
    }
}

/// P-GATE-18: offline is off the GPU before the first kernel of a request, if its engine says that one came.
#[test]
fn a_request_stops_offline_before_its_first_kernel() {
    let mut bench = open();
    let before = disables(&bench);
    bench.send(started(1));
    assert_eq!(disables(&bench), before + 1, "no kernel yet");
    bench.answer_all();
    assert!(bench.held.values().all(|held| !held.1));
    bench.pass(3 * MS);
    for _ in 0..20 {
        bench.busy(ENGINE, GPU);
        bench.pass(20 * MS);
        bench.idle(ENGINE, GPU, 4, 7);
        bench.pass(900 * MS);
    }
    assert_eq!(disables(&bench), before + 1, "nor in any of its gaps");
    bench.send(ended(1));
    assert_eq!(gate(&bench), GateState::Open, "and no cooldown after it");
    let units = bench.node.gpu(GPU, bench.at()).expect("a GPU").per_unit;
    assert_eq!((units.units, units.max), (1, 1));
}

/// P-GATE-18: what a preemption costs users begins with their first kernel, not with the word that one will come.
#[test]
fn a_preemption_costs_what_a_kernel_waits_for_it() {
    // When the kernel comes and when offline is off, after the word.
    for (kernel, off) in [(None, 3), (Some(5), 3), (Some(1), 3), (Some(3), 3)] {
        let mut bench = open();
        let said = bench.now;
        bench.send(started(1));
        let mut stopped = false;
        for ms in 1..=6u64 {
            bench.pass(said + ms * MS - bench.now);
            if kernel == Some(ms) {
                bench.busy(ENGINE, GPU);
            }
            if ms == off {
                bench.answer_all();
                stopped = true;
            }
        }
        assert!(stopped);
        let waited = kernel.map_or(0, |kernel: u64| off.saturating_sub(kernel));
        let budget = bench.node.gpu(GPU, bench.at()).expect("a GPU").budget;
        assert_eq!(
            budget.preempted,
            Duration::from_millis(waited),
            "a kernel at {kernel:?} ms, offline off at {off}"
        );
    }
    // Without a word the first kernel is what rings.
    let mut bench = open();
    bench.busy(ENGINE, GPU);
    bench.pass(2 * MS);
    bench.answer_all();
    let budget = bench.node.gpu(GPU, bench.at()).expect("a GPU").budget;
    assert_eq!(budget.preempted, Duration::from_millis(2));
}

/// P-GATE-18: a request that never works holds offline once and for a bounded time.
#[test]
fn who_only_says_so_is_doubted_until_it_works() {
    let mut bench = open();
    bench.send(started(1));
    bench.pass(PATIENCE - 1);
    assert_eq!((gate(&bench), doubts(&bench)), (GateState::Cooling, 0));
    bench.pass(1);
    assert_eq!((gate(&bench), doubts(&bench)), (GateState::Open, 1));
    let before = disables(&bench);
    for n in 2..50 {
        bench.send(ended(n - 1));
        bench.send(started(n));
        bench.answer_all();
        bench.pass(100 * MS);
        assert_eq!(gate(&bench), GateState::Open);
    }
    assert_eq!(disables(&bench), before, "nobody believes it");
    // It works: it is believed again, and at once.
    bench.busy(ENGINE, GPU);
    bench.idle(ENGINE, GPU, 4, 7);
    bench.pass(PATIENCE / 2);
    assert_eq!(gate(&bench), GateState::Cooling);
}

/// P-GATE-18: a request of which the agent hears late, when its work is done, is none that never worked.
#[test]
fn a_request_that_is_seen_together_with_its_work_has_worked() {
    let mut bench = open();
    bench.busy(ENGINE, GPU);
    bench.idle(ENGINE, GPU, 4, 7);
    bench.send(started(1));
    bench.answer_all();
    bench.pass(2_000 * MS);
    assert_eq!(gate(&bench), GateState::Cooling, "it is in flight");
    bench.send(ended(1));
    bench.pass(2_000 * MS);
    bench.answer_all();
    assert_eq!(gate(&bench), GateState::Open);
    let before = disables(&bench);
    bench.send(started(2));
    assert_eq!(disables(&bench), before + 1, "its word is good");
}

/// P-GATE-18: an engine that said that it will say when a request comes needs no cooldown before the first.
#[test]
fn who_says_that_none_is_in_flight_has_said_something() {
    let mut bench = Bench::new(Config::default(), 1);
    bench.attach_online(ENGINE);
    bench.attach_offline(SessionId(10), JOB, GpuSet::of(GPU));
    bench.pass(600 * MS);
    bench.busy(ENGINE, GPU);
    bench.send(ended(0));
    bench.pass(5 * MS);
    bench.idle(ENGINE, GPU, 4, 7);
    assert_eq!(gate(&bench), GateState::Open);
}

/// P-GATE-18: an engine that says that none is in flight while it works has its gaps cooled as any, until its word is
/// good again.
#[test]
fn work_that_was_not_announced_needs_a_cooldown() {
    let mut bench = open();
    bench.send(ended(0));
    let before = disables(&bench);
    for n in 0..8 {
        bench.busy(ENGINE, GPU);
        bench.answer_all();
        bench.pass(10 * MS);
        bench.idle(ENGINE, GPU, 4, 7);
        bench.pass(5 * MS);
        assert_eq!(gate(&bench), GateState::Cooling, "gap {n} of a decode");
    }
    assert_eq!(disables(&bench), before + 1, "once for them all");
    bench.pass(2_000 * MS);
    bench.answer_all();
    assert_eq!(gate(&bench), GateState::Open);
    bench.send(started(1));
    bench.busy(ENGINE, GPU);
    bench.answer_all();
    bench.pass(10 * MS);
    bench.idle(ENGINE, GPU, 4, 7);
    bench.send(ended(1));
    assert_eq!(gate(&bench), GateState::Open, "no cooldown after a request");
}

#[derive(Clone, Debug)]
enum Does {
    Starts,
    Ends,
    Works(u64),
    Waits(u64),
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// P-GATE-18: whatever an engine says, offline has the GPU once it has not worked for `frozen_after`; and is
    /// off it while a request of an engine that worked since is in flight.
    #[test]
    fn no_word_holds_the_gate_for_longer_than_work_gives_it(
        does in prop::collection::vec(
            prop_oneof![
                Just(Does::Starts),
                Just(Does::Ends),
                (0..3_000u64).prop_map(|ms| Does::Works(ms * MS)),
                (0..4_000u64).prop_map(|ms| Does::Waits(ms * MS)),
            ],
            1..40,
        ),
    ) {
        let mut bench = open();
        let (mut requests, mut next) = (Vec::new(), 0);
        // When it last worked; when the first request came after that, with none in flight.
        let (mut worked, mut said) = (bench.now, None);
        let mut stopped = disables(&bench);
        // A flight in which it has worked, since when.
        let mut true_flight = false;
        for what in does {
            match what {
                Does::Starts => {
                    next += 1;
                    if requests.is_empty() {
                        said = said.or(Some(bench.now));
                    }
                    requests.push(next);
                    bench.send(started(next));
                }
                Does::Ends => {
                    if let Some(request) = requests.pop() {
                        bench.send(ended(request));
                    }
                }
                Does::Works(ns) => {
                    bench.busy(ENGINE, GPU);
                    bench.answer_all();
                    bench.pass(ns);
                    bench.idle(ENGINE, GPU, 4, 7);
                    // What comes at the same instant would be taken for the work's own request.
                    bench.pass(1);
                    (worked, said) = (bench.now, None);
                    stopped = disables(&bench);
                    true_flight = !requests.is_empty();
                }
                Does::Waits(ns) => bench.pass(ns),
            }
            bench.answer_all();
            true_flight &= !requests.is_empty();
            if true_flight && bench.now < worked + PATIENCE {
                prop_assert_ne!(gate(&bench), GateState::Open, "a request is being served");
            }
            // Before the first request its gate cools as any, for 250 ms at the most.
            let quiet = said.unwrap_or(worked).max(worked);
            if bench.now >= quiet + PATIENCE {
                prop_assert_eq!(gate(&bench), GateState::Open, "idle since {} ms", (bench.now - quiet) / MS);
            }
            prop_assert!(disables(&bench) <= stopped + 1, "stopped twice for no work");
        }
    }
}
