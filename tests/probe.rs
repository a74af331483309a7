//! The hardware probes find out what they say they find out, and leave nothing disabled: judged on a
//! virtual GPU that is healthy, refuses, fails or stalls, and by its own history.

#[path = "probe/engines.rs"]
mod engines;
#[path = "probe/found.rs"]
mod found;

use std::collections::BTreeSet;

use found::{CHANNELS, Found, disables, left_disabled, probes, processes};
use serde_json::Value;
use tidegate_device::Eviction;
use tidegate_tests::{Node, Running, built, clock, wait_for, wait_until};
use tidegate_vgpu::control::Control;
use tidegate_vgpu::history::{self, Kind, Record};
use tidegate_vgpu::personality::Personality;

/// P-EQUIPMENT-4: probes find what they say and leave nothing disabled.
#[test]
fn probes_that_need_no_rm_client_of_their_own_run_where_the_driver_gives_them_none() {
    let node = Node::device_only(&[]);
    let device = Control::connect(&node.vgpu_dir()).expect("the device listens");
    // GPU_GET_GID_INFO, to the probe's own process: its workers' driver is answered.
    device
        .set("refuse", "0x2080014a:0x56:tidegate-probe+one+")
        .expect("a knob");
    let found = Found::by(&node, &["--only", "P1,P2,P3b,P6"]);
    for probe in ["P1", "P3b", "P6", "end"] {
        found.expect(probe, "PASS", "");
    }
    found.expect("P2", "FAIL", "NOT_SUPPORTED");
    assert_eq!(left_disabled(&node), []);
}

/// P-EQUIPMENT-4: probes find what they say and leave nothing disabled.
#[test]
fn on_a_healthy_device_every_probe_of_class_a_passes_and_class_b_is_not_run() {
    let node = Node::device_only(&[]);
    let results = node.dir().join("results.jsonl");
    let found = Found::by(&node, &["--results", results.to_str().expect("a path")]);
    for probe in [
        "P1", "P2", "P2m", "P3", "P3b", "P4", "P5", "P6", "P6b", "P7", "P9", "P10", "P11", "P12",
        "P17", "P24", "P25", "P29", "P30", "P31s", "P36a", "P36b", "P38", "end",
    ] {
        found.expect(probe, "PASS", "");
    }
    found.expect("P37", "SKIP", "needs two GPUs");
    figures_of_the_second_day(&found);
    for probe in ["P8", "P10b", "P15", "P15m", "P28", "P31", "P9b"] {
        found.expect(probe, "SKIP", "--kernel-is-ours");
    }
    found.note("P29", "with a pair of nobody after the first process");
    found.note("P6", "cuMemSetAccess: UVM_MAP_EXTERNAL_ALLOCATION");
    let overlong = |line: &&Value| {
        line["text"]
            .as_str()
            .is_some_and(|text| text.contains("65"))
    };
    assert!(!found.of("P9").iter().any(overlong));
    found.judged(
        "P2",
        "a disable alone takes running work off the GPU",
        "confirmed",
    );
    assert!(found.figure("P2", "one block: disable p50") > 100.0);
    assert_eq!(found.figure("P2", "full GPU: still right after"), 100.0);
    assert!(disables(&node) > 100, "the probes disabled channels");
    assert_eq!(left_disabled(&node), []);
    let written = std::fs::read_to_string(results).expect("results were written");
    assert_eq!(written.lines().count(), found.lines.len());
}

/// What the virtual GPU is known to do with connections, slices and gaps.
fn figures_of_the_second_day(found: &Found) {
    for (case, channels) in [
        ("1 connections", CHANNELS - 7),
        ("2 connections", CHANNELS - 6),
        ("8 connections", CHANNELS),
        ("not set", CHANNELS),
    ] {
        let name = format!("{case}: channels");
        assert_eq!(found.figure("P36a", &name), channels as f64, "{case}");
        let rate = |streams: &str| {
            let name = format!("{case}: kernels a second, {streams}");
            found.figure("P36a", &name)
        };
        assert!(rate("1 stream") > 0.0 && rate("4 streams") > 0.0, "{case}");
    }
    let beside = |when: &str| {
        let name = format!("{when}, every 500 us: the other's throughput");
        found.figure("P36b", &name)
    };
    assert_eq!(beside("alone"), 0.0);
    for when in [
        "beside a fresh process",
        "after one disable and enable",
        "after a restart of the runlist",
    ] {
        assert!(beside(when) > 0.0, "{when}");
    }
    // The two counters are read one after the other, which a busy machine stretches.
    for (second, due) in [(1_000, 50.0), (3_000, 75.0)] {
        let name = format!("slices of 1000 and {second} us: the second's share, restarted");
        let share: f64 = found.figure("P31s", &name);
        assert!((share - due).abs() < 12.0, "{second}: {share} %");
    }
    assert_eq!(found.figure("P38", "edges"), 30.0);
}

