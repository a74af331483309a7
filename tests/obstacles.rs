//! What rules channel control out is seen, named, and leaves the launch gate.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tidegate_tests::peer::Peer;
use tidegate_tests::view::{disabled, finished_after, process, records, status, wait_all, wait_so};
use tidegate_tests::{Node, Offline, Online, Running, TRUSTING, compile, watch};
use tidegate_vgpu::control::Control;
use tidegate_vgpu::history::Kind;

/// Which device files a process does not see, and with what number opening them fails, for the shim.
const HIDE: &str = "TIDEGATE_VGPU_HIDE";

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

/// P-GATE-9: unsupported configurations are named and gate launches.
#[test]
fn gpus_that_are_split_into_instances_are_gated_at_launches() {
    rules_the_channels_out("mig=1", &["mig", "mig"], "MIG is on (GPU 0)");
}

/// P-GATE-9: unsupported configurations are named and gate launches.
#[test]
fn gpus_of_a_hypervisor_are_gated_at_launches() {
    let kinds = ["vgpu_guest", "vgpu_guest"];
    rules_the_channels_out("guest=1", &kinds, "GPU 0 is a vGPU");
}

/// P-GATE-9: unsupported configurations are named and gate launches.
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

/// P-GATE-9: unsupported configurations are named and gate launches.
#[test]
fn mps_is_seen_at_the_start_and_while_the_agent_runs() {
    let mut node = Node::device_only(&[]);
    let dir = node.dir().join("mps");
    std::fs::create_dir(&dir).expect("the directory is writable");
    let daemon = mps(&dir);
    start(&mut node, &dir);
    assert_eq!(named(&node), ["mps"]);
    assert_eq!(
        status(&node)["level"],
        "l1_agent",
        "it is of some processes"
    );
    drop(daemon);
    wait_so("the obstacle to go", || named(&node).is_empty());
    drop(node.agent.take());

    // Channels that are reported while it runs are managed, if their process finds no daemon.
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
    wait_all(&node, client, true);
    online.ask("idle 0");
    wait_all(&node, client, false);
    drop(daemon);
}

/// An offline program that finds MPS in `dir`.
fn client_of(node: &Node, dir: &Path) -> Offline {
    let mut command = node.preloaded(compile("offline", &["-lcuda"]), "offline");
    command
        .args(["1000000", "0"])
        .env("CUDA_MPS_PIPE_DIRECTORY", dir);
    Offline::from_command(&mut command)
}

/// Records of a kind of what a process owns.
fn seen_of(node: &Node, pid: u32, kind: Kind) -> Vec<u64> {
    let records = records(node).into_iter();
    let own = records.filter(|record| record.pid == pid && record.kind == kind);
    own.map(|record| record.at_ns).collect()
}

/// P-GATE-25: MPS is a property of a process.
#[test]
fn the_launches_of_an_mps_client_wait_and_other_programs_are_stopped_in_mid_kernel() {
    let mut node = Node::device_only(&[]);
    let [used, empty] = ["mps", "empty"].map(|name| node.dir().join(name));
    for dir in [&used, &empty] {
        std::fs::create_dir(dir).expect("the directory is writable");
    }
    let file = node.dir().join("file");
    std::fs::write(&file, "1").expect("the directory is writable");
    let daemon = mps(&used);
    start(&mut node, &used);
    let mut programs = [&used, &empty, &file].map(|dir| client_of(&node, dir));
    programs.iter_mut().for_each(Offline::running);
    let [client, others @ ..] = [0, 1, 2].map(|at: usize| programs[at].process.pid());
    let mut online = Peer::attached(&node, "online", "");
    online.ask("busy 0");
    for other in others {
        wait_so("the others' channels to stop", || {
            !seen_of(&node, other, Kind::DisableEnd).is_empty()
        });
    }
    wait_so("the client's launches to wait", || {
        let last = seen_of(&node, client, Kind::KernelEnd).pop();
        last.is_some_and(|at| tidegate_tests::monotonic_ns() > at + 100_000_000)
    });
    assert_eq!(seen_of(&node, client, Kind::DisableEnd), [0; 0]);
    let note = process(&node, client).expect("it is attached")["note"].clone();
    let said = note.as_str().is_some_and(|note| note.contains("MPS"));
    assert!(said, "{note}");
    online.ask("idle 0");
    let before = tidegate_tests::monotonic_ns();
    for pid in [client, others[0], others[1]] {
        wait_so("it to go on", || {
            finished_after(&node, pid, before).is_some()
        });
    }
    for program in programs {
        program.stop();
    }
    drop(daemon);
}

