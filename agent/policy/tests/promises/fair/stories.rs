//! Turns, one case at a time.

use super::world::{Draw, World};
use crate::dice::Dice;
use tidegate_policy::fair::{Class, Terms};
use tidegate_policy::ids::{GpuId, GpuSet, UserId};

const GPU: GpuSet = GpuSet::of(GpuId(0));
const SECOND: u64 = 1_000_000_000;

fn share(world: &World, id: u32, of: &[u32]) -> f64 {
    let all: u64 = of.iter().map(|id| world.ran(*id)).sum();
    world.ran(id) as f64 / all as f64
}

fn near(share: f64, expected: f64, by: f64) {
    assert!(
        (share - expected).abs() <= by,
        "{share} is not {expected} +- {by}"
    );
}

/// P-FAIR-1: jobs on one GPU take turns by weight, and a gang has all of its GPUs or none.
#[test]
fn a_gang_has_its_part_of_the_time_in_which_all_its_gpus_are_open_and_single_jobs_the_rest() {
    let mut world = World::new(1, Draw::default());
    let gang = [GpuId(0), GpuId(1)].into_iter().collect();
    world.add(0, gang, 1, Class::Normal);
    world.add(1, GPU, 1, Class::Normal);
    world.add(2, GpuSet::of(GpuId(1)), 1, Class::Normal);
    let mut both = 0;
    for round in 0..600u64 {
        world.online(0, round % 4 == 0);
        world.online(1, round % 5 == 0);
        world.pass(50_000_000);
        both += u64::from(round % 4 > 0 && round % 5 > 0);
    }
    assert!(world.broken.is_empty(), "{:?}", world.broken);
    near(world.ran(0) as f64 / (both * 50_000_000) as f64, 0.5, 0.05);
    // GPU 0 is open for three quarters of 30 s, GPU 1 for four fifths.
    near(world.ran(1) as f64 / 30e9, 0.75 - 0.3, 0.03);
    near(world.ran(2) as f64 / 30e9, 0.80 - 0.3, 0.03);
}

/// P-FAIR-3: a user gets no more by splitting work into many jobs.
#[test]
fn the_weight_of_a_user_is_divided_among_its_jobs() {
    let mut world = World::new(2, Draw::default());
    let terms = |user| Terms {
        user: UserId(user),
        ..Terms::default()
    };
    world.add_for(0, GPU, terms(0));
    (1..101).for_each(|id| world.add_for(id, GPU, terms(1)));
    world.pass(60 * SECOND);
    let all: Vec<u32> = (0..101).collect();
    // A round of all of them lasts 20 s, in which each of the hundred has one turn.
    near(share(&world, 0, &all), 0.5, 0.05);
    near(share(&world, 1, &all), 0.005, 0.002);
}

/// P-FAIR-6: settings that change in the middle of a turn leave it as long as it was, and the next turns go by them.
#[test]
fn weights_that_change_in_mid_turn_count_from_the_next_turn() {
    const TURN: u64 = 100_000_000;
    let mut world = World::new(7, Draw::default());
    world.add(0, GPU, 1, Class::Normal);
    world.add(1, GPU, 1, Class::Normal);
    world.pass(10 * SECOND);
    // To the begin of a turn of job 0, and 40 ms into it.
    let begins = |world: &mut World| {
        for id in [1, 0] {
            let before = world.ran(id);
            while world.ran(id) == before {
                world.pass(100_000);
            }
        }
    };
    begins(&mut world);
    let began = world.ran(0);
    world.pass(40_000_000);
    world.weigh(0, 3);
    world.weigh(1, 12);
    let other = world.ran(1);
    while world.ran(1) == other {
        world.pass(100_000);
    }
    let turn = world.ran(0) - began;
    assert!(turn.abs_diff(TURN) < 4_000_000, "a turn of {turn} ns");
    // The other runs until it is as far ahead by the weights in force.
    let since = [world.ran(0), world.ran(1)];
    begins(&mut world);
    let turns = world.ran(1) - since[1];
    assert!(turns >= 3 * TURN, "{turns} ns at weight 12 against 3");
    world.pass(60 * SECOND);
    let had = [0, 1].map(|id| (world.ran(id) - since[id as usize]) as f64);
    near(had[0] / (had[0] + had[1]), 0.2, 0.01);
    assert!(world.broken.is_empty(), "{:?}", world.broken);
}

/// P-FAIR-13: a clock that jumps gives nobody more.
#[test]
fn jumps_of_the_clock_change_no_share() {
    let mut world = World::new(8, Draw::default());
    (0..3).for_each(|id| world.add(id, GPU, 1, Class::Normal));
    world.pass(SECOND);
    for jump in [7, 60, 3_600, 100_000] {
        let before = [0, 1, 2].map(|id| world.ran(id));
        world.jump(jump * SECOND);
        world.pass(10 * SECOND);
        world.step_back(jump * SECOND);
        world.pass(10 * SECOND);
        let had = [0, 1, 2].map(|id| world.ran(id) - before[id as usize]);
        for own in had {
            near(own as f64 / 20e9, 1.0 / 3.0, 0.02);
        }
    }
}

