//! Who asked for which role, whether it got it, and why not.

use serde_json::Value;
use tidegate_tests::{Node, Offline, Online, TRUSTING, compile, wait_for};

/// What a command that must succeed wrote.
#[track_caller]
fn said(node: &Node, args: &[&str]) -> String {
    let output = node.tidegate(args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[track_caller]
fn json(node: &Node, args: &[&str]) -> Value {
    serde_json::from_str(&said(node, args)).expect("JSON")
}

/// Process `pid` as status has it, once it has attached.
fn attached(node: &Node, pid: u32) -> Value {
    wait_for("the process in status", || {
        let status = json(node, &["status", "-o", "json"]);
        let processes = status["processes"].as_array().expect("a list").clone();
        processes.into_iter().find(|process| process["pid"] == pid)
    })
}

/// P-OPERATE-15: who asked for a role and did not get it is named.
#[test]
fn a_role_that_was_refused_is_named_in_status_events_explain_and_the_log() {
    let node = Node::new(&[], "");
    let mut command = node.preloaded(compile("online", &["-lcuda"]), "online");
    command.arg("0");
    let refused = Online::from_command(&mut command);
    let pid = refused.process.pid();
    let process = attached(&node, pid);
    assert_eq!(process["role"], "ignore");
    assert_eq!(process["asked_role"], "online");
    let why = process["role_refused"].as_str().expect("text");
    let reason = "asked for online by TIDEGATE_ROLE and is left alone, neither seen nor gated: no rule matched";
    assert!(why.contains(reason), "{process}");
    assert_eq!(process["note"], why);
    let explained = said(&node, &["explain", "pid", &pid.to_string()]);
    assert!(explained.contains(reason), "{explained}");
    // A word that is no role is no wish, and is said.
    let mut command = node.preloaded(compile("offline", &["-lcuda"]), "ofline");
    command.args(["1000000", "0"]);
    let mistyped = Offline::from_command(&mut command);
    let process = attached(&node, mistyped.process.pid());
    assert_eq!(process["asked_role"], Value::Null);
    let why = process["role_refused"].as_str().expect("text");
    assert!(
        why.starts_with("asked for `ofline` by TIDEGATE_ROLE"),
        "{process}"
    );
    let events = said(&node, &["events", "--kind", "role_refused", "-o", "json"]);
    let of: Vec<Value> = events
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let pids: Vec<_> = of.iter().map(|event| event["pid"].as_u64()).collect();
    let own = [pid, mistyped.process.pid()].map(|pid| Some(u64::from(pid)));
    assert_eq!(pids, own, "{events}");
    let log = std::fs::read_to_string(node.agent_log()).expect("a log");
    let warned = |line: &&str| line.contains("WARN") && line.contains("role_refused");
    assert_eq!(log.lines().filter(warned).count(), 2, "{log}");
}

/// P-OPERATE-15: a job that runs because there is no online process says so.
#[test]
fn a_job_that_runs_beside_nobody_says_so() {
    let node = Node::new(&["--gpus", "2"], TRUSTING);
    let mut offline = Offline::start(&node, 1_000_000, &[0]);
    offline.running();
    let reason = || {
        let status = json(&node, &["status", "-o", "json"]);
        status["jobs"][0]["reason"].as_str().map(str::to_owned)
    };
    let says = |what: &str| {
        wait_for(what, || (reason().as_deref() == Some(what)).then_some(()));
    };
    says("no online process is attached");
    let elsewhere = Online::start(&node, 1);
    says("no online process uses its GPUs");
    let beside = Online::start(&node, 0);
    says("online is idle");
    drop((beside, elsewhere));
    says("no online process is attached");
    offline.stop();
}

/// P-OPERATE-15: what a process would be if it asked is told before it is started.
#[test]
fn explain_tells_what_a_wish_would_give() {
    let node = Node::new(&[], "");
    let own = std::process::id().to_string();
    let asking = |role: &str| {
        json(
            &node,
            &["explain", "pid", &own, "--asking", role, "-o", "json"],
        )
    };
    assert_eq!(asking("offline")["role"], "offline");
    assert_eq!(asking("offline")["role_refused"], "");
    let online = asking("online");
    assert_eq!(online["role"], "ignore");
    let why = online["role_refused"].as_str().expect("text");
    assert!(
        why.contains("is not in identity.trust_env_uids"),
        "{online}"
    );
}
