//! `tidegate replay --finetune`: what would I train beside online, and what would it cost?
//!
//! One trace, answered for each time per further token that online may take; or a table of scenarios, every
//! published scheduler beside ours, as `table.csv`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use indicatif::ProgressBar;
use serde_json::json;
use tidegate_replay::calibration::Calibration;
use tidegate_replay::comparison::page::page;
use tidegate_replay::comparison::rows::Row;
use tidegate_replay::comparison::table::{Cell, Ground, class, csv, evaluate, keeps, timeline};
use tidegate_replay::hardware::{A100, Gpu, H200};
use tidegate_replay::run::beside::{Disturbance, Platform, Way};
use tidegate_replay::scenarios;
use tidegate_replay::slo::Set;
use tidegate_replay::spec::Spec;
use tidegate_replay::sweep::cores;
use tidegate_replay::timeline::Timeline;
use tidegate_replay::trace::Cut;
use tidegate_replay::trainer::room::room;
use tidegate_replay::trainer::{Finetune, words};

use super::ask::{Args, Usage, calibrate, pair, swept, write, write_timeline};
use crate::print::print;

const PROMISED: &str = "
  Promised: 99 % of requests within that time per further token, and within
  twice online's own 99th percentile to the first. Times in ms. Own: a GPU of
  its own. Oracle: knows the future, and need not keep the promise.
  Gap: while online was away. Serial: in turn with its iterations. Fused: in
  their own pass. Spatial: on a share of the GPU.
  Virtual time: nothing here was measured on a GPU.
";

fn job(asked: &str, gpu: &Gpu) -> anyhow::Result<Finetune> {
    let (model, rank, length) = words(asked).map_err(|error| Usage(error.to_string()))?;
    let model = scenarios::model(gpu, model).map_err(Usage::from)?;
    if model.shape.experts > 1 {
        let name = &model.name;
        let refused = format!(
            "--finetune {name}: adapters of a mixture of experts are not modelled; take a model without experts"
        );
        return Err(Usage(refused).into());
    }
    Ok(Finetune::new(model, rank, length).map_err(|error| Usage(error.to_string()))?)
}

/// The rows that were asked for, each of which `platform` can run.
fn rows(args: &Args, platform: Platform) -> anyhow::Result<Vec<Row>> {
    if args.policy.is_empty() {
        return Ok(Row::of(platform));
    }
    let mut rows = Vec::new();
    for name in &args.policy {
        let names = Row::names();
        let known = names.iter().map(|(name, row)| (name.as_str(), *row));
        let row =
            tidegate_replay::names::find("trainer's policy", name, known).map_err(Usage::from)?;
        if let Some(why) = row.cannot(platform) {
            let told = format!("{} cannot run on {}: {why}", row.name(), class(platform));
            return Err(Usage(told).into());
        }
        rows.push(row);
    }
    Ok(rows)
}

/// Carries `--finetune` out.
pub(super) fn run(
    args: &Args,
    asked: &str,
    calibration: Option<&Calibration>,
) -> anyhow::Result<()> {
    match &args.scenarios {
        Some(file) => table(args, asked, file, calibration),
        None => one(args, asked, calibration),
    }
}

