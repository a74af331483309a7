//! A process whose sandbox lets no descriptor pass has no page and no proof: its edges come, and its
//! launch gate goes, on the stream.

use tidegate_tests::peer::Peer;
use tidegate_tests::view::{disabled, finished_after, process, status, wait_so};
use tidegate_tests::{Node, Offline, Online, monotonic_ns, wait_for, watch};
use tidegate_vgpu::history::{self, Kind};

const FIXED: &str = "[identity]\ntrust_env_uids = [\"self\"]\n[gate]\ncooldown = \"50ms\"\n";

fn lane(node: &Node, pid: u32) -> Option<String> {
    let row = process(node, pid)?;
    row["lane"].as_str().map(str::to_owned)
}

/// Kernels of `pid` that began in a stretch of the device's time.
fn begun(node: &Node, pid: u32, from: u64, to: u64) -> usize {
    let records = history::read(&node.vgpu_dir()).expect("the device keeps a history");
    let began = |r: &&history::Record| {
        r.kind == Kind::KernelStart && r.pid == pid && r.at_ns > from && r.at_ns < to
    };
    records.iter().filter(began).count()
}

/// When the device finished the kernel that `online` launched after `from`.
#[track_caller]
fn end_after(node: &Node, online: &Online, from: u64) -> u64 {
    wait_for("the end of online work in the history", || {
        finished_after(node, online.process.pid(), from)
    })
}

/// P-GATE-13: a process without descriptors is gated on its stream.
#[test]
fn launches_of_an_unproven_process_wait_for_online_work_and_pass_after_the_cooldown() {
    let node = Node::new(&[], FIXED);
    let mut command = node.sandboxed("offline", "offline");
    command.args(["1000000", "0"]);
    let mut offline = Offline::from_command(&mut command);
    offline.running();
    let pid = offline.process.pid();
    assert_eq!(lane(&node, pid).as_deref(), Some("stream"));
    let mut online = Online::start(&node, 0);
    watch::wait_open(&node, 0, online.process.pid());
    watch::wait_finished(&node, &[pid], 1, monotonic_ns());

    for _ in 0..2 {
        let from = monotonic_ns();
        online.say("hold");
        // The gate is shut at a launch: what was queued before, four kernels of a millisecond, still runs.
        wait_for("its launches to wait", || {
            let now = monotonic_ns();
            (begun(&node, pid, now - 500_000_000, now) == 0).then_some(())
        });
        online.say("release");
        watch::wait_finished(&node, &[pid], 10, end_after(&node, &online, from));
    }
    offline.stop();
}

/// P-GATE-13: a process without descriptors is gated on its stream.
#[test]
fn edges_of_an_online_process_without_descriptors_gate_an_offline_one() {
    let node = Node::new(&[], FIXED);
    let mut offline = Offline::start(&node, 1_000_000, &[0]);
    offline.running();
    let pid = offline.process.pid();
    let mut command = node.sandboxed("online", "online");
    command.arg("0");
    let mut online = Online::from_command(&mut command);
    watch::wait_open(&node, 0, online.process.pid());
    assert_eq!(lane(&node, online.process.pid()).as_deref(), Some("stream"));
    online.say("hold");
    watch::wait_all(&node, &[pid], true);
    let from = monotonic_ns();
    online.say("release");
    let to = end_after(&node, &online, from);
    let beside = begun(&node, pid, from, to);
    assert_eq!(beside, 0, "kernels began while channels were disabled");
    watch::wait_finished(&node, &[pid], 10, to);
    offline.stop();
}

/// The agent's half alone: who has no page is told of each change, once.
/// P-GATE-13: a process without descriptors is gated on its stream.
#[test]
fn a_process_without_a_page_is_told_when_its_launches_wait_and_when_they_pass() {
    for level in ["L1", "L5"] {
        let node = Node::new(&[], &format!("{FIXED}[channel]\nlevel = \"{level}\"\n"));
        let mut online = Peer::attached(&node, "online", "");
        online.ask("idle 0");
        let mut offline = Peer::start(&node);
        offline.ask("connect bare");
        offline.ask("hello offline sandboxed");
        offline.ask("device 0 0");
        let (client, _) = offline.channels(0, 2);
        let told = |offline: &Peer, what: &str, times: usize| {
            wait_so(what, || offline.times(&format!("gate 0 {what}")) == times);
        };
        told(&offline, "open", 1);
        online.ask("busy 0");
        told(&offline, "closed", 2);
        assert_eq!(disabled(&node, client), [false, false]);
        online.ask("idle 0");
        told(&offline, "open", 2);
        assert_eq!(status(&node)["jobs"][0]["state"], "running", "{level}");
    }
}
