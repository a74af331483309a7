//! What `tidegate replay` is asked, and the pair that the options describe.

use std::fmt::Write;
use std::io::Write as _;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::values::{any, known};
use anyhow::Context;
use serde_json::Value;
use tidegate_agent::config::rise;
use tidegate_policy::config::Slo;
use tidegate_replay::calibration::Calibration;
use tidegate_replay::comparison::table::class;
use tidegate_replay::costs::Costs;
use tidegate_replay::draw::{self, Half};
use tidegate_replay::engine::Limits;
use tidegate_replay::gap::{self, GapModel};
use tidegate_replay::generator::{self, CONVERSATION, Preset};
use tidegate_replay::hardware::{self, Gpu};
use tidegate_replay::names::{UnknownName, find};
use tidegate_replay::run::beside::Platform;
use tidegate_replay::scenarios::{self, FACTOR};
use tidegate_replay::spec::{Batching, Compute, Memory, Offline, Online, Spec};
use tidegate_replay::timeline::Timeline;
use tidegate_replay::trace::{Cut, Lengths, Trace, read_cut, read_lengths};

/// What to replay, and what to write.
#[derive(Debug, clap::Args)]
#[command(after_help = after_help(), next_line_help = true, group = clap::ArgGroup::new("many"))]
pub struct Args {
    /// Online requests: Azure, BurstGPT, Mooncake, or CSV with
    /// arrival_s,input_tokens,output_tokens; gzipped or not
    #[arg(long, value_name = "FILE", verbatim_doc_comment, help_heading = REQUESTS,
          conflicts_with = "many", required_unless_present_any = ["synthetic", "many", "decisions"])]
    pub(super) trace: Option<PathBuf>,
    /// Online requests from published figures: conversation, code, caller
    #[arg(long, value_name = "PRESET", help_heading = REQUESTS, hide_possible_values = true,
          value_parser = known(generator::PRESETS.map(|preset| preset.name), preset),
          conflicts_with_all = ["trace", "many"])]
    pub(super) synthetic: Option<Preset>,
    /// Keep about one request in N; bursts stay as they are
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = REQUESTS,
          conflicts_with = "many", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) thin: u64,
    /// Multiply the times between arrivals
    #[arg(long, value_name = "FACTOR", default_value = "1", help_heading = REQUESTS,
          conflicts_with = "many", allow_negative_numbers = true, value_parser = factor)]
    pub(super) stretch: f64,
    /// Begin at this second of the trace
    #[arg(long, value_name = "S", default_value = "0", help_heading = REQUESTS,
          conflicts_with = "many", allow_negative_numbers = true, value_parser = seconds)]
    pub(super) from: Duration,
    /// Seconds to replay (default: to the end, or 1200 of a synthetic trace)
    #[arg(long, value_name = "S", help_heading = REQUESTS, conflicts_with = "many",
          allow_negative_numbers = true, value_parser = seconds)]
    pub(super) length: Option<Duration>,
    /// Lengths of the offline requests: CSV with input_tokens,output_tokens
    /// (default: those of a chat service)
    #[arg(long, value_name = "FILE", verbatim_doc_comment, help_heading = REQUESTS,
          conflicts_with = "many")]
    pub(super) offline_lengths: Option<PathBuf>,

    /// Online's model: llama-3.1-8b, qwen2.5-7b, or one of your own,
    /// custom:layers=L,hidden=H,heads=N[,kv-heads=K][,inner=I][,vocabulary=V]
    /// [,head=D][,experts=E,chosen=C], with costs scaled from llama's; so are
    /// llama-3.1-70b, qwen2.5-72b, mixtral-8x7b,
    /// qwen3-30b-a3b
    #[arg(long, value_name = "MODEL", default_value = "llama-3.1-8b", verbatim_doc_comment,
          help_heading = NODE, conflicts_with = "many", hide_possible_values = true,
          value_parser = known(models(), any))]
    pub(super) online: String,
    /// The offline job's model
    #[arg(long, value_name = "MODEL", default_value = "qwen2.5-7b", help_heading = NODE,
          conflicts_with = "many", hide_possible_values = true, value_parser = known(models(), any))]
    pub(super) offline: String,
    /// The GPU: h100, h200, a100; scaled from these by data sheet: l40s, a10,
    /// l4, b200, rtx-pro-6000, or one of yours, in GiB, GB/s and bf16 TFLOPS:
    /// custom:memory=48,bandwidth=864,flops=362
    #[arg(long, default_value = "h200", help_heading = NODE, conflicts_with = "many",
          verbatim_doc_comment, hide_possible_values = true,
          value_parser = known(hardware::all().map(|gpu| gpu.name), scenarios::gpu))]
    pub(super) gpu: Gpu,
    /// Memory for the KV caches of both, GiB (default: 90 % of the GPU less
    /// the weights of both models)
    #[arg(long, value_name = "GIB", verbatim_doc_comment, help_heading = NODE,
          conflicts_with = "many", allow_negative_numbers = true, value_parser = gib)]
    pub(super) kv_gib: Option<f64>,
    /// Prompt tokens of one offline iteration
    #[arg(long, value_name = "TOKENS", default_value_t = 2_048, help_heading = NODE,
          conflicts_with = "many", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) offline_chunk: u32,
    /// Pauses between online's decodes: overlap, vllm, sync
    #[arg(long, value_name = "PRESET", default_value = "vllm", help_heading = NODE,
          conflicts_with = "many", hide_possible_values = true,
          value_parser = known(gap::PRESETS.map(|preset| preset.name), scenarios::gap_preset))]
    pub(super) gaps: GapModel,
    /// Iteration times and handle costs from the tables in DIR instead of the
    /// fits that ship: iteration_prefill.csv, iteration_decode.csv, costs.csv
    #[arg(long, value_name = "DIR", verbatim_doc_comment, help_heading = NODE)]
    pub(super) calibration: Option<PathBuf>,

    /// Compute policies, or pairs COMPUTE+MEMORY
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = COMPARED,
          hide_possible_values = true, value_parser = known(Compute::NAMES.map(|(name, _)| name), any))]
    pub(super) policy: Vec<String>,
    /// Memory policies
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = COMPARED,
          hide_possible_values = true, value_parser = known(Memory::NAMES.map(|(name, _)| name), any))]
    pub(super) memory: Vec<String>,
    /// Repeat with seeds 1 to N (default: 1, or 3 for a table of scenarios)
    #[arg(long, value_name = "N", help_heading = COMPARED,
          value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(super) seeds: Option<u64>,
    /// How long disable and save take, and enable and restore; a table of
    /// scenarios is run with each of several values
    #[arg(long, value_name = "MS", value_delimiter = ',', verbatim_doc_comment,
          help_heading = COMPARED, allow_negative_numbers = true, value_parser = switch)]
    pub(super) switch_ms: Vec<Duration>,
    /// How long an idle online engine takes from a request to its first
    /// launch: the lead of a policy that hears of requests (TidegateHints)
    #[arg(long, value_name = "MS", verbatim_doc_comment, help_heading = COMPARED,
          allow_negative_numbers = true, value_parser = switch)]
    pub(super) lead_ms: Option<Duration>,
    /// One switch between two programs' time slices (GPreempt, NoControl)
    #[arg(long, value_name = "US", value_delimiter = ',', help_heading = COMPARED,
          allow_negative_numbers = true, value_parser = micros)]
    pub(super) timeslice_us: Vec<Duration>,
    /// One batch of page faults (UVM)
    #[arg(long, value_name = "US", value_delimiter = ',', help_heading = COMPARED,
          allow_negative_numbers = true, value_parser = micros)]
    pub(super) fault_us: Vec<Duration>,
    /// By how much the mean times to first token and per further token may
    /// rise, as in [slo] of agent.toml: such as +1%,+0.5%
    #[arg(long, value_name = "TTFT,TPOT", verbatim_doc_comment, help_heading = COMPARED,
          conflicts_with = "finetune", value_parser = slo)]
    pub(super) slo: Option<Slo>,
    /// A finetuning job instead of a batch job, MODEL[:r=RANK][,length=N];
    /// --policy then names schedulers of trainers
    #[arg(long, value_name = "JOB", verbatim_doc_comment, help_heading = TUNED,
          conflicts_with = "memory")]
    pub(super) finetune: Option<String>,
    /// Times per further token that online may take
    #[arg(long, value_name = "TIME", value_delimiter = ',', default_value = "10ms,20ms,40ms",
          help_heading = TUNED, requires = "finetune", value_parser = tpot)]
    pub(super) tpot: Vec<u64>,
    /// How online and the trainer share the GPU: two-process, one-process,
    /// time-sliced
    #[arg(long, value_name = "NAME", default_value = "two-process", verbatim_doc_comment,
          help_heading = TUNED, requires = "finetune", hide_possible_values = true,
          value_parser = known(PLATFORMS.map(class), platform))]
    pub(super) platform: Platform,
    /// Run all trainer schedulers on all scenarios; writes table.csv
    #[arg(long, help_heading = TUNED, requires_all = ["finetune", "scenarios"])]
    pub(super) table: bool,

    /// Threads (default: one per core)
    #[arg(long, value_name = "N", help_heading = COMPARED)]
    pub(super) threads: Option<NonZeroUsize>,

    /// All figures as JSON
    #[arg(long, value_name = "FILE", help_heading = WRITTEN)]
    pub(super) json: Option<PathBuf>,
    /// All figures as CSV
    #[arg(long, value_name = "FILE", help_heading = WRITTEN)]
    pub(super) csv: Option<PathBuf>,
    /// Write a report with plots, as one self-contained HTML file
    #[arg(long, value_name = "FILE", help_heading = WRITTEN, conflicts_with = "many")]
    pub(super) html: Option<PathBuf>,
    /// Draw who has the GPU as an SVG file: online alone and the first three
    /// policies
    #[arg(long, value_name = "FILE", verbatim_doc_comment, help_heading = WRITTEN,
          conflicts_with_all = ["many", "finetune"])]
    pub(super) picture: Option<PathBuf>,
    /// Write a timeline for https://ui.perfetto.dev: of Tidegate, or else of
    /// the first policy
    #[arg(long, value_name = "FILE", verbatim_doc_comment, help_heading = WRITTEN,
          conflicts_with = "many")]
    pub(super) timeline: Option<PathBuf>,

    /// A table of scenarios to run instead of one pair: CSV with columns
    /// id, gpu, online_trace, thin_keep_1_in (1: all), online_model,
    /// offline_model, offline_lengths, offline_chunk_tokens, kv_pool_gib,
    /// and if wanted class, stretch, gaps; others are notes
    #[arg(long, value_name = "FILE", verbatim_doc_comment, help_heading = TABLE,
          requires_all = ["traces", "out"], group = "many")]
    pub(super) scenarios: Option<PathBuf>,
    /// Compare what placement predicts for every offline job beside every
    /// online load with what the job gets; writes predict.csv
    #[arg(long, verbatim_doc_comment, help_heading = TABLE, requires = "scenarios",
          conflicts_with_all = ["finetune", "policy", "memory", "json", "csv", "switch_ms",
                                "timeslice_us", "fault_us"])]
    pub(super) predict: bool,
    /// A CSV with kinds of nodes and jobs: play 8 hours of that fleet, half
    /// full and overfull, under several rules of placement; writes fleet.csv
    #[arg(long, value_name = "FILE", verbatim_doc_comment, help_heading = TABLE, group = "many",
          requires_all = ["traces", "out"],
          conflicts_with_all = ["finetune", "policy", "memory", "json", "csv", "switch_ms",
                                "timeslice_us", "fault_us"])]
    pub(super) fleet: Option<PathBuf>,
    /// Draw N scenarios from the traces: trace, cut, GPU, models, lengths,
    /// chunk and memory
    #[arg(long, value_name = "N", verbatim_doc_comment, help_heading = TABLE, group = "many",
          requires_all = ["traces", "out"], conflicts_with = "finetune",
          value_parser = clap::value_parser!(u32).range(1..=draw::MOST as i64))]
    pub(super) draw: Option<u32>,
    /// Random seed of --draw
    #[arg(long, value_name = "S", help_heading = TABLE, requires = "draw", default_value_t = 1)]
    pub(super) seed: u64,
    /// Draw from one half of the traces only: first, second. What is tuned
    /// on one half can be judged on the other
    #[arg(long, value_name = "HALF", verbatim_doc_comment, help_heading = TABLE, requires = "draw",
          hide_possible_values = true, value_parser = known(Half::ALL.map(|half| half.name()), half))]
    pub(super) half: Option<Half>,
    /// Directory of the traces of the table, or of those to draw from
    #[arg(long, value_name = "DIR", help_heading = TABLE, requires = "many")]
    pub(super) traces: Option<PathBuf>,
    /// Output directory
    #[arg(long, value_name = "DIR", verbatim_doc_comment, help_heading = TABLE, requires = "many")]
    pub(super) out: Option<PathBuf>,
    /// Only these scenarios of the table
    #[arg(long, value_name = "ID", value_delimiter = ',', help_heading = TABLE,
          requires = "scenarios")]
    pub(super) only: Vec<String>,

    /// Make the decisions of a recording (tidegate-agent --record) again and
    /// compare; exits with 1 at the first line that differs
    #[arg(long, value_name = "FILE", verbatim_doc_comment, help_heading = RECORDED,
          exclusive = true)]
    pub(super) decisions: Option<PathBuf>,
}

