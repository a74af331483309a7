//! What the agent says about leases: why a trainer has none, which unit never fits, and which promise online alone does not
//! keep.

use crate::beside::{
    ENGINE, GPU, ITERATION, JOB, LEASING, MS, NEXT, UNIT, beat, config, decoding, give_back, next,
    seen, told,
};
use proptest::prelude::*;
use std::time::Duration;
use tidegate_policy::config::Means;
use tidegate_policy::effect::Report;
use tidegate_policy::event::Event;
use tidegate_policy::lease::event::{self, Iteration, LeaseEvent, Unit};
use tidegate_policy::lease::record::{Key, Kind};
use tidegate_policy::lease::slo::Promise;
use tidegate_policy::lease::{Leaser, Leasing};
use tidegate_policy::lending::{Offers, Service};
use tidegate_policy::no_lease::NoLease;

/// Why the trainer has no lease, all being well with its process and with online.
fn why(bench: &crate::bench::Bench) -> Option<NoLease> {
    let facts = (Offers::Units, Service::Reports);
    bench.node.no_lease((GPU, JOB), facts, bench.at())
}

/// Online is not frozen.
fn progressed(bench: &mut crate::bench::Bench) {
    let at = bench.at();
    bench.send(Event::Progress {
        session: ENGINE,
        at,
    });
}

/// A micro-batch.
const WHOLE: Duration = Duration::from_millis(380);

fn channels(leases: Option<Leasing>) -> tidegate_policy::config::Config {
    config(leases, Means::Channels)
}

fn unit_of(ns: u64) -> Unit {
    Unit {
        key: Key {
            fingerprint: 2,
            kind: Kind::Forward,
        },
        most: 8,
        claimed_ns: ns,
    }
}

/// P-LEASE-7: a trainer without a lease is told the reason that the decision was made for.
#[test]
fn the_reason_is_the_one_by_which_it_was_decided() {
    let mut bench = decoding(channels(Some(LEASING)), 1);
    next(&mut bench);
    bench.answer_all();
    assert_eq!(why(&bench), None, "it has one");
    let (lease, ..) = told(&bench).expect("a lease");
    give_back(&mut bench, lease, 1);
    assert_eq!(why(&bench), None, "it has just had one");
    bench.pass(LEASING.grace_ns);
    bench.answer_all();
    beat(&mut bench);
    assert_eq!(why(&bench), Some(NoLease::Idle), "online announces nothing");
    bench.send(Event::Lease(LeaseEvent::Next {
        gpu: GPU,
        next: Iteration { prompt: 64, ..NEXT },
    }));
    assert_eq!(why(&bench), Some(NoLease::Prompt));
    bench.send(Event::Lease(LeaseEvent::Next {
        gpu: GPU,
        next: Iteration {
            fingerprint: 99,
            batch: 0,
            ..NEXT
        },
    }));
    assert_eq!(why(&bench), Some(NoLease::Learning(0, 8)));
    let counts: Vec<_> = bench.node.lease_refusals(GPU).collect();
    assert_eq!(counts, [("prompt", 1), ("learning", 1)]);
    bench.pass(2_000 * MS);
    assert_eq!(why(&bench), Some(NoLease::Idle), "that was long ago");
    for (facts, reason) in [
        ((Offers::OldLibrary, Service::Reports), NoLease::OldTrainer),
        (
            (Offers::Pieces(WHOLE), Service::Reports),
            NoLease::MicroBatches(WHOLE, Duration::ZERO),
        ),
        ((Offers::Nothing, Service::Reports), NoLease::NoUnits),
        ((Offers::Units, Service::Several(2)), NoLease::Services(2)),
        ((Offers::Units, Service::OldLibrary), NoLease::OldService),
        ((Offers::Units, Service::NoPage), NoLease::NoPage),
    ] {
        let why = bench.node.no_lease((GPU, JOB), facts, bench.at());
        assert_eq!(why, Some(reason), "{facts:?}");
    }
    bench.send(Event::Pause { job: Some(JOB) });
    let paused = NoLease::Held(tidegate_policy::view::Reason::Paused);
    assert_eq!(why(&bench), Some(paused));
    let off = decoding(channels(None), 1);
    assert_eq!(why(&off), Some(NoLease::Off));
}

