//! `tidegate replay`: what would I harvest, and what would it cost?
//!
//! Asks no agent and touches no GPU: two workloads meet in virtual time, under the policy code that
//! the agent runs and under what it is compared with. Either one trace of the user's, answered in a
//! table and words, or a table of scenarios, answered with `results.csv`.

mod finetune;

use super::print::print;
use std::fs::File;
use std::io::{BufReader, Write as _};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tidegate_replay::calibration::Calibration;
use tidegate_replay::cases::{Case, TIDEGATE};
use tidegate_replay::costs::Costs;
use tidegate_replay::decisions::{self, Replayed};
use tidegate_replay::engine::Limits;
use tidegate_replay::evaluation::{Evaluation, Workload, evaluate, runs};
use tidegate_replay::figures::{Figures, csv};
use tidegate_replay::gap::GapModel;
use tidegate_replay::generator::{self, CONVERSATION, Preset};
use tidegate_replay::hardware::{Gpu, Model};
use tidegate_replay::names::{UnknownName, find};
use tidegate_replay::report::html::{self, Drawn};
use tidegate_replay::report::{self, Alone, Report, Row, table};
use tidegate_replay::run::beside::Platform;
use tidegate_replay::scenarios::{self, FACTOR};
use tidegate_replay::spec::{Batching, Compute, Memory, Offline, Online, Spec};
use tidegate_replay::sweep::cores;
use tidegate_replay::timeline::Timeline;
use tidegate_replay::trace::{Cut, Lengths, Trace, read_cut, read_lengths};

