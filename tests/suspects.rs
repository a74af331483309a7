//! Whatever keeps a device busy for no good reason is named, and does what configuration says.

use std::io::{BufRead, BufReader};

use serde_json::Value;
use tidegate_tests::clock::Stalls;
use tidegate_tests::view::{finished_after, status, table, wait_so};
use tidegate_tests::{Node, Offline, Online, Running, TRUSTING, compile, monotonic_ns, wait_for};
use tidegate_vgpu::control::Control;
use tidegate_vgpu::history::Kind;

/// Much shorter than the default, so that a test does not wait 5 s for each name.
fn config(suspects: &str) -> String {
    format!("{TRUSTING}\n[gate]\nbusy_suspect = \"300ms\"\nsuspects = \"{suspects}\"\n")
}

/// Starts `apps/parked.c`, which is at it when this returns.
fn parked(node: &Node, how: &str) -> Running {
    let mut command = node.preloaded(compile("parked", &["-lcuda"]), "online");
    let mut process = Running::start(how, command.arg(how));
    let pipe = process.child.stdout.take().expect("stdout is piped");
    let mut line = String::new();
    BufReader::new(pipe)
        .read_line(&mut line)
        .expect("a pipe can be read");
    assert_eq!(line.trim(), "ok", "{how}");
    process
}

/// A program that holds its device; the process ends with this value.
enum Holder {
    App(Running),
    Driven(Online),
}

impl Holder {
    fn start(node: &Node, how: &str) -> Self {
        if how == "forever" {
            let mut online = Online::start(node, 0);
            online.say("forever");
            Self::Driven(online)
        } else {
            Self::App(parked(node, how))
        }
    }

    fn process(&self) -> &Running {
        match self {
            Self::App(process) => process,
            Self::Driven(online) => &online.process,
        }
    }
}

/// What status says holds the device of `pid`, if anything.
fn named(node: &Node, pid: u32) -> Option<String> {
    named_in(&status(node), pid)
}

/// As [`named`], of one report.
fn named_in(status: &Value, pid: u32) -> Option<String> {
    let mut processes = status["processes"].as_array()?.iter();
    let devices = processes.find(|row| row["pid"] == pid)?["devices"].as_array()?;
    devices
        .iter()
        .filter_map(|device| device["suspect"].as_str())
        .find(|reason| *reason != "unspecified")
        .map(str::to_owned)
}

/// Waits until `pid` is named with `reason` in both forms of status.
#[track_caller]
fn is_named(node: &Node, pid: u32, reason: &str) {
    wait_for(reason, || {
        named(node, pid).filter(|said| said == reason).map(|_| ())
    });
    let words = reason.replace('_', " ");
    wait_so("the reason in the table", || {
        let table = table(node);
        let row = |line: &&str| line.split_whitespace().any(|word| word == pid.to_string());
        table
            .lines()
            .any(|line| row(&line) && line.contains(&format!("({words})")))
    });
}

/// Whether the device has all channels of `pid` disabled.
fn gated(node: &Node, pid: u32) -> bool {
    let device = Control::connect(&node.vgpu_dir()).expect("the device listens");
    let channels = device.channels().expect("the device answers");
    let mut own = channels
        .iter()
        .filter(|channel| channel.pid == pid)
        .peekable();
    own.peek().is_some() && own.all(|channel| channel.disabled)
}

#[track_caller]
fn a_suspect_that_counts_keeps_the_gate_closed(how: &str, reason: &str) {
    let node = Node::new(&[], &config("busy"));
    let mut offline = Offline::start(&node, 1_000_000, &[0]);
    offline.running();
    let pid = offline.process.pid();
    let holder = Holder::start(&node, how);
    is_named(&node, holder.process().pid(), reason);
    wait_so("offline to be gated", || gated(&node, pid));
    let closed = monotonic_ns();
    // Long past the name it still holds the gate, and the node answers.
    wait_for("half a second", || {
        (monotonic_ns() > closed + 500_000_000).then_some(())
    });
    assert!(gated(&node, pid), "{how} counts as busy");
    assert_ne!(status(&node)["gpus"][0]["gate"], "open");
    assert_eq!(
        finished_after(&node, pid, closed),
        None,
        "nothing offline ran"
    );
    drop(holder);
    wait_for("offline to run when it is gone", || {
        finished_after(&node, pid, closed)
    });
    assert!(offline.stop() > 0);
}

