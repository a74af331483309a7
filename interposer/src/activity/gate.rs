//! Offline launches wait here. Nothing else does.

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
    say_why(process);
    if process.waits.waiting.fetch_add(1, AcqRel) == 0 {
        process.bell.ring();
    }
    let gate = page.gates.get(device);
    let waited = gate.map_or(Waited::Over, |gate| sleep_on(&gate.gate));
    if process.waits.waiting.fetch_sub(1, AcqRel) == 1 {
        process.bell.ring();
    }
    match waited {
        Waited::Over => Admission::Wait,
        Waited::Interrupted => Admission::Fail,
    }
}

/// What a launch does about an agent that has never come.
pub fn without_agent(process: &'static Process) -> Admission {
    // Attaching takes a millisecond; a line is due only when nobody is there to attach to.
    const GRACE_NS: u64 = 1_000_000_000;
    if process.link.ever.load(Acquire) {
        return Admission::Wait;
    }
    let now = clock::now_ns();
    let since = &process.waits.without_agent_ns;
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

/// Says once a minute why launches wait. They do, so the line costs none of them anything: the reporter has no standard
/// error of its own.
pub fn say_why(process: &Process) {
    static STREAK: Streak = Streak::new();
    let now = clock::now_ns();
    // An upgrade of the agent takes less.
    const AGENT_GONE_NS: u64 = 10_000_000_000;
    let gone = process.link.ever.load(Acquire) && !process.link.attached.load(Acquire);
    let patience = if gone { AGENT_GONE_NS } else { MINUTE_NS };
    let Some(waited_ns) = STREAK.due(now, patience) else {
        return;
    };
    let waited = waited_ns / 1_000_000_000;
    if gone {
        log::line(&format!(
            "this offline process waits for {waited} s: tidegate-agent at {}/{} is gone; it goes on when the agent is back, \
             and `systemctl status tidegate-agent` says why it is not",
            env::run_dir(),
            tidegate_proto::HOOK_SOCKET
        ));
    } else {
        let pid = std::process::id();
        log::line(&format!(
            "this offline process waits for {waited} s: tidegate-agent keeps its gate closed; `tidegate explain pid {pid}` \
             says why"
        ));
    }
}

const MINUTE_NS: u64 = 60_000_000_000;

/// How long launches have waited without one that passed, and when somebody said so.
#[derive(Debug)]
struct Streak {
    seen_ns: AtomicU64,
    since_ns: AtomicU64,
    said_ns: AtomicU64,
}

impl Streak {
    const fn new() -> Self {
        Self {
            seen_ns: AtomicU64::new(0),
            since_ns: AtomicU64::new(0),
            said_ns: AtomicU64::new(0),
        }
    }

    /// A launch waits at `now`. If that has gone on for `patience` and nobody said so in the last minute: for how long.
    fn due(&self, now: u64, patience: u64) -> Option<u64> {
        // One that waits asks every RECHECK_NS, however busy the machine is within this.
        const BROKEN_NS: u64 = 40 * RECHECK_NS;
        let seen = self.seen_ns.swap(now, Relaxed);
        if seen == 0 || now.saturating_sub(seen) > BROKEN_NS {
            self.since_ns.store(now, Relaxed);
            self.said_ns.store(0, Relaxed);
            return None;
        }
        let waited = now.saturating_sub(self.since_ns.load(Relaxed));
        let said = self.said_ns.load(Relaxed);
        let silent = said == 0 || now.saturating_sub(said) >= MINUTE_NS;
        if waited < patience || !silent {
            return None;
        }
        // Of several threads one says it.
        let won = self.said_ns.compare_exchange(said, now, Relaxed, Relaxed);
        won.is_ok().then_some(waited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P-LIFECYCLE-15: a wait is said once a minute, and a launch that passed begins a new one.
    #[test]
    fn a_wait_is_said_after_its_patience_and_then_once_a_minute() {
        const SECOND: u64 = 1_000_000_000;
        let streak = Streak::new();
        let mut said = Vec::new();
        let mut wait = |from: u64, to: u64, patience: u64| {
            for at in (from * SECOND..to * SECOND).step_by(RECHECK_NS as usize) {
                said.extend(
                    streak
                        .due(at, patience)
                        .map(|waited| (at / SECOND, waited / SECOND)),
                );
            }
        };
        wait(100, 240, 10 * SECOND);
        // Launches passed for five seconds.
        wait(245, 300, MINUTE_NS);
        wait(300, 310, MINUTE_NS);
        assert_eq!(said, [(110, 10), (170, 70), (230, 130), (305, 60)]);
    }
}
