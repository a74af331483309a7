//! A channel level is used once it was seen to stop work and to let it go on; the driver's word alone is
//! not believed, and where nothing can be seen status says so.

use serde_json::Value;
use std::collections::BTreeMap;
use tidegate_tests::personality::{chosen, device, expected};
use tidegate_tests::view::{records, status, table};
use tidegate_tests::{Node, TRUSTING, built};
use tidegate_vgpu::control::Control;
use tidegate_vgpu::history::Kind;
use tidegate_vgpu::personality::Personality;

/// A node whose agents try the levels on work of their own.
fn node(device: &[&str]) -> Node {
    let mut node = Node::device_only(device);
    node.self_test = "full";
    node
}

/// What status says of each level, and in sum.
fn found(status: &Value) -> (Vec<String>, String) {
    let test = &status["self_test"];
    let rows = test["levels"].as_array().expect("a list");
    let row = |row: &Value| {
        let [level, outcome] = ["level", "outcome"].map(|key| row[key].as_str().unwrap_or("?"));
        format!("{level} {outcome}")
    };
    let summary = test["summary"].as_str().expect("a text").to_owned();
    (rows.iter().map(row).collect(), summary)
}

/// P-GATE-8: a level and a method are used only if they stop work.
#[test]
fn every_level_is_proven_on_every_gpu_once_and_then_remembered() {
    let mut node = node(&["--gpus", "8"]);
    node.start_agent(TRUSTING);
    let (levels, summary) = found(&status(&node));
    assert_eq!(levels, ["L1 proven", "L2 proven", "L3 proven"], "{summary}");
    assert!(summary.starts_with("tried on work"), "{summary}");
    assert_eq!(status(&node)["level"], "l1_agent");
    let device = Control::connect(&node.vgpu_dir()).expect("the device listens");
    let left = device.channels().expect("the device answers");
    assert!(left.is_empty(), "the test left channels behind: {left:?}");

    drop(node.agent.take());
    node.start_agent(TRUSTING);
    let (levels, summary) = found(&status(&node));
    assert_eq!(levels, ["L1 proven", "L2 proven", "L3 proven"]);
    assert!(summary.starts_with("remembered"), "{summary}");
}

/// The agent finds out what stops work on this firmware, once, and says why nothing better does.
#[track_caller]
fn finds_its_method(personality: Personality) {
    let mut node = device(personality, &[]);
    node.start_agent(TRUSTING);
    let seen = status(&node);
    let wanted = expected(personality);
    assert_eq!(chosen(&seen), Ok(wanted));
    // Each level by itself: the agent's client, the owner's file, the job's own library.
    let levels = seen["self_test"]["levels"].as_array().expect("a list");
    let methods: Vec<Option<&str>> = levels.iter().map(|row| row["method"].as_str()).collect();
    let own = match personality {
        Personality::RefusesForeign | Personality::Preempt | Personality::RefusesRestart => None,
        _ => wanted.method,
    };
    assert_eq!(methods, [own, wanted.method, wanted.method], "{seen}");
    let said = |key: &str| seen[key].as_str().unwrap_or_default().to_owned();
    let goes_on = "goes on";
    match personality {
        Personality::Evicts => assert_eq!(said("method_note"), ""),
        Personality::Restart => assert!(said("method_note").contains(goes_on), "{seen}"),
        Personality::Preempt => {
            let note = said("method_note");
            assert!(note.contains("disable+restart: the driver says"), "{note}");
            assert!(said("level_note").contains("owner's file only"), "{seen}");
        }
        Personality::RefusesRestart => {
            let note = said("method_note");
            assert!(note.contains("RESTART_RUNLIST: NOT_SUPPORTED"), "{note}");
        }
        Personality::KernelEnd => {
            assert!(said("method_note").contains("no memory is taken"), "{seen}");
        }
        Personality::RefusesForeign => {
            let note = said("level_note");
            assert!(note.contains("INSUFFICIENT_PERMISSIONS"), "{note}");
        }
        Personality::Deaf => assert!(said("level_note").contains(goes_on), "{seen}"),
    }
    if personality == Personality::Deaf {
        return;
    }
    drop(node.agent.take());
    node.start_agent(TRUSTING);
    let again = status(&node);
    assert_eq!(chosen(&again), Ok(wanted));
    let notes = ["level", "method_note"].map(|key| again[key] == seen[key]);
    assert_eq!(notes, [true, true], "{again}");
}

macro_rules! personalities {
    ($($name:ident $personality:ident)*) => { $(
        /// P-GATE-8: a level and a method are used only if they stop work.
        #[test]
        fn $name() {
            finds_its_method(Personality::$personality);
        }
    )* };
}

personalities! {
    firmware_that_evicts_on_a_disable_is_stopped_by_one Evicts
    firmware_that_evicts_on_a_restart_is_stopped_by_both Restart
    firmware_that_evicts_on_a_preemption_is_stopped_through_the_owners_file Preempt
    firmware_that_refuses_restarts_is_stopped_by_a_preemption RefusesRestart
    firmware_that_waits_for_the_end_of_a_kernel_is_told_apart KernelEnd
    firmware_that_answers_and_does_nothing_leaves_the_launch_gate Deaf
}

