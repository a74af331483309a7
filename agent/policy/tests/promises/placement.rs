//! What is predicted of a node, judged from timelines of its gates and its memory that the test adds up by itself.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_policy::ids::{Bytes, GpuId, GpuSet};
use tidegate_policy::placement::{
    Available, Draft, GpuSlice, LEVELS, MAX_SETS, Node, OpenSets, Profile, Refusal, Slice, best,
    predict, predict_on,
};

const GIB: u64 = 1 << 30;
const SECOND: u64 = 1_000_000_000;

/// One stretch of a node's time: which gates were open, and what each GPU had left, GiB tenths.
#[derive(Clone, Debug)]
struct Stretch {
    open: u64,
    ns: u64,
    left: Vec<u64>,
}

/// A node's time, slice by slice.
#[derive(Clone, Debug)]
struct Story {
    gpus: u8,
    pool: u64,
    slices: Vec<Vec<Stretch>>,
}

impl Story {
    /// As an agent would have kept it.
    fn told(&self) -> Vec<Slice> {
        let mut before = vec![self.pool * GIB / 10; usize::from(self.gpus)];
        let slice = |(number, stretches): (u64, &Vec<Stretch>)| {
            let mut open = OpenSets::new();
            let mut gpus: Vec<GpuSlice> = (0..self.gpus)
                .map(|gpu| GpuSlice {
                    gpu: GpuId(gpu),
                    openings: 0,
                    available: Some(Available::of(Bytes(self.pool * GIB / 10))),
                })
                .collect();
            let mut was = 0;
            for stretch in stretches {
                open.add(GpuSet::from_bits(stretch.open), stretch.ns);
                for (place, gpu) in gpus.iter_mut().enumerate() {
                    let left = stretch.left[place] * GIB / 10;
                    let own = gpu.available.as_mut().expect("shared");
                    own.moved(Bytes(before[place]), Bytes(left));
                    before[place] = left;
                    if stretch.open >> place & 1 == 1 {
                        own.add(Bytes(left), stretch.ns);
                        gpu.openings += u32::from(was >> place & 1 == 0);
                    }
                }
                was = stretch.open;
            }
            Slice {
                number,
                length_ns: stretches.iter().map(|stretch| stretch.ns).sum(),
                open,
                gpus,
            }
        };
        (0..).zip(&self.slices).map(slice).collect()
    }

    fn length(&self) -> u64 {
        self.slices.iter().flatten().map(|stretch| stretch.ns).sum()
    }

    /// Time in which all of `set` were open, counted stretch by stretch.
    fn together(&self, set: u64) -> u64 {
        let all = self.slices.iter().flatten();
        let open = all.filter(|stretch| stretch.open & set == set);
        open.map(|stretch| stretch.ns).sum()
    }

    fn node<'a>(&self, slices: &'a [Slice]) -> Node<'a> {
        let mut node = Node::new(GpuSet::first(self.gpus), slices);
        node.horizon.window = Duration::from_secs(40);
        node.horizon.least = Duration::from_nanos(1);
        node
    }
}

fn stories(gpus: impl Strategy<Value = u8>) -> impl Strategy<Value = Story> {
    (gpus, 40u64..800).prop_flat_map(|(gpus, pool)| {
        let left = prop::collection::vec(0..=pool, usize::from(gpus));
        let stretch = (any::<u64>(), 1..20 * SECOND, left);
        let stretch = stretch.prop_map(move |(open, ns, left)| Stretch {
            open: open & ((1 << gpus) - 1),
            ns,
            left,
        });
        let slice = prop::collection::vec(stretch, 1..12);
        let slices = prop::collection::vec(slice, 1..12);
        slices.prop_map(move |slices| Story { gpus, pool, slices })
    })
}

fn draft() -> Draft {
    Draft {
        name: "summarise".to_owned(),
        unit: Some("tokens".to_owned()),
        rate: Some(20_000.0),
        full: Some(80.0),
        half: Some(6.0),
        ..Draft::default()
    }
}

