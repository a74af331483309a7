//! `scripts/bench WHAT...`: what Tidegate costs, as ratios and medians of one run.
//!
//! * `hook`: nanoseconds of a launch through the library against the same launch without it, on a
//!   driver that does nothing, for one thread and for eight. The process is busy throughout, as in
//!   the middle of a burst, so this is the price every launch pays. And instructions, by callgrind.
//! * `edge`: from just before an online launch to the entry of the last disable ioctl (stamped in
//!   the calling thread), and to the return of the last disable, on 1 and on 8 virtual GPUs; and
//!   the return with the driver's locks as they are, with patch A and with patch B; and the slower
//!   lane of a process without a page, and an agent to whom strangers connect ten thousand times a second.
//!   The first also beside two programs that use all of two processors, and beside the floor: a thread that is
//!   woken by nothing but a futex, and two in a row. With `--entry` that is all. And what the three kinds of locks
//!   add for each millisecond a disable takes. With `--attack KIND`: what strangers of that kind cost an honest job's
//!   preemption, and nothing else. With `--jobs N`: so many offline jobs on each of 8 GPUs, and nothing else.
//! * `attach`: from the start of the first context to the agent's welcome, and what the library
//!   adds to its host process.
//! * `agent`: its memory, its processor time while nothing happens, its start with 8 virtual GPUs, and what
//!   `--restarts` restarts under load cost the programs on the node.
//! * `recovery`: how soon the agent has forgotten a killed program, and how soon the next agent has enabled 256 channels
//!   that a killed one left disabled.
//! * `demo`: the demo three times on its own trace and on each `--trace`: medians of what users wait
//!   and of what offline gets, against the bars they have to clear. Takes ten minutes and more.
//! * `headroom`: the memory that online keeps mapped ahead over hours of each `--trace`, against the
//!   best constant headroom with the same rate of pressure; in virtual time.
//! * `selection`: tokens lost per reclaim by the policy's choice against first-in-first-out, over
//!   sizes, rates, layouts and handles, in a pool worn by each `--trace`; in virtual time.
//! * `reclaim`: what choosing stripes takes, what the library takes to take and give back a handle (and
//!   with the costs of an A100's driver), a reclaim in the middle of a prefill against waiting for the
//!   end of a layer or an iteration, and a reservation inside the headroom.
//! * `arena`: what the books of a trainer's memory take for a small tensor and for a layer's weights, and
//!   the driver calls and bytes that small ones cost.
//! * `fair`: what offline jobs that take turns get of a GPU, by weights and processes, and what that costs of the
//!   harvest and online; seven runs of `--seconds`. `cases` of the file has them one by one.
//! * `lease`: what a plan, a record that is there and a prediction take, a step of a node with leases against one
//!   without, and iterations and units of a trainer beside online that one core replays in a second.
//! * `replay`: nanoseconds of a simulated iteration on one core, and seconds of the paper's Figure 10
//!   (ten scenarios, eight policies, three seeds) on all cores, where its traces are beside the checkout.
//! * `replay-demo`: the demo, `--runs` times, against replay of the same requests: preemptions and
//!   offline tokens of both, and how far they are apart. Two minutes a run.
//!
//! Without a name, `hook`, `edge` and `attach` run. Figures are printed as a table and, with
//! `--json FILE`, written under the keys named there.

mod agent;
mod arena;
mod attach;
mod contexts;
mod demo;
mod edge;
mod fair;
mod floor;
mod headroom;
mod hook;
mod lease;
mod mapping;
mod methods;
mod reclaim;
mod recovery;
mod replay;
mod replay_demo;
mod row;
mod selection;
mod strangers;
mod traces;

use crate::row::Row;
use clap::{Parser, ValueEnum};
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::process::ExitCode;
use tidegate_replay::input::InputError;

/// Measures what Tidegate costs.
#[derive(Debug, Parser)]
#[command(name = "bench")]
struct Args {
    /// What to measure; hook, edge and attach if none is named.
    #[arg(value_enum)]
    what: Vec<What>,
    /// Writes the figures to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Busy edges measured for each row of `edge`.
    #[arg(long, default_value_t = 400)]
    edges: u32,
    /// For `edge`: an honest job's preemption beside strangers of this kind against the same alone, and nothing else.
    #[arg(long = "attack", value_name = "KIND", num_args = 1.., value_parser = clap::builder::PossibleValuesParser::new(strangers::names()))]
    attacks: Vec<String>,
    /// For `edge`: only from the doorbell to the entry of the last disable, and the floors.
    #[arg(long)]
    entry: bool,
    /// For `edge`: so many offline jobs on each of 8 GPUs, and nothing else.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16))]
    jobs: Option<u16>,
    /// Restarts measured for `agent`.
    #[arg(long, default_value_t = 100)]
    restarts: usize,
    /// Programs killed for `recovery`.
    #[arg(long, default_value_t = 50)]
    kills: usize,
    /// Rounds of native and preloaded runs for `hook`.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Traces for `headroom` and `selection`, instead of the built-in generators, and for `demo`,
    /// besides its own.
    #[arg(long = "trace", value_name = "FILE", num_args = 1..)]
    traces: Vec<PathBuf>,
    /// Runs of the demo for `replay-demo`.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100))]
    runs: u64,
    /// Length of each run of `demo` and `replay-demo` (by default 30) and `fair` (60), seconds.
    #[arg(long, value_parser = clap::value_parser!(u64).range(6..=3600))]
    seconds: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    Hook,
    Edge,
    Attach,
    Agent,
    Recovery,
    Demo,
    Headroom,
    Selection,
    Reclaim,
    Arena,
    Fair,
    Lease,
    Replay,
    ReplayDemo,
}

