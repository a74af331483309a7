//! Whose turn it is, under any order of events, judged from a model of the channels and of who has work.
//!
//! A case is a number: the schedule that it draws has gangs and single jobs on three GPUs, which come, go, have work or
//! none and are paused, online that is busy now and then, and orders that take their time. What ran is what the model's
//! channels say, never what policy believes.

mod slices;
mod stories;
mod world;

use crate::dice::Dice;
use tidegate_policy::ids::GpuId;
use world::{Draw, World};

const CASES: u64 = 10_000;

fn gate(dice: &mut Dice, world: &mut World) {
    let gpu = dice.next() % 3;
    world.online(gpu as u8, dice.next().is_multiple_of(3));
}

/// One schedule; what it breaks.
fn schedule(seed: u64, draw: Draw) -> Vec<String> {
    let mut dice = Dice::new(seed);
    let mut world = World::new(seed, draw);
    for _ in 0..40 {
        let job = (dice.next() % 5) as u32;
        match dice.next() % 16 {
            0..=2 => world.attach(job, &mut dice),
            3 => world.leave(job),
            4..=6 => world.works(job, !dice.next().is_multiple_of(3)),
            7..=9 => gate(&mut dice, &mut world),
            10 => world.pause(job, dice.next().is_multiple_of(2)),
            _ => {}
        }
        let long = dice.next().is_multiple_of(8);
        world.pass((dice.between(0.0, if long { 600e6 } else { 60e6 })) as u64);
    }
    if draw.fails {
        world.calm();
    }
    world.broken
}

fn judge(draw: Draw) {
    for seed in 0..CASES {
        let broken = schedule(seed, draw);
        assert!(broken.is_empty(), "seed {seed}: {}", broken.join("\n"));
    }
}

/// P-FAIR-1: jobs on one GPU take turns by weight, and a gang has all of its GPUs or none.
#[test]
fn jobs_on_the_same_gpus_take_turns_by_weight_and_leave_no_gpu_to_itself() {
    judge(Draw::default());
}

/// P-FAIR-2: what fails, is late or is given up hurts nobody else.
#[test]
fn orders_that_fail_let_no_two_sound_jobs_run_at_once_and_starve_nobody() {
    judge(Draw {
        fails: true,
        ..Draw::default()
    });
}

/// P-FAIR-2: what fails, is late or is given up hurts nobody else.
#[test]
fn a_gpu_that_takes_no_order_starves_no_job_that_does_not_use_it() {
    judge(Draw {
        fails: true,
        lost: Some(GpuId(2)),
        ..Draw::default()
    });
}
