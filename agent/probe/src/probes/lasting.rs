//! P4 and P5: channels that stay disabled, for long or beyond the life of who disabled them.

use crate::actor::Actor;
use crate::bench::{Bench, Ending, SOON, STILL, fail, pass, skip};
use crate::clock;
use crate::kernel_log::{KernelLog, xid};
use std::time::Duration;

pub(super) fn long(bench: &Bench) -> anyhow::Result<Ending> {
    let log = KernelLog::open(&bench.options.kernel_log);
    let mut subject = bench.running("long", Duration::from_secs(5))?;
    let time = bench.options.long;
    let before = subject.worker.progress()?;
    subject.set(true)?;
    let settled = subject.worker.progress()?;
    clock::pause(time);
    let after = subject.worker.progress()?;
    let ns = subject.set(false)?;
    let report = &bench.report;
    report.figure("disabled for", time.as_secs_f64(), "s");
    report.micros("enable after it", ns);
    let said = match log {
        Ok(mut log) => {
            let lines = log.driver_lines();
            report.figure("kernel log lines of the driver", lines.len() as f64, "");
            // The driver says much that is no error: only an Xid is one.
            lines
                .iter()
                .find_map(|line| Some((xid(line)?, line.clone())))
        }
        Err(error) => {
            report.note(format!("the kernel log cannot be read here: {error}"));
            None
        }
    };
    if after != settled {
        let steps = after - settled;
        return Ok(fail(format!("{steps} steps while disabled")));
    }
    if let Err(error) = subject.worker.moved(after.max(before), SOON) {
        return Ok(fail(format!("the kernel did not go on: {error}")));
    }
    subject
        .worker
        .call("work", vec![crate::message::Op::WaitStream])?;
    Ok(match said {
        Some((number, line)) => fail(format!("the driver reported Xid {number}: {line}")),
        None => pass(),
    })
}

pub(super) fn successor(bench: &Bench) -> anyhow::Result<Ending> {
    let mut subject = bench.running("successor", Duration::from_secs(5))?;
    let mut first = Actor::start(bench.driver()?, &subject, None)?;
    subject.mark();
    let did = first.order(true)?;
    if let Some(error) = did.error {
        return Ok(skip(format!(
            "another client may not disable them: {error}"
        )));
    }
    subject.follow(true)?;
    bench.report.micros("disable", did.ns);
    first.kill();
    let moved = subject.worker.progress_over(Duration::from_secs(1))?;
    let still = subject.worker.progress_over(STILL)?;
    let mut second = Actor::start(bench.driver()?, &subject, None)?;
    let did = second.order(false)?;
    let from = subject.worker.progress()?;
    if let Some(error) = did.error {
        return Ok(fail(format!("the successor may not enable them: {error}")));
    }
    subject.follow(false)?;
    subject.clear();
    bench.report.micros("enable by the successor", did.ns);
    bench.report.figure(
        "steps after the death of who disabled",
        (moved + still) as f64,
        "",
    );
    if let Err(error) = subject.worker.moved(from, SOON) {
        return Ok(fail(format!("the kernel did not go on: {error}")));
    }
    Ok(if moved + still > 0 {
        fail("the channels were enabled by the death of who disabled them")
    } else {
        pass()
    })
}
