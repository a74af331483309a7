//! P24: which driver calls wait while the channels are disabled, and what do they hold meanwhile?
//!
//! One thread makes a call of the table in [`crate::calls`]; if it does not return, a second thread
//! tries what a reclaim is made of, and a third what any other thread of a program does. What the first
//! holds, the second waits for. The library marks calls that may hold the driver's locks
//! (`interposer/src/activity/hold.rs`), so that a reclaim is not tried beside them: a call that holds and
//! is not marked would make a reclaim hang, a marked one that holds nothing costs patience only.

use crate::bench::{Bench, Ending, STEP_NS, fail, pass, skip};
use crate::calls::{self, Kind, Row};
use crate::clock::nanos;
use crate::message::{Op, Wait};
use crate::subject::{Subject, Way};
use anyhow::Context;
use std::fmt::Write as _;
use std::time::Duration;

/// Functions that the library marks while a thread is inside, of those in the table: by a mark, or, where
/// they put work on a stream, by its counts of launches entered and returned.
pub const MARKED: &[&str] = &[
    "cuCtxDestroy_v2",
    "cuCtxSetLimit",
    "cuCtxSynchronize",
    "cuDevicePrimaryCtxRelease_v2",
    "cuEventDestroy_v2",
    "cuGraphExecDestroy",
    "cuGraphLaunch",
    "cuGraphUpload",
    "cuLaunchCooperativeKernel",
    "cuLaunchHostFunc",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuLibraryLoadData",
    "cuLibraryUnload",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemHostUnregister",
    "cuMemcpy",
    "cuMemcpyAsync",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoD_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyHtoD_v2",
    "cuMemsetD16_v2",
    "cuMemsetD2D8Async",
    "cuMemsetD2D8_v2",
    "cuMemsetD32Async",
    "cuMemsetD32_v2",
    "cuMemsetD8Async",
    "cuMemsetD8_v2",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuStreamDestroy_v2",
    "cuStreamWriteValue32_v2",
];

/// Name of the file with the table, in the directory for results.
const FILE: &str = "calls-while-disabled.csv";
const PAGE: u64 = 2 << 20;
/// Everything has to come back after the enable.
const AFTER: Duration = Duration::from_secs(10);

