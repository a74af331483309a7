//! `tidegate place profile`: what a kind of offline job needs, replayed, fitted or checked.

use super::look;
use crate::print::print;
use crate::replay::{Usage, chat_lengths};
use crate::values::ago;
use anyhow::Context as _;
use clap::{Args as ClapArgs, Subcommand};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use tidegate_agent::clock::unix_ms;
use tidegate_agent::config::size;
use tidegate_agent::watch::history::{self, JobSlice};
use tidegate_place::facts::Facts;
use tidegate_place::profiles::{self, Refused};
use tidegate_policy::ids::GpuSet;
use tidegate_policy::placement::{self, Costs, Did, Draft, Profile};
use tidegate_proto::{HISTORY_FILE, STATE_DIR};
use tidegate_replay::engine::Limits;
use tidegate_replay::hardware::Gpu;
use tidegate_replay::placing::Standalone;
use tidegate_replay::scenarios;
use tidegate_replay::spec::{Batching, Offline};
use tidegate_replay::trace::read_lengths;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Check profiles.
    Check(Check),
    /// Print the profile of a model that serves requests of some lengths, as replay computes it for a GPU. Needs no GPU.
    FromReplay(FromReplay),
    /// Print the profile of a job that ran here, fitted to its history: its rate alone, what less memory costs it, and
    /// what it lost.
    Fit(Fit),
}

/// See each field.
#[derive(Debug, ClapArgs)]
pub(crate) struct Fit {
    /// The job, by the name that `tidegate report` has.
    job: String,
    /// Name of the profile, 1 to 32 of a-z, 0-9 and _ (default: the job's).
    #[arg(long)]
    name: Option<String>,
    /// The unit of its progress; launches, if the job counts nothing itself.
    #[arg(long, default_value = "tokens")]
    unit: String,
    /// Memory at which it reaches half of its limiting rate, if its history does not show it.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    half: Option<u64>,
    /// The agent's `history.file`.
    #[arg(long, value_name = "FILE", default_value_os_t = PathBuf::from(STATE_DIR).join(HISTORY_FILE))]
    history: PathBuf,
    /// How much of the history to use: "7d", "12h".
    #[arg(long, default_value = "7d", value_name = "TIME", value_parser = ago)]
    since: u64,
}

/// See each field.
#[derive(Debug, ClapArgs)]
pub(crate) struct Check {
    /// Files (default: every profile of --profiles).
    files: Vec<PathBuf>,
    /// Directory of the profiles.
    #[arg(long, value_name = "DIR", default_value = profiles::DIR)]
    profiles: PathBuf,
}

/// See each field.
#[derive(Debug, ClapArgs)]
pub(crate) struct FromReplay {
    /// Its name: 1 to 32 of a-z, 0-9 and _.
    name: String,
    /// Its model, a name of `tidegate replay --offline`.
    #[arg(long, default_value = "qwen2.5-7b")]
    model: String,
    /// The GPU, a name of `tidegate replay --gpu`.
    #[arg(long, default_value = "h200", value_parser = scenarios::gpu)]
    gpu: Gpu,
    /// Lengths of its requests, a CSV with input_tokens,output_tokens (default: those of a chat service).
    #[arg(long, value_name = "FILE")]
    lengths: Option<PathBuf>,
    /// Memory of its KV cache, alone on the GPU, as "24GiB" (default: 90 % of the GPU's memory less its weights).
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    full: Option<u64>,
    /// Prompt tokens of one iteration.
    #[arg(long, value_name = "TOKENS", default_value_t = 2_048, value_parser = clap::value_parser!(u32).range(1..))]
    chunk: u32,
    /// Tokens that it computes again when online has taken as much as the whole pool (default: none).
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    lost: u64,
}

fn bytes(said: &str) -> Result<u64, String> {
    size(said).ok_or_else(|| format!("{said:?} is no size: a whole number and MiB or GiB"))
}

pub(super) fn run(command: &Command) -> anyhow::Result<u8> {
    match command {
        Command::Check(args) => check(args),
        Command::FromReplay(args) => from_replay(args).map(|()| 0),
        Command::Fit(args) => fit(args).map(|()| 0),
    }
}

pub(super) fn check(args: &Check) -> anyhow::Result<u8> {
    let (good, refused): (Vec<Profile>, Vec<Refused>) = if args.files.is_empty() {
        look::read(&args.profiles)?
    } else {
        let (mut good, mut refused) = (Vec::new(), Vec::new());
        for file in &args.files {
            match profiles::one(file) {
                Ok(profile) => good.push(profile),
                Err(why) => refused.push(why),
            }
        }
        (good, refused)
    };
    look::complain(&refused);
    let mut text = String::new();
    for profile in &good {
        let name = profile.name();
        text.push_str(&format!("{name}: ok, {} GPU(s)\n", profile.gpus()));
    }
    print(&text)?;
    Ok(u8::from(!refused.is_empty()))
}

