//! A launch costs its application no system call and no allocation while the device is busy, one wake
//! when it is an edge, and neither `errno` nor a result is touched.
//!
//! The launching thread of `apps/quiet.c` may make no system call unseen.

use std::path::PathBuf;
use std::process::Command;
use tidegate_tests::{Node, Running, TRUSTING, built, compile, compile_driver};

/// `apps/quiet.c` under the library in `role`, run by what `by` makes of it; what it printed.
#[track_caller]
fn cost(node: &Node, role: &str, by: impl FnOnce(PathBuf) -> Command) -> String {
    let dir = node.dir().join("driver");
    let program = compile_driver(&dir, "quiet_cuda", "quiet");
    let mut command = by(program);
    command
        .env("LD_PRELOAD", built("libtidegate.so"))
        .env("LD_LIBRARY_PATH", &dir)
        .env("TIDEGATE_RUN_DIR", node.run_dir())
        .stdout(std::process::Stdio::piped());
    if !role.is_empty() {
        command.env("TIDEGATE_ROLE", role);
    }
    Running::start("quiet", &mut command)
        .succeed()
        .trim()
        .to_owned()
}

const NOTHING: &str = "calls 0 allocations 0 errno 0 edges 3 wakes 3 other 0";

/// P-LIBRARY-1: a launch costs nothing but one wake for an edge.
#[test]
fn a_launch_makes_no_system_call_and_no_allocation_but_one_wake_for_an_edge() {
    let attached = Node::new(&[], TRUSTING);
    assert_eq!(cost(&attached, "online", Command::new), NOTHING);
}

/// P-LIBRARY-1: a launch costs nothing but one wake for an edge.
/// P-LIFECYCLE-1: online never waits for the agent.
#[test]
fn nor_does_it_without_an_agent() {
    let alone = Node::device_only(&[]);
    for role in ["online", ""] {
        assert_eq!(cost(&alone, role, Command::new), NOTHING, "{role:?}");
    }
}

/// P-LIBRARY-1: a launch costs nothing but one wake for an edge.
#[test]
fn nor_does_it_where_membarrier_is_refused() {
    let attached = Node::new(&[], TRUSTING);
    let denied = compile("denied", &[]);
    let by = |program: PathBuf| {
        let mut command = Command::new(denied);
        command.args([&libc::SYS_membarrier.to_string(), "--"]);
        command.arg(program);
        command
    };
    assert_eq!(cost(&attached, "online", by), NOTHING);
}
