//! What rules channel control out is seen, named, and leaves the launch gate.

use std::path::{Path, PathBuf};
use tidegate_tests::peer::Peer;
use tidegate_tests::view::{disabled, status, wait_so};
use tidegate_tests::{Node, Running, TRUSTING};

/// The kinds of obstacle that status names.
fn named(node: &Node) -> Vec<String> {
    let status = status(node);
    let rows = status["obstacles"].as_array().cloned().unwrap_or_default();
    let kind = |row: &serde_json::Value| row["kind"].as_str().unwrap_or("?").to_owned();
    rows.iter().map(kind).collect()
}

#[track_caller]
fn rules_the_channels_out(knob: &str, kinds: &[&str], why: &str) {
    for branch in ["535.288.01", "570.211.01", "580.95.05"] {
        let mut node = Node::new(
            &["--driver", branch, "--gpus", "2", "--set", knob],
            TRUSTING,
        );
        assert_eq!(named(&node), kinds, "{branch}");
        let seen = status(&node);
        assert_eq!(seen["level"], "l5_launch_gate", "{branch}");
        let note = seen["level_note"].as_str().expect("a text");
        assert!(note.contains(why), "{note}");
        drop(node.agent.take());
        let mut forced = node.agent_command();
        forced.env("TIDEGATE_CHANNEL__LEVEL", "L1");
        let refused = forced.output().expect("it starts");
        assert_eq!(refused.status.code(), Some(1), "{branch}");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn gpus_that_are_split_into_instances_are_gated_at_launches() {
    rules_the_channels_out("mig=1", &["mig", "mig"], "MIG is on (GPU 0)");
}

#[test]
fn gpus_that_compute_confidentially_are_gated_at_launches() {
    let kinds = ["confidential_computing"];
    rules_the_channels_out("confidential=1", &kinds, "confidential computing is on");
}

/// A process that looks as MPS' daemon does, and its pid file in `dir`.
fn mps(dir: &Path) -> Running {
    let program: PathBuf = dir.join("nvidia-cuda-mps-control");
    if !program.exists() {
        std::fs::copy("/bin/sleep", &program).expect("the directory is writable");
    }
    let running = Running::start("mps", std::process::Command::new(&program).arg("600"));
    let file = dir.join("nvidia-cuda-mps-control.pid");
    std::fs::write(file, running.pid().to_string()).expect("the directory is writable");
    running
}

/// An agent that looks for MPS in `dir`.
fn start(node: &mut Node, dir: &Path) {
    node.start_agent_by(TRUSTING, |mut agent| {
        agent.env("CUDA_MPS_PIPE_DIRECTORY", dir);
        agent
    });
}

#[test]
fn mps_is_seen_at_the_start_and_while_the_agent_runs() {
    let mut node = Node::device_only(&[]);
    let dir = node.dir().join("mps");
    std::fs::create_dir(&dir).expect("the directory is writable");
    let daemon = mps(&dir);
    start(&mut node, &dir);
    assert_eq!(named(&node), ["mps"]);
    assert_eq!(status(&node)["level"], "l5_launch_gate");
    drop(daemon);
    wait_so("the obstacle to go", || named(&node).is_empty());
    drop(node.agent.take());

    // Channels that are reported while it runs may be another process' as well.
    start(&mut node, &dir);
    assert_eq!(status(&node)["level"], "l1_agent");
    let daemon = mps(&dir);
    wait_so("the obstacle", || named(&node) == ["mps"]);
    let mut online = Peer::attached(&node, "online", "");
    online.ask("idle 0");
    let mut offline = Peer::attached(&node, "offline", "batch");
    let (client, _) = offline.channels(0, 2);
    wait_so("an open gate", || offline.ask("gate 0") == "gate open");
    online.ask("busy 0");
    wait_so("a closed gate", || offline.ask("gate 0") == "gate closed");
    assert_eq!(disabled(&node, client), [false, false]);
    drop(daemon);
}
