//! P8: a process is killed while its channels are disabled. How long until its memory is back, and how
//! long do control calls of others wait meanwhile?
//!
//! The driver waits for each channel of a dying process to fall idle, with locks of the whole node
//! held; a disabled channel with work queued never does. What may help: enabling first, holding a copy
//! of the process' UVM file until its channels are enabled, dropping what is queued.

use crate::bench::{Bench, Ending, fail, pass};
use crate::clock::{nanos, now_ns, until};
use crate::message::{Op, Wait};
use crate::subject::{Subject, Way};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tidegate_abi::rm::{DisableChannels, MAX_PAIRS};
use tidegate_driver::rm::ThrowAway;

/// Memory by which the process' end is seen.
const BYTES: u64 = 1 << 30;
/// Longest wait for it.
const MOST: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Queued {
    Nothing,
    OneLongKernel,
    ThousandKernels,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Precaution {
    None,
    EnableFirst,
    HoldUvm,
    DropQueue,
}

pub(super) fn killed_while_disabled(bench: &Bench) -> anyhow::Result<Ending> {
    let way = bench.best_way()?;
    let mut worst = Duration::ZERO;
    for queued in [
        Queued::Nothing,
        Queued::OneLongKernel,
        Queued::ThousandKernels,
    ] {
        for precaution in [
            Precaution::EnableFirst,
            Precaution::HoldUvm,
            Precaution::DropQueue,
            Precaution::None,
        ] {
            if way == Way::Inside && precaution == Precaution::DropQueue {
                continue;
            }
            let stall = one(bench, way, queued, precaution)?;
            if precaution == Precaution::EnableFirst {
                worst = worst.max(stall);
            }
        }
    }
    Ok(if worst > Duration::from_secs(1) {
        fail(format!(
            "enabling before the kill still stalls others for {worst:?}"
        ))
    } else {
        pass()
    })
}

fn one(
    bench: &Bench,
    way: Way,
    queued: Queued,
    precaution: Precaution,
) -> anyhow::Result<Duration> {
    let name = format!("{queued:?}, {precaution:?}");
    let mut observer = bench.worker("observer", Wait::Spin)?;
    let mut victim = bench.subject("victim", Wait::Spin, way)?;
    victim.worker.one(Op::Alloc { bytes: BYTES })?;
    match queued {
        Queued::Nothing => {}
        Queued::OneLongKernel => {
            let ns = nanos(Duration::from_secs(20));
            victim.worker.call("work", vec![Op::Spin { ns }])?;
        }
        Queued::ThousandKernels => {
            // As long as the one: it must not run dry before it is disabled.
            let count = Op::Count {
                kernels: 900,
                ns: 20_000_000,
            };
            victim.worker.call("work", vec![count])?;
        }
    }
    let before = observer.one(Op::MemoryFree)?.value;
    victim.set(true)?;
    let held = match precaution {
        Precaution::HoldUvm => uvm_files(&victim)?,
        _ => Vec::new(),
    };
    match precaution {
        Precaution::EnableFirst => {
            victim.set(false)?;
        }
        Precaution::DropQueue => {
            for pairs in victim.pairs().chunks(MAX_PAIRS) {
                let mut call = DisableChannels {
                    rewind_gp_put: 1,
                    ..crate::actor::list(pairs, true)
                };
                victim.raw(&mut call)??;
            }
            victim.set(false)?;
        }
        Precaution::None | Precaution::HoldUvm => {}
    }
    let sampler = Sampler::start(bench)?;
    let start = now_ns();
    victim.worker.kill();
    if precaution == Precaution::HoldUvm {
        // As the agent does when a process' socket closes: enable, then let the file go.
        let _ = victim.set(false);
        drop(held);
    }
    let ended = victim.worker.ended(MOST);
    let gone = now_ns() - start;
    let back = until(MOST, || {
        let free = observer.one(Op::MemoryFree).ok()?.value;
        (free >= before + BYTES / 2).then(|| now_ns() - start)
    });
    let stall = Duration::from_nanos(sampler.stop());
    // Gone with their process.
    victim.clear();
    let report = &bench.report;
    report.figure(format!("{name}: process gone"), gone as f64 / 1e6, "ms");
    match back {
        Some(ns) => report.figure(format!("{name}: memory back"), ns as f64 / 1e6, "ms"),
        None => report.note(format!("{name}: memory not back in {MOST:?}")),
    }
    if !ended {
        report.note(format!("{name}: the process did not end in {MOST:?}"));
    }
    report.figure(
        format!("{name}: longest control of another process"),
        stall.as_secs_f64() * 1e3,
        "ms",
    );
    Ok(stall)
}

/// Copies of the worker's UVM files, as its trace names them.
fn uvm_files(subject: &Subject<'_>) -> anyhow::Result<Vec<OwnedFd>> {
    let pidfd = tidegate_driver::sys::pidfd_open(i32::try_from(subject.worker.pid())?)?;
    let fds: BTreeSet<i32> = subject
        .worker
        .trace
        .lines()
        .iter()
        .filter(|line| line.file == "uvm")
        .map(|line| line.fd)
        .collect();
    fds.into_iter()
        .map(|fd| Ok(tidegate_driver::sys::pidfd_getfd(pidfd.as_fd(), fd)?))
        .collect()
}

/// Another client's control calls, one after the other, and the longest of them.
struct Sampler {
    stop: Arc<AtomicBool>,
    longest: Arc<AtomicU64>,
    thread: std::thread::JoinHandle<()>,
}

impl Sampler {
    fn start(bench: &Bench) -> anyhow::Result<Self> {
        use anyhow::Context;
        let driver = bench.driver()?;
        let gpu = driver.gpus.first().context("no GPU")?;
        let branch = driver.branch().context("an unknown branch")?;
        let own = ThrowAway::new(gpu, branch)?;
        let stop = Arc::new(AtomicBool::new(false));
        let longest = Arc::new(AtomicU64::new(0));
        let thread = {
            let (stop, longest) = (Arc::clone(&stop), Arc::clone(&longest));
            std::thread::spawn(move || {
                loop {
                    // One begins after the process is gone: the thread may start late, and the driver
                    // may give the memory back before it waits for the channels.
                    let last = stop.load(Ordering::Relaxed);
                    // Enabling its own idle channel takes the locks a disable takes, and changes nothing.
                    let mut call = crate::actor::list(&[(own.client(), own.channel)], false);
                    let start = now_ns();
                    let _ = own.set_own(&mut call);
                    longest.fetch_max(now_ns() - start, Ordering::Relaxed);
                    if last {
                        break;
                    }
                }
            })
        };
        Ok(Self {
            stop,
            longest,
            thread,
        })
    }

    fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
        self.longest.load(Ordering::Relaxed)
    }
}
