//! Offline work stops when online work begins and resumes, exactly, after a cooldown.

use tidegate_tests::{Node, Offline, Online, TRUSTING, wait_for, watch};
use tidegate_vgpu::history::{self, Kind, Record};

/// The engine that runs kernels, as the history names it.
const GRAPHICS: u64 = tidegate_abi::class::ENGINE_TYPE_GR0 as u64;

fn history(node: &Node) -> Vec<Record> {
    history::read(&node.vgpu_dir()).expect("the device keeps a history")
}

/// Records of one process of one kind.
fn of(records: &[Record], pid: u32, kind: Kind) -> Vec<Record> {
    records
        .iter()
        .filter(|r| r.pid == pid && r.kind == kind)
        .copied()
        .collect()
}

/// Offline stops for the `kernels` that `commands` have online launch behind a hold, and resumes a cooldown
/// after the last of them ended on the device.
#[track_caller]
fn offline_stops_for(commands: &[&str], kernels: usize) {
    let node = Node::new(
        &["--gpus", "1"],
        &format!("{TRUSTING}\n[gate]\ncooldown = \"20ms\"\n"),
    );
    let mut offline = Offline::start(&node, 5_000_000, &[0]);
    offline.running();
    let pid = offline.process.pid();
    let mut online = Online::start(&node, 0);
    // A process that has just attached counts as busy: its own edge comes first.
    watch::wait_open(&node, 0, online.process.pid());
    let begun = tidegate_tests::monotonic_ns();
    for command in commands {
        online.say(command);
    }
    let worker = online.process.pid();

    // The burst's busy edge disables every channel of the offline program.
    let stopped = wait_for("the disable in the device's history", || {
        of(&history(&node), pid, Kind::DisableEnd)
            .into_iter()
            .find(|r| r.at_ns > begun)
    });
    online.say("release");
    let enabled = wait_for("the enable after the cooldown", || {
        of(&history(&node), pid, Kind::EnableEnd)
            .into_iter()
            .find(|r| r.at_ns > stopped.at_ns)
    });
    // By the device's time: the program may learn of its end long after it.
    let done = wait_for("the end of the online work", || {
        let ended = of(&history(&node), worker, Kind::KernelEnd);
        (ended.len() >= kernels).then(|| ended.last().map(|r| r.at_ns))?
    });
    assert!(
        enabled.at_ns >= done + 20_000_000,
        "woken at {}, before a cooldown after {done}",
        enabled.at_ns
    );
    // Nothing of it ran in between.
    let ran: Vec<Record> = of(&history(&node), pid, Kind::TsgRun)
        .into_iter()
        .filter(|r| r.value == GRAPHICS && r.at_ns > stopped.at_ns && r.at_ns < enabled.at_ns)
        .collect();
    assert!(
        ran.is_empty(),
        "offline ran while its channels were disabled: {ran:?}"
    );
    wait_for("offline work after the enable", || {
        of(&history(&node), pid, Kind::KernelEnd)
            .into_iter()
            .find(|r| r.at_ns > enabled.at_ns)
    });
    // Each kernel that began finished, and counted once.
    let counted = offline.stop();
    let records = history(&node);
    let ended = of(&records, pid, Kind::KernelEnd).len() as u64;
    assert_eq!(counted, ended, "kernels lost or run twice by a preemption");
}

#[test]
fn offline_stops_for_a_burst_and_resumes_where_it_was() {
    offline_stops_for(&["hold", "launch 20 3000000"], 21);
}

#[test]
fn work_on_a_stream_that_was_destroyed_under_it_keeps_offline_stopped_to_its_end() {
    offline_stops_for(&["orphan"], 1);
}