/// P-FAIR-3: a user has at most what it may while others want the GPUs too.
#[test]
fn a_user_has_at_most_what_it_may_while_others_want_to_run_and_all_of_it_else() {
    let mut world = World::new(3, Draw::default());
    let many = Terms {
        user: UserId(1),
        user_weight: 10,
        most: 500,
        ..Terms::default()
    };
    (0..10).for_each(|id| world.add_for(id, GPU, many));
    let other = UserId(2);
    world.add_for(
        10,
        GPU,
        Terms {
            user: other,
            ..Terms::default()
        },
    );
    let all: Vec<u32> = (0..11).collect();
    world.pass(120 * SECOND);
    near(share(&world, 10, &all), 0.5, 0.01);
    world.works(10, false);
    let of_many = |world: &World| (0..10).map(|id| world.ran(id)).sum::<u64>();
    let before = of_many(&world);
    world.pass(20 * SECOND);
    let had = of_many(&world) - before;
    assert!(had > 19 * SECOND, "{had}");
}

/// P-FAIR-3: over any hour, however often the others come and go.
#[test]
fn a_bound_holds_over_any_hour_of_what_others_wanted_too() {
    const MINUTE: usize = 6;
    let mut world = World::new(6, Draw::default());
    let terms = |user, most| Terms {
        user: UserId(user),
        user_weight: if most < 1_000 { 10 } else { 1 },
        most,
        ..Terms::default()
    };
    // By weight the ten would have ten twelfths and more.
    (0..10).for_each(|id| world.add_for(id, GPU, terms(1, 500)));
    (10..12).for_each(|id| world.add_for(id, GPU, terms(id, 1_000)));
    let mut dice = Dice::new(12);
    let of_many = |world: &World| (0..10).map(|id| world.ran(id)).sum::<u64>();
    let of_all = |world: &World| (0..12).map(|id| world.ran(id)).sum::<u64>();
    let (mut wanted, mut sixths, mut alone) = ([true; 2], Vec::new(), (0, 0));
    for _ in 0..90 * MINUTE {
        if dice.next().is_multiple_of(MINUTE as u64 * 2) {
            let at = (dice.next() % 2) as usize;
            wanted[at] = !wanted[at];
            world.works(10 + at as u32, wanted[at]);
        }
        let before = (of_many(&world), of_all(&world));
        world.pass(10 * SECOND);
        let had = (of_many(&world) - before.0, of_all(&world) - before.1);
        let contested = wanted.contains(&true);
        sixths.push(if contested { had } else { (0, 0) });
        alone = if contested {
            alone
        } else {
            (alone.0 + had.0, alone.1 + 10 * SECOND)
        };
    }
    for hour in sixths.windows(60 * MINUTE) {
        let (own, all) = hour
            .iter()
            .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let share = own as f64 / all as f64;
        assert!(share <= 0.505, "{share} of an hour");
        assert!(share > 0.4, "{share} of an hour: they want it");
    }
    let (had, free) = alone;
    assert!(free > 60 * SECOND, "the others rested for {free} ns");
    assert!(had as f64 > 0.97 * free as f64, "{had} ns of {free} alone");
}

/// P-FAIR-1: jobs on one GPU take turns by weight, and a gang has all of its GPUs or none.
#[test]
fn class_idle_runs_only_where_nobody_else_wants_to() {
    let mut world = World::new(4, Draw::default());
    world.add(0, GPU, 1, Class::Idle);
    world.add(1, GPU, 1, Class::Normal);
    world.pass(10 * SECOND);
    assert!(world.ran(0) < SECOND / 10, "{}", world.ran(0));
    world.works(1, false);
    world.pass(SECOND);
    assert!(world.ran(0) > SECOND * 9 / 10, "{}", world.ran(0));
    let before = world.ran(0);
    world.works(1, true);
    world.pass(SECOND);
    assert!(world.ran(0) - before < 30_000_000, "it gives way at once");
}

/// P-FAIR-1: jobs on one GPU take turns by weight, and a gang has all of its GPUs or none.
#[test]
fn a_job_that_slept_is_owed_nothing() {
    let mut world = World::new(5, Draw::default());
    world.add(0, GPU, 1, Class::Normal);
    world.add(1, GPU, 1, Class::Normal);
    world.works(1, false);
    world.pass(30 * SECOND);
    let before = (world.ran(0), world.ran(1));
    world.works(1, true);
    world.pass(10 * SECOND);
    let (one, two) = (world.ran(0) - before.0, world.ran(1) - before.1);
    near(one as f64 / (one + two) as f64, 0.5, 0.02);
}

/// P-FAIR-22: GPUs hand over one after the other, and nobody pays for that.
#[test]
fn one_gpu_of_the_node_hands_over_at_a_time() {
    let prompt = Draw {
        prompt: true,
        ..Draw::default()
    };
    for seed in 0..20 {
        let mut world = World::new(seed, prompt);
        for id in 0..6u32 {
            let gpu = GpuSet::of(GpuId((id % 3) as u8));
            world.add(id, gpu, 1 + seed % 3, Class::Normal);
        }
        // All three gates open at the same moment, and the turns begin.
        (0..3).for_each(|gpu| world.online(gpu, true));
        world.pass(SECOND / 10);
        (0..3).for_each(|gpu| world.online(gpu, false));
        world.pass(SECOND / 20);
        world.most_at_once = 0;
        world.pass(60 * SECOND);
        assert_eq!(world.most_at_once, 1, "seed {seed}");
        assert!(world.broken.is_empty(), "seed {seed}: {:?}", world.broken);
        for gpu in 0..3 {
            near(share(&world, gpu, &[gpu, gpu + 3]), 0.5, 0.01);
        }
        let ran: u64 = (0..6).map(|id| world.ran(id)).sum();
        assert!(ran > 177 * SECOND, "seed {seed}: {ran} ns of 180 s");
    }
}