const REQUESTS: &str = "Requests";
const NODE: &str = "Models and GPU";
const COMPARED: &str = "What is compared";
const TUNED: &str = "Finetuning";
const WRITTEN: &str = "What is written";
const TABLE: &str = "Many scenarios";
const RECORDED: &str = "A recorded node";

const COMPARED_BY_DEFAULT: &str = "\
Compared unless told otherwise: NoControl+Prism, KernelPreempt+UVM,
  GPreempt+UVM, Channel+UVM, Channel+Prism, Channel+StaticMem, Tidegate, Oracle";

/// Every policy with what it does.
fn after_help() -> String {
    let mut text = String::from("Compute policies, who has the GPU when:\n");
    let mut last = String::new();
    for (_, compute) in Compute::NAMES {
        let name = match compute {
            Compute::TemporalShare(_) => "TemporalShare(N)".to_owned(),
            Compute::OneEngine(_) => "OneEngine(N)".to_owned(),
            other => other.name(),
        };
        if name != last {
            let _ = writeln!(text, "  {name:<22}{}", compute.about());
        }
        last = name;
    }
    text.push_str("Memory policies, who has its memory when:\n");
    for (name, memory) in Memory::NAMES {
        let _ = writeln!(text, "  {name:<22}{}", memory.about());
    }
    text + COMPARED_BY_DEFAULT
}

