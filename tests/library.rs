//! The library in a process' life: capture, fork, an agent that comes late, dies, and returns.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use tidegate_tests::clock::Stalls;
use tidegate_tests::watch::{self, Testimony, status};
use tidegate_tests::{Node, Online, Running, TRUSTING, TempDir, compile, monotonic_ns, wait_for};
use tidegate_vgpu::control::ChannelState;
use tidegate_vgpu::history::{self, Kind, Record};

fn offline(node: &Node) -> Running {
    let offline = compile("offline", &["-lcuda"]);
    Running::start("offline", node.preloaded(&offline, "offline").arg("500000"))
}

fn channels_of(node: &Node, pid: u32) -> Vec<ChannelState> {
    watch::channels(node, &[pid])
}

fn all_are(node: &Node, pid: u32, disabled: bool) -> Option<()> {
    let channels = channels_of(node, pid);
    let so = !channels.is_empty() && channels.iter().all(|channel| channel.disabled == disabled);
    so.then_some(())
}

/// Kernels of `pid` that finished.
fn finished(node: &Node, pid: u32) -> usize {
    Testimony::of(node).finished_after(&[pid], 0)
}

fn suspect(node: &Node) -> Option<String> {
    let status = status(node);
    let devices = status["processes"]
        .as_array()?
        .iter()
        .flat_map(|process| process["devices"].as_array().into_iter().flatten());
    devices
        .filter_map(|device| device["suspect"].as_str())
        .find(|reason| !reason.is_empty() && *reason != "unspecified")
        .map(str::to_owned)
}

/// P-LIBRARY-3: captures and forks are not noticed.
#[test]
fn probing_never_breaks_a_capture_whichever_thread_launches_and_in_whatever_mode() {
    let node = Node::new(&[], TRUSTING);
    let probed = compile("probed", &["-lcuda"]);
    let output = Running::start("probed", &mut node.preloaded(&probed, "online")).succeed();
    assert_eq!(output.trim(), "ok 120");
}

/// P-GATE-4: what a thread launched into its own stream is seen done, also where that thread never looks.
#[test]
fn a_thread_that_never_waits_for_its_own_stream_keeps_no_device_busy() {
    let node = Node::new(&[], TRUSTING);
    let program = compile("own_stream", &["-lcuda"]);
    for (then, kernels) in [("ends", 1), ("sleeps", 1), ("goes_on", 101), ("context", 0)] {
        let mut command = node.preloaded(&program, "online");
        command.arg(then).stdin(Stdio::piped());
        let mut process = Running::start("own_stream", &mut command);
        let mut stdin = process.child.stdin.take().expect("stdin is piped");
        let mut lines = BufReader::new(process.child.stdout.take().expect("stdout is piped"));
        wait_for("the device to be idle", || {
            let mut line = String::new();
            lines.read_line(&mut line).expect("a pipe can be read");
            writeln!(stdin, "?").expect("it lives");
            (line == "idle\n").then_some(())
        });
        assert!(
            finished(&node, process.pid()) >= kernels,
            "{then}: idle too early"
        );
        drop(stdin);
        process.succeed();
    }
}

/// P-LIBRARY-3: captures and forks are not noticed.
#[test]
fn forked_children_start_over_and_see_no_descriptor_of_the_library() {
    let node = Node::new(&[], TRUSTING);
    let forks = compile("forks", &["-lcuda"]);
    for role in ["online", "offline"] {
        let output = Running::start("forks", &mut node.preloaded(&forks, role)).succeed();
        assert_eq!(output.trim(), "ok", "{role}");
    }
}

#[test]
fn online_runs_without_an_agent_and_is_found_by_one_that_comes_late() {
    let mut node = Node::device_only(&[]);
    let mut online = Online::start(&node, 0);
    let (stalls, before) = (Stalls::watch(), monotonic_ns());
    let took = online.say("burst 5 100000") - before;
    assert!(
        took < 1_000_000_000 + stalls.ns(),
        "nothing waits for an agent: {took} ns"
    );
    node.start_agent(TRUSTING);
    let mut offline = offline(&node);
    wait_for("offline to run", || {
        (finished(&node, offline.pid()) > 5).then_some(())
    });
    online.say("hold");
    wait_for("offline to stop", || all_are(&node, offline.pid(), true));
    online.say("release");
    wait_for("offline to run again", || {
        all_are(&node, offline.pid(), false)
    });
    let _ = offline.child.kill();
}

