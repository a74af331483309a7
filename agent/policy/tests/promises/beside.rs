//! Leases in a node's step: a trainer beside online, and the gate under it.

use crate::bench::Bench;
use proptest::prelude::*;
use std::time::Duration;
use tidegate_policy::config::{Config, Cooldown, Means};
use tidegate_policy::effect::{Effect, Look, Report};
use tidegate_policy::event::Event;
use tidegate_policy::fair::Terms;
use tidegate_policy::ids::{GpuId, GpuSet, JobId, LeaseId, SessionId};
use tidegate_policy::lease::Leasing;
use tidegate_policy::lease::event::{self, Iteration, LeaseEvent, Unit};
use tidegate_policy::lease::record::{Key, Kind};
use tidegate_policy::lease::slo::Promise;
use tidegate_policy::view::{JobState, Reason};

const ENGINE: SessionId = SessionId(1);
const TRAINER: SessionId = SessionId(10);
const JOB: JobId = JobId(0);
const GPU: GpuId = GpuId(0);
const MS: u64 = 1_000_000;
/// What an iteration of online takes here, and a unit, ns.
const ITERATION: u64 = 6 * MS;
const UNIT: u64 = MS / 2;

const LEASING: Leasing = Leasing {
    promise: Promise::Each { decode_ns: 40 * MS },
    margin_permille: 50,
    switch_ns: 40_000,
    gate_ns: MS,
    grace_ns: MS / 2,
};

fn config(leases: Option<Leasing>, means: Means) -> Config {
    Config {
        cooldown: Cooldown::Fixed(Duration::from_millis(10)),
        leases,
        means,
        ..Config::default()
    }
}

const NEXT: Iteration = Iteration {
    fingerprint: 8,
    batch: 8,
    cached: 4_000,
    prompt: 0,
};

fn offer(bench: &mut Bench, job: JobId, most: u32) {
    let unit = Unit {
        key: Key {
            fingerprint: 1,
            kind: Kind::Backward,
        },
        most,
        claimed_ns: UNIT,
    };
    bench.send(Event::Lease(LeaseEvent::Offered {
        gpu: GPU,
        job,
        unit,
    }));
}

fn seen(bench: &mut Bench, event: event::Event) {
    bench.send(Event::Lease(LeaseEvent::Seen { gpu: GPU, event }));
}

fn next(bench: &mut Bench) {
    bench.send(Event::Lease(LeaseEvent::Next {
        gpu: GPU,
        next: NEXT,
    }));
}

/// An iteration of online passes and is told.
fn beat(bench: &mut Bench) {
    bench.pass(ITERATION);
    seen(
        bench,
        event::Event::Beat {
            iteration: NEXT,
            took_ns: ITERATION,
            interval_ns: ITERATION,
            delayed_ns: 0,
        },
    );
}

/// Online decodes, known well, and trainers offer units behind a shut gate.
fn decoding(config: Config, jobs: u32) -> Bench {
    let mut bench = Bench::new(config, 1);
    bench.attach_online(ENGINE);
    for job in 0..jobs {
        bench.attach_offline(SessionId(10 + u64::from(job)), JobId(job), GpuSet::of(GPU));
    }
    bench.pass(1_000 * MS);
    bench.answer_all();
    bench.busy(ENGINE, GPU);
    bench.answer_all();
    for job in 0..jobs {
        offer(&mut bench, JobId(job), u32::MAX);
    }
    for _ in 0..200 {
        beat(&mut bench);
    }
    bench.effects.clear();
    bench.reports.clear();
    bench
}

/// The lease that stands, as the trainer was told of it.
fn told(bench: &Bench) -> Option<(LeaseId, u64, u64)> {
    bench.effects.iter().rev().find_map(|(_, effect)| {
        let Effect::Lease {
            lease,
            granted,
            until,
            ..
        } = *effect
        else {
            return None;
        };
        Some((lease, granted.as_nanos() as u64, until.as_nanos()))
    })
}

fn count(bench: &Bench, of: impl Fn(&Effect) -> bool) -> usize {
    bench
        .effects
        .iter()
        .filter(|(_, effect)| of(effect))
        .count()
}

fn disables(bench: &Bench) -> usize {
    count(bench, |effect| matches!(effect, Effect::Disable(_)))
}

