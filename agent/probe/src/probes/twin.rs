//! P37: may two GPUs be freed at once?
//!
//! The driver locks every GPU of the node for a disable, so those of several GPUs follow each other. PREEMPT, made through
//! the owner's control file, locks one GPU's lock alone: if it is made on all GPUs at once, online's kernels may run on each
//! while the disables follow. A preempted group yields once; so online's slice is longer than the disables take.

use super::pair::{FULL, slice};
use crate::bench::{Bench, Ending, SOON, fail, pass, skip};
use crate::clock::{self, now_ns};
use crate::link::{PROMPT, Worker};
use crate::message::{Op, Wait};
use crate::subject::{Subject, Way, graphics};
use std::time::Duration;
use tidegate_agent::watch::latency::{Latencies, summary};
use tidegate_driver::rm::{ControlFile, RmError};

const KERNEL: Duration = Duration::from_secs(1);
const LEAST: Duration = Duration::from_millis(500);
/// Online's kernel, and its slice.
const LENGTH_NS: u64 = 20_000;
const SLICE_US: u64 = 20_000;
/// The next launch meets a GPU at work again.
const BETWEEN: Duration = Duration::from_millis(3);

/// One GPU: a process that always has work, and one of online's.
struct Side<'a> {
    victim: Subject<'a>,
    file: ControlFile,
    groups: Vec<u32>,
    online: Worker,
}

impl<'a> Side<'a> {
    fn new(bench: &'a Bench, ordinal: i32) -> anyhow::Result<Self> {
        let worker = |name: &str| -> anyhow::Result<Worker> {
            let mut worker =
                bench.bare_worker(&format!("{name}-{ordinal}"), &bench.options.preload)?;
            worker.context(ordinal, Wait::Spin)?;
            worker.trace.read()?;
            Ok(worker)
        };
        let mut victim = bench.adopt(worker("victim")?, Way::OwnersFile)?;
        let (file, groups) = (victim.owners_file()?, graphics(&victim.channels).0);
        let mut online = worker("online")?;
        online.one(kernel())?;
        slice(&mut online, SLICE_US)?;
        bench.spin(&mut victim, KERNEL, FULL)?;
        Ok(Self {
            victim,
            file,
            groups: groups.into_iter().collect(),
            online,
        })
    }

    /// Preempts its groups; nanoseconds it took.
    fn preempt(&self) -> Result<u64, RmError> {
        let begun = now_ns();
        let client = self.victim.own().client;
        for tsg in &self.groups {
            self.file.preempt(client, *tsg)?;
        }
        Ok(now_ns() - begun)
    }
}

fn kernel() -> Op {
    Op::Latency {
        kernels: 1,
        ns: LENGTH_NS,
        gap_ns: 0,
    }
}

/// PREEMPT of every side at once; the longest of them, and the time until all had returned.
fn at_once(sides: &[Side<'_>]) -> anyhow::Result<(u64, u64)> {
    let begun = now_ns();
    let each: Vec<Result<u64, RmError>> = std::thread::scope(|scope| {
        let calls: Vec<_> = sides
            .iter()
            .map(|side| {
                let (file, groups) = (&side.file, &side.groups);
                let client = side.victim.own().client;
                scope.spawn(move || {
                    let begun = now_ns();
                    groups
                        .iter()
                        .try_for_each(|tsg| file.preempt(client, *tsg))?;
                    Ok(now_ns() - begun)
                })
            })
            .collect();
        let joined = calls.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined.flatten().collect()
    });
    anyhow::ensure!(each.len() == sides.len(), "a thread of the probe broke");
    let mut longest = 0;
    for one in each {
        longest = longest.max(one?);
    }
    Ok((longest, now_ns() - begun))
}

/// Online's kernel on each GPU, launched as the first call is made: when the last of them has run.
fn stops(bench: &Bench, sides: &mut [Side<'_>], preempt: bool) -> anyhow::Result<Latencies> {
    let mut last = Latencies::new();
    for _ in 0..bench.options.times(100) {
        for side in &mut *sides {
            bench.keep_busy(&mut side.victim, LEAST, KERNEL, FULL)?;
        }
        let mut tickets = Vec::new();
        for side in &mut *sides {
            tickets.push(side.online.send("main", vec![kernel()])?);
        }
        if preempt {
            at_once(sides)?;
        }
        for side in &mut *sides {
            side.victim.set(true)?;
        }
        let mut longest = 0;
        for (side, ticket) in sides.iter_mut().zip(tickets) {
            let done = side.online.wait(ticket, PROMPT)?;
            let done = done.and_then(|done| done.first().copied());
            let done = done.ok_or_else(|| anyhow::anyhow!("online's kernel did not run"))?;
            longest = longest.max(done.ns);
        }
        last.record(longest);
        for side in &mut *sides {
            side.victim.set(false)?;
        }
        clock::pause(BETWEEN);
    }
    Ok(last)
}

pub(super) fn preempt(bench: &Bench) -> anyhow::Result<Ending> {
    let gpus = bench.driver()?.gpus.len();
    if gpus < 2 {
        return Ok(skip(format!(
            "needs two GPUs, and the driver has {gpus} here"
        )));
    }
    let mut sides = vec![Side::new(bench, 0)?, Side::new(bench, 1)?];
    let (mut alone, mut row, mut together, mut until) = (
        Latencies::new(),
        Latencies::new(),
        Latencies::new(),
        Latencies::new(),
    );
    for _ in 0..bench.options.times(100) {
        for side in &mut sides {
            bench.keep_busy(&mut side.victim, LEAST, KERNEL, FULL)?;
        }
        let begun = now_ns();
        for side in &sides {
            alone.record(side.preempt()?);
        }
        row.record(now_ns() - begun);
        let (longest, all) = at_once(&sides)?;
        together.record(longest);
        until.record(all);
    }
    let report = &bench.report;
    let say = |name: &str, latencies: &Latencies| {
        let summary = summary(latencies);
        report.micros(format!("{name}: p50"), summary.p50_ns);
        report.micros(format!("{name}: p99"), summary.p99_ns);
    };
    say("PREEMPT of one GPU alone", &alone);
    say("PREEMPT of two GPUs, one after the other", &row);
    say("PREEMPT of two GPUs at once, the longer", &together);
    say("PREEMPT of two GPUs at once, until both returned", &until);
    let disables = stops(bench, &mut sides, false)?;
    say("disables in a row: the last of online's kernels", &disables);
    let preempted = stops(bench, &mut sides, true)?;
    say(
        "PREEMPT at once, then disables: the last of online's kernels",
        &preempted,
    );
    report.guess(
        "PREEMPT of two GPUs at once takes as long as of one",
        summary(&together).p50_ns as f64 <= summary(&alone).p50_ns as f64 * 1.5,
    );
    report.guess(
        "with PREEMPT of all GPUs first, the last of online's kernels runs sooner than after disables in a row",
        summary(&preempted).p50_ns < summary(&disables).p50_ns,
    );
    for (nth, side) in sides.iter_mut().enumerate() {
        bench.keep_busy(&mut side.victim, LEAST, KERNEL, FULL)?;
        let from = side.victim.worker.progress()?;
        if let Err(error) = side.victim.worker.moved(from, SOON) {
            return Ok(fail(format!("GPU {nth} after all this: {error}")));
        }
    }
    Ok(pass())
}