fn one(args: &Args, asked: &str, calibration: Option<&Calibration>) -> anyhow::Result<()> {
    let (mut spec, source, _) = pair(args)?;
    calibrate(calibration, &mut spec)?;
    let finetune = job(asked, &spec.gpu)?;
    if args.kv_gib.is_none() {
        let models = [&spec.online.model, &finetune.model];
        spec.kv_pool_bytes = spec.gpu.left(&models).ok_or_else(|| {
            Usage(format!(
                "the weights of both models do not fit into 90 % of {}'s memory",
                spec.gpu.name
            ))
        })?;
    }
    let costs = swept(args, calibration);
    spec.costs = *costs.first().context("no costs")?;
    let dedicated = finetune.dedicated(&spec.gpu);
    let grounds: Vec<Ground> = (1..=args.seeds.unwrap_or(1))
        .map(|seed| Ground {
            scenario: spec.scenario.clone(),
            spec: Spec {
                seed,
                ..spec.clone()
            },
            finetune: finetune.clone(),
        })
        .collect();
    let platform = args.platform;
    let rows = rows(args, platform)?;
    let sets: Vec<Set> = args.tpot.iter().map(|ns| Set::Tpot(*ns)).collect();
    let threads = args.threads.unwrap_or_else(cores);
    let usual = Disturbance::default();
    let alone = evaluate(
        &grounds,
        platform,
        &[Row::Alone],
        &sets[..1],
        usual,
        threads,
        || {},
    )?;
    attainable(args, &alone)?;
    let cells = evaluate(&grounds, platform, &rows, &sets, usual, threads, || {})?;
    written(args, &cells)?;
    if let Some(file) = &args.html {
        let setting = setting(&spec, &finetune, dedicated, platform, grounds.len());
        write(file, &page(&source, &setting, &alone, &cells))?;
    }
    if let (Some(file), Some(ground), Some(set)) = (&args.timeline, grounds.first(), sets.first()) {
        draw(file, ground, platform, &rows, *set, &source)?;
    }
    let mut text = format!("{source}\n");
    text += &told(args, &spec, &finetune, dedicated, grounds.len());
    text += &tables(args, &sets, &alone, &cells);
    text += PROMISED;
    print(&text)
}

/// Refuses a bound that online alone does not keep.
fn attainable(args: &Args, alone: &[Cell]) -> Result<(), Usage> {
    let needs = alone
        .iter()
        .map(|cell| cell.tpot_p99_ms)
        .fold(0.0, f64::max);
    if let Some(ns) = args.tpot.iter().find(|ns| **ns as f64 / 1e6 < needs) {
        let told = format!(
            "online alone takes {needs:.2} ms a further token for one request in a hundred, which is above the \
             {} ms asked for: give more, or thin the trace (--thin)",
            *ns as f64 / 1e6
        );
        return Err(Usage(told));
    }
    Ok(())
}

/// What is on the GPU, and what there is room for.
fn told(args: &Args, spec: &Spec, finetune: &Finetune, dedicated: f64, seeds: usize) -> String {
    let tightest = args.tpot.iter().copied().min().unwrap_or(1);
    let room = room(finetune, spec, Duration::from_nanos(tightest));
    format!(
        "  Online    {}, {} requests\n  Finetune  {}, rank {}, {} tokens a sample\n  \
         GPU       {}: {dedicated:.0} trained tokens/s on one of its own\n  \
         Memory    {} of {} layers stay where online's cache is full, {} MiB are free\n  Platform  {}, seeds 1 to {}\n\n",
        spec.online.model.name,
        spec.online.trace.len(),
        finetune.model.name,
        finetune.rank,
        finetune.length,
        spec.gpu.name,
        room.stay,
        room.layers,
        room.reserve.0 >> 20,
        class(args.platform),
        seeds,
    )
}

/// What each policy trained and cost, and by which way it trained.
fn tables(args: &Args, sets: &[Set], alone: &[Cell], cells: &[Cell]) -> String {
    let mut text = format!(
        "{:<16}{:>8}{:>8}{:>6}{:>7}{:>8}{:>7}{:>7}{:>6}\n",
        "", "trained", "steps", "of", "TTFT", "TTFT", "TPOT", "TPOT", ""
    );
    text += &format!(
        "{:<16}{:>8}{:>8}{:>6}{:>7}{:>8}{:>7}{:>7}{:>6}\n",
        "TPOT, ms", "tokens/s", "a day", "own", "mean", "p99", "mean", "p99", "keeps"
    );
    text += &line("online alone", alone);
    text += &lines(cells, sets, args, line);
    text += &format!("\n{:<16}", "of the training");
    for way in Way::ALL {
        text += &format!("{:>8}", way.name());
    }
    text += "\n";
    text += &lines(cells, sets, args, ways);
    text
}

