//! What every way to run many workloads shares: how they are made, run and written down.

use super::ask::{Args, write};
use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tidegate_replay::cases::Case;
use tidegate_replay::costs::Costs;
use tidegate_replay::evaluation::{Evaluation, Workload, evaluate, runs};
use tidegate_replay::figures::{Figures, csv};
use tidegate_replay::spec::Spec;
use tidegate_replay::sweep::cores;

/// The same pair with each seed.
pub(super) fn seeded(
    args: &Args,
    spec: &Spec,
    costs: Costs,
    cut: &str,
    seeds: u64,
) -> Vec<Workload> {
    let workload = |seed| Workload {
        spec: Spec {
            seed,
            costs,
            slo: args.slo,
            ..spec.clone()
        },
        cut: cut.to_owned(),
    };
    (1..=args.seeds.unwrap_or(seeds)).map(workload).collect()
}

pub(super) fn figures_of(evaluation: Evaluation) -> Vec<Figures> {
    evaluation.ran.into_iter().map(|ran| ran.figures).collect()
}

pub(super) fn compute(
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

pub(super) fn write_figures(args: &Args, figures: &[Figures]) -> anyhow::Result<()> {
    if let Some(file) = &args.csv {
        write(file, &csv(figures))?;
    }
    if let Some(file) = &args.json {
        let figures: Vec<Value> = figures.iter().map(Figures::json).collect();
        write(file, &format!("{:#}\n", json!({ "results": figures })))?;
    }
    Ok(())
}
