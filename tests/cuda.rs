//! Unmodified CUDA programs run on the virtual GPU as they would on a real one.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;

use tidegate_tests::{Node, Running, built, compile};

fn run(node: &Node, program: &str) {
    let program = compile(program, &["-lcuda"]);
    let out = Running::start("program", &mut node.plain(&program)).succeed();
    assert_eq!(out.trim(), "ok");
}

#[test]
fn a_program_gets_its_results_on_every_driver_branch() {
    for driver in [
        "535.288.01",
        "550.163.01",
        "570.211.01",
        "580.95.05",
        "590.44.01",
        "595.45.04",
    ] {
        run(&Node::device_only(&["--driver", driver]), "smoke");
    }
}

#[test]
fn stream_capture_keeps_the_manuals_rules() {
    run(&Node::device_only(&[]), "capture");
}

#[test]
fn mapped_memory_is_real_and_unmapped_memory_faults() {
    run(&Node::device_only(&[]), "vmm");
}

#[test]
fn default_streams_resolution_peers_and_fork_are_as_in_the_manual() {
    run(&Node::device_only(&["--gpus", "2"]), "streams");
}

#[test]
fn the_driver_hands_out_its_own_functions_whatever_is_preloaded() {
    let shadow = compile("shadow", &["-shared", "-fPIC"]);
    let program = compile("streams", &["-lcuda"]);
    let node = Node::device_only(&["--gpus", "2"]);
    let mut command = node.plain(&program);
    let mut preload = shadow.into_os_string();
    preload.push(":");
    preload.push(built("libvgpu_rm.so"));
    command.env("LD_PRELOAD", preload);
    assert_eq!(
        Running::start("streams", &mut command).succeed().trim(),
        "ok"
    );
}

#[test]
fn threads_share_streams_without_a_hang_or_a_lost_launch() {
    run(&Node::device_only(&[]), "threads");
}

#[test]
fn every_name_of_the_driver_is_exported() {
    let list = include_str!("vgpu/cuda/symbols.txt");
    let path = CString::new(built("libcuda.so").as_os_str().as_bytes()).expect("no NUL in a path");
    // SAFETY: the library has no constructors that do anything, and stays open.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null(), "libcuda.so cannot be opened");
    let rows = list.lines().filter(|line| !line.starts_with('#'));
    let mut seen = 0;
    for symbol in rows.filter_map(|line| line.split(' ').nth(1)) {
        let name = CString::new(symbol).expect("no NUL in a name");
        // SAFETY: an open library and a C string.
        let address = unsafe { libc::dlsym(library, name.as_ptr()) };
        assert!(!address.is_null(), "{symbol} is not exported");
        seen += 1;
    }
    assert!(seen > 650, "only {seen} names in the list");
}
