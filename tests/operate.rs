//! An operator steers a running agent: reads its configuration again, sets, drains, asks why.

use serde_json::Value;
use std::os::unix::net::UnixDatagram;
use tidegate_tests::peer::Peer;
use tidegate_tests::view::{disabled, status, table, wait_all, wait_so};
use tidegate_tests::watch::{self, Testimony, channels, wait_finished};
use tidegate_tests::{Node, Offline, Running, clock, compile, wait_for};

const FIXED: &str = "[identity]\ntrust_env_uids = [\"self\"]\n[gate]\ncooldown = \"5ms\"\n";

/// Runs a command that must succeed; what it wrote.
#[track_caller]
fn run(node: &Node, args: &[&str]) -> String {
    let output = node.tidegate(args);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{args:?}: {output:?}");
    text
}

/// Runs a command that must fail; its exit code and what it said.
#[track_caller]
fn refused(node: &Node, args: &[&str]) -> (Option<i32>, String) {
    let output = node.tidegate(args);
    assert!(!output.status.success(), "{args:?}: {output:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), text)
}

/// The line of the dump about a setting.
fn line(node: &Node, key: &str) -> String {
    let dump = run(node, &["config", "dump", "--origin"]);
    let found = dump.lines().find(|line| line.starts_with(key));
    found
        .unwrap_or_else(|| panic!("no {key} in {dump}"))
        .to_owned()
}

fn write(node: &Node, config: &str) {
    std::fs::write(node.dir().join("agent.toml"), config).expect("writable");
}

/// The texts of the events of one kind.
fn events(node: &Node, kind: &str) -> Vec<String> {
    let lines = run(node, &["events", "--output", "json"]);
    let events = lines
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    events
        .filter(|event: &Value| event["kind"] == kind)
        .map(|event| event["text"].as_str().unwrap_or_default().to_owned())
        .collect()
}

/// P-OPERATE-4: a good configuration is put in force, a bad one left out.
#[test]
fn a_reload_puts_in_force_what_it_can_and_names_what_takes_a_restart() {
    let node = Node::new(&[], FIXED);
    write(
        &node,
        &format!(
            "{FIXED}cooldown_max = \"1s\"\n[memory]\npool = \"1GiB\"\n[log]\nlevel = \"debug\"\n"
        ),
    );
    let said = run(&node, &["reload"]);
    assert!(
        said.contains("gate.cooldown_max: \"200ms\" -> \"1s\""),
        "{said}"
    );
    assert!(
        said.contains("memory.pool: \"0B\" -> \"1GiB\"") && said.contains("NEEDS A RESTART"),
        "{said}"
    );
    assert!(
        line(&node, "cooldown_max").contains("= \"1s\""),
        "{}",
        line(&node, "cooldown_max")
    );
    assert!(line(&node, "cooldown_max").contains("agent.toml:5; at once"));
    assert!(
        line(&node, "pool").contains("= \"0B\"")
            && line(&node, "pool").contains("default, after a restart \"1GiB\"")
    );
    assert_eq!(
        status(&node)["config_pending"],
        serde_json::json!(["memory.pool"])
    );
    assert!(table(&node).contains("a restart is needed for memory.pool"));
    let who = wait_for("the event", || events(&node, "reloaded").pop());
    assert!(
        who.contains("gate.cooldown_max") && who.contains("by uid"),
        "{who}"
    );
}

/// P-OPERATE-4: a good configuration is put in force, a bad one left out.
#[test]
fn a_bad_file_leaves_the_old_one_in_force_and_is_named_everywhere() {
    let node = Node::new(&[], FIXED);
    write(&node, "[gate]\ncooldown = \"9ms\"\ncooldown_mxa = \"1s\"\n");
    let (code, said) = refused(&node, &["reload"]);
    assert_eq!(code, Some(3));
    let fault = "agent.toml:3: unknown key `gate.cooldown_mxa`; did you mean `gate.cooldown_max`?";
    assert!(
        said.contains("the old one stays in force") && said.contains(fault),
        "{said}"
    );
    assert!(line(&node, "cooldown ").contains("\"5ms\""));
    let error = status(&node)["config_error"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    assert!(error.contains(fault), "{error}");
    assert!(table(&node).contains("configuration refused"));
    let log = std::fs::read_to_string(node.agent_log()).expect("a log");
    assert!(log.contains(fault), "{log}");
    // By signal the same, and a good file is taken again.
    write(&node, "[gate]\ncooldown = \"9ms\"\n");
    node.agent.as_ref().expect("it runs").signal(libc::SIGHUP);
    wait_so("the file to be in force", || {
        line(&node, "cooldown ").contains("\"9ms\"")
    });
    assert_eq!(status(&node)["config_error"], "");
    wait_so("the event", || {
        events(&node, "reloaded")
            .iter()
            .any(|text| text.contains("by SIGHUP"))
    });
}

/// P-OPERATE-4: a good configuration is put in force, a bad one left out.
#[test]
fn the_service_manager_hears_of_a_reload_from_its_begin_to_its_end() {
    let mut node = Node::device_only(&[]);
    let path = node.dir().join("notify.sock");
    let socket = UnixDatagram::bind(&path).expect("a free name");
    let limit = socket.set_read_timeout(Some(clock::DEADLINE));
    limit.expect("a socket takes a time limit");
    let mut command = node.agent_command();
    command
        .env("NOTIFY_SOCKET", &path)
        .stderr(std::process::Stdio::null());
    node.agent = Some(Running::start("agent", &mut command));
    let hear = || {
        let mut text = [0; 512];
        let length = socket.recv(&mut text).expect("the agent speaks in time");
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    assert!(hear().starts_with("READY=1"));
    let before = tidegate_tests::monotonic_ns() / 1_000;
    node.agent.as_ref().expect("it runs").signal(libc::SIGHUP);
    let said = hear();
    let at = said
        .lines()
        .find_map(|line| line.strip_prefix("MONOTONIC_USEC="));
    let at: u64 = at.and_then(|at| at.parse().ok()).expect("a time");
    assert!(said.starts_with("RELOADING=1\n"), "{said}");
    assert!(
        (before..=tidegate_tests::monotonic_ns() / 1_000).contains(&at),
        "{said}"
    );
    assert!(hear().starts_with("READY=1"));
}

/// An idle online process and an offline one that runs.
fn colocated(node: &Node) -> (Peer, Peer, u32) {
    let mut online = Peer::attached(node, "online", "");
    online.ask("idle 0");
    let mut offline = Peer::attached(node, "offline", "batch");
    let (client, _) = offline.channels(0, 2);
    wait_so("the job to run", || {
        status(node)["jobs"][0]["state"] == "running"
    });
    (online, offline, client)
}

/// P-OPERATE-5: what is set, drained or asked for holds at once.
#[test]
fn what_is_set_counts_at_once_and_goes_when_it_is_taken_back() {
    let node = Node::new(&[], FIXED);
    let (mut online, _offline, client) = colocated(&node);
    let said = run(&node, &["set", "gate.cooldown=1h"]);
    assert!(
        said.contains("gate.cooldown: \"5ms\" -> \"1h\" (set by uid"),
        "{said}"
    );
    online.ask("busy 0");
    wait_all(&node, client, true);
    online.ask("idle 0");
    wait_so("the long cooldown", || {
        status(&node)["gpus"][0]["gate"] == "cooling"
    });
    assert_eq!(
        status(&node)["gpus"][0]["cooldown_ns"],
        3_600_000_000_000_u64
    );
    assert_eq!(disabled(&node, client), [true, true]);
    // A reload keeps what was set; the gate opens by the shorter cooldown, which runs already.
    assert_eq!(run(&node, &["reload"]), "nothing changed\n");
    run(&node, &["set", "--unset", "gate.cooldown"]);
    wait_all(&node, client, false);
    assert!(line(&node, "cooldown ").contains("agent.toml:4"));
    let audit = wait_for("both events", || {
        Some(events(&node, "set")).filter(|e| e.len() == 2)
    });
    assert!(
        audit[0].starts_with("gate.cooldown = 1h: by uid ") && audit[0].contains("(tidegate)"),
        "{audit:?}"
    );
    for (assignment, code, why) in [
        ("gate.cooldown=soon", 2, "`soon` is not a time"),
        ("gate.coldown=5ms", 2, "did you mean `gate.cooldown`?"),
        ("gate.cooldown_min=1min", 2, "is out of range"),
        ("gate.cooldown_min=1s", 2, "is above gate.cooldown_max"),
        ("memory.pool=1GiB", 3, "next start"),
        ("bench.ungated=1min", 3, "decided by the agent's files"),
        ("gate.cooldown", 2, "give KEY=VALUE"),
        (
            "identity.trust_env_uids=[0]",
            3,
            "decided by the agent's files",
        ),
    ] {
        let (got, said) = refused(&node, &["set", assignment]);
        assert!(
            got == Some(code) && said.contains(why),
            "{assignment}: {said}"
        );
    }
}

/// P-OPERATE-5: what is set, drained or asked for holds at once.
#[test]
fn a_drained_node_holds_offline_of_today_and_tomorrow_and_online_goes_on() {
    let node = Node::new(&[], FIXED);
    let (mut online, _offline, client) = colocated(&node);
    let said = run(&node, &["drain"]);
    assert!(said.contains("held: batch"), "{said}");
    wait_all(&node, client, true);
    let mut late = Peer::attached(&node, "offline", "late");
    let (later, _) = late.channels(0, 2);
    wait_all(&node, later, true);
    // Resuming does not undo it.
    run(&node, &["resume"]);
    online.ask("busy 0");
    wait_so("online to be busy", || {
        status(&node)["gpus"][0]["online_busy"] == true
    });
    online.ask("idle 0");
    wait_so("an open gate", || {
        status(&node)["gpus"][0]["gate"] == "open"
    });
    assert_eq!(disabled(&node, client), [true, true]);
    let now = status(&node);
    assert!(
        now["drained"]["by"]
            .as_str()
            .is_some_and(|by| by.contains("uid"))
    );
    for job in now["jobs"].as_array().expect("a list") {
        assert_eq!(
            (&job["state"], &job["reason"]),
            (&"paused".into(), &"the node is drained".into())
        );
    }
    let pid = late.running.pid().to_string();
    assert!(run(&node, &["explain", "pid", &pid]).contains("waits: the node is drained"));
    run(&node, &["undrain"]);
    wait_all(&node, client, false);
    wait_all(&node, later, false);
    assert_eq!(status(&node)["drained"], false);
    for kind in ["drained", "undrained"] {
        let who = wait_for(kind, || events(&node, kind).pop());
        assert!(who.starts_with("by uid "), "{who}");
    }
}

/// `tidegate explain pid` as JSON.
fn explained(node: &Node, peer: &Peer) -> Value {
    let pid = peer.running.pid().to_string();
    serde_json::from_str(&run(node, &["explain", "pid", &pid, "-o", "json"])).expect("JSON")
}

fn reasons(explained: &Value) -> String {
    explained["reasons"].to_string()
}

/// P-OPERATE-5: what is set, drained or asked for holds at once.
#[test]
fn explain_names_every_rule_tried_and_why_a_process_runs_or_waits() {
    let rules = format!(
        "{FIXED}[[identity.rules]]\nunit = \"no-such@*.service\"\nrole = \"online\"\n\
         [[identity.rules]]\nuid = {}\nrole = \"offline\"\n[[identity.rules]]\ngid = 0\nrole = \"ignore\"\n",
        nix_uid()
    );
    let node = Node::new(&[], &rules);
    let (mut online, offline, client) = colocated(&node);
    let said = explained(&node, &offline);
    assert_eq!(said["role"], "offline");
    let trials = said["trials"].as_array().expect("a list");
    assert_eq!(trials.len(), 2, "the third was not reached: {trials:?}");
    assert!(
        trials[0]["mismatch"]
            .as_str()
            .is_some_and(|m| m.starts_with("unit is ")),
        "{trials:?}"
    );
    assert!(
        trials[0]["origin"]
            .as_str()
            .is_some_and(|o| o.ends_with("agent.toml:5")),
        "{trials:?}"
    );
    assert_eq!(trials[1]["matched"], true);
    assert!(reasons(&said).contains("runs: online is idle"), "{said}");
    online.ask("busy 0");
    wait_all(&node, client, true);
    let busy = format!(
        "GPU 0: process {} (scripted-peer) is busy",
        online.running.pid()
    );
    let waits = wait_for("the reason", || {
        Some(reasons(&explained(&node, &offline))).filter(|text| text.contains(&busy))
    });
    assert!(
        waits.contains("waits: online is or was just busy on GPU 0"),
        "{waits}"
    );
    let other = reasons(&explained(&node, &online));
    assert!(
        other.contains("runs: online work is never held")
            && other.contains("keeps the gate closed"),
        "{other}"
    );
    // It was its user's own word, not a rule, that made it online, and would again.
    let said = explained(&node, &online);
    assert_eq!(said["role"], "online");
    let rule = said["rule"].as_str().expect("text");
    assert!(rule.starts_with("trusted user"), "{said}");
    assert_eq!(said["attached"][0]["rule"], rule);
    assert!(!other.contains("it attached as what it is by"), "{other}");
    run(&node, &["set", "gate.cooldown=1h"]);
    online.ask("idle 0");
    wait_for("what is left of the cooldown", || {
        let text = reasons(&explained(&node, &offline));
        text.contains("of the cooldown of 60 min; ").then_some(())
    });
    let own = std::process::id().to_string();
    let unattached = run(&node, &["explain", "pid", &own]);
    assert!(unattached.contains("it is not attached"), "{unattached}");
    assert!(
        refused(&node, &["explain", "pid", "999999999"])
            .1
            .contains("there is no process")
    );
}

fn nix_uid() -> u32 {
    // SAFETY: plain system call.
    unsafe { libc::geteuid() }
}

#[test]
fn a_socket_that_somebody_removed_is_bound_anew_and_whoever_comes_finds_the_agent() {
    let node = Node::new(&[], FIXED);
    let before = Peer::attached(&node, "offline", "before");
    for name in ["hook.sock", "status.sock", "control.sock"] {
        std::fs::remove_file(node.run_dir().join(name)).expect("the agent made it");
    }
    let removed = || {
        let said = node
            .tidegate(&["events", "--kind", "socket_removed"])
            .stdout;
        let said = String::from_utf8_lossy(&said).into_owned();
        (said.matches("is bound anew").count() == 3).then_some(said)
    };
    wait_for("all three to be bound anew", removed);
    let after = Peer::attached(&node, "offline", "after");
    let jobs = run(&node, &["drain"]);
    assert!(jobs.contains("before") && jobs.contains("after"), "{jobs}");
    let mode = |name: &str| {
        let about = std::fs::metadata(node.run_dir().join(name)).expect("it is there");
        std::os::unix::fs::PermissionsExt::mode(&about.permissions()) & 0o777
    };
    assert_eq!(
        ["hook.sock", "status.sock", "control.sock"].map(mode),
        [0o666, 0o666, 0o660]
    );
    drop((before, after));
}

/// P-LIFECYCLE-12: a job whose launches wait at an open gate, since its library takes the agent for lost, is not running.
#[test]
fn a_job_whose_launches_wait_at_an_open_gate_is_not_said_to_run() {
    let node = Node::new(&[], FIXED);
    let mut offline = Peer::attached(&node, "offline", "batch");
    offline.channels(0, 1);
    let job = |is: &str| {
        let job = status(&node)["jobs"][0].clone();
        (job["state"] == is).then_some(job["reason"].as_str().unwrap_or_default().to_owned())
    };
    wait_for("the job to run", || job("running"));
    offline.ask("waits 1");
    let reason = wait_for("the job not to run", || job("unknown"));
    assert!(reason.contains("although its gate is open"), "{reason}");
    let pid = status(&node)["processes"][0]["pid"].to_string();
    let text = run(&node, &["explain", "pid", &pid]);
    assert!(text.contains("waits: launches of process"), "{text}");
    offline.ask("waits 0");
    wait_for("the job to run again", || job("running"));
}

/// An offline program of a job, on one GPU.
fn offline(node: &Node, job: &str, gpu: usize) -> Offline {
    let mut command = node.preloaded(compile("offline", &["-lcuda"]), "offline");
    command
        .args(["500000", &gpu.to_string()])
        .env("TIDEGATE_JOB", job);
    Offline::from_command(&mut command)
}

/// Kills the agent without a word and starts another; both programs are attached to it afterwards.
fn crash(node: &mut Node, pids: &[u32]) {
    let agent = node.agent.take().expect("it runs");
    agent.signal(libc::SIGKILL);
    drop(agent);
    node.start_agent(FIXED);
    wait_so("both to be attached", || {
        let now = status(node);
        let attached = now["processes"].as_array().map_or(0, Vec::len);
        let standing = channels(node, pids);
        attached == pids.len() && !standing.is_empty()
    });
}

/// The jobs' states, by name.
fn states(node: &Node) -> Vec<(String, String)> {
    let now = status(node);
    let jobs = now["jobs"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut states: Vec<_> = jobs
        .iter()
        .map(|job| (text(&job["name"]), text(&job["state"])))
        .collect();
    states.sort();
    states
}

/// P-OPERATE-22: what an operator held stays held over crashes of the agent, until he lets it go.
#[test]
fn a_drain_and_a_pause_outlast_the_agent() {
    const CRASHES: usize = 3;
    /// Launches that a program has under way at once, and one that is just being made. No order takes them back, and who
    /// finds no agent for a second enables its channels itself: they run after each crash at most, and no other does.
    const QUEUED: usize = 5 * (CRASHES + 1);
    let mut node = Node::new(&["--gpus", "2"], FIXED);
    let (mut night, mut day) = (offline(&node, "night", 0), offline(&node, "day", 1));
    night.running();
    day.running();
    let pids = [night.process.pid(), day.process.pid()];
    let finished =
        |node: &Node, pid: u32, since: u64| Testimony::of(node).finished_after(&[pid], since);

    assert!(run(&node, &["pause", "night"]).contains("night"));
    watch::wait_all(&node, &pids[..1], true);
    let held = clock::monotonic_ns();
    for _ in 0..CRASHES {
        crash(&mut node, &pids);
        let since = clock::monotonic_ns();
        wait_finished(&node, &pids[1..], 20, since);
        wait_so("the pause to be in force", || {
            states(&node).contains(&("night".to_owned(), "paused".to_owned()))
        });
    }
    let ran = finished(&node, pids[0], held);
    assert!(ran <= QUEUED, "{ran}");
    // It holds for the job, not for the processes that it had.
    drop(night);
    let mut again = offline(&node, "night", 0);
    wait_so("the job to be paused from its first moment on", || {
        states(&node).contains(&("night".to_owned(), "paused".to_owned()))
    });
    let pids = [again.process.pid(), pids[1]];
    assert_eq!(finished(&node, pids[0], 0), 0);
    run(&node, &["resume", "night"]);
    again.running();

    assert!(run(&node, &["drain"]).contains("held"));
    watch::wait_all(&node, &pids, true);
    let held = clock::monotonic_ns();
    let by = status(&node)["drained"].clone();
    for _ in 0..CRASHES {
        crash(&mut node, &pids);
        assert_eq!(status(&node)["drained"], by);
        wait_so("both to be held", || {
            states(&node).iter().all(|(_, state)| state == "paused")
        });
    }
    assert!(table(&node).contains("until `tidegate undrain`; since 20"));
    let ran = pids.map(|pid| finished(&node, pid, held));
    assert!(ran.iter().all(|ran| *ran <= QUEUED), "{ran:?}");

    // A file that says nothing holds what it may have held.
    let file = node.run_dir().join("operator.json");
    std::fs::write(&file, "{\"version\":1,").expect("own directory");
    crash(&mut node, &pids);
    let why = status(&node)["drained"]["by"].to_string();
    assert!(why.contains("operator.json cannot be read"), "{why}");
    run(&node, &["undrain"]);
    let since = clock::monotonic_ns();
    wait_finished(&node, &pids[..1], 20, since);
    wait_finished(&node, &pids[1..], 20, since);
    crash(&mut node, &pids);
    assert_eq!(status(&node)["drained"], false);
    again.stop();
    day.stop();
}
