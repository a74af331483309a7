//! A profile of what a job did, judged from jobs whose profile the test knows and whose units it adds up by itself.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_policy::ids::{Bytes, GpuId, GpuSet};
use tidegate_policy::placement::{Available, Costs, Did, GpuSlice, OpenSets, Slice, Unfit, fit};

const GIB: f64 = (1u64 << 30) as f64;
const POOL: f64 = 64.0;

/// Nothing but memory and loss costs anything.
fn free() -> Costs {
    Costs {
        switch: Duration::ZERO,
        give_back_gib: Duration::ZERO,
        ..Costs::default()
    }
}

/// A job as it is: units a second, half memory in GiB, seconds that a lost unit takes.
#[derive(Clone, Copy, Debug)]
struct Truth {
    rate: f64,
    half: f64,
    again: f64,
}

impl Truth {
    fn share(&self, gib: f64) -> f64 {
        gib * (1.0 + self.half / POOL) / (gib + self.half)
    }

    /// A minute of which each stretch is so long and has so many GiB, and in which so many units were lost.
    fn minute(&self, number: u64, stretches: &[(f64, f64)], lost: u64) -> (Slice, u64) {
        let (mut open, mut own) = (OpenSets::new(), Available::of(Bytes((POOL * GIB) as u64)));
        let mut units = -self.again * self.rate * lost as f64;
        let mut before = POOL;
        for &(seconds, gib) in stretches {
            open.add(GpuSet::of(GpuId(0)), (seconds * 1e9) as u64);
            own.moved(Bytes((before * GIB) as u64), Bytes((gib * GIB) as u64));
            own.add(Bytes((gib * GIB) as u64), (seconds * 1e9) as u64);
            units += seconds * self.rate * self.share(gib);
            before = gib;
        }
        let gpu = GpuSlice {
            gpu: GpuId(0),
            openings: 7,
            available: Some(own),
        };
        let slice = Slice {
            number,
            length_ns: 60_000_000_000,
            open,
            gpus: vec![gpu],
        };
        (slice, units.max(0.0) as u64)
    }
}

fn did<'a>(minutes: &'a [(Slice, u64)], lost: &[u64]) -> Vec<Did<'a>> {
    let each = minutes.iter().zip(lost);
    let each = each.map(|((slice, units), lost)| Did {
        slice,
        gpus: GpuSet::of(GpuId(0)),
        units: *units,
        lost: *lost,
    });
    each.collect()
}

proptest! {
    /// P-PLACE-8: what is fitted says of any memory that the job had what the job does with it, within 5 %, and of what
    /// is lost what it costs.
    #[test]
    fn a_job_is_found_again_in_what_it_did(
        rate in 100.0..50_000.0f64,
        half in 0.1..30.0f64,
        seconds_again in 0.0..0.9f64,
        minutes in prop::collection::vec(
            (prop::collection::vec((1.0..12.0f64, 8.1..=POOL), 1..5), 0.0..4.0f64), 20..80),
    ) {
        let truth = Truth { rate, half, again: seconds_again / rate };
        let lost: Vec<u64> = minutes.iter().map(|(_, seconds)| (seconds * rate) as u64).collect();
        let told: Vec<(Slice, u64)> = (0..).zip(&minutes).zip(&lost)
            .map(|((number, (stretches, _)), lost)| truth.minute(number, stretches, *lost))
            .collect();
        prop_assume!(told.iter().all(|(_, units)| *units > 0));
        let fitted = fit("a", "tokens", &did(&told, &lost), None, &free());
        prop_assume!(!matches!(fitted, Err(Unfit::Memory { .. })));
        let fitted = fitted.expect("it tells");
        prop_assert!(fitted.error < 0.03, "{:?}", fitted);
        let again = fitted.draft.again.unwrap_or(0.0);
        prop_assert!((again - truth.again).abs() * rate < 0.05, "{} is not {}", again, truth.again);
        let profile = fitted.draft.clone().check().expect("right");
        let stretches = || minutes.iter().flat_map(|(stretches, _)| stretches);
        let least = stretches().fold(POOL, |least, own| least.min(own.1));
        let most = stretches().fold(0.0_f64, |most, own| most.max(own.1));
        for step in 0..=8 {
            let gib = least + (most - least) * f64::from(step) / 8.0;
            let (said, is) = (profile.rate() * profile.memory_share(gib), rate * truth.share(gib));
            prop_assert!((said / is - 1.0).abs() < 0.05, "{} GiB: {} is not {} by {:?}", gib, said, is, fitted);
        }
    }
}

