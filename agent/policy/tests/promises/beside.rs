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

pub(crate) const ENGINE: SessionId = SessionId(1);
pub(crate) const TRAINER: SessionId = SessionId(10);
pub(crate) const JOB: JobId = JobId(0);
pub(crate) const GPU: GpuId = GpuId(0);
pub(crate) const MS: u64 = 1_000_000;
/// What an iteration of online takes here, and a unit, ns.
pub(crate) const ITERATION: u64 = 6 * MS;
pub(crate) const UNIT: u64 = MS / 2;

pub(crate) const LEASING: Leasing = Leasing {
    promise: Promise::Each { decode_ns: 40 * MS },
    margin_permille: 50,
    switch_ns: 40_000,
    gate_ns: MS,
    grace_ns: MS / 2,
};

pub(crate) fn config(leases: Option<Leasing>, means: Means) -> Config {
    Config {
        cooldown: Cooldown::Fixed(Duration::from_millis(10)),
        leases,
        means,
        ..Config::default()
    }
}

pub(crate) const NEXT: Iteration = Iteration {
    fingerprint: 8,
    batch: 8,
    cached: 4_000,
    prompt: 0,
};

pub(crate) fn offer(bench: &mut Bench, job: JobId, most: u32) {
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

pub(crate) fn seen(bench: &mut Bench, event: event::Event) {
    bench.send(Event::Lease(LeaseEvent::Seen { gpu: GPU, event }));
}

pub(crate) fn next(bench: &mut Bench) {
    bench.send(Event::Lease(LeaseEvent::Next {
        gpu: GPU,
        next: NEXT,
    }));
}

/// Online has progressed and says what comes next; the lease that this leads to: whose, which, and for how long, ns.
pub(crate) fn lent(bench: &mut Bench) -> Option<(JobId, LeaseId, u64)> {
    bench.effects.clear();
    let at = bench.at();
    bench.send(Event::Progress {
        session: ENGINE,
        at,
    });
    next(bench);
    bench.answer_all();
    bench.effects.iter().find_map(|(_, effect)| match effect {
        Effect::Lease {
            job,
            lease,
            granted,
            ..
        } => Some((*job, *lease, granted.as_nanos() as u64)),
        _ => None,
    })
}

/// An iteration of online passes, and the engine reports it.
pub(crate) fn beat(bench: &mut Bench) {
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
pub(crate) fn decoding(config: Config, jobs: u32) -> Bench {
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
pub(crate) fn told(bench: &Bench) -> Option<(LeaseId, u64, u64)> {
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

pub(crate) fn give_back(bench: &mut Bench, lease: LeaseId, units: u32) {
    bench.send(Event::Lease(LeaseEvent::Returned {
        gpu: GPU,
        lease,
        units,
    }));
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

/// P-TRAINER-12: a lease enables a trainer and opens its launch gate, and who is back is off when grace is over. One that has
/// its next lease sooner takes no order to the driver.
#[test]
fn a_trainer_that_is_back_is_off_when_grace_is_over() {
    let mut bench = decoding(config(Some(LEASING), Means::Channels), 1);
    assert_eq!(state(&bench), JobState::Gated);
    let enables = |look: Look| move |effect: &Effect| matches!(effect, Effect::Enable { look: own, .. } if *own == look);
    for lease in 1..20u64 {
        bench.effects.clear();
        next(&mut bench);
        let (number, granted, until) = told(&bench).expect("a lease");
        assert_eq!(number, LeaseId(lease));
        // What 38 ms leave beside an iteration of 6, two switches and what is not known yet.
        assert!((10 * MS..32 * MS).contains(&granted), "{granted}");
        assert_eq!(
            until,
            bench.now + LEASING.switch_ns + granted + LEASING.grace_ns
        );
        assert_eq!(
            count(&bench, enables(Look::Unconditional)),
            1,
            "online is busy all the time"
        );
        bench.answer_all();
        assert!(!bench.node.job(JOB).expect("there").launch_gate_closed);
        assert_eq!(state(&bench), JobState::Leased);
        // A busy edge of online is what a lease is for.
        bench.pass(granted / 2);
        bench.idle(ENGINE, GPU, 10, 1);
        bench.busy(ENGINE, GPU);
        let units = u32::try_from(granted / 2 / UNIT).expect("few");
        give_back(&mut bench, number, units);
        assert!(bench.node.job(JOB).expect("there").launch_gate_closed);
        assert_eq!(
            bench.node.job(JOB).expect("there").reason,
            Reason::Gate(GpuSet::of(GPU))
        );
        bench.pass(LEASING.grace_ns - 1);
        assert_eq!(disables(&bench), 0);
        bench.pass(1);
        assert_eq!(disables(&bench), 1, "what it left on the device is stopped");
        bench.answer_all();
        beat(&mut bench);
    }
    let view = bench.node.leases(GPU).expect("on");
    assert_eq!((view.granted, view.overruns, view.standing), (19, 0, None));
    // Iterations that are shorter than a grace leave it enabled.
    next(&mut bench);
    bench.answer_all();
    bench.effects.clear();
    for _ in 0..5 {
        let standing = bench.node.leases(GPU).expect("on").standing;
        give_back(&mut bench, standing.expect("a lease").1, 1);
        bench.pass(LEASING.grace_ns / 2);
        next(&mut bench);
    }
    assert_eq!(disables(&bench), 0, "{:?}", bench.effects);
    assert_eq!(count(&bench, enables(Look::Unconditional)), 0);
    // When online is away the gate is what lets it run, as ever.
    bench.idle(ENGINE, GPU, 10, 1);
    bench.pass(50 * MS);
    assert_eq!(state(&bench), JobState::Running);
    bench.effects.clear();
    bench.busy(ENGINE, GPU);
    assert_eq!(disables(&bench), 1, "and an edge stops it");
}

/// P-TRAINER-12: a lease never comes while the driver still carries out an order for its job.
#[test]
fn no_lease_is_given_over_an_order_that_is_under_way() {
    let mut bench = decoding(config(Some(LEASING), Means::Channels), 1);
    next(&mut bench);
    bench.answer_all();
    let (number, ..) = told(&bench).expect("a lease");
    give_back(&mut bench, number, 1);
    bench.pass(LEASING.grace_ns);
    assert_eq!(disables(&bench), 1);
    bench.effects.clear();
    next(&mut bench);
    assert_eq!(told(&bench), None);
    bench.answer_all();
    next(&mut bench);
    assert!(told(&bench).is_some());
}

/// P-TRAINER-12: a trainer that goes on overrunning is held to the gate, for longer each time, and one that is late now and
/// then is not.
#[test]
fn who_goes_on_overrunning_is_held_to_the_gate() {
    let overrun = |bench: &mut Bench| {
        for _ in 0..1_000 {
            bench.effects.clear();
            next(bench);
            bench.answer_all();
            let Some((_, _, until)) = told(bench) else {
                beat(bench);
                continue;
            };
            bench.pass(until - bench.now);
            bench.answer_all();
            return;
        }
        panic!("no lease");
    };
    let kept = |bench: &mut Bench| loop {
        bench.effects.clear();
        next(bench);
        bench.answer_all();
        let lent = told(bench);
        if let Some((lease, ..)) = lent {
            give_back(bench, lease, 1);
            bench.pass(LEASING.grace_ns);
            bench.answer_all();
        }
        beat(bench);
        if lent.is_some() {
            return;
        }
    };
    let demoted = |bench: &Bench| {
        let of = |report: &Report| match report {
            Report::LeaseDemoted { lasts, .. } => Some(*lasts),
            _ => None,
        };
        bench.reports.iter().filter_map(of).collect::<Vec<_>>()
    };
    let mut bench = decoding(config(Some(LEASING), Means::Channels), 1);
    for _ in 0..20 {
        overrun(&mut bench);
        for _ in 0..10 {
            kept(&mut bench);
        }
    }
    assert_eq!(demoted(&bench), [], "once in eleven leases");
    let mut last = Duration::ZERO;
    for nth in 0..4 {
        let before = demoted(&bench).len();
        while demoted(&bench).len() == before {
            overrun(&mut bench);
        }
        let lasts = *demoted(&bench).last().expect("told");
        assert!(nth == 0 || lasts == last * 2, "{lasts:?} after {last:?}");
        last = lasts;
        let end = bench.now + lasts.as_nanos() as u64;
        bench.effects.clear();
        while bench.now + ITERATION < end {
            next(&mut bench);
            beat(&mut bench);
            let at = bench.at();
            bench.send(Event::Progress {
                session: ENGINE,
                at,
            });
        }
        assert_eq!(told(&bench), None, "until {end}");
        bench.pass(ITERATION);
    }
    assert!(bench.node.leases(GPU).expect("on").overruns < 40);
}

/// P-TRAINER-12: a trainer that dies under its leases and comes back has no more of the GPU than one that returns.
#[test]
fn who_dies_under_a_lease_has_had_it() {
    let mut bench = decoding(config(Some(LEASING), Means::Channels), 2);
    let mut had = [0u64; 2];
    let begin = bench.now;
    while bench.now < begin + 20_000 * MS {
        if let Some((job, lease, granted)) = lent(&mut bench) {
            bench.pass(LEASING.switch_ns + granted);
            had[job.0 as usize] += granted;
            if job == JOB {
                bench.offline_gone(TRAINER);
                bench.attach_offline(TRAINER, JOB, GpuSet::of(GPU));
                bench.answer_all();
                offer(&mut bench, JOB, u32::MAX);
            } else {
                let units = u32::try_from(granted / UNIT).expect("few");
                give_back(&mut bench, lease, units);
            }
            bench.pass(LEASING.grace_ns);
            bench.answer_all();
        }
        beat(&mut bench);
    }
    let share = had[0] as f64 / (had[0] + had[1]) as f64;
    assert!((share * 2.0 - 1.0).abs() <= 0.1, "{had:?}");
}

/// P-TRAINER-12: an agent that leaves leaves no lease behind that nobody would end.
#[test]
fn no_lease_outlives_its_agent() {
    for back in [false, true] {
        let mut bench = decoding(config(Some(LEASING), Means::Channels), 1);
        next(&mut bench);
        bench.answer_all();
        let (lease, ..) = told(&bench).expect("a lease");
        if back {
            give_back(&mut bench, lease, 1);
        }
        bench.send(Event::Lease(LeaseEvent::Ends { gpu: GPU }));
        let withdrawn = count(&bench, |effect| matches!(effect, Effect::Withdraw { .. }));
        assert_eq!((withdrawn, disables(&bench)), (usize::from(!back), 1));
    }
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
        if let Some((job, lease, granted)) = lent(&mut bench) {
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
                    let standing = bench.node.leases(GPU).and_then(|view| view.standing);
                    if let Some((job, ..)) = standing.filter(|standing| standing.1 == lease) {
                        // Work may be left whatever it says.
                        let until = &mut until[job.0 as usize];
                        *until = (*until).min(bench.now + LEASING.grace_ns);
                    }
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
                prop_assert!(may || !on, "{:?} at {}", job, bench.now);
                prop_assert!(may || !channels || !open[place] || !on, "{:?} at {}", job, bench.now);
            }
        }
    }
}
