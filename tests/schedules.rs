//! Random schedules of real processes: whatever happens, the order of the gate holds.

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
    let totals = schedules::run(played, seed, count, |_, _| {});
    let lines: Vec<String> = totals
        .violations
        .iter()
        .map(|v| format!("seed {}: {}", v.seed, v.what))
        .collect();
    assert!(lines.is_empty(), "{}", lines.join("\n"));
    assert!(!totals.is_empty(), "an empty run: {totals:?}");
}
