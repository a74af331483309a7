//! `tidegate-probe`: the hardware probes of this node; `tidegate doctor --probe` starts it.

use anyhow::Context;
use clap::{Parser, Subcommand, ValueEnum};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tidegate_agent::config::Method;
use tidegate_driver::device::Device;
use tidegate_probe::bench::{Bench, Options};
use tidegate_probe::kernel_log::KERNEL_LOG;
use tidegate_probe::report::{Line, Reporter, Verdict, emit};
use tidegate_probe::suite::{self, Plan};
use tidegate_probe::{actor, clock, hold, machine, probes, render, worker};
use tidegate_text::screen::terminal_width;

/// Measures what this node's driver and GPU do, on contexts of its own. It touches no other process and
/// leaves no channel disabled, also when it is interrupted.
#[derive(Debug, Parser)]
#[command(name = "tidegate-probe", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "\
Examples:
  tidegate-probe list
  tidegate-probe run --quick --only P1,P2 --results found.jsonl
  tidegate-probe page found.jsonl

Exit codes: 0 nothing failed; 2 a probe failed, wrong usage or no driver.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the probes.
    Run(Run),
    /// Lists the probes.
    List,
    /// Says where this is, as the first line of results.
    Machine,
    /// Makes a page of results that were written with --results.
    Page {
        /// The results, of several runs on one machine if so.
        #[arg(required = true)]
        results: Vec<PathBuf>,
        /// Directory for `<gpu>-<driver>.md` and `.json`; standard output unless given. Results of the
        /// virtual GPU are not filed.
        #[arg(long, value_name = "DIR")]
        into: Option<PathBuf>,
    },
    #[command(hide = true)]
    One(One),
    #[command(hide = true)]
    Worker,
    #[command(hide = true)]
    Actor { part: String },
    #[command(hide = true)]
    Guardian { dir: PathBuf, probe: String },
}

#[derive(Debug, clap::Args)]
struct Run {
    /// Only these, as in P2,P7b.
    #[arg(long, value_delimiter = ',', value_name = "ID,...")]
    only: Vec<String>,
    /// How to print what is found.
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Also write every line to this file, as it comes.
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Nobody else uses this kernel: class B, which may stall the whole node, may run too.
    #[arg(long)]
    kernel_is_ours: bool,
    #[command(flatten)]
    shared: Shared,
    /// How probes stop their workers until P2m has found out: what it found in an earlier run.
    #[arg(long, overrides_with = "method", value_name = "METHOD", value_parser = ["disable", "disable+restart", "preempt"])]
    method: Option<String>,
    /// The device to probe: "real" or "virtual=DIR".
    #[arg(long, default_value = "real", value_name = "DEVICE")]
    device: Device,
    /// The virtual device's shim; beside this program unless given.
    #[arg(long, value_name = "PATH")]
    vgpu_shim: Option<PathBuf>,
}

/// What a probe's own process is told again.
#[derive(Clone, Debug, clap::Args)]
struct Shared {
    /// CUDA device ordinal.
    #[arg(long, default_value_t = 0)]
    ordinal: i32,
    /// Fewer repetitions and shorter waits, to see that all of it works.
    #[arg(long)]
    quick: bool,
    /// How long P4 keeps channels disabled, in seconds; beyond 60 it counts as class B.
    #[arg(long, overrides_with = "long", default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=600))]
    long: u64,
    /// The preload library; beside this program unless given.
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,
    /// Directory for what is more than a line: traces, the driver's lines of the kernel's log.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The kernel's log.
    #[arg(long, default_value = KERNEL_LOG, value_name = "FILE")]
    kernel_log: PathBuf,
}

impl Shared {
    fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            "--ordinal".to_owned(),
            self.ordinal.to_string(),
            "--long".to_owned(),
            self.long.to_string(),
        ];
        if self.quick {
            arguments.push("--quick".to_owned());
        }
        arguments.extend([
            "--kernel-log".to_owned(),
            self.kernel_log.display().to_string(),
        ]);
        for (name, path) in [("--library", &self.library), ("--out", &self.out)] {
            if let Some(path) = path {
                arguments.extend([name.to_owned(), path.display().to_string()]);
            }
        }
        arguments
    }
}