fn from_replay(args: &FromReplay) -> anyhow::Result<()> {
    let model = scenarios::model(&args.gpu, &args.model).map_err(Usage::from)?;
    let most = args.gpu.left(&[&model]).ok_or_else(|| {
        let (model, gpu) = (&args.model, args.gpu.name);
        Usage(format!(
            "the weights of {model} do not fit into 90 % of {gpu}'s memory"
        ))
    })?;
    let full = args.full.unwrap_or(most);
    let (lengths, from) = match &args.lengths {
        Some(file) => (read_lengths(file)?, file.display().to_string()),
        None => (chat_lengths(), "a chat service".to_owned()),
    };
    let offline = Offline {
        model,
        lengths: lengths.into(),
        limits: Limits {
            prefill_tokens: args.chunk,
            ..Limits::default()
        },
        batching: Batching::default(),
    };
    let alone = Standalone::measure(&offline, full);
    if alone.rate() <= 0.0 {
        return Err(Usage(format!(
            "--full: the longest request takes {} MiB",
            (alone.least * 1024.0).ceil()
        ))
        .into());
    }
    let draft = alone.draft(args.name.clone(), args.lost as f64);
    let mut text = format!(
        "# {} on {}: requests as long as those of {}, {} prompt tokens an iteration.\n# Replayed, not measured on a card.\n",
        args.model,
        args.gpu.name,
        from.replace(char::is_control, "?"),
        args.chunk
    );
    write(&mut text, &draft);
    say(&args.name, &text)
}

/// A slice is a job's when it was there for all but one part in this many of it.
const AWAY: u64 = 20;

fn fit(args: &Fit) -> anyhow::Result<()> {
    let from = unix_ms().saturating_sub(args.since / 1_000_000);
    let file = args.history.display();
    let mut records =
        history::read(&args.history).with_context(|| format!("no history at {file}"))?;
    records.retain(|record| record.span.end_unix_ms > from);
    let facts = Facts::of(&records);
    let mine = |jobs: &'_ [JobSlice]| jobs.iter().find(|job| job.name == args.job).cloned();
    let own: Vec<_> = facts.slices.iter().zip(&facts.jobs).collect();
    let own: Vec<_> = own
        .into_iter()
        .filter_map(|(slice, jobs)| Some((slice, mine(jobs)?)))
        .collect();
    if own.is_empty() {
        let job = tidegate_agent::plain::line(&args.job);
        return Err(Usage(format!(
            "{file} has no job {job:?}: `tidegate report` names those that it has"
        ))
        .into());
    }
    let counts = own.iter().any(|(_, job)| job.units != 0);
    let whole = own.iter().filter(|(slice, job)| {
        let free = job.attached.saturating_sub(job.paused);
        free + slice.length_ns / AWAY >= slice.length_ns
    });
    let did: Vec<_> = whole
        .map(|(slice, job)| Did {
            slice,
            gpus: GpuSet::from_bits(job.gpus),
            units: if counts { job.units } else { job.launches },
            lost: if counts { job.lost } else { 0 },
        })
        .collect();
    let (name, unit) = (
        args.name.as_ref().unwrap_or(&args.job),
        if counts { &args.unit } else { "launches" },
    );
    #[expect(clippy::cast_precision_loss, reason = "bytes of a GPU")]
    let half = args.half.map(|bytes| bytes as f64 / f64::from(1u32 << 30));
    let fitted = placement::fit(name, unit, &did, half, &Costs::default()).map_err(|why| {
        Usage(format!(
            "job {:?}: {why}",
            tidegate_agent::plain::line(&args.job)
        ))
    })?;
    let mut text = format!(
        "# Fitted to {} slices of the history of job {:?}, which are off by {:.1} % in the mean.\n",
        fitted.slices,
        tidegate_agent::plain::line(&args.job),
        100.0 * fitted.error
    );
    write(&mut text, &fitted.draft);
    say(name, &text)
}

/// Prints a profile, which is what the node will read.
fn say(name: &str, text: &str) -> anyhow::Result<()> {
    let file = format!("{name}.toml");
    let profile = profiles::parse(Path::new(&file), text);
    profile.map_err(|wrong| Usage(format!("{}: {}", wrong.field, wrong.told)))?;
    print(text)
}

/// The lines of `draft`, in whole MiB and nanoseconds.
fn write(text: &mut String, draft: &Draft) {
    let mib = |gib: f64| format!("\"{}MiB\"", (gib * 1024.0).ceil());
    let _ = writeln!(
        text,
        "unit = {:?}",
        draft.unit.as_deref().unwrap_or_default()
    );
    let _ = writeln!(text, "gpus = {}", draft.gpus.unwrap_or(1.0));
    let _ = writeln!(text, "rate = {:.1}", draft.rate.unwrap_or(0.0));
    let _ = writeln!(text, "full = {}", mib(draft.full.unwrap_or(0.0)));
    if let Some(half) = draft.half {
        let _ = writeln!(text, "half = {}", mib(half));
    }
    if let Some(curve) = &draft.curve {
        let _ = writeln!(text, "curve = [");
        for (gib, share) in curve {
            let _ = writeln!(text, "  [{}, {share:.4}],", mib(*gib));
        }
        text.push_str("]\n");
    }
    if let Some(least) = draft.least {
        let _ = writeln!(text, "least = {}", mib(least));
    }
    if let (Some(lost), Some(again)) = (draft.lost.filter(|lost| *lost > 0.0), draft.again) {
        let _ = writeln!(
            text,
            "lost = {lost:.0}\nagain = \"{}ns\"",
            (again * 1e9).round()
        );
    }
}
