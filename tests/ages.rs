//! Libraries of another age: older than the greeting, or with pages of another layout. They are heard and
//! gated on the stream.

use tidegate_tests::Node;
use tidegate_tests::peer::Peer;
use tidegate_tests::view::{status, wait_all};

const FIXED: &str = "[identity]\ntrust_env_uids = [\"self\"]\n[gate]\ncooldown = \"5ms\"\n";

/// What status says of the processes, by role.
fn lane(node: &Node, role: &str) -> String {
    let status = status(node);
    let rows = status["processes"].as_array().cloned().unwrap_or_default();
    let row = rows.iter().find(|row| row["role"] == role);
    row.expect("such a process")["lane"]
        .as_str()
        .expect("a text")
        .to_owned()
}

#[track_caller]
fn gates_for_a_library_of_another_age(age: &str) {
    let node = Node::new(&[], FIXED);
    let mut online = Peer::start(&node);
    online.ask(&format!("connect {age}"));
    online.ask("hello online");
    online.ask("device 0 0");
    online.ask("idle 0");
    assert_eq!(lane(&node, "online"), "stream");
    let mut offline = Peer::attached(&node, "offline", "batch");
    let (client, _) = offline.channels(0, 2);
    for _ in 0..3 {
        wait_all(&node, client, false);
        online.ask("busy 0");
        wait_all(&node, client, true);
        online.ask("idle 0");
    }
}

/// P-LIFECYCLE-1: online never waits for the agent.
#[test]
fn a_library_older_than_the_greeting_is_heard_on_the_stream() {
    gates_for_a_library_of_another_age("old");
}

/// P-LIFECYCLE-1: online never waits for the agent.
#[test]
fn a_library_with_pages_of_another_layout_is_heard_on_the_stream() {
    gates_for_a_library_of_another_age("otherpage");
}

#[test]
fn channels_of_an_offline_library_with_pages_of_another_layout_are_gated() {
    let node = Node::new(&[], FIXED);
    let mut online = Peer::idle_online(&node);
    let mut offline = Peer::start(&node);
    offline.ask("connect otherpage");
    offline.ask("hello offline batch");
    offline.ask("device 0 0");
    let (client, _) = offline.channels(0, 2);
    wait_all(&node, client, false);
    online.ask("busy 0");
    wait_all(&node, client, true);
    assert_eq!(lane(&node, "offline"), "stream");
    online.ask("idle 0");
    wait_all(&node, client, false);
}
