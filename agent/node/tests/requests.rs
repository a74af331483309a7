//! The shell as it ships, turned by hand: what an engine says of its requests counts for the work it did under that
//! word, whatever the shell hears first.

mod rig;

use rig::Rig;
use std::time::Duration;
use tidegate_node::kinds::Role;
use tidegate_policy::config::{Config, Cooldown};

const MS: u64 = 1_000_000;
/// After so long pages are looked at before doorbells: `shell::turn`.
const HEARTBEAT_NS: u64 = 50 * MS;

/// Nothing opens by itself within a test.
fn rig() -> Rig {
    Rig::new(
        1,
        Config {
            cooldown: Cooldown::Fixed(Duration::from_secs(600)),
            ..Rig::without_waits()
        },
    )
}

/// Busy, idle, busy, idle: more than one edge, so the shell knows of some only that they came.
fn work(rig: &Rig, online: u64) {
    for launches in 1..3 {
        rig.edge(online, 0, true, launches);
        rig.pass(MS);
        rig.edge(online, 0, false, launches);
        rig.pass(MS);
    }
}

/// P-GATE-18: work before the first word is cooled by what was said then, which is nothing, and the word ends that.
#[test]
fn a_word_heard_before_the_work_that_came_before_it_is_of_the_next_work() {
    for names in [true, false] {
        let mut rig = rig();
        let offline = rig.attach(Role::Offline, "batch");
        rig.names_devices = names;
        let online = rig.attach(Role::Online, "");
        rig.edge(online, 0, true, 1);
        rig.pass(MS);
        rig.requests(online, 0);
        // The heartbeat comes before the doorbell is looked at.
        rig.pass(HEARTBEAT_NS);
        rig.rest();
        rig.name_devices(online);
        rig.rest();
        rig.edge(online, 0, false, 1);
        assert_eq!(rig.enabled([offline], 100), [100], "named before: {names}");
        // Work of which it does not tell is cooled, from the next on.
        work(&rig, online);
        assert_eq!(rig.enabled([offline], 100), [0], "named before: {names}");
    }
}

/// P-GATE-18: work of a request that has ended when the shell hears of either is work of that request.
#[test]
fn work_that_is_heard_of_with_the_end_of_its_request_was_announced() {
    let mut rig = rig();
    let offline = rig.attach(Role::Offline, "batch");
    let online = rig.attach(Role::Online, "");
    rig.requests(online, 0);
    for beat in [false, true] {
        rig.requests(online, 1);
        rig.rest();
        assert_eq!(rig.enabled([offline], 10), [0]);
        work(&rig, online);
        rig.requests(online, 0);
        if beat {
            rig.pass(HEARTBEAT_NS);
        }
        assert_eq!(rig.enabled([offline], 100), [100], "heartbeat: {beat}");
    }
}
