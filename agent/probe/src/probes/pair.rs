//! Two processes on one GPU: the first has short kernels now and then, as an engine that decodes, the victim always has
//! work. What is asked is how long the first waits, and what the victim gets.

use crate::bench::{Bench, SOON, STEP_NS};
use crate::clock::{self, nanos, now_ns};
use crate::link::{PROMPT, Worker};
use crate::message::{Op, Own, Wait};
use crate::subject::{RESTART_RUNLIST, Subject, Way, control, graphics};
use anyhow::Context;
use std::time::Duration;
use tidegate_agent::config::Method;

/// `NVA06C_CTRL_CMD_SET_TIMESLICE` {microseconds}, from the kernel's `ctrla06c.h`.
const SET_TIMESLICE: u32 = 0xa06c_0103;
/// Blocks of 256 threads that fill a GPU of 132 multiprocessors once.
pub(super) const FULL: u32 = 132 * 8;
const KERNEL: Duration = Duration::from_millis(500);
/// The first process' kernels: how many, how long.
pub(super) const KERNELS: u32 = 60;
const LENGTH_NS: u64 = 20_000;
/// How far apart they are unless that is the question.
pub(super) const GAP: Duration = Duration::from_millis(5);

/// What two processes got of a GPU.
pub(super) struct Got {
    pub p50: u64,
    pub longest: u64,
    /// The victim's steps, as a part of what it makes alone.
    pub other: f64,
}

pub(super) struct Pair<'a> {
    pub bench: &'a Bench,
    pub first: Worker,
    pub victim: Subject<'a>,
}

impl<'a> Pair<'a> {
    /// Both with their contexts; the victim stops itself, by `method`.
    pub(super) fn new(bench: &'a Bench, method: Method) -> anyhow::Result<Self> {
        let mut first = bench.worker("first", Wait::Spin)?;
        first.trace.read()?;
        let victim = bench.worker("victim", Wait::Spin)?;
        let victim = bench.adopt_by(victim, Way::Inside, method)?;
        Ok(Self {
            bench,
            first,
            victim,
        })
    }

    /// The victim is at work, and has `work` to do.
    pub(super) fn busy(&mut self, work: Duration) -> anyhow::Result<()> {
        let kernel = nanos(KERNEL) / STEP_NS;
        let kernels = nanos(work).div_ceil(nanos(KERNEL));
        let graph = Op::Graph {
            kernels,
            steps: kernel,
            step_ns: STEP_NS,
            blocks: FULL,
        };
        let from = self.victim.worker.progress()?;
        self.victim.worker.call("work", vec![graph])?;
        self.victim.launched += kernels * kernel;
        self.victim.worker.moved(from, SOON)
    }

    /// A fresh stretch of short kernels, so far apart, beside whatever the victim does.
    pub(super) fn sparse(&mut self, gap: Duration) -> anyhow::Result<Got> {
        let kernels = self.bench.options.times(KERNELS);
        let got = self.sparse_within(kernels, gap, PROMPT)?;
        got.with_context(|| format!("{kernels} short kernels did not run in {PROMPT:?}"))
    }

    /// As [`Self::sparse`]; None: they do not end in `limit`.
    pub(super) fn sparse_within(
        &mut self,
        kernels: u32,
        gap: Duration,
        limit: Duration,
    ) -> anyhow::Result<Option<Got>> {
        let (from, start) = (self.victim.worker.progress()?, now_ns());
        let kernels = Op::Latency {
            kernels,
            ns: LENGTH_NS,
            gap_ns: nanos(gap),
        };
        let ticket = self.first.send("main", vec![kernels])?;
        let Some(done) = self.first.wait(ticket, limit)? else {
            return Ok(None);
        };
        let done = done.first().context("an empty answer")?;
        let (to, end) = (self.victim.worker.progress()?, now_ns());
        Ok(Some(Got {
            p50: done.ns,
            longest: done.value,
            other: (to - from) as f64 * STEP_NS as f64 / (end - start).max(1) as f64 * 100.0,
        }))
    }

    pub(super) fn say(&self, name: &str, got: &Got) {
        let report = &self.bench.report;
        report.micros(format!("{name}: kernel p50"), got.p50);
        report.micros(format!("{name}: kernel longest"), got.longest);
        report.figure(format!("{name}: the other's throughput"), got.other, "%");
    }

    /// What is wrong with the victim now: it should go on, and have work left.
    pub(super) fn unwell(&mut self) -> anyhow::Result<Option<String>> {
        let from = self.victim.worker.progress()?;
        Ok(if from >= self.victim.launched {
            Some("the victim's work was over before its end was seen".to_owned())
        } else {
            let moved = self.victim.worker.moved(from, SOON);
            moved
                .err()
                .map(|error| format!("the victim after all this: {error}"))
        })
    }
}

/// One control of every group of a process that computes, by the process itself.
pub(super) fn groups(
    worker: &mut Worker,
    (cmd, what): (u32, &str),
    parameters: &[u8],
) -> anyhow::Result<()> {
    let (own, groups, _) = computes(worker)?;
    groups
        .into_iter()
        .try_for_each(|tsg| control(worker, &own, (tsg, cmd, what), parameters).map(|_| ()))
}

/// Has the runlist of a process' groups that compute restarted.
pub(super) fn restart(worker: &mut Worker) -> anyhow::Result<()> {
    let (own, _, channel) = computes(worker)?;
    let what = (channel, RESTART_RUNLIST, "RESTART_RUNLIST");
    control(worker, &own, what, &[1, 0])?;
    clock::pause(Duration::from_millis(1));
    Ok(())
}

/// Sets the time slice of every group of a process that computes.
pub(super) fn slice(worker: &mut Worker, us: u64) -> anyhow::Result<()> {
    groups(worker, (SET_TIMESLICE, "SET_TIMESLICE"), &us.to_ne_bytes())
}

fn computes(worker: &Worker) -> anyhow::Result<(Own, Vec<u32>, u32)> {
    let own = worker.trace.owners().into_iter().next();
    let own = own.context("the process has no channels")?;
    let (groups, channel) = graphics(&worker.trace.channels());
    let channel = channel.context("no graphics channel")?;
    Ok((own, groups.into_iter().collect(), channel))
}
