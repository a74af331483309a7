//! P7b: channels disabled and one thread inside a driver call that waits for the GPU. Do memory operations
//! of another thread return? Driver calls share locks within a process, and a call that waits under one
//! would make the process' memory unreclaimable while it is gated.

use crate::bench::{Bench, Ending, fail, pass};
use crate::link::Ticket;
use crate::message::{Op, Wait};
use crate::subject::Subject;
use anyhow::Context;
use std::time::Duration;

const PAGE: u64 = 2 << 20;
/// After this the first thread counts as being inside.
const INSIDE: Duration = Duration::from_millis(200);
/// What returns within this does not wait for the GPU.
const RETURNS: Duration = Duration::from_secs(1);
/// Everything has to come back after the enable.
const AFTER: Duration = Duration::from_secs(20);

/// Launches that no queue takes.
const OVERFULL: u64 = 6_000;

/// What the first thread does.
struct Case {
    name: &'static str,
    /// How its context waits.
    wait: Wait,
    lane: &'static str,
    op: fn(u64, u64) -> Op,
    /// Whether the design counts on memory operations beside it.
    counted_on: bool,
}

macro_rules! cases {
    ($($name:literal, $wait:ident, $lane:literal, $counted:literal, $op:expr;)*) => {
        &[$(Case { name: $name, wait: Wait::$wait, lane: $lane, op: $op, counted_on: $counted }),*]
    };
}

/// The lane `work` has the stream with the kernel, `aside` a stream without work.
const CASES: &[Case] = cases! {
    "nothing", Spin, "", true, |_, _| Op::MemoryFree;
    "stream sync, spinning", Spin, "work", true, |_, _| Op::WaitStream;
    "stream sync, blocking", Block, "work", true, |_, _| Op::WaitStream;
    "event sync, spinning", Spin, "work", true, |_, _| Op::WaitEvent { wait: Wait::Spin };
    "event sync, blocking", Spin, "work", true, |_, _| Op::WaitEvent { wait: Wait::Block };
    "context sync, spinning", Spin, "aside", false, |_, _| Op::WaitContext;
    "context sync, blocking", Block, "aside", false, |_, _| Op::WaitContext;
    "launch into a full queue", Spin, "work", false, |_, _| Op::Count { kernels: OVERFULL, ns: 20_000 };
    "cuMemFree", Spin, "aside", false, |device, _| Op::Free { at: device };
    "cuMemFreeHost", Spin, "aside", false, |_, host| Op::FreeHost { at: host };
    "cuMemcpyDtoH", Spin, "aside", false, |device, _| Op::CopyToHost { at: device, bytes: PAGE };
    "cuModuleLoadData", Spin, "aside", false, |_, _| Op::Module;
    "cuStreamDestroy", Spin, "work", false, |_, _| Op::DestroyStream;
};

/// What the other thread's calls did: nanoseconds each, or not in time.
struct Beside(Vec<(&'static str, Option<u64>)>);

impl Beside {
    fn blocked(&self) -> Vec<&'static str> {
        let blocked = self.0.iter().filter(|(_, ns)| ns.is_none());
        blocked.map(|(name, _)| *name).collect()
    }

    fn text(&self) -> String {
        let parts: Vec<String> = self
            .0
            .iter()
            .map(|(name, ns)| match ns {
                Some(ns) => format!("{name} {:.0} us", *ns as f64 / 1e3),
                None => format!("{name} does not return"),
            })
            .collect();
        parts.join(", ")
    }
}

pub(super) fn beside(bench: &Bench) -> anyhow::Result<Ending> {
    let way = bench.best_way()?;
    let mut broken = Vec::new();
    for case in CASES {
        let (inside, beside) = one(bench, case, way)?;
        let blocked = beside.blocked();
        bench.report.note(format!(
            "{} ({}): {}",
            case.name,
            if inside { "hangs" } else { "returns" },
            beside.text()
        ));
        bench.report.figure(
            format!("{}: calls that block", case.name),
            blocked.len() as f64,
            "",
        );
        if case.counted_on && !blocked.is_empty() {
            broken.push(format!("{} beside {}", blocked.join(", "), case.name));
        }
    }
    Ok(if broken.is_empty() {
        pass()
    } else {
        fail(format!("blocked: {}", broken.join("; ")))
    })
}

/// Maps a new handle in the place of `old` at an address: what each call took, and the one that did not return.
fn replaced(
    subject: &mut Subject<'_>,
    at: u64,
    old: u64,
) -> anyhow::Result<(Beside, Option<Ticket>)> {
    let bytes = PAGE;
    let mut beside = Beside(Vec::new());
    let mut late = None;
    let mut fresh = 0;
    for (name, op) in [
        ("cuMemUnmap", Op::Unmap { at, bytes }),
        ("cuMemCreate", Op::Create { bytes }),
        (
            "cuMemMap",
            Op::Map {
                at,
                bytes,
                handle: 0,
            },
        ),
        ("cuMemSetAccess", Op::Access { at, bytes }),
        ("cuMemRelease", Op::Release { handle: old }),
    ] {
        let op = match op {
            Op::Map { at, bytes, .. } => Op::Map {
                at,
                bytes,
                handle: fresh,
            },
            other => other,
        };
        let ticket = subject.worker.send("memory", vec![op])?;
        match subject.worker.wait(ticket, RETURNS)? {
            Some(done) => {
                let done = done.first().context("an answer")?;
                if name == "cuMemCreate" {
                    fresh = done.value;
                }
                beside.0.push((name, Some(done.ns)));
            }
            // What comes after it on this thread cannot be asked.
            None => {
                beside.0.push((name, None));
                late = Some(ticket);
                break;
            }
        }
    }
    Ok((beside, late))
}

fn one(bench: &Bench, case: &Case, way: crate::subject::Way) -> anyhow::Result<(bool, Beside)> {
    let name = format!("blocked-{}", case.name.replace([' ', ','], "-"));
    let mut subject = bench.subject(&name, case.wait, way)?;
    let prepared = subject.worker.call(
        "memory",
        vec![
            Op::Reserve { bytes: PAGE },
            Op::Create { bytes: PAGE },
            Op::Alloc { bytes: PAGE },
            Op::AllocHost { bytes: PAGE },
        ],
    )?;
    let value = |at: usize| Ok::<u64, anyhow::Error>(prepared.get(at).context("an answer")?.value);
    let (at, old, device, host) = (value(0)?, value(1)?, value(2)?, value(3)?);
    let bytes = PAGE;
    let map = Op::Map {
        at,
        bytes,
        handle: old,
    };
    let access = Op::Access { at, bytes };
    subject.worker.call("memory", vec![map, access])?;
    subject.worker.call("aside", vec![Op::MemoryFree])?;
    bench.spin(&mut subject, Duration::from_millis(500), 1)?;
    subject.set(true)?;
    let first = if case.lane.is_empty() {
        None
    } else {
        Some(
            subject
                .worker
                .send(case.lane, vec![(case.op)(device, host)])?,
        )
    };
    let inside = match first {
        Some(ticket) => subject.worker.wait(ticket, INSIDE)?.is_none(),
        None => false,
    };
    let (beside, late) = replaced(&mut subject, at, old)?;
    subject.set(false)?;
    for ticket in [late, first.filter(|_| inside)].into_iter().flatten() {
        if subject.worker.wait(ticket, AFTER)?.is_none() {
            bench.report.note(format!(
                "{}: a call did not return after the enable",
                case.name
            ));
        }
    }
    Ok((inside, beside))
}