fn state(bench: &Bench) -> JobState {
    bench.node.job(JOB).expect("it is there").state
}

/// P-TRAINER-12: a trainer is let in once, and from then on a lease takes no order to the driver.
#[test]
fn a_trainer_is_let_in_once_and_leased_by_its_launch_gate() {
    let mut bench = decoding(config(Some(LEASING), Means::Channels), 1);
    assert_eq!(state(&bench), JobState::Gated);
    next(&mut bench);
    let enables = |look: Look| move |effect: &Effect| matches!(effect, Effect::Enable { look: own, .. } if *own == look);
    assert_eq!(
        count(&bench, enables(Look::Unconditional)),
        1,
        "online is busy all the time"
    );
    assert_eq!(told(&bench), None, "its channels are not on yet");
    assert!(bench.node.job(JOB).expect("there").launch_gate_closed);
    bench.answer_all();
    bench.effects.clear();
    for lease in 1..20u64 {
        next(&mut bench);
        let (number, granted, until) = told(&bench).expect("a lease");
        assert_eq!(number, LeaseId(lease));
        // What 38 ms leave beside an iteration of 6, two switches and what is not known yet.
        assert!((10 * MS..32 * MS).contains(&granted), "{granted}");
        assert_eq!(
            until,
            bench.now + LEASING.switch_ns + granted + LEASING.grace_ns
        );
        let opened = |effect: &Effect| matches!(effect, Effect::OpenLaunchGate { .. });
        let order: Vec<_> = bench.effects.iter().map(|(_, effect)| *effect).collect();
        let place = |of: &dyn Fn(&Effect) -> bool| order.iter().rposition(of).expect("told");
        let lent = place(&|effect| matches!(effect, Effect::Lease { .. }));
        assert!(
            lent < place(&opened),
            "the words before the gate: {order:?}"
        );
        assert_eq!(state(&bench), JobState::Leased);
        // A busy edge of online is what a lease is for.
        bench.pass(granted / 2);
        bench.idle(ENGINE, GPU, 10, 1);
        bench.busy(ENGINE, GPU);
        let units = u32::try_from(granted / 2 / UNIT).expect("few");
        bench.send(Event::Lease(LeaseEvent::Returned {
            gpu: GPU,
            lease: number,
            units,
        }));
        assert!(bench.node.job(JOB).expect("there").launch_gate_closed);
        assert_eq!(
            bench.node.job(JOB).expect("there").reason,
            Reason::Gate(GpuSet::of(GPU))
        );
        beat(&mut bench);
    }
    assert_eq!(disables(&bench), 0, "{:?}", bench.effects);
    assert_eq!(
        count(&bench, |effect| matches!(effect, Effect::Enable { .. })),
        0
    );
    let view = bench.node.leases(GPU).expect("on");
    assert_eq!((view.granted, view.overruns, view.standing), (19, 0, None));
    // When online is away the gate is what lets it run, as ever.
    bench.idle(ENGINE, GPU, 10, 1);
    bench.pass(50 * MS);
    assert_eq!(state(&bench), JobState::Running);
    bench.busy(ENGINE, GPU);
    assert_eq!(disables(&bench), 1, "and an edge stops it");
}

/// P-TRAINER-12: what is not back when its lease is over is disabled, told of, and gets less.
#[test]
fn an_overrun_is_disabled_and_told_of() {
    for means in [Means::Channels, Means::LaunchGate] {
        let mut bench = decoding(config(Some(LEASING), means), 1);
        next(&mut bench);
        bench.answer_all();
        if told(&bench).is_none() {
            next(&mut bench);
        }
        let (lease, granted, until) = told(&bench).expect("a lease");
        bench.answer_all();
        bench.pass(until - bench.now - 1);
        assert_eq!(disables(&bench), 0);
        bench.pass(1);
        assert_eq!(disables(&bench), 1);
        let overrun = bench.reports.iter().find_map(|report| match report {
            Report::LeaseOverrun {
                lease,
                used,
                granted,
                ..
            } => Some((*lease, *used, *granted)),
            _ => None,
        });
        let (which, used, of) = overrun.expect("told");
        assert_eq!((which, of), (lease, Duration::from_nanos(granted)));
        assert_eq!(used, Duration::from_nanos(granted + LEASING.grace_ns));
        bench.answer_all();
        assert_eq!(state(&bench), JobState::Gated);
        assert_eq!(bench.node.leases(GPU).expect("on").overruns, 1);
        // An answer to it that comes late changes nothing.
        bench.send(Event::Lease(LeaseEvent::Returned {
            gpu: GPU,
            lease,
            units: 1,
        }));
        assert_eq!(state(&bench), JobState::Gated);
        bench.effects.clear();
        // Until online has made the token that is late nothing runs before it.
        next(&mut bench);
        bench.answer_all();
        assert_eq!(told(&bench), None);
        beat(&mut bench);
        next(&mut bench);
        bench.answer_all();
        if told(&bench).is_none() {
            next(&mut bench);
        }
        let (_, after, _) = told(&bench).expect("a lease");
        assert!(after < granted, "{after} of {granted}");
    }
}

