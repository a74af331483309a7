//! Every method of the contract, called as another user, from within a container and as the agent's own
//! user, on every socket of a running agent: what is not allowed is refused and does nothing.
//!
//! The whole table of methods, callers and sockets is asked in `../agent/src/grpc/authority/tests.rs`; here
//! is that the agent asks it, with what the kernel says of the caller.

use std::os::unix::process::CommandExt;
use std::process::Command;
use tidegate_tests::view::status;
use tidegate_tests::{Node, TRUSTING, built};

const STEERING: [&[&str]; 6] = [
    &["pause"],
    &["resume"],
    &["drain"],
    &["undrain"],
    &["set", "gate.cooldown=7ms"],
    &["reload"],
];

const READING: [&[&str]; 3] = [&["status"], &["events"], &["config", "dump"]];

/// Of a process that is another user's.
const FOREIGN: &[&str] = &["explain", "pid", "1"];

fn is_root() -> bool {
    // SAFETY: plain system call.
    unsafe { libc::geteuid() == 0 }
}

/// `tidegate` with these arguments on one socket of `node`.
fn tidegate(node: &Node, program: &str, socket: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .arg("--socket")
        .arg(node.run_dir().join(socket))
        .args(args);
    command
}

/// Exit code and what it said.
fn outcome(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

/// P-SECURITY-3: every method, caller and socket is answered as the table says.
#[test]
fn the_agents_own_user_steers_on_the_control_socket_and_nowhere_else() {
    let node = Node::new(&[], TRUSTING);
    let program = built("tidegate").display().to_string();
    for args in STEERING {
        let (code, said) = outcome(&mut tidegate(&node, &program, "control.sock", args));
        assert_eq!(code, Some(0), "{args:?}: {said}");
        let (code, said) = outcome(&mut tidegate(&node, &program, "status.sock", args));
        assert_eq!(code, Some(3), "{args:?}: {said}");
        assert!(said.contains("does not serve this method"), "{said}");
        let (code, _) = outcome(&mut tidegate(&node, &program, "hook.sock", args));
        assert_ne!(code, Some(0), "{args:?}");
    }
    for args in READING.into_iter().chain([FOREIGN]) {
        for socket in ["control.sock", "status.sock"] {
            let (code, said) = outcome(&mut tidegate(&node, &program, socket, args));
            assert_eq!(code, Some(0), "{args:?} on {socket}: {said}");
        }
    }
}

/// P-SECURITY-3: every method, caller and socket is answered as the table says.
/// P-SECURITY-24: only an operator may read about a process of another user.
#[test]
fn another_user_reads_and_does_not_steer_even_through_an_open_control_socket() {
    if !is_root() {
        eprintln!("!!! SKIPPED: it takes root to become another user");
        return;
    }
    let node = Node::new(&[], TRUSTING);
    // Where every user may go, whatever the machine's umask and the place of the build are.
    let open = |path: &std::path::Path, mode| {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(path, mode).expect("own file");
    };
    open(node.dir(), 0o755);
    open(&node.run_dir(), 0o755);
    let program = node.dir().join("tidegate");
    std::fs::copy(built("tidegate"), &program).expect("the temporary directory is writable");
    open(&program, 0o755);
    let program = program.display().to_string();
    let as_nobody = |socket: &str, args: &[&str]| {
        let mut command = tidegate(&node, &program, socket, args);
        command.uid(65_534).gid(65_534);
        outcome(&mut command)
    };
    let control = node.run_dir().join("control.sock");
    for mode in [0o660, 0o666] {
        open(&control, mode);
        for args in STEERING {
            let (code, said) = as_nobody("control.sock", args);
            assert_eq!(code, Some(3), "{args:?} {mode:o}: {said}");
            if mode == 0o666 {
                assert!(
                    said.contains("uid 65534 does not steer this node"),
                    "{said}"
                );
            }
            assert_eq!(as_nobody("status.sock", args).0, Some(3), "{args:?}");
        }
    }
    for args in READING {
        assert_eq!(as_nobody("status.sock", args).0, Some(0), "{args:?}");
    }
    let (code, said) = as_nobody("status.sock", FOREIGN);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("process 1 is another user's"), "{said}");
    let now = status(&node);
    assert_eq!(now["drained"], false);
}

/// P-SECURITY-3: every method, caller and socket is answered as the table says.
#[test]
fn root_in_a_namespace_of_its_own_reads_and_does_not_steer() {
    let node = Node::new(&[], TRUSTING);
    let inside = |socket: &str, args: &[&str]| {
        let mut whole = vec!["--pid", "--fork", "--"];
        let program = built("tidegate").display().to_string();
        let socket = node.run_dir().join(socket).display().to_string();
        whole.extend([program.as_str(), "--socket", &socket]);
        whole.extend(args);
        outcome(Command::new("unshare").args(whole))
    };
    let (code, said) = inside("status.sock", &["status"]);
    if said.contains("unshare failed") {
        eprintln!("!!! SKIPPED: this machine makes no namespaces: {said}");
        return;
    }
    assert_eq!(code, Some(0), "{said}");
    for args in STEERING {
        let (code, said) = inside("control.sock", args);
        assert_eq!(code, Some(3), "{args:?}: {said}");
        assert!(said.contains("in another namespace of processes"), "{said}");
    }
    assert_eq!(inside("control.sock", &["status"]).0, Some(0));
    assert_eq!(status(&node)["drained"], false);
}