fn profiles() -> impl Strategy<Value = Profile> {
    let curve = prop::collection::btree_map(1u32..800, 0u32..100, 1..12).prop_map(|points| {
        let mut shares: Vec<u32> = points.values().copied().collect();
        shares.sort_unstable();
        let points = points.keys().zip(shares);
        let points = points.map(|(gib, share)| (f64::from(*gib) / 10.0, f64::from(share) / 100.0));
        let mut points: Vec<(f64, f64)> = points.collect();
        points.push((80.0, 1.0));
        points
    });
    let shape = prop_oneof![
        (0.01..80.0f64).prop_map(|half| (Some(half), None)),
        curve.prop_map(|curve| (None, Some(curve))),
    ];
    let numbers = (0.0..4.0f64, 0.0..40_000.0f64, 0.0..1e-4f64);
    (shape, numbers).prop_map(|((half, curve), (least, lost, again))| {
        let draft = Draft {
            half,
            curve,
            least: Some(least),
            lost: Some(lost),
            again: Some(again),
            ..draft()
        };
        draft.check().expect("in range")
    })
}

proptest! {
    /// P-PLACE-1: the time of any set of eight GPUs is exact to the nanosecond.
    #[test]
    fn of_eight_gpus_every_set_is_exact(story in stories(1u8..=8)) {
        let slices = story.told();
        for set in 1..1u64 << story.gpus {
            let told: u64 = slices.iter().map(|s| s.open.together(GpuSet::from_bits(set))).sum();
            prop_assert_eq!(told, story.together(set));
        }
        prop_assert!(slices.iter().all(|slice| slice.open.unknown() == 0));
    }

    /// P-PLACE-1: where sets had no room, no set's time is too long, nor shorter by more than what is unknown.
    #[test]
    fn of_more_sets_than_fit_none_is_too_long(
        times in prop::collection::vec((1u64..1 << 12, 1..SECOND), 250..700),
        most in 1usize..40,
        asked in prop::collection::vec(1u64..1 << 12, 20),
    ) {
        let mut all = OpenSets::new();
        for &(open, ns) in &times {
            all.add(GpuSet::from_bits(open), ns);
        }
        prop_assert!(all.rows().len() <= MAX_SETS);
        for sets in [all.clone(), all.longest(most), all.longest(most).since(&OpenSets::new())] {
            for set in &asked {
                let open = times.iter().filter(|(open, _)| open & set == *set);
                let truth: u64 = open.map(|time| time.1).sum();
                let told = sets.together(GpuSet::from_bits(*set));
                prop_assert!(told <= truth && truth <= told + sets.unknown());
            }
            let whole: u64 = times.iter().map(|time| time.1).sum();
            let told: u64 = sets.rows().iter().map(|row| row.1).sum();
            prop_assert_eq!(told + sets.unknown(), whole);
        }
    }

    /// P-PLACE-1: what was seen between two states of the same totals is what was added between them.
    #[test]
    fn totals_make_slices(
        first in prop::collection::vec((0u64..1 << 10, 0..SECOND), 0..400),
        then in prop::collection::vec((0u64..1 << 10, 0..SECOND), 0..400),
    ) {
        let (mut totals, mut memory) = (OpenSets::new(), Available::of(Bytes(700)));
        let take = |totals: &mut OpenSets, memory: &mut Available, times: &[(u64, u64)]| {
            for &(open, ns) in times {
                totals.add(GpuSet::from_bits(open), ns);
                memory.add(Bytes(open), ns);
                memory.moved(Bytes(open), Bytes(ns % 1_000));
            }
        };
        take(&mut totals, &mut memory, &first);
        let before = (totals.clone(), memory);
        take(&mut totals, &mut memory, &then);
        let slice = totals.since(&before.0);
        // Sets that were known before, or had room: as they were. The rest is unknown, to the nanosecond.
        let added: u64 = then.iter().filter(|time| time.0 > 0).map(|time| time.1).sum();
        let told: u64 = slice.rows().iter().map(|row| row.1).sum();
        prop_assert_eq!(told + slice.unknown(), added);
        for &(open, ns) in slice.rows() {
            let truth: u64 = then.iter().filter(|time| time.0 == open.bits()).map(|t| t.1).sum();
            prop_assert_eq!(ns, truth);
        }
        let mut alone = Available::of(Bytes(700));
        take(&mut OpenSets::new(), &mut alone, &then);
        prop_assert_eq!(memory.since(&before.1), alone);
        for (place, level) in memory.levels.iter().enumerate().filter(|level| level.1.ns > 0) {
            let (mean, eighth) = (level.mean().0 as f64, 700.0 / LEVELS as f64);
            let (low, high) = (place as f64 * eighth, (place + 1) as f64 * eighth);
            prop_assert!(low.floor() <= mean && mean <= high, "{} not in {}..{}", mean, low, high);
        }
    }

    /// P-PLACE-2: never above 100 per cent; a set gives what it gives in whatever order its GPUs and slices stand.
    #[test]
    fn order_does_not_matter_and_nothing_is_above_all(
        story in stories(1u8..=5),
        profile in profiles(),
        k in 1u8..=5,
        correction in 0.0..40.0f64,
        turns in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
    ) {
        let slices = story.told();
        let node = Node { correction, ..story.node(&slices) };
        let told = predict(&profile, k, &node);
        prop_assert!((0.0..=1.0).contains(&told.ratio) && (0.0..=1.0).contains(&told.mean));
        prop_assert!((0.0..=1.0).contains(&told.parts.memory), "{:?}", told.parts);
        // Too few GPUs, or never as much memory as its longest request needs.
        let short = |refusal: &Refusal| matches!(refusal, Refusal::Memory { has, needs } if has < needs);
        prop_assert!(told.refusals.iter().all(|r| short(r) || k > story.gpus), "{:?}", told);
        prop_assert_eq!(told.refusals.is_empty(), told.percent().is_some());
        // Every GPU has another number, and every list another order.
        let by = turns.0.index(usize::from(story.gpus)) as u8;
        let renamed = |gpu: GpuId| GpuId((gpu.0 + by) % story.gpus);
        let mut turned: Vec<Slice> = slices.iter().map(|slice| {
            let mut open = OpenSets::new();
            for &(set, ns) in slice.open.rows().iter().rev() {
                open.add(set.iter().map(renamed).collect(), ns);
            }
            let gpus = slice.gpus.iter().rev();
            let gpus = gpus.map(|gpu| GpuSlice { gpu: renamed(gpu.gpu), ..*gpu }).collect();
            Slice { open, gpus, ..slice.clone() }
        }).collect();
        turned.reverse();
        let by = turns.1.index(turned.len());
        turned.rotate_left(by);
        let again = predict(&profile, k, &Node { slices: &turned, ..node });
        prop_assert_eq!((told.ratio, told.mean), (again.ratio, again.mean));
        prop_assert_eq!(told.parts.ratio(), again.parts.ratio());
    }

    /// P-PLACE-2: more open time never lowers what is predicted.
    #[test]
    fn more_open_time_is_never_worse(
        story in stories(1u8..=4),
        profile in profiles(),
        k in 1u8..=4,
        wider in prop::collection::vec((any::<prop::sample::Index>(), 0u64..16), 1..20),
    ) {
        let before = story.told();
        let mut after = before.clone();
        for (place, gates) in wider {
            // In one slice, all the time with exactly one set of gates had `gates` open too.
            let slice = &mut after[place.index(before.len())];
            let rows = slice.open.rows().to_vec();
            let Some(chosen) = rows.get(place.index(rows.len().max(1))) else { continue };
            let gates = gates & ((1 << story.gpus) - 1);
            let mut open = OpenSets::new();
            for &(set, ns) in &rows {
                let wide = if set == chosen.0 { set.bits() | gates } else { set.bits() };
                open.add(GpuSet::from_bits(wide), ns);
            }
            slice.open = open;
        }
        let (a, b) = (predict(&profile, k, &story.node(&before)), predict(&profile, k, &story.node(&after)));
        prop_assert!(b.ratio >= a.ratio - 1e-12, "{:?} {:?}", a, b);
        prop_assert!(b.mean >= a.mean - 1e-12);
    }

    /// P-PLACE-2: more memory never lowers what is predicted, and what is said of it is never above the curve's mean.
    #[test]
    fn more_memory_is_never_worse(
        story in stories(1u8..=3),
        profile in profiles(),
        k in 1u8..=3,
        more in prop::collection::vec((any::<prop::sample::Index>(), 0u64..400), 1..20),
    ) {
        let before = story.told();
        let mut richer = story.clone();
        for (place, tenths) in more {
            let slice = place.index(richer.slices.len());
            let stretch = place.index(richer.slices[slice].len());
            let left = &mut richer.slices[slice][stretch].left;
            for left in left {
                *left = (*left + tenths).min(story.pool);
            }
        }
        let mut after = richer.told();
        // What fell is another matter: more in between may make more fall.
        for (after, before) in after.iter_mut().zip(&before) {
            for (after, before) in after.gpus.iter_mut().zip(&before.gpus) {
                let fallen = before.available.expect("shared").fallen;
                after.available.as_mut().expect("shared").fallen = fallen;
            }
        }
        let (a, b) = (predict(&profile, k, &story.node(&before)), predict(&profile, k, &story.node(&after)));
        prop_assert!(b.ratio >= a.ratio - 1e-12, "{:?} {:?}", a, b);
        prop_assert!(b.mean >= a.mean - 1e-12);
    }

    /// P-PLACE-3: where the curve flattens, as that of half-memory does, its mean is never overstated, and by eighths
    /// of the pool it is understated by little.
    #[test]
    fn memory_is_never_overstated(story in stories(Just(1u8)), half in 0.5..40.0f64) {
        let profile = Draft { half: Some(half), ..draft() }.check().expect("in range");
        let slices = story.told();
        let node = story.node(&slices);
        let mut node = Node { horizon: node.horizon, ..node };
        node.horizon.window = Duration::from_secs(1 << 20);
        node.horizon.judged = node.horizon.window;
        let (mut time, mut worth) = (0.0, 0.0);
        for stretch in story.slices.iter().flatten().filter(|stretch| stretch.open == 1) {
            let gib = stretch.left[0] as f64 / 10.0;
            time += stretch.ns as f64;
            worth += stretch.ns as f64 * gib * (1.0 + half / 80.0) / (gib + half);
        }
        let told = predict(&profile, 1, &node);
        let truth = if time > 0.0 { worth / time } else { 0.0 };
        prop_assert!(told.parts.memory <= truth + 1e-9, "{} above {}", told.parts.memory, truth);
        // The most that a straight line is below such a curve is in the first eighth.
        let eighth = story.pool as f64 / 80.0;
        let sag = {
            let at = (half * (half + eighth)).sqrt() - half;
            let line = at / eighth * eighth / (eighth + half);
            (1.0 + half / 80.0) * (at / (at + half) - line)
        };
        prop_assert!(told.parts.memory >= truth - sag - 1e-6, "{} far below {}", told.parts.memory, truth);
        let open = story.together(1) as f64 / story.length() as f64;
        prop_assert!((told.parts.open - open).abs() < 1e-9);
    }

    /// P-PLACE-3: the best set is none of the others' worse, and `predict` is the worst of all.
    #[test]
    fn the_best_set_and_the_worst(story in stories(2u8..=5), profile in profiles(), k in 1u8..=3) {
        let slices = story.told();
        let node = story.node(&slices);
        let all = (1..1u64 << story.gpus).filter(|set| set.count_ones() == u32::from(k));
        let all: Vec<f64> = all.map(|set| predict_on(&profile, GpuSet::from_bits(set), &node).ratio).collect();
        let told = predict(&profile, k, &node);
        let chosen = best(&profile, k, node.gpus, &node);
        prop_assert_eq!(chosen.is_none(), all.is_empty() || !told.refusals.is_empty());
        if let Some(chosen) = chosen {
            prop_assert_eq!(chosen.ratio, all.iter().copied().fold(0.0, f64::max));
            prop_assert_eq!(told.ratio, all.iter().copied().fold(1.0, f64::min));
            prop_assert_eq!(predict_on(&profile, told.gpus, &node).ratio, told.ratio);
        }
    }
}