/// P-LEASE-7: each lease is kept with what was expected, what was used, and what online took then.
#[test]
fn what_became_of_a_lease_stands_beside_what_was_expected() {
    let mut bench = decoding(channels(Some(LEASING)), 1);
    for lease in 1..=20u32 {
        bench.effects.clear();
        next(&mut bench);
        bench.answer_all();
        let (number, granted, until) = told(&bench).expect("a lease");
        if lease % 8 == 0 {
            bench.pass(until - bench.now);
        } else {
            bench.pass(LEASING.switch_ns + 3 * UNIT);
            give_back(&mut bench, number, 3);
            bench.pass(LEASING.grace_ns);
        }
        bench.answer_all();
        beat(&mut bench);
        let last = *bench.node.lease_decisions(GPU).last().expect("it is kept");
        assert_eq!((last.job, last.lease), (JOB, number));
        assert_eq!(last.granted, Duration::from_nanos(granted));
        assert_eq!(last.took, Some(Duration::from_nanos(ITERATION)));
        assert!(last.outlook.slack >= last.granted);
        let predicted = last.outlook.predicted.expect("known").as_nanos() as u64;
        assert!(
            predicted.abs_diff(ITERATION) < ITERATION / 50,
            "{predicted}"
        );
        let (ran, used) = last.ran.expect("it is over");
        if lease % 8 == 0 {
            assert!(last.overran && used > last.granted && ran == 0);
        } else {
            assert_eq!((ran, used), (3, Duration::from_nanos(3 * UNIT)));
        }
        // What it is taken to need grows with an overrun.
        while lease % 8 == 0 && why(&bench).is_some() && bench.now < 60_000 * MS {
            bench.effects.clear();
            next(&mut bench);
            bench.answer_all();
            if let Some((number, ..)) = told(&bench) {
                give_back(&mut bench, number, 1);
                bench.pass(LEASING.grace_ns);
                bench.answer_all();
                beat(&mut bench);
                break;
            }
            beat(&mut bench);
        }
    }
    assert_eq!(bench.node.lease_decisions(GPU).count(), 16);
    let view = bench.node.leases(GPU).expect("on");
    let trainer = bench
        .node
        .lease_trainer(GPU, JOB, bench.at())
        .expect("known");
    assert_eq!((trainer.leases, trainer.units), (view.granted, view.units));
    assert_eq!(view.overruns, 2);
}

/// P-LEASE-8: where online alone needs longer for a token than it promised, nothing is lent, both figures are told once, and
/// leases go on once it keeps its promise again.
#[test]
fn a_promise_that_online_alone_does_not_keep_is_told_with_both_figures() {
    let mut bench = decoding(channels(Some(LEASING)), 1);
    let view = bench.node.leases(GPU).expect("on");
    assert_eq!(view.alone, Duration::from_nanos(ITERATION));
    assert!(!view.tpot_too_low);
    let low = Leasing {
        promise: Promise::Each { decode_ns: 5 * MS },
        ..LEASING
    };
    bench.configure(channels(Some(low)));
    for _ in 0..50 {
        beat(&mut bench);
        next(&mut bench);
        bench.answer_all();
    }
    assert_eq!(told(&bench), None);
    let reports = |bench: &crate::bench::Bench| {
        let of = |report: &Report| match report {
            Report::LeaseTpotTooLow { alone, tpot, .. } => Some((*alone, *tpot)),
            _ => None,
        };
        bench.reports.iter().filter_map(of).collect::<Vec<_>>()
    };
    let both = (
        Duration::from_nanos(ITERATION),
        Duration::from_nanos(5 * MS),
    );
    assert_eq!(reports(&bench), [both]);
    assert_eq!(why(&bench), Some(NoLease::TpotTooLow(both.0, both.1)));
    assert!(bench.node.leases(GPU).expect("on").tpot_too_low);
    bench.configure(channels(Some(LEASING)));
    beat(&mut bench);
    next(&mut bench);
    assert!(told(&bench).is_some());
    assert_eq!(reports(&bench), [both]);
}

/// P-LEASE-8: iterations that waited for a trainer do not count as what online needs alone.
#[test]
fn iterations_beside_a_trainer_are_not_what_online_needs_alone() {
    let mut bench = decoding(channels(Some(LEASING)), 1);
    for _ in 0..300 {
        progressed(&mut bench);
        bench.effects.clear();
        next(&mut bench);
        bench.answer_all();
        let Some((lease, ..)) = told(&bench) else {
            beat(&mut bench);
            continue;
        };
        bench.pass(5 * MS);
        give_back(&mut bench, lease, 1);
        bench.pass(LEASING.grace_ns);
        bench.answer_all();
        bench.pass(ITERATION);
        seen(
            &mut bench,
            event::Event::Beat {
                iteration: NEXT,
                took_ns: ITERATION,
                interval_ns: 50 * MS,
                delayed_ns: 0,
            },
        );
    }
    let view = bench.node.leases(GPU).expect("on");
    assert!(view.granted > 100, "{view:?}");
    assert_eq!(view.alone, Duration::from_nanos(ITERATION));
    assert!(!view.tpot_too_low);
}