/// What to replay, and what to write.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP, next_line_help = true)]
pub struct Args {
    /// Online requests: Azure, BurstGPT, Mooncake, or CSV with
    /// arrival_s,input_tokens,output_tokens; gzipped or not
    #[arg(long, value_name = "FILE", verbatim_doc_comment, help_heading = REQUESTS,
          conflicts_with = "scenarios", required_unless_present_any = ["synthetic", "scenarios", "decisions"])]
    trace: Option<PathBuf>,
    /// Online requests from published figures: conversation, code, caller
    #[arg(long, value_name = "PRESET", help_heading = REQUESTS, value_parser = preset,
          conflicts_with_all = ["trace", "scenarios"])]
    synthetic: Option<Preset>,
    /// Keep about one request in N; bursts stay as they are
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = REQUESTS,
          conflicts_with = "scenarios", value_parser = clap::value_parser!(u64).range(1..))]
    thin: u64,
    /// Multiply the times between arrivals
    #[arg(long, value_name = "FACTOR", default_value = "1", help_heading = REQUESTS,
          conflicts_with = "scenarios", allow_negative_numbers = true, value_parser = factor)]
    stretch: f64,
    /// Begin at this second of the trace
    #[arg(long, value_name = "S", default_value = "0", help_heading = REQUESTS,
          conflicts_with = "scenarios", allow_negative_numbers = true, value_parser = seconds)]
    from: Duration,
    /// Replay so many seconds; else to the end, or 1200 of a synthetic trace
    #[arg(long, value_name = "S", help_heading = REQUESTS, conflicts_with = "scenarios",
          allow_negative_numbers = true, value_parser = seconds)]
    length: Option<Duration>,
    /// Lengths of the offline requests: CSV with input_tokens,output_tokens;
    /// else those of a chat service
    #[arg(long, value_name = "FILE", verbatim_doc_comment, help_heading = REQUESTS,
          conflicts_with = "scenarios")]
    offline_lengths: Option<PathBuf>,

    /// Online's model: llama-3.1-8b, qwen2.5-7b, or one of your own,
    /// custom:layers=L,hidden=H,heads=N[,kv-heads=K][,inner=I][,vocabulary=V]
    /// with costs scaled from llama's
    #[arg(long, value_name = "MODEL", default_value = "llama-3.1-8b", verbatim_doc_comment,
          help_heading = NODE, conflicts_with = "scenarios")]
    online: String,
    /// The offline job's model
    #[arg(long, value_name = "MODEL", default_value = "qwen2.5-7b", help_heading = NODE,
          conflicts_with = "scenarios")]
    offline: String,
    /// The GPU: h100, h200, a100
    #[arg(long, default_value = "h200", help_heading = NODE, conflicts_with = "scenarios",
          value_parser = scenarios::gpu)]
    gpu: Gpu,
    /// Memory for the KV caches of both, GiB; else what the weights of both
    /// models leave of 90 % of the GPU
    #[arg(long, value_name = "GIB", verbatim_doc_comment, help_heading = NODE,
          conflicts_with = "scenarios", allow_negative_numbers = true, value_parser = gib)]
    kv_gib: Option<f64>,
    /// Prompt tokens of one offline iteration
    #[arg(long, value_name = "TOKENS", default_value_t = 2_048, help_heading = NODE,
          conflicts_with = "scenarios", value_parser = clap::value_parser!(u32).range(1..))]
    offline_chunk: u32,
    /// Pauses between online's decodes: overlap, vllm, sync
    #[arg(long, value_name = "PRESET", default_value = "vllm", help_heading = NODE,
          conflicts_with = "scenarios", value_parser = scenarios::gap_preset)]
    gaps: GapModel,
    /// Iteration times and handle costs from the tables in DIR instead of the
    /// fits that ship: iteration_prefill.csv, iteration_decode.csv, costs.csv
    #[arg(long, value_name = "DIR", verbatim_doc_comment, help_heading = NODE)]
    calibration: Option<PathBuf>,

    /// Compute policies, or pairs COMPUTE+MEMORY
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = COMPARED)]
    policy: Vec<String>,
    /// Memory policies
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = COMPARED)]
    memory: Vec<String>,
    /// Repeat with seeds 1 to N; 1 unless given, 3 for a table of scenarios
    #[arg(long, value_name = "N", help_heading = COMPARED,
          value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: Option<u64>,
    /// Disable and save takes this long, and so does enable and restore; of
    /// several values, a table of scenarios is run with each
    #[arg(long, value_name = "MS", value_delimiter = ',', verbatim_doc_comment,
          help_heading = COMPARED, allow_negative_numbers = true, value_parser = switch)]
    switch_ms: Vec<Duration>,
    /// One switch between two programs' time slices (GPreempt, NoControl)
    #[arg(long, value_name = "US", value_delimiter = ',', help_heading = COMPARED,
          allow_negative_numbers = true, value_parser = micros)]
    timeslice_us: Vec<Duration>,
    /// One batch of page faults (UVM)
    #[arg(long, value_name = "US", value_delimiter = ',', help_heading = COMPARED,
          allow_negative_numbers = true, value_parser = micros)]
    fault_us: Vec<Duration>,
    /// A finetuning job instead of an offline one, MODEL[:r=RANK][,length=N];
    /// policies are then a trainer's
    #[arg(long, value_name = "JOB", verbatim_doc_comment, help_heading = TUNED,
          conflicts_with_all = ["memory", "json", "html", "timeline"])]
    finetune: Option<String>,
    /// Times per further token that online may take
    #[arg(long, value_name = "TIME", value_delimiter = ',', default_value = "10ms,20ms,40ms",
          help_heading = TUNED, requires = "finetune", value_parser = finetune::tpot)]
    tpot: Vec<u64>,
    /// How online and the trainer share the GPU: two-process, one-process,
    /// time-sliced
    #[arg(long, value_name = "NAME", default_value = "two-process", verbatim_doc_comment,
          help_heading = TUNED, requires = "finetune", value_parser = finetune::platform)]
    platform: Platform,
    /// All trainer's policies on all scenarios, as table.csv
    #[arg(long, help_heading = TUNED, requires_all = ["finetune", "scenarios"])]
    table: bool,

    /// Threads; one per core unless given
    #[arg(long, value_name = "N", help_heading = COMPARED)]
    threads: Option<NonZeroUsize>,

    /// All figures as JSON
    #[arg(long, value_name = "FILE", help_heading = WRITTEN)]
    json: Option<PathBuf>,
    /// All figures as CSV
    #[arg(long, value_name = "FILE", help_heading = WRITTEN)]
    csv: Option<PathBuf>,
    /// A report with plots: one HTML file without anything beside it
    #[arg(long, value_name = "FILE", help_heading = WRITTEN, conflicts_with = "scenarios")]
    html: Option<PathBuf>,
    /// What happened, for https://ui.perfetto.dev: under Tidegate, or else
    /// under the first policy asked for
    #[arg(long, value_name = "FILE", verbatim_doc_comment, help_heading = WRITTEN,
          conflicts_with = "scenarios")]
    timeline: Option<PathBuf>,

    /// A table of scenarios to run instead of one pair
    #[arg(long, value_name = "FILE", help_heading = TABLE, requires_all = ["traces", "out"])]
    scenarios: Option<PathBuf>,
    /// Where the table's traces are
    #[arg(long, value_name = "DIR", help_heading = TABLE, requires = "scenarios")]
    traces: Option<PathBuf>,
    /// Where to write results.csv
    #[arg(long, value_name = "DIR", help_heading = TABLE, requires = "scenarios")]
    out: Option<PathBuf>,
    /// Only these scenarios of the table
    #[arg(long, value_name = "ID", value_delimiter = ',', help_heading = TABLE,
          requires = "scenarios")]
    only: Vec<String>,

    /// Decide again what an agent decided, from what tidegate-agent --record
    /// wrote, and compare: ends with 1 at the first line that differs
    #[arg(long, value_name = "FILE", verbatim_doc_comment, help_heading = RECORDED,
          exclusive = true)]
    decisions: Option<PathBuf>,
}