#[derive(Debug, clap::Args)]
struct One {
    id: String,
    dir: PathBuf,
    #[command(flatten)]
    shared: Shared,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// A line for each probe as it ends, then a table.
    Table,
    /// Every line, as JSON.
    Json,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(run) => probe(&run),
        Command::One(one) => self::one(&one),
        Command::List => {
            print!("{}", render::list(terminal_width()));
            Ok(true)
        }
        Command::Machine => {
            emit(&Line::Machine(Box::new(machine::describe())));
            Ok(true)
        }
        Command::Page { results, into } => page(&results, into.as_deref()).map(|()| true),
        Command::Worker => worker::run().map(|()| true),
        Command::Actor { part } => actor::run(&part).map(|()| true),
        Command::Guardian { dir, probe } => hold::guard(&dir, &probe).map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(2),
        Err(error) => {
            eprintln!("tidegate-probe: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn probe(run: &Run) -> anyhow::Result<bool> {
    run.device.enter(run.vgpu_shim.as_deref())?;
    let dir = std::env::temp_dir().join(format!("tidegate-probe-{}", std::process::id()));
    let plan = Plan {
        only: run.only.clone(),
        arguments: run.shared.arguments(),
        long: Duration::from_secs(run.shared.long),
        class_b: run.kernel_is_ours,
        results: run.results.clone(),
        dir: dir.clone(),
        out: run.shared.out.clone(),
        kernel_log: run.shared.kernel_log.clone(),
        method: run.method.as_deref().and_then(Method::from_name),
    };
    let width = terminal_width();
    let outcome = suite::run(&plan, |line| match run.output {
        Output::Json => emit(line),
        Output::Table => {
            if let Some(text) = render::live(line) {
                println!("{}", render::fitted(&text, width));
            }
        }
    })?;
    if run.output == Output::Table {
        println!("\n{}", render::table(&outcome.lines, width));
    }
    // Kept while something in it is still disabled.
    if outcome.lines.last().is_some_and(|line| {
        matches!(
            line,
            Line::Verdict {
                verdict: Verdict::Pass,
                ..
            }
        )
    }) {
        let _ = std::fs::remove_dir_all(&dir);
    }
    Ok(outcome.good())
}

fn one(one: &One) -> anyhow::Result<bool> {
    suite::end_with_the_suite();
    let probe = probes::find(&one.id).context("no such probe")?;
    let report = Reporter::new(probe.id);
    let start = clock::now_ns();
    let options = Options {
        ordinal: one.shared.ordinal,
        quick: one.shared.quick,
        long: Duration::from_secs(one.shared.long),
        preload: suite::preload(one.shared.library.as_deref(), &one.dir)?,
        out: one.shared.out.clone(),
        kernel_log: one.shared.kernel_log.clone(),
    };
    let ending =
        Bench::new(report.clone(), one.dir.clone(), options).and_then(|bench| (probe.run)(&bench));
    // What a probe found is a word on the guess that it was made for; one that broke found nothing.
    match &ending {
        Ok((Verdict::Pass, _)) => report.guess(probe.guess, true),
        Ok((Verdict::Fail, _)) => report.guess(probe.guess, false),
        _ => {}
    }
    let (verdict, reason) = ending.unwrap_or_else(|error| (Verdict::Fail, format!("{error:#}")));
    let seconds = (clock::now_ns() - start) as f64 / 1e9;
    report.verdict(verdict, reason, seconds);
    Ok(verdict != Verdict::Fail)
}

fn page(results: &[PathBuf], into: Option<&Path>) -> anyhow::Result<()> {
    let (mut lines, mut text) = (Vec::new(), String::new());
    for path in results {
        let one = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        lines.extend(render::parse(&one).with_context(|| path.display().to_string())?);
        text.push_str(&one);
    }
    let page = render::page(&lines)?;
    let Some(dir) = into else {
        print!("{page}");
        return Ok(());
    };
    let gpu = &render::machine(&lines)?.gpu;
    anyhow::ensure!(gpu != "virtual", "figures of the virtual GPU are not filed");
    std::fs::create_dir_all(dir)?;
    let stem = render::stem(&lines)?;
    std::fs::write(dir.join(format!("{stem}.md")), page)?;
    std::fs::write(dir.join(format!("{stem}.json")), text)?;
    println!("{}", dir.join(format!("{stem}.md")).display());
    Ok(())
}