/// P-TRAINER-12: a request, an operator and other settings end a lease.
#[test]
fn a_lease_is_withdrawn() {
    let leased = || {
        let mut bench = decoding(config(Some(LEASING), Means::Channels), 1);
        next(&mut bench);
        bench.answer_all();
        next(&mut bench);
        let lease = told(&bench).expect("a lease");
        (bench, lease)
    };
    let withdrawn =
        |bench: &Bench| count(bench, |effect| matches!(effect, Effect::Withdraw { .. }));
    let (mut bench, (lease, ..)) = leased();
    seen(&mut bench, event::Event::Arrived { request: 9 });
    seen(&mut bench, event::Event::Arrived { request: 10 });
    assert_eq!(withdrawn(&bench), 1, "once");
    bench.pass(UNIT + LEASING.grace_ns - 1);
    assert_eq!(disables(&bench), 0, "the unit that runs may end");
    bench.pass(1);
    assert_eq!(disables(&bench), 1);
    bench.send(Event::Lease(LeaseEvent::Returned {
        gpu: GPU,
        lease,
        units: 0,
    }));

    let (mut bench, _) = leased();
    bench.send(Event::Pause { job: Some(JOB) });
    assert_eq!((withdrawn(&bench), disables(&bench)), (1, 1));

    let (mut bench, _) = leased();
    bench.configure(config(None, Means::Channels));
    assert_eq!((withdrawn(&bench), disables(&bench)), (1, 1));
    assert_eq!(bench.node.leases(GPU), None);

    let (mut bench, _) = leased();
    bench.offline_gone(TRAINER);
    assert_eq!(withdrawn(&bench), 0, "there is nobody to tell");
    next(&mut bench);
    assert_eq!(bench.node.leases(GPU).expect("on").standing, None);
}

/// P-TRAINER-12: a lease is for one GPU, for a trainer that asks and that nobody holds.
#[test]
fn who_does_not_ask_gets_none() {
    let mut bench = decoding(config(Some(LEASING), Means::Channels), 1);
    offer(&mut bench, JOB, 0);
    for _ in 0..5 {
        next(&mut bench);
        bench.answer_all();
        beat(&mut bench);
    }
    assert_eq!((told(&bench), state(&bench)), (None, JobState::Gated));

    for means in [Means::Channels, Means::LaunchGate] {
        let mut bench = decoding(config(Some(LEASING), means), 1);
        bench.send(Event::Pause { job: Some(JOB) });
        for _ in 0..5 {
            bench.answer_all();
            next(&mut bench);
            beat(&mut bench);
        }
        assert_eq!(told(&bench), None, "it is paused: {means:?}");
    }

    let mut bench = Bench::new(config(Some(LEASING), Means::Channels), 2);
    bench.attach_online(ENGINE);
    bench.attach_offline(TRAINER, JOB, GpuSet::first(2));
    bench.busy(ENGINE, GPU);
    bench.answer_all();
    offer(&mut bench, JOB, u32::MAX);
    for _ in 0..100 {
        beat(&mut bench);
        next(&mut bench);
        bench.answer_all();
    }
    assert_eq!(told(&bench), None, "it uses two GPUs");
}