fn minute(number: u64, open: &[(u64, u64)], left: u64, openings: u32, fallen: u64) -> Slice {
    let mut sets = OpenSets::new();
    for &(set, seconds) in open {
        sets.add(GpuSet::from_bits(set), seconds * SECOND);
    }
    let gpu = |gpu: u8| {
        let mut available = Available::of(Bytes(16 * GIB));
        let own = open.iter().filter(|open| open.0 >> gpu & 1 == 1);
        available.add(Bytes(left), own.map(|open| open.1 * SECOND).sum());
        available.fallen = Bytes(fallen);
        GpuSlice {
            gpu: GpuId(gpu),
            openings,
            available: Some(available),
        }
    };
    Slice {
        number,
        length_ns: 60 * SECOND,
        open: sets,
        gpus: vec![gpu(0), gpu(1)],
    }
}

/// P-PLACE-3: one node by hand. Of each minute both gates are open for 30 s, opened 60 times; half a GiB falls in it,
/// and a curve of points gives 0.8 of the rate with the 12 GiB there are.
#[test]
fn a_prediction_by_hand() {
    let draft = Draft {
        half: None,
        curve: Some(vec![(4.0, 0.4), (12.0, 0.8), (16.0, 1.0)]),
        full: Some(16.0),
        lost: Some(384_000.0),
        again: Some(0.000_1),
        ..draft()
    };
    let profile = draft.check().expect("a profile");
    let history: Vec<Slice> = (0..60)
        .map(|number| minute(number, &[(3, 30), (1, 10), (2, 5)], 12 * GIB, 60, GIB / 2))
        .collect();
    let node = Node::new(GpuSet::first(2), &history);
    let two = predict(&profile, 2, &node);
    // 1/2; 60 x 0.6 ms in 60 s; 0.5 x 131.072 ms in 60 s. A 32nd of the pool falls: 12,000 units of 0.1 ms in 60 s.
    let parts = two.parts;
    let net = 0.5 - 0.000_6 - 0.001_092_27;
    let again = net * 0.02 / (net + 0.02);
    for (told, truth) in [
        (parts.open, 0.5),
        (parts.switches, 0.000_6),
        (parts.moves, 0.001_092_27),
        (parts.again, again),
        (parts.memory, 0.8),
        (two.ratio, 0.8 * (net - again)),
    ] {
        assert!(
            (told - truth).abs() < 1e-6,
            "{told} is not {truth}: {two:?}"
        );
    }
    assert_eq!(
        (two.percent(), two.windows, two.gpus.len()),
        (Some(38), 1, 2)
    );
    // Of one GPU the worse is meant: the second, which is open for 35 s, where the first is for 40.
    let one = predict(&profile, 1, &node);
    assert_eq!(one.gpus, GpuSet::of(GpuId(1)));
    assert!((one.parts.open - 35.0 / 60.0).abs() < 1e-9, "{one:?}");
    let better = best(&profile, 1, node.gpus, &node).expect("two are free");
    assert_eq!(better.gpus, GpuSet::of(GpuId(0)));
    // What was measured here replaces what falls would cost; a correction and a share are factors.
    let measured = Node {
        lost_per_s: Some(1_000.0),
        correction: 0.5,
        share: 0.5,
        ..node
    };
    let told = predict(&profile, 2, &measured);
    let again = net * 0.1 / (net + 0.1);
    assert!((told.parts.again - again).abs() < 1e-6, "{told:?}");
    assert!(
        (told.ratio - 0.25 * 0.8 * (net - again)).abs() < 1e-6,
        "{told:?}"
    );
}

