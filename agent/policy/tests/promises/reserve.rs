//! How much is kept mapped ahead, under any use.

use proptest::prelude::*;
use std::time::Duration;
use tidegate_policy::config::Reserving;
use tidegate_policy::ids::Bytes;
use tidegate_policy::reserve::{Change, Reserve};
use tidegate_policy::time::Instant;

fn config() -> impl Strategy<Value = Reserving> {
    (1u64..100, 0u64..400, 0u64..4_000, 1u64..100, 1u8..=100).prop_map(
        |(step, min, max, seconds, percent)| Reserving {
            pressure_every: Duration::from_secs(seconds),
            pressure_percent: percent,
            step: Bytes(step),
            min: Bytes(min),
            max: Bytes(max),
        },
    )
}

proptest! {
    /// P-MEMORY-2: every byte is in one ledger entry; the cheapest stripes go.
    #[test]
    fn headroom_stays_in_its_clamps_and_use_is_never_left_under_pressure(
        config in config(),
        steps in prop::collection::vec((0u64..20_000_000_000, 0u64..5_000), 0..100),
    ) {
        let mut reserve = Reserve::new(config, Instant::from_nanos(0));
        let (least, most) = (config.min.max(config.step), config.max.max(config.min).max(config.step));
        let (mut now, mut events) = (0, 0);
        for (dt, used) in steps {
            now += dt;
            let before = (reserve.reservation(), reserve.headroom());
            let change = reserve.settle(Bytes(used), Instant::from_nanos(now));
            prop_assert!((least..=most).contains(&reserve.headroom()));
            prop_assert!(used * 100 < reserve.reservation().0 * u64::from(config.pressure_percent) + 100);
            prop_assert!(reserve.due().is_none_or(|due| due > Instant::from_nanos(now)));
            let pressed = used * 100 >= before.0.0 * u64::from(config.pressure_percent);
            match change {
                Some(Change::Grow(to)) => {
                    let short = used > before.0.0;
                    events += u64::from(short);
                    prop_assert!(pressed && to > before.0);
                    // Only a shortage adds to the headroom.
                    prop_assert!(short || reserve.headroom() <= before.1);
                    prop_assert_eq!(to, reserve.reservation());
                }
                Some(Change::Shrink(to)) => {
                    prop_assert!(!pressed && to < before.0 && reserve.headroom() <= before.1);
                }
                None => prop_assert!(!pressed && reserve.reservation() == before.0),
            }
            prop_assert_eq!(reserve.events(), events);
        }
    }

    /// P-MEMORY-2: every byte is in one ledger entry; the cheapest stripes go.
    #[test]
    fn what_is_looked_at_often_or_rarely_ends_the_same(
        config in config(),
        used in 0u64..5_000,
        parts in prop::collection::vec(1u64..5_000_000_000, 1..30),
    ) {
        let mut often = Reserve::new(config, Instant::from_nanos(0));
        often.settle(Bytes(used), Instant::from_nanos(0));
        often.settle(Bytes(0), Instant::from_nanos(1));
        let mut rarely = often.clone();
        let mut now = 1;
        for part in parts {
            now += part;
            often.settle(Bytes(0), Instant::from_nanos(now));
        }
        rarely.settle(Bytes(0), Instant::from_nanos(now));
        prop_assert_eq!(often.headroom(), rarely.headroom());
        prop_assert_eq!(often.reservation(), rarely.reservation());
    }
}

/// P-MEMORY-2: every byte is in one ledger entry; the cheapest stripes go.
#[test]
fn what_one_shortage_adds_is_gone_when_the_next_is_accepted() {
    let config = Reserving {
        min: Bytes(1),
        step: Bytes(1),
        max: Bytes(1 << 40),
        ..Reserving::default()
    };
    let mut reserve = Reserve::new(config, Instant::from_nanos(0));
    let mut now = 0;
    // Each time the use goes just beyond what was mapped, and just as often as accepted.
    let mut headrooms = Vec::new();
    for _ in 0..200 {
        let used = reserve.reservation().0 + 1;
        reserve.settle(Bytes(used), Instant::from_nanos(now));
        headrooms.push(reserve.headroom().0);
        now += config.pressure_every.as_nanos() as u64;
        reserve.settle(Bytes(0), Instant::from_nanos(now));
        reserve.settle(Bytes(0), Instant::from_nanos(now + 1));
    }
    let (settled, last) = (headrooms[20] as f64, headrooms[199] as f64);
    assert!(
        (last / settled - 1.0).abs() < 0.2,
        "{settled} became {last}"
    );
}

