//! P6, P6b, P7: memory operations. Which driver calls they are, whether they leak, whether they wait for
//! channels that are disabled, and what they cost a handle.

use crate::bench::{Bench, Ending, fail, pass};
use crate::link::Worker;
use crate::message::{Done, Op, Wait};
use crate::subject::Subject;
use crate::trace::counted;
use anyhow::Context;
use std::time::Duration;

pub(super) const MIB: u64 = 1 << 20;
/// A call that takes longer waits for something.
const BLOCKS: Duration = Duration::from_secs(2);
/// A call that takes longer than this is too slow for a reclaim.
pub(super) const SLOW_NS: u64 = 10_000_000;
/// How often a slow call is tried: once it may have waited for the processor.
const TRIES: u32 = 4;

/// Value of the last of some operations.
fn last(done: &[Done]) -> anyhow::Result<u64> {
    Ok(done.last().context("an empty answer")?.value)
}

pub(super) fn ioctls(bench: &Bench) -> anyhow::Result<Ending> {
    let mut worker = bench.worker("memory", Wait::Spin)?;
    let bytes = 2 * MIB;
    let mut seen = 0;
    let mut step = |worker: &mut Worker, name: &str, op: Op| -> anyhow::Result<u64> {
        worker.trace.read()?;
        let done = worker.one(op)?;
        let lines = worker.trace.read()?;
        seen += lines.len();
        let calls = if lines.is_empty() {
            "no driver call".to_owned()
        } else {
            counted(lines).join(", ")
        };
        bench.report.note(format!("{name}: {calls}"));
        bench.report.micros(name, done.ns);
        Ok(done.value)
    };
    // The first of each kind may set up things that later ones use.
    for round in ["first", "second"] {
        let named = |name: &str| format!("{round} {name}");
        let at = step(
            &mut worker,
            &named("cuMemAddressReserve"),
            Op::Reserve { bytes },
        )?;
        let handle = step(&mut worker, &named("cuMemCreate"), Op::Create { bytes })?;
        step(
            &mut worker,
            &named("cuMemMap"),
            Op::Map { at, bytes, handle },
        )?;
        step(
            &mut worker,
            &named("cuMemSetAccess"),
            Op::Access { at, bytes },
        )?;
        step(&mut worker, &named("cuMemUnmap"), Op::Unmap { at, bytes })?;
        step(&mut worker, &named("cuMemRelease"), Op::Release { handle })?;
        step(
            &mut worker,
            &named("cuMemAddressFree"),
            Op::Unreserve { at, bytes },
        )?;
    }
    if let Some(out) = &bench.options.out {
        std::fs::copy(worker.trace.path(), out.join("rm-trace-memory.jsonl"))?;
    }
    Ok(if seen == 0 {
        fail("no driver call was seen: they do not pass through the library")
    } else {
        pass()
    })
}

/// Handles of 64 MiB that make up a sixteenth of the device, mapped one after the other; the address.
fn fill_up(worker: &mut Worker, handles: u64) -> anyhow::Result<(u64, Vec<u64>)> {
    let bytes = 64 * MIB;
    let at = worker
        .one(Op::Reserve {
            bytes: handles * bytes,
        })?
        .value;
    let mut made = Vec::new();
    for number in 0..handles {
        let handle = worker.one(Op::Create { bytes })?.value;
        let at = at + number * bytes;
        worker.call(
            "main",
            vec![Op::Map { at, bytes, handle }, Op::Access { at, bytes }],
        )?;
        made.push(handle);
    }
    Ok((at, made))
}

/// Bytes that are not zero in samples of such a range.
fn sample(worker: &mut Worker, at: u64, handles: u64) -> anyhow::Result<u64> {
    let mut found = 0;
    for number in 0..handles {
        for offset in [0, 33 * MIB] {
            let at = at + number * 64 * MIB + offset;
            let bytes = 64 << 10;
            found += worker.one(Op::CountNonZero { at, bytes })?.value;
        }
    }
    Ok(found)
}

pub(super) fn zero(bench: &Bench) -> anyhow::Result<Ending> {
    let mut first = bench.bare_worker("first", &bench.options.preload)?;
    let total = first.context(bench.options.ordinal, Wait::Spin)?.value;
    let handles = if bench.options.quick {
        2
    } else {
        (total / 16 / (64 * MIB)).max(2)
    };
    let (at, made) = fill_up(&mut first, handles)?;
    let bytes = handles * 64 * MIB;
    first.one(Op::Fill {
        at,
        bytes,
        byte: 0xa5,
    })?;
    let written = sample(&mut first, at, handles)?;
    anyhow::ensure!(written > 0, "what was written does not read back");
    for handle in made {
        first.one(Op::Release { handle })?;
    }
    first.call(
        "main",
        vec![Op::Unmap { at, bytes }, Op::Unreserve { at, bytes }],
    )?;
    let (at, _) = fill_up(&mut first, handles)?;
    let same = sample(&mut first, at, handles)?;
    let start = crate::clock::now_ns();
    first.one(Op::Fill {
        at,
        bytes,
        byte: 0x5a,
    })?;
    drop(first);
    let mut second = bench.worker("second", Wait::Spin)?;
    let (at, _) = fill_up(&mut second, handles)?;
    let other = sample(&mut second, at, handles)?;
    let report = &bench.report;
    report.figure("memory looked at", bytes as f64 / MIB as f64, "MiB");
    report.figure("bytes not zero, same process", same as f64, "");
    report.figure("bytes not zero, another process", other as f64, "");
    report.micros(
        "until another process had it all",
        crate::clock::now_ns() - start,
    );
    Ok(if same + other > 0 {
        fail("memory that another handle held is handed out as it was")
    } else {
        pass()
    })
}

