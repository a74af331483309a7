//! P31: may one process' work go before another's, without a gate? By making its group real-time, or by the length of
//! the other's time slices.
//!
//! Firmware decides what a real-time group is, and what it does to its neighbours: it may starve them. So the two
//! processes are this probe's own and nobody else's work should be on the GPU.

use crate::bench::{Bench, Ending, SOON, STEP_NS, fail, pass};
use crate::clock::{self, nanos, now_ns};
use crate::link::{PROMPT, Worker};
use crate::message::{Op, Wait};
use crate::subject::{RESTART_RUNLIST, Subject, Way, control, graphics};
use anyhow::Context;
use std::time::Duration;
use tidegate_agent::config::Method;

/// `NVA06C_CTRL_CMD_MAKE_REALTIME` {real time}, `NVA06C_CTRL_CMD_SET_TIMESLICE` {microseconds}, from the kernel's
/// `ctrla06c.h`.
const MAKE_REALTIME: u32 = 0xa06c_0110;
const SET_TIMESLICE: u32 = 0xa06c_0103;

/// Blocks of 256 threads that fill a GPU of 132 multiprocessors once.
const FULL: u32 = 132 * 8;
/// What the victim has to do: more than all that is measured beside it takes.
const WORK: Duration = Duration::from_secs(40);
const KERNEL: Duration = Duration::from_millis(500);
/// The first process' kernels, as of an engine that decodes: how many, how long, how far apart.
const KERNELS: u32 = 60;
const LENGTH_NS: u64 = 20_000;
const GAP: Duration = Duration::from_millis(5);
/// They take half a second; a group that never gets its turn is not waited for longer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What two processes got of a GPU.
struct Got {
    p50: u64,
    p99: u64,
    /// The other's steps, as a part of what it makes alone.
    other: f64,
}

struct Pair<'a> {
    bench: &'a Bench,
    first: Worker,
    victim: Subject<'a>,
}

impl Pair<'_> {
    fn busy(&mut self) -> anyhow::Result<()> {
        let kernel = nanos(KERNEL) / STEP_NS;
        let graph = Op::Graph {
            kernels: nanos(WORK) / nanos(KERNEL),
            steps: kernel,
            step_ns: STEP_NS,
            blocks: FULL,
        };
        let from = self.victim.worker.progress()?;
        self.victim.worker.call("work", vec![graph])?;
        self.victim.launched += nanos(WORK) / STEP_NS;
        self.victim.worker.moved(from, SOON)
    }

    fn sparse(&mut self) -> anyhow::Result<Got> {
        let got = self.sparse_within(PROMPT)?;
        got.with_context(|| format!("{KERNELS} short kernels did not run in {PROMPT:?}"))
    }

    /// A fresh stretch of sparse kernels beside whatever the victim does; None: they do not end in `limit`.
    fn sparse_within(&mut self, limit: Duration) -> anyhow::Result<Option<Got>> {
        let (from, start) = (self.victim.worker.progress()?, now_ns());
        let kernels = Op::Latency {
            kernels: KERNELS,
            ns: LENGTH_NS,
            gap_ns: nanos(GAP),
        };
        let ticket = self.first.send("main", vec![kernels])?;
        let Some(done) = self.first.wait(ticket, limit)? else {
            return Ok(None);
        };
        let done = done.first().context("an empty answer")?;
        let (to, end) = (self.victim.worker.progress()?, now_ns());
        Ok(Some(Got {
            p50: done.ns,
            p99: done.value,
            other: (to - from) as f64 * STEP_NS as f64 / (end - start).max(1) as f64 * 100.0,
        }))
    }

    fn say(&self, name: &str, got: &Got) {
        let report = &self.bench.report;
        report.micros(format!("{name}: kernel p50"), got.p50);
        report.micros(format!("{name}: kernel p99"), got.p99);
        report.figure(format!("{name}: the other's throughput"), got.other, "%");
    }

    /// One control of every group of the first process that computes, then a restart of its runlist.
    fn first_groups(&mut self, (cmd, what): (u32, &str), parameters: &[u8]) -> anyhow::Result<()> {
        let channels = self.first.trace.channels();
        let own = self.first.trace.owners().into_iter().next();
        let own = own.context("the first process has no channels")?;
        let (groups, channel) = graphics(&channels);
        for &tsg in &groups {
            control(&mut self.first, &own, (tsg, cmd, what), parameters)?;
        }
        let channel = channel.context("no graphics channel")?;
        let restart = (channel, RESTART_RUNLIST, "RESTART_RUNLIST");
        control(&mut self.first, &own, restart, &[1, 0]).map(|_| ())
    }
}

