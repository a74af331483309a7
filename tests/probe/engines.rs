//! Engines' probes compare what they say they compare, and judge what they found by its spread.

use std::process::{Command, Stdio};

use crate::found::Found;
use tidegate_tests::{Node, Running, built};

/// Runs of P16 by name, on a GPU where nobody works, with a program in the engines' place.
fn engines(node: &Node, program: &str, only: &str, ready: &str) -> Found {
    let engine = node.dir().join("engine.py");
    std::fs::write(&engine, program).expect("a program");
    let results = node.dir().join("results.jsonl");
    let home = built("tidegate-probe")
        .parent()
        .expect("a folder")
        .to_owned();
    let mut command = Command::new("python3");
    command
        .args(["-B", &format!("{ENGINES}/vllm_probe.py")])
        .args(["--only", only, "--ready", ready, "--seconds", "1"])
        .arg("--engine")
        .arg(&engine)
        .arg("--out")
        .arg(node.dir())
        .env("TIDEGATE_HOME", home)
        .env("TIDEGATE_RESULTS", &results)
        .stdin(Stdio::null());
    Running::start("python3", &mut command).finish();
    let text = std::fs::read_to_string(&results).expect("results were written");
    let lines = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    Found {
        lines: lines.collect(),
    }
}

/// Where the programs of the engines' probes are.
const ENGINES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../agent/probe/engines");

/// P-EQUIPMENT-4: probes find what they say and leave nothing disabled.
#[test]
fn a_program_that_never_gets_ready_costs_its_own_run_and_no_more() {
    let node = Node::device_only(&[]);
    let hangs = "import time\ntime.sleep(600)\n";
    let found = engines(&node, hangs, "online alone,uncontrolled", "1");
    found.note("P16", "online alone: online: no being ready in 1 s");
    found.note("P16", "uncontrolled: offline: no being ready in 1 s");
    found.expect("P16", "FAIL", "no figures of online alone, uncontrolled");
}

/// An online program whose n-th run has its first tokens 2n ms later than the first.
const SLOWER_EACH_TIME: &str = r#"
import json, os, sys
print("ready", flush=True)
start = float(sys.stdin.readline())
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "times")
with open(path, "a+") as times:
    times.write(".")
    times.seek(0)
    later = 0.002 * (len(times.read()) - 1)
spans = [[start + at, start + at + 0.01 * at + later, start + at + 1] for at in range(1, 11)]
print(json.dumps({"requests": 10, "ttft_s": [f - a for a, f, _ in spans], "tpot_s": [0.01], "spans": spans}), flush=True)
"#;

/// What an agent told of one edge, and requests of which one had to have it.
const STOPPED: &str = "
import runs
stops = runs.edges([{'kind': 'woken', 'at_ns': 5, 'value_ns': 1}, {'kind': 'preempted', 'at_ns': 1_021_000_000, 'value_ns': 1_000_000}])
met, others = runs.paired([[0, 0.02, 1], [1, 1.05, 2], [3, 3.5, 4]], [[5, 5.01, 6], [6, 6.01, 7]], stops)
assert [round(t, 6) for t in met] == [0.04], met
assert [round(t, 6) for t in others] == [0.01], others
";

/// P-EQUIPMENT-4: probes find what they say and leave nothing disabled.
#[test]
fn each_request_is_compared_with_the_same_one_alone() {
    let node = Node::device_only(&[]);
    let only = "online alone,online again";
    let found = engines(&node, SLOWER_EACH_TIME, only, "30");
    found.expect("P16", "PASS", "");
    let name = "online again: TTFT beside alone";
    for which in ["mean", "p10", "p99"] {
        let later = found.figure("P16", &format!("{name} {which}"));
        assert!((later - 2.0).abs() < 1e-3, "{which}: {later} ms");
    }
    let mut command = Command::new("python3");
    command
        .args(["-B", "-c", STOPPED])
        .env("PYTHONPATH", ENGINES);
    Running::start("python3", &mut command).succeed();
}

/// Runs tests in Python of the programs there.
fn python(tests: &str) {
    let path = format!("{}/probe/{tests}", env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new("python3");
    command.args(["-B", &path]).env("PYTHONPATH", ENGINES);
    Running::start("python3", &mut command).succeed();
}

/// P-EQUIPMENT-4: probes find what they say and leave nothing disabled.
#[test]
fn the_judge_of_paired_blocks_finds_what_was_put_into_them() {
    python("judged.py");
}

/// P-EQUIPMENT-5: the plan of a day on a card fits its budget.
#[test]
fn lean_wheels_arrive_in_slices_without_what_is_never_loaded() {
    python("packed.py");
}
