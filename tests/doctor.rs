//! `tidegate doctor` says what a node is like, whatever state the agent is in, and changes nothing.

use serde_json::Value;
use std::os::unix::net::UnixListener;
use std::process::Command;
use tidegate_tests::peer::Peer;
use tidegate_tests::view::{disabled, process, wait_so};
use tidegate_tests::{Node, Offline, Running, TRUSTING, TempDir, compile, wait_for};

struct Report {
    code: i32,
    json: Value,
}

/// What doctor says of `node`, by its virtual GPU and with the agent's configuration.
#[track_caller]
fn doctor(node: &Node) -> Report {
    let device = format!("virtual={}", node.vgpu_dir().display());
    let output = node.tidegate(&["doctor", "--device", &device, "--output", "json"]);
    Report {
        code: output.status.code().expect("it ends by itself"),
        json: serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!("doctor's answer is not JSON ({error}): {output:?}");
        }),
    }
}

impl Report {
    #[track_caller]
    fn check(&self, id: &str) -> &Value {
        let checks = self.json["checks"].as_array().expect("a list");
        checks.iter().find(|check| check["id"] == id).expect(id)
    }

    #[track_caller]
    fn result(&self, id: &str) -> &str {
        self.check(id)["result"].as_str().expect("a word")
    }

    /// Evidence and remedy.
    #[track_caller]
    fn text(&self, id: &str) -> String {
        let check = self.check(id);
        let remedy = check["remedy"].as_str().unwrap_or_default();
        format!("{} > {remedy}", check["evidence"].as_str().expect("text"))
    }

    #[track_caller]
    fn says(&self, id: &str, result: &str, text: &str) {
        assert_eq!(self.result(id), result, "{}", self.text(id));
        assert!(self.text(id).contains(text), "{id}: {}", self.text(id));
    }
}

/// P-OPERATE-9: doctor finds what a node lacks.
#[test]
fn a_node_without_an_agent_is_looked_at_in_full() {
    let node = Node::device_only(&["--gpus", "2"]);
    let report = doctor(&node);
    let device = report.json["device"].as_str().expect("text");
    assert!(device.starts_with("virtual="), "{device}");
    assert_eq!(
        report.json["checks"].as_array().map(Vec::len),
        Some(tidegate_cli::doctor::CHECKS.len())
    );
    report.says("driver-version", "pass", "580.95.05, 2 GPUs");
    report.says("channel-level", "pass", "an agent would use L1");
    report.says("agent", "warn", "systemctl start tidegate-agent");
    report.says("driver-module", "skip", "a virtual GPU");
    report.says("confidential-computing", "pass", "off");
    report.says("journal", "pass", "no agent has run here");
    assert_eq!(report.code, 1, "warnings and no failure: {:#}", report.json);
    assert!(
        !node.run_dir().join("lock").exists(),
        "looking makes nothing"
    );

    let table = node.tidegate(&["doctor", "--only", "kernel,library"]);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.contains("  PASS  kernel"), "{table}");
    assert!(!table.contains("cgroup2"), "{table}");
    let output = node.tidegate(&["doctor", "--config", "/nowhere/agent.toml", "-o", "json"]);
    assert_eq!(output.status.code(), Some(2), "a failure");
}

/// P-OPERATE-9: doctor finds what a node lacks.
#[test]
fn whoever_uses_the_gpu_beside_the_agent_is_named() {
    let node = Node::new(&[], TRUSTING);
    let mut managed = Offline::start(&node, 500_000, &[0]);
    managed.running();
    wait_for("the process to attach", || {
        process(&node, managed.process.pid())
    });
    let report = doctor(&node);
    report.says("agent", "pass", "generation 1");
    // A sandbox may hide processes even from root, which doctor then says.
    let managed_only = report.text("unmanaged-processes");
    assert!(
        managed_only.contains("1 process attached"),
        "{managed_only}"
    );
    report.says("version-skew", "pass", env!("CARGO_PKG_VERSION"));
    report.says("channel-level", "pass", "the agent uses L1");
    assert_eq!(report.result("second-agent"), "pass");

    let mut outsider = node.plain(compile("offline", &["-lcuda"]));
    let mut outsider = Offline::from_command(outsider.args(["500000", "0"]));
    outsider.running();
    let report = doctor(&node);
    let named = format!("({})", outsider.process.pid());
    report.says("unmanaged-processes", "warn", &named);
    report.says("unmanaged-processes", "warn", "LD_PRELOAD");
    let own = format!("({})", managed.process.pid());
    assert!(!report.text("unmanaged-processes").contains(&own));
    assert!(report.code >= 1);
}

/// P-OPERATE-9: doctor finds what a node lacks.
#[test]
fn a_stuck_agent_and_what_a_dead_one_left_are_found_and_left_as_they_are() {
    let config = format!("{TRUSTING}[gate]\ncooldown = \"5ms\"\n");
    let mut node = Node::new(&[], &config);
    let mut online = Peer::attached(&node, "online", "");
    online.ask("idle 0");
    let mut offline = Peer::attached(&node, "offline", "batch");
    let (client, _) = offline.channels(0, 3);
    online.ask("busy 0");
    let all_disabled = |node: &Node| disabled(node, client) == [true; 3];
    wait_so("the channels to be disabled", || all_disabled(&node));
    doctor(&node).says(
        "stuck-channels",
        "pass",
        "none stuck; 3 disabled by a closed gate",
    );

    let agent = node.agent.take().expect("it runs");
    agent.freeze();
    let report = doctor(&node);
    report.says(
        "agent",
        "fail",
        &format!("pid {} does not answer", agent.pid()),
    );
    report.says("stuck-channels", "fail", "restart the agent");
    assert_eq!(report.code, 2);
    assert!(all_disabled(&node), "doctor enables nothing");

    drop(agent);
    let report = doctor(&node);
    report.says("agent", "warn", "none runs");
    report.says("stuck-channels", "fail", "3 channels left disabled");
    report.says("stuck-channels", "fail", "tidegate release");
    assert!(all_disabled(&node), "doctor enables nothing");

    assert!(node.tidegate(&["release"]).status.success());
    doctor(&node).says("stuck-channels", "pass", "nothing is marked");
    assert_eq!(disabled(&node, client), [false; 3]);
}

