//! The files in `/dev/shm` by which the processes of a job share what they know: whose they may be, and who removes them.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;
use tidegate_tests::peer::NOBODY;
use tidegate_tests::{Node, Running, compile, wait_for};

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

/// A file of a job's name that another user made, or that others can change where nobody can become another user.
fn taken(name: &str) -> Scratch {
    let taken = Scratch::new(name, 0o666);
    if std::os::unix::fs::chown(&taken.0, Some(NOBODY), Some(NOBODY)).is_err() {
        eprintln!(
            "!!! it takes root to become another user: the file is one that everybody may change"
        );
    }
    taken
}

/// P-SECURITY-18: a name that another user took first keeps no job from the file that its processes share.
#[test]
fn a_file_that_others_can_change_is_passed_over_and_what_dead_jobs_left_is_removed() {
    let node = Node::device_only(&[]);
    // SAFETY: no arguments, cannot fail.
    let uid = unsafe { libc::geteuid() };
    let job = format!("shared-{}", node.device.pid());
    let foreign = taken(&format!("tidegate-{uid}-{job}"));
    let left = Scratch::new(&format!("tidegate-{uid}-dead-{}", node.device.pid()), 0o600);
    let of_others = Scratch::new(
        &format!("tidegate-{uid}1-dead-{}", node.device.pid()),
        0o600,
    );
    let engine = || {
        let mut command = node.preloaded(compile("kv_answers", &["-lcuda"]), "offline");
        command
            .arg("guessed")
            .env("TIDEGATE_JOB", &job)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped());
        Running::start("kv_answers", &mut command)
    };
    let first = engine();
    wait_for("the engine to be in its job's file", || {
        (files_of(&first, &job).len() == 1).then_some(())
    });
    let file = files_of(&first, &job);
    assert!(!file.contains(&foreign.0), "{file:?} is another user's");
    let emptied = std::fs::metadata(&foreign.0).expect("it is not ours to remove");
    assert_eq!(emptied.len(), 0, "nothing was written to it");
    assert!(!left.0.exists() && of_others.0.exists());
    // Another process of the job finds the first: it is no second reader of what the job loses.
    let second = engine();
    wait_for("the second to be in the same file", || {
        (files_of(&second, &job) == file).then_some(())
    });
    for engine in [second, first] {
        drop(engine);
    }
    for file in file {
        std::fs::remove_file(file).expect("nobody is in it");
    }
}

/// The files of `job` that a process has open, in any of its threads.
fn files_of(process: &Running, job: &str) -> BTreeSet<PathBuf> {
    let threads = std::fs::read_dir(format!("/proc/{}/task", process.pid()));
    let tables = threads.into_iter().flatten().flatten();
    let open = tables.filter_map(|thread| std::fs::read_dir(thread.path().join("fd")).ok());
    let files = open.flatten().flatten();
    let names = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    let of_job =
        |name: &PathBuf| name.starts_with("/dev/shm") && name.to_string_lossy().contains(job);
    names.filter(of_job).collect()
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
