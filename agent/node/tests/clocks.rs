//! The shell as it ships, turned by hand: processes whose clock is not the agent's, and an agent that was away.

mod rig;

use rig::Rig;
use std::time::Duration;
use tidegate_node::clock::ProcessClock;
use tidegate_node::kinds::Role;
use tidegate_policy::config::{Config, Cooldown};

const MS: u64 = 1_000_000;
const FROZEN: u64 = 1_000 * MS;
const COOLDOWN: u64 = 10 * MS;
const HOLD: u64 = 500 * MS;
const AWAY: u64 = 5_000 * MS;

/// An idle online process beside an offline one that runs.
fn pair(clock: ProcessClock) -> (Rig, u64, u64) {
    let mut rig = Rig::new(
        1,
        Config {
            cooldown: Cooldown::Fixed(Duration::from_nanos(COOLDOWN)),
            start_hold: Duration::from_nanos(HOLD),
            frozen_after: Duration::from_nanos(FROZEN),
            ..Config::default()
        },
    );
    // Long after the machine started, so that a clock can be behind.
    rig.pass(400_000 * MS);
    rig.rest();
    rig.clock = clock;
    let offline = rig.attach(Role::Offline, "batch");
    let online = rig.attach(Role::Online, "");
    rig.edge(online, 0, true, 1);
    rig.rest();
    rig.edge(online, 0, false, 1);
    rig.enabled([offline], 600);
    assert_eq!(rig.enabled([offline], 10), [10], "offline runs");
    (rig, online, offline)
}

fn shifted(seconds: i64) -> ProcessClock {
    ProcessClock::found(Some(seconds * 1_000_000_000), None).expect("the kernel tells")
}

/// P-LIFECYCLE-12: a process is judged as any other, whatever its clock.
#[test]
fn whatever_clock_a_process_has_latencies_and_progress_are_its_own() {
    for seconds in [0, -300, -1, 1, 86_400] {
        let (mut rig, online, offline) = pair(shifted(seconds));
        let known = rig.shell.lanes().gpus.lines()[0].preempt.buckets().sum_ns();
        rig.edge(online, 0, true, 1);
        rig.pass(MS);
        assert_eq!(rig.enabled([offline], 3_000), [0], "{seconds} s");
        let sum = rig.shell.lanes().gpus.lines()[0].preempt.buckets().sum_ns();
        assert!(
            (MS..3 * MS).contains(&(sum - known)),
            "a preemption {seconds} s away took {} ns",
            sum - known
        );
        rig.edge(online, 0, false, 1);
        rig.rest();
        let on = rig.enabled([offline], 100);
        assert!(
            (80..=91).contains(&on[0]),
            "a cooldown {seconds} s away: {on:?} of 100 ms"
        );
        let told = rig.told.kinds();
        for odd in ["lapsed", "recovered", "cooldown_violated"] {
            assert!(!told.contains(&odd), "{seconds} s: {told:?}");
        }
        let (heard, ours) = (rig.heartbeat(online), rig.now());
        let theirs = ours
            .checked_add_signed(seconds * 1_000_000_000)
            .expect("in range");
        assert!(
            theirs - heard <= 60 * MS,
            "an older library compares the heartbeat with its own clock"
        );
    }
}

/// P-LIFECYCLE-12: an agent that was away takes nobody for frozen and wakes nobody, though the page of an online process
/// that left meanwhile says nothing any more.
#[test]
fn online_that_is_busy_stays_so_while_the_agent_is_away() {
    for probes in [false, true] {
        let (mut rig, online, offline) = pair(ProcessClock::default());
        rig.edge(online, 0, true, 1);
        rig.rest();
        rig.pass(AWAY);
        if probes {
            rig.probe();
        }
        rig.rest();
        assert!(!rig.is_on(offline, 0), "probes: {probes}");
        let told = rig.told.kinds();
        assert!(told.contains(&"agent_was_stopped"), "{told:?}");
        assert!(!told.contains(&"lapsed"), "{told:?}");
        // It is watched from here on.
        for _ in 0..FROZEN / MS - 1 {
            rig.pass(MS);
            rig.rest();
        }
        assert!(!rig.told.kinds().contains(&"lapsed"), "watched too little");
        rig.pass(60 * MS);
        rig.rest();
        assert!(rig.told.kinds().contains(&"lapsed"), "it is frozen indeed");
    }
}

/// P-LIFECYCLE-12: what an idle online process does while the agent is away, its page does not say. Nothing runs until it
/// had the time to come back.
#[test]
fn online_that_comes_back_busy_finds_offline_stopped() {
    let (mut rig, _, offline) = pair(ProcessClock::default());
    rig.pass(AWAY);
    rig.rest();
    assert_eq!(rig.enabled([offline], 400), [0]);
    let back = rig.attach(Role::Online, "");
    rig.edge(back, 0, true, 1);
    assert_eq!(rig.enabled([offline], 800), [0]);
    rig.edge(back, 0, false, 1);
    rig.rest();
    assert!(rig.enabled([offline], 100)[0] > 80, "it runs again");
}

/// P-LIFECYCLE-12: an issue thread that was stopped with the agent is in no call that does not return.
#[test]
fn a_call_is_not_stalled_for_the_time_in_which_nobody_looked() {
    let (mut rig, online, _) = pair(ProcessClock::default());
    rig.gpus[0].stands = true;
    rig.edge(online, 0, true, 1);
    rig.shell.wake();
    rig.shell.rest();
    rig.pass(AWAY);
    rig.shell.wake();
    rig.shell.rest();
    assert!(!rig.told.kinds().contains(&"issue_stalled"));
    rig.pass(60 * MS);
    rig.shell.wake();
    rig.shell.rest();
    assert!(rig.told.kinds().contains(&"issue_stalled"), "now it is");
}