/// How one call went.
#[derive(Debug)]
enum Went {
    /// It is not there, or not for this device.
    Absent(String),
    Returned(u64),
    /// It did not return; what of the other threads did not either.
    Waited(Vec<&'static str>),
}

/// How long is waited for what.
struct Patience {
    /// Work queued before the disable.
    work: Duration,
    /// After this a call counts as waiting.
    call: Duration,
    /// What of another thread does not return within this is held up.
    beside: Duration,
}

pub(super) fn table(bench: &Bench) -> anyhow::Result<Ending> {
    let way = bench.best_way()?;
    let patience = if bench.options.quick {
        Patience {
            work: Duration::from_millis(20),
            call: Duration::from_millis(150),
            beside: Duration::from_millis(400),
        }
    } else {
        Patience {
            work: Duration::from_millis(50),
            call: Duration::from_millis(100),
            beside: Duration::from_millis(500),
        }
    };
    let mut rig: Option<Rig<'_>> = None;
    let (mut all, mut file) = (
        Vec::new(),
        "call,kind,marked,went,microseconds,held\n".to_owned(),
    );
    let rows = calls::ROWS
        .iter()
        .step_by(if bench.options.quick { QUICK } else { 1 });
    for (at, row) in rows.enumerate() {
        let mut one = match rig.take() {
            Some(rig) => rig,
            None => Rig::new(bench, way, at)?,
        };
        let (went, sound) = one.try_row(bench, row, &patience)?;
        if sound {
            rig = Some(one);
        }
        say(bench, row, &went, &mut file);
        all.push((row, went));
    }
    if let Some(out) = &bench.options.out {
        std::fs::write(out.join(FILE), file)?;
    }
    Ok(judge(bench, &all))
}

/// Of the table every how manyth row in a quick run.
const QUICK: usize = 4;

fn is_marked(row: &Row) -> bool {
    MARKED.contains(&row.symbol())
}

fn say(bench: &Bench, row: &Row, went: &Went, file: &mut String) {
    let (word, us, held) = match went {
        Went::Absent(why) => (format!("not modelled here ({why})"), 0.0, String::new()),
        Went::Returned(ns) => ("returned".to_owned(), *ns as f64 / 1e3, String::new()),
        Went::Waited(held) => ("waited".to_owned(), 0.0, held.join(" ")),
    };
    let marked = is_marked(row);
    let _ = writeln!(
        file,
        "\"{}\",{:?},{marked},{word},{us:.1},{held}",
        row.name, row.kind
    );
    let text = match went {
        Went::Absent(_) => word,
        Went::Returned(_) => format!("returned in {us:.0} us"),
        Went::Waited(held) if held.is_empty() => "waits, holds nothing up".to_owned(),
        Went::Waited(_) => format!("waits, holds up {held}"),
    };
    let mark = if marked { " (marked)" } else { "" };
    bench.report.note(format!("{}{mark}: {text}", row.name));
}

fn judge(bench: &Bench, all: &[(&Row, Went)]) -> Ending {
    let names = |pick: &dyn Fn(&Row, &Went) -> bool| -> Vec<&str> {
        let picked = all.iter().filter(|(row, went)| pick(row, went));
        picked.map(|(row, _)| row.name).collect()
    };
    let waits = |went: &Went| matches!(went, Went::Waited(_));
    let holds = |went: &Went| matches!(went, Went::Waited(held) if !held.is_empty());
    let absent = names(&|_, went| matches!(went, Went::Absent(_)));
    let waiting = names(&|_, went| waits(went));
    let holding = names(&|_, went| holds(went));
    let report = &bench.report;
    report.figure("calls made", (all.len() - absent.len()) as f64, "");
    report.figure("calls not modelled here", absent.len() as f64, "");
    report.figure("calls that wait", waiting.len() as f64, "");
    report.figure("calls that hold others up", holding.len() as f64, "");
    if all.len() == absent.len() {
        return skip("none of the calls is there");
    }
    let tried = |kind: Kind| {
        let there =
            |(row, went): &&(&Row, Went)| row.kind == kind && !matches!(went, Went::Absent(_));
        all.iter().any(|one| there(&one))
    };
    for (kind, guess, wrong) in [
        (
            Kind::Waiter,
            "who waits for a stream, an event or a context holds nothing that another thread needs",
            names(&|row, went| row.kind == Kind::Waiter && holds(went)),
        ),
        (
            Kind::Vmm,
            "create, map, set-access, unmap and release never wait while no channel runs",
            names(&|row, went| row.kind == Kind::Vmm && waits(went)),
        ),
        (
            Kind::Launch,
            "a launch into a queue with room returns while no channel runs",
            names(&|row, went| row.kind == Kind::Launch && waits(went)),
        ),
    ] {
        if tried(kind) {
            report.guess(guess, wrong.is_empty());
        }
    }
    let careful = names(&|row, went| {
        is_marked(row)
            && row.kind != Kind::Launch
            && !holds(went)
            && !matches!(went, Went::Absent(_))
    });
    if !careful.is_empty() {
        report.note(format!(
            "marked by the library and holding nothing up here: {}",
            careful.join("; ")
        ));
    }
    let lacking = names(&|row, went| !is_marked(row) && holds(went));
    if lacking.is_empty() {
        pass()
    } else {
        fail(format!(
            "hold others up while they wait, and the library does not mark them: {}",
            lacking.join("; ")
        ))
    }
}

/// A subject with a scene, and a mapping that the second thread takes apart and makes again.
struct Rig<'a> {
    subject: Subject<'a>,
    at: u64,
    handle: u64,
}

impl<'a> Rig<'a> {
    fn new(bench: &'a Bench, way: Way, number: usize) -> anyhow::Result<Self> {
        let mut subject = bench.subject(&format!("calls-{number}"), Wait::Spin, way)?;
        let made = subject.worker.call(
            "memory",
            vec![Op::Reserve { bytes: PAGE }, Op::Create { bytes: PAGE }],
        )?;
        let value = |at: usize| made.get(at).map(|done| done.value).context("an answer");
        let (at, handle) = (value(0)?, value(1)?);
        let bytes = PAGE;
        subject.worker.call(
            "memory",
            vec![Op::Map { at, bytes, handle }, Op::Access { at, bytes }],
        )?;
        for lane in ["asks", "launches"] {
            // A lane's first call pays for its thread and stream.
            subject
                .worker
                .call(lane, vec![Op::Spin { ns: 0 }, Op::WaitStream])?;
        }
        subject.worker.call("call", vec![Op::Scene])?;
        Ok(Self {
            subject,
            at,
            handle,
        })
    }

