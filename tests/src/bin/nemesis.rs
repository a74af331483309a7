//! `nemesis gate|reclaim`: random schedules against the gate, or against KV memory that is taken from a running engine,
//! judged from the device's own history.
//!
//! Exit codes: 0 every promise held; 1 one was broken (the seed that replays it is printed);
//! 2 too little happened for a verdict, or the command line is wrong.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::process::ExitCode;
use tidegate_tests::virtual_nemesis::{Break, Totals, run_all};
use tidegate_tests::{reclaims, schedules};

/// Random schedules against Tidegate.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Online bursts, gaps, fork, exec, kill and agent restarts against the gate.
    Gate(Gate),
    /// Stripes taken and given back, kills and agent restarts under a running engine.
    Reclaim(Reclaim),
}

#[derive(Debug, clap::Args)]
struct Reclaim {
    /// What runs the schedules.
    #[arg(long, value_enum, default_value_t = Processes::Real)]
    mode: Processes,
    /// How many.
    #[arg(long, default_value_t = 200)]
    schedules: u64,
    /// Seed of the first; the next has the next seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also writes the figures there.
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Processes {
    /// Real processes on a virtual GPU, in real time.
    Real,
}

#[derive(Debug, clap::Args)]
struct Gate {
    /// What runs the schedules.
    #[arg(long, value_enum, default_value_t = Mode::Virtual)]
    mode: Mode,
    /// How many.
    #[arg(long, default_value_t = 2_000)]
    schedules: u64,
    /// Seed of the first; the next has the next seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also writes the figures there.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Breaks something on purpose, to see that it is noticed.
    #[arg(long = "break", hide = true, default_value = "nothing", value_parser = breaks)]
    broken: Break,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Device model, agent core and interposer core in one process, in virtual time.
    Virtual,
    /// Real processes on a virtual GPU, in real time.
    Real,
}

impl Mode {
    const fn name(self) -> &'static str {
        match self {
            Self::Virtual => "virtual",
            Self::Real => "real",
        }
    }
}

fn breaks(name: &str) -> Result<Break, String> {
    let known = || Break::NAMES.map(|known| known.0).join(", ");
    Break::from_name(name).ok_or_else(|| format!("one of {}", known()))
}

fn main() -> ExitCode {
    let gate = match Args::parse().what {
        What::Gate(gate) => gate,
        What::Reclaim(wanted) => return reclaim(&wanted),
    };
    let totals = match gate.mode {
        Mode::Virtual => {
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            run_all(gate.seed, gate.schedules, threads, gate.broken)
        }
        Mode::Real => schedules::run(gate.seed, gate.schedules, |seed, totals| {
            if totals.schedules.is_multiple_of(20) {
                eprintln!("{} schedules, last seed {seed}", totals.schedules);
            }
        }),
    };
    match report(&gate, &totals) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("nemesis: cannot write the figures: {error}");
            ExitCode::from(2)
        }
    }
}

fn reclaim(wanted: &Reclaim) -> ExitCode {
    let Processes::Real = wanted.mode;
    let totals = reclaims::run(wanted.seed, wanted.schedules, |seed, totals| {
        if totals.schedules.is_multiple_of(20) {
            eprintln!("{} schedules, last seed {seed}", totals.schedules);
        }
    });
    for (seed, what) in totals.violations.iter().take(SHOWN) {
        println!("seed {seed}: {what}");
    }
    if let Some((seed, _)) = totals.violations.first() {
        println!("replay: scripts/nemesis reclaim --mode real --schedules 1 --seed {seed}");
    }
    let figures = serde_json::json!({
        "schedules": totals.schedules,
        "violations": totals.violations.len(),
        "wrong_tokens": totals.wrong_tokens,
        "lost_requests": totals.lost_requests,
        "faults": totals.faults,
        "stripes_taken": totals.taken,
        "stripes_given": totals.given,
        "put_off": totals.put_off,
        "kills": totals.kills,
        "agent_restarts": totals.restarts,
        "seed": wanted.seed,
    });
    println!("{figures}");
    if let Some(path) = &wanted.json
        && let Err(error) = std::fs::write(path, format!("{figures:#}\n"))
    {
        eprintln!("nemesis: cannot write the figures: {error}");
        return ExitCode::from(2);
    }
    if !totals.violations.is_empty() {
        ExitCode::from(1)
    } else if totals.taken < totals.schedules {
        println!("nemesis: too little happened: fewer stripes taken than schedules run");
        ExitCode::from(2)
    } else {
        ExitCode::SUCCESS
    }
}

/// Violations that are printed.
const SHOWN: usize = 20;

fn report(gate: &Gate, totals: &Totals) -> std::io::Result<ExitCode> {
    for violation in totals.violations.iter().take(SHOWN) {
        println!("seed {}: {}", violation.seed, violation.what);
    }
    if let Some(first) = totals.violations.first() {
        println!(
            "replay: scripts/nemesis gate --mode {} --schedules 1 --seed {}",
            gate.mode.name(),
            first.seed
        );
    }
    let figures = &totals.figures;
    let share = figures.offline_ns as f64 / figures.total_ns.max(1) as f64;
    let stuck_ms = figures.worst_stuck_ns as f64 / 1e6;
    println!(
        "schedules {}  violations {}  worst_stuck_ms {stuck_ms:.1}  edges {}  wakes {}  \
         preemptions {}  offline_busy_share {share:.3}",
        totals.schedules,
        totals.violations.len(),
        figures.edges,
        figures.wakes,
        figures.preemptions,
    );
    if let Some(path) = &gate.json {
        let json = serde_json::json!({
            "schedules": totals.schedules,
            "violations": totals.violations.len(),
            "worst_stuck_ms": stuck_ms,
            "edges": figures.edges,
            "wakes": figures.wakes,
            "preemptions": figures.preemptions,
            "offline_busy_share": share,
            "seed": gate.seed,
        });
        std::fs::write(path, format!("{json:#}\n"))?;
    }
    Ok(if !totals.violations.is_empty() {
        ExitCode::from(1)
    } else if totals.is_empty() {
        println!("nemesis: too little happened: fewer than 3 wakes or 3 preemptions per schedule");
        ExitCode::from(2)
    } else {
        ExitCode::SUCCESS
    })
}