/// Measures something over traces.
type OverTraces = fn(&[PathBuf]) -> Result<Vec<Row>, InputError>;

const OVER_TRACES: [(What, OverTraces); 2] = [
    (What::Headroom, headroom::measure),
    (What::Selection, selection::measure),
];

/// Puts `value` at the dotted `key`.
fn insert(into: &mut Map<String, Value>, key: &str, value: f64) {
    match key.split_once('.') {
        Some((head, rest)) => {
            let inner = into
                .entry(head)
                .or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(inner) = inner {
                insert(inner, rest, value);
            }
        }
        None => {
            into.insert(
                key.to_owned(),
                Value::from((value * 1000.0).round() / 1000.0),
            );
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let wants = |what| args.what.is_empty() || args.what.contains(&what);
    let mut rows = Vec::new();
    if wants(What::Hook) {
        rows.extend(hook::measure(args.rounds));
    }
    if !args.attacks.is_empty() {
        match strangers::measure(&args.attacks, args.edges) {
            Ok(found) => rows.extend(found),
            Err(error) => {
                eprintln!("bench: {error}");
                return ExitCode::FAILURE;
            }
        }
    } else if wants(What::Edge) {
        rows.extend(match args.jobs {
            Some(jobs) => edge::measure_jobs(usize::from(jobs), args.edges),
            None if args.entry => edge::measure_entry(args.edges),
            None => edge::measure(args.edges),
        });
    }
    if wants(What::Attach) {
        rows.extend(attach::measure());
    }
    if args.what.contains(&What::Agent) {
        rows.extend(agent::measure(args.restarts));
    }
    if args.what.contains(&What::Recovery) {
        rows.extend(recovery::measure(args.kills, 5));
    }
    if args.what.contains(&What::Demo) {
        match demo::measure(&args.traces, args.seconds.unwrap_or(30)) {
            Ok(found) => rows.extend(found),
            Err(error) => {
                eprintln!("bench: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    if args.what.contains(&What::Reclaim) {
        rows.extend(reclaim::measure());
        rows.extend(mapping::measure());
    }
    if args.what.contains(&What::Arena) {
        rows.extend(arena::measure());
    }
    for (what, measure) in OVER_TRACES {
        if args.what.contains(&what) {
            match measure(&args.traces) {
                Ok(found) => rows.extend(found),
                Err(error) => {
                    eprintln!("bench: {error}");
                    return ExitCode::FAILURE;
                }
            }
        }
    }
    let mut cases = None;
    if args.what.contains(&What::Fair) {
        match fair::measure(args.seconds.unwrap_or(60)) {
            Ok((found, measured)) => {
                rows.extend(found);
                cases = Some(measured);
            }
            Err(error) => {
                eprintln!("bench: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    if args.what.contains(&What::Lease) {
        rows.extend(lease::measure());
    }
    if args.what.contains(&What::Replay) {
        rows.extend(replay::measure());
    }
    if args.what.contains(&What::ReplayDemo) {
        match replay_demo::measure(args.runs, args.seconds.unwrap_or(30)) {
            Ok(found) => rows.extend(found),
            Err(error) => {
                eprintln!("bench: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!("{:<44} {:>12} {:<4} target", "figure", "value", "unit");
    for row in &rows {
        let target = row
            .target
            .map_or_else(String::new, |target| target.judge(row.value));
        println!(
            "{:<44} {:>12.2} {:<4} {target}",
            row.key, row.value, row.unit
        );
    }
    if let Some(path) = &args.json {
        let mut tree = Map::new();
        for row in &rows {
            insert(&mut tree, &row.key, row.value);
        }
        tree.extend(cases.map(|cases| ("cases".to_owned(), cases)));
        let text = format!("{:#}\n", Value::Object(tree));
        if let Err(error) = std::fs::write(path, text) {
            eprintln!("bench: cannot write {}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
