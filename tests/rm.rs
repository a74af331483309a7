//! Whatever a process does with the resource manager's objects and files, its channels are known, and
//! a new one runs nothing before they are.
//!
//! The peer (`src/bin/scripted-peer`) makes its RM calls in the sight of the library.

use tidegate_tests::clock::Stalls;
use tidegate_tests::peer::Peer;
use tidegate_tests::watch::{channels, status, wait_all, wait_open};
use tidegate_tests::{Node, Online, TRUSTING, wait_for};

/// Longest hold of a schedule call.
const HOLD_NS: u64 = 2_000_000_000;

fn attached(node: &Node, pid: u32) -> Option<serde_json::Value> {
    let status = status(node);
    let processes = status["processes"].as_array()?;
    processes.iter().find(|row| row["pid"] == pid).cloned()
}

#[track_caller]
fn peer(node: &Node, role: &str) -> Peer {
    let peer = Peer::preloaded(node, role);
    wait_for("it to attach", || attached(node, peer.running.pid()));
    peer
}

/// (RM status, nanoseconds) of a schedule call.
#[track_caller]
fn enable(peer: &mut Peer, client: u32, object: u32) -> (u64, u64) {
    let answer = peer.ask(&format!("enable {client} {object}"));
    let mut numbers = answer
        .split(' ')
        .skip(1)
        .map(|word| word.parse().expect("a number"));
    let mut next = || numbers.next().expect("two numbers");
    (next(), next())
}

/// Has the peer make two channels; their client.
#[track_caller]
fn two_channels(peer: &mut Peer) -> u32 {
    let made = peer.ask("make 0 2");
    let client = made.split(' ').nth(1).expect("a client");
    u32::from_str_radix(&client[2..], 16).expect("a handle")
}

/// How many channels the agent knows of a process.
#[track_caller]
fn wait_known(node: &Node, pid: u32, count: u64) {
    wait_for("the agent to know its channels", || {
        let known = attached(node, pid)?["channels"].as_u64()?;
        (known == count).then_some(())
    });
}

fn leaks(node: &Node) -> usize {
    let events = node.tidegate(&["events"]);
    let text = String::from_utf8_lossy(&events.stdout).into_owned();
    text.matches("channel_leak").count()
}

/// P-GATE-12: a new channel runs nothing before it is known.
#[test]
fn a_schedule_call_that_no_agent_answers_is_held_two_seconds_then_passes_and_is_counted() {
    let node = Node::new(&[], TRUSTING);
    let mut peer = peer(&node, "offline");
    let stalls = Stalls::watch();
    // The agent is never told of such a client, so it never lets go.
    let (status, took) = enable(&mut peer, 0xdead, 0xbeef);
    assert_ne!(status, 0, "the device was asked, and knows no such client");
    let bound = 2 * HOLD_NS + stalls.ns();
    assert!((HOLD_NS..bound).contains(&took), "held {took} ns");
    wait_for("the leak in the events", || {
        (leaks(&node) == 1).then_some(())
    });
}

/// P-GATE-12: a new channel runs nothing before it is known.
#[test]
fn a_schedule_call_of_known_channels_is_let_go_at_once() {
    let node = Node::new(&[], TRUSTING);
    let mut peer = peer(&node, "offline");
    let client = two_channels(&mut peer);
    let stalls = Stalls::watch();
    let (status, took) = enable(&mut peer, client, 0x5c00_0003);
    assert_eq!(status, 0);
    assert!(took < HOLD_NS / 2 + stalls.ns(), "held {took} ns");
    assert_eq!(leaks(&node), 0);
}

/// P-GATE-12: a new channel runs nothing before it is known.
#[test]
fn a_schedule_call_of_an_online_or_unknown_process_is_never_held() {
    let node = Node::new(&[], "[identity]\ntrust_env_uids = [\"self\"]\n");
    for role in ["online", ""] {
        let mut peer = peer(&node, role);
        let stalls = Stalls::watch();
        let (_, took) = enable(&mut peer, 0xdead, 0xbeef);
        assert!(took < HOLD_NS / 4 + stalls.ns(), "{role:?}: held {took} ns");
    }
    assert_eq!(leaks(&node), 0);
}

/// P-GATE-12: a new channel runs nothing before it is known.
#[test]
fn channels_made_on_a_control_file_and_freed_on_its_duplicate_come_and_go() {
    let node = Node::new(&[], TRUSTING);
    let mut peer = peer(&node, "offline");
    let pid = peer.running.pid();
    let own = channels(&node, &[pid]).len() as u64;
    wait_known(&node, pid, own);
    let client = two_channels(&mut peer);
    wait_known(&node, pid, own + 2);
    peer.ask("dup");
    peer.ask(&format!("free {client}"));
    wait_known(&node, pid, own);
    assert_eq!(channels(&node, &[pid]).len() as u64, own);
}

/// P-GATE-12: a new channel runs nothing before it is known.
#[test]
fn channels_that_went_with_a_closed_control_file_keep_no_other_from_being_gated() {
    let node = Node::new(&[], TRUSTING);
    let mut peer = peer(&node, "offline");
    let pid = peer.running.pid();
    let own = channels(&node, &[pid]).len() as u64;
    two_channels(&mut peer);
    wait_known(&node, pid, own + 2);
    peer.ask("close");
    assert_eq!(
        channels(&node, &[pid]).len() as u64,
        own,
        "closing frees them"
    );
    let mut online = Online::start(&node, 0);
    wait_open(&node, 0, online.process.pid());
    for _ in 0..3 {
        online.say("hold");
        wait_all(&node, &[pid], true);
        online.say("release");
        wait_all(&node, &[pid], false);
    }
}
