//! P31 and P31s: may one process' work go before another's, without a gate? By making its group real-time, or by the
//! length of the other's time slices.
//!
//! Firmware decides what a real-time group is, and what it does to its neighbours: it may starve them. So the two
//! processes are this probe's own and nobody else's work should be on the GPU. Time slices are asked about in a probe of
//! their own, P31s, whose groups were never real-time: what a group that was does to its neighbours is no measure of slices.

use super::pair::{GAP, Got, KERNELS, Pair, groups, restart, slice};
use crate::bench::{Bench, Ending, SOON, STEP_NS, fail, pass};
use crate::clock::{self, nanos};
use crate::message::Op;
use std::time::Duration;
use tidegate_agent::config::Method;

/// `NVA06C_CTRL_CMD_MAKE_REALTIME` {real time}, from the kernel's `ctrla06c.h`.
const MAKE_REALTIME: u32 = 0xa06c_0110;
/// What the victim has to do: more than all that is measured beside it takes.
const WORK: Duration = Duration::from_secs(40);
/// They take half a second; a group that never gets its turn is not waited for longer.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn first_come(bench: &Bench) -> anyhow::Result<Ending> {
    let mut pair = Pair::new(bench, Method::Disable)?;
    pair.sparse(GAP)?;
    let alone = pair.sparse(GAP)?;
    pair.say("alone", &alone);
    pair.busy(WORK)?;
    let shared = pair.sparse(GAP)?;
    pair.say("beside a saturating process", &shared);
    let realtime = (MAKE_REALTIME, "MAKE_REALTIME");
    let set = |pair: &mut Pair<'_>, on: u8| {
        groups(&mut pair.first, realtime, &[on])?;
        restart(&mut pair.first)
    };
    if let Err(error) = set(&mut pair, 1) {
        bench.report.note(format!("MAKE_REALTIME: {error:#}"));
    } else {
        let real = pair.sparse_within(KERNELS, GAP, PATIENCE)?;
        let goes_first = |real: &Got| real.longest < shared.p50 && real.other > 50.0;
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
        set(&mut pair, 0)?;
        let after = pair.sparse(GAP)?;
        pair.say("no longer real-time", &after);
        let undone = after.other > shared.other / 2.0 && after.p50 > shared.p50 / 2;
        bench
            .report
            .guess("what makes a group real-time can be undone", undone);
    }
    Ok(pair.unwell()?.map_or_else(pass, fail))
}

/// The victim's time slices, in microseconds; the last is what the driver gives a group by itself.
const SLICES: [u64; 4] = [100, 200, 500, 2_048];
/// Time slices of two busy processes, and how long each gets to show its share.
const SHARES: [(u64, u64); 2] = [(1_000, 1_000), (1_000, 3_000)];
const WINDOW: Duration = Duration::from_secs(1);
/// How far from what its slice says the second's share may be to count as that, in percent.
const OFF: f64 = 10.0;

pub(super) fn slices(bench: &Bench) -> anyhow::Result<Ending> {
    let mut pair = Pair::new(bench, Method::Disable)?;
    pair.sparse(GAP)?;
    let alone = pair.sparse(GAP)?;
    pair.say("alone", &alone);
    pair.busy(WORK)?;
    let shared = pair.sparse(GAP)?;
    pair.say("slices as the driver sets them", &shared);
    let mut waits = Vec::new();
    for us in SLICES {
        slice(&mut pair.victim.worker, us)?;
        let mut got = pair.sparse(GAP)?;
        pair.say(&format!("the other's slices of {us} us"), &got);
        match restart(&mut pair.victim.worker) {
            Ok(()) => {
                got = pair.sparse(GAP)?;
                pair.say(&format!("the other's slices of {us} us, restarted"), &got);
            }
            Err(error) => bench.report.note(format!("RESTART_RUNLIST: {error:#}")),
        }
        waits.push(got.p50);
    }
    if let [short, .., long] = waits[..] {
        bench.report.guess(
            "a shorter time slice of the process that always has work makes a neighbour's kernel wait less",
            short < long,
        );
    }
    shares(bench, &mut pair)?;
    Ok(pair.unwell()?.map_or_else(pass, fail))
}

/// What two processes that always have work get, by the lengths of their slices.
fn shares(bench: &Bench, pair: &mut Pair<'_>) -> anyhow::Result<()> {
    let steps = nanos(WORK) / STEP_NS;
    let work = Op::Steps {
        steps,
        step_ns: STEP_NS,
        blocks: super::pair::FULL,
    };
    let from = pair.first.progress()?;
    pair.first.call("work", vec![work])?;
    pair.first.moved(from, SOON)?;
    let mut kept = true;
    for (first, second) in SHARES {
        slice(&mut pair.first, first)?;
        slice(&mut pair.victim.worker, second)?;
        for restarted in [false, true] {
            let mut name = format!("slices of {first} and {second} us: the second's share");
            if restarted {
                if let Err(error) = restart(&mut pair.victim.worker) {
                    bench.report.note(format!("RESTART_RUNLIST: {error:#}"));
                    continue;
                }
                name += ", restarted";
            }
            let before = (pair.first.progress()?, pair.victim.worker.progress()?);
            clock::pause(WINDOW);
            let after = (pair.first.progress()?, pair.victim.worker.progress()?);
            let (one, other) = (after.0 - before.0, after.1 - before.1);
            let share = other as f64 / (one + other).max(1) as f64 * 100.0;
            bench.report.figure(name, share, "%");
            if restarted {
                let due = second as f64 / (first + second) as f64 * 100.0;
                kept &= (share - due).abs() < OFF;
            }
        }
    }
    bench.report.guess(
        "two processes that always have work share a GPU by the lengths of their time slices",
        kept,
    );
    Ok(())
}
