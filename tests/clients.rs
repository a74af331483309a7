//! A process has many RM clients, on files of their own: it is controlled by the one that owns its
//! channels, whatever became of the others.

use std::process::Command;
use tidegate_tests::clock::Stalls;
use tidegate_tests::watch::{Testimony, counter, status, wait_all, wait_finished, wait_open};
use tidegate_tests::{Node, Offline, Online, TRUSTING, compile, monotonic_ns, wait_for};
use tidegate_vgpu::history::Kind;

/// What may become of a client that was there before CUDA's: see `apps/nvml.c`.
const FATES: [&str; 5] = ["freed", "reused", "closed", "kept", "later"];

fn program(node: &Node, fate: &str) -> Command {
    let mut command = node.preloaded(compile("nvml", &["-lcuda"]), "offline");
    command.args([fate, "500000"]);
    command
}

/// Every one of them at once, on a node whose agent controls channels at `level`: all stop for an
/// online kernel by `by`, and all go on after it; without an agent each helps itself.
#[track_caller]
fn all_are_gated_and_land(level: &str, by: impl Fn(&Node, u32) -> u32) {
    let config = format!("{TRUSTING}[gate]\ncooldown = \"20ms\"\n[channel]\nlevel = \"{level}\"\n");
    let mut node = Node::new(&[], &config);
    let mut programs: Vec<Offline> = FATES
        .iter()
        .map(|fate| Offline::from_command(&mut program(&node, fate)))
        .collect();
    for program in &mut programs {
        program.running();
    }
    let pids: Vec<u32> = programs
        .iter()
        .map(|program| program.process.pid())
        .collect();
    let mut online = Online::start(&node, 0);
    wait_open(&node, 0, online.process.pid());
    wait_for("every client to be known as its process' own", || {
        let rows = status(&node)["processes"].as_array().cloned()?;
        let offline = rows.iter().filter(|row| row["role"] == "offline");
        (offline.count() == FATES.len()).then_some(())
    });
    assert_eq!(counter(&node, "foreign_claims"), 0);
    let begun = monotonic_ns();
    online.say("hold");
    for (fate, pid) in FATES.iter().zip(&pids) {
        wait_all(&node, &[*pid], true);
        let (testimony, own) = (Testimony::of(&node), [*pid]);
        let calls = testimony.all(&own, Kind::DisableEnd);
        let mut callers = calls.filter(|record| record.at_ns > begun).peekable();
        assert!(callers.peek().is_some(), "{fate}: nothing was disabled");
        let right = by(&node, *pid);
        assert!(
            callers.all(|record| record.caller == right),
            "{fate}: not disabled by {right}"
        );
    }
    online.say("release");
    for (fate, pid) in FATES.iter().zip(&pids) {
        wait_all(&node, &[*pid], false);
        wait_finished(&node, &[*pid], 3, monotonic_ns());
        eprintln!("{fate}: gated at {level}");
    }
    for nth in 0..landings() {
        if nth > 0 {
            node.start_agent(&config);
            online.say("release");
            for pid in &pids {
                wait_finished(&node, &[*pid], 1, monotonic_ns());
            }
        }
        wait_open(&node, 0, online.process.pid());
        online.say("hold");
        for pid in &pids {
            wait_all(&node, &[*pid], true);
        }
        let agent = node.agent.take().expect("it runs");
        let stalls = Stalls::watch();
        agent.signal(libc::SIGKILL);
        drop(agent);
        let lost = monotonic_ns();
        for (fate, pid) in FATES.iter().zip(&pids) {
            wait_all(&node, &[*pid], false);
            let (testimony, own) = (Testimony::of(&node), [*pid]);
            let landing: Vec<_> = testimony
                .all(&own, Kind::EnableEnd)
                .filter(|record| record.at_ns > lost)
                .collect();
            let helped = landing.iter().all(|record| record.caller == *pid);
            assert!(helped, "{fate}, {nth}: it enables its own channels");
            let stuck = landing.iter().map(|record| record.at_ns - lost).max();
            let stuck = stuck.expect("they were disabled");
            assert!(
                stuck <= LANDING_NS + stalls.ns(),
                "{fate}, {nth}: landed after {stuck} ns"
            );
        }
    }
}

/// Time until a process without an agent has enabled its channels.
const LANDING_NS: u64 = 1_000_000_000;

/// How often the agent is killed: `TIDEGATE_STRESS_LANDINGS=100`.
fn landings() -> u32 {
    let wanted = std::env::var("TIDEGATE_STRESS_LANDINGS").ok();
    wanted.and_then(|text| text.parse().ok()).unwrap_or(2)
}

/// P-GATE-6: other RM clients of a process do not matter.
/// P-LIFECYCLE-2: no channel stays disabled without an agent.
#[test]
fn a_process_that_had_another_client_before_cudas_disables_its_own_channels() {
    all_are_gated_and_land("L3", |_, pid| pid);
}

/// P-GATE-6: other RM clients of a process do not matter.
/// P-LIFECYCLE-2: no channel stays disabled without an agent.
#[test]
fn a_process_that_had_another_client_before_cudas_is_gated_through_the_file_of_its_channels() {
    all_are_gated_and_land("L2", |node, _| node.agent.as_ref().expect("it runs").pid());
}
