//! The reservation over hours of traces, in virtual time.

use crate::row::Row;
use crate::traces;
use std::path::PathBuf;
use std::time::Duration;
use tidegate_replay::input::InputError;
use tidegate_tests::memory::{demand, headroom};

/// Pressure events per minute.
const TARGETS: [f64; 3] = [0.5, 2.0, 10.0];
const HOURS: u64 = 8;

pub fn measure(files: &[PathBuf]) -> Result<Vec<Row>, InputError> {
    println!(
        "{:<26} {:>6} {:>9} {:>9} {:>15} {:>8} {:>8} {:>8} {:>6}",
        "trace over 8 hours",
        "target",
        "rate",
        "pool GiB",
        "headroom GiB",
        "offline",
        "constant",
        "fixed",
        "share"
    );
    let gib = |bytes: f64| bytes / f64::from(1 << 30);
    let mut rows = Vec::new();
    for (name, trace) in traces::load(files)? {
        let uses = demand::of(&trace);
        let uses = demand::repeated(&uses, Duration::from_secs(HOURS * 3_600));
        for target in TARGETS {
            let found = headroom::compare(&uses, target);
            let best = |best: Option<(_, headroom::Run)>| best.map_or(0.0, |best| best.1.offline);
            let (least, most) = found.adaptive.headroom;
            println!(
                "{name:<26} {target:>6} {:>9.3} {:>9.2} {:>7.2}-{:<7.2} {:>8.2} {:>8.2} {:>8.2} {:>6.3}",
                found.adaptive.rate,
                gib(found.pool.0 as f64),
                gib(least.0 as f64),
                gib(most.0 as f64),
                gib(found.adaptive.offline),
                gib(best(found.constant)),
                gib(best(found.fixed)),
                found.share(),
            );
            let key = format!("headroom.{name}.{target}");
            rows.push(Row::new(format!("{key}.excess"), found.excess(), "x").at_most(1.2));
            rows.push(Row::new(format!("{key}.share"), found.share(), "x").at_least(0.9));
        }
    }
    println!(
        "rate: pressure events per minute. offline, constant, fixed: mean GiB left to offline.\n"
    );
    Ok(rows)
}