/// P-PLACE-3: of ten windows the second worst is said, of fewer the worst.
#[test]
fn nine_windows_of_ten() {
    let profile = draft().check().expect("a profile");
    let hours = |opens: &[u64]| -> Vec<Slice> {
        let minutes = opens.iter().flat_map(|open| [*open; 60]);
        let minutes = (0..).zip(minutes);
        minutes
            .map(|(number, open)| minute(number, &[(3, open)], 12 * GIB, 0, 0))
            .collect()
    };
    let open = |opens: &[u64]| {
        let history = hours(opens);
        let told = predict(&profile, 1, &Node::new(GpuSet::first(2), &history));
        (told.parts.open * 60.0).round() as u64
    };
    assert_eq!(open(&[40, 6, 50, 12, 55, 54, 53, 52, 51, 50]), 12);
    assert_eq!(open(&[40, 6, 50, 12, 55, 54, 53, 52, 51]), 6);
    // An hour that is not over belongs to none.
    let history = [hours(&[40]), vec![minute(999, &[(3, 1)], 12 * GIB, 0, 0)]].concat();
    let told = predict(&profile, 1, &Node::new(GpuSet::first(2), &history));
    assert_eq!(told.windows, 1);
}

/// P-PLACE-3: hours that are all the same hide that two of six times ten minutes give half, and what is said does not;
/// where jobs are judged by the hour, it is the hour that counts.
#[test]
fn what_is_said_holds_over_the_windows_that_a_job_is_judged_by() {
    let profile = draft().check().expect("a profile");
    let opens = [20, 40, 40, 20, 40, 40].map(|open| [open; 10]).concat();
    let opens = opens.iter().cycle().take(10 * 60);
    let history: Vec<Slice> = (0..)
        .zip(opens)
        .map(|(number, open)| minute(number, &[(3, *open)], 12 * GIB, 0, 0))
        .collect();
    let mut node = Node::new(GpuSet::first(2), &history);
    let told = predict(&profile, 1, &node);
    let mean = (told.mean - told.parts.memory * 200.0 / 360.0).abs();
    assert!(
        (told.parts.open * 60.0 - 20.0).abs() < 1e-9 && mean < 1e-9,
        "{told:?}"
    );
    assert_eq!(told.windows, 10);
    node.horizon.judged = node.horizon.window;
    let told = predict(&profile, 1, &node);
    assert!((told.ratio - told.mean).abs() < 1e-9, "{told:?}");
}