const REQUESTS: &str = "Requests";
const NODE: &str = "Models and GPU";
const COMPARED: &str = "What is compared";
const TUNED: &str = "Finetuning";
const WRITTEN: &str = "What is written";
const TABLE: &str = "Many scenarios";
const RECORDED: &str = "A recorded node";

const AFTER_HELP: &str = "\
Compute policies: Standalone, NoControl, KernelPreempt, LayerPreempt, GPreempt,
  TemporalShare(N), Channel, ChannelNoCooldown, Tidegate, TidegateHints, Oracle,
  OracleUnlimited
Memory policies: UVM, Prism, StaticMem, StaticSplit, Tidegate, TidegateNoMiad,
  TidegateFifo, TidegateLayerBoundary, Oracle
Compared unless told otherwise: NoControl+Prism, KernelPreempt+UVM,
  GPreempt+UVM, Channel+UVM, Channel+Prism, Channel+StaticMem, Tidegate, Oracle";

/// The command line asks for something that is not there.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(String);

impl From<UnknownName> for Usage {
    fn from(unknown: UnknownName) -> Self {
        Self(unknown.to_string())
    }
}

fn preset(name: &str) -> Result<Preset, UnknownName> {
    find(
        "synthetic trace",
        name,
        generator::PRESETS.map(|preset| (preset.name, preset)),
    )
}

fn factor(text: &str) -> Result<f64, String> {
    scenarios::factor(text).ok_or_else(|| format!("give {FACTOR}"))
}

fn gib(text: &str) -> Result<f64, String> {
    let gib = text
        .parse()
        .ok()
        .filter(|gib| *gib > 0.0 && *gib <= 4_096.0);
    gib.ok_or_else(|| "give a size in GiB, above 0 and at most 4096".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text
        .parse()
        .ok()
        .filter(|seconds| (0.0..=1e9).contains(seconds));
    let seconds = seconds.map(Duration::from_secs_f64);
    seconds.ok_or_else(|| "give a number of seconds, 0 or more".to_owned())
}

fn switch(text: &str) -> Result<Duration, String> {
    let ms = text.parse().ok().filter(|ms| (0.0..=1_000.0).contains(ms));
    let switch = ms.map(|ms: f64| Duration::from_secs_f64(ms / 1e3));
    switch.ok_or_else(|| "give a number of milliseconds from 0 to 1000".to_owned())
}

fn micros(text: &str) -> Result<Duration, String> {
    let us = text.parse().ok().filter(|us| (0.0..=1e6).contains(us));
    let span = us.map(|us: f64| Duration::from_secs_f64(us / 1e6));
    span.ok_or_else(|| "give a number of microseconds from 0 to 1000000".to_owned())
}

/// The costs to run with: each value of one with each of the others.
fn swept(args: &Args, calibration: Option<&Calibration>) -> Vec<Costs> {
    let usual = Costs::default();
    let mut all = vec![calibration.map_or(usual, |tables| tables.costs(usual))];
    let mut with = |values: &[Duration], set: fn(Costs, Duration) -> Costs| {
        if !values.is_empty() {
            let before = core::mem::take(&mut all);
            let each = values.iter();
            all = each
                .flat_map(|value| before.iter().map(move |costs| set(*costs, *value)))
                .collect();
        }
    };
    with(&args.fault_us, |costs, fault_group| Costs {
        fault_group,
        ..costs
    });
    with(&args.timeslice_us, |costs, timeslice_switch| Costs {
        timeslice_switch,
        ..costs
    });
    with(&args.switch_ms, Costs::with_switch);
    all
}

/// Carries the command out.
///
/// # Errors
/// When a name is unknown, a file cannot be used, or a workload cannot be run.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(file) = &args.decisions {
        return decide_again(file);
    }
    if let Some(asked) = &args.finetune {
        args.csv.as_deref().map_or(Ok(()), writable)?;
        let calibration = args.calibration.as_deref().map(Calibration::load);
        return finetune::run(args, asked, calibration.transpose()?.as_ref());
    }
    let cases = Case::named(&args.policy, &args.memory).map_err(Usage::from)?;
    let files = [&args.json, &args.csv, &args.html, &args.timeline];
    for file in files.into_iter().flatten() {
        writable(file)?;
    }
    let calibration = args.calibration.as_deref().map(Calibration::load);
    let calibration = calibration.transpose()?;
    match &args.scenarios {
        Some(file) => run_table(args, file, &cases, calibration.as_ref()),
        None => run_one(args, &cases, calibration.as_ref()),
    }
}

