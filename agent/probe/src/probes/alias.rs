//! P17: memory at two addresses, as a trainer's arena has it. Both show the same, and while the process' channels are
//! disabled it is taken from both: what is read and written there afterwards is the quarantine page's alone.

use super::memory::{MIB, SLOW_NS, unblocked};
use crate::bench::{Bench, Ending, fail, pass};
use crate::message::Op;
use crate::subject::Subject;
use std::time::Duration;

/// An arena's block.
const BLOCK: u64 = 2 * MIB;
/// The kernel whose channels are disabled in its middle.
const KERNEL: Duration = Duration::from_millis(500);
const ONES: u8 = 0xff;

/// Costs of one call, in nanoseconds, by its name.
type Costs = Vec<(&'static str, Vec<u64>)>;

fn noted(costs: &mut Costs, name: &'static str, ns: u64) {
    match costs.iter_mut().find(|(known, _)| *known == name) {
        Some((_, all)) => all.push(ns),
        None => costs.push((name, vec![ns])),
    }
}

/// Some blocks side by side at one address and at another.
struct Pair {
    places: [u64; 2],
    blocks: u64,
}

impl Pair {
    const fn bytes(&self) -> u64 {
        self.blocks * BLOCK
    }

    /// Maps a block's memory at one of its addresses.
    fn map(
        &self,
        subject: &mut Subject<'_>,
        costs: &mut Costs,
        (block, way): (u64, usize),
        handle: u64,
    ) -> anyhow::Result<()> {
        let at = self.places[way] + block * BLOCK;
        let bytes = BLOCK;
        let map = unblocked(subject, Op::Map { at, bytes, handle })?.ns;
        let access = unblocked(subject, Op::Access { at, bytes })?.ns;
        noted(costs, ["first: map", "second: map"][way], map);
        noted(costs, ["first: access", "second: access"][way], access);
        Ok(())
    }

    /// Puts other memory under all of both addresses: one handle for all blocks, or each one of its own.
    fn replace(
        &self,
        subject: &mut Subject<'_>,
        costs: &mut Costs,
        handles: &[u64],
    ) -> anyhow::Result<()> {
        for block in 0..self.blocks {
            let handle = handles[usize::try_from(block)? % handles.len()];
            for way in [0, 1] {
                let at = self.places[way] + block * BLOCK;
                let unmap = unblocked(subject, Op::Unmap { at, bytes: BLOCK })?.ns;
                noted(costs, ["first: unmap", "second: unmap"][way], unmap);
                self.map(subject, costs, (block, way), handle)?;
            }
        }
        Ok(())
    }
}

fn created(subject: &mut Subject<'_>, blocks: u64) -> anyhow::Result<Vec<u64>> {
    (0..blocks)
        .map(|_| Ok(unblocked(subject, Op::Create { bytes: BLOCK })?.value))
        .collect()
}

fn fill(subject: &mut Subject<'_>, at: u64, bytes: u64, byte: u8) -> anyhow::Result<()> {
    subject.worker.one(Op::Fill { at, bytes, byte }).map(|_| ())
}

/// Bytes there that are not zero.
fn ones(subject: &mut Subject<'_>, at: u64, bytes: u64) -> anyhow::Result<u64> {
    Ok(subject.worker.one(Op::CountNonZero { at, bytes })?.value)
}

/// Memory of one's own, mapped once.
fn alone(subject: &mut Subject<'_>, handles: &[u64]) -> anyhow::Result<u64> {
    let bytes = handles.len() as u64 * BLOCK;
    let base = unblocked(subject, Op::Reserve { bytes })?.value;
    for (&handle, number) in handles.iter().zip(0..) {
        let at = base + number * BLOCK;
        unblocked(
            subject,
            Op::Map {
                at,
                bytes: BLOCK,
                handle,
            },
        )?;
    }
    unblocked(subject, Op::Access { at: base, bytes })?;
    Ok(base)
}

/// Does that in the middle of a kernel whose channels are disabled meanwhile.
fn disabled(
    bench: &Bench,
    subject: &mut Subject<'_>,
    act: impl FnOnce(&mut Subject<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    bench.spin(subject, KERNEL, 1)?;
    subject.set(true)?;
    act(subject)?;
    subject.set(false)?;
    subject
        .worker
        .call("work", vec![Op::WaitStream])
        .map(|_| ())
}

/// Two ranges of addresses for the same blocks.
fn reserved(subject: &mut Subject<'_>, blocks: u64) -> anyhow::Result<Pair> {
    let mut places = [0; 2];
    for place in &mut places {
        *place = unblocked(
            subject,
            Op::Reserve {
                bytes: blocks * BLOCK,
            },
        )?
        .value;
    }
    Ok(Pair { places, blocks })
}

/// Reports what each call cost, and names those that are too slow.
fn slow(bench: &Bench, costs: Costs) -> Vec<String> {
    let mut slow = Vec::new();
    for (name, mut ns) in costs {
        ns.sort_unstable();
        let (least, median) = (ns[0], ns[ns.len() / 2]);
        bench
            .report
            .micros(format!("disabled, 2 MiB, {name}"), median);
        if least > SLOW_NS {
            slow.push(format!("{name} takes {} ms", least / 1_000_000));
        }
    }
    slow
}

pub(super) fn second_addresses(bench: &Bench) -> anyhow::Result<Ending> {
    let mut subject = bench.running("alias", KERNEL)?;
    let subject = &mut subject;
    let blocks = if bench.options.quick { 2 } else { 16 };
    // The lane's first call pays for its thread.
    unblocked(subject, Op::MemoryFree)?;
    let mut costs = Costs::new();
    let pair = reserved(subject, blocks)?;
    let all = pair.bytes();
    let own = created(subject, blocks)?;
    for (&handle, block) in own.iter().zip(0..) {
        for way in [0, 1] {
            pair.map(subject, &mut Costs::new(), (block, way), handle)?;
        }
    }
    let quarantine = created(subject, 1)?;
    let page = alone(subject, &quarantine)?;
    fill(subject, page, BLOCK, 0)?;
    let mut wrong = Vec::new();
    let mut is = |what: &str, found: u64, wanted: u64| {
        if found != wanted {
            wrong.push(format!("{what}: {found} of {wanted} bytes"));
        }
    };

    let [first, second] = pair.places;
    fill(subject, first, all, ONES)?;
    is(
        "written at the first address, read at the second",
        ones(subject, second, all)?,
        all,
    );
    disabled(bench, subject, |subject| {
        pair.replace(subject, &mut costs, &quarantine)?;
        for &handle in &own {
            unblocked(subject, Op::Release { handle })?;
        }
        Ok(())
    })?;
    // What was released may be here by now.
    let others = created(subject, blocks)?;
    let other = alone(subject, &others)?;
    fill(subject, other, all, 0)?;
    for (name, at) in [("first", first), ("second", second)] {
        let what = format!("taken, and still read at the {name} address");
        is(&what, ones(subject, at, all)?, 0);
    }
    for (name, at) in [("first", first), ("second", second)] {
        fill(subject, at, all, ONES)?;
        let what = format!(
            "written at the {name} address after it was taken, and found in others' memory"
        );
        is(&what, ones(subject, other, all)?, 0);
        is("the quarantine page", ones(subject, page, BLOCK)?, BLOCK);
        fill(subject, page, BLOCK, 0)?;
    }
    let back = created(subject, blocks)?;
    disabled(bench, subject, |subject| {
        pair.replace(subject, &mut costs, &back)
    })?;
    fill(subject, first, all, 0)?;
    fill(subject, second, all, ONES)?;
    is(
        "back, written at the second address and read at the first",
        ones(subject, first, all)?,
        all,
    );
    is(
        "back, and found in the quarantine page",
        ones(subject, page, BLOCK)?,
        0,
    );

    wrong.extend(slow(bench, costs));
    Ok(if wrong.is_empty() {
        pass()
    } else {
        fail(wrong.join("; "))
    })
}
