//! The shell as it ships, turned by hand: a job without work costs the others nothing, and saves nothing up.

mod rig;

use rig::Rig;
use std::time::Duration;
use tidegate_node::kinds::Role;
use tidegate_policy::config::{Config, Fair, FairMode};

const TURN_MS: u64 = 20;

fn rig(mode: FairMode) -> Rig {
    let turn = Duration::from_millis(TURN_MS);
    let mut rig = Rig::new(
        1,
        Config {
            fair: Fair {
                mode,
                turn,
                ..Fair::default()
            },
            ..Rig::without_waits()
        },
    );
    rig.library.says_work = true;
    rig
}

/// P-FAIR-7: who wants nothing has no turn, and gets no more than its share when it comes back.
#[test]
fn time_without_work_goes_to_the_others_and_is_no_credit() {
    let mut rig = rig(FairMode::Turns);
    let one = rig.attach(Role::Offline, "one");
    rig.edge(one, 0, true, 0);
    rig.enabled([one], 100);
    assert_eq!(rig.asked(one), Duration::ZERO, "it is alone");
    let two = rig.attach(Role::Offline, "two");
    rig.enabled([one, two], 100);
    assert_eq!(
        [one, two].map(|own| rig.asked(own)),
        [Duration::from_millis(5); 2]
    );
    let both = [one, two];
    assert_eq!(
        rig.enabled(both, 500),
        [500, 0],
        "the second has launched nothing"
    );
    rig.edge(two, 0, true, 0);
    let on = rig.enabled(both, 1_000);
    assert!(on[0].abs_diff(on[1]) <= 2 * TURN_MS, "{on:?}");
    rig.edge(two, 0, false, 9);
    // What is left of its turn is over 10 ms later.
    rig.enabled(both, 20);
    assert_eq!(rig.enabled(both, 2_000), [2_000, 0]);
    rig.edge(two, 0, true, 9);
    let on = rig.enabled(both, 400);
    assert!(on[0].abs_diff(on[1]) <= 2 * TURN_MS, "{on:?}");
    rig.exit(two);
    rig.enabled([one], 100);
    assert_eq!(rig.asked(one), Duration::ZERO, "it is alone again");
}

/// P-FAIR-7, P-FAIR-13: who cannot say has work and wastes its own part only, and nobody is asked where jobs take no
/// turns.
#[test]
fn a_process_that_cannot_say_counts_as_having_work() {
    let mut turns = rig(FairMode::Turns);
    let one = turns.attach(Role::Offline, "one");
    turns.edge(one, 0, true, 0);
    turns.library.says_work = false;
    let old = turns.attach(Role::Offline, "old");
    turns.enabled([one, old], 100);
    assert_eq!(turns.asked(old), Duration::ZERO);
    let on = turns.enabled([one, old], 1_000);
    assert!(on[0].abs_diff(on[1]) <= 2 * TURN_MS, "{on:?}");
    turns.library.says_work = true;
    let two = turns.attach(Role::Offline, "two");
    turns.edge(two, 0, true, 0);
    let on = turns.enabled([one, two, old], 3_000);
    let third = |on: &u64| on.abs_diff(1_000) <= 2 * TURN_MS;
    assert!(on.iter().all(third), "{on:?} ms: it wastes its own part");
    let mut together = rig(FairMode::Together);
    let both = [0, 1].map(|nth| together.attach(Role::Offline, &format!("job {nth}")));
    together.enabled(both, 100);
    assert_eq!(both.map(|own| together.asked(own)), [Duration::ZERO; 2]);
}

/// P-FAIR-23: who has no channel of its own has no turn beside one that has, however busy it says it is.
#[test]
fn processes_without_a_channel_cost_an_honest_job_nothing() {
    for says_work in [true, false] {
        let mut rig = rig(FairMode::Turns);
        let honest = rig.attach(Role::Offline, "honest");
        rig.edge(honest, 0, true, 0);
        (rig.has_channels, rig.library.says_work) = (false, says_work);
        for nth in 0..10 {
            let liar = rig.attach(Role::Offline, &format!("liar {nth}"));
            rig.edge(liar, 0, true, 0);
        }
        assert_eq!(rig.enabled([honest], 1_000), [1_000], "{says_work}");
        (rig.has_channels, rig.library.says_work) = (true, true);
        let second = rig.attach(Role::Offline, "second");
        rig.edge(second, 0, true, 0);
        let on = rig.enabled([honest, second], 1_000);
        assert!(on[0].abs_diff(on[1]) <= 2 * TURN_MS, "{on:?}");
    }
}

/// P-SECURITY-25: who keeps offline away without any work is told apart from who launches.
#[test]
fn an_online_process_that_launches_nothing_is_busy_for_nothing() {
    let mut rig = rig(FairMode::Turns);
    let online = rig.attach(Role::Online, "");
    let since = |rig: &Rig| {
        let own = rig.shell.members().get(online)?;
        own.busy_for_nothing().map(|(_, since)| since)
    };
    assert_eq!(since(&rig), None, "it is idle");
    rig.edge(online, 0, true, 5);
    rig.enabled([], 200);
    let begun = since(&rig).expect("it is busy");
    rig.enabled([], 500);
    assert_eq!(since(&rig), Some(begun));
    rig.launch(online, 0);
    rig.enabled([], 200);
    assert!(since(&rig) > Some(begun), "it has launched");
}