/// P-PLACE-4: what nothing can be said of is refused, by reason.
#[test]
fn refusals_say_why() {
    let profile = draft().check().expect("a profile");
    let history: Vec<Slice> = (0..60)
        .map(|number| minute(number, &[(3, 30)], 12 * GIB, 1, 0))
        .collect();
    let node = Node::new(GpuSet::first(2), &history);
    let told = predict(&profile, 3, &node);
    assert_eq!(told.refusals, [Refusal::Gpus { has: 2, needs: 3 }]);
    assert_eq!((told.ratio, told.percent()), (0.0, None));
    let told = predict_on(&profile, GpuSet::of(GpuId(5)), &node);
    assert_eq!(told.refusals, [Refusal::Gpus { has: 0, needs: 1 }]);
    let told = predict(
        &profile,
        1,
        &Node {
            slices: &history[1..],
            ..node
        },
    );
    let short = Refusal::History {
        has: Duration::from_secs(59 * 60),
        needs: Duration::from_secs(3_600),
    };
    assert_eq!(told.refusals, [short]);
    assert_eq!(
        short.to_string(),
        "the history is of 59 min; nothing is said before 60 min"
    );
    let large = Draft {
        least: Some(20.0),
        ..draft()
    }
    .check()
    .expect("a profile");
    let told = predict(&large, 1, &node);
    assert_eq!(
        told.refusals,
        [Refusal::Memory {
            has: 12.0,
            needs: 20.0
        }]
    );
    let mut unshared = history.clone();
    for slice in &mut unshared {
        slice.gpus[1].available = None;
    }
    let told = predict(
        &profile,
        1,
        &Node {
            slices: &unshared,
            ..node
        },
    );
    assert_eq!(told.refusals, [Refusal::MemoryNotShared(GpuId(1))]);
    // A GPU that offline does not get hinders nobody.
    let one = Node {
        slices: &unshared,
        ..Node::new(GpuSet::first(1), &history)
    };
    assert_eq!(predict(&profile, 1, &one).refusals, []);
    let none = predict(
        &profile,
        1,
        &Node {
            slices: &[],
            ..node
        },
    );
    assert_eq!(none.refusals.len(), 2, "{none:?}");
}