/// P-GATE-25: MPS is a property of a process.
#[test]
fn channels_that_are_disabled_when_mps_comes_stay_managed() {
    let mut node = Node::device_only(&[]);
    let dir = node.dir().join("mps");
    std::fs::create_dir(&dir).expect("the directory is writable");
    start(&mut node, &dir);
    let mut online = Peer::attached(&node, "online", "");
    online.ask("idle 0");
    let mut offline = Peer::attached(&node, "offline", "batch");
    let (client, _) = offline.channels(0, 2);
    wait_so("an open gate", || offline.ask("gate 0") == "gate open");
    online.ask("busy 0");
    wait_all(&node, client, true);
    let daemon = mps(&dir);
    wait_so("the obstacle", || named(&node) == ["mps"]);
    online.ask("idle 0");
    wait_all(&node, client, false);
    online.ask("busy 0");
    wait_all(&node, client, true);
    assert_eq!(status(&node)["level"], "l1_agent");
    online.ask("idle 0");
    wait_all(&node, client, false);
    drop(daemon);
}

/// P-GATE-10: GPUs that are not seen are named.
#[test]
fn a_container_with_one_of_two_gpus_manages_that_one_and_names_the_other() {
    for (number, said) in [
        (libc::ENOENT, "No such file"),
        (libc::EPERM, "not permitted"),
        (libc::EACCES, "Permission denied"),
    ] {
        let mut node = Node::device_only(&["--gpus", "2"]);
        let hidden = format!("nvidia1:{number}");
        node.start_agent_by(TRUSTING, |mut agent| {
            agent.env(HIDE, &hidden);
            agent
        });
        let seen = status(&node);
        assert_eq!(seen["level"], "l1_agent");
        assert_eq!(seen["gpus"].as_array().map(Vec::len), Some(1));
        let note = seen["driver_note"].as_str().expect("a text");
        assert!(
            note.contains("/dev/nvidia1") && note.contains(said),
            "{note}"
        );
        let log = std::fs::read_to_string(node.agent_log()).expect("it logs");
        assert!(
            log.contains("/dev/nvidia1") && log.contains(said),
            "the log names it: {log}"
        );

        // Managed as on a machine of one.
        let mut offline = Offline::start(&node, 1_000_000, &[0]);
        offline.running();
        let mut online = Online::start(&node, 0);
        online.say("forever");
        watch::wait_all(&node, &[offline.process.pid()], true);
        drop(online);
        watch::wait_all(&node, &[offline.process.pid()], false);
        offline.stop();
        drop(node.agent.take());

        let device = format!("virtual={}", node.vgpu_dir().display());
        let doctor = ["doctor", "--device", &device, "--output", "json"];
        let mut doctor = node.tidegate_command(&doctor);
        let output = doctor.env(HIDE, &hidden).output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            text.contains("1 GPU") && text.contains("/dev/nvidia1"),
            "{text}"
        );
    }
}

