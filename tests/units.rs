//! The systemd units: well-formed, hardened, and the sockets they hold reach the agent by name.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tidegate_tests::{Node, Running, built, clock, wait_for};

const UNITS: [&str; 4] = [
    "tidegate-agent.service",
    "tidegate-hook.socket",
    "tidegate-control.socket",
    "tidegate-status.socket",
];

fn units() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/systemd")
}

/// The units as installed, but for where the programs are.
fn installed(dir: &Path) -> Vec<PathBuf> {
    let programs = built("tidegate-agent");
    let programs = programs.parent().expect("it is in a directory");
    let place = |name: &&str| {
        let text = std::fs::read_to_string(units().join(name)).expect("the unit is committed");
        let text = text.replace("/usr/bin/", &format!("{}/", programs.display()));
        let path = dir.join(name);
        std::fs::write(&path, text).expect("the directory is ours");
        path
    };
    UNITS.iter().map(place).collect()
}

fn systemd(arguments: &[&str], files: &[PathBuf]) -> Option<Output> {
    let run = Command::new("systemd-analyze")
        .args(arguments)
        .args(files)
        .output();
    if run.is_err() {
        eprintln!("SKIPPED: systemd-analyze is not installed (Debian package systemd)");
    }
    run.ok()
}

fn said(run: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&run.stdout) + &text(&run.stderr)
}

/// P-OPERATE-1: units are well-formed and hardened.
#[test]
fn the_units_are_well_formed() {
    let node = Node::device_only(&[]);
    let files = installed(node.dir());
    let Some(run) = systemd(&["verify", "--man=no"], &files) else {
        return;
    };
    let mine: Vec<_> = said(&run)
        .lines()
        .filter(|line| line.contains("tidegate"))
        .map(str::to_owned)
        .collect();
    assert!(run.status.success() && mine.is_empty(), "{mine:#?}");
}

/// P-OPERATE-1: units are well-formed and hardened.
#[test]
fn the_service_is_hardened() {
    let node = Node::device_only(&[]);
    let files = installed(node.dir());
    let Some(run) = systemd(
        &["security", "--offline=true", "--threshold=35", "--no-pager"],
        &files[..1],
    ) else {
        return;
    };
    assert!(run.status.success(), "{}", said(&run));
}

/// Starts an agent as systemd would: its sockets are there before it is.
fn activate(node: &Node, names: &str, sockets: &[&str]) -> Running {
    let mut command = Command::new("systemd-socket-activate");
    for socket in sockets {
        command
            .arg("-l")
            .arg(node.run_dir().join(format!("{socket}.sock")));
    }
    command.arg(format!("--fdname={names}"));
    let agent = node.agent_command();
    for (name, value) in agent.get_envs() {
        if let Some(value) = value {
            let mut pair = name.to_os_string();
            pair.push("=");
            pair.push(value);
            command.arg("-E").arg(pair);
        }
    }
    command.arg(agent.get_program()).args(agent.get_args());
    command.stderr(std::process::Stdio::piped());
    Running::start("systemd-socket-activate", &mut command)
}

fn can_activate() -> bool {
    let there = Command::new("systemd-socket-activate")
        .arg("--version")
        .output()
        .is_ok();
    if !there {
        eprintln!("SKIPPED: systemd-socket-activate is not installed (Debian package systemd)");
    }
    there
}

/// P-OPERATE-1: units are well-formed and hardened.
#[test]
fn a_client_that_was_there_first_is_answered_on_the_socket_of_its_name() {
    if !can_activate() {
        return;
    }
    let node = Node::device_only(&[]);
    std::fs::create_dir_all(node.run_dir()).expect("it is ours");
    // In another order than the agent's own, to show that names decide.
    let _agent = activate(&node, "status:hook:control", &["status", "hook", "control"]);
    let status = node.run_dir().join("status.sock");
    wait_for("the socket", || UnixStream::connect(&status).ok());
    // The connection above started the agent; this one it answers.
    let seen = wait_for("the agent to answer", || {
        let run = node.tidegate(&["status", "--output", "json"]);
        run.status.success().then_some(run.stdout)
    });
    assert!(String::from_utf8_lossy(&seen).contains("\"gpus\""));
    let paused = node.tidegate(&["pause"]);
    assert!(paused.status.success(), "control.sock: {}", said(&paused));
    // hook.sock greets; the others wait for the client to speak.
    let mut hook = UnixStream::connect(node.run_dir().join("hook.sock")).expect("systemd listens");
    hook.set_read_timeout(Some(clock::DEADLINE))
        .expect("a timeout");
    let mut greeting = [0; 12];
    std::io::Read::read_exact(&mut hook, &mut greeting).expect("a greeting");
    assert_eq!(&greeting[9..12], b"TID");
}

/// P-OPERATE-1: units are well-formed and hardened.
#[test]
fn a_socket_of_an_unknown_name_is_refused_with_what_to_do() {
    if !can_activate() {
        return;
    }
    let node = Node::device_only(&[]);
    std::fs::create_dir_all(node.run_dir()).expect("it is ours");
    let agent = activate(&node, "hok", &["hook"]);
    let hook = node.run_dir().join("hook.sock");
    wait_for("the socket", || UnixStream::connect(&hook).ok());
    let run = agent.finish();
    let text = said(&run);
    assert!(!run.status.success());
    assert!(
        text.contains("named 'hok'") && text.contains("FileDescriptorName="),
        "{text}"
    );
}
