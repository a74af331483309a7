//! What an agent that stopped, died or was replaced left disabled: it stays on record until it is enabled or known to be
//! gone.

use tidegate_tests::peer::Peer;
use tidegate_tests::view::{disabled, status, wait_all, wait_so};
use tidegate_tests::{Node, Offline, Online, TRUSTING, watch};
use tidegate_vgpu::control::Control;

const FIXED: &str = "[identity]\ntrust_env_uids = [\"self\"]\n[gate]\ncooldown = \"5ms\"\n";

/// A node whose agent was killed while it kept the channels of a living process disabled; the process, its client, and
/// its channels.
fn left_behind() -> (Node, Peer, u32, Vec<u32>) {
    let mut node = Node::new(&[], TRUSTING);
    let mut online = idle_online(&node);
    online.ask("busy 0");
    let mut offline = Peer::attached(&node, "offline", "batch");
    let (client, channels) = offline.channels(0, 3);
    wait_all(&node, client, true);
    drop(node.agent.take());
    (node, offline, client, channels)
}

/// An idle online process on GPU 0.
fn idle_online(node: &Node) -> Peer {
    let mut online = Peer::attached(node, "online", "");
    online.ask("idle 0");
    online
}

fn set(node: &Node, knob: &str, value: &str) {
    let device = Control::connect(&node.vgpu_dir()).expect("the device listens");
    device.set(knob, value).expect("a knob");
}