/// Makes the decisions of a recording again.
fn decide_again(file: &Path) -> anyhow::Result<()> {
    let recording = File::open(file).with_context(|| {
        let file = file.display();
        format!("cannot read {file}: check the path")
    })?;
    let replayed = decisions::replay(BufReader::new(recording))
        .with_context(|| format!("{} is not decided again", file.display()))?;
    let Replayed { events, effects } = replayed;
    print(&format!(
        "{events} events, {effects} effects: decided again, all as recorded\n"
    ))
}

/// `spec` by the tables that were given.
fn calibrate(calibration: Option<&Calibration>, spec: &mut Spec) -> anyhow::Result<()> {
    let applied = calibration.map_or(Ok(()), |tables| tables.apply(spec));
    Ok(applied.map_err(Usage::from)?)
}

fn run_one(args: &Args, cases: &[Case], calibration: Option<&Calibration>) -> anyhow::Result<()> {
    let (mut spec, source, cut) = pair(args)?;
    calibrate(calibration, &mut spec)?;
    let &[costs] = &*swept(args, calibration) else {
        let told = "several values of --switch-ms, --timeslice-us or --fault-us are for a table of \
                    scenarios: add --scenarios, or give one";
        return Err(Usage(told.to_owned()).into());
    };
    spec.timeline = args.html.is_some() || args.timeline.is_some();
    let workloads = seeded(args, &spec, costs, &cut.to_string(), 1);
    let shown = cases
        .iter()
        .find(|case| **case == TIDEGATE)
        .or(cases.first());
    let keep = |workload, case| {
        workload == 0 && (args.html.is_some() || spec.timeline && shown == Some(&case))
    };
    let evaluation = compute(args, &workloads, cases, keep)?;
    let mut setting = report::setting(&spec, workloads.len() as u64);
    setting.extend(calibration.map(|tables| ("Tables", tables.words([&spec]))));
    let report = Report {
        source,
        setting,
        alone: Alone::of(&evaluation),
        rows: report::rows(&evaluation, cases),
    };
    let kept = evaluation.ran.iter().filter_map(|ran| {
        let outcome = ran.outcome.as_ref()?;
        Some(Drawn {
            case: ran.figures.case,
            outcome,
        })
    });
    let kept: Vec<Drawn<'_>> = kept.collect();
    if let (Some(file), Some(alone)) = (&args.html, evaluation.alone.first()) {
        write(file, &html::page(&report, alone, &kept))?;
    }
    let shown = kept.iter().find(|drawn| Some(&drawn.case) == shown);
    if let (Some(file), Some(shown)) = (&args.timeline, shown) {
        let mut about =
            json!({ "source": report.source, "policy": shown.case.to_string(), "seed": 1 });
        if let Some(tables) = calibration {
            about["tables"] = tables.words([&spec]).into();
        }
        write_timeline(file, &Timeline::of(shown.outcome), &about)?;
    }
    let figures = figures_of(evaluation);
    write_figures(args, &figures)?;
    print(&table::text(&report))
}

