//! Random schedules of real processes: whatever happens, the order of the gate holds.

use tidegate_tests::schedules;

/// How many, and from which seed: `TIDEGATE_SCHEDULES=200 TIDEGATE_SEED=7`.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

#[test]
fn order_holds_in_random_schedules() {
    let (count, seed) = (
        setting("TIDEGATE_SCHEDULES", 6),
        setting("TIDEGATE_SEED", 1),
    );
    let totals = schedules::run(seed, count, |this, totals| {
        println!(
            "seed {this}: {} edges, {} wakes, {} preemptions, {} violations",
            totals.edges,
            totals.wakes,
            totals.preemptions,
            totals.violations.len()
        );
    });
    assert!(
        totals.violations.is_empty(),
        "{}",
        totals.violations.join("\n")
    );
    assert!(
        totals.wakes >= 3 * count && totals.preemptions >= 3 * count,
        "an empty run: {totals:?}"
    );
}
