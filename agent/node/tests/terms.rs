//! The shell as it ships, turned by hand: what rules and settings give a job is what the GPU does.

mod rig;

use rig::Rig;
use std::collections::BTreeMap;
use std::time::Duration;
use tidegate_node::Input;
use tidegate_node::kinds::Role;
use tidegate_node::message::Tunables;
use tidegate_policy::config::{Config, Fair, FairMode};
use tidegate_policy::fair::{Class, Gives, UserShare};

const MS: u64 = 1_000_000;
const TURN_MS: u64 = 10;

fn policy() -> Config {
    Config {
        fair: Fair {
            mode: FairMode::Turns,
            turn: Duration::from_millis(TURN_MS),
            ..Fair::default()
        },
        ..Rig::without_waits()
    }
}

fn weighs(weight: u32) -> Gives {
    Gives {
        weight,
        ..Gives::default()
    }
}

/// Within two turns of what is expected.
fn near(on: [u64; 2], of: [u64; 2]) {
    let all = on[0] + on[1];
    let expected = all * of[0] / (of[0] + of[1]);
    assert!(
        on[0].abs_diff(expected) <= 2 * TURN_MS,
        "{on:?} ms, not {of:?}"
    );
}

/// P-FAIR-6: no process of a job gives it more than another does, and who leaves takes that along.
#[test]
fn the_least_weight_of_a_jobs_processes_holds_while_they_are_there() {
    let mut rig = Rig::new(1, policy());
    let heavy = rig.attach_of(7, Role::Offline, "heavy", weighs(4));
    let light = rig.attach_of(7, Role::Offline, "light", weighs(1));
    near(rig.enabled([heavy, light], 1_000), [4, 1]);
    let second = rig.attach_of(7, Role::Offline, "heavy", weighs(1));
    near(rig.enabled([heavy, light], 1_000), [1, 1]);
    rig.exit(second);
    near(rig.enabled([heavy, light], 1_000), [4, 1]);
    let idle = Gives {
        weight: 1_000,
        class: Class::Idle,
    };
    let idle = rig.attach_of(7, Role::Offline, "light", idle);
    let [heavy_ms, light_ms] = rig.enabled([heavy, light], 1_000);
    assert!(
        light_ms <= TURN_MS && heavy_ms > 900,
        "{heavy_ms} {light_ms}"
    );
    rig.exit(idle);
    near(rig.enabled([heavy, light], 1_000), [4, 1]);
}

/// P-OPERATE-21: what is said of waits adds up to the time in which a job that could run did not.
#[test]
fn every_wait_for_a_turn_is_counted_by_its_length() {
    let mut rig = Rig::new(1, policy());
    let one = rig.attach_of(7, Role::Offline, "one", weighs(1));
    let two = rig.attach_of(7, Role::Offline, "two", weighs(1));
    let before = *rig.shell.policy().turn_waits();
    let on = rig.enabled([one, two], 1_000);
    let after = rig.shell.policy().turn_waits();
    let waited_ms = (after.sum_ns - before.sum_ns) / MS;
    let off: u64 = on.iter().map(|on| 1_000 - on).sum();
    assert!(
        waited_ms.abs_diff(off) <= 2 * TURN_MS,
        "{waited_ms} ms of {off}"
    );
    let count = |waits: &tidegate_policy::fair::Waits| waits.counts.iter().sum::<u64>();
    let turns = count(after) - count(&before);
    assert!((90..=110).contains(&turns), "{turns} turns of 10 ms");
}

/// P-FAIR-6: what users have among each other changes with the settings, for those that are there.
#[test]
fn users_have_what_the_settings_in_force_say() {
    let mut rig = Rig::new(1, policy());
    let one = rig.attach_of(7, Role::Offline, "one", Gives::default());
    let two = [0, 1].map(|nth| rig.attach_of(8, Role::Offline, &format!("two{nth}"), weighs(9)));
    let both = |rig: &mut Rig| {
        let [one, a, b] = rig.enabled([one, two[0], two[1]], 1_000);
        [one, a + b]
    };
    near(both(&mut rig), [1, 1]);
    let configure = |rig: &mut Rig, users: &[(u32, u32, u32)]| {
        let share = |&(uid, weight, most)| (uid, UserShare { weight, most });
        rig.shell.take(Input::Configure(Box::new(Tunables {
            policy: policy(),
            rings_per_second: 1_000_000,
            prove_every_ns: 5_000 * MS,
            stall_ns: 50 * MS,
            answer_ns: 100 * MS,
            users: users.iter().map(share).collect::<BTreeMap<_, _>>(),
        })));
    };
    configure(&mut rig, &[(7, 3, 1_000)]);
    near(both(&mut rig), [3, 1]);
    configure(&mut rig, &[(8, 4, 1_000)]);
    near(both(&mut rig), [1, 4]);
    // At most a tenth, counted from now on: that of before stays within the two turns.
    configure(&mut rig, &[(8, 4, 100)]);
    near(both(&mut rig), [9, 1]);
    configure(&mut rig, &[]);
    near(both(&mut rig), [1, 1]);
}