    /// One row; whether the worker is fit for the next.
    fn try_row(
        &mut self,
        bench: &Bench,
        row: &Row,
        patience: &Patience,
    ) -> anyhow::Result<(Went, bool)> {
        let steps = nanos(patience.work) / STEP_NS;
        let name = row.name.to_owned();
        let prepare = Op::Prepare {
            row: name.clone(),
            steps,
            step_ns: STEP_NS,
        };
        let worker = &mut self.subject.worker;
        if let Err(error) = worker.call("call", vec![prepare]) {
            return Ok((Went::Absent(format!("{error:#}")), false));
        }
        self.subject.launched += steps;
        self.subject.set(true)?;
        let ticket = self
            .subject
            .worker
            .send("call", vec![Op::Make { row: name }])?;
        let went = match self.subject.worker.wait(ticket, patience.call) {
            Err(error) => Went::Absent(format!("{error:#}")),
            Ok(Some(done)) => Went::Returned(done.first().map_or(0, |done| done.ns)),
            Ok(None) => Went::Waited(Vec::new()),
        };
        let progress = self.subject.worker.progress()?;
        if progress >= self.subject.launched {
            // Nothing was left to wait for: said, since a slow machine may be the cause.
            bench.report.note(format!(
                "{}: the work had ended before the channels were disabled",
                row.name
            ));
        }
        let Went::Waited(_) = went else {
            self.subject.set(false)?;
            // A row that broke may leave its stream broken too.
            let drained = self.subject.worker.call("call", vec![Op::WaitContext]);
            let sound = drained.is_ok() && !matches!(went, Went::Absent(_));
            return Ok((went, sound));
        };
        let (held, late) = self.beside(patience.beside)?;
        self.subject.set(false)?;
        let mut sound = held.is_empty();
        for ticket in late.into_iter().chain([ticket]) {
            if !matches!(self.subject.worker.wait(ticket, AFTER), Ok(Some(_))) {
                bench.report.note(format!(
                    "{}: it or a call beside it did not return after the enable",
                    row.name
                ));
                sound = false;
            }
        }
        sound &= self
            .subject
            .worker
            .call("call", vec![Op::WaitContext])
            .is_ok();
        Ok((Went::Waited(held), sound))
    }

    /// What other threads can do meanwhile: names of what does not return, and its tickets.
    fn beside(
        &mut self,
        limit: Duration,
    ) -> anyhow::Result<(Vec<&'static str>, Vec<crate::link::Ticket>)> {
        let (at, bytes) = (self.at, PAGE);
        let (mut held, mut late) = (Vec::new(), Vec::new());
        let worker = &mut self.subject.worker;
        let mut fresh = 0;
        for step in ["unmap", "create", "map", "access", "release"] {
            let op = match step {
                "unmap" => Op::Unmap { at, bytes },
                "create" => Op::Create { bytes },
                "map" => Op::Map {
                    at,
                    bytes,
                    handle: fresh,
                },
                "access" => Op::Access { at, bytes },
                _ => Op::Release {
                    handle: self.handle,
                },
            };
            let ticket = worker.send("memory", vec![op])?;
            match worker.wait(ticket, limit)? {
                Some(done) if step == "create" => {
                    fresh = done.first().context("an answer")?.value;
                }
                Some(_) => {}
                None => {
                    // What comes after it on this thread cannot be asked.
                    held.push(step);
                    late.push(ticket);
                    break;
                }
            }
        }
        if held.is_empty() {
            self.handle = fresh;
        }
        for (lane, name, op) in [
            ("asks", "query", Op::MemoryFree),
            ("launches", "launch", Op::Spin { ns: 0 }),
        ] {
            let ticket = worker.send(lane, vec![op])?;
            if worker.wait(ticket, limit)?.is_none() {
                held.push(name);
                late.push(ticket);
            }
        }
        Ok((held, late))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_marked_calls_are_those_that_the_library_marks() {
        // What of the library's table leads to `hold::around` or to its counts of launches.
        let table = include_str!("../../../../interposer/src/hook/table.rs");
        let marks = |line: &str| {
            let how = line.trim_start();
            how.starts_with("Hold ")
                || how.starts_with("ToHost[")
                || how.starts_with("Launch")
                || how.starts_with("Sync[Proof::Context]")
                || how.contains(", held] ")
                || how.starts_with("Memory[answers::alloc, (ROW")
                || how.starts_with("Memory[answers::free, (ROW")
        };
        let mut marked: Vec<&str> = table
            .lines()
            .filter(|line| marks(line))
            .filter_map(|line| {
                line.split_once(" fn ")?
                    .1
                    .split_once('(')
                    .map(|(name, _)| name)
            })
            .filter(|name| calls::ROWS.iter().any(|row| row.symbol() == *name))
            .collect();
        marked.sort_unstable();
        assert_eq!(marked, MARKED);
    }
}