/// `tidegate release`: whether it did all, and what it printed.
fn release(node: &Node) -> (bool, String) {
    let output = node.tidegate(&["release"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.success(), text)
}

/// P-LIFECYCLE-4: what a dead agent left disabled stays on record.
#[test]
fn a_channel_that_the_driver_refuses_to_enable_stays_on_record() {
    // A timeout, a firmware that takes no foreign pair (with a status that also means a dead client), and one that
    // has an answer for neither.
    for (knob, value, back, said) in [
        ("fail_enable", "3:0x65", None, "TIMEOUT"),
        ("gsp_foreign", "deny_23", Some("allow"), "INVALID_CLIENT"),
        ("gsp_foreign", "deny_1b", Some("allow"), "PERMISSIONS"),
        // As a freed channel is refused, of a driver that refuses every foreign pair so.
        ("fail_enable", "64:0x57", Some("0"), "OBJECT_NOT_FOUND"),
    ] {
        let (node, _offline, client, _) = left_behind();
        set(&node, knob, value);
        let (all, text) = release(&node);
        assert!(!all, "{knob}={value}: {text}");
        assert!(text.contains("3 could not be enabled"), "{text}");
        let named = format!("of client {client:#x}");
        assert_eq!(text.matches(&named).count(), 3, "each is named: {text}");
        assert!(text.contains(said), "the driver's words: {text}");
        assert_eq!(disabled(&node, client), [true; 3]);
        if let Some(back) = back {
            set(&node, knob, back);
        }
        let (all, text) = release(&node);
        assert!(
            all && text.contains("3 channels enabled"),
            "{knob}={value}, when the driver takes it: {text}"
        );
        assert_eq!(disabled(&node, client), [false; 3]);
    }
}

/// P-LIFECYCLE-4: what a dead agent left disabled stays on record.
#[test]
fn channels_that_are_gone_leave_the_record() {
    let (node, offline, ..) = left_behind();
    drop(offline);
    let (all, text) = release(&node);
    assert!(all && text.contains("3 were gone"), "{text}");
    assert_eq!(
        release(&node).1,
        "0 channels enabled, 0 were gone, 0 could not be enabled\n"
    );
}

/// P-LIFECYCLE-4: what a dead agent left disabled stays on record.
#[test]
fn a_freed_channel_of_a_living_process_leaves_the_record() {
    let (node, mut offline, client, channels) = left_behind();
    offline.ask(&format!("free {client:#x} {:#x}", channels[1]));
    let (all, text) = release(&node);
    assert!(all, "{text}");
    assert!(text.contains("2 channels enabled, 1 were gone"), "{text}");
    assert_eq!(disabled(&node, client), [false; 2]);
}

/// P-LIFECYCLE-4: what a dead agent left disabled stays on record.
#[test]
fn an_agent_names_what_it_cannot_enable_and_goes_on_trying() {
    let (mut node, _offline, client, _) = left_behind();
    set(&node, "fail_enable", "3:0x65");
    node.start_agent(TRUSTING);
    let log = || std::fs::read_to_string(node.agent_log()).unwrap_or_default();
    let named = format!("of client {client:#x}");
    assert!(
        log().contains(&named) && log().contains("TIMEOUT"),
        "{}",
        log()
    );
    wait_all(&node, client, false);
    wait_so("nothing left on record", || !node_has_marks(&node));
}

/// Whether doctor, asked when the agent is gone, would find anything on record.
fn node_has_marks(node: &Node) -> bool {
    let journal = tidegate_agent::channels::journal::find(&node.run_dir());
    let journal = journal.expect("readable").expect("there is one");
    !journal.marked().is_empty()
}

#[test]
fn a_clean_stop_enables_everything() {
    let mut node = Node::new(&[], FIXED);
    let mut online = idle_online(&node);
    online.ask("busy 0");
    let mut offline = Peer::attached(&node, "offline", "batch");
    let (client, _) = offline.channels(0, 70);
    wait_all(&node, client, true);
    let agent = node.agent.take().expect("it runs");
    agent.signal(libc::SIGTERM);
    agent.succeed();
    assert!(disabled(&node, client).iter().all(|&flag| !flag));
}

#[test]
fn a_successor_of_a_killed_agent_enables_what_it_left() {
    let mut node = Node::new(&[], FIXED);
    let mut online = idle_online(&node);
    online.ask("busy 0");
    let mut offline = Peer::attached(&node, "offline", "batch");
    let (client, _) = offline.channels(0, 3);
    wait_all(&node, client, true);
    drop(node.agent.take());
    assert!(disabled(&node, client).iter().all(|&flag| flag));
    node.start_agent(FIXED);
    assert!(disabled(&node, client).iter().all(|&flag| !flag));
    assert_eq!(status(&node)["agent_generation"], 2);
}

#[test]
fn release_enables_what_a_killed_agent_left_and_leaves_a_living_one_alone() {
    let mut node = Node::new(&[], FIXED);
    let mut online = idle_online(&node);
    online.ask("busy 0");
    let mut offline = Peer::attached(&node, "offline", "batch");
    let (client, _) = offline.channels(0, 3);
    wait_all(&node, client, true);
    assert_eq!(node.tidegate(&["release"]).status.code(), Some(3));
    assert!(disabled(&node, client).iter().all(|&flag| flag));
    drop(node.agent.take());
    let released = node.tidegate(&["release"]);
    let text = String::from_utf8_lossy(&released.stdout).into_owned();
    assert!(released.status.success(), "{text} {released:?}");
    assert!(text.contains("3 channels enabled"), "{text}");
    assert!(disabled(&node, client).iter().all(|&flag| !flag));
}

/// P-LIFECYCLE-4: what an agent left disabled is its successor's or is enabled.
#[test]
fn a_successor_that_was_handed_the_node_leaves_the_channels_as_they_are() {
    let mut node = Node::new(&[], FIXED);
    let mut online = idle_online(&node);
    online.ask("busy 0");
    let mut offline = Peer::attached(&node, "offline", "batch");
    let (client, channels) = offline.channels(0, 3);
    let mut gone = Peer::attached(&node, "offline", "forgetful");
    let (unclaimed, _) = gone.channels(0, 2);
    wait_all(&node, client, true);
    wait_all(&node, unclaimed, true);
    let first = node.replace_agent(FIXED);
    first.succeed();
    assert_eq!(status(&node)["agent_generation"], 2);
    // Both come back, the second without its channels.
    for peer in [&mut online, &mut offline] {
        peer.ask("connect");
    }
    online.ask("hello online");
    online.ask("device 0 0");
    online.ask("busy 0");
    offline.ask("hello offline batch");
    offline.ask("device 0 0");
    let list: Vec<_> = channels.iter().map(|c| format!("{c:#x}")).collect();
    offline.ask(&format!("report 0 {client:#x} {}", list.join(" ")));
    wait_all(&node, unclaimed, false);
    assert!(disabled(&node, client).iter().all(|&flag| flag));
    online.ask("idle 0");
    wait_all(&node, client, false);
}

/// P-LIFECYCLE-4: a record that cannot be read is set aside, and taken for one with every channel in it.
#[test]
fn channels_of_a_journal_that_cannot_be_read_are_enabled_and_gated_anew() {
    for level in ["L1", "L2", "L3", "L5"] {
        let mut node = Node::new(&[], FIXED);
        let mut online = Online::start(&node, 0);
        let mut offline = Offline::start(&node, 500_000, &[0]);
        offline.running();
        let pid = [offline.process.pid()];
        online.say("hold");
        watch::wait_all(&node, &pid, true);
        // Gone before its processes have landed, with another version's journal.
        drop(node.agent.take());
        let path = node.run_dir().join("journal");
        let mut words = std::fs::read(&path).expect("there is one");
        words[7] = b'2';
        std::fs::write(&path, &words).expect("writable");
        node.start_agent(&format!("{FIXED}[channel]\nlevel = \"{level}\"\n"));
        let note = status(&node)["driver_note"].as_str().map(str::to_owned);
        let note = note.expect("a text");
        assert!(note.contains("journal.unreadable-"), "{note}");
        let log = std::fs::read_to_string(node.agent_log()).unwrap_or_default();
        assert!(log.contains("journal.unreadable-"), "{log}");
        let doctor = node.tidegate(&["doctor", "--only", "journal"]);
        let text = String::from_utf8_lossy(&doctor.stdout).into_owned();
        assert!(text.contains("set aside"), "{text}");
        if level == "L5" {
            watch::wait_all(&node, &pid, false);
        }
        let released = online.say("release");
        watch::wait_all(&node, &pid, false);
        watch::wait_finished(&node, &pid, 50, released);
        if level != "L5" {
            online.say("hold");
            watch::wait_all(&node, &pid, true);
        }
        drop((online, offline));
    }
}

/// P-LIFECYCLE-4: records of GPUs that are not there leave room for others.
#[test]
fn a_journal_full_of_records_of_a_gpu_that_is_not_there_leaves_room() {
    let mut node = Node::new(&[], FIXED);
    drop(node.agent.take());
    // Of a client that exists, so that the driver does not say that they are gone.
    let mut other = Peer::start(&node);
    let made = other.ask("make 0 1");
    let client = made.split(' ').nth(1).expect("a client");
    let client = u64::from_str_radix(client.trim_start_matches("0x"), 16).expect("a handle");
    let path = node.run_dir().join("journal");
    let mut words = std::fs::read(&path).expect("there is one");
    for (at, record) in words[32..].chunks_exact_mut(16).enumerate() {
        record[..8].copy_from_slice(&((client << 32) | (0x5c00_0010 + at as u64)).to_ne_bytes());
        record[8..].copy_from_slice(&((9_u64 << 32) | 1).to_ne_bytes());
    }
    std::fs::write(&path, &words).expect("writable");
    node.start_agent(FIXED);
    let mut online = Peer::idle_online(&node);
    let mut offline = Peer::attached(&node, "offline", "batch");
    let (client, _) = offline.channels(0, 3);
    online.ask("busy 0");
    wait_all(&node, client, true);
    online.ask("idle 0");
    wait_all(&node, client, false);
    let log = std::fs::read_to_string(node.agent_log()).unwrap_or_default();
    assert!(log.contains("are given up"), "{log}");
}
