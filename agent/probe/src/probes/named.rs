//! P30: what does a stop cost, by the channels that it names, and when does online's kernel run?
//!
//! A call goes to firmware and back, has each named channel taken off, and saves what runs. Which of these it is that
//! takes the time decides what is named first: the channels that compute alone, if the rest may follow.

use super::edges::stopped;
use crate::actor::list;
use crate::bench::{Bench, Ending, fail, pass, skip};
use crate::clock::{self, now_ns};
use crate::link::Worker;
use crate::message::{Op, Wait};
use crate::subject::{Subject, Way};
use std::time::Duration;
use tidegate_abi::class::Engine;
use tidegate_agent::watch::latency::{Latencies, summary};

/// Blocks of 256 threads that fill a GPU of 132 multiprocessors once.
const FULL: u32 = 132 * 8;
/// Length of a kernel, and with how little of it left another is launched.
const KERNEL: Duration = Duration::from_secs(1);
const LEAST: Duration = Duration::from_millis(500);
/// Online's kernel: 20 us.
const LENGTH_NS: u64 = 20_000;
const PROMPT: Duration = Duration::from_secs(10);

type Pairs = Vec<(u32, u32)>;

/// One call about `pairs` of the subject; nanoseconds it took.
fn call(subject: &mut Subject<'_>, pairs: &Pairs, disable: bool) -> anyhow::Result<u64> {
    if disable {
        subject.mark();
    }
    let begun = now_ns();
    subject.raw(&mut list(pairs, disable))??;
    let ns = now_ns() - begun;
    if !disable {
        subject.clear();
    }
    Ok(ns)
}

/// Calls about `pairs`, many times: each with what happened to the work.
fn cost(
    bench: &Bench,
    subject: &mut Subject<'_>,
    (name, pairs): (&str, &Pairs),
    busy: bool,
) -> anyhow::Result<()> {
    let (mut disable, mut enable) = (Latencies::new(), Latencies::new());
    let mut stands = None;
    for round in 0..bench.options.times(100) {
        if busy {
            bench.keep_busy(subject, LEAST, KERNEL, FULL)?;
        }
        disable.record(call(subject, pairs, true)?);
        if busy && round == 0 {
            stands = Some(stopped(subject)?);
        }
        enable.record(call(subject, pairs, false)?);
        clock::pause(Duration::from_micros(500));
    }
    let report = &bench.report;
    for (what, latencies) in [("disable", &disable), ("enable", &enable)] {
        let summary = summary(latencies);
        report.micros(format!("{name}: {what} p50"), summary.p50_ns);
        report.micros(format!("{name}: {what} p99"), summary.p99_ns);
    }
    if let Some(stands) = stands {
        report.note(format!(
            "{name} ({} channels): the work {}",
            pairs.len(),
            if stands { "stands" } else { "runs on" }
        ));
    }
    Ok(())
}

/// Online's kernel that is launched as the call is made: when it has run.
fn online(
    bench: &Bench,
    subject: &mut Subject<'_>,
    second: &mut Worker,
    named: Option<(&str, &Pairs)>,
) -> anyhow::Result<()> {
    let mut all = Latencies::new();
    for _ in 0..bench.options.times(100) {
        bench.keep_busy(subject, LEAST, KERNEL, FULL)?;
        let kernel = Op::Latency {
            kernels: 1,
            ns: LENGTH_NS,
            gap_ns: 0,
        };
        let ticket = second.send("main", vec![kernel])?;
        if let Some((_, pairs)) = named {
            call(subject, pairs, true)?;
        }
        let done = second.wait(ticket, PROMPT);
        if let Some((_, pairs)) = named {
            call(subject, pairs, false)?;
        }
        let done = done?.and_then(|done| done.first().copied());
        let done =
            done.ok_or_else(|| anyhow::anyhow!("online's kernel did not run in {PROMPT:?}"))?;
        all.record(done.ns);
        clock::pause(Duration::from_millis(3));
    }
    let summary = summary(&all);
    let name = named.map_or("no call", |(name, _)| name);
    let report = &bench.report;
    report.micros(format!("online's kernel, {name}: p50"), summary.p50_ns);
    report.micros(format!("online's kernel, {name}: p99"), summary.p99_ns);
    Ok(())
}

pub(super) fn channels(bench: &Bench) -> anyhow::Result<Ending> {
    if bench.best_way()? != Way::Foreign {
        return Ok(skip("foreign pairs are not taken here"));
    }
    let mut subject = bench.subject("named", Wait::Spin, Way::Foreign)?;
    let pairs = |wanted: Option<Engine>| -> Pairs {
        let of = subject.channels.iter();
        of.filter(|one| wanted.is_none_or(|engine| one.engine == engine))
            .map(|one| (one.client, one.channel))
            .collect()
    };
    let (all, compute) = (pairs(None), pairs(Some(Engine::Graphics)));
    let copy: Pairs = all
        .iter()
        .filter(|pair| !compute.contains(pair))
        .copied()
        .collect();
    if compute.is_empty() || copy.is_empty() {
        return Ok(fail(
            "the context has no channel that computes, or none that copies",
        ));
    }
    let mut refused = Latencies::new();
    for _ in 0..bench.options.times(100) {
        let begun = now_ns();
        let answer = subject.raw(&mut list(&[], true))?;
        refused.record(now_ns() - begun);
        if answer.is_ok() {
            bench.report.note("a list of none is accepted");
        }
    }
    let summary = summary(&refused);
    bench.report.micros("a list of none: p50", summary.p50_ns);
    cost(bench, &mut subject, ("idle, all", &all), false)?;
    bench.spin(&mut subject, KERNEL, FULL)?;
    let one = compute[..1].to_vec();
    for named in [
        ("one that computes", &one),
        ("those that compute", &compute),
        ("those that copy", &copy),
        ("all", &all),
    ] {
        cost(bench, &mut subject, named, true)?;
    }
    let mut second = bench.worker("second", Wait::Spin)?;
    second.one(Op::Latency {
        kernels: 20,
        ns: LENGTH_NS,
        gap_ns: 0,
    })?;
    online(bench, &mut subject, &mut second, None)?;
    for named in [("those that compute", &compute), ("all", &all)] {
        online(bench, &mut subject, &mut second, Some(named))?;
    }
    bench.keep_busy(&mut subject, LEAST, KERNEL, FULL)?;
    let from = subject.worker.progress()?;
    if let Err(error) = subject.worker.moved(from, crate::bench::SOON) {
        return Ok(fail(format!("after all this: {error}")));
    }
    Ok(pass())
}
