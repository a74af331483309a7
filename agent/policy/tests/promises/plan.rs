//! The planner's closed forms against trying everything.

use crate::dice::Dice;
use proptest::prelude::*;
use tidegate_policy::lease::plan::{
    Favour, Layers, Parallel, Partition, parallel, partition, serial, tokens,
};

/// Of the sizes that LLMStation's models have on its GPUs.
fn layers(dice: &mut Dice) -> Layers {
    let alone = dice.between(0.2e6, 1e6);
    Layers {
        layers: [16, 32, 40, 80][(dice.next() % 4) as usize],
        alone_ns: alone as u64,
        beside_ns: (alone * dice.between(1.0, 2.5)) as u64,
        unit_ns: dice.between(0.3e6, 4e6) as u64,
        budget_ns: dice.between(10e6, 90e6) as u64,
        most: u32::MAX,
    }
}

/// The most units of any number of layers that the constraints allow.
fn tried(of: &Layers) -> u32 {
    let (mut best, layers) = (0, u64::from(of.layers));
    for beside in 0..=layers {
        let decode = beside * of.beside_ns + (layers - beside) * of.alone_ns;
        if decode > of.budget_ns {
            continue;
        }
        let mut units = 0;
        while u64::from(units) < u64::from(of.most)
            && u64::from(units + 1) * of.unit_ns <= beside * of.beside_ns
        {
            units += 1;
        }
        best = best.max(units);
    }
    best
}

/// Equation 1 of LLMStation, as it is printed.
fn printed(of: &Layers) -> f64 {
    let slack = of.budget_ns as f64 - f64::from(of.layers) * of.alone_ns as f64;
    let longer = of.beside_ns as f64 - of.alone_ns as f64;
    slack / longer * of.beside_ns as f64 / of.unit_ns as f64
}

/// P-TRAINER-1: a lease is no longer than online's promise leaves.
#[test]
fn the_closed_form_is_what_trying_everything_finds() {
    let mut dice = Dice::new(1);
    for draw in 0..20_000 {
        let mut of = layers(&mut dice);
        if draw % 3 == 0 {
            of.most = (dice.next() % 40) as u32;
        }
        let found = parallel(&of);
        assert_eq!(found.units, tried(&of), "{of:?}");
        let decode = u64::from(found.layers) * of.beside_ns
            + u64::from(of.layers - found.layers) * of.alone_ns;
        assert!(decode <= of.budget_ns || found == Parallel::default());
    }
}

#[test]
fn the_equation_as_printed_says_more_than_there_is() {
    let mut dice = Dice::new(2);
    let (mut more, mut negative) = (0, 0);
    for _ in 0..20_000 {
        let of = layers(&mut dice);
        let equation = printed(&of);
        more += u32::from(equation.floor() > f64::from(tried(&of)));
        negative += u32::from(equation < 0.0);
    }
    println!("of 20,000: {more} above what is possible, {negative} below zero");
    assert!((12_000..15_000).contains(&more), "{more}");
    assert!((3_000..5_000).contains(&negative), "{negative}");
}

proptest! {
    /// P-TRAINER-1: a lease is no longer than online's promise leaves.
    #[test]
    fn faster_beside_than_alone_is_still_what_trying_finds(
        layers in 1u32..60, alone in 1u64..1_000, beside in 1u64..1_000, unit in 1u64..500,
        budget in 0u64..40_000, most in 0u32..100,
    ) {
        let of = Layers { layers, alone_ns: alone, beside_ns: beside, unit_ns: unit, budget_ns: budget, most };
        prop_assert_eq!(parallel(&of).units, tried(&of));
    }

    #[test]
    fn no_more_units_fit_in_series(slack: u64, switch in 0u64..1_000_000, unit in 1u64..10_000_000, most: u32) {
        let units = u128::from(serial(slack, switch, unit, most));
        let room = u128::from(slack.saturating_sub(switch));
        prop_assert!(units * u128::from(unit) <= room);
        prop_assert!(units == u128::from(most) || (units + 1) * u128::from(unit) > room);
    }

    /// For every load the number of tokens is the most that fits.
    #[test]
    fn tokens_are_the_most_that_fit(
        most in 0u32..5_000, tile in 1u32..200, fixed in 0u64..20_000, per_token in 0u64..40, square in 0u64..3,
    ) {
        for c in 0..64u64 {
            let f = |s: u32| {
                let s = u64::from(s);
                (fixed + c * 10).max(per_token * (s + c)) + square * s * s / 512
            };
            for budget in [0, fixed, fixed + 900, 3 * fixed, 200_000] {
                let s = tokens(most, tile, budget, f);
                prop_assert!(s <= most && (s % tile == 0 || s == most));
                prop_assert!(s == 0 || f(s) <= budget);
                let next = (s / tile + 1) * tile;
                prop_assert!(next > most || f(next) > budget, "{} tokens, {} fit too", s, next);
                prop_assert!(s == most || f(most) > budget);
            }
        }
    }

    /// P-TRAINER-1: a lease is no longer than online's promise leaves.
    #[test]
    fn a_partition_is_the_best_that_fits(
        slower in 0u64..2_000, neighbour in 0u64..300, budget in 0u64..20_000, unknown in 0u32..10,
    ) {
        let ns = |at: Partition| {
            (at.online != unknown)
                .then(|| 1_000 + slower * u64::from(10 - at.online) + neighbour * u64::from(at.trainer))
        };
        for favour in [Favour::Nearest, Favour::Trainer] {
            let found = partition(10, budget, favour, ns);
            let all = (1..10).flat_map(|online| (1..=10 - online).map(move |trainer| Partition { online, trainer }));
            let fits: Vec<Partition> = all.filter(|at| ns(*at).is_some_and(|took| took <= budget)).collect();
            if fits.is_empty() {
                prop_assert_eq!(found, Partition { online: 10, trainer: 0 });
                continue;
            }
            prop_assert!(fits.contains(&found));
            for other in fits {
                match favour {
                    Favour::Nearest => prop_assert!((ns(found), found.trainer) >= (ns(other), other.trainer)),
                    Favour::Trainer => prop_assert!(found.trainer >= other.trainer),
                }
            }
        }
    }
}
