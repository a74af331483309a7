//! Unmodified CUDA programs run on the virtual GPU as they would on a real one.

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::mem::ManuallyDrop;
use std::time::Duration;

use tidegate_tests::{Node, Running, built, compile, monotonic_ns, wait_for};
use tidegate_vgpu::history::{self, Kind, Record};

fn run(node: &Node, program: &str) {
    let program = compile(program, &["-lcuda"]);
    let out = Running::start("program", &mut node.plain(&program)).succeed();
    assert_eq!(out.trim(), "ok");
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_program_gets_its_results_on_every_driver_branch() {
    for driver in [
        "535.54.03",
        "535.288.01",
        "550.163.01",
        "570.211.01",
        "575.57.08",
        "580.95.05",
        "590.48.01",
        "595.45.04",
    ] {
        run(&Node::device_only(&["--driver", driver]), "smoke");
    }
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn stream_capture_keeps_the_manuals_rules() {
    run(&Node::device_only(&[]), "capture");
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn mapped_memory_is_real_and_unmapped_memory_faults() {
    run(&Node::device_only(&[]), "vmm");
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn a_token_is_a_function_of_what_its_pages_really_hold() {
    run(&Node::device_only(&["--set", "poison=0xa5"]), "kv_pages");
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn with_the_lock_model_mapping_waits_for_calls_that_wait_for_the_gpu() {
    let node = Node::device_only(&[]);
    let program = compile("locks", &["-lcuda"]);
    let mapping = |verdict: &str, call: &str, model: &str| {
        let mut command = node.plain(&program);
        command
            .args([call, verdict])
            .env("TIDEGATE_VGPU_LOCKS", model);
        Running::start(&format!("locks {call} {model}"), &mut command).succeed();
    };
    let calls = [
        "copy",
        "free",
        "host_free",
        "load",
        "unload",
        "stream",
        "event",
        "launch",
    ];
    for call in calls {
        mapping("waits", call, "calls");
    }
    mapping("passes", "copy", "off");
    mapping("passes", "sync", "calls");
    mapping("waits", "sync", "calls+sync");
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn the_device_records_every_mapping_and_charges_what_it_costs() {
    let costs = ["create_us=20000", "unmap_us=50000"];
    let args: Vec<&str> = costs.iter().flat_map(|cost| ["--set", cost]).collect();
    let node = Node::device_only(&args);
    let before = monotonic_ns();
    run(&node, "kv_pages");
    let took = Duration::from_nanos(monotonic_ns() - before);
    // The device takes back what a dead program held when it hears of the death.
    let records = wait_for("the pages to be taken back", || {
        let records = history::read(&node.vgpu_dir()).expect("the device keeps a history");
        let down = |record: &&Record| record.kind == Kind::MemoryDown && record.tag == 2 << 20;
        (records.iter().filter(down).count() >= 6).then_some(records)
    });
    let of = |kind| records.iter().filter(move |record| record.kind == kind);
    let pages = |kind| of(kind).filter(|record| record.tag == 2 << 20).count();
    let unmapped: Vec<_> = of(Kind::Unmap)
        .filter(|record| record.object == 0)
        .collect();
    assert_eq!(unmapped.len(), 2, "{unmapped:?}");
    assert_eq!(
        unmapped[0].value, unmapped[1].value,
        "the third page, twice"
    );
    // Two plain allocations share an object, and the program ends without giving anything back.
    assert_eq!((pages(Kind::MemoryUp), pages(Kind::Map)), (6, 6));
    assert_eq!(pages(Kind::MemoryDown), 6);
    assert!(
        took >= Duration::from_millis(6 * 20 + 2 * 50),
        "only {took:?}"
    );
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn default_streams_resolution_peers_and_fork_are_as_in_the_manual() {
    run(&Node::device_only(&["--gpus", "2"]), "streams");
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
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

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn threads_share_streams_without_a_hang_or_a_lost_launch() {
    run(&Node::device_only(&[]), "threads");
}

/// P-EQUIPMENT-1: the virtual GPU keeps the driver's rules.
#[test]
fn every_name_of_the_driver_is_exported() {
    let list = include_str!("vgpu/cuda/symbols.txt");
    let path = built("libcuda.so");
    // SAFETY: the library has no constructors that do anything, and stays open.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    let library = ManuallyDrop::new(library.expect("libcuda.so can be opened"));
    let rows = list.lines().filter(|line| !line.starts_with('#'));
    let mut seen = 0;
    for symbol in rows.filter_map(|line| line.split(' ').nth(1)) {
        // SAFETY: it is not called.
        let function = unsafe { library.get::<unsafe extern "C" fn()>(symbol) };
        assert!(function.is_ok(), "{symbol} is not exported");
        seen += 1;
    }
    assert!(seen > 650, "only {seen} names in the list");
}
