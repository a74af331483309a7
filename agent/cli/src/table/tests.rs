use super::*;
use tidegate_text::screen::fold;

fn crowded() -> v1::GetStatusResponse {
    let long = "a name that is as long as a Slurm job's or a cgroup's path may well be".to_owned();
    let gpu = |index| v1::GpuStatus {
        index,
        gate: v1::GateState::Open.into(),
        channels: 40,
        channels_disabled: 40,
        preemptions: 123_456,
        preempt_latency: Some(v1::Latency {
            count: 9,
            p50_ns: 512_345,
            p99_ns: 812_345,
            max_ns: 2_812_345,
            ..v1::Latency::default()
        }),
        ..v1::GpuStatus::default()
    };
    v1::GetStatusResponse {
        version: "0.1.0".to_owned(),
        driver_version: "580.95.05".to_owned(),
        scheduling: "SCHED_FIFO".to_owned(),
        driver_note: long.repeat(3),
        gpus: (0..8).map(gpu).collect(),
        jobs: vec![v1::JobStatus {
            name: long.clone(),
            state: v1::JobState::Paused.into(),
            gpus: (0..8).collect(),
            reason: "paused by the operator".to_owned(),
            ..v1::JobStatus::default()
        }],
        processes: vec![v1::ProcessStatus {
            pid: 4_194_304,
            name: "python3".to_owned(),
            job: long.clone(),
            rule: long.clone(),
            note: long,
            devices: (0..8)
                .map(|gpu| v1::DeviceStatus {
                    gpu,
                    ..v1::DeviceStatus::default()
                })
                .collect(),
            ..v1::ProcessStatus::default()
        }],
        ..v1::GetStatusResponse::default()
    }
}

/// P-OPERATE-16: a node without a driver says why once, and shows no table of nothing.
#[test]
fn what_is_wrong_with_the_driver_is_said_once() {
    let why = "the GPUs cannot be listed: no driver is loaded";
    let report = v1::GetStatusResponse {
        driver_note: why.to_owned(),
        level_note: format!("L1, L2, L3: {why}"),
        method_note: "no method was tried".to_owned(),
        ..v1::GetStatusResponse::default()
    };
    let text = status(&report, Some(100));
    assert_eq!(text.matches(why).count(), 1, "{text}");
    assert!(text.contains("note: L1, L2, L3: the GPUs"), "{text}");
    assert!(text.contains("note: no method was tried"), "{text}");
    assert!(
        text.contains("no GPU is known") && !text.contains("PREEMPTIONS"),
        "{text}"
    );
    let equal = v1::GetStatusResponse {
        level_note: why.to_owned(),
        ..report
    };
    assert_eq!(status(&equal, None).matches(why).count(), 1);
}

/// P-SECURITY-5: no page of a hostile process keeps an operator from seeing how the node stands.
#[test]
fn a_process_may_say_any_number_of_launches() {
    let mut report = crowded();
    for device in &mut report.processes[0].devices {
        device.launches = u64::MAX - 1;
    }
    assert!(status(&report, None).contains(&u64::MAX.to_string()));
}

/// P-OPERATE-16: no line of status is wider than the terminal.
#[test]
fn status_fits_the_terminal() {
    for width in [80, 100, 120, 200] {
        let text = fold(&status(&crowded(), Some(width)), usize::from(width));
        for line in text.lines() {
            assert!(
                line.chars().count() <= usize::from(width),
                "{width}: {line}\n{text}"
            );
        }
    }
}

/// P-OPERATE-16: at 80 columns no name is cut to pieces for what nobody reads there.
#[test]
fn a_narrow_terminal_has_rules_and_notes_below_the_processes() {
    let mut report = crowded();
    let process = &mut report.processes[0];
    process.job = "index".to_owned();
    process.rule = "rule 1: cgroup /online.slice".to_owned();
    process.note = String::new();
    let mut second = process.clone();
    second.pid = 7;
    report.processes.push(second);
    let narrow = processes(&report, Some(80));
    let row = |text: &str| {
        text.lines()
            .find(|line| line.contains(" 4194304"))
            .map(str::to_owned)
    };
    let found = row(&narrow).expect("a row");
    assert!(
        found.contains("python3") && found.contains("index"),
        "{narrow}"
    );
    assert!(
        narrow.contains("  4194304, 7: rule 1: cgroup /online.slice\n"),
        "{narrow}"
    );
    assert!(
        !narrow.contains("RULE") && !narrow.contains("WHERE"),
        "{narrow}"
    );
    let wide = processes(&report, Some(200));
    let found = row(&wide).expect("a row");
    assert!(found.contains("rule 1: cgroup /online.slice"), "{wide}");
    assert!(
        !wide.contains("NOTE"),
        "an empty column is left out: {wide}"
    );
}

