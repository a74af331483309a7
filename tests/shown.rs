//! What GPUs and processes are called, and what memory they hold: the names and figures that people join on.

use tidegate_tests::cgroup::Cgroup;
use tidegate_tests::{Node, Offline, Online, TRUSTING, compile, wait_for, watch};
use tidegate_vgpu::history::{self, Kind};

/// P-OPERATE-18: a process of a pod has the pod's names in status, events and top.
#[test]
fn a_process_of_a_pod_has_its_names_in_status_events_and_top() {
    let uid = format!("{:08x}-52e4-4b1c-9c5f-0d6f1a2b3c4d", std::process::id());
    let container = "a1b2c3d4e5f60718".repeat(4);
    let path = format!("kubepods/besteffort/pod{uid}/{container}");
    let Some(cgroup) = Cgroup::make(&path) else {
        eprintln!("SKIPPED: no cgroup may be made here");
        return;
    };
    let mut node = Node::device_only(&[]);
    let pods = node.dir().join("pods");
    std::fs::create_dir_all(pods.join(format!("team-a_batch-0_{uid}"))).expect("writable");
    node.start_agent(&format!(
        "[identity]\ntrust_env_uids = [\"self\"]\npod_logs = \"{}\"\n",
        pods.display()
    ));
    let program = compile("offline", &["-lcuda"]);
    let mut shell = node.preloaded("/bin/sh", "offline");
    let line = format!(
        "echo $$ > {}/cgroup.procs && exec {} 1000000 0",
        cgroup.path().display(),
        program.display()
    );
    let mut offline = Offline::from_command(shell.args(["-c", &line]));
    offline.running();
    let status = watch::status(&node);
    let place = &status["processes"][0]["where"];
    for (name, value) in [
        ("namespace", "team-a"),
        ("pod", "batch-0"),
        ("pod_uid", &uid),
        ("container", &container),
    ] {
        assert_eq!(place[name], value, "{status:#}");
    }
    let said = |args: &[&str]| {
        let output = node.tidegate(args);
        String::from_utf8(output.stdout).expect("text")
    };
    for args in [
        &["status"][..],
        &["events", "--kind", "attached"],
        &["top", "--once", "--sample", "1s"],
    ] {
        let text = said(args);
        assert!(text.contains("team-a/batch-0"), "{args:?}: {text}");
    }
    offline.stop();
}

/// P-OPERATE-18: a GPU has its driver's name and memory, a process what it allocated.
#[test]
fn a_gpu_has_a_model_and_its_memory_in_use_and_a_process_what_it_allocated() {
    let node = Node::new(&[], TRUSTING);
    let mut offline = Offline::start(&node, 1_000_000, &[0]);
    offline.running();
    let in_use = || {
        let records = history::read(&node.vgpu_dir()).expect("the device writes its history");
        records.iter().fold(0, |sum, record| match record.kind {
            Kind::MemoryUp => sum + record.tag,
            Kind::MemoryDown => sum - record.tag,
            _ => sum,
        })
    };
    let status = wait_for("what the program allocated, as the device has it", || {
        let status = watch::status(&node);
        let held = status["processes"][0]["devices"][0]["memory_bytes"].as_u64();
        // While the driver takes its time it says nothing of its GPUs, and what it said may be half a second old. It
        // speaks of KiB.
        let used = status["gpus"][0]["memory_used_bytes"].as_u64();
        let known = used.is_some_and(|used| used.abs_diff(in_use()) < 1 << 10);
        (held == Some(8) && known).then_some(status)
    });
    let gpu = &status["gpus"][0];
    assert_eq!(gpu["model"], "VIRTUAL NVIDIA H100 80GB HBM3");
    let (total, used) = (
        gpu["memory_total_bytes"].as_u64(),
        gpu["memory_used_bytes"].as_u64(),
    );
    assert!(total > used && used > Some(0), "{gpu:#}");
    let shown = node.tidegate(&["status"]);
    let shown = String::from_utf8(shown.stdout).expect("text");
    assert!(
        shown.contains("MEMORY IN USE") && shown.contains("VIRTUAL NVIDIA H100"),
        "{shown}"
    );
    offline.stop();
}

/// P-MEMORY-20: status shows what offline cost online's users, and what the operator allows.
#[test]
fn status_shows_what_of_the_budget_is_used() {
    let config = format!(
        "{TRUSTING}\n[gate]\ncooldown = \"20ms\"\n[slo]\nttft = \"+100%\"\ntpot = \"off\"\n"
    );
    let node = Node::new(&["--gpus", "1"], &config);
    let mut offline = Offline::start(&node, 2_000_000, &[0]);
    offline.running();
    let mut online = Online::start(&node, 0);
    watch::wait_open(&node, 0, online.process.pid());
    // A period is stamped once its first launch is made, which may be any time after the device took that one: how much
    // of a burst is counted nobody can say, but never more than there was.
    let budget = wait_for("busy periods in the books", || {
        online.say("burst 10 3000000");
        let budget = watch::status(&node)["gpus"][0]["budget"].clone();
        let waited = budget["preempted_ns"].as_u64().filter(|ns| *ns > 0);
        let busy = budget["busy_ns"].as_u64().filter(|ns| *ns >= 30_000_000);
        waited.and(busy).map(|_| budget)
    });
    // No longer than it has been on the device.
    let history = history::read(&node.vgpu_dir()).expect("the device keeps a history");
    let attached = history.iter().find(|r| r.pid == online.process.pid());
    let since = attached.map_or(0, |record| tidegate_tests::monotonic_ns() - record.at_ns);
    let busy = budget["busy_ns"].as_u64().unwrap_or(0);
    assert!(busy <= since, "{busy} ns busy of {since} ns");
    assert_eq!(budget["ttft_allowed_pct"], 100.0);
    assert_eq!(budget["tpot_allowed_pct"], 0.5);
    let said = node.tidegate(&["status"]);
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let row = text.lines().find(|line| line.contains("+100.00%"));
    assert!(row.is_some_and(|row| row.contains("+0.50%")), "{text}");
}