/// The command line asks for something that is not there.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub(crate) String);

impl From<UnknownName> for Usage {
    fn from(unknown: UnknownName) -> Self {
        Self(unknown.to_string())
    }
}

/// Models by name.
fn models() -> impl Iterator<Item = &'static str> {
    let names = hardware::MODELS.iter().chain(&hardware::SHAPES);
    names.map(|(name, _)| *name)
}

fn preset(name: &str) -> Result<Preset, UnknownName> {
    find(
        "synthetic trace",
        name,
        generator::PRESETS.map(|preset| (preset.name, preset)),
    )
}

fn half(name: &str) -> Result<Half, UnknownName> {
    find("half", name, Half::ALL.map(|half| (half.name(), half)))
}

const PLATFORMS: [Platform; 3] = [
    Platform::TwoProcess,
    Platform::OneProcess,
    Platform::TimeSliced,
];

/// A platform by its name.
fn platform(name: &str) -> Result<Platform, String> {
    let known = PLATFORMS.into_iter().find(|known| class(*known) == name);
    known.ok_or_else(|| format!("give one of {}", PLATFORMS.map(class).join(", ")))
}

/// Two rises.
fn slo(text: &str) -> Result<Slo, String> {
    let rises = text
        .split_once(',')
        .and_then(|(ttft, tpot)| Some((rise(ttft)?, rise(tpot)?)));
    rises
        .filter(|(ttft, tpot)| *ttft > 0 && *tpot > 0)
        .map(|(ttft, tpot)| Slo { ttft, tpot })
        .ok_or_else(|| "give two rises above 0, such as +1%,+0.5%".to_owned())
}