/// P-EQUIPMENT-4: probes find what they say and leave nothing disabled.
#[test]
fn two_gpus_are_preempted_at_once_through_the_owners_files() {
    let node = Node::device_only(&["--gpus", "2"]);
    let found = Found::by(&node, &["--only", "P37"]);
    found.expect("P37", "PASS", "");
    for figure in [
        "PREEMPT of one GPU alone: p50",
        "PREEMPT of two GPUs at once, until both returned: p50",
        "disables in a row: the last of online's kernels: p50",
        "PREEMPT at once, then disables: the last of online's kernels: p50",
    ] {
        assert!(found.figure("P37", figure) > 0.0, "{figure}");
    }
    // Both GPUs' groups, by the device's history: one by one, at once, and before each disable.
    let records = history::read(&node.vgpu_dir()).expect("the history is readable");
    let preempted = |gpu: u32| {
        let of = |record: &&Record| record.kind == Kind::Preempt && record.gpu == gpu;
        records.iter().filter(of).count()
    };
    assert_eq!([preempted(0), preempted(1)], [30, 30]);
    assert_eq!(left_disabled(&node), []);
}

/// P-EQUIPMENT-4: probes find what they say and leave nothing disabled.
#[test]
fn doctor_starts_the_probes_and_says_so_by_its_exit_code() {
    let node = Node::device_only(&["--set", "gsp_foreign=deny_23"]);
    let device = format!("virtual={}", node.vgpu_dir().display());
    let doctor = |arguments: &[&str]| {
        let _ = built("tidegate-probe");
        let mut all = vec!["doctor", "--device", &device];
        all.extend(arguments);
        let output = node.tidegate(&all);
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        (output.status.code(), text)
    };
    let (code, text) = doctor(&["--probe", "--quick", "--only", "P1,P6"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("P6    PASS") && !text.contains("P2 "),
        "{text}"
    );
    let (code, text) = doctor(&["--probe", "--quick", "--only", "P2"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("INVALID_CLIENT"), "{text}");
    let (code, text) = doctor(&["--only", "P2"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("add --probe"), "{text}");
    let (code, text) = doctor(&["--probe", "--only", "P99"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(
        text.contains("there is no probe P99; there are P1, P2"),
        "{text}"
    );
}

/// P-EQUIPMENT-4: probes find what they say and leave nothing disabled.
#[test]
fn the_virtual_gpus_context_has_the_golden_shape() {
    let node = Node::device_only(&["--driver", "580.95.05"]);
    let out = node.dir().to_str().expect("a path");
    Found::by(&node, &["--only", "P1", "--out", out]).expect("P1", "PASS", "");
    let read = |path: &std::path::Path| -> Value {
        let text = std::fs::read_to_string(path).expect("the shape was written");
        serde_json::from_str(&text).expect("JSON")
    };
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/rm-context.json");
    assert_eq!(
        read(&node.dir().join("rm-context.json")),
        read(&golden),
        "left: the virtual GPU, right: {}",
        golden.display()
    );
}

/// P-EQUIPMENT-4: probes find what they say and leave nothing disabled.
#[test]
fn where_foreign_pairs_are_refused_the_owners_ways_are_measured() {
    let node = Node::device_only(&["--set", "gsp_foreign=deny_1b"]);
    let found = Found::by(&node, &["--only", "P2,P3,P3b,P5,P7,P11"]);
    found.expect("P2", "FAIL", "INSUFFICIENT_PERMISSIONS");
    for probe in ["P3", "P3b", "P7", "end"] {
        found.expect(probe, "PASS", "");
    }
    found.note("P7", "L1: the driver refuses");
    found.expect("P5", "SKIP", "another client may not disable them");
    found.expect("P11", "FAIL", "INSUFFICIENT_PERMISSIONS");
    assert!(disables(&node) > 10, "the owners' ways were used");
    assert_eq!(left_disabled(&node), []);
}

/// P-EQUIPMENT-4: probes find what they say and leave nothing disabled.
#[test]
fn a_preemption_that_times_out_is_a_failed_probe_and_no_more() {
    let node = Node::device_only(&["--set", "preempt_timeout=1"]);
    let found = Found::by(&node, &["--only", "P2,P3"]);
    found.expect("P2", "FAIL", "TIMEOUT");
    found.expect("P3", "PASS", "");
    found.expect("end", "PASS", "");
    assert_eq!(left_disabled(&node), []);
}

/// P-EQUIPMENT-4: probes find what they say and leave nothing disabled.
#[test]
fn a_disable_that_lets_the_kernel_run_on_for_long_fails_no_probe() {
    // A hundred rounds take twice as long as a kernel of the probe's: it has to see to it that there is work.
    let node = Node::device_only(&["--set", "disable_fixed_us=20000"]);
    let found = Found::by(&node, &["--only", "P2,P3"]);
    found.expect("P2", "PASS", "");
    found.expect("P3", "PASS", "");
    assert_eq!(found.figure("P2", "one block: still right after"), 100.0);
}

/// P-EQUIPMENT-4: probes find what they say and leave nothing disabled.
#[test]
fn only_an_xid_makes_a_long_stop_unhealthy_and_every_line_of_the_driver_is_kept() {
    for (line, verdict) in [
        ("6,1,1,-;NVRM: loading a module", "PASS"),
        ("3,1,1,-;NVRM: Xid (PCI:0000:00:00): 109, pid=1", "FAIL"),
    ] {
        let node = Node::device_only(&[]);
        let log = node.dir().join("kmsg");
        std::fs::write(&log, "3,0,0,-;NVRM: Xid (PCI:0000:00:00): 79, earlier\n").expect("a file");
        let path = |path: &std::path::Path| path.to_str().expect("a path").to_owned();
        let arguments = [
            "--only",
            "P4",
            "--kernel-log",
            &path(&log),
            "--out",
            &path(node.dir()),
        ];
        let mut command = probes(&node, &arguments);
        let suite = std::thread::spawn(move || Found::from_command(&mut command));
        // Those of the trial of the ways, then those of the probe.
        wait_for("the long stop", || {
            (disables(&node) > CHANNELS).then_some(())
        });
        let mut file = std::fs::File::options()
            .append(true)
            .open(&log)
            .expect("ours");
        std::io::Write::write_all(&mut file, format!("{line}\n").as_bytes()).expect("written");
        let found = suite.join().expect("the suite ran");
        found.expect(
            "P4",
            verdict,
            if verdict == "FAIL" { "Xid 109" } else { "" },
        );
        found.note("P4", line);
        let kept = std::fs::read_to_string(node.dir().join("kernel-log.txt")).expect("it was kept");
        assert_eq!(kept, format!("P4 {line}\n"));
    }
}

/// P-EQUIPMENT-4: probes find what they say and leave nothing disabled.
#[test]
fn the_list_of_65_is_asked_last_and_where_the_kernel_is_ours() {
    let node = Node::device_only(&[]);
    let found = Found::by(&node, &["--only", "P9b,P10b", "--kernel-is-ours"]);
    found.expect("P9b", "PASS", "");
    found.note("P9b", "65 channels: the driver refuses");
    let probes = found.lines.iter().filter(|line| line["kind"] == "verdict");
    let order: Vec<&str> = probes.filter_map(|line| line["probe"].as_str()).collect();
    assert_eq!(order, ["P10b", "P9b", "end"]);
}

/// P-EQUIPMENT-4: probes find what they say and leave nothing disabled.
#[test]
fn what_a_context_is_made_of_follows_its_connections_and_their_number() {
    let node = Node::device_only(&[]);
    let found = Found::by(&node, &["--only", "P25"]);
    found.expect("P25", "PASS", "");
    let channels = |case: &str| found.figure("P25", &format!("{case}: channels"));
    let usual = channels("8 connections, 1 contexts");
    assert!(usual > 8.0);
    assert_eq!(channels("8 connections, 2 contexts"), 2.0 * usual);
    assert_eq!(channels("8 connections, 8 contexts"), 8.0 * usual);
    assert_eq!(channels("1 connections, 1 contexts"), usual - 7.0);
    assert_eq!(channels("32 connections, 1 contexts"), usual + 24.0);
    found.judged("P25", "every further context", "confirmed");
}

/// P-EQUIPMENT-4: probes find what they say and leave nothing disabled.
#[test]
fn methods_are_judged_by_the_victims_progress() {
    let node = Node::device_only(&[]);
    let found = Found::by(&node, &["--only", "P2m"]);
    found.expect("P2m", "PASS", "");
    for load in ["mid-kernel", "mid-graph"] {
        assert_eq!(
            found.figure("P2m", &format!("A disable, {load}: held, of 1")),
            1.0
        );
        let rate = format!("A disable, {load}: victim's throughput while stopped");
        assert_eq!(found.figure("P2m", &rate), 0.0);
    }
    found.judged("P2m", "a disable alone", "confirmed");
    assert_eq!(left_disabled(&node), []);
}

/// P-EQUIPMENT-4: probes find what they say and leave nothing disabled.
#[test]
fn the_method_that_a_firmware_honours_is_found_and_no_other() {
    for personality in Personality::ALL {
        let node = Node::device_only(&["--personality", personality.name()]);
        let found = Found::by(&node, &["--only", "P2m"]);
        let held = ["A disable", "B disable and restart", "C unlist and preempt"].map(|method| {
            let name = format!("{method}, mid-kernel: held, of 1");
            let figures = found.of("P2m");
            figures
                .iter()
                .any(|line| line["name"] == name.as_str() && line["value"] == 1.0)
        });
        let expected = match personality.eviction() {
            Eviction::OnDisable => [true; 3],
            Eviction::OnRestart => [false, true, false],
            Eviction::OnPreempt => [false, false, true],
            Eviction::AtKernelEnd | Eviction::Never => [false; 3],
        };
        assert_eq!(
            held,
            expected,
            "{}: {:#?}",
            personality.name(),
            found.of("P2m")
        );
        let verdict = if held.contains(&true) { "PASS" } else { "FAIL" };
        found.expect("P2m", verdict, "");
        let alone = if held[0] { "confirmed" } else { "refuted" };
        found.judged("P2m", "a disable alone", alone);
        if personality == Personality::Restart {
            let name = "B2 disable, and restart by another's channel, mid-kernel: held, of 1";
            assert_eq!(found.figure("P2m", name), 1.0);
        }
        if personality == Personality::RefusesRestart {
            found.note("P2m", "B disable and restart: not modelled here");
        }
        found.expect("end", "PASS", "");
        assert_eq!(left_disabled(&node), [], "{}", personality.name());
    }
}

/// P-EQUIPMENT-4: probes find what they say and leave nothing disabled.
#[test]
fn calls_that_wait_and_what_they_hold_are_told() {
    let node = Node::device_only(&[]);
    let out = node.dir().to_str().expect("a path");
    let found = Found::by(&node, &["--only", "P24", "--out", out]);
    found.expect("P24", "PASS", "");
    found.note("P24", "cuStreamSynchronize, busy: waits, holds nothing up");
    found.note("P24", "cuMemUnmap: returned");
    assert!(found.figure("P24", "calls that wait") > 2.0);
    let table =
        std::fs::read_to_string(node.dir().join("calls-while-disabled.csv")).expect("a table");
    let made = found.figure("P24", "calls made") + found.figure("P24", "calls not modelled here");
    assert_eq!(table.lines().count(), made as usize + 1);
    assert_eq!(left_disabled(&node), []);

    let node = Node::device_only(&[]);
    let mut command = probes(&node, &["--only", "P24"]);
    let found = Found::from_command(command.env("TIDEGATE_VGPU_LOCKS", "calls+sync"));
    found.expect(
        "P24",
        "FAIL",
        "the library does not mark them: cuStreamSynchronize, busy",
    );
    found.note("P24", "cuMemFree_v2 (marked): waits, holds up unmap");
    found.judged("P24", "the library marks every call", "refuted");
    assert_eq!(left_disabled(&node), []);
}

/// P-EQUIPMENT-4: probes find what they say and leave nothing disabled.
#[test]
fn a_driver_that_hangs_costs_the_probe_its_time_and_nothing_stays_disabled() {
    let node = Node::device_only(&["--set", "hang=1:3000000"]);
    let found = Found::by(&node, &["--only", "P2"]);
    found.expect("P2", "PASS", "");
    assert!(found.figure("P2", "first disable") > 2e6);
    assert_eq!(left_disabled(&node), []);
}

/// P-EQUIPMENT-4: probes find what they say and leave nothing disabled.
#[test]
fn killing_a_disabled_process_is_seen_to_stall_others_and_enabling_first_not() {
    let node = Node::device_only(&["--set", "stop_channel_wait_us=1000000"]);
    let found = Found::by(&node, &["--only", "P8,P10b", "--kernel-is-ours"]);
    found.expect("P8", "PASS", "");
    found.expect("P10b", "PASS", "");
    let longest = |precaution: &str| {
        let name = format!("ThousandKernels, {precaution}: longest control of another process");
        found.figure("P8", &name)
    };
    assert!(longest("None") > 900.0, "{} ms", longest("None"));
    assert!(
        longest("EnableFirst") < 900.0,
        "{} ms",
        longest("EnableFirst")
    );
    found.expect("end", "PASS", "");
}

/// P-EQUIPMENT-4: probes find what they say and leave nothing disabled.
#[test]
fn a_green_context_is_held_too_and_a_graph_keeps_the_processors_it_was_recorded_on() {
    let node = Node::device_only(&[]);
    let found = Found::by(&node, &["--only", "P15", "--kernel-is-ours"]);
    found.expect("P15", "PASS", "");
    let channels = ["without a green context", "with one"]
        .map(|when| found.figure("P15", &format!("channels {when}")));
    assert!(channels[0] < channels[1], "{channels:?}");
    let names = ["outside it", "in it"].map(|place| format!("SMs a kernel ran on {place}"));
    assert_eq!(found.figure("P15", &names[0]), 132.0);
    // A quarter of 132, in eights.
    assert_eq!(found.figure("P15", &names[1]), 40.0);
    assert_eq!(
        found.figure("P15", "SMs a graph recorded outside ran on in it"),
        132.0
    );
    assert_eq!(left_disabled(&node), []);
}

/// Stands in for the MPS daemon: notes what it is told, and where its pipes are. Clients of the virtual
/// driver are not told apart from others by it, so they have channels of their own.
const MPS_DAEMON: &str = "#!/bin/sh
echo \"${1:-$(cat)} in $CUDA_MPS_PIPE_DIRECTORY\" >> \"$MPS_SAID\"
";

/// P-EQUIPMENT-4: probes find what they say and leave nothing disabled.
#[test]
fn the_mps_daemon_of_a_probe_ends_with_it_however_it_ends() {
    use std::os::unix::fs::PermissionsExt;
    for killed in [false, true] {
        let node = Node::device_only(&[]);
        let said = node.dir().join("said");
        let daemon = node.dir().join("nvidia-cuda-mps-control");
        std::fs::write(&daemon, MPS_DAEMON).expect("a script");
        std::fs::set_permissions(&daemon, std::fs::Permissions::from_mode(0o755)).expect("chmod");
        let mut path = node.dir().as_os_str().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").expect("a PATH"));
        let mut command = probes(&node, &["--only", "P15m", "--kernel-is-ours"]);
        command.env("PATH", path).env("MPS_SAID", &said);
        let lines = || std::fs::read_to_string(&said).unwrap_or_default();
        if killed {
            let suite = Running::start("tidegate-probe", &mut command);
            wait_for("the daemon to be started", || {
                lines().starts_with("-d in ").then_some(())
            });
            suite.signal(libc::SIGKILL);
        } else {
            let found = Found::from_command(&mut command);
            found.expect("P15m", "PASS", "");
            assert!(found.figure("P15m", "channels of a client") > 0.0);
        }
        wait_for("the daemon to be told to quit", || {
            lines().contains("quit -t 5 in ").then_some(())
        });
        let places: BTreeSet<String> = lines()
            .lines()
            .filter_map(|line| Some(line.split_once(" in ")?.1.to_owned()))
            .collect();
        assert!(places.len() == 1, "one daemon, its own pipes: {places:?}");
        assert!(
            places.iter().all(|place| place.ends_with("/mps/pipes")),
            "{places:?}"
        );
        assert_eq!(left_disabled(&node), []);
    }
}

/// P-EQUIPMENT-4: probes find what they say and leave nothing disabled.
#[test]
fn locks_within_a_process_that_would_hinder_a_reclaim_are_found() {
    let node = Node::device_only(&[]);
    let mut command = probes(&node, &["--only", "P7b"]);
    let found = Found::from_command(command.env("TIDEGATE_VGPU_LOCKS", "calls+sync"));
    found.expect("P7b", "FAIL", "beside stream sync, spinning");
    let blocked = |case: &str| found.figure("P7b", &format!("{case}: calls that block"));
    assert_eq!(blocked("nothing"), 0.0);
    assert!(blocked("cuMemFree") > 0.0);
    assert!(blocked("launch into a full queue") > 0.0);
    found.note("P7b", "cuMemFree (hangs)");
    assert_eq!(left_disabled(&node), []);
}

/// P-EQUIPMENT-4: probes find what they say and leave nothing disabled.
#[test]
fn a_suite_that_is_killed_at_any_moment_leaves_nothing_disabled() {
    let mut while_disabled = 0;
    // By how many channels have been disabled: before the first, in the trial of the ways, at the
    // beginning and in the middle of long stops, in the second probe.
    let whole = |times: usize| times * CHANNELS;
    let moments = [
        0,
        1,
        CHANNELS / 2,
        whole(1),
        whole(1) + 1,
        whole(2),
        whole(2) + 1,
        whole(3),
        whole(3) + 1,
        whole(4),
        whole(5),
        whole(5) + 1,
    ];
    let signals = [libc::SIGKILL, libc::SIGINT, libc::SIGKILL, libc::SIGTERM];
    for (count, signal) in moments.into_iter().zip(signals.into_iter().cycle()) {
        let node = Node::device_only(&[]);
        let suite = Running::start(
            "tidegate-probe",
            &mut probes(&node, &["--only", "P4,P5,P7"]),
        );
        wait_for("channels to be disabled", || {
            (disables(&node) >= count).then_some(())
        });
        let control = Control::connect(&node.vgpu_dir()).expect("the device listens");
        let channels = control.channels().expect("the device answers");
        while_disabled += usize::from(channels.iter().any(|channel| channel.disabled));
        suite.signal(signal);
        // Of the suite, its probe, its workers and its guardian nobody is left.
        let gone = wait_until(clock::DEADLINE, || {
            processes(&node).is_empty().then_some(())
        });
        assert!(
            gone.is_some(),
            "after {count}, {signal}: {:?}",
            processes(&node)
        );
        assert_eq!(
            left_disabled(&node),
            [],
            "after {count} disables, signal {signal}"
        );
        drop(suite);
    }
    assert!(while_disabled > 0, "no kill met a disabled channel");
}

/// P-EQUIPMENT-4: probes find what they say and leave nothing disabled.
#[test]
fn the_guardian_enables_what_a_stopped_worker_cannot() {
    let node = Node::device_only(&[]);
    let suite = Running::start("tidegate-probe", &mut probes(&node, &["--only", "P4"]));
    // Those of the trial of the ways, then those of the probe.
    wait_for("the long stop", || {
        (disables(&node) >= 2 * CHANNELS).then_some(())
    });
    let worker = processes(&node)
        .into_iter()
        .find(|(_, line)| line.trim_end().ends_with(" worker"));
    let (worker, _) = worker.expect("the probe has a worker");
    // SAFETY: plain system calls; the worker is a process of this test's own suite.
    unsafe { libc::kill(worker.cast_signed(), libc::SIGSTOP) };
    suite.signal(libc::SIGKILL);
    let control = Control::connect(&node.vgpu_dir()).expect("the device listens");
    wait_for("the guardian to enable", || {
        let channels = control.channels().expect("the device answers");
        let all = !channels.is_empty() && channels.iter().all(|channel| !channel.disabled);
        all.then_some(())
    });
    wait_for("everybody to be gone", || {
        processes(&node).is_empty().then_some(())
    });
    assert_eq!(left_disabled(&node), []);
}
