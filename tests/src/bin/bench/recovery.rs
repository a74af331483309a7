//! How soon what somebody's death left is in order again: a program's, and an agent's with many channels disabled.

use crate::row::{Row, median};
use tidegate_tests::view::descriptors;
use tidegate_tests::watch::{Testimony, channels, wait_all, wait_open};
use tidegate_tests::{Node, Offline, Online, TRUSTING, compile, monotonic_ns, wait_for};
use tidegate_vgpu::history::Kind;

/// Channels that a dead agent's successor finds in the journal, at least.
const JOURNALED: usize = 256;

/// `kills` programs and `deaths` agents.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
pub fn measure(kills: usize, deaths: usize) -> Vec<Row> {
    let mut node = Node::new(&[], TRUSTING);
    let (gone, left) = programs(&node, kills);
    let longest = gone.iter().copied().fold(0.0, f64::max);
    let (mut reconciled, mut served, mut count) = (Vec::new(), Vec::new(), 0);
    let mut many = with_many_channels(&node);
    let pid = [many.process.pid()];
    for _ in 0..deaths {
        many.say("launch 2000000");
        let (of, until_served, took) = agents(&mut node, &pid);
        count = of;
        served.push(until_served);
        reconciled.push(took);
        many.say("sync");
    }
    vec![
        Row::new("recovery.kills", kills as f64, ""),
        Row::new("recovery.forgotten_p50_ms", median(gone), "ms"),
        Row::new("recovery.forgotten_max_ms", longest, "ms").at_most(100.0),
        Row::new("recovery.descriptors_left", left as f64, "").at_most(0.0),
        Row::new("recovery.journaled_channels", count as f64, "").at_least(JOURNALED as f64),
        Row::new("recovery.reconciled_p50_ms", median(reconciled), "ms").at_most(100.0),
        Row::new("recovery.served_p50_ms", median(served), "ms").at_most(300.0),
    ]
}

/// When the agent said of `pid` that it is gone, by its own clock, which is this process'.
fn exited_ns(node: &Node, pid: u32) -> Option<u64> {
    let events = node.tidegate(&["events", "--output", "json"]);
    String::from_utf8_lossy(&events.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|event| event["kind"] == "exited")
        .find(|event| event["pid"].as_u64() == Some(u64::from(pid)))?["at_ns"]
        .as_u64()
}

/// Milliseconds from each kill to nothing of the program being held; and descriptors the agent has more than before.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn programs(node: &Node, kills: usize) -> (Vec<f64>, usize) {
    let agent = node.agent.as_ref().map_or(0, |agent| agent.pid());
    let mut before = 0;
    let mut gone = Vec::new();
    for round in 0..=kills {
        let mut offline = Offline::start(node, 500_000, &[0]);
        offline.running();
        let pid = offline.process.pid();
        let killed = monotonic_ns();
        offline.process.signal(libc::SIGKILL);
        let at = wait_for("the agent to see it", || exited_ns(node, pid));
        drop(offline);
        if round == 0 {
            // The first one leaves what every agent keeps from then on.
            before = descriptors(agent);
            continue;
        }
        gone.push(at.saturating_sub(killed) as f64 / 1e6);
    }
    (gone, descriptors(agent).saturating_sub(before))
}

/// An offline program with more than [`JOURNALED`] channels.
fn with_many_channels(node: &Node) -> Online {
    let mut command = node.preloaded(compile("contexts", &["-lcuda"]), "offline");
    command.env("CUDA_DEVICE_MAX_CONNECTIONS", "32");
    let mut many = Online::from_command(&mut command);
    many.say("make 2");
    while channels(node, &[many.process.pid()]).len() < JOURNALED {
        many.say("make 1");
    }
    many
}

/// Kills the agent while every channel of `pid` is disabled: how many those are, and milliseconds from the next one's
/// start until it serves, and from its first enable until it has enabled them all.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn agents(node: &mut Node, pid: &[u32; 1]) -> (usize, f64, f64) {
    let mut online = Online::start(node, 0);
    wait_open(node, 0, online.process.pid());
    online.say("hold");
    let count = wait_all(node, pid, true);
    node.agent = None;
    let begun = monotonic_ns();
    node.start_agent(TRUSTING);
    let served = monotonic_ns() - begun;
    let agent = node.agent.as_ref().map_or(0, |agent| agent.pid());
    online.say("release");
    drop(online);
    let testimony = Testimony::of(node);
    let enabled: Vec<u64> = testimony
        .0
        .iter()
        .filter(|record| record.kind == Kind::EnableEnd && record.caller == agent)
        .take(count)
        .map(|record| record.at_ns)
        .collect();
    let took = enabled.iter().max().zip(enabled.iter().min());
    let took = took.map_or(f64::NAN, |(last, first)| (last - first) as f64 / 1e6);
    wait_all(node, pid, false);
    (count, served as f64 / 1e6, took)
}