/// P-GATE-9: unsupported configurations are named and gate launches.
#[test]
fn a_driver_that_says_a_version_that_is_none_has_no_channel_touched() {
    for said in ["unknown", "580.x.1", "580"] {
        let mut node = Node::device_only(&["--set", &format!("version={said}:tidegate-agent")]);
        node.start_agent(TRUSTING);
        let seen = status(&node);
        assert_eq!(seen["level"], "l5_launch_gate", "{said}: {seen}");
        for place in ["driver_note", "level_note"] {
            let note = seen[place].as_str().expect("a text");
            let named = note.contains(&format!("{said:?}, which is none"));
            assert!(named, "{place}: {note}");
        }
        let mut online = Peer::attached(&node, "online", "");
        online.ask("idle 0");
        let mut offline = Peer::attached(&node, "offline", "batch");
        let (client, _) = offline.channels(0, 2);
        wait_so("an open gate", || offline.ask("gate 0") == "gate open");
        online.ask("busy 0");
        wait_so("a closed gate", || offline.ask("gate 0") == "gate closed");
        assert_eq!(disabled(&node, client), [false, false]);
        let touched = records(&node).into_iter();
        let calls = touched.filter(|record| record.kind == Kind::DisableBegin);
        assert_eq!(calls.count(), 0, "{said}");
        drop(node.agent.take());
        let mut forced = node.agent_command();
        forced.env("TIDEGATE_CHANNEL__LEVEL", "L1");
        let refused = forced.output().expect("it starts");
        assert_eq!(refused.status.code(), Some(1), "{said}");
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(why.contains("which is none"), "{why}");
    }
}

/// A control that the driver answers with NOT_SUPPORTED when an agent, or doctor, asks it.
fn refuse(node: &Node, control: &str, program: &str) {
    let device = Control::connect(&node.vgpu_dir()).expect("the device listens");
    let knob = format!("{control}:0x56:{program}");
    device.set("refuse", knob).expect("a knob");
}

#[track_caller]
fn gates_launches_without_a_list_of_gpus(node: &mut Node, hide: &str, why: &str) {
    node.start_agent_by(TRUSTING, |mut agent| {
        agent.env(HIDE, hide);
        agent
    });
    let seen = status(node);
    assert_eq!(seen["level"], "l5_launch_gate");
    for place in ["driver_note", "level_note"] {
        let note = seen[place].as_str().expect("a text");
        assert!(note.contains(why), "{place}: {note}");
    }
    assert_eq!(seen["gpus"].as_array().map(Vec::len), Some(0));
    let log = std::fs::read_to_string(node.agent_log()).expect("it logs");
    let lines = log.lines().filter(|line| line.contains(why));
    assert_eq!(lines.count(), 1, "one clear line: {log}");

    // Its GPUs are those of the processes that attach.
    let mut online = Peer::attached(node, "online", "");
    online.ask("idle 0");
    let mut offline = Peer::attached(node, "offline", "batch");
    let (client, _) = offline.channels(0, 2);
    wait_so("an open gate", || offline.ask("gate 0") == "gate open");
    online.ask("busy 0");
    wait_so("a closed gate", || offline.ask("gate 0") == "gate closed");
    let seen = status(node);
    assert_eq!(seen["gpus"].as_array().map(Vec::len), Some(1));
    assert_eq!(seen["gpus"][0]["gate"], "closed");
    online.ask("idle 0");
    wait_so("an open gate", || offline.ask("gate 0") == "gate open");
    assert_eq!(disabled(node, client), [false, false]);
    drop(node.agent.take());

    let device = format!("virtual={}", node.vgpu_dir().display());
    let mut doctor = node.tidegate_command(&["doctor", "--device", &device, "--output", "json"]);
    let output = doctor.env(HIDE, hide).output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains(why), "{text}");

    let mut forced = node.agent_command();
    forced.env("TIDEGATE_CHANNEL__LEVEL", "L1").env(HIDE, hide);
    let refused = forced.output().expect("it starts");
    assert_eq!(refused.status.code(), Some(1), "a forced level is an error");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains(why), "{said}");
}

/// P-GATE-10: GPUs that are not seen are named.
#[test]
fn without_a_control_file_launches_are_gated() {
    for (number, why) in [
        (libc::ENOENT, "cannot open /dev/nvidiactl: No such file"),
        (
            libc::EACCES,
            "cannot open /dev/nvidiactl: Permission denied",
        ),
    ] {
        let mut node = Node::device_only(&[]);
        let hide = format!("nvidiactl:{number}");
        gates_launches_without_a_list_of_gpus(&mut node, &hide, why);
    }
}