/// P-GATE-8: a level and a method are used only if they stop work.
#[test]
fn a_disable_that_is_answered_and_stops_nothing_rules_every_channel_level_out() {
    let mut node = node(&["--set", "deaf_disable=1000000"]);
    node.start_agent(TRUSTING);
    let seen = status(&node);
    let (levels, summary) = found(&seen);
    assert_eq!(levels, ["L1 failed", "L2 failed", "L3 failed"], "{summary}");
    assert_eq!(seen["level"], "l5_launch_gate");
    let note = seen["level_note"].as_str().expect("a text");
    assert!(note.contains("goes on"), "{note}");
    drop(node.agent.take());

    // The operator's own choice is refused for the same reason, and a failure is not remembered.
    let mut forced = node.agent_command();
    forced.env("TIDEGATE_CHANNEL__LEVEL", "L2");
    let refused = forced.output().expect("it starts");
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("channel level L2 cannot be used"), "{said}");
    let device = Control::connect(&node.vgpu_dir()).expect("the device listens");
    device.set("deaf_disable", "0").expect("a knob");
    node.start_agent(TRUSTING);
    assert_eq!(status(&node)["level"], "l1_agent");
}

/// P-GATE-8: a level and a method are used only if they stop work.
#[test]
fn an_enable_that_is_answered_and_resumes_nothing_rules_every_channel_level_out() {
    let mut node = node(&["--set", "deaf_enable=1000000"]);
    node.start_agent(TRUSTING);
    let seen = status(&node);
    assert_eq!(seen["level"], "l5_launch_gate");
    let note = seen["level_note"].as_str().expect("a text");
    assert!(note.contains("stands still"), "{note}");
}

/// P-GATE-8: a level and a method are used only if they stop work.
#[test]
fn a_firmware_that_refuses_foreign_pairs_costs_only_the_first_level() {
    let mut node = node(&["--gpus", "2", "--personality", "refuses-foreign"]);
    node.start_agent(TRUSTING);
    let seen = status(&node);
    assert_eq!(found(&seen).0, ["L1 failed", "L2 proven", "L3 proven"]);
    assert_eq!(seen["level"], "l2_owner_file");
}

/// P-GATE-8: a level and a method are used only if they stop work.
#[test]
fn a_method_that_configuration_names_is_used_or_the_agent_does_not_start() {
    let mut node = device(Personality::Restart, &[]);
    let mut forced = node.agent_command();
    forced.env("TIDEGATE_CHANNEL__METHOD", "disable");
    forced.env("TIDEGATE_CHANNEL__LEVEL", "L2");
    let refused = forced.output().expect("it starts");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("goes on"), "{said}");
    node.start_agent(&format!(
        "{TRUSTING}[channel]\nmethod = \"disable+restart\"\n"
    ));
    assert_eq!(status(&node)["method"], "disable+restart");
}

/// A host may have the driver's kernel side only, and containers the rest.
/// P-GATE-8: a level and a method are used only if they stop work.
#[test]
fn where_there_is_no_work_to_see_the_calls_are_tried_and_status_says_so() {
    let mut node = node(&["--set", "deaf_disable=1000000"]);
    // The user-mode driver is looked for beside the shim.
    let shim = node.dir().join("libvgpu_rm.so");
    std::os::unix::fs::symlink(built("libvgpu_rm.so"), &shim).expect("the directory is writable");
    node.start_agent_by(TRUSTING, |mut agent| {
        agent.arg("--vgpu-shim").arg(&shim);
        agent.env_remove("LD_LIBRARY_PATH");
        agent
    });
    let seen = status(&node);
    let (levels, summary) = found(&seen);
    assert_eq!(levels, ["L1 calls only"]);
    assert!(summary.starts_with("not possible (no libcuda"), "{summary}");
    assert_eq!(seen["level"], "l1_agent");
    drop(node.agent.take());

    let config = format!("{TRUSTING}[channel]\nlibrary = \"/nowhere/libtidegate.so\"\n");
    node.start_agent(&config);
    let (_, summary) = found(&status(&node));
    assert!(
        summary.starts_with("not possible (no /nowhere/libtidegate.so)"),
        "{summary}"
    );
}

/// P-GATE-23: a branch that nobody has read is controlled by what it answered, or not at all.
#[test]
fn a_driver_of_an_unknown_branch_that_stops_nothing_or_answers_oddly_leaves_the_launch_gate() {
    for (driver, more, why) in [
        ("999.01", &["--personality", "deaf"][..], "goes on"),
        // What names the channels has moved as well.
        ("998.03", &[], "list of channels"),
    ] {
        let mut node = node(&[&["--driver", driver], more].concat());
        node.start_agent(TRUSTING);
        let seen = status(&node);
        assert_eq!(seen["level"], "l5_launch_gate", "{driver}");
        assert_eq!(seen["driver"]["layout"], "by answers");
        let note = seen["level_note"].as_str().expect("a text");
        assert!(note.contains(why), "{driver}: {note}");
    }
}