fn run_table(
    args: &Args,
    file: &Path,
    cases: &[Case],
    calibration: Option<&Calibration>,
) -> anyhow::Result<()> {
    let traces = args.traces.as_deref().unwrap_or(Path::new("."));
    let out = args.out.as_deref().unwrap_or(Path::new("."));
    let mut scenarios = scenarios::read(file, traces)?;
    for id in &args.only {
        let known = scenarios.iter().map(|scenario| (scenario.id.as_str(), ()));
        find("scenario", id, known).map_err(Usage::from)?;
    }
    let asked = |id: &str| args.only.iter().any(|only| only.eq_ignore_ascii_case(id));
    scenarios.retain(|scenario| args.only.is_empty() || asked(&scenario.id));
    std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let mut specs = Vec::new();
    for scenario in &scenarios {
        let mut spec = scenario.spec()?;
        calibrate(calibration, &mut spec).with_context(|| scenario.id.clone())?;
        specs.push(spec);
    }
    let swept = swept(args, calibration);
    let mut workloads = Vec::new();
    for costs in &swept {
        for (scenario, spec) in scenarios.iter().zip(&specs) {
            workloads.extend(seeded(args, spec, *costs, &scenario.cut.to_string(), 3));
        }
    }
    let evaluation = compute(args, &workloads, cases, |_, _| false)?;
    let figures = figures_of(evaluation);
    write(&out.join("results.csv"), &csv(&figures))?;
    write_figures(args, &figures)?;
    // By costs, then by scenario, each with its seeds and cases.
    let per_costs = (figures.len() / swept.len()).max(1);
    for (costs, figures) in swept.iter().zip(figures.chunks(per_costs)) {
        let per_scenario = (figures.len() / scenarios.len().max(1)).max(1);
        let blocks: Vec<(String, Vec<Row>)> = scenarios
            .iter()
            .zip(figures.chunks(per_scenario))
            .map(|(scenario, own)| {
                let own: Vec<&Figures> = own.iter().collect();
                let title = format!("{} ({})", scenario.id, scenario.cut);
                (title, cases.iter().map(|case| row(*case, &own)).collect())
            })
            .collect();
        if swept.len() > 1 {
            print(&costs_in_words(costs))?;
        }
        print(&table::scenarios(&blocks))?;
    }
    if let Some(tables) = calibration {
        print(&format!("\nTables: {}\n", tables.words(&specs)))?;
    }
    print(&format!(
        "\nwritten: {}\n",
        out.join("results.csv").display()
    ))
}

fn row(case: Case, figures: &[&Figures]) -> Row {
    let own = figures
        .iter()
        .copied()
        .filter(|figures| figures.case == case);
    Row::of(case, &own.collect::<Vec<_>>())
}

fn costs_in_words(costs: &Costs) -> String {
    let us = |cost: Duration| cost.as_secs_f64() * 1e6;
    format!(
        "\nDisable and save {} us, enable and restore {} us\n\
         Time-slice switch {} us, batch of page faults {} us\n",
        us(costs.disable_save),
        us(costs.enable_restore),
        us(costs.timeslice_switch),
        us(costs.fault_group),
    )
}

/// The same pair with each seed.
fn seeded(args: &Args, spec: &Spec, costs: Costs, cut: &str, seeds: u64) -> Vec<Workload> {
    let workload = |seed| Workload {
        spec: Spec {
            seed,
            costs,
            ..spec.clone()
        },
        cut: cut.to_owned(),
    };
    (1..=args.seeds.unwrap_or(seeds)).map(workload).collect()
}

fn figures_of(evaluation: Evaluation) -> Vec<Figures> {
    evaluation.ran.into_iter().map(|ran| ran.figures).collect()
}

fn compute(
    args: &Args,
    workloads: &[Workload],
    cases: &[Case],
    keep: impl Fn(usize, Case) -> bool + Sync,
) -> anyhow::Result<Evaluation> {
    // Drawn on standard error, and not at all where that is no terminal.
    let bar = ProgressBar::new(runs(workloads.len(), cases) as u64);
    let style = "{msg} {wide_bar} {pos} of {len} runs, {eta} left";
    bar.set_style(ProgressStyle::with_template(style).context("the progress bar's template")?);
    bar.set_message("replaying");
    let threads = args.threads.unwrap_or_else(cores);
    let evaluation = evaluate(workloads, cases, threads, keep, || bar.inc(1));
    bar.finish_and_clear();
    Ok(evaluation?)
}

