//! Random schedules of real processes: whatever happens, the order of the gate holds.

use std::process::{Command, Output};
use tidegate_sim::gate::{Break, Played};
use tidegate_tests::schedules;
use tidegate_vgpu::personality::Personality;

/// How many, and from which seed: `TIDEGATE_SCHEDULES=200 TIDEGATE_SEED=7`.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// P-GATE-2: the order of the gate holds in every schedule.
#[test]
fn order_holds_in_random_schedules() {
    holds(0);
}

/// P-FAIR-8: it holds where jobs take turns, and no two of them are enabled at once.
#[test]
fn order_holds_where_jobs_take_turns() {
    holds(3);
}

fn holds(jobs: u32) {
    let (count, seed) = (
        setting("TIDEGATE_SCHEDULES", 6),
        setting("TIDEGATE_SEED", 1),
    );
    let played = Played {
        broken: Break::Nothing,
        personality: Personality::Evicts,
        jobs,
        hints: false,
    };
    let totals = schedules::run(played, seed, count, None, |_, _| {});
    let lines: Vec<String> = totals
        .violations
        .iter()
        .map(|v| format!("seed {}: {}", v.seed, v.what))
        .collect();
    assert!(lines.is_empty(), "{}", lines.join("\n"));
    assert!(!totals.is_empty(), "an empty run: {totals:?}");
}

fn nemesis(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nemesis"));
    let ran = command.args(args).output();
    ran.expect("nemesis is built with this test")
}

/// What policy was told and answered and what the device did stand on one time line, in its order.
fn is_told(args: &[&str]) -> String {
    let ran = nemesis(args);
    let told = String::from_utf8_lossy(&ran.stdout).into_owned();
    let lines = told.lines().skip(2);
    let lines: Vec<&str> = lines
        .take_while(|line| line.get(14..15) == Some(" "))
        .collect();
    let times = lines.iter().map(|line| {
        let time = line[3..13].trim().parse::<f64>();
        time.unwrap_or_else(|_| panic!("no time: {line}"))
    });
    assert!(times.is_sorted(), "{told}");
    for who in ["schedule", "event", "effect", "device"] {
        let any = lines.iter().any(|line| line[15..].starts_with(who));
        assert!(
            any,
            "the time line does not name {who}: {told} {}",
            String::from_utf8_lossy(&ran.stderr)
        );
    }
    told
}

/// P-EQUIPMENT-14: a schedule is told on one time line.
#[test]
fn a_schedule_of_the_gate_that_broke_a_promise_is_told() {
    let broken = ["gate", "--seed", "1", "--break", "no-cooldown", "--explain"];
    let told = is_told(&broken);
    assert!(told.contains(">>> "), "{told}");
    assert_eq!(nemesis(&broken).status.code(), Some(1), "{told}");
}

/// P-EQUIPMENT-14: a schedule is told on one time line.
#[test]
fn a_schedule_of_reclaims_that_broke_a_promise_is_told() {
    let told = is_told(&[
        "reclaim",
        "--seed",
        "1",
        "--break",
        "unmap-enabled",
        "--explain",
    ]);
    assert!(told.contains(">>> "), "{told}");
}

/// P-EQUIPMENT-14: with real processes, too.
#[test]
fn schedules_of_real_processes_are_told() {
    let told = is_told(&["gate", "--mode", "real", "--seed", "3", "--explain"]);
    assert!(told.contains("(online) begins request 1"), "{told}");
    let told = is_told(&[
        "reclaim",
        "--mode",
        "real",
        "--seed",
        "1",
        "--break",
        "no-disable",
        "--explain",
    ]);
    assert!(told.contains(">>> "), "{told}");
}

#[test]
fn schedules_that_cannot_be_told_are_refused_by_name() {
    for kind in [
        &["operators"][..],
        &["hostile"],
        &["cluster"],
        &["reclaim", "--mode", "stand-in"],
    ] {
        let ran = nemesis(&[kind, &["--explain"]].concat());
        let why = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(2), "{why}");
        assert!(
            why.contains(&format!("--explain is not of {}:", kind.join(" "))),
            "{why}"
        );
    }
}
