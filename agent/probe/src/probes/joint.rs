//! P29: one call that names channels of several processes.
//!
//! The agent makes such calls for a job of several processes, and calls for each where the driver refuses them.
//! Firmware's side of it is not public: whether it takes such a list, what that costs beside a call for each, and what
//! it does with the rest of a list in which one pair is of nobody, is found on each card anew.

use super::edges::{BOGUS, answer, stopped};
use crate::actor::list;
use crate::bench::{Bench, Ending, SOON, fail, pass, skip};
use crate::clock::now_ns;
use crate::message::Wait;
use crate::subject::{Subject, Way};
use std::time::Duration;
use tidegate_abi::rm::MAX_PAIRS;
use tidegate_agent::watch::latency::{Latencies, summary};

const PROCESSES: usize = 3;
/// Length of a kernel, and with how little of it left another is launched.
const KERNEL: Duration = Duration::from_secs(1);
const LEAST: Duration = Duration::from_millis(500);

/// Disables or enables `pairs` in as few calls as there is room for, all marked before; nanoseconds it took.
fn all_at_once(
    subjects: &mut [Subject<'_>],
    pairs: &[(u32, u32)],
    disable: bool,
) -> anyhow::Result<u64> {
    if disable {
        subjects.iter_mut().for_each(Subject::mark);
    }
    let mut ns = 0;
    for chunk in pairs.chunks(MAX_PAIRS) {
        let begun = now_ns();
        subjects[0].raw(&mut list(chunk, disable))??;
        ns += now_ns() - begun;
    }
    for subject in subjects {
        ns += subject.follow(disable)?;
        if !disable {
            subject.clear();
        }
    }
    Ok(ns)
}

fn one_by_one(subjects: &mut [Subject<'_>], disable: bool) -> anyhow::Result<u64> {
    let each = subjects.iter_mut().map(|subject| subject.set(disable));
    each.sum()
}

/// Which of them run on.
fn running(subjects: &mut [Subject<'_>]) -> anyhow::Result<Vec<usize>> {
    let mut on = Vec::new();
    for (nth, subject) in subjects.iter_mut().enumerate() {
        if !stopped(subject)? {
            on.push(nth);
        }
    }
    Ok(on)
}

pub(super) fn processes(bench: &Bench) -> anyhow::Result<Ending> {
    if bench.best_way()? != Way::Foreign {
        return Ok(skip("foreign pairs are not taken here, so no list has any"));
    }
    let mut subjects = Vec::new();
    for nth in 0..PROCESSES {
        subjects.push(bench.subject(&format!("joint-{nth}"), Wait::Spin, Way::Foreign)?);
    }
    for subject in &mut subjects {
        bench.spin(subject, KERNEL, 1)?;
    }
    let pairs: Vec<(u32, u32)> = subjects.iter().flat_map(Subject::pairs).collect();
    let report = &bench.report;
    let keep_busy = |subjects: &mut [Subject<'_>]| -> anyhow::Result<()> {
        let mut each = subjects.iter_mut();
        each.try_for_each(|subject| bench.keep_busy(subject, LEAST, KERNEL, 1))
    };
    let (mut joint, mut each) = (Latencies::new(), Latencies::new());
    for round in 0..bench.options.times(200) {
        keep_busy(&mut subjects)?;
        joint.record(all_at_once(&mut subjects, &pairs, true)?);
        // Once: that they stand takes longer to see than all the calls.
        if round == 0 {
            let on = running(&mut subjects)?;
            if !on.is_empty() {
                all_at_once(&mut subjects, &pairs, false)?;
                return Ok(fail(format!("of the processes of one call {on:?} run on")));
            }
        }
        all_at_once(&mut subjects, &pairs, false)?;
        keep_busy(&mut subjects)?;
        each.record(one_by_one(&mut subjects, true)?);
        one_by_one(&mut subjects, false)?;
    }
    let summaries = [
        ("together", summary(&joint)),
        ("a call each", summary(&each)),
    ];
    for (name, summary) in &summaries {
        report.micros(format!("{name}: disable p50"), summary.p50_ns);
    }
    for (name, summary) in &summaries {
        report.micros(format!("{name}: disable p99"), summary.p99_ns);
    }
    report.figure("processes", PROCESSES as f64, "");
    report.figure("channels", pairs.len() as f64, "");

    // A pair of nobody between those of the first and of the others: of each what computes, which comes first.
    let room = (MAX_PAIRS - 1) / PROCESSES;
    let mut mixed = Vec::new();
    for subject in &subjects {
        mixed.extend(subject.pairs().into_iter().take(room));
        if mixed.len() <= room {
            mixed.push((pairs[0].0, BOGUS));
        }
    }
    keep_busy(&mut subjects)?;
    subjects.iter_mut().for_each(Subject::mark);
    let result = subjects[0].raw(&mut list(&mixed, true))?;
    let on = running(&mut subjects)?;
    report.note(format!(
        "with a pair of nobody after the first process: {}; of {PROCESSES} processes {on:?} run on",
        answer(&result)
    ));
    one_by_one(&mut subjects, false)?;

    for (nth, subject) in subjects.iter_mut().enumerate() {
        bench.keep_busy(subject, LEAST, KERNEL, 1)?;
        let from = subject.worker.progress()?;
        if let Err(error) = subject.worker.moved(from, SOON) {
            return Ok(fail(format!("process {nth} after all this: {error}")));
        }
    }
    Ok(pass())
}
