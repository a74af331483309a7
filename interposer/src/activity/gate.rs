//! Offline launches wait here. Nobody else does.

use crate::clock;
use crate::env;
use crate::log;
use crate::process::Process;
use crate::sys::{self, Waited};
use core::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};
use tidegate_abi::gate::{is_held, sleeps_on, waits};
use tidegate_abi::page::{GATE_CLOSED, Page};
use tidegate_core::gate::{
    self as core_gate, Admission, Capture, LaunchGate, OnTimeout, RECHECK_NS, Role,
};

/// The gate of a device, as it stands.
fn word(page: &Page, device: usize) -> u64 {
    let gate = page.gates.get(device);
    gate.map_or(GATE_CLOSED, |gate| gate.gate.load(Acquire))
}

/// What a launch that is not captured does next.
pub fn admission(process: &Process, page: &Page, device: usize) -> Admission {
    match process.role() {
        Role::Offline => core_gate::admission(Role::Offline, word(page, device), Capture::None),
        _ => Admission::Pass,
    }
}

/// Whether a reclaim is under way on any device in use.
pub fn held(process: &Process) -> bool {
    held_at(process).is_some()
}

fn held_at(process: &Process) -> Option<&'static AtomicU64> {
    let page = process.page();
    process.seen_devices().find_map(|device| {
        let gate = &page.gates.get(device)?.gate;
        is_held(gate.load(Acquire)).then_some(gate)
    })
}

/// Waits while a reclaim is under way, but asks again after [`RECHECK_NS`].
pub fn wait_while_held(process: &Process) {
    // Not for long, and no error of its own tells the application to try again: no signal ends this wait.
    if let Some(gate) = held_at(process)
        && let Some(low) = sleeps_on(gate, is_held)
    {
        sys::futex_wait(sys::low_half(gate), low, RECHECK_NS);
    }
}

/// Sleeps on a gate word until it is to be asked again, if it keeps a launch.
fn sleep_on(gate: &AtomicU64) -> Waited {
    sleeps_on(gate, waits).map_or(Waited::Over, |low| {
        sys::futex_wait_interruptible(sys::low_half(gate), low, RECHECK_NS)
    })
}

/// Waits until the gate is to be asked again; what the launch does then. It fails when a signal was handled
/// meanwhile whose handler was set to interrupt: Ctrl-C in a Python, which can raise its exception only once the
/// launch has returned.
pub fn wait(process: &'static Process, page: &Page, device: usize) -> Admission {
    match without_agent(process) {
        Admission::Wait => {}
        Admission::Pass => {
            process.set_private_gates(LaunchGate::Open);
            return Admission::Wait;
        }
        Admission::Fail => return Admission::Fail,
    }
    if process.waiting.fetch_add(1, AcqRel) == 0 {
        process.bell.ring();
    }
    let gate = page.gates.get(device);
    let waited = gate.map_or(Waited::Over, |gate| sleep_on(&gate.gate));
    if process.waiting.fetch_sub(1, AcqRel) == 1 {
        process.bell.ring();
    }
    match waited {
        Waited::Over => Admission::Wait,
        Waited::Interrupted => Admission::Fail,
    }
}

/// What a launch does about an agent that has never come.
fn without_agent(process: &'static Process) -> Admission {
    // Attaching takes a millisecond; a line is due only when nobody is there to attach to.
    const GRACE_NS: u64 = 1_000_000_000;
    if process.ever_attached.load(Acquire) {
        return Admission::Wait;
    }
    let now = clock::now_ns();
    let since = &process.without_agent_ns;
    let since = since.compare_exchange(0, now, AcqRel, Acquire).err();
    let waited_ns = now.saturating_sub(since.unwrap_or(now));
    let patience = env::patience();
    let admission = core_gate::without_agent(waited_ns, patience.limit_ns, patience.on_timeout);
    if admission != Admission::Wait || waited_ns >= GRACE_NS {
        say_once(patience);
    }
    admission
}

/// Says that there is no agent and what comes of it.
fn say_once(patience: env::Patience) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if SAID.swap(true, Relaxed) {
        return;
    }
    let bound = match patience.limit_ns {
        Some(limit) => format!(
            "for at most {:?}; after that it {}",
            std::time::Duration::from_nanos(limit),
            match patience.on_timeout {
                OnTimeout::Run => "runs ungated (TIDEGATE_ON_TIMEOUT)",
                OnTimeout::Fail => "gets CUDA_ERROR_SYSTEM_NOT_READY (TIDEGATE_ON_TIMEOUT)",
            }
        ),
        None => "until one comes (TIDEGATE_ATTACH_TIMEOUT bounds it)".to_owned(),
    };
    let unreadable = match patience.unreadable {
        Some(what) => format!("; {what}"),
        None => String::new(),
    };
    log::line(&format!(
        "this offline process waits for tidegate-agent at {}/{}, {bound}{unreadable}",
        env::run_dir(),
        tidegate_proto::HOOK_SOCKET
    ));
}