/// P-PLACE-4: a profile is refused at the field that is wrong.
#[test]
fn wrong_profiles_name_their_field() {
    type Change = fn(&mut Draft);
    let cases: [(Change, &str); 31] = [
        (|d| d.name = String::new(), "name"),
        (|d| d.name = "a".repeat(33), "name"),
        (|d| d.name = "Summarise".to_owned(), "name"),
        (|d| d.name = "../etc".to_owned(), "name"),
        (|d| d.name = "a b".to_owned(), "name"),
        (|d| d.unit = None, "unit"),
        (|d| d.unit = Some("tokens/s".to_owned()), "unit"),
        (|d| d.gpus = Some(0.0), "gpus"),
        (|d| d.gpus = Some(1.5), "gpus"),
        (|d| d.gpus = Some(65.0), "gpus"),
        (|d| d.gpus = Some(f64::NAN), "gpus"),
        (|d| d.rate = None, "rate"),
        (|d| d.rate = Some(0.0), "rate"),
        (|d| d.rate = Some(-1.0), "rate"),
        (|d| d.rate = Some(f64::INFINITY), "rate"),
        (|d| d.rate = Some(f64::NAN), "rate"),
        (|d| d.full = None, "full"),
        (|d| d.full = Some(1e9), "full"),
        (|d| d.half = None, "half"),
        (|d| d.half = Some(-6.0), "half"),
        (|d| d.half = Some(f64::NAN), "half"),
        (|d| d.curve = Some(vec![(1.0, 0.5), (80.0, 1.0)]), "curve"),
        (
            |d| (d.half, d.curve) = (None, Some(vec![(80.0, 1.0)])),
            "curve",
        ),
        (
            |d| (d.half, d.curve) = (None, Some(vec![(4.0, 0.5), (8.0, 0.4), (80.0, 1.0)])),
            "curve",
        ),
        (
            |d| (d.half, d.curve) = (None, Some(vec![(8.0, 0.4), (4.0, 0.5), (80.0, 1.0)])),
            "curve",
        ),
        (
            |d| (d.half, d.curve) = (None, Some(vec![(4.0, 0.4), (90.0, 1.0)])),
            "curve",
        ),
        (
            |d| (d.half, d.curve) = (None, Some(vec![(4.0, 0.4), (80.0, 0.9)])),
            "curve",
        ),
        (
            |d| (d.half, d.curve) = (None, Some(vec![(4.0, f64::NAN), (80.0, 1.0)])),
            "curve",
        ),
        (|d| d.least = Some(81.0), "least"),
        (|d| d.lost = Some(-1.0), "lost"),
        (|d| d.lost = Some(1.0), "again"),
    ];
    assert!(draft().check().is_ok());
    for (place, (change, field)) in cases.into_iter().enumerate() {
        let mut wrong = draft();
        change(&mut wrong);
        let told = wrong.check().expect_err(&format!("case {place}"));
        assert_eq!(told.field, field, "case {place}: {told}");
        assert!(told.to_string().starts_with(field), "{told}");
    }
}