/// P-OPERATE-9: doctor finds what a node lacks.
#[test]
fn a_second_agent_on_the_same_device_is_found_whatever_its_directory() {
    let node = Node::new(&[], TRUSTING);
    let elsewhere = TempDir::new();
    let mut command: Command = node.agent_command();
    command.env("TIDEGATE_RUN_DIR", elsewhere.path());
    // Without its lock a device takes two agents, as from versions that had none.
    std::fs::remove_file(node.vgpu_dir().join("device.lock")).expect("the agent made it");
    let second = Running::start("tidegate-agent", &mut command);
    wait_so("the second agent to serve", || {
        elsewhere.path().join("status.sock").exists()
    });
    let report = doctor(&node);
    report.says(
        "second-agent",
        "fail",
        &format!("pid {} also", second.pid()),
    );
    drop(second);
    assert_eq!(doctor(&node).result("second-agent"), "pass");
}

/// P-OPERATE-9: doctor finds what a node lacks.
#[test]
fn why_a_level_is_not_reached_is_said_before_an_agent_runs() {
    let node = Node::device_only(&["--set", "gsp_foreign=deny_23"]);
    let report = doctor(&node);
    report.says("channel-level", "pass", "an agent would use L2");
    report.says("channel-level", "pass", "INVALID_CLIENT");

    let node = Node::device_only(&["--gpus", "2", "--set", "mig=1"]);
    let report = doctor(&node);
    report.says("mig", "warn", "GPU 1");
    report.says("channel-level", "warn", "L5, launches wait");
    report.says("channel-level", "warn", "MIG is on");

    let node = Node::device_only(&["--set", "guest=1"]);
    let report = doctor(&node);
    report.says("vgpu-guest", "warn", "GPU 0 is a vGPU");
    report.says("channel-level", "warn", "L5, launches wait");

    // The first call of the self-test is answered long after doctor has lost its patience.
    let node = Node::device_only(&["--set", "hang=1:60000000"]);
    let report = doctor(&node);
    report.says("channel-level", "fail", "no answer in 5 s");
    assert_eq!(report.code, 2);
}

/// P-OPERATE-9: doctor judges the file of the agent that runs, and the agent itself says that it has no rules.
#[test]
fn the_configuration_that_is_judged_is_that_of_the_running_agent() {
    let mut node = Node::new(&[], "");
    let file = node.dir().join("agent.toml").display().to_string();
    let report = doctor(&node);
    report.says("configuration", "warn", &file);
    report.says(
        "configuration",
        "warn",
        "only who says TIDEGATE_ROLE=offline is gated",
    );
    let log = std::fs::read_to_string(node.agent_log()).expect("a log");
    let warned = |line: &str| line.contains("WARN") && line.contains("no identity rule");
    assert!(log.lines().any(warned), "{log}");
    drop(node.agent.take());
    node.start_agent(&format!(
        "{TRUSTING}[[identity.rules]]\nuid = 4711\nrole = \"online\"\n"
    ));
    let report = doctor(&node);
    report.says("configuration", "pass", &format!("{file}, 1 rule"));
    let log = std::fs::read_to_string(node.agent_log()).expect("a log");
    assert_eq!(log.lines().filter(|line| warned(line)).count(), 1, "{log}");
}

/// P-OPERATE-25: a pool that no GPU has is cut, and log, doctor and `config check --on-node` say to what.
#[test]
fn a_pool_larger_than_a_gpu_is_cut_and_said() {
    let config = format!("{TRUSTING}\n[memory]\npool = \"9000GiB\"\n");
    let node = Node::new(&[], &config);
    let said = "memory.pool is 9000GiB, and GPU 0 has 16GiB";
    let log = std::fs::read_to_string(node.agent_log()).expect("a log");
    assert_eq!(log.matches(said).count(), 1, "{log}");
    doctor(&node).says("memory-pool", "warn", said);
    let file = node.dir().join("agent.toml").display().to_string();
    let check = node.tidegate(&["config", "check", "--on-node", &file]);
    let printed = String::from_utf8_lossy(&check.stdout);
    assert!(
        check.status.success() && printed.contains(said),
        "{check:?}"
    );
    let status = tidegate_tests::view::status(&node);
    assert_eq!(
        status["gpus"][0]["memory"]["pool_bytes"],
        16_u64 << 30,
        "{status}"
    );
}

/// P-OPERATE-26: sockets that systemd holds for an agent that does not start are told from an agent that hangs.
#[test]
fn sockets_without_an_agent_are_said_to_be_those_of_systemd() {
    let node = Node::device_only(&[]);
    std::fs::create_dir_all(node.run_dir()).expect("a directory");
    let names = ["control.sock", "status.sock"];
    let _held = names.map(|name| UnixListener::bind(node.run_dir().join(name)).expect("a socket"));
    let status = node.tidegate(&["status"]);
    let why = String::from_utf8_lossy(&status.stderr);
    assert_eq!(status.status.code(), Some(3), "{why}");
    assert!(why.contains("systemctl status tidegate-agent"), "{why}");
    doctor(&node).says("agent", "fail", "systemctl status tidegate-agent");
}