/// P-OPERATE-21: of jobs that take turns the table says what they got and deserved, and of others nothing.
#[test]
fn shares_are_shown_where_jobs_take_turns() {
    let mut report = crowded();
    report.jobs[0].name = "batch-a".to_owned();
    assert!(!status(&report, Some(120)).contains("SHARE"));
    report.jobs.push(v1::JobStatus {
        name: "batch-b".to_owned(),
        share: Some(v1::JobShare {
            deserved: 0.2,
            got: 0.1949,
            ..v1::JobShare::default()
        }),
        reason: "waits for its turn: batch-a runs, 40 ms left".to_owned(),
        ..v1::JobStatus::default()
    });
    for width in [80, 120] {
        let text = fold(&status(&report, Some(width)), usize::from(width));
        let lines = text.lines();
        assert!(
            lines
                .clone()
                .all(|line| line.chars().count() <= usize::from(width)),
            "{text}"
        );
        let row = lines.clone().find(|line| line.contains("batch-b"));
        assert!(row.is_some_and(|row| row.contains("19/20 %")), "{text}");
        let alone = lines.clone().find(|line| line.contains("batch-a "));
        assert!(alone.is_some_and(|row| !row.contains('%')), "{text}");
    }
}

#[test]
fn an_open_gate_beside_jobs_that_are_held_says_so() {
    let mut report = crowded();
    assert_eq!(gate(&report, &report.gpus[0]), "open, jobs paused");
    report.jobs[0].set_state(v1::JobState::Running);
    assert_eq!(gate(&report, &report.gpus[0]), "open");
    // A job on several GPUs waits on all of them while the gate of one is closed.
    report.jobs[0].set_state(v1::JobState::Gated);
    assert_eq!(gate(&report, &report.gpus[0]), "open, jobs wait");
    report.jobs[0].set_state(v1::JobState::Running);
    report.drained = true;
    assert_eq!(gate(&report, &report.gpus[0]), "open, drained");
    report.drained = false;
    report.ungated_ns = 90_000_000_000;
    report.gpus[0].set_gate(v1::GateState::Closed);
    assert_eq!(gate(&report, &report.gpus[0]), "closed, ungated");
    assert!(status(&report, None).contains("ungated: offline runs beside online for 90 s at most"));
}

#[test]
fn a_time_has_two_or_three_figures_and_a_unit() {
    let read = [
        (0, "0"),
        (999, "999 ns"),
        (1_500, "1.5 us"),
        (42_000, "42 us"),
        (4_250_000, "4.2 ms"),
        (200_000_000, "200 ms"),
        (3_000_000_000, "3.0 s"),
        (119_000_000_000, "119 s"),
        (600_000_000_000, "10 min"),
        (7_200_000_000_000, "2.0 h"),
    ];
    for (ns, text) in read {
        assert_eq!(time(ns), text);
    }
}

#[test]
fn an_event_is_one_line() {
    let event = v1::Event {
        seq: 7,
        unix_ns: 1_795_219_199_012_345_678,
        kind: "preempted".to_owned(),
        gpu: 0,
        job: "batch".to_owned(),
        value_ns: 380_000,
        ..v1::Event::default()
    };
    assert_eq!(
        super::event(&event, None),
        "     7  2026-11-20T23:59:59.012345Z  preempted             gpu 0  job batch  380 us\n"
    );
    assert_eq!(
        super::event(&event, Some(80)),
        "     7  2026-11-20T23:59:59.012345Z  preempted  gpu 0  job batch  380 us\n"
    );
    let attached = v1::Event {
        pid: 41,
        text: "pid 41 python is offline (rule 1)".to_owned(),
        ..event
    };
    let line = super::event(&attached, None);
    assert!(
        line.ends_with("pid 41  380 us  python is offline (rule 1)\n"),
        "{line}"
    );
}

/// P-LEASE-7: status shows the slack, the leases and the reason where a trainer has none; where leases are off it says nothing.
#[test]
fn leases_are_shown_where_they_are_on() {
    let mut report = crowded();
    assert!(!status(&report, Some(120)).contains("SLACK"));
    report.gpus[0].leases = Some(v1::LeaseStatus {
        tpot_ns: 20_000_000,
        granted: 1_234_567,
        overruns: 12,
        units: 12_345_678,
        slack_ns: Some(11_000_000),
        predicted_ns: Some(6_400_000),
        predictions: 100,
        prediction_error: 0.0191,
        alone_ns: 7_100_000,
        job: "tune".to_owned(),
        ..v1::LeaseStatus::default()
    });
    report.jobs[0].name = "tune".to_owned();
    report.jobs[0].no_lease = Some(v1::NoLease {
        kind: "unit_too_long".to_owned(),
        text: "a unit takes 9.1 ms, and 2.0 ms fit".to_owned(),
        remedy: "make units of 2.0 ms at most".to_owned(),
    });
    for width in [80, 120] {
        let text = fold(&status(&report, Some(width)), usize::from(width));
        for line in text.lines() {
            assert!(line.chars().count() <= usize::from(width), "{line}");
        }
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for said in [
            "1234567",
            "11 ms",
            "6.4 ms",
            "tune has no lease: a unit takes 9.1 ms, and 2.0 ms fit; make units of 2.0 ms at most",
        ] {
            assert!(words.contains(said), "{said}: {text}");
        }
    }
}
