//! P25: what is a context made of, by how many connections it may have and how many contexts there are?
//!
//! From the library's record of the worker's driver calls: groups, channels, the objects they carry, the order,
//! and who sets time slices when.

use crate::bench::{Bench, Ending, fail, pass};
use crate::link::Preload;
use crate::message::{Op, Wait};
use crate::trace::Trace;
use serde::Serialize;
use std::collections::BTreeMap;
use tidegate_abi::class::Engine;

/// Name of the file with the figures of each case, in the directory for results.
const FILE: &str = "contexts.json";
/// `CUDA_DEVICE_MAX_CONNECTIONS`, and contexts in the process. The first is what every program gets.
const CASES: &[(u32, u32)] = &[(8, 1), (1, 1), (32, 1), (8, 2), (8, 8)];

#[derive(Clone, Debug, Serialize)]
struct Made {
    connections: u32,
    contexts: u32,
    channels: usize,
    groups: Vec<String>,
    /// Objects of a channel in the order in which they are made, and how many channels carry them so.
    objects: BTreeMap<String, usize>,
    /// Time slices set, in microseconds, and how often.
    timeslices: BTreeMap<u64, usize>,
    timeslice_after_last_channel: Option<bool>,
    asks_version: bool,
    driver_calls: usize,
}

fn made(trace: &Trace, (connections, contexts): (u32, u32)) -> Made {
    let mut timeslices = BTreeMap::new();
    for us in trace.timeslices() {
        *timeslices.entry(us).or_insert(0) += 1;
    }
    Made {
        connections,
        contexts,
        channels: trace.channels().len(),
        groups: trace.shape("").tsgs,
        objects: trace.carried(),
        timeslice_after_last_channel: trace.timeslices_come_last(),
        asks_version: trace.asks_version(),
        timeslices,
        driver_calls: trace.lines().len(),
    }
}

pub(super) fn contexts(bench: &Bench) -> anyhow::Result<Ending> {
    let mut all = Vec::new();
    for &(connections, contexts) in CASES {
        let preload = Preload {
            variables: vec![("CUDA_DEVICE_MAX_CONNECTIONS", Some(connections.to_string()))],
            ..bench.options.preload.clone()
        };
        let name = format!("made-{connections}-{contexts}");
        let mut worker = bench.bare_worker(&name, &preload)?;
        worker.context(bench.options.ordinal, Wait::Spin)?;
        if contexts > 1 {
            worker.one(Op::Contexts { more: contexts - 1 })?;
        }
        worker.trace.read()?;
        let one = made(&worker.trace, (connections, contexts));
        let head = format!("{connections} connections, {contexts} contexts");
        let report = &bench.report;
        report.figure(format!("{head}: channels"), one.channels as f64, "");
        report.note(format!(
            "{head}: groups {}; objects {}; time slices {:?} us",
            one.groups.join(", "),
            one.objects
                .iter()
                .map(|(what, count)| format!("{count} x ({what})"))
                .collect::<Vec<_>>()
                .join(", "),
            one.timeslices,
        ));
        let engines = worker.trace.channels();
        if engines
            .iter()
            .any(|channel| channel.engine == Engine::Unknown)
        {
            report.note(format!("{head}: the engine of some channels is not known"));
        }
        all.push(one);
    }
    if let Some(out) = &bench.options.out {
        let text = format!("{}\n", serde_json::to_string_pretty(&all)?);
        std::fs::write(out.join(FILE), text)?;
    }
    judge(bench, &all);
    Ok(match all.iter().find(|one| one.channels == 0) {
        Some(one) => fail(format!(
            "no channel was seen with {} connections and {} contexts",
            one.connections, one.contexts
        )),
        None => pass(),
    })
}

fn judge(bench: &Bench, all: &[Made]) {
    let of = |case: (u32, u32)| {
        let is = |one: &&Made| (one.connections, one.contexts) == case;
        all.iter().find(is)
    };
    let (Some(usual), Some(many), Some(two)) = (of((8, 1)), of((32, 1)), of((8, 2))) else {
        return;
    };
    let report = &bench.report;
    report.guess(
        "a context has a graphics group of 8 channels and three copy groups of as many as there are connections",
        usual.channels == 32
            && usual
                .groups
                .iter()
                .filter(|group| *group == "graphics 8")
                .count()
                == 1,
    );
    report.guess(
        "a context has four channels a connection",
        many.channels == 128,
    );
    report.guess(
        "every further context has as many channels again",
        two.channels == 2 * usual.channels,
    );
    let graphics: Vec<&String> = usual
        .objects
        .keys()
        .filter(|what| what.contains("compute"))
        .collect();
    report.guess(
        "a channel of the graphics group carries a compute object and then a copy object",
        !graphics.is_empty()
            && graphics.iter().all(|what| {
                let copy = what.find("copy");
                copy.is_some_and(|copy| what.find("compute").is_some_and(|at| at < copy))
            }),
    );
    report.guess(
        "the driver library sets a group's time slice itself, at the end of a context's making",
        usual.timeslice_after_last_channel == Some(true),
    );
    report.guess(
        "the driver library never asks the driver's version by CHECK_VERSION_STR",
        !usual.asks_version,
    );
}
