//! `tidegate replay --scenarios FILE --predict`: how near is what placement says to what a job gets?

use std::fmt::Write as _;
use std::path::Path;

use super::ask::{Args, calibrate, write};
use crate::print::print;
use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use tidegate_replay::calibration::Calibration;
use tidegate_replay::placing::{
    Errors, Kind, Measured, Stage, beside, error, kinds, rank_correlation,
};
use tidegate_replay::scenarios::Scenario;
use tidegate_replay::sweep::cores;

/// Pairs of one kind from which on their order says something.
const RANKED: usize = 5;

/// One pair that something is said of.
struct Row {
    scenario: usize,
    kind: usize,
    predicted: [f64; Stage::ALL.len()],
    measured: f64,
}

/// Carries `--predict` out on these scenarios.
pub(super) fn run(
    args: &Args,
    scenarios: &[Scenario],
    calibration: Option<&Calibration>,
) -> anyhow::Result<()> {
    let out = args.out.as_deref().unwrap_or(Path::new("."));
    let kinds = kinds(scenarios);
    let mut specs = Vec::new();
    for scenario in scenarios {
        let mut own = beside(scenario, &kinds)?;
        for spec in &mut own {
            calibrate(calibration, spec).with_context(|| scenario.id.clone())?;
        }
        specs.push(own);
    }
    let bar = ProgressBar::new((scenarios.len() * kinds.len()) as u64);
    let style = "{msg} {wide_bar} {pos} of {len} runs, {eta} left";
    bar.set_style(ProgressStyle::with_template(style).context("the progress bar's template")?);
    bar.set_message("replaying");
    let threads = args.threads.unwrap_or_else(cores);
    let measured = Measured::of(&specs, args.seeds.unwrap_or(1), threads, || bar.inc(1))?;
    bar.finish_and_clear();
    let (mut rows, mut silent) = (Vec::new(), Vec::new());
    for pair in &measured.pairs {
        let name = || format!("{} {}", scenarios[pair.node].id, kinds[pair.kind].label());
        match measured.stages(pair).with_context(name)? {
            Some(predicted) => rows.push(Row {
                scenario: pair.node,
                kind: pair.kind,
                predicted,
                measured: measured.got(pair),
            }),
            None => silent.push(name()),
        }
    }
    write(&out.join("predict.csv"), &csv(&rows, scenarios, &kinds))?;
    let asked = scenarios.len() * kinds.len();
    let left_out = asked - measured.pairs.len();
    print(&told(&rows, &kinds, &silent, left_out))?;
    print(&format!(
        "\nwritten: {}\n",
        out.join("predict.csv").display()
    ))
}

fn quoted(cell: &str) -> String {
    if cell.contains([',', '"']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

fn csv(rows: &[Row], scenarios: &[Scenario], kinds: &[Kind]) -> String {
    let mut table = "scenario,offline,predicted,measured,error_pct,stage\n".to_owned();
    for row in rows {
        let (id, label) = (&scenarios[row.scenario].id, kinds[row.kind].label());
        for (predicted, (_, stage)) in row.predicted.iter().zip(Stage::ALL) {
            let off = error(*predicted, row.measured);
            let _ = writeln!(
                table,
                "{},{},{predicted:.6},{:.6},{off:.3},{stage}",
                quoted(id),
                quoted(&label),
                row.measured,
            );
        }
    }
    table
}

fn told(rows: &[Row], kinds: &[Kind], silent: &[String], left_out: usize) -> String {
    let mut text = format!(
        "\n{} pairs of a node and a kind of offline job\n\n\
         {:30}{:>7}{:>8}{:>8}{:>8}{:>19}\n\
         {:30}{:>7}{:>8}{:>8}{:>8}{:>11}{:>8}\n",
        rows.len(),
        "",
        "error:",
        "",
        "",
        "",
        "rank correlation:",
        "",
        "mean",
        "median",
        "p90",
        "most",
        "mean",
        "least",
    );
    let words = [
        "idle time",
        "x memory",
        "x memory - deficit, as Valve",
        "Tidegate's model",
        "  with what was lost here",
    ];
    for (place, words) in words.into_iter().enumerate() {
        let pairs = |kind: Option<usize>| -> Vec<(f64, f64)> {
            let own = rows
                .iter()
                .filter(|row| kind.is_none_or(|kind| row.kind == kind));
            own.map(|row| (row.predicted[place], row.measured))
                .collect()
        };
        let errors = Errors::of(&pairs(None));
        let ranked = (0..kinds.len()).map(|kind| pairs(Some(kind)));
        let ranked = ranked.filter(|pairs| pairs.len() >= RANKED);
        let ranked: Vec<f64> = ranked.map(|pairs| rank_correlation(&pairs)).collect();
        let written = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.3}"));
        let mean = ranked.iter().sum::<f64>() / ranked.len().max(1) as f64;
        let mean = written(Some(mean).filter(|_| !ranked.is_empty()));
        let least = written(ranked.into_iter().reduce(f64::min));
        let _ = writeln!(
            text,
            "{words:30}{:>5.1} %{:>6.1} %{:>6.1} %{:>6.1} %{mean:>11}{least:>8}",
            errors.mean, errors.median, errors.p90, errors.most,
        );
    }
    text += "\n  Error: predicted over measured, of offline's share of what it does alone.\n\
             \x20 Everything fitted is fitted without the node. The node's history is from\n\
             \x20 another kind of job. Rank correlation: of nodes, for each kind.\n";
    if left_out > 0 {
        let _ = writeln!(
            text,
            "  {left_out} pairs more do not run: a request is larger than the pool."
        );
    }
    for name in silent {
        let _ = writeln!(
            text,
            "  {name}:\n    refused, offline never had the memory its longest request needs"
        );
    }
    text
}