/// A time per further token, ns.
fn tpot(text: &str) -> Result<u64, String> {
    let ms = text
        .strip_suffix("ms")
        .unwrap_or(text)
        .trim()
        .parse::<f64>();
    let ms = ms.ok().filter(|ms| *ms > 0.0 && *ms <= 60_000.0);
    ms.map(|ms| (ms * 1e6) as u64)
        .ok_or_else(|| "give a time in milliseconds, such as 20ms".to_owned())
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
pub(super) fn swept(args: &Args, calibration: Option<&Calibration>) -> Vec<Costs> {
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
    with(args.lead_ms.as_slice(), |costs, lead| Costs {
        lead,
        ..costs
    });
    all
}

/// `spec` by the tables that were given.
pub(super) fn calibrate(calibration: Option<&Calibration>, spec: &mut Spec) -> anyhow::Result<()> {
    let applied = calibration.map_or(Ok(()), |tables| tables.apply(spec));
    Ok(applied.map_err(Usage::from)?)
}

/// What the options describe: the pair, where its requests are from in words, and their cut.
pub(super) fn pair(args: &Args) -> anyhow::Result<(Spec, String, Cut)> {
    let model = |name: &str| scenarios::model(&args.gpu, name).map_err(Usage::from);
    let (online_model, offline_model) = (model(&args.online)?, model(&args.offline)?);
    let kv_pool_bytes = match args.kv_gib {
        Some(gib) => pool_bytes(&args.gpu, gib)?,
        None => args.gpu.left(&[&online_model, &offline_model]).ok_or_else(|| {
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
        slo: None,
        timeline: false,
    };
    Ok((spec, format!("{name}: {cut}"), cut))
}

/// A pool of so many GiB, if the GPU has that much memory.
fn pool_bytes(gpu: &Gpu, gib: f64) -> Result<u64, Usage> {
    const GIB: f64 = (1u64 << 30) as f64;
    let has = gpu.memory_bytes as f64 / GIB;
    if gib > has {
        return Err(Usage(format!(
            "--kv-gib {gib}: the memory of the GPU, {}, is {has:.0} GiB",
            gpu.name
        )));
    }
    Ok((gib * GIB) as u64)
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

/// A backlog with the lengths of a chat service: 20 minutes of it, the same for every seed.
pub(crate) fn chat_lengths() -> Vec<Lengths> {
    let requests = CONVERSATION.generate(1, Duration::from_secs(1_200));
    let lengths = requests.requests().iter().map(|request| Lengths {
        input_tokens: request.input_tokens,
        output_tokens: request.output_tokens,
    });
    lengths.collect()
}

pub(super) fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Writes a timeline, with what it is about.
pub(crate) fn write_timeline(
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
