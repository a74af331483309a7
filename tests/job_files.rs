//! The files in `/dev/shm` by which the processes of a job share what they know: whose they may be, and who removes them.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use tidegate_tests::{Node, Running, compile};

/// Removed with this value.
struct Scratch(std::path::PathBuf);

impl Scratch {
    /// A file among those of jobs, with that mode.
    fn new(name: &str, mode: u32) -> Self {
        use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
        let path = std::path::PathBuf::from(format!("/dev/shm/{name}"));
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true).mode(mode);
        options.open(&path).expect("it is new");
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&path, mode).expect("its owner may");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// P-MEMORY-6: no hang and no leak, whatever fails in the middle.
#[test]
fn a_file_that_others_can_change_is_not_used_and_what_dead_jobs_left_is_removed() {
    let node = Node::device_only(&[]);
    // SAFETY: no arguments, cannot fail.
    let uid = unsafe { libc::geteuid() };
    let job = format!("shared-{}", node.device.pid());
    let foreign = Scratch::new(&format!("tidegate-{uid}-{job}"), 0o666);
    let left = Scratch::new(&format!("tidegate-{uid}-dead-{}", node.device.pid()), 0o600);
    let of_others = Scratch::new(
        &format!("tidegate-{uid}1-dead-{}", node.device.pid()),
        0o600,
    );
    let mut command = node.preloaded(compile("kv_answers", &["-lcuda"]), "offline");
    command
        .arg("guessed")
        .env("TIDEGATE_JOB", job)
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    let output = Running::start("kv_answers", &mut command).finish();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("only user"),
        "{said}"
    );
    assert!(foreign.0.exists(), "it is not ours to remove");
    assert!(!left.0.exists() && of_others.0.exists());
}

/// P-MEMORY-6: no hang and no leak, whatever fails in the middle.
#[test]
fn where_there_is_no_room_for_the_file_the_call_fails_and_no_signal_ends_the_engine() {
    let node = Node::device_only(&[]);
    let engine = compile("kv_answers", &["-lcuda"]);
    let script = "mount -t tmpfs -o size=4k tmpfs /dev/shm && exec \"$0\" guessed";
    let mut command = node.preloaded("unshare", "offline");
    command
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
        .arg(engine)
        .env("TIDEGATE_JOB", format!("full-{}", node.device.pid()))
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    let output = Running::start("kv_answers", &mut command).finish();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), None, "{said}");
    assert!(said.contains("No space left on device"), "{said}");
}
