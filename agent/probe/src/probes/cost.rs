//! P12: what the library's hooks cost on a launch and on a graph launch, and what events cost.
//!
//! Workers do the same, two with the library and two without; they take turns, so that a clock that changes its mind
//! hits all.

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
    // Two of each: processes differ by where they lie in memory and on which processor they run, and what they
    // differ by is no cost of a hook.
    let mut hooked = [
        bench.worker("hooked", Wait::Spin)?,
        bench.worker("hooked-too", Wait::Spin)?,
    ];
    let mut native = [
        bench.bare_worker("native", &bare)?,
        bench.bare_worker("native-too", &bare)?,
    ];
    for worker in &mut native {
        worker.context(bench.options.ordinal, Wait::Spin)?;
    }
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
        let (mut natives, mut apart, mut differences) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let [first, second] = &mut native;
            let (before, after) = (cost(first)?, cost(second)?);
            let without = f64::midpoint(before, after);
            natives.push(without);
            apart.push((before - after).abs());
            for worker in &mut hooked {
                differences.push(cost(worker)? - without);
            }
        }
        let median = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let report = &bench.report;
        report.figure(format!("{name}: native"), median(natives), "ns");
        report.figure(
            format!("{name}: between two native processes"),
            median(apart),
            "ns",
        );
        report.figure(
            format!("{name}: added by the library"),
            median(differences),
            "ns",
        );
    }
    Ok(pass())
}