/// P-MEMORY-20: what online may pay is kept to.
#[test]
fn another_rate_of_shortages_takes_nothing_at_once_that_the_former_left() {
    let second = |s: u64| Instant::from_nanos(s * 1_000_000_000);
    let mut reserve = Reserve::new(Reserving::default(), second(0));
    reserve.steer(Duration::from_secs(3_600), second(0));
    // It grows by what was lacking, to twice as much at most.
    reserve.settle(Bytes::mib(240), second(0));
    assert_eq!(reserve.headroom(), Bytes::mib(240));
    reserve.settle(Bytes::mib(2_000), second(0));
    assert_eq!(reserve.headroom(), Bytes::mib(480));
    let now = second(0).after(reserve.interval() / 2);
    reserve.steer(Duration::from_secs(1), now);
    assert_eq!(reserve.headroom(), Bytes::mib(480));
    let half = reserve.interval() / 2;
    let due = reserve.due().expect("it is above the least").since(now);
    assert!(
        due.abs_diff(half) < Duration::from_micros(1),
        "{due:?} of {half:?}"
    );
}

/// P-MEMORY-20: what online may pay is kept to.
#[test]
fn what_a_shortage_of_a_budget_adds_is_gone_when_the_next_is_accepted() {
    let every = Duration::from_secs(600);
    let mut reserve = Reserve::new(Reserving::default(), Instant::from_nanos(0));
    reserve.steer(every, Instant::from_nanos(0));
    // It lacks 240 MiB, and then as much as it may add: 480 of 240.
    for used in [Bytes::mib(240), Bytes::mib(2_000)] {
        reserve.settle(used, Instant::from_nanos(0));
    }
    assert_eq!(reserve.headroom(), Bytes::mib(480));
    reserve.settle(Bytes::ZERO, Instant::from_nanos(0).after(every));
    let left = reserve.headroom();
    assert!(
        (Bytes::mib(230)..=Bytes::mib(250)).contains(&left),
        "{left:?} of 480 MiB, which were 240"
    );
}

/// P-MEMORY-20: what online may pay is kept to. While nothing is earned, twice the least is kept ready.
#[test]
fn a_budget_begins_as_after_a_shortage_that_doubled_the_least() {
    let second = |s: u64| Instant::from_nanos(s * 1_000_000_000);
    let config = Reserving::default();
    let mut reserve = Reserve::new(config, second(0));
    assert_eq!(reserve.headroom(), config.min, "nobody steers it");
    reserve.steer(Duration::from_secs(3_600), second(0));
    assert_eq!(reserve.headroom(), Bytes(2 * config.min.0));
    reserve.settle(Bytes::ZERO, second(60));
    assert!(reserve.headroom().0 > 19 * config.min.0 / 10, "{reserve:?}");
    // What it began with is gone when the first is accepted.
    let mut first = reserve.clone();
    first.settle(Bytes::ZERO, second(3_600));
    assert!(first.headroom().0 < 11 * config.min.0 / 10, "{first:?}");
    // A shortage every second is accepted.
    reserve.steer(Duration::from_secs(1), second(600));
    reserve.settle(Bytes::ZERO, second(610));
    assert_eq!(reserve.headroom(), config.min);
    assert!(reserve.reservation() < Bytes(2 * config.min.0));
    // Neither another rate nor other rules are a beginning.
    reserve.steer(Duration::from_secs(3_600), second(661));
    assert_eq!(reserve.headroom(), config.min);
    reserve.configure(config, second(662));
    reserve.steer(Duration::from_secs(3_600), second(662));
    assert_eq!(reserve.headroom(), config.min);
    // Nor is it one when an operator writes down an SLO for an engine that runs.
    let mut later = Reserve::new(config, second(0));
    later.configure(config, second(9));
    later.steer(Duration::from_secs(3_600), second(9));
    assert_eq!(later.headroom(), config.min);
    // The most is the most.
    let small = Reserving {
        max: Bytes(3 * config.min.0 / 2),
        ..config
    };
    let mut reserve = Reserve::new(small, second(0));
    reserve.steer(Duration::from_secs(3_600), second(0));
    assert_eq!(reserve.headroom(), small.max);
}