/// P-PLACE-8: what does not tell is refused by reason, and with the half memory that is missing it tells the rest.
#[test]
fn what_does_not_tell_is_refused() {
    let truth = Truth {
        rate: 2_000.0,
        half: 6.0,
        again: 0.0,
    };
    let same: Vec<_> = (0..30)
        .map(|number| truth.minute(number, &[(30.0, 40.0)], 0))
        .collect();
    let none = vec![0; same.len()];
    let fit = |did: &[Did<'_>], half| fit("a", "tokens", did, half, &free());
    let refused = |did: &[Did<'_>]| fit(did, None).expect_err("it does not tell");
    let all = did(&same, &none);
    assert_eq!(refused(&all[..9]), Unfit::Slices { has: 9, needs: 10 });
    assert!(matches!(refused(&all), Unfit::Memory { most, .. } if (most - 40.0).abs() < 1e-6));
    let mut idle = all.clone();
    idle.iter_mut().for_each(|did| did.units = 0);
    assert_eq!(refused(&idle), Unfit::Idle);
    let draft = fit(&all, Some(6.0)).expect("it tells").draft;
    // Of the memory that it had, which is less than all.
    let said = draft.rate.expect("a rate");
    assert!(
        (said / (truth.rate * truth.share(40.0)) - 1.0).abs() < 1e-3,
        "{said}"
    );
    assert!(draft.lost.is_none() && draft.again.is_none());
    // No GPU, or one whose memory is not shared, is no slice.
    let mut odd = all.clone();
    odd.iter_mut()
        .for_each(|did| did.gpus = GpuSet::of(GpuId(3)));
    assert_eq!(refused(&odd), Unfit::Slices { has: 0, needs: 10 });
}

/// P-PLACE-8: time in which the job was disabled, or got memory back, is none in which it did little.
#[test]
fn switches_and_moves_are_taken_off_its_time() {
    let truth = Truth {
        rate: 2_000.0,
        half: 6.0,
        again: 0.0,
    };
    let costs = Costs {
        switch: Duration::from_secs(1),
        give_back_gib: Duration::from_millis(250),
        give_back_gib_per_s: 100.0,
    };
    let told: Vec<_> = (0..30)
        .map(|number| {
            let (slice, _) = truth.minute(number, &[(50.0, 40.0)], 0);
            // Of 50 s 7 go to the seven openings, and 6 to the 24 GiB below the pool's 64.
            let seconds = 50.0 - 7.0 - 6.0;
            (slice, (seconds * truth.rate * truth.share(40.0)) as u64)
        })
        .collect();
    let found = fit("a", "tokens", &did(&told, &[0; 30]), Some(6.0), &costs).expect("it tells");
    let said = found.draft.rate.expect("a rate");
    let is = truth.rate * truth.share(40.0);
    assert!((said / is - 1.0).abs() < 1e-3, "{said} is not {is}");
}

/// P-PLACE-8: a minute in which it had less than an eighth of the pool tells nothing: how much less is not known.
#[test]
fn minutes_with_hardly_any_memory_are_left_out() {
    let truth = Truth {
        rate: 2_000.0,
        half: 6.0,
        again: 0.0,
    };
    let told: Vec<_> = (0..30)
        .map(|number| {
            let gib = if number % 3 == 0 { 4.0 } else { 40.0 };
            truth.minute(number, &[(30.0, gib)], 0)
        })
        .collect();
    let found = fit("a", "tokens", &did(&told, &[0; 30]), Some(6.0), &free()).expect("it tells");
    assert_eq!(found.slices, 20);
}
