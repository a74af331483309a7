//! P12: what the library's hooks cost on a launch and on a graph launch, and what events cost.
//!
//! Two workers do the same, one with the library and one without; they take turns, so that a clock
//! that changes its mind hits both.

use crate::bench::{Bench, Ending, pass, skip};
use crate::link::{Preload, Worker};
use crate::message::{Call, Op, Wait};

pub(super) fn hook(bench: &Bench) -> anyhow::Result<Ending> {
    if bench.options.preload.library.is_none() {
        return Ok(skip("no preload library was found"));
    }
    let bare = Preload {
        library: None,
        ..bench.options.preload.clone()
    };
    let mut hooked = bench.worker("hooked", Wait::Spin)?;
    let mut native = bench.bare_worker("native", &bare)?;
    native.context(bench.options.ordinal, Wait::Spin)?;
    let rounds = if bench.options.quick { 3 } else { 15 };
    for (call, name) in [
        (Call::Launch, "cuLaunchKernel"),
        (Call::GraphLaunch, "cuGraphLaunch"),
        (Call::EventRecord, "cuEventRecord"),
        (Call::EventQuery, "cuEventQuery"),
        (Call::StreamQuery, "cuStreamQuery"),
    ] {
        let cost = |worker: &mut Worker| -> anyhow::Result<f64> {
            let done = worker.one(Op::Cost { call, batches: 9 })?;
            Ok(done.value as f64 / 1e3)
        };
        let (mut natives, mut differences) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let (before, with, after) =
                (cost(&mut native)?, cost(&mut hooked)?, cost(&mut native)?);
            let without = f64::midpoint(before, after);
            natives.push(without);
            differences.push(with - without);
        }
        let median = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let report = &bench.report;
        report.figure(format!("{name}: native"), median(natives), "ns");
        report.figure(
            format!("{name}: added by the library"),
            median(differences),
            "ns",
        );
    }
    Ok(pass())
}
