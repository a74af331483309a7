//! Offline launches wait here. Nobody else does.

use crate::process::Process;
use crate::{clock, env, log, sys};
use core::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};
use tidegate_abi::page::{GATE_CLOSED, Page};
use tidegate_core::gate::{Capture, Role, TURN_NS, Turn, turn as decide};

/// When the process began to wait for its first agent.
static WAITING_SINCE: AtomicU64 = AtomicU64::new(0);

/// The gate as a launch sees it. A word that an agent has not written yet is closed: a process is
/// shown its page before the agent has heard of the device.
fn word(page: &Page, device: usize) -> u64 {
    match page.gates.get(device).map(|gate| gate.gate.load(Acquire)) {
        None | Some(0) => GATE_CLOSED,
        Some(word) => word,
    }
}

/// One turn of a launch that is not captured.
pub fn turn(process: &Process, page: &Page, device: usize) -> Turn {
    match process.role() {
        Role::Offline => decide(Role::Offline, word(page, device), Capture::None),
        _ => Turn::Pass,
    }
}

/// Whether the gate of any device in use is closed.
pub fn any_closed(process: &Process) -> bool {
    let page = process.page();
    process
        .seen_devices()
        .any(|device| word(page, device) & tidegate_abi::page::GATE_STATE != 0)
}

/// Waits one turn.
pub fn wait(process: &'static Process, page: &Page, device: usize) {
    without_agent(process);
    if process.waiting.fetch_add(1, AcqRel) == 0 {
        process.bell.ring();
    }
    if let Some(gate) = page.gates.get(device) {
        let seen = gate.gate.load(Acquire);
        let low = u32::try_from(seen & u64::from(u32::MAX)).unwrap_or(0);
        if seen == 0 || seen & tidegate_abi::page::GATE_STATE != 0 {
            sys::futex_wait(sys::low_half(&gate.gate), low, TURN_NS);
        }
    }
    if process.waiting.fetch_sub(1, AcqRel) == 1 {
        process.bell.ring();
    }
}

/// Says once that there is no agent, and gives up waiting for the first one if told to.
fn without_agent(process: &'static Process) {
    if process.ever_attached.load(Acquire) {
        return;
    }
    let now = clock::now_ns();
    let first = WAITING_SINCE.compare_exchange(0, now, AcqRel, Acquire);
    let since = first.err().unwrap_or(now);
    let limit = env::attach_timeout();
    let waited = now.saturating_sub(since);
    if let Some(limit) = limit
        && u128::from(waited) >= limit.as_nanos()
    {
        log::debug(|| "no agent came in time; this offline process runs ungated".to_owned());
        process.set_private_gates(false);
        return;
    }
    // Attaching takes a millisecond; a line is due only when nobody is there to attach to.
    const GRACE_NS: u64 = 1_000_000_000;
    static SAID: AtomicU64 = AtomicU64::new(0);
    if waited >= GRACE_NS && SAID.swap(1, Relaxed) == 0 {
        let bound = match limit {
            Some(limit) => format!("for at most {} s", limit.as_secs_f64()),
            None => "until one comes (TIDEGATE_ATTACH_TIMEOUT bounds it)".to_owned(),
        };
        log::line(&format!(
            "this offline process waits for tidegate-agent at {}/{}, {bound}",
            env::run_dir(),
            tidegate_proto::HOOK_SOCKET
        ));
    }
}
