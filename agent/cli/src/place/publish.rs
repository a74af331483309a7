//! `tidegate place publish`.

use super::look::{Look, Seen};
use crate::agent::{Agent, report, runtime};
use crate::print::print;
use crate::values::span;
use clap::{Args as ClapArgs, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;
use tidegate_agent::clock::unix_ns;
use tidegate_place::engine::Patience;
use tidegate_place::memo::Memo;
use tidegate_place::offers::Offer;
use tidegate_place::said::Said;
use tidegate_place::{metrics, nfd, slurm};

/// How long the agent may take to answer.
const AGENT: Duration = Duration::from_secs(2);

/// See each field.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    look: Look,
    /// The engine to publish to.
    #[arg(long, value_enum)]
    engine: Engine,
    /// Print what would be published, and publish nothing.
    #[arg(long)]
    dry_run: bool,
    /// Slurm's name of this node (default: as slurmd reports it, or the host name).
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Slurm's program.
    #[arg(long, value_name = "PROGRAM", default_value = "scontrol")]
    scontrol: String,
    /// Slurm's program that lists jobs.
    #[arg(long, value_name = "PROGRAM", default_value = "squeue")]
    squeue: String,
    /// The feature file (with nfd).
    #[arg(long, value_name = "FILE", default_value = nfd::FILE, next_line_help = true)]
    file: PathBuf,
    /// How often this runs (with nfd). The file expires after three periods.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = span)]
    period: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// Features and weight of this node, by `scontrol update`.
    Slurm,
    /// A feature file of Kubernetes' node-feature-discovery.
    Nfd,
}

impl Engine {
    const fn name(self) -> &'static str {
        match self {
            Self::Slurm => "slurm",
            Self::Nfd => "nfd",
        }
    }
}

pub(super) fn run(agent: &Agent, args: &Args) -> anyhow::Result<()> {
    let seen = args.look.see()?;
    let said = |who: &str| Said::new(&agent.run_dir, &format!("{who}-{}", args.engine.name()));
    let refused: Vec<_> = seen.refused.iter().map(ToString::to_string).collect();
    if !refused.is_empty() {
        said("profiles").say(&refused.join("; "));
    }
    // What the history says holds only while somebody keeps the gates.
    let none = seen.none.clone().or_else(|| absent(agent));
    let offers = if none.is_some() {
        Vec::new()
    } else {
        seen.offers(&Memo::read(&args.look.memo))
    };
    let done = match args.engine {
        Engine::Slurm => to_slurm(args, &seen, &offers),
        Engine::Nfd => to_nfd(args, &seen, &offers),
    };
    let line = match (done, none) {
        (Err(why), _) => format!("publishes nothing new: {why}"),
        (Ok(_), Some(why)) | (Ok(Some(why)), None) => format!("publishes nothing: {why}"),
        (Ok(None), None) => sum(&offers),
    };
    if !args.dry_run {
        said("publish").say(&line);
        let text = metrics::published(&offers);
        args.look.leave(metrics::PUBLISHED, &text, &said("metrics"));
    }
    Ok(())
}

/// Why the agent does not count; None: it answers.
fn absent(agent: &Agent) -> Option<String> {
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => return Some(error.to_string()),
    };
    let asked = runtime.block_on(async { tokio::time::timeout(AGENT, report(agent, false)).await });
    match asked {
        Ok(Ok(_)) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!(
            "the agent did not answer within {} s",
            AGENT.as_secs()
        )),
    }
}

/// What is published, in one line that changes only with it.
fn sum(offers: &[Offer]) -> String {
    let one = |offer: &Offer| {
        let (profile, gpus) = (&offer.profile, offer.gpus);
        match offer.prediction.percent() {
            Some(percent) => format!("{profile} on {gpus} GPU(s) {percent} %"),
            None => {
                let why: Vec<_> = offer
                    .prediction
                    .refusals
                    .iter()
                    .map(ToString::to_string)
                    .collect();
                format!("{profile} nothing ({})", why.join("; "))
            }
        }
    };
    let all: Vec<_> = offers.iter().map(one).collect();
    format!("publishes {}", all.join(", "))
}

/// The reason for which nothing is published, if there is one that only the engine knows.
type Told = Result<Option<String>, String>;

fn to_slurm(args: &Args, seen: &Seen, offers: &[Offer]) -> Told {
    let name = slurm::here(args.node.as_deref())?;
    let features = slurm::features(offers);
    let weight = (!offers.is_empty()).then(|| slurm::weight(seen.facts.idle));
    if args.dry_run {
        let weight = weight.map_or_else(String::new, |weight| format!(" Weight={weight}"));
        let features = features.join(",");
        let text = format!("scontrol update NodeName={name} Features={features}{weight}\n");
        return print(&text)
            .map(|()| None)
            .map_err(|error| error.to_string());
    }
    let patience = Patience::begins();
    let text = patience.run(&args.scontrol, &["--oneliner", "show", "node", &name])?;
    let shown = slurm::Shown::of(&text).ok_or_else(|| format!("Slurm knows no node {name}"))?;
    let held = held_back(args, patience, &name, &shown, &features)?;
    let features = if held.is_some() { Vec::new() } else { features };
    let told = shown.update(&features, weight);
    if let Some(told) = told {
        let node = format!("NodeName={name}");
        let mut words = vec!["update", &node];
        words.extend(told.iter().map(String::as_str));
        patience.run(&args.scontrol, &words)?;
    }
    Ok(held)
}

/// Why a node that would give something says nothing; None: nothing is against it.
///
/// What Slurm has lost keeps its features there, so a job could be given it in the moment in which it is back, while a
/// step of before still runs. So a lost node says nothing, and one that says nothing begins again once each step that
/// slurmd has here is of a job that Slurm itself has here.
fn held_back(
    args: &Args,
    patience: Patience,
    name: &str,
    shown: &slurm::Shown,
    features: &[String],
) -> Result<Option<String>, String> {
    if features.is_empty() {
        return Ok(None);
    }
    if shown.lost {
        return Ok(Some("Slurm has lost this node".to_owned()));
    }
    if !shown.says_nothing() {
        return Ok(None);
    }
    // With no step at all it fails; so it does where slurmd is away, and then nothing starts here either.
    let steps = patience
        .run(&args.scontrol, &["listpids", "*", name])
        .map_or_else(|_| <_>::default(), |text| slurm::jobs_of_steps(&text));
    if steps.is_empty() {
        return Ok(None);
    }
    let asked = ["-h", "-w", name, "-o", "%A"];
    let text = patience.run(&args.squeue, &asked)?;
    let known: Vec<_> = text.lines().map(str::trim).collect();
    let old = steps.iter().find(|job| !known.contains(&job.as_str()));
    Ok(old
        .map(|job| format!("a step of job {job} still runs here, which Slurm no longer has here")))
}

fn to_nfd(args: &Args, seen: &Seen, offers: &[Offer]) -> Told {
    let text = nfd::text(offers, seen.facts.gpus.len(), args.period, unix_ns());
    if args.dry_run {
        return print(&text)
            .map(|()| None)
            .map_err(|error| error.to_string());
    }
    let put = nfd::put(&args.file, &text).map(|()| None);
    put.map_err(|error| format!("{}: {error}", args.file.display()))
}
