//! P2, P3, P3b: the same question by three ways. Do channels stop and resume exactly, how long does a
//! call take?

use crate::bench::{Bench, Ending, SOON, fail, pass};
use crate::clock;
use crate::message::Wait;
use crate::subject::Way;
use std::time::Duration;
use tidegate_agent::config::Method;
use tidegate_agent::watch::latency::{Latencies, summary};
use tidegate_driver::rm::{ControlFile, Owner};

/// Length of a kernel: what is left of the last one is waited for at the end.
const KERNEL: Duration = Duration::from_secs(1);
/// With less work than this queued, another kernel is: a round takes less, its calls included.
const LEAST: Duration = Duration::from_millis(500);

/// Blocks of 256 threads that fill a GPU of 132 multiprocessors once: what a disable has to save is then
/// there.
const FULL: u32 = 132 * 8;

pub(super) fn foreign(bench: &Bench) -> anyhow::Result<Ending> {
    by(bench, (Way::Foreign, Method::Disable), 1_000)
}

pub(super) fn owners_file(bench: &Bench) -> anyhow::Result<Ending> {
    if let Some(wrong) = strangers(bench)? {
        return Ok(fail(wrong));
    }
    by(bench, (Way::OwnersFile, bench.method()), 200)
}

/// What is wrong with the proof of who owns a client: it has to say no to a stranger also once the driver
/// has its version cached, and would answer that for every client that exists.
fn strangers(bench: &Bench) -> anyhow::Result<Option<String>> {
    let subject = bench.subject(Way::OwnersFile.level(), Wait::Spin, Way::OwnersFile)?;
    let theirs = subject.owners_file()?;
    let (their_client, mine) = (subject.own().client, ControlFile::open()?);
    let my_client = mine.client()?;
    mine.prime(my_client)?;
    theirs.prime(their_client)?;
    let answers = [
        ("mine of mine", mine.owner(my_client)?, Owner::Own),
        ("theirs of theirs", theirs.owner(their_client)?, Owner::Own),
        ("mine of theirs", mine.owner(their_client)?, Owner::Foreign),
        ("theirs of mine", theirs.owner(my_client)?, Owner::Foreign),
        ("mine of nobody's", mine.owner(0xdead_beef)?, Owner::Nobody),
    ];
    let wrong = answers.iter().find(|(_, answer, right)| answer != right);
    Ok(wrong.map(|(asked, answer, right)| {
        format!("the proof answers {asked} client {answer:?}, not {right:?}")
    }))
}

pub(super) fn inside(bench: &Bench) -> anyhow::Result<Ending> {
    by(bench, (Way::Inside, bench.method()), 200)
}

fn by(bench: &Bench, (way, method): (Way, Method), times: u32) -> anyhow::Result<Ending> {
    let worker = bench.worker(way.level(), Wait::Spin)?;
    let mut subject = bench.adopt_by(worker, way, method)?;
    bench
        .report
        .figure("channels", subject.channels.len() as f64, "");
    for (load, blocks) in [("one block", 1), ("full GPU", FULL)] {
        bench.spin(&mut subject, KERNEL, blocks)?;
        if let Some(wrong) = bench.stops_and_resumes(&mut subject, KERNEL, blocks)? {
            return Ok(fail(format!("{load}: {wrong}")));
        }
        let (mut disable, mut enable) = (Latencies::new(), Latencies::new());
        let (mut stood_still, mut judged) = (0_u32, 0_u32);
        let times = bench.options.times(times);
        for _ in 0..times {
            bench.keep_busy(&mut subject, LEAST, KERNEL, blocks)?;
            disable.record(subject.set(true)?);
            let (before, after) = (subject.worker.progress()?, subject.worker.progress()?);
            // What had ended says nothing: a disable may let the kernel run for long before it holds.
            if after < subject.launched {
                judged += 1;
                stood_still += u32::from(before == after);
            }
            enable.record(subject.set(false)?);
            // Room for the kernel to get back on the hardware: a gate is not shut in its wake.
            clock::pause(Duration::from_micros(500));
        }
        for (name, latencies) in [("disable", &disable), ("enable", &enable)] {
            let summary = summary(latencies);
            let report = &bench.report;
            report.micros(format!("{load}: {name} p50"), summary.p50_ns);
            report.micros(format!("{load}: {name} p99"), summary.p99_ns);
            report.micros(format!("{load}: {name} max"), summary.max_ns);
        }
        bench.report.figure(
            format!("{load}: still right after"),
            f64::from(stood_still) / f64::from(judged.max(1)) * 100.0,
            "%",
        );
        if judged < times {
            bench.report.note(format!(
                "{load}: in {} of {times} rounds all work had ended before the channels were disabled",
                times - judged
            ));
        }
        bench.keep_busy(&mut subject, LEAST, KERNEL, blocks)?;
        let from = subject.worker.progress()?;
        if let Err(error) = subject.worker.moved(from, SOON) {
            return Ok(fail(format!("{load}: after {times} rounds: {error}")));
        }
        subject
            .worker
            .call("work", vec![crate::message::Op::WaitStream])?;
    }
    Ok(pass())
}
