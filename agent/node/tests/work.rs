//! The shell as it ships, turned by hand: a job without work costs the others nothing, and saves nothing up.

mod rig;

use rig::{Rig, client};
use std::time::Duration;
use tidegate_node::kinds::Role;
use tidegate_policy::config::{Config, Fair, FairMode};

const MS: u64 = 1_000_000;
const TURN_MS: u64 = 20;

fn rig(mode: FairMode) -> Rig {
    let turn = Duration::from_millis(TURN_MS);
    let mut rig = Rig::new(
        1,
        Config {
            fair: Fair { mode, turn },
            ..Rig::without_waits()
        },
    );
    rig.library.says_work = true;
    rig
}

/// How many of so many milliseconds a channel of each session was enabled, by the issue threads' own list.
fn enabled<const N: usize>(rig: &mut Rig, sessions: [u64; N], ms: u64) -> [u64; N] {
    let mut on = [0; N];
    for _ in 0..ms {
        rig.pass(MS);
        rig.probe();
        rig.rest();
        for (on, session) in on.iter_mut().zip(sessions) {
            *on += u64::from(!rig.gpus[0].disabled.contains(&(client(session), 1)));
        }
    }
    on
}

/// P-FAIR-7: who wants nothing has no turn, and gets no more than its share when it comes back.
#[test]
fn time_without_work_goes_to_the_others_and_is_no_credit() {
    let mut rig = rig(FairMode::Turns);
    let one = rig.attach(Role::Offline, "one");
    rig.edge(one, 0, true, 0);
    enabled(&mut rig, [one], 100);
    assert_eq!(rig.asked(one), Duration::ZERO, "it is alone");
    let two = rig.attach(Role::Offline, "two");
    enabled(&mut rig, [one, two], 100);
    assert_eq!(
        [one, two].map(|own| rig.asked(own)),
        [Duration::from_millis(5); 2]
    );
    let both = [one, two];
    assert_eq!(
        enabled(&mut rig, both, 500),
        [500, 0],
        "the second has launched nothing"
    );
    rig.edge(two, 0, true, 0);
    let on = enabled(&mut rig, both, 1_000);
    assert!(on[0].abs_diff(on[1]) <= 2 * TURN_MS, "{on:?}");
    rig.edge(two, 0, false, 9);
    // What is left of its turn is over 10 ms later.
    enabled(&mut rig, both, 20);
    assert_eq!(enabled(&mut rig, both, 2_000), [2_000, 0]);
    rig.edge(two, 0, true, 9);
    let on = enabled(&mut rig, both, 400);
    assert!(on[0].abs_diff(on[1]) <= 2 * TURN_MS, "{on:?}");
    rig.exit(two);
    enabled(&mut rig, [one], 100);
    assert_eq!(rig.asked(one), Duration::ZERO, "it is alone again");
}

/// P-FAIR-7: who cannot say has work, and nobody is asked where jobs take no turns.
#[test]
fn a_process_that_cannot_say_counts_as_having_work() {
    let mut turns = rig(FairMode::Turns);
    let one = turns.attach(Role::Offline, "one");
    turns.edge(one, 0, true, 0);
    turns.library.says_work = false;
    let old = turns.attach(Role::Offline, "old");
    enabled(&mut turns, [one, old], 100);
    assert_eq!(turns.asked(old), Duration::ZERO);
    let on = enabled(&mut turns, [one, old], 1_000);
    assert!(on[0].abs_diff(on[1]) <= 2 * TURN_MS, "{on:?}");
    let mut together = rig(FairMode::Together);
    let both = [0, 1].map(|nth| together.attach(Role::Offline, &format!("job {nth}")));
    enabled(&mut together, both, 100);
    assert_eq!(both.map(|own| together.asked(own)), [Duration::ZERO; 2]);
}
