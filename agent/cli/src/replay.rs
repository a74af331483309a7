//! `tidegate replay`: what would I harvest, and what would it cost?
//!
//! Asks no agent and touches no GPU: two workloads meet in virtual time, under the policy code that
//! the agent runs and under what it is compared with. Either one trace of the user's, answered in a
//! table and words, or a table of scenarios or drawn ones, answered with `results.csv`.

mod ask;
mod compute;
mod drawn;
mod finetune;
mod fleet;
mod predict;

pub(crate) use ask::chat_lengths;
pub use ask::{Args, Usage};

use super::print::print;
pub(super) use ask::write_timeline;
use ask::{calibrate, pair, swept, write};
use compute::{compute, figures_of, seeded, write_figures};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde_json::json;
use tidegate_record::Replayed;
use tidegate_replay::calibration::Calibration;
use tidegate_replay::cases::{Case, TIDEGATE};
use tidegate_replay::costs::Costs;
use tidegate_replay::figures::{Figures, csv};
use tidegate_replay::names::find;
use tidegate_replay::record::Outcome;
use tidegate_replay::report::html::{self, Drawn};
use tidegate_replay::report::picture::{self, Shown};
use tidegate_replay::report::{self, Alone, Report, Row, table};
use tidegate_replay::scenarios::{self};
use tidegate_replay::spec::Compute;
use tidegate_replay::timeline::Timeline;

/// Carries the command out.
///
/// # Errors
/// When a name is unknown, a file cannot be used, or a workload cannot be run.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(file) = &args.decisions {
        return decide_again(file);
    }
    for file in files_of(args).into_iter().flatten() {
        writable(file)?;
    }
    if let Some(asked) = &args.finetune {
        let calibration = args.calibration.as_deref().map(Calibration::load);
        return finetune::run(args, asked, calibration.transpose()?.as_ref());
    }
    let cases = Case::named(&args.policy, &args.memory).map_err(Usage::from)?;
    let calibration = args.calibration.as_deref().map(Calibration::load);
    let calibration = calibration.transpose()?;
    if let Some(file) = &args.fleet {
        return fleet::run(args, file, calibration.as_ref());
    }
    if let Some(count) = args.draw {
        return drawn::run(args, count, calibration.as_ref());
    }
    match &args.scenarios {
        Some(file) => run_table(args, file, &cases, calibration.as_ref()),
        None => run_one(args, &cases, calibration.as_ref()),
    }
}

/// Files that are written where they are asked for.
const fn files_of(args: &Args) -> [&Option<PathBuf>; 5] {
    [
        &args.html,
        &args.picture,
        &args.timeline,
        &args.json,
        &args.csv,
    ]
}

/// Makes the decisions of a recording again.
fn decide_again(file: &Path) -> anyhow::Result<()> {
    let recording = File::open(file).with_context(|| {
        let file = file.display();
        format!("cannot read {file}: check the path")
    })?;
    let replayed = tidegate_record::replay(BufReader::new(recording))
        .with_context(|| format!("{} is not decided again", file.display()))?;
    let Replayed { events, effects } = replayed;
    print(&format!(
        "{events} events, {effects} effects: decided again, all as recorded\n"
    ))
}

fn run_one(args: &Args, cases: &[Case], calibration: Option<&Calibration>) -> anyhow::Result<()> {
    let (mut spec, source, cut) = pair(args)?;
    calibrate(calibration, &mut spec)?;
    let &[costs] = &*swept(args, calibration) else {
        let told = "several values of --switch-ms, --timeslice-us or --fault-us are for a table of \
                    scenarios: add --scenarios, or give one";
        return Err(Usage(told.to_owned()).into());
    };
    let drawn = args.html.is_some() || args.picture.is_some();
    spec.timeline = drawn || args.timeline.is_some();
    let workloads = seeded(args, &spec, costs, &cut.to_string(), 1);
    let shown = cases
        .iter()
        .find(|case| **case == TIDEGATE)
        .or(cases.first());
    let keep = |workload, case| workload == 0 && (drawn || spec.timeline && shown == Some(&case));
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
    if let (Some(file), Some(alone)) = (&args.picture, evaluation.alone.first()) {
        write(file, &pictured(&report, alone, &kept))?;
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
    print(&table::text(&report))?;
    let written: Vec<String> = files_of(args)
        .into_iter()
        .flatten()
        .map(|file| file.display().to_string())
        .collect();
    if written.is_empty() {
        return Ok(());
    }
    print(&format!("\nwritten: {}\n", written.join(", ")))
}

/// Online alone, and the first three policies.
fn pictured(report: &Report, alone: &Outcome, kept: &[Drawn<'_>]) -> String {
    let names: Vec<String> = kept
        .iter()
        .map(|drawn| match drawn.case.compute {
            Compute::NoControl => "Both, without control".to_owned(),
            Compute::Tidegate if drawn.case == TIDEGATE => "Both, with Tidegate".to_owned(),
            _ => drawn.case.to_string(),
        })
        .collect();
    let of_policies = names.iter().zip(kept).take(3);
    let mut shown = vec![Shown {
        name: "Online alone",
        outcome: alone,
    }];
    shown.extend(of_policies.map(|(name, drawn)| Shown {
        name,
        outcome: drawn.outcome,
    }));
    picture::svg(&shown, &format!("{}, in virtual time", report.source))
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
    if args.predict {
        return predict::run(args, &scenarios, calibration);
    }
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