#[track_caller]
fn a_suspect_that_is_ignored_leaves_the_gate_open(how: &str, reason: &str) {
    let node = Node::new(&[], &config("ignore"));
    let mut offline = Offline::start(&node, 1_000_000, &[0]);
    offline.running();
    let pid = offline.process.pid();
    let holder = Holder::start(&node, how);
    is_named(&node, holder.process().pid(), reason);
    let known = monotonic_ns();
    wait_for("offline to run beside it", || {
        finished_after(&node, pid, known)
    });
    // One report says both: it is passed over while it is named, not because its name has gone. A loop
    // of launches that the machine makes pause has no name until it is seen going on.
    wait_so("an open gate beside a name", || {
        let status = status(&node);
        let named = named_in(&status, holder.process().pid());
        status["gpus"][0]["gate"] == "open" && named.as_deref() == Some(reason)
    });
    assert!(offline.stop() > 0);
}

/// P-GATE-14: what keeps a device busy without a reason is named.
#[test]
fn a_persistent_kernel_is_named_and_keeps_the_gate_closed_by_default() {
    a_suspect_that_counts_keeps_the_gate_closed("forever", "persistent_kernel");
}

/// P-GATE-14: what keeps a device busy without a reason is named.
#[test]
fn a_parked_stream_is_named_and_keeps_the_gate_closed_by_default() {
    a_suspect_that_counts_keeps_the_gate_closed("parked", "parked_stream");
}

/// P-GATE-14: what keeps a device busy without a reason is named.
#[test]
fn a_loop_of_dummy_launches_is_named_and_keeps_the_gate_closed_by_default() {
    a_suspect_that_counts_keeps_the_gate_closed("dummy", "steady_launches");
}

/// P-GATE-14: what keeps a device busy without a reason is named.
#[test]
fn a_persistent_kernel_is_named_and_passed_over_where_suspects_are_ignored() {
    a_suspect_that_is_ignored_leaves_the_gate_open("forever", "persistent_kernel");
}

/// P-GATE-14: what keeps a device busy without a reason is named.
#[test]
fn a_parked_stream_is_named_and_passed_over_where_suspects_are_ignored() {
    a_suspect_that_is_ignored_leaves_the_gate_open("parked", "parked_stream");
}

/// P-GATE-14: what keeps a device busy without a reason is named.
#[test]
fn a_loop_of_dummy_launches_is_named_and_passed_over_where_suspects_are_ignored() {
    a_suspect_that_is_ignored_leaves_the_gate_open("dummy", "steady_launches");
}

/// P-GATE-14: what keeps a device busy without a reason is named.
#[test]
fn an_ignored_suspect_that_launches_again_closes_the_gate() {
    let node = Node::new(&[], &config("ignore"));
    let mut offline = Offline::start(&node, 1_000_000, &[0]);
    offline.running();
    let pid = offline.process.pid();
    let mut online = Online::start(&node, 0);
    online.send("burst 1 6000000000");
    is_named(&node, online.process.pid(), "persistent_kernel");
    let known = monotonic_ns();
    wait_for("offline to run beside it", || {
        finished_after(&node, pid, known)
    });
    online.answer();
    wait_so("its name to go", || {
        named(&node, online.process.pid()).is_none()
    });
    let begun = monotonic_ns();
    online.say("hold");
    let stop = |r: &tidegate_vgpu::history::Record| {
        r.kind == Kind::DisableEnd && r.pid == pid && r.at_ns > begun
    };
    wait_so("its next burst to gate offline", || {
        tidegate_tests::view::records(&node).iter().any(stop)
    });
    assert!(offline.stop() > 0);
}

/// P-GATE-14: what keeps a device busy without a reason is named.
#[test]
fn a_frozen_process_is_named_and_lapses_after_5_s_until_it_goes_on() {
    let node = Node::new(&[], TRUSTING);
    let mut offline = Offline::start(&node, 1_000_000, &[0]);
    offline.running();
    let pid = offline.process.pid();
    let mut online = Online::start(&node, 0);
    online.say("forever");
    wait_so("offline to be gated", || gated(&node, pid));
    let (stalls, frozen) = (Stalls::watch(), monotonic_ns());
    online.process.signal(libc::SIGSTOP);
    is_named(&node, online.process.pid(), "stopped_process");
    let woken = wait_for("offline to run", || finished_after(&node, pid, frozen));
    let after = woken - frozen;
    assert!(
        after + stalls.ns() > 4_500_000_000,
        "it lapsed after {after} ns"
    );
    online.process.signal(libc::SIGCONT);
    wait_so("its activity to count again", || gated(&node, pid));
    wait_so("its name to go", || {
        named(&node, online.process.pid()).as_deref() != Some("stopped_process")
    });
    drop(online);
    let gone = monotonic_ns();
    wait_for("offline to run when it is gone", || {
        finished_after(&node, pid, gone)
    });
    assert!(offline.stop() > 0);
}