/// P-TRAINER-12: two trainers have leases by their weights.
#[test]
fn leases_go_by_weight() {
    let mut bench = decoding(config(Some(LEASING), Means::Channels), 2);
    for (job, weight) in [(0, 2), (1, 1)] {
        let terms = Terms {
            weight,
            ..Terms::default()
        };
        bench.send(Event::Terms {
            job: JobId(job),
            terms,
        });
        offer(&mut bench, JobId(job), u32::MAX);
    }
    let mut had = [0u64; 2];
    let begin = bench.now;
    while bench.now < begin + 60_000 * MS {
        bench.effects.clear();
        let at = bench.at();
        bench.send(Event::Progress {
            session: ENGINE,
            at,
        });
        next(&mut bench);
        bench.answer_all();
        let lent = bench.effects.iter().find_map(|(_, effect)| match effect {
            Effect::Lease {
                job,
                lease,
                granted,
                ..
            } => Some((*job, *lease, granted.as_nanos() as u64)),
            _ => None,
        });
        if let Some((job, lease, granted)) = lent {
            bench.pass(LEASING.switch_ns + granted);
            had[job.0 as usize] += granted;
            let units = u32::try_from(granted / UNIT).expect("few");
            bench.send(Event::Lease(LeaseEvent::Returned {
                gpu: GPU,
                lease,
                units,
            }));
        }
        beat(&mut bench);
    }
    let share = had[0] as f64 / (had[0] + had[1]) as f64;
    println!("{had:?} ns of leases, weights 2 : 1: {share:.3}");
    assert!((share * 3.0 / 2.0 - 1.0).abs() <= 0.05, "{had:?}");
}

proptest! {
    /// P-TRAINER-12: whatever comes in whatever order, nothing of a trainer is let run past its lease: its launches
    /// are open and its channels on only while a lease stands or its gate is open.
    #[test]
    fn nothing_runs_past_its_lease(
        ops in prop::collection::vec((0u8..12, 0u64..3, 0u64..9_000), 1..300), channels: bool,
    ) {
        let means = if channels { Means::Channels } else { Means::LaunchGate };
        let mut bench = decoding(config(Some(LEASING), means), 2);
        bench.effects.clear();
        let (mut open, mut until) = ([true; 2], [0u64; 2]);
        let mut read = 0;
        for (op, of, after) in ops {
            bench.pass(after * 1_000);
            let job = JobId(u32::from(op % 2 == 0));
            match op {
                0 | 1 => next(&mut bench),
                2 | 3 => beat(&mut bench),
                4 => {
                    let lease = told(&bench).map_or(LeaseId(of), |told| told.0);
                    bench.send(Event::Lease(LeaseEvent::Returned { gpu: GPU, lease, units: 1 }));
                }
                5 => seen(&mut bench, event::Event::Arrived { request: of }),
                6 => bench.busy(ENGINE, GPU),
                7 => bench.idle(ENGINE, GPU, 10, 1),
                8 => bench.answer(GPU, of == 0),
                9 => bench.send(Event::Pause { job: Some(job) }),
                10 => bench.send(Event::Resume { job: Some(job) }),
                _ => offer(&mut bench, job, u32::try_from(of).expect("few")),
            }
            while read < bench.effects.len() {
                let (_, effect) = bench.effects[read];
                read += 1;
                match effect {
                    Effect::Lease { job, until: end, .. } => until[job.0 as usize] = end.as_nanos(),
                    Effect::OpenLaunchGate { job } => open[job.0 as usize] = true,
                    Effect::CloseLaunchGate { job } | Effect::HoldLaunchGate { job } => {
                        open[job.0 as usize] = false;
                    }
                    _ => {}
                }
            }
            for job in bench.node.jobs() {
                let place = job.job.0 as usize;
                let on = bench.held.values().any(|held| held.0 == job.job && held.1);
                let under_way = bench.issued.iter().flatten().any(|issued| issued.order.job == job.job);
                // What the driver refused is put right by an order that enables first.
                let free = bench.node.standing().open.contains(GPU) || job.state == JobState::Unmanaged
                    || job.state == JobState::Unknown || job.state == JobState::Enabling;
                let may = free || bench.now < until[place] || under_way;
                prop_assert!(may || !on || (channels && !open[place]), "{:?} at {}", job, bench.now);
            }
        }
    }
}