/// P-LEASE-8: a unit that never fits is named once, with what would fit; one that does gets a lease.
#[test]
fn a_unit_that_never_fits_is_named_once_with_what_would_fit() {
    let mut bench = decoding(channels(Some(LEASING)), 1);
    let offers = |bench: &mut crate::bench::Bench, ns: u64| {
        bench.send(Event::Lease(LeaseEvent::Offered {
            gpu: GPU,
            job: JOB,
            unit: unit_of(ns),
        }));
    };
    offers(&mut bench, 90 * MS);
    for _ in 0..2_000 {
        progressed(&mut bench);
        beat(&mut bench);
        next(&mut bench);
        bench.answer_all();
    }
    assert_eq!(told(&bench), None);
    let of = |report: &Report| match report {
        Report::LeaseUnitTooLong {
            job, unit, fits, ..
        } => Some((*job, *unit, *fits)),
        _ => None,
    };
    let reports: Vec<_> = bench.reports.iter().filter_map(of).collect();
    let [(job, unit, fits)] = reports[..] else {
        panic!("{reports:?}");
    };
    assert_eq!((job, unit), (JOB, Duration::from_millis(90)));
    assert_eq!(
        why(&bench).map(|why| why.name()),
        Some("unit_too_long"),
        "{:?}",
        why(&bench)
    );
    offers(&mut bench, fits.as_nanos() as u64);
    beat(&mut bench);
    next(&mut bench);
    assert!(told(&bench).is_some(), "what is said to fit does: {fits:?}");
}

/// P-LEASE-9: what an earlier agent learnt of iterations counts until it was seen anew, and no longer than that.
#[test]
fn what_an_earlier_agent_learnt_counts_until_it_is_seen_anew() {
    let known = |ns: u64| event::Event::Known {
        key: Key {
            fingerprint: NEXT.fingerprint,
            kind: Kind::Iteration,
        },
        mean_ns: ns,
        spread_ns: ns / 100,
        p95_ns: ns,
        seen: 100_000,
    };
    let mut learnt = Leaser::new(LEASING);
    learnt.step(&known(6 * MS), 0);
    assert!(learnt.serial(&NEXT, &unit_of(UNIT), 0).units > 0);
    let mut fresh = Leaser::new(LEASING);
    assert_eq!(fresh.serial(&NEXT, &unit_of(UNIT), 0).units, 0);
    // Wrong by a third, it is forgotten within some iterations.
    for _ in 0..40 {
        learnt.step(
            &event::Event::Beat {
                iteration: Iteration { batch: 0, ..NEXT },
                took_ns: 9 * MS,
                interval_ns: 9 * MS,
                delayed_ns: 0,
            },
            0,
        );
    }
    let now = learnt.records().peek(Key {
        fingerprint: NEXT.fingerprint,
        kind: Kind::Iteration,
    });
    assert!(now.expect("seen").mean > 8.7e6, "{now:?}");
    learnt.step(&known(6 * MS), 0);
    let kept: Vec<_> = learnt.records().all().collect();
    assert_eq!(kept.len(), 1);
    assert!(kept[0].mean_ns > 8 * MS, "what was seen since counts");
}

proptest! {
    /// P-LEASE-7: there is a reason exactly where no unit is allowed.
    #[test]
    fn there_is_a_reason_exactly_where_no_unit_is_allowed(
        tail: bool,
        took in 1..60u64,
        beats in 0..40u32,
        running in 0..3u64,
        prompt in prop::option::weighted(0.2, 1..100u32),
        claimed in 0..80u64,
        most in 0..4u32,
        late in 0..200u64,
    ) {
        let promise = if tail {
            Promise::Tail { ttft_ns: 500 * MS, tpot_ns: 40 * MS, late_permille: 10 }
        } else {
            Promise::Each { decode_ns: 40 * MS }
        };
        let mut leaser = Leaser::new(Leasing { promise, ..LEASING });
        let mut now = 0;
        for request in 0..running {
            leaser.step(&event::Event::Arrived { request }, now);
            leaser.step(&event::Event::First { request, ttft_ns: MS }, now);
        }
        for _ in 0..beats {
            now += took * MS;
            let beat = event::Event::Beat {
                iteration: NEXT,
                took_ns: took * MS,
                interval_ns: took * MS,
                delayed_ns: 0,
            };
            leaser.step(&beat, now);
        }
        now += late * MS / 10;
        let next = Iteration { prompt: prompt.unwrap_or(0), ..NEXT };
        let unit = Unit { most, ..unit_of(claimed * MS / 4) };
        let why = leaser.refusal(&next, &unit, now);
        let grant = leaser.serial(&next, &unit, now);
        prop_assert_eq!(grant.units > 0, why.is_none(), "{:?} {:?}", grant, why);
    }
}