/// What was asked, for the page.
fn setting(
    spec: &Spec,
    finetune: &Finetune,
    dedicated: f64,
    platform: Platform,
    seeds: usize,
) -> [(&'static str, String); 4] {
    [
        (
            "Online",
            format!(
                "{}, {} requests",
                spec.online.model.name,
                spec.online.trace.len()
            ),
        ),
        (
            "Finetune",
            format!(
                "{}, rank {}, {} tokens a sample",
                finetune.model.name, finetune.rank, finetune.length
            ),
        ),
        (
            "GPU",
            format!(
                "{}: {dedicated:.0} trained tokens/s on one of its own",
                spec.gpu.name
            ),
        ),
        (
            "Platform",
            format!("{}, seeds 1 to {}", class(platform), seeds),
        ),
    ]
}

/// Who had the GPU when, under ours or else the first row asked for.
fn draw(
    file: &Path,
    ground: &Ground,
    platform: Platform,
    rows: &[Row],
    set: Set,
    source: &str,
) -> anyhow::Result<()> {
    let shown = rows.iter().find(|row| **row == Row::Tidegate);
    let row = *shown.or(rows.first()).context("no policy")?;
    let spans = timeline(ground, platform, row, set)?;
    let about = json!({
        "source": source, "policy": row.name(), "slo_set": set.name(), "seed": ground.spec.seed,
    });
    write_timeline(file, &Timeline::spans(&spans), &about)
}

/// All figures, where files for them were asked for.
fn written(args: &Args, cells: &[Cell]) -> anyhow::Result<()> {
    if let Some(file) = &args.csv {
        write(file, &csv(cells))?;
    }
    if let Some(file) = &args.json {
        let cells: Vec<_> = cells.iter().map(Cell::json).collect();
        write(file, &format!("{:#}\n", json!({ "cells": cells })))?;
    }
    Ok(())
}

/// A line for each policy under each promise.
fn lines(
    cells: &[Cell],
    sets: &[Set],
    args: &Args,
    line: impl Fn(&str, &[Cell]) -> String,
) -> String {
    let mut text = String::new();
    for (set, ns) in sets.iter().zip(&args.tpot) {
        text += &format!("{} ms\n", *ns as f64 / 1e6);
        let mut names: Vec<&str> = Vec::new();
        for cell in cells.iter().filter(|cell| cell.set == *set) {
            if !names.contains(&cell.policy.as_str()) {
                names.push(&cell.policy);
            }
        }
        for name in names {
            let own: Vec<Cell> = cells
                .iter()
                .filter(|cell| cell.set == *set && cell.policy == name)
                .cloned()
                .collect();
            text += &line(&format!("  {name}"), &own);
        }
    }
    text
}

/// Which way how much of the training was done, means over seeds.
fn ways(name: &str, cells: &[Cell]) -> String {
    let mut text = format!("{name:<16}");
    for way in Way::ALL {
        let sum: f64 = cells.iter().map(|cell| cell.ways[way as usize]).sum();
        let percent = 100.0 * sum / cells.len().max(1) as f64;
        text += &format!("{percent:>7.0}%");
    }
    text + "\n"
}

/// The means over seeds.
fn line(name: &str, cells: &[Cell]) -> String {
    let count = cells.len().max(1) as f64;
    let mean = |of: fn(&Cell) -> f64| cells.iter().map(of).sum::<f64>() / count;
    let keeps = keeps(cells.iter());
    format!(
        "{name:<16}{:>8.0}{:>8.0}{:>5.0}%{:>7.1}{:>8.1}{:>7.2}{:>7.2}{keeps:>6}\n",
        mean(|cell| cell.trained_per_s),
        mean(|cell| cell.steps_per_day),
        100.0 * mean(|cell| cell.of_dedicated),
        mean(|cell| cell.ttft_mean_ms),
        mean(|cell| cell.ttft_p99_ms),
        mean(|cell| cell.tpot_mean_ms),
        mean(|cell| cell.tpot_p99_ms),
    )
}

fn table(
    args: &Args,
    asked: &str,
    file: &Path,
    calibration: Option<&Calibration>,
) -> anyhow::Result<()> {
    let traces = args.traces.as_deref().unwrap_or(Path::new("."));
    let out = args.out.as_deref().unwrap_or(Path::new("."));
    let mut scenarios = scenarios::read(file, traces)?;
    for id in &args.only {
        let known = scenarios.iter().map(|scenario| (scenario.id.as_str(), ()));
        tidegate_replay::names::find("scenario", id, known).map_err(Usage::from)?;
    }
    let asked_for = |id: &str| args.only.iter().any(|only| only.eq_ignore_ascii_case(id));
    scenarios.retain(|scenario| args.only.is_empty() || asked_for(&scenario.id));
    std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let costs = swept(args, calibration);
    let costs = *costs.first().context("no costs")?;
    let mut grounds = Vec::new();
    for gpu in [H200, A100] {
        let finetune = job(asked, &gpu)?;
        for scenario in &scenarios {
            let mut usual = scenario.spec()?;
            usual.gpu = gpu;
            usual.costs = costs;
            usual.online.model =
                scenarios::model(&gpu, &scenario.online_model.name).map_err(Usage::from)?;
            calibrate(calibration, &mut usual)?;
            let twice = Cut {
                stretch: 0.5,
                ..Cut::default()
            };
            let mut faster = usual.clone();
            faster.online.trace = Arc::new(usual.online.trace.cut(&twice));
            for (suffix, spec) in [("", usual), (" x2", faster)] {
                for seed in 1..=args.seeds.unwrap_or(3) {
                    grounds.push(Ground {
                        scenario: format!("{}{suffix}", scenario.id),
                        spec: Spec {
                            seed,
                            ..spec.clone()
                        },
                        finetune: finetune.clone(),
                    });
                }
            }
        }
    }
    let classes = [Platform::TwoProcess, Platform::OneProcess];
    let bar = ProgressBar::new((classes.len() * grounds.len()) as u64);
    let threads = args.threads.unwrap_or_else(cores);
    let mut cells = Vec::new();
    for platform in classes {
        let rows = Row::of(platform);
        let usual = Disturbance::default();
        cells.extend(evaluate(
            &grounds,
            platform,
            &rows,
            &Set::ALL,
            usual,
            threads,
            || bar.inc(1),
        )?);
    }
    bar.finish_and_clear();
    let file = out.join("table.csv");
    write(&file, &csv(&cells))?;
    written(args, &cells)?;
    print(&format!(
        "{}\nwritten: {}\n",
        summary(&cells),
        file.display()
    ))
}

/// For each class and set: where ours keeps what some row keeps, and how it compares.
fn summary(cells: &[Cell]) -> String {
    let mut text = format!(
        "{:<12} {:<11} {:>6} {:>6} {:>6} {:>9} {:>10}\n",
        "class", "set", "cells", "keeps", ">=0.99", "vs best", "vs oracle"
    );
    let ours = || cells.iter().filter(|cell| cell.policy == "Tidegate");
    for platform in [Platform::TwoProcess, Platform::OneProcess] {
        for set in Set::ALL {
            let own: Vec<&Cell> = ours()
                .filter(|cell| cell.platform == platform && cell.set == set && cell.keeps.is_some())
                .collect();
            let mean = |of: fn(&Cell) -> Option<f64>| {
                let known: Vec<f64> = own.iter().filter_map(|cell| of(cell)).collect();
                if known.is_empty() {
                    return "-".to_owned();
                }
                format!("{:.3}", known.iter().sum::<f64>() / known.len() as f64)
            };
            let keeps = own.iter().filter(|cell| cell.keeps == Some(true)).count();
            let best = own
                .iter()
                .filter(|cell| cell.vs_best_keeping.is_none_or(|ratio| ratio >= 0.99));
            text += &format!(
                "{:<12} {:<11} {:>6} {keeps:>6} {:>6} {:>9} {:>10}\n",
                class(platform),
                set.name(),
                own.len(),
                best.count(),
                mean(|cell| cell.vs_best_keeping),
                mean(|cell| cell.vs_oracle),
            );
        }
    }
    text
}
