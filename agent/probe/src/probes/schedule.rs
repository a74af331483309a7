//! P10: the other controls of a TSG. All of it on the probe's own TSGs; runlists and policies of the GPU
//! are never touched.

use crate::bench::{Bench, Ending, SOON, STILL, fail, pass};
use crate::message::{Op, Own};
use crate::subject::Subject;
use std::time::Duration;
use tidegate_abi::class::Engine;

/// The TSG whose kernel runs.
fn tsg(subject: &Subject<'_>) -> (Own, u32) {
    let compute = subject
        .channels
        .iter()
        .find(|channel| channel.engine == Engine::Graphics)
        .unwrap_or(&subject.channels[0]);
    (subject.own().clone(), compute.tsg)
}

pub(super) fn preempt(bench: &Bench) -> anyhow::Result<Ending> {
    let mut subject = bench.running("preempt", Duration::from_secs(3))?;
    let (own, tsg) = tsg(&subject);
    let report = &bench.report;
    let mut refused = Vec::new();
    let mut latencies = tidegate_agent::watch::latency::Latencies::new();
    for _ in 0..bench.options.times(100) {
        let own = own.clone();
        match subject.worker.one(Op::Preempt { own, tsg }) {
            Ok(done) => latencies.record(done.ns),
            Err(error) => {
                refused.push(format!("PREEMPT: {error:#}"));
                break;
            }
        }
    }
    let summary = tidegate_agent::watch::latency::summary(&latencies);
    if summary.count > 0 {
        report.micros("PREEMPT p50", summary.p50_ns);
        report.micros("PREEMPT p99", summary.p99_ns);
        let moves = subject.worker.progress_over(STILL)? > 0;
        report.note(format!(
            "after PREEMPT the kernel {}",
            if moves { "goes on by itself" } else { "stands" }
        ));
    }
    for us in [1, 1_000_000] {
        let own = own.clone();
        match subject.worker.one(Op::Timeslice { own, tsg, us }) {
            Ok(done) => report.micros(format!("SET_TIMESLICE to {us} us"), done.ns),
            Err(error) => refused.push(format!("SET_TIMESLICE to {us} us: {error:#}")),
        }
    }
    let from = subject.worker.progress()?;
    if let Err(error) = subject.worker.moved(from, SOON) {
        return Ok(fail(format!("after all this: {error}")));
    }
    Ok(if refused.is_empty() {
        pass()
    } else {
        fail(refused.join("; "))
    })
}

pub(super) fn unschedule(bench: &Bench) -> anyhow::Result<Ending> {
    let mut subject = bench.running("unschedule", Duration::from_secs(3))?;
    let (own, tsg) = tsg(&subject);
    // Enabling the channels does not put a TSG back on its runlist: the worker's death cleans this up.
    let mut schedule = |enable: bool| {
        let own = own.clone();
        subject.worker.one(Op::Schedule { own, tsg, enable })
    };
    let off = match schedule(false) {
        Ok(done) => done.ns,
        Err(error) => return Ok(fail(format!("GPFIFO_SCHEDULE(0): {error:#}"))),
    };
    let moved = subject.worker.progress_over(STILL)?;
    let on = subject
        .worker
        .one(Op::Schedule {
            own,
            tsg,
            enable: true,
        })?
        .ns;
    bench.report.micros("GPFIFO_SCHEDULE(0)", off);
    bench.report.micros("GPFIFO_SCHEDULE(1)", on);
    bench
        .report
        .figure("steps while off the runlist", moved as f64, "");
    let from = subject.worker.progress()?;
    if let Err(error) = subject.worker.moved(from, SOON) {
        return Ok(fail(format!("the kernel did not go on: {error}")));
    }
    // What runs went on on an H200: this is no way to stop anything.
    bench.report.guess(
        "a group taken off its runlist goes on with what it runs",
        moved > 0,
    );
    Ok(pass())
}
