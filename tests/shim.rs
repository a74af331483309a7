//! The shim makes device files of paths that do not exist, and nothing else of anything else.

use std::process::{Command, Stdio};

use tidegate_tests::{Node, Running, built, compile};

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn device_files_look_real_to_every_libc_call_and_other_files_are_left_alone() {
    let node = Node::device_only(&[]);
    let app = compile("shim", &[]);
    assert_eq!(
        Running::start("shim", &mut node.plain(&app)).succeed(),
        "ok\n"
    );
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn the_shim_works_the_same_below_the_library() {
    let node = Node::device_only(&[]);
    let app = compile("shim", &[]);
    let mut command = node.preloaded(&app, "");
    assert_eq!(Running::start("shim", &mut command).succeed(), "ok\n");
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn without_a_virtual_gpu_the_shim_changes_nothing() {
    let mut command = Command::new("sh");
    command
        .args([
            "-c",
            "test ! -e /dev/nvidiactl && ! cat /dev/nvidiactl && echo fine",
        ])
        .env("LD_PRELOAD", built("libvgpu_rm.so"))
        .env_remove("TIDEGATE_VGPU_DIR")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    assert_eq!(Running::start("sh", &mut command).succeed(), "fine\n");
}