pub(super) fn first_come(bench: &Bench) -> anyhow::Result<Ending> {
    let mut first = bench.worker("first", Wait::Spin)?;
    first.trace.read()?;
    let victim = bench.worker("victim", Wait::Spin)?;
    let victim = bench.adopt_by(victim, Way::Inside, Method::Disable)?;
    let mut pair = Pair {
        bench,
        first,
        victim,
    };
    pair.sparse()?;
    let alone = pair.sparse()?;
    pair.say("alone", &alone);
    pair.busy()?;
    let shared = pair.sparse()?;
    pair.say("beside a saturating process", &shared);
    let mut wrong = Vec::new();
    match pair.first_groups((MAKE_REALTIME, "MAKE_REALTIME"), &[1]) {
        Ok(()) => {
            let real = pair.sparse_within(PATIENCE)?;
            let goes_first = |real: &Got| real.p99 < shared.p50 && real.other > 50.0;
            bench.report.guess(
                "a real-time group's kernel does not wait for a neighbour's time slice, and the neighbour runs between them",
                real.as_ref().is_some_and(goes_first),
            );
            let Some(real) = real else {
                bench.report.note(format!(
                    "real-time: none of {KERNELS} short kernels ran in {PATIENCE:?}, beside a process that always has work"
                ));
                // Its kernels hang behind the other's; both end with this probe.
                return Ok(pass());
            };
            pair.say("real-time", &real);
            pair.first_groups((MAKE_REALTIME, "MAKE_REALTIME"), &[0])?;
            let after = pair.sparse()?;
            pair.say("no longer real-time", &after);
            let undone = after.other > shared.other / 2.0 && after.p50 > shared.p50 / 2;
            bench
                .report
                .guess("what makes a group real-time can be undone", undone);
        }
        Err(error) => bench.report.note(format!("MAKE_REALTIME: {error:#}")),
    }
    let own = pair.victim.own().clone();
    let groups = graphics(&pair.victim.channels).0;
    for us in [100_u64, 2_048] {
        for &tsg in &groups {
            let what = (tsg, SET_TIMESLICE, "SET_TIMESLICE");
            let set = control(&mut pair.victim.worker, &own, what, &us.to_ne_bytes());
            if let Err(error) = set {
                bench
                    .report
                    .note(format!("SET_TIMESLICE to {us}: {error:#}"));
            }
        }
        let got = pair.sparse()?;
        pair.say(&format!("the other's slices of {us} us"), &got);
        match pair.victim.restart() {
            Ok(_) => {
                let got = pair.sparse()?;
                pair.say(&format!("the other's slices of {us} us, restarted"), &got);
            }
            Err(error) => bench.report.note(format!("RESTART_RUNLIST: {error:#}")),
        }
    }
    let from = pair.victim.worker.progress()?;
    if from >= pair.victim.launched {
        wrong.push("the victim's work was over before its end was seen".to_owned());
    } else if let Err(error) = pair.victim.worker.moved(from, SOON) {
        wrong.push(format!("the victim after all this: {error}"));
    }
    clock::pause(Duration::from_millis(1));
    Ok(if wrong.is_empty() {
        pass()
    } else {
        fail(wrong.join("; "))
    })
}