/// P-FAIR-13: neither a hundred processes of a job nor a hundred jobs of a user get more than one.
#[test]
fn who_comes_a_hundredfold_has_no_more() {
    let mut rig = Rig::new(1, policy());
    let one = rig.attach_of(7, Role::Offline, "one", weighs(1));
    let forks: Vec<u64> = (0..100)
        .map(|_| rig.attach_of(8, Role::Offline, "forks", weighs(1)))
        .collect();
    near(rig.enabled([one, forks[0]], 1_000), [1, 1]);
    forks.into_iter().for_each(|fork| rig.exit(fork));
    let names: Vec<u64> = (0..100)
        .map(|nth| rig.attach_of(8, Role::Offline, &format!("name {nth}"), weighs(1)))
        .collect();
    rig.enabled([one], 100);
    let (mut own, mut others) = (0, 0);
    // A round of all of them lasts two seconds, in which each of the hundred has one turn.
    for _ in 0..8_000 {
        rig.enabled([one], 1);
        own += u64::from(rig.is_on(one, 0));
        others += u64::from(names.iter().any(|name| rig.is_on(*name, 0)));
    }
    assert!(own.abs_diff(others) <= 1_000, "{own} and {others} ms");
}

/// P-FAIR-8: who had the turn when the agent was stopped is not who had the time.
#[test]
fn nobody_pays_for_the_time_in_which_the_agent_was_stopped() {
    let mut rig = Rig::new(1, policy());
    let one = rig.attach_of(7, Role::Offline, "one", weighs(1));
    let two = rig.attach_of(7, Role::Offline, "two", weighs(1));
    near(rig.enabled([one, two], 105), [1, 1]);
    rig.pass(3_000 * MS);
    rig.rest();
    near(rig.enabled([one, two], 400), [1, 1]);
    // Nor who was about to give way: its disable is decided, and waits for its thread.
    while rig.gpus[0].waiting() == 0 {
        rig.rest();
        rig.pass(MS);
        rig.probe();
        rig.shell.wake();
        rig.shell.rest();
    }
    rig.pass(3_000 * MS);
    rig.rest();
    near(rig.enabled([one, two], 400), [1, 1]);
}

/// P-FAIR-1: a gang has its part of the time in which all its GPUs are open, and the single jobs have the rest.
#[test]
fn a_gang_has_half_of_the_time_that_its_gpus_are_open_together_and_single_jobs_the_rest() {
    let mut rig = Rig::new(2, policy());
    let online = rig.attach(Role::Online, "");
    let gang = rig.attach_of(7, Role::Offline, "gang", weighs(1));
    let singles = [0, 1].map(|gpu| {
        rig.uses = vec![gpu];
        rig.attach_of(
            8 + gpu as u32,
            Role::Offline,
            &format!("single{gpu}"),
            weighs(1),
        )
    });
    let (mut busy, mut both, mut open) = ([false; 2], 0u64, [0u64; 2]);
    let (mut of_gang, mut of_single) = (0u64, [0u64; 2]);
    for ms in 0..20_000u64 {
        // GPU 0 is open for three quarters of the time, GPU 1 for four fifths.
        for (gpu, every) in [(0, 4), (1, 5)] {
            let now = ms / 50 % every == 0;
            if now != busy[gpu] {
                rig.edge(online, gpu, now, ms + 1);
                busy[gpu] = now;
            }
        }
        rig.pass(MS);
        rig.probe();
        rig.rest();
        let on = [0, 1].map(|gpu| rig.is_on(gang, gpu));
        assert_eq!(on[0], on[1], "half of the gang is on at {ms} ms");
        for gpu in [0, 1] {
            let alone = rig.is_on(singles[gpu], gpu);
            assert!(!(on[gpu] && alone), "two jobs on GPU {gpu} at {ms} ms");
            assert!(!busy[gpu] || !(on[gpu] || alone), "GPU {gpu} beside online");
            of_single[gpu] += u64::from(alone);
            open[gpu] += u64::from(!busy[gpu]);
        }
        both += u64::from(busy == [false; 2]);
        of_gang += u64::from(on[0]);
    }
    assert!(
        of_gang.abs_diff(both / 2) <= both / 20,
        "{of_gang} of {both}"
    );
    for gpu in [0, 1] {
        let rest = open[gpu] - of_gang;
        let has = of_single[gpu];
        assert!(
            has <= rest && has >= rest * 19 / 20,
            "{has} of {rest} on GPU {gpu}"
        );
    }
}
