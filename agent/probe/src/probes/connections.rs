//! P36a: what do a process' channels, and a stop of them, become by `CUDA_DEVICE_MAX_CONNECTIONS`, and what does it cost
//! that process?
//!
//! Firmware takes its time for each channel that a call names. Fewer connections are fewer channels, but streams that
//! share one wait for each other. What that costs a program of PyTorch is asked by P36at of the PyTorch probes.

use super::edges::stopped;
use super::pair::FULL;
use crate::bench::{Bench, Ending, fail, pass};
use crate::clock::{self, now_ns};
use crate::link::{PROMPT, Preload, Worker};
use crate::message::{Op, Wait};
use std::time::Duration;
use tidegate_agent::watch::latency::{Latencies, summary};

/// What the variable is set to; None: it is not set.
const CASES: [Option<u32>; 4] = [Some(1), Some(2), Some(8), None];
/// Streams that have work at once, of kernels so long.
const STREAMS: [&str; 4] = ["one", "two", "three", "four"];
const LENGTH_NS: u64 = 50_000;
const KERNELS: u32 = 2_000;
/// Length of the kernel that is stopped, and with how little of it left another is launched.
const KERNEL: Duration = Duration::from_secs(1);
const LEAST: Duration = Duration::from_millis(500);

pub(super) fn cases(bench: &Bench) -> anyhow::Result<Ending> {
    let way = bench.best_way()?;
    let mut wrong = Vec::new();
    for case in CASES {
        let name = case.map_or("not set".to_owned(), |count| format!("{count} connections"));
        let preload = Preload {
            variables: vec![(
                "CUDA_DEVICE_MAX_CONNECTIONS",
                case.map(|count| count.to_string()),
            )],
            ..bench.options.preload.clone()
        };
        let mut worker =
            bench.bare_worker(&format!("connections-{}", case.unwrap_or(0)), &preload)?;
        worker.context(bench.options.ordinal, Wait::Spin)?;
        throughput(bench, &mut worker, &name)?;
        let mut subject = bench.adopt(worker, way)?;
        subject.launched = subject.worker.progress()?;
        let report = &bench.report;
        report.figure(
            format!("{name}: channels"),
            subject.channels.len() as f64,
            "",
        );
        bench.spin(&mut subject, KERNEL, FULL)?;
        let (mut disable, mut enable) = (Latencies::new(), Latencies::new());
        for round in 0..bench.options.times(100) {
            bench.keep_busy(&mut subject, LEAST, KERNEL, FULL)?;
            disable.record(subject.set(true)?);
            if round == 0 && !stopped(&mut subject)? {
                wrong.push(format!("{name}: the work runs on"));
            }
            enable.record(subject.set(false)?);
            clock::pause(Duration::from_micros(500));
        }
        for (what, latencies) in [("disable", &disable), ("enable", &enable)] {
            let summary = summary(latencies);
            report.micros(format!("{name}: {what} p50"), summary.p50_ns);
            report.micros(format!("{name}: {what} p99"), summary.p99_ns);
        }
    }
    Ok(if wrong.is_empty() {
        pass()
    } else {
        fail(wrong.join("; "))
    })
}

/// Kernels a second of one stream, and of four that have work at once.
fn throughput(bench: &Bench, worker: &mut Worker, name: &str) -> anyhow::Result<()> {
    let count = |kernels: u32| Op::Count {
        kernels: u64::from(kernels),
        ns: LENGTH_NS,
    };
    for lane in STREAMS {
        // A lane's first call pays for its thread and stream.
        worker.call(lane, vec![count(1), Op::WaitStream])?;
    }
    let kernels = bench.options.times(KERNELS);
    for lanes in [&STREAMS[..1], &STREAMS[..]] {
        let begun = now_ns();
        let mut tickets = Vec::new();
        for lane in lanes {
            tickets.push(worker.send(lane, vec![count(kernels), Op::WaitStream])?);
        }
        for ticket in tickets {
            let done = worker.wait(ticket, PROMPT)?;
            anyhow::ensure!(done.is_some(), "{name}: a stream's work does not end");
        }
        let seconds = (now_ns() - begun) as f64 / 1e9;
        let all = f64::from(kernels) * lanes.len() as f64;
        let streams = if lanes.len() == 1 {
            "stream"
        } else {
            "streams"
        };
        bench.report.figure(
            format!("{name}: kernels a second, {} {streams}", lanes.len()),
            all / seconds,
            "/s",
        );
    }
    Ok(())
}
