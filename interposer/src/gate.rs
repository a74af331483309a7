//! Offline launches wait here. Nobody else does.

use crate::process::Process;
use crate::{clock, env, log, sys};
use core::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};
use tidegate_abi::page::{GATE_CLOSED, GATE_HELD, GATE_STATE, Page};
use tidegate_core::gate::{self as core_gate, Capture, OnTimeout, Role, TURN_NS, Turn};

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
        Role::Offline => core_gate::turn(Role::Offline, word(page, device), Capture::None),
        _ => Turn::Pass,
    }
}

/// Whether the gate of any device in use is closed.
pub fn any_closed(process: &Process) -> bool {
    let page = process.page();
    process
        .seen_devices()
        .any(|device| word(page, device) & GATE_STATE != 0)
}

/// Whether a reclaim is under way on any device in use.
pub fn held(process: &Process) -> bool {
    held_at(process).is_some()
}

fn held_at(process: &Process) -> Option<&'static AtomicU64> {
    let page = process.page();
    process.seen_devices().find_map(|device| {
        let gate = &page.gates.get(device)?.gate;
        (gate.load(Acquire) & GATE_STATE == GATE_HELD).then_some(gate)
    })
}

/// Waits while a reclaim is under way, at most one turn.
pub fn wait_while_held(process: &Process) {
    if let Some(gate) = held_at(process) {
        sleep_on(gate, |seen| seen & GATE_STATE == GATE_HELD);
    }
}

/// Sleeps a turn on a gate word, if it `keeps` one.
fn sleep_on(gate: &AtomicU64, keeps: impl FnOnce(u64) -> bool) {
    let seen = gate.load(Acquire);
    if keeps(seen) {
        let low = u32::try_from(seen & u64::from(u32::MAX)).unwrap_or(0);
        sys::futex_wait(sys::low_half(gate), low, TURN_NS);
    }
}

/// Waits one turn; what the launch does then.
pub fn wait(process: &'static Process, page: &Page, device: usize) -> Turn {
    match without_agent(process) {
        Turn::Wait => {}
        Turn::Pass => {
            process.set_private_gates(false);
            return Turn::Wait;
        }
        Turn::Fail => return Turn::Fail,
    }
    if process.waiting.fetch_add(1, AcqRel) == 0 {
        process.bell.ring();
    }
    if let Some(gate) = page.gates.get(device) {
        sleep_on(&gate.gate, |seen| seen == 0 || seen & GATE_STATE != 0);
    }
    if process.waiting.fetch_sub(1, AcqRel) == 1 {
        process.bell.ring();
    }
    Turn::Wait
}

/// What a launch does about an agent that has never come.
fn without_agent(process: &'static Process) -> Turn {
    // Attaching takes a millisecond; a line is due only when nobody is there to attach to.
    const GRACE_NS: u64 = 1_000_000_000;
    if process.ever_attached.load(Acquire) {
        return Turn::Wait;
    }
    let now = clock::now_ns();
    let since = &process.without_agent_ns;
    let since = since.compare_exchange(0, now, AcqRel, Acquire).err();
    let waited_ns = now.saturating_sub(since.unwrap_or(now));
    let patience = env::patience();
    let turn = core_gate::without_agent(waited_ns, patience.limit_ns, patience.on_timeout);
    if turn != Turn::Wait || waited_ns >= GRACE_NS {
        say_once(patience);
    }
    turn
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