/// P-LIFECYCLE-6: without an agent launches wait or pass as configured.
#[test]
fn offline_waits_for_an_agent_says_so_once_and_gives_up_only_when_told_to() {
    let node = Node::device_only(&[]);
    let program = compile("offline", &["-lcuda"]);
    let mut command = node.preloaded(&program, "offline");
    let mut offline = Running::start(
        "offline",
        command.arg("100000").env("TIDEGATE_ATTACH_TIMEOUT", "2s"),
    );
    let pid = offline.pid();
    let pipe = offline.child.stderr.take().expect("stderr is piped");
    let mut errors = BufReader::new(pipe).lines();
    let line = errors.next().expect("a line").expect("a pipe can be read");
    assert!(line.contains("waits for tidegate-agent"), "{line}");
    assert!(line.contains("for at most 2s"), "{line}");
    assert_eq!(finished(&node, pid), 0, "nothing runs before an agent came");
    wait_for("offline to run ungated", || {
        (finished(&node, pid) > 5).then_some(())
    });
    offline.signal(libc::SIGTERM);
    offline.succeed();
    assert_eq!(errors.count(), 0, "one line only");
}

/// P-LIFECYCLE-6: without an agent launches wait or pass as configured.
#[test]
fn offline_told_to_fail_without_an_agent_gets_an_error_for_each_launch_until_one_comes() {
    const SYSTEM_NOT_READY: u64 = 802;
    let mut node = Node::device_only(&[]);
    let mut command = node.preloaded(compile("online", &["-lcuda"]), "offline");
    let errors = node.dir().join("stderr");
    let to = std::fs::File::create(&errors).expect("the temporary directory is writable");
    command
        .env("TIDEGATE_ATTACH_TIMEOUT", "300ms")
        .env("TIDEGATE_ON_TIMEOUT", "fail")
        .stderr(to);
    let mut program = Online::from_command(&mut command);
    let started = monotonic_ns();
    program.send("try 1000");
    assert_eq!(program.answer_fields(), [SYSTEM_NOT_READY, 4321]);
    assert!(monotonic_ns() - started >= 300_000_000, "it waited first");
    for _ in 0..3 {
        program.send("try 1000");
        assert_eq!(program.answer_fields(), [SYSTEM_NOT_READY, 4321]);
    }
    let pid = program.process.pid();
    assert_eq!(finished(&node, pid), 0, "the driver never saw them");
    node.start_agent(TRUSTING);
    wait_for("it to attach", || {
        (status(&node)["processes"].as_array()?.len() == 1).then_some(())
    });
    // The agent lists a process a moment before that one has read that it is attached.
    wait_for("a launch to be gated like any other", || {
        program.send("try 1000");
        let answer = program.answer_fields();
        assert!(answer == [0, 4321] || answer == [SYSTEM_NOT_READY, 4321]);
        (answer[0] == 0).then_some(())
    });
    let said = std::fs::read_to_string(&errors).expect("it was opened");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("CUDA_ERROR_SYSTEM_NOT_READY"), "{said}");
}

/// P-GATE-12: a new channel runs nothing before it is known.
#[test]
fn channels_made_while_the_job_is_gated_run_nothing_until_it_may() {
    let node = Node::new(&["--gpus", "2"], TRUSTING);
    let mut online = Online::start(&node, 0);
    online.say("hold");
    let program = compile("offline", &["-lcuda"]);
    let mut command = node.preloaded(&program, "offline");
    let mut offline = Running::start("offline", command.args(["200000", "0", "1"]));
    let pid = offline.pid();
    wait_for("channels that are born gated", || {
        let on_both = |gpu| channels_of(&node, pid).iter().any(|one| one.gpu == gpu);
        (on_both(0) && on_both(1)).then(|| all_are(&node, pid, true))?
    });
    online.say("release");
    wait_for("offline to run", || {
        (finished(&node, pid) > 10).then_some(())
    });
    let records = history::read(&node.vgpu_dir()).expect("the device writes its history");
    // The job runs as a whole: not on the other GPU either.
    let first = records
        .iter()
        .find(|record| record.kind == Kind::KernelStart && record.pid == pid)
        .expect("it ran");
    let busy = online.process.pid();
    let ended = |record: &&Record| record.kind == Kind::KernelEnd && record.pid == busy;
    let idle = records.iter().find(ended).expect("it was waited for");
    assert!(
        first.at_ns > idle.at_ns,
        "nothing ran before online was idle"
    );
    let _ = offline.child.kill();
}

#[test]
fn at_level_3_the_process_disables_and_enables_its_own_channels() {
    let config = format!("{TRUSTING}\n[channel]\nlevel = \"L3\"\n");
    let node = Node::new(&[], &config);
    let mut online = Online::start(&node, 0);
    let mut offline = offline(&node);
    let pid = offline.pid();
    wait_for("offline to run", || {
        (finished(&node, pid) > 5).then_some(())
    });
    online.say("hold");
    wait_for("offline to stop", || all_are(&node, pid, true));
    let before = finished(&node, pid);
    online.say("release");
    wait_for("offline to run again", || {
        (finished(&node, pid) > before + 5).then_some(())
    });
    let records = history::read(&node.vgpu_dir()).expect("the device writes its history");
    let callers: Vec<u32> = records
        .iter()
        .filter(|record| record.kind == Kind::DisableEnd && record.pid == pid)
        .map(|record| record.caller)
        .collect();
    assert!(
        !callers.is_empty() && callers.iter().all(|caller| *caller == pid),
        "{callers:?}"
    );
    let _ = offline.child.kill();
}