/// Costs of one way of working, in nanoseconds a handle.
#[derive(Default)]
struct Costs {
    create: Vec<u64>,
    map: Vec<u64>,
    access: Vec<u64>,
    unmap: Vec<u64>,
    release: Vec<u64>,
}

impl Costs {
    fn rows(&mut self) -> [(&'static str, &mut Vec<u64>); 5] {
        [
            ("create", &mut self.create),
            ("map", &mut self.map),
            ("access", &mut self.access),
            ("unmap", &mut self.unmap),
            ("release", &mut self.release),
        ]
    }

    /// Calls that took too long each time, with the shortest time.
    fn slow(&mut self) -> Vec<(&'static str, u64)> {
        let rows = self.rows().into_iter();
        let least = rows.filter_map(|(name, ns)| Some((name, *ns.iter().min()?)));
        least.filter(|(_, ns)| *ns > SLOW_NS).collect()
    }
}

/// One operation on lane `memory`, which must return although channels are disabled.
pub(super) fn unblocked(subject: &mut Subject<'_>, op: Op) -> anyhow::Result<Done> {
    let what = format!("{op:?}");
    let ticket = subject.worker.send("memory", vec![op])?;
    let done = match subject.worker.wait(ticket, BLOCKS)? {
        Some(done) => done,
        None => {
            subject.set(false)?;
            let came = subject.worker.wait(ticket, BLOCKS)?.is_some();
            anyhow::bail!(
                "{what} did not return in {BLOCKS:?}; after enabling it did{}",
                if came { "" } else { " not either" }
            );
        }
    };
    done.first().copied().context("an empty answer")
}

fn cycle(
    subject: &mut Subject<'_>,
    bytes: u64,
    handles: u64,
    batched: bool,
    costs: &mut Costs,
) -> anyhow::Result<()> {
    let all = bytes * handles;
    let base = unblocked(subject, Op::Reserve { bytes: all })?.value;
    let places: Vec<u64> = (0..handles).map(|number| base + number * bytes).collect();
    let mut made = Vec::new();
    for &at in &places {
        let done = unblocked(subject, Op::Create { bytes })?;
        let handle = done.value;
        costs.create.push(done.ns);
        costs
            .map
            .push(unblocked(subject, Op::Map { at, bytes, handle })?.ns);
        if !batched {
            costs
                .access
                .push(unblocked(subject, Op::Access { at, bytes })?.ns);
        }
        made.push(handle);
    }
    if batched {
        let whole = unblocked(
            subject,
            Op::Access {
                at: base,
                bytes: all,
            },
        )?
        .ns;
        costs.access.push(whole / handles);
        let whole = unblocked(
            subject,
            Op::Unmap {
                at: base,
                bytes: all,
            },
        )?
        .ns;
        costs.unmap.push(whole / handles);
    } else {
        for &at in &places {
            costs
                .unmap
                .push(unblocked(subject, Op::Unmap { at, bytes })?.ns);
        }
    }
    for handle in made {
        costs
            .release
            .push(unblocked(subject, Op::Release { handle })?.ns);
    }
    unblocked(
        subject,
        Op::Unreserve {
            at: base,
            bytes: all,
        },
    )?;
    Ok(())
}

pub(super) fn while_disabled(bench: &Bench) -> anyhow::Result<Ending> {
    let mut subject = bench.running("memory", Duration::from_secs(2))?;
    let handles = if bench.options.quick { 4 } else { 16 };
    // The lane's first calls pay for its thread.
    unblocked(&mut subject, Op::MemoryFree)?;
    let mut slow = Vec::new();
    for disabled in [false, true] {
        if disabled {
            subject.set(true)?;
        }
        for mib in [2, 16, 32, 64] {
            for batched in [false, true] {
                let mut costs = Costs::default();
                for _ in 0..TRIES {
                    match cycle(&mut subject, mib * MIB, handles, batched, &mut costs) {
                        Ok(()) => {}
                        Err(error) if disabled => return Ok(fail(format!("{error:#}"))),
                        Err(error) => return Err(error),
                    }
                    if !disabled || costs.slow().is_empty() {
                        break;
                    }
                }
                let head = format!(
                    "{}, {mib} MiB, {}",
                    if disabled { "disabled" } else { "enabled" },
                    if batched { "batched" } else { "single" }
                );
                for (name, costs) in costs.rows() {
                    costs.sort_unstable();
                    if let Some(&median) = costs.get(costs.len() / 2) {
                        bench.report.micros(format!("{head}: {name}"), median);
                    }
                }
                if disabled {
                    let named = |(name, ns)| format!("{head}: {name} takes {} ms", ns / 1_000_000);
                    slow.extend(costs.slow().into_iter().map(named));
                }
            }
        }
    }
    subject.set(false)?;
    let done = subject.worker.call("work", vec![Op::WaitStream])?;
    last(&done)?;
    Ok(if slow.is_empty() {
        pass()
    } else {
        fail(slow.join("; "))
    })
}
