//! What a node says of itself (`tidegate status`) and what its device says of it.

use crate::{Node, clock, wait_for, wait_until};
use serde_json::Value;
use tidegate_vgpu::control::Control;
use tidegate_vgpu::history::{self, Kind, Record};

/// `tidegate status --output json`.
///
/// # Panics
/// When the agent does not answer.
#[track_caller]
#[must_use]
pub fn status(node: &Node) -> Value {
    let output = node.tidegate(&["status", "--output", "json"]);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        let log = std::fs::read_to_string(node.agent_log()).unwrap_or_default();
        panic!("status is not JSON ({error}): {output:?}\n{log}")
    })
}

/// `tidegate status` as a person reads it.
#[must_use]
pub fn table(node: &Node) -> String {
    String::from_utf8_lossy(&node.tidegate(&["status"]).stdout).into_owned()
}

/// Descriptors that a process has open; 0 once it is gone.
#[must_use]
pub fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// One counter of the agent.
///
/// # Panics
/// When there is none of that name.
#[track_caller]
#[must_use]
pub fn counter(node: &Node, name: &str) -> u64 {
    let status = status(node);
    let counters = status["counters"].as_array().expect("a list");
    let row = counters.iter().find(|row| row["name"] == name);
    row.and_then(|row| row["value"].as_u64())
        .unwrap_or_else(|| panic!("no counter {name}"))
}

/// What status says of the process `pid`, once it knows it.
#[must_use]
pub fn process(node: &Node, pid: u32) -> Option<Value> {
    let status = status(node);
    let processes = status["processes"].as_array()?;
    processes.iter().find(|row| row["pid"] == pid).cloned()
}

/// Disabled flags of the channels of `client`, as the device has them.
///
/// # Panics
/// When the device does not answer.
#[must_use]
pub fn disabled(node: &Node, client: u32) -> Vec<bool> {
    let device = Control::connect(&node.vgpu_dir()).expect("the device listens");
    let channels = device.channels().expect("the device answers");
    channels
        .iter()
        .filter(|channel| channel.client == client)
        .map(|channel| channel.disabled)
        .collect()
}

/// The device's history.
///
/// # Panics
/// When it cannot be read.
#[must_use]
pub fn records(node: &Node) -> Vec<Record> {
    history::read(&node.vgpu_dir()).expect("the device keeps a history")
}

/// When a kernel of `pid` first finished after `since_ns`.
#[must_use]
pub fn finished_after(node: &Node, pid: u32, since_ns: u64) -> Option<u64> {
    let ended = |r: &&Record| r.pid == pid && r.kind == Kind::KernelEnd && r.at_ns > since_ns;
    records(node).iter().find(ended).map(|r| r.at_ns)
}

/// Waits until something is so.
///
/// # Panics
/// When it does not become so.
#[track_caller]
pub fn wait_so(what: &str, mut is_so: impl FnMut() -> bool) {
    wait_for(what, || is_so().then_some(()));
}

/// Waits until all channels of `client` are disabled, or none is.
///
/// # Panics
/// When they do not become so.
#[track_caller]
pub fn wait_all(node: &Node, client: u32, want: bool) {
    let all = || {
        let flags = disabled(node, client);
        (!flags.is_empty() && flags.iter().all(|&flag| flag == want)).then_some(())
    };
    let state = if want { "disabled" } else { "enabled" };
    if wait_until(clock::DEADLINE, all).is_none() {
        let log = std::fs::read_to_string(node.agent_log()).unwrap_or_default();
        panic!(
            "channels of {client:#x} are not {state}: {:?}\n{log}",
            disabled(node, client)
        );
    }
}

/// Processor time a process has used, all threads together, in nanoseconds.
///
/// # Panics
/// When there is no such process.
#[must_use]
pub fn cpu_ns(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process lives");
    let (_, rest) = text.rsplit_once(')').expect("the name ends");
    let fields: Vec<u64> = rest
        .split_whitespace()
        .map(|field| field.parse().unwrap_or(0))
        .collect();
    // Fields 14 and 15 of proc(5), of which the first two are cut off; ticks are 10 ms on Linux.
    (fields[11] + fields[12]) * 10_000_000
}

/// A number of /proc/PID/status, such as VmRSS in KiB; NaN when there is none.
#[must_use]
pub fn status_value(pid: u32, field: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(f64::NAN)
}