/// P-GATE-23: of a branch that nobody has read only a stop that was seen counts.
#[test]
fn a_driver_of_an_unknown_branch_is_not_controlled_on_the_word_of_its_calls() {
    let node = tidegate_tests::Node::new(&["--driver", "999.01"], TRUSTING);
    let seen = status(&node);
    assert_eq!(seen["level"], "l5_launch_gate");
    let note = seen["level_note"].as_str().expect("a text");
    assert!(note.contains("only a stop that was seen counts"), "{note}");
    let figures = &seen["gpus"][0];
    assert_eq!(
        figures["model"], "VIRTUAL NVIDIA H100 80GB HBM3",
        "its sizes were asked for"
    );
    assert_ne!(figures["memory_total_bytes"], 0);
    assert_ne!(figures["memory_total_bytes"], Value::Null);
}

/// P-GATE-23: a branch that nobody has read is asked for the modes that rule channel control out.
#[test]
fn a_driver_of_an_unknown_branch_says_what_rules_channel_control_out() {
    for (knob, kind) in [
        ("mig=1", "mig"),
        ("confidential=1", "confidential_computing"),
        ("guest=1", "vgpu_guest"),
    ] {
        let node = tidegate_tests::Node::new(&["--driver", "999.05", "--set", knob], TRUSTING);
        let seen = status(&node);
        assert_eq!(seen["obstacles"][0]["kind"], kind, "{seen}");
    }
}

/// Times from the order until the device had stopped the last channel, by its history, in nanoseconds.
fn stops_of(node: &Node, gpu: u32) -> Vec<u64> {
    let mut by_order = BTreeMap::new();
    for record in records(node) {
        if record.kind == Kind::DisableEnd && record.gpu == gpu {
            let stopped: &mut u64 = by_order.entry(record.value).or_default();
            *stopped = record.at_ns.max(*stopped);
        }
    }
    let mut times: Vec<u64> = by_order.iter().map(|(order, at)| at - order).collect();
    times.sort_unstable();
    times
}

/// P-GATE-24: how long stops take is told GPU by GPU, and is what the device saw.
#[test]
fn what_a_stop_takes_is_told_as_the_device_saw_it() {
    let (stop, answer) = (20_000, 60_000);
    let set = [
        format!("disable_fixed_us={stop}"),
        format!("answer_us={answer}"),
    ];
    let mut node = node(&["--gpus", "2", "--set", &set[0], "--set", &set[1]]);
    node.start_agent(TRUSTING);
    let seen = status(&node);
    for gpu in 0..2_u32 {
        let told = &seen["gpus"][gpu as usize]["stop"];
        let us = |key: &str| {
            told[key]
                .as_u64()
                .unwrap_or_else(|| panic!("{key}: {told}"))
        };
        let times = stops_of(&node, gpu);
        let [first, last] = [0, times.len() - 1].map(|at| times[at] / 1000);
        assert!(first >= stop, "{times:?}");
        // The counter moves every 100 us, and who looks at it may be kept waiting, but not for the whole answer.
        assert!(us("off_gpu_us") + 100 >= first, "{told} {times:?}");
        assert!(us("off_gpu_us") < last + answer / 2, "{told} {times:?}");
        assert!(us("call_us") >= first + answer, "{told} {times:?}");
        assert!(us("off_gpu_longest_us") >= us("off_gpu_us"), "{told}");
        assert!(us("call_longest_us") >= us("call_us"), "{told}");
        assert!(us("stops") >= 3, "{told}");
    }
    let table = table(&node);
    assert!(
        table.contains("OFF THE GPU") && table.contains("CALL RETURNED"),
        "{table}"
    );
    assert!(!table.contains("not measured"), "{table}");

    drop(node.agent.take());
    node.start_agent(TRUSTING);
    let again = status(&node);
    let stops = |seen: &Value| [0, 1].map(|gpu| seen["gpus"][gpu]["stop"].clone());
    assert_eq!(stops(&again), stops(&seen), "it is remembered");
}

/// P-GATE-24: how long stops take is told GPU by GPU, and is what the device saw.
#[test]
fn work_that_stops_at_the_end_of_its_kernel_is_off_the_gpu_after_the_call_returned() {
    let mut node = device(Personality::KernelEnd, &["--set", "disable_fixed_us=100"]);
    node.start_agent(TRUSTING);
    let told = &status(&node)["gpus"][0]["stop"];
    let [off_gpu, call] = ["off_gpu_us", "call_us"].map(|key| told[key].as_u64());
    assert!(off_gpu > call && call.is_some(), "{told}");
}

/// P-GATE-24: what was not measured is null.
#[test]
fn a_stop_that_was_not_timed_has_no_figure() {
    let node = Node::new(&[], TRUSTING);
    let told = &status(&node)["gpus"][0]["stop"];
    for key in [
        "off_gpu_us",
        "call_us",
        "off_gpu_longest_us",
        "call_longest_us",
    ] {
        assert_eq!(told[key], Value::Null, "{key}");
    }
    let table = table(&node);
    assert!(table.contains("not measured"), "{table}");
}