/// P-GATE-10: GPUs that are not seen are named.
#[test]
fn a_driver_that_refuses_to_list_its_gpus_leaves_the_launch_gate() {
    let mut node = Node::device_only(&[]);
    // GPU_GET_GID_INFO, to programs of ours.
    refuse(&node, "0x2080014a", "debug/tidegate");
    let why = "the driver refuses GPU_GET_GID_INFO: NOT_SUPPORTED";
    gates_launches_without_a_list_of_gpus(&mut node, "", why);
}

/// P-GATE-10: GPUs that are not seen are named.
#[test]
fn release_names_the_channels_of_a_driver_that_lists_no_gpus_and_keeps_them() {
    let mut node = Node::new(&[], TRUSTING);
    let mut online = Peer::attached(&node, "online", "");
    online.ask("idle 0");
    online.ask("busy 0");
    let mut offline = Peer::attached(&node, "offline", "batch");
    let (client, _) = offline.channels(0, 2);
    wait_all(&node, client, true);
    drop(node.agent.take());
    let mut release = node.tidegate_command(&["release"]);
    let output = release
        .env(HIDE, "nvidiactl:13")
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("/dev/nvidiactl: Permission denied"), "{text}");
    let named = format!("of client {client:#x}");
    assert_eq!(text.matches(&named).count(), 2, "{text}");
    assert!(node.tidegate(&["release"]).status.success());
    assert_eq!(disabled(&node, client), [false, false]);
}

/// P-GATE-9: where only launches are gated no channel is touched, not even by a process whose agent is gone: how this driver
/// wants to be asked may not be known.
#[test]
fn where_launches_are_gated_nobody_touches_a_channel_when_the_agent_dies() {
    let config = format!("{TRUSTING}[gate]\ncooldown = \"20ms\"\n[agent_loss]\naction = \"run\"\n");
    let reasons = [
        ("mig=1", ""),
        ("confidential=1", ""),
        ("guest=1", ""),
        ("lost=0", ""),
        ("mig=0", "[channel]\nlevel = \"L5\"\n"),
    ];
    for (knob, level) in reasons {
        let mut node = Node::device_only(&["--set", "mig=0"]);
        // A program has its context before the GPU is lost, and waits for an agent at its first launch.
        let mut command = node.preloaded(compile("offline", &["-lcuda"]), "offline");
        command.args(["500000", "0"]).stdin(Stdio::null());
        let mut offline = Running::start(
            "offline",
            command.stdout(Stdio::piped()).stderr(Stdio::piped()),
        );
        let pipe = offline.child.stderr.take().expect("stderr is piped");
        let mut errors = BufReader::new(pipe);
        let mut line = String::new();
        errors.read_line(&mut line).expect("a pipe can be read");
        assert!(line.contains("waits for tidegate-agent"), "{line}");
        let mut online = Online::start(&node, 0);
        let device = Control::connect(&node.vgpu_dir()).expect("the device listens");
        let (name, value) = knob.split_once('=').expect("a knob and its value");
        device.set(name, value).expect("a knob");
        node.start_agent(&format!("{config}{level}"));
        assert_eq!(status(&node)["level"], "l5_launch_gate", "{knob}");
        let pipe = offline.child.stdout.take().expect("stdout is piped");
        line.clear();
        let mut answers = BufReader::new(pipe);
        answers.read_line(&mut line).expect("a pipe can be read");
        assert_eq!(line.trim(), "running", "the offline program ran");
        let pid = [offline.pid()];
        online.say("hold");
        wait_so("the job to wait", || {
            status(&node)["jobs"][0]["state"] == "gated"
        });
        drop(node.agent.take());
        let lost = tidegate_tests::monotonic_ns();
        // It runs without an agent when it has landed.
        watch::wait_finished(&node, &pid, 50, lost);
        let testimony = watch::Testimony::of(&node);
        let touched = |kind| testimony.0.iter().filter(|r| r.kind == kind).count();
        assert_eq!(touched(Kind::DisableReturn), 0, "{knob} {level}");
        let refused = testimony.0.iter().filter(|r| r.kind == Kind::Refused);
        let disable = u64::from(tidegate_abi::rm::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS);
        assert_eq!(
            refused.filter(|r| r.tag == disable).count(),
            0,
            "{knob} {level}"
        );
        online.say("release");
    }
}
