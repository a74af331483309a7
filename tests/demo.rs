//! The demo's promises that need no quiet machine: what it measures with, not how well it did.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tidegate_replay::decisions;
use tidegate_tests::{BUILT, Running, TempDir};

/// Runs the demo with `args`; returns its table and its JSON.
fn demo(args: &[&str]) -> (String, Value) {
    demo_with(args, &[])
}

fn demo_with(args: &[&str], env: &[(&str, &Path)]) -> (String, Value) {
    let dir = TempDir::new();
    let json = dir.path().join("figures.json");
    let _ = &*BUILT;
    let table = Running::start(
        "demo",
        Command::new(env!("CARGO_BIN_EXE_demo"))
            .args(args)
            .arg("--json")
            .arg(&json)
            .env("TIDEGATE_TESTS_BUILT", "1")
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped()),
    )
    .succeed();
    let figures = std::fs::read(json).expect("the demo wrote its figures");
    (table, serde_json::from_slice(&figures).expect("JSON"))
}

/// P-REPLAY-2: the demo counts what it says.
#[test]
fn without_a_cooldown_a_request_is_preempted_more_than_once() {
    let (table, figures) = demo(&["--seconds", "4", "--cooldown-fixed-ms", "0"]);
    let per_request = &figures["runs"]["tidegate"]["preemptions_per_request"];
    assert!(
        per_request["mean"].as_f64() > Some(1.0),
        "{table}\n{figures:#}"
    );
    assert!(
        per_request["max"].as_u64() > Some(1),
        "{table}\n{figures:#}"
    );
}

/// P-REPLAY-2: the demo counts what it says.
#[test]
fn every_figure_is_measured_in_a_short_run_too() {
    let (table, figures) = demo(&["--seconds", "4"]);
    let positive = |pointer: &str| {
        let value = figures.pointer(pointer).and_then(Value::as_f64);
        assert!(value > Some(0.0), "{pointer} is {value:?}\n{table}");
    };
    for run in ["alone", "uncontrolled", "tidegate"] {
        for figure in ["mean", "p50", "p99"] {
            positive(&format!("/runs/{run}/ttft_ms/{figure}"));
            positive(&format!("/runs/{run}/tpot_ms/{figure}"));
        }
    }
    for figure in ["p50", "p99", "max"] {
        positive(&format!("/runs/tidegate/preempt_latency_us/{figure}"));
    }
    positive("/runs/uncontrolled/offline_tokens_per_s");
    positive("/runs/tidegate/offline_tokens_per_s");
    positive("/runs/tidegate/preemptions_per_request/max");
    positive("/runs/tidegate/harvest_ratio");
    assert_eq!(figures["runs"]["alone"]["offline_tokens_per_s"], 0.0);
    assert!(table.contains("with offline, Tidegate"), "{table}");
}

/// Replay decides what the agent decided, event by event.
/// P-REPLAY-3: replay decides again what the agent recorded.
#[test]
fn what_the_agent_recorded_of_the_demo_is_decided_again_by_replay() {
    let dir = TempDir::new();
    let recording = dir.path().join("decisions");
    let (table, _) = demo_with(&["--seconds", "4"], &[("TIDEGATE_RECORD", &recording)]);
    let recording = std::fs::read(recording).expect("the agent wrote its decisions");
    match decisions::replay(&recording[..]) {
        Ok(replayed) => assert!(
            replayed.events > 100 && replayed.effects > 50,
            "{replayed:?}\n{table}"
        ),
        Err(error) => panic!("{error}\n{table}"),
    }
}
