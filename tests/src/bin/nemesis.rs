//! `nemesis gate|reclaim|lease|operators|hostile|cluster`: random schedules against the gate, against KV memory that is
//! taken from a running engine, against leases of trainers, beside what happens on a machine that people operate, or
//! beside attackers, judged from the device's own history; or against jobs that Slurm places, judged by what Slurm wrote.
//! `scripts/nemesis finetune` is Python (`finetune/nemesis.py`), and has its devices' histories judged here.
//!
//! Exit codes: 0 every promise held; 1 one was broken (the seed that replays it is printed);
//! 2 too little happened for a verdict, or the command line is wrong.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand, ValueEnum};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidegate_policy::ids::Bytes;
use tidegate_policy::resident::resident;
use tidegate_sim::gate::{Break, Played, Totals, explain, run_all};
use tidegate_sim::lease as leases;
use tidegate_sim::reclaim as play;
use tidegate_sim::timeline::Timeline;
use tidegate_tests::clock::Standstill;
use tidegate_tests::slurm::missing;
use tidegate_tests::{
    engine, operators, placements, real_leases, real_reclaims, reclaims, schedules, strangers,
};
use tidegate_vgpu::history::{Kind, Reader, Record};
use tidegate_vgpu::personality::Personality;

/// Run random schedules of faults and loads against Tidegate.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Test the gate with online bursts, gaps, fork, exec, kill and agent restarts.
    Gate(Gate),
    /// Test reclaims under a running engine: stripes taken and given back, kills, restarts of engine and agent.
    Reclaim(Reclaim),
    /// Test leases: bursts and prompts in mid-unit, trainers that obey, are late, lie, die and freeze, agents that die.
    Lease(Lease),
    /// Test what happens to a node: killed, stopped and frozen processes, full disks, jumping clocks, second agents.
    Operators(Operators),
    /// Test hostile processes of an unprivileged user beside an honest online and offline program.
    Hostile(Hostile),
    /// Test jobs that a real Slurm places: online loads, killed controllers, agents and slurmds.
    Cluster(Cluster),
    /// Print what a device's history says about the memory of some processes, as JSON.
    #[command(hide = true)]
    History(History),
    /// Print how many of a trainer's layers stay on the GPU, by the policy.
    #[command(hide = true)]
    Resident(Resident),
}

#[derive(Debug, clap::Args)]
struct Resident {
    /// Blocks that neither online uses nor state that must stay.
    #[arg(long)]
    free: u64,
    /// Blocks that are kept free for online.
    #[arg(long)]
    reserve: u64,
    /// Blocks of a layer.
    #[arg(long)]
    layer: u64,
    /// Layers.
    #[arg(long)]
    layers: u32,
}

#[derive(Debug, clap::Args)]
struct History {
    /// The device's directory.
    dir: PathBuf,
    /// Processes whose memory is taken.
    #[arg(long, value_delimiter = ',', required = true)]
    pids: Vec<u32>,
}

/// What all of them take.
#[derive(Debug, clap::Args)]
struct Run {
    /// Seed of the first schedule; each following schedule has the next seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also write the figures to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Run only the schedule of the seed, and print its events, effects and device history on one time line.
    #[arg(long)]
    explain: bool,
}

#[derive(Debug, clap::Args)]
struct Cluster {
    /// Number of schedules.
    #[arg(long, default_value_t = 20)]
    schedules: u64,
    #[command(flatten)]
    run: Run,
    /// Break something on purpose, to show that the checker detects it.
    #[arg(long = "break", hide = true, default_value = "nothing")]
    broken: String,
}

#[derive(Debug, clap::Args)]
struct Hostile {
    /// Number of schedules.
    #[arg(long, default_value_t = 200)]
    schedules: u64,
    #[command(flatten)]
    run: Run,
}

