//! Who asked for which role, whether it got it, and why not.

use serde_json::Value;
use std::process::{Command, Output};
use tidegate_tests::{Node, Offline, Online, TRUSTING, built, compile, wait_for};

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

/// `tidegate run` with these words, on a machine with the virtual driver.
fn run(node: &Node, words: &[&str]) -> Command {
    let mut command = node.plain(built("tidegate"));
    command
        .arg("run")
        .arg("--library")
        .arg(built("libtidegate.so"))
        .args(words);
    command
}

#[track_caller]
fn outcome(command: &mut Command) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("tidegate starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

/// P-OPERATE-17: a program is started with all that its role takes.
#[test]
fn run_starts_a_program_as_what_it_asks_to_be() {
    let node = Node::new(&[], TRUSTING);
    let program = compile("offline", &["-lcuda"]).display().to_string();
    let words = [
        "--offline",
        "--job",
        "nightly",
        "--",
        &program,
        "1000000",
        "0",
    ];
    let mut offline = Offline::from_command(&mut run(&node, &words));
    offline.running();
    let process = attached(&node, offline.process.pid());
    assert_eq!(process["role"], "offline");
    assert_eq!(process["job"], "nightly");
    offline.stop();
    let program = compile("online", &["-lcuda"]).display().to_string();
    let online = Online::from_command(&mut run(&node, &["--online", "--", &program, "0"]));
    assert_eq!(attached(&node, online.process.pid())["role"], "online");
    // What it finds in its environment, and that its own exit code is what comes back.
    let script = "echo $TIDEGATE_ROLE $VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS $TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC \
                  ${CUDA_DEVICE_MAX_CONNECTIONS-unset}; exit 7";
    for (asked, found) in [(&[][..], "unset"), (&["--connections", "2"], "2")] {
        let words = [&["--offline"], asked, &["--", "sh", "-c", script]].concat();
        let mut command = run(&node, &words);
        command.env("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "9");
        command.env_remove("CUDA_DEVICE_MAX_CONNECTIONS");
        let said = format!("offline 86400 9 {found}\n");
        assert_eq!(outcome(&mut command), (Some(7), said, String::new()));
    }
    for (asked, why) in [
        (["--connections", "2"], "add --offline"),
        (["--connections", "33"], "33"),
    ] {
        let words = [&asked[..], &["--", "true"]].concat();
        let (code, _, said) = outcome(&mut run(&node, &words));
        assert!(code == Some(2) && said.contains(why), "{code:?} {said}");
    }
    let (code, _, why) = outcome(&mut run(&node, &["--offline", "--", "/no/such/program"]));
    assert_eq!(code, Some(127), "{why}");
}

/// P-OPERATE-17: what would not be what it asks to be is not started, and one line says why.
#[test]
fn run_starts_nothing_that_would_be_something_else() {
    let mut node = Node::device_only(&[]);
    let mark = node.dir().join("started");
    let touch = mark.display().to_string();
    let kept_back = |command: &mut Command, code: i32, said: &str| {
        let (found, _, why) = outcome(command);
        assert!(
            found == Some(code) && why.contains(said) && why.lines().count() == 1,
            "{found:?} {why}"
        );
        assert!(!mark.exists(), "{why}");
    };
    let program = ["--", "touch", &touch];
    let with = |words: &[&'static str]| {
        let all: Vec<&str> = words.iter().copied().chain(program).collect();
        run(&node, &all)
    };
    kept_back(&mut with(&["--offline"]), 3, "no agent listens");
    kept_back(
        &mut with(&["--offline", "--wait", "1s"]),
        3,
        "no agent listens",
    );
    kept_back(&mut with(&[]), 3, "no agent listens");
    let mut unknown = with(&[]);
    unknown.env("TIDEGATE_ROLE", "ofline");
    kept_back(&mut unknown, 2, "TIDEGATE_ROLE takes online or offline");
    let mut command = node.plain(built("tidegate"));
    command.args(["run", "--library", "/no/such.so", "--offline"]);
    kept_back(
        command.args(program),
        3,
        "the library /no/such.so cannot be read",
    );
    // A program that is not beside the library, on a machine where the library is not installed.
    let alone = node.dir().join("tidegate");
    std::fs::copy(built("tidegate"), &alone).expect("a copy");
    let installed = ["/usr/local/lib", "/usr/lib/tidegate", "/usr/lib"];
    if installed.map(|dir| std::path::Path::new(dir).join("libtidegate.so").exists()) == [false; 3]
    {
        let mut command = node.plain(&alone);
        command.args(["run", "--offline"]).args(program);
        kept_back(&mut command, 3, "the library is not found; --library says");
    } else {
        println!("SKIPPED: a library is installed on this machine");
    }
    // Online waits for nobody, but it is said.
    let (code, _, said) = outcome(&mut with(&["--online"]));
    assert!(
        code == Some(0) && said.contains("started all the same"),
        "{code:?} {said}"
    );
    std::fs::remove_file(&mark).expect("it was started");
    node.start_agent("");
    let with = |words: &[&'static str]| {
        let all: Vec<&str> = words.iter().copied().chain(program).collect();
        run(&node, &all)
    };
    kept_back(
        &mut with(&["--online"]),
        3,
        "is not in identity.trust_env_uids",
    );
    kept_back(&mut with(&[]), 3, "it would be left alone");
    let (code, _, why) = outcome(&mut with(&["--offline"]));
    assert_eq!(code, Some(0), "{why}");
    assert!(mark.exists());
}

/// P-OPERATE-17: an agent that comes while it is waited for is found.
#[test]
fn run_waits_for_an_agent() {
    let mut node = Node::device_only(&[]);
    let mut command = run(
        &node,
        &["--offline", "--wait", "2m", "--", "echo", "started"],
    );
    let waiting = tidegate_tests::Running::start("tidegate run", &mut command);
    node.start_agent("");
    assert_eq!(waiting.succeed(), "started\n");
}

/// P-OPERATE-17: a role that only a rule gives is not known without an agent, and nothing waits for one.
#[test]
fn offline_by_a_rule_alone_waits_for_no_agent() {
    let node = Node::device_only(&[]);
    let mut command = node.preloaded(compile("offline", &["-lcuda"]), "");
    command.args(["1000000", "0"]);
    let mut by_rule = Offline::from_command(&mut command);
    by_rule.running();
    by_rule.stop();
}