/// What the options describe: the pair, where its requests are from in words, and their cut.
fn pair(args: &Args) -> anyhow::Result<(Spec, String, Cut)> {
    let model = |name: &str| scenarios::model(&args.gpu, name).map_err(Usage::from);
    let (online_model, offline_model) = (model(&args.online)?, model(&args.offline)?);
    let kv_pool_bytes = match args.kv_gib {
        Some(gib) => (gib * (1u64 << 30) as f64) as u64,
        None => left(&args.gpu, [&online_model, &offline_model]).ok_or_else(|| {
            Usage(format!(
                "the weights of both models do not fit into 90 % of {}'s memory; give --kv-gib if \
                 they are split over several GPUs",
                args.gpu.name
            ))
        })?,
    };
    let cut = Cut {
        keep_1_in: args.thin,
        stretch: args.stretch,
        from: args.from,
        length: args.length,
    };
    let (trace, name) = requests(args, &cut)?;
    let lengths = match &args.offline_lengths {
        Some(file) => read_lengths(file)?,
        None => chat_lengths(),
    };
    let spec = Spec {
        scenario: name.clone(),
        seed: 1,
        gpu: args.gpu,
        online: Online {
            model: online_model,
            trace: Arc::new(trace),
            gaps: args.gaps,
            limits: Limits::default(),
            batching: Batching::default(),
        },
        offline: Offline {
            model: offline_model,
            lengths: lengths.into(),
            limits: Limits {
                prefill_tokens: args.offline_chunk,
                ..Limits::default()
            },
            batching: Batching::default(),
        },
        kv_pool_bytes,
        compute: Compute::Standalone,
        memory: Memory::Prism,
        costs: Costs::default(),
        timeline: false,
    };
    Ok((spec, format!("{name}: {cut}"), cut))
}

fn requests(args: &Args, cut: &Cut) -> anyhow::Result<(Trace, String)> {
    if let Some(file) = &args.trace {
        let name = file.file_name().unwrap_or(file.as_os_str());
        return Ok((read_cut(file, cut)?, name.to_string_lossy().into_owned()));
    }
    let preset = args.synthetic.unwrap_or(CONVERSATION);
    let length = args.length.unwrap_or(Duration::from_secs(1_200));
    let trace = preset.generate(1, args.from + length).cut(cut);
    if trace.is_empty() {
        return Err(Usage(format!(
            "synthetic trace {}: {cut}: no request is left",
            preset.name
        ))
        .into());
    }
    Ok((trace, format!("synthetic {}", preset.name)))
}

/// Bytes that the weights of both models, two bytes a parameter, leave of 90 % of the GPU.
fn left(gpu: &Gpu, models: [&Model; 2]) -> Option<u64> {
    let weights: u64 = models
        .iter()
        .map(|model| 2 * model.shape.parameters())
        .sum();
    (gpu.memory_bytes / 10 * 9)
        .checked_sub(weights)
        .filter(|left| *left > 0)
}

/// A backlog with the lengths of a chat service: 20 minutes of it, the same for every seed.
fn chat_lengths() -> Vec<Lengths> {
    let requests = CONVERSATION.generate(1, Duration::from_secs(1_200));
    let lengths = requests.requests().iter().map(|request| Lengths {
        input_tokens: request.input_tokens,
        output_tokens: request.output_tokens,
    });
    lengths.collect()
}

fn write_figures(args: &Args, figures: &[Figures]) -> anyhow::Result<()> {
    if let Some(file) = &args.csv {
        write(file, &csv(figures))?;
    }
    if let Some(file) = &args.json {
        let figures: Vec<Value> = figures.iter().map(Figures::json).collect();
        write(file, &format!("{:#}\n", json!({ "results": figures })))?;
    }
    Ok(())
}

pub(super) fn write_timeline(
    file: &Path,
    timeline: &Timeline,
    about: &Value,
) -> anyhow::Result<()> {
    let written = std::fs::File::create(file).and_then(|opened| {
        let mut out = std::io::BufWriter::new(opened);
        timeline.write(&mut out, about)?;
        out.flush()
    });
    written.with_context(|| format!("cannot write {}", file.display()))
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Says before the work that its result could not be kept.
pub(super) fn writable(file: &Path) -> anyhow::Result<()> {
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    let dir = dir.unwrap_or(Path::new("."));
    anyhow::ensure!(
        dir.is_dir() && !file.is_dir(),
        "cannot write {}: {} is not a directory, or the file is one",
        file.display(),
        dir.display()
    );
    Ok(())
}