#[derive(Debug, clap::Args)]
struct Operators {
    /// Duration of the test.
    #[arg(long, default_value_t = 180)]
    seconds: u64,
    #[command(flatten)]
    run: Run,
    /// Directory with the programs of an earlier version, which take over at times. May be repeated; the versions then
    /// alternate.
    #[arg(long, value_name = "DIR")]
    older: Vec<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct Reclaim {
    /// What runs the schedules.
    #[arg(long, value_enum, default_value_t = ReclaimMode::Virtual)]
    mode: ReclaimMode,
    /// Number of schedules; by default 2000 in virtual time and 200 with processes.
    #[arg(long)]
    schedules: Option<u64>,
    #[command(flatten)]
    run: Run,
    /// Break something on purpose, to show that the checker detects it.
    #[arg(long = "break", hide = true, default_value = "nothing")]
    broken: String,
}

#[derive(Debug, clap::Args)]
struct Lease {
    /// What runs the schedules.
    #[arg(long, value_enum, default_value_t = LeaseMode::Virtual)]
    mode: LeaseMode,
    /// Number of schedules: by default 2000 in virtual time, 40 with processes.
    #[arg(long)]
    schedules: Option<u64>,
    #[command(flatten)]
    run: Run,
    /// Break something on purpose, to show that the checker detects it.
    #[arg(long = "break", hide = true, default_value = "nothing")]
    broken: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LeaseMode {
    /// Device model, agent core and interposer core in one process, in virtual time.
    Virtual,
    /// The agent and the library that ship, an engine and a trainer, on the virtual GPU.
    Real,
}

/// What is broken, by name; each mode has its own.
fn named<T: Copy>(all: &[(&str, T)], name: &str) -> Result<T, String> {
    let known = || all.iter().map(|known| known.0).collect::<Vec<_>>();
    let found = all.iter().find(|known| known.0 == name);
    found
        .map(|known| known.1)
        .ok_or_else(|| format!("--break {name}: one of {}", known().join(", ")))
}

#[derive(Debug, clap::Args)]
struct Gate {
    /// What runs the schedules.
    #[arg(long, value_enum, default_value_t = Mode::Virtual)]
    mode: Mode,
    /// Number of schedules.
    #[arg(long, default_value_t = 2_000)]
    schedules: u64,
    #[command(flatten)]
    run: Run,
    /// Firmware model: what the firmware does with a disable. `list` prints the names.
    #[arg(long, default_value = Personality::Evicts.name(), value_parser = personality)]
    personality: Firmware,
    /// Number of offline jobs, which take turns. By default there are one or two, which do not.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=8))]
    jobs: Option<u32>,
    /// Online engines report requests in flight. Some do not report all of them, and one process lies.
    #[arg(long)]
    hints: bool,
    /// Break something on purpose, to show that the checker detects it.
    #[arg(long = "break", hide = true, default_value = "nothing", value_parser = breaks)]
    broken: Break,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Firmware {
    Is(Personality),
    List,
}

fn personality(name: &str) -> Result<Firmware, String> {
    let known = || Personality::ALL.map(Personality::name).join(", ");
    match Personality::from_name(name) {
        Some(personality) => Ok(Firmware::Is(personality)),
        None if name == "list" => Ok(Firmware::List),
        None => Err(format!("one of {}, or list", known())),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Device model, agent core and interposer core in one process, in virtual time.
    Virtual,
    /// Real processes on a virtual GPU, in real time.
    Real,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReclaimMode {
    /// Device model, agent core, interposer core and an engine in one process, in virtual time.
    Virtual,
    /// Real processes on a virtual GPU, in real time.
    Real,
    /// As real, but with a stand-in for the agent, which orders any stripe at any moment.
    StandIn,
}

impl ReclaimMode {
    const fn name(self) -> &'static str {
        match self {
            Self::Virtual => "virtual",
            Self::Real => "real",
            Self::StandIn => "stand-in",
        }
    }
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

/// The kinds whose schedules cannot be told on a time line, and why.
fn unexplained(what: &What) -> Option<(&'static str, &'static str)> {
    let (kind, run, why) = match what {
        What::Reclaim(wanted) if wanted.mode == ReclaimMode::StandIn => (
            "reclaim --mode stand-in",
            &wanted.run,
            "a stand-in decides, not the policy",
        ),
        What::Operators(wanted) => (
            "operators",
            &wanted.run,
            "it runs for a time, not one schedule; its agents are replaced by others",
        ),
        What::Hostile(wanted) => (
            "hostile",
            &wanted.run,
            "it judges time and memory of the agent",
        ),
        What::Cluster(wanted) => (
            "cluster",
            &wanted.run,
            "Slurm decides; its log has the order",
        ),
        _ => return None,
    };
    run.explain.then_some((kind, why))
}

fn main() -> ExitCode {
    let what = Args::parse().what;
    if let Some((kind, why)) = unexplained(&what) {
        eprintln!(
            "nemesis: --explain is not of {kind}: {why}. It is of gate and lease, and of reclaim with --mode virtual or real"
        );
        return ExitCode::from(2);
    }
    let gate = match what {
        What::Gate(gate) => gate,
        What::Reclaim(wanted) => return reclaim(&wanted),
        What::Lease(wanted) => return lease(&wanted),
        What::Operators(wanted) => return operate(&wanted),
        What::Hostile(wanted) => return attack(&wanted),
        What::Cluster(wanted) => return place(&wanted),
        What::History(wanted) => return history(&wanted),
        What::Resident(of) => {
            let [free, reserve, layer] = [of.free, of.reserve, of.layer].map(Bytes);
            println!("{}", resident(free, reserve, layer, of.layers));
            return ExitCode::SUCCESS;
        }
    };
    let Firmware::Is(personality) = gate.personality else {
        for personality in Personality::ALL {
            println!("{}", personality.name());
        }
        return ExitCode::SUCCESS;
    };
    let played = Played {
        broken: gate.broken,
        personality,
        jobs: gate.jobs.unwrap_or(0),
        hints: gate.hints,
    };
    if gate.hints && gate.mode == Mode::Real {
        eprintln!("nemesis: --hints is of --mode virtual; with real processes see tests/gate.rs");
        return ExitCode::from(2);
    }
    let schedules = if gate.run.explain { 1 } else { gate.schedules };
    let timeline = gate.run.explain.then(Timeline::default);
    let totals = match gate.mode {
        Mode::Virtual => {
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            run_all(gate.run.seed, schedules, threads, played)
        }
        Mode::Real => {
            let went = |seed, totals: &Totals| went(totals.schedules, seed);
            schedules::run(played, gate.run.seed, schedules, timeline.as_ref(), went)
        }
    };
    match (timeline, gate.mode) {
        (Some(_), Mode::Virtual) => print!("{}", explain(gate.run.seed, played)),
        (Some(timeline), Mode::Real) => print!("{timeline}"),
        (None, _) => {}
    }
    match report(&gate, personality, &totals) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("nemesis: cannot write the figures: {error}");
            ExitCode::from(2)
        }
    }
}

fn reclaim(wanted: &Reclaim) -> ExitCode {
    let outcome = match wanted.mode {
        ReclaimMode::Virtual => reclaim_virtual(wanted),
        ReclaimMode::Real => reclaim_real(wanted),
        ReclaimMode::StandIn => reclaim_stand_in(wanted),
    };
    let (violations, figures, empty) = match outcome {
        Ok(outcome) => outcome,
        Err(error) => {
            eprintln!("nemesis: {error}");
            return ExitCode::from(2);
        }
    };
    let mode = wanted.mode.name();
    let replay = format!("reclaim --mode {mode} --schedules 1");
    let why = "less was taken or given back than schedules run";
    conclude(
        (violations, figures, empty),
        &replay,
        why,
        wanted.run.json.as_deref(),
    )
}

fn lease(wanted: &Lease) -> ExitCode {
    let (outcome, replay) = match wanted.mode {
        LeaseMode::Virtual => (lease_virtual(wanted), "lease --mode virtual --schedules 1"),
        LeaseMode::Real => (lease_real(wanted), "lease --mode real --schedules 1"),
    };
    match outcome {
        Ok(outcome) => conclude(
            outcome,
            replay,
            "too few leases, or too little happened in them",
            wanted.run.json.as_deref(),
        ),
        Err(error) => {
            eprintln!("nemesis: {error}");
            ExitCode::from(2)
        }
    }
}

fn lease_real(wanted: &Lease) -> Result<Outcome, String> {
    if wanted.run.explain {
        return Err(
            "--explain works with lease --mode virtual only; with real processes run `tidegate explain lease`"
                .to_owned(),
        );
    }
    let broken = named(&real_leases::Break::NAMES, &wanted.broken)?;
    let (seed, schedules) = (wanted.run.seed, wanted.schedules.unwrap_or(40));
    let totals = real_leases::run(seed, schedules, broken, |seed, totals| {
        went(totals.schedules, seed);
    });
    let figures = serde_json::json!({
        "schedules": totals.schedules,
        "violations": totals.violations.len(),
        "leases": totals.leases,
        "overruns": totals.overruns,
        "units": totals.units,
        "tokens": totals.tokens,
        "late": totals.late,
        "ran_without_leave": totals.ran_without_leave,
        "wrong_adapters": totals.wrong_adapters,
        "prediction_error_mean": totals.prediction_error(),
        "ends_judged": totals.judged_ends,
        "worst_late_ms": totals.worst_late_ns as f64 / 1e6,
        "agent_kills": totals.agents,
        "seed": seed,
    });
    let empty = totals.is_empty();
    Ok((totals.violations, figures, empty))
}

fn lease_virtual(wanted: &Lease) -> Result<Outcome, String> {
    let broken = named(&leases::Break::NAMES, &wanted.broken)?;
    let schedules = if wanted.run.explain {
        print!("{}", leases::explain(wanted.run.seed, broken));
        1
    } else {
        wanted.schedules.unwrap_or(2_000)
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let totals = leases::run_all(wanted.run.seed, schedules, threads, broken);
    let figures = totals.figures;
    let json = serde_json::json!({
        "schedules": totals.schedules,
        "violations": totals.violations.len(),
        "leases": figures.leases,
        "overruns": figures.overruns,
        "requests": figures.requests,
        "late": figures.late,
        "ran_without_leave": figures.ran_without_leave,
        "beside_s": figures.beside_ns as f64 / 1e9,
        "prediction_error_mean": totals.prediction_error(),
        "seed": wanted.run.seed,
    });
    let empty = totals.is_empty() && !wanted.run.explain;
    Ok((totals.violations, json, empty))
}

fn operate(wanted: &Operators) -> ExitCode {
    let (seed, seconds) = (wanted.run.seed, wanted.seconds);
    for dir in &wanted.older {
        for name in ["tidegate-agent", "libtidegate.so"] {
            if !dir.join(name).is_file() {
                eprintln!(
                    "nemesis: --older {}: no {name} in it (scripts/earlier builds both)",
                    dir.display()
                );
                return ExitCode::from(2);
            }
        }
    }
    let report = operators::run_for(seed, seconds, wanted.older.clone(), |seed, report| {
        if report.schedules.is_multiple_of(20) {
            eprintln!("{} schedules, last seed {seed}", report.schedules);
        }
    });
    for missing in &report.missing {
        println!("SKIPPED: {missing}");
    }
    let stuck_ms = report.worst_stuck_ns as f64 / 1e6;
    let figures = serde_json::json!({
        "schedules": report.schedules,
        "violations": report.violations.len(),
        "incidents": report.incidents,
        "preemptions": report.preemptions,
        "late_wakes": report.late_wakes,
        "worst_stuck_ms": stuck_ms,
        "rss_mib": [report.rss_mib.0, report.rss_mib.1],
        "descriptors": [report.descriptors.0, report.descriptors.1],
        "seed": seed,
    });
    let empty = report.preemptions < report.schedules;
    let mut violations = report.violations;
    if stuck_ms > STUCK_MOST_MS {
        violations.push((seed, format!("a channel was stuck for {stuck_ms:.0} ms")));
    }
    let outcome = (violations, figures, empty);
    let why = "fewer preemptions than schedules run";
    conclude(
        outcome,
        "operators --seconds 5",
        why,
        wanted.run.json.as_deref(),
    )
}

fn attack(wanted: &Hostile) -> ExitCode {
    let seed = wanted.run.seed;
    let standstill = Standstill::watch();
    let load = strangers::load();
    let totals = strangers::run(seed, wanted.schedules, |seed, totals| {
        went(totals.schedules, seed);
    });
    let Some(totals) = totals else {
        return ExitCode::from(2);
    };
    let stood = standstill.map(|watch| watch.longest_ns());
    let (found, mut figures) = strangers::judged(&totals, load, stood);
    let mut violations = totals.violations.clone();
    violations.extend(found.into_iter().map(|what| (seed, what)));
    figures["violations"] = violations.len().into();
    figures["seed"] = seed.into();
    let outcome = (violations, figures, totals.edges() == 0);
    conclude(
        outcome,
        "hostile --schedules 1",
        "no edge beside an attacker",
        wanted.run.json.as_deref(),
    )
}

fn place(wanted: &Cluster) -> ExitCode {
    let breaks = match named(&[("nothing", false), ("judge", true)], &wanted.broken) {
        Ok(breaks) => breaks,
        Err(error) => {
            eprintln!("nemesis: {error}");
            return ExitCode::from(2);
        }
    };
    if let Some(why) = missing() {
        println!("SKIPPED: {why}");
        return ExitCode::SUCCESS;
    }
    let totals = placements::run(wanted.run.seed, wanted.schedules, breaks, |seed, totals| {
        went(totals.schedules, seed);
    });
    let figures = serde_json::json!({
        "schedules": totals.schedules,
        "violations": totals.violations.len(),
        "lost_jobs": totals.lost_jobs,
        "over_cap": totals.over_cap,
        "drained": totals.drained,
        "misplaced": totals.misplaced,
        "published": totals.published,
        "placed": totals.placed,
        "evictions": totals.evictions,
        "lost_nodes": totals.lost_nodes,
        "done": totals.done,
        "seed": wanted.run.seed,
    });
    let empty = totals.is_empty();
    let why = "fewer placements than schedules, or nobody moved";
    let outcome = (totals.violations, figures, empty);
    conclude(
        outcome,
        "cluster --schedules 1",
        why,
        wanted.run.json.as_deref(),
    )
}

/// What is unmapped beside an enabled channel, all faults, and how many mappings were taken away at all.
fn history(wanted: &History) -> ExitCode {
    let read = Reader::open(&wanted.dir).and_then(|mut reader| reader.read_new());
    let records = match read {
        Ok(records) => records,
        Err(error) => {
            eprintln!("nemesis: {}: {error}", wanted.dir.display());
            return ExitCode::from(2);
        }
    };
    let shown = |record: &Record| format!("{record:?}");
    let mut unmaps = Vec::new();
    for pid in &wanted.pids {
        let wrong = engine::judge(&records, *pid, &(0..u64::MAX));
        unmaps.extend(wrong.unmaps.iter().map(shown));
    }
    let of = |kind| records.iter().filter(move |record| record.kind == kind);
    let moved = records
        .iter()
        .filter(|record| wanted.pids.contains(&record.pid) && engine::takes(record));
    println!(
        "{}",
        serde_json::json!({
            "unmaps": unmaps,
            "faults": of(Kind::Fault).map(shown).collect::<Vec<_>>(),
            "moved": moved.count(),
        })
    );
    ExitCode::SUCCESS
}

/// Prints what came of it, and says so by the exit code.
fn conclude(
    (violations, figures, empty): Outcome,
    replay: &str,
    why: &str,
    json: Option<&Path>,
) -> ExitCode {
    for (seed, what) in violations.iter().take(SHOWN) {
        println!("seed {seed}: {what}");
    }
    if let Some((seed, _)) = violations.first() {
        println!("replay: scripts/nemesis {replay} --seed {seed}");
    }
    println!("{figures}");
    if let Some(path) = json
        && let Err(error) = std::fs::write(path, format!("{figures:#}\n"))
    {
        eprintln!("nemesis: cannot write the figures: {error}");
        return ExitCode::from(2);
    }
    if !violations.is_empty() {
        ExitCode::from(1)
    } else if empty {
        println!("nemesis: too little happened: {why}");
        ExitCode::from(2)
    } else {
        ExitCode::SUCCESS
    }
}

/// Violations with their seeds, the figures, and whether too little happened for a verdict.
type Outcome = (Vec<(u64, String)>, serde_json::Value, bool);

fn reclaim_virtual(wanted: &Reclaim) -> Result<Outcome, String> {
    let broken = named(&play::Break::NAMES, &wanted.broken)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let schedules = if wanted.run.explain {
        print!("{}", play::explain(wanted.run.seed, broken));
        1
    } else {
        wanted.schedules.unwrap_or(2_000)
    };
    let totals = play::run_all(wanted.run.seed, schedules, threads, broken);
    let figures = totals.figures;
    let json = serde_json::json!({
        "schedules": totals.schedules,
        "violations": totals.violations.len(),
        "wrong_tokens": figures.wrong_tokens,
        "lost_requests": figures.lost_requests,
        "faults": figures.faults,
        "reclaims": figures.reclaims,
        "restores": figures.restores,
        "requests_hit": figures.hit,
        "tokens": figures.tokens,
        "granted": figures.granted,
        "denied": figures.denied,
        "edges": figures.edges,
        "seed": wanted.run.seed,
    });
    let empty = totals.is_empty();
    Ok((totals.violations, json, empty))
}

fn went(schedules: u64, seed: u64) {
    if schedules.is_multiple_of(20) {
        eprintln!("{schedules} schedules, last seed {seed}");
    }
}

fn reclaim_real(wanted: &Reclaim) -> Result<Outcome, String> {
    let broken = named(&real_reclaims::Break::NAMES, &wanted.broken)?;
    let timeline = wanted.run.explain.then(Timeline::default);
    let schedules = timeline
        .as_ref()
        .map_or(wanted.schedules.unwrap_or(200), |_| 1);
    let (seed, timed) = (wanted.run.seed, timeline.as_ref());
    let totals = real_reclaims::run(seed, schedules, broken, timed, |seed, totals| {
        went(totals.schedules, seed);
    });
    if let Some(timeline) = timeline {
        print!("{timeline}");
    }
    let figures = serde_json::json!({
        "schedules": totals.schedules,
        "violations": totals.violations.len(),
        "wrong_tokens": totals.wrong_tokens,
        "lost_requests": totals.lost_requests,
        "faults": totals.faults,
        "blocks_lost": totals.lost,
        "blocks_back": totals.back,
        "bursts_granted": totals.granted,
        "bursts_short": totals.short,
        "kills": totals.kills,
        "agent_kills": totals.agents,
        "online_kills": totals.onlines,
        "stops": totals.stops,
        "seed": wanted.run.seed,
    });
    let empty = totals.is_empty();
    Ok((totals.violations, figures, empty))
}

fn reclaim_stand_in(wanted: &Reclaim) -> Result<Outcome, String> {
    named(&[("nothing", ())], &wanted.broken)?;
    let schedules = wanted.schedules.unwrap_or(200);
    let totals = reclaims::run(wanted.run.seed, schedules, |seed, totals| {
        went(totals.schedules, seed);
    });
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
        "seed": wanted.run.seed,
    });
    let empty = totals.taken < totals.schedules;
    Ok((totals.violations, figures, empty))
}

/// Violations that are printed.
const SHOWN: usize = 20;
/// Bounds that only a defect breaks, however noisy the machine: of the median time until all offline channels are
/// disabled, fifty times what is promised of a card, and of the time that a channel stays disabled without an agent.
const STOP_P50_MOST_MS: f64 = 50.0;
const STUCK_MOST_MS: f64 = 1_000.0;

fn report(gate: &Gate, personality: Personality, totals: &Totals) -> std::io::Result<ExitCode> {
    for violation in totals.violations.iter().take(SHOWN) {
        println!("seed {}: {}", violation.seed, violation.what);
    }
    if let Some(first) = totals.violations.first() {
        println!(
            "replay: scripts/nemesis gate --mode {} --personality {}{}{} --schedules 1 --seed {}",
            gate.mode.name(),
            personality.name(),
            gate.jobs
                .map_or_else(String::new, |jobs| format!(" --jobs {jobs}")),
            if gate.hints { " --hints" } else { "" },
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
    if gate.jobs.is_some() {
        println!("swaps between jobs: {}", figures.swaps);
    }
    if figures.fired > 0 {
        println!("armed orders carried out: {}", figures.fired);
    }
    let stop_ms = totals.stop_p50_ns().map(|ns| ns as f64 / 1e6);
    if let Some(stop_ms) = stop_ms {
        println!("from a busy edge to the stop of all offline channels: p50 {stop_ms:.2} ms");
    }
    if let Some(path) = &gate.run.json {
        let json = serde_json::json!({
            "stop_p50_ms": stop_ms,
            "schedules": totals.schedules,
            "personality": personality.name(),
            "jobs": gate.jobs,
            "violations": totals.violations.len(),
            "worst_stuck_ms": stuck_ms,
            "edges": figures.edges,
            "wakes": figures.wakes,
            "preemptions": figures.preemptions,
            "offline_busy_share": share,
            "seed": gate.run.seed,
        });
        std::fs::write(path, format!("{json:#}\n"))?;
    }
    let bounds = [
        ("worst_stuck_ms", Some(stuck_ms), STUCK_MOST_MS),
        ("stop_p50_ms", stop_ms, STOP_P50_MOST_MS),
    ];
    let over = bounds.map(|(name, value, most)| {
        let over = value.is_some_and(|value| value > most);
        if over {
            println!("nemesis: {name} is over {most}");
        }
        over
    });
    Ok(if !totals.violations.is_empty() || over.contains(&true) {
        ExitCode::from(1)
    } else if totals.is_empty() {
        println!(
            "nemesis: too little happened: fewer than 3 wakes or 3 preemptions per schedule, or too few swaps"
        );
        ExitCode::from(2)
    } else {
        ExitCode::SUCCESS
    })
}
