//! The reservation over hours of traces, in virtual time.

use super::Row;
use std::path::PathBuf;
use std::time::Duration;
use tidegate_replay::generator::PRESETS;
use tidegate_replay::input::InputError;
use tidegate_replay::trace::{self, Trace};
use tidegate_tests::memory::{demand, headroom};

/// Pressure events per minute.
const TARGETS: [f64; 3] = [0.5, 2.0, 10.0];
const HOURS: u64 = 8;
/// Longest busy share of a trace on one GPU before it is thinned: beyond, requests only pile up.
const BUSY: f64 = 0.9;

/// Reads the traces, thinned until one GPU can serve them; generates some if none is named.
pub fn load(files: &[PathBuf]) -> Result<Vec<(String, Trace)>, InputError> {
    if files.is_empty() {
        let generated = PRESETS.map(|preset| {
            let trace = preset.generate(1, Duration::from_secs(3_600));
            (preset.name.to_owned(), trace)
        });
        return Ok(generated.into());
    }
    let named = files.iter().map(|file| {
        let (name, whole) = (file.file_name().unwrap_or_default(), trace::read(file)?);
        let name = name
            .to_string_lossy()
            .replace(".csv", "")
            .replace(".gz", "");
        let factor = (1..=64).find(|factor| demand::busy(&whole.thin(*factor)) <= BUSY);
        Ok(match factor {
            Some(1) => (name, whole),
            factor => {
                let factor = factor.unwrap_or(64);
                (format!("{name}/{factor}"), whole.thin(factor))
            }
        })
    });
    named.collect()
}

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
    for (name, trace) in load(files)? {
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
