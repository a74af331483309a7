//! `scripts/demo`: one trace, three runs, one table.
//!
//! Starts a virtual GPU (or takes the real one), an online and an offline LLM-shaped program as
//! separate processes that know nothing of Tidegate, and replays the same requests against the
//! online one three times: alone; with the offline one beside it; with Tidegate between them.

mod interrupt;
mod line;
mod page;
mod progress;
mod runs;
mod stand;
mod table;
mod trial;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Parser;

use crate::progress::Progress;
use crate::runs::{Program, Runs};
use crate::stand::{Device, Stand};
use crate::table::Header;
use tidegate_tests::plan::{self, COST, Wanted};

/// Shows on one GPU, virtual or real, what Tidegate does: the same online requests served alone,
/// beside an offline job without control, and beside it with Tidegate.
#[derive(Debug, Parser)]
#[command(name = "demo")]
struct Options {
    /// Requests to replay: Azure's or Mooncake's public format, or CSV with the columns
    /// arrival_s,input_tokens,output_tokens; gzipped or not. Default: a built-in generator
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Length of each of the three runs
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Seed of the generator and of the decode gaps
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Keep one request in N of the trace. Default: chosen so that the GPU has idle time
    #[arg(long, value_name = "N")]
    thin: Option<u64>,
    /// Start at this second of the trace. Default: chosen likewise
    #[arg(long, value_name = "SECONDS")]
    start: Option<u64>,
    /// Leave everything running in the end, for `tidegate status`
    #[arg(long)]
    keep: bool,
    /// Write the figures there too, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page there that shows the runs
    #[arg(long, value_name = "FILE", default_value = "tidegate-demo.html")]
    html: PathBuf,
    /// Which GPU to use
    #[arg(long, value_enum, default_value = "virtual")]
    device: Device,
    /// Let offline wake after this long instead of a learnt cooldown; with 0 it is preempted in
    /// every decode gap, which is what the cooldown is for
    #[arg(long, value_name = "N")]
    cooldown_fixed_ms: Option<u64>,
    #[command(flatten)]
    trial: trial::How,
    /// Run this program on the virtual GPU instead, beside the demo's online or offline one
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    interrupt::install();
    // What the harness finds wrong it says by panicking; the user gets the sentence, and unwinding
    // ends what was started.
    std::panic::set_hook(Box::new(|panic| {
        let said = panic.payload_as_str().unwrap_or("something went wrong");
        eprintln!("\ndemo: {said}");
    }));
    match std::panic::catch_unwind(|| run(&options)) {
        Ok(Ok(code)) => code,
        Ok(Err(error)) if error.is::<interrupt::Interrupted>() => {
            eprintln!("demo: interrupted; everything it started has ended");
            ExitCode::from(130)
        }
        Ok(Err(error)) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
        Err(_) => ExitCode::FAILURE,
    }
}

fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let mut progress = Progress::new();
    let length = Duration::from_secs(options.seconds);
    let plan = plan::choose(&Wanted {
        file: options.trace.clone(),
        length,
        seed: options.seed,
        thin: options.thin,
        start: options.start.map(Duration::from_secs),
    })?;
    if plan.trace.is_empty() {
        bail!(
            "no request in these {} s of the trace; choose another --start or a smaller --thin",
            options.seconds
        );
    }
    if !options.program.is_empty() {
        let trial = trial::Trial {
            options: &options.trial,
            program: &options.program,
            plan: &plan,
            length,
            seed: options.seed,
        };
        return trial.run(&mut progress);
    }
    // Before minutes are spent, not after.
    for file in options.json.iter().chain([&options.html]) {
        std::fs::File::create(file).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let busy = 1.0 - plan.estimate.harvestable_share(Duration::ZERO, length);
    progress.done(&plan.source);
    progress.done(&format!(
        "{} requests in {} s, which keep the GPU busy {:.0} % of the time; replayed three times",
        plan.trace.len(),
        options.seconds,
        100.0 * busy,
    ));
    let header = Header {
        source: plan.source.clone(),
        requests: plan.trace.len(),
        length,
        model: COST.name,
        device: if options.device == Device::Virtual {
            "virtual"
        } else {
            "real"
        },
        seed: options.seed,
    };
    prefer();
    let mut stand = Stand::new(options.device, &[])?;
    let cooldown = options.cooldown_fixed_ms.map(Duration::from_millis);
    let mut runs = Runs {
        stand: &mut stand,
        plan: &plan,
        length,
        seed: options.seed,
        progress: &mut progress,
    };
    let (results, offline) = runs.all(cooldown)?;
    print!("{}", table::text(&header, &results));
    let command: Vec<String> = std::env::args().collect();
    std::fs::write(
        &options.html,
        page::html(&header, &results, &command.join(" ")),
    )
    .with_context(|| format!("cannot write {}", options.html.display()))?;
    let html = std::path::absolute(&options.html)?;
    println!(
        "\nThe same as a page, with a time line: file://{}",
        html.display()
    );
    if let Some(file) = &options.json {
        let json = table::json(&header, &results);
        std::fs::write(file, format!("{json:#}\n"))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    if options.keep {
        let online = runs.start_for_ever()?;
        keep(stand, online, offline);
        return Ok(ExitCode::SUCCESS);
    }
    runs::stop(offline)?;
    Ok(ExitCode::SUCCESS)
}

/// Asks for precedence over whatever else the machine does, for this process and all it starts: a
/// GPU does not wait for the host's scheduler, and a stand-in should wait as little as it may.
fn prefer() {
    // SAFETY: plain system call on this process; a refusal leaves everything as it was.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -10) };
}

/// Leaves everything running and says how to look and how to end it.
fn keep(stand: Stand, online: Program, offline: Program) {
    let run_dir = stand.run_dir();
    let dir = stand.dir().to_owned();
    let tidegate = tidegate_tests::built("tidegate");
    let mut pids = vec![online.process.pid(), offline.process.pid()];
    std::mem::forget((online, offline));
    pids.extend(stand.leave());
    let pids = pids
        .iter()
        .map(u32::to_string)
        .collect::<Vec<_>>()
        .join(" ");
    println!(
        "\nEverything is still running, the trace over and over. Look at it with\n\n  \
         export TIDEGATE_RUN_DIR={}\n  {} status\n  {} events -f\n\nand end it with\n\n  \
         kill {pids}; rm -r {}",
        run_dir.display(),
        tidegate.display(),
        tidegate.display(),
        dir.display(),
    );
}