/// P-LIFECYCLE-2: no channel stays disabled for over a second without an agent.
#[test]
fn a_killed_agent_leaves_no_channel_disabled_and_no_launch_passes_until_one_returns() {
    let mut node = Node::new(&[], TRUSTING);
    let mut online = Online::start(&node, 0);
    let mut offline = offline(&node);
    let pid = offline.pid();
    wait_for("offline to run", || {
        (finished(&node, pid) > 5).then_some(())
    });
    online.say("hold");
    wait_for("offline to stop", || all_are(&node, pid, true));
    let (stalls, heard) = (Stalls::watch(), monotonic_ns());
    assert_eq!(status(&node)["gpus"][0]["gate"], "closed");
    let agent = node.agent.take().expect("it runs");
    agent.signal(libc::SIGKILL);
    let killed = monotonic_ns();
    drop(agent);
    wait_for("the process to enable its own channels", || {
        all_are(&node, pid, false)
    });
    let enabled = Testimony::of(&node)
        .all(&[pid], Kind::EnableEnd)
        .map(|record| record.at_ns)
        .find(|at| *at > heard)
        .expect("they are enabled");
    let (waited, stuck) = (enabled - heard, enabled.saturating_sub(killed));
    assert!(
        waited >= 800_000_000,
        "a successor is waited for first: {waited} ns"
    );
    assert!(
        stuck <= 1_200_000_000 + stalls.ns(),
        "no channel stays disabled: {stuck} ns"
    );
    // What was queued runs; the gate holds the rest.
    let settled = wait_for("the queue to run dry", || {
        let channels = channels_of(&node, pid);
        let dry = channels.iter().all(|channel| channel.queued == 0);
        dry.then(|| finished(&node, pid))
    });
    online.say("graph 1 1000");
    assert!(
        finished(&node, pid) <= settled + 1,
        "no launch passes the gate"
    );
    node.start_agent(TRUSTING);
    wait_for("the successor to gate it", || all_are(&node, pid, true));
    let _ = offline.child.kill();
}

#[test]
fn what_keeps_a_device_busy_without_reason_is_named() {
    let config = format!("{TRUSTING}\n[gate]\nbusy_suspect = \"300ms\"\n");
    let node = Node::new(&[], &config);
    let parked = compile("parked", &["-lcuda"]);
    for (how, reason) in [
        ("parked", "parked"),
        ("steady", "steady"),
        ("dummy", "steady"),
    ] {
        let mut process = Running::start(how, node.preloaded(&parked, "online").arg(how));
        let named = wait_for(how, || suspect(&node));
        assert!(named.contains(reason), "{how}: {named}");
        let _ = process.child.kill();
        let _ = process.child.wait();
        wait_for("it to be forgotten", || {
            suspect(&node).is_none().then_some(())
        });
    }
    let mut online = Online::start(&node, 0);
    online.say("forever");
    let named = wait_for("the persistent kernel", || suspect(&node));
    assert!(named.contains("persistent"), "{named}");
}

/// P-LIBRARY-6: the device is given to images of any kind, and musl has no `dlvsym`.
#[test]
fn a_program_of_musl_runs_as_without_it() {
    let library = tidegate_tests::built("libtidegate.so");
    let library = std::env::var_os("TIDEGATE_TESTS_LIBRARY").map_or(library, Into::into);
    if which("musl-gcc").is_none() {
        return println!("SKIPPED: no musl-gcc (apt-get install musl-tools)");
    }
    let bytes = std::fs::read(&library).expect("the library is built");
    if bytes.windows(11).any(|part| part == b"libgcc_s.so") {
        return println!(
            "SKIPPED: a library for this machine alone; scripts/packaging/library builds one for all"
        );
    }
    let directory = TempDir::new();
    let program = directory.path().join("musl");
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("apps/musl.c");
    let compiled = Command::new("musl-gcc")
        .args(["-O1", "-Wall", "-Wextra", "-o"])
        .args([&program, &source])
        .status()
        .expect("musl-gcc runs");
    assert!(compiled.success());
    for role in ["online", "offline"] {
        let mut musl = Command::new(&program);
        musl.env("LD_PRELOAD", &library).env("TIDEGATE_ROLE", role);
        let output = musl.stdout(Stdio::piped());
        assert_eq!(Running::start("musl", output).succeed().trim(), "ok");
    }
}

/// Where a program is.
fn which(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    let there = std::env::split_paths(&path).map(|directory| directory.join(name));
    there.into_iter().find(|file| file.is_file())
}
