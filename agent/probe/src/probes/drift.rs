//! P38: ten edges a second for half a minute. Does a stop become slower, and is anything left behind by each?
//!
//! A node sees some ten thousand stops a day. What leaks a descriptor or a client of the driver at each, or makes it a
//! microsecond longer, shows after three hundred of them.

use super::pair::FULL;
use crate::bench::{Bench, Ending, fail, pass};
use crate::clock::{self, nanos, now_ns};
use crate::kernel_log::{KernelLog, xid};
use crate::message::{Op, Wait};
use std::path::Path;
use std::time::Duration;
use tidegate_agent::watch::latency::{Latencies, summary};

const EDGES: u32 = 300;
const EVERY: Duration = Duration::from_millis(100);
/// Length of the kernel that is stopped, and with how little of it left another is launched.
const KERNEL: Duration = Duration::from_secs(1);
const LEAST: Duration = Duration::from_millis(500);
/// Online's kernel: 20 us.
const LENGTH_NS: u64 = 20_000;
/// The last third's stops may be so much longer than the first's.
const DRIFT: f64 = 1.5;
const NOTHING_NS: u64 = 200_000;

/// What is left behind would show in these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    /// Open control files: a client of the driver belongs to one.
    controls: usize,
}

fn held(pids: &[u32]) -> Held {
    let mut held = Held {
        descriptors: 0,
        controls: 0,
    };
    for pid in pids {
        let Ok(all) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
            continue;
        };
        for entry in all.flatten() {
            held.descriptors += 1;
            let to = std::fs::read_link(entry.path()).unwrap_or_default();
            held.controls += usize::from(to.file_name() == Path::new("nvidiactl").file_name());
        }
    }
    held
}

pub(super) fn edges(bench: &Bench) -> anyhow::Result<Ending> {
    let log = KernelLog::open(&bench.options.kernel_log).ok();
    let mut subject = bench.running("edges", KERNEL)?;
    let mut online = bench.worker("online", Wait::Spin)?;
    let kernel = || Op::Latency {
        kernels: 1,
        ns: LENGTH_NS,
        gap_ns: 0,
    };
    online.one(kernel())?;
    let pids = [std::process::id(), subject.worker.pid(), online.pid()];
    let edges = bench.options.times(EDGES);
    let mut stops = [Latencies::new(), Latencies::new(), Latencies::new()];
    let mut waits = [Latencies::new(), Latencies::new(), Latencies::new()];
    let (mut before, mut late, begun) = (None, 0, now_ns());
    for edge in 0..edges {
        let third = (edge * 3 / edges) as usize;
        bench.keep_busy(&mut subject, LEAST, KERNEL, FULL)?;
        let ticket = online.send("main", vec![kernel()])?;
        stops[third].record(subject.set(true)?);
        let done = online.wait(ticket, crate::link::PROMPT)?;
        subject.set(false)?;
        let done = done.and_then(|done| done.first().copied());
        let done = done.ok_or_else(|| anyhow::anyhow!("online's kernel did not run"))?;
        waits[third].record(done.ns);
        if edge == edges / 3 {
            // What is made once has been made.
            before = Some(held(&pids));
        }
        let due = begun + u64::from(edge + 1) * nanos(EVERY);
        match due.checked_sub(now_ns()) {
            Some(left) => clock::pause(Duration::from_nanos(left)),
            None => late += 1,
        }
    }
    let after = held(&pids);
    let before = before.unwrap_or(after);
    let report = &bench.report;
    report.figure("edges", f64::from(edges), "");
    report.figure("edges that came late", f64::from(late), "");
    for (third, name) in ["first", "second", "last"].into_iter().enumerate() {
        let (stop, wait) = (summary(&stops[third]), summary(&waits[third]));
        report.micros(format!("{name} third: stop p50"), stop.p50_ns);
        report.micros(format!("{name} third: stop p99"), stop.p99_ns);
        report.micros(format!("{name} third: online's kernel p50"), wait.p50_ns);
        report.micros(format!("{name} third: online's kernel p99"), wait.p99_ns);
    }
    for (what, one, other) in [
        ("descriptors", before.descriptors, after.descriptors),
        ("control files", before.controls, after.controls),
    ] {
        report.figure(format!("{what} after a third"), one as f64, "");
        report.figure(format!("{what} at the end"), other as f64, "");
    }
    let medians = [&stops[0], &stops[2]].map(|stops| summary(stops).p50_ns);
    report.guess("a stop is as fast after 300 of them", steady(medians));
    let mut wrong = Vec::new();
    if after != before {
        wrong.push(format!("left behind: {before:?} became {after:?}"));
    }
    wrong.extend(xids(bench, log));
    Ok(if wrong.is_empty() {
        pass()
    } else {
        fail(wrong.join("; "))
    })
}

/// What the driver reported meanwhile, if that is wrong.
fn xids(bench: &Bench, log: Option<KernelLog>) -> Option<String> {
    let Some(mut log) = log else {
        bench.report.note("the kernel's log cannot be read here");
        return None;
    };
    let lines = log.driver_lines();
    let xids: Vec<u32> = lines.iter().filter_map(|line| xid(line)).collect();
    bench.report.figure("Xid", xids.len() as f64, "");
    (!xids.is_empty()).then(|| format!("Xid {xids:?}"))
}

/// Whether the last stops take as long as the first, but for noise.
fn steady([first, last]: [u64; 2]) -> bool {
    last < first + NOTHING_NS || last as f64 <= first as f64 * DRIFT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_that_becomes_longer_is_told_from_noise() {
        assert!(steady([700_000, 850_000]) && steady([700_000, 400_000]));
        assert!(!steady([700_000, 1_400_000]));
    }

    #[test]
    fn what_is_left_open_is_seen() {
        let pids = [std::process::id()];
        let dir = std::env::temp_dir().join(format!("tidegate-held-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        let path = dir.join("nvidiactl");
        let before = held(&pids).controls;
        let file = std::fs::File::create(&path).expect("a file");
        assert_eq!(held(&pids).controls, before + 1);
        drop(file);
        assert_eq!(held(&pids).controls, before);
        std::fs::remove_dir_all(&dir).expect("ours");
    }
}
