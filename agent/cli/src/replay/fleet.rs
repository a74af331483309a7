//! `tidegate replay --fleet FILE`: what do rules of placement give a fleet, and whom do they cheat?

use std::fmt::Write as _;
use std::path::Path;

use super::ask::{Args, calibrate, write};
use crate::print::print;
use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use tidegate_policy::tend::Tending;
use tidegate_replay::calibration::Calibration;
use tidegate_replay::fleet::{Fleet, Outcome, Rule, Tables, play, read};
use tidegate_replay::placing::{Measured, beside};
use tidegate_replay::sweep::{cores, in_parallel};

/// How much work comes, over what the fleet harvests: half full, and overfull.
const LOADS: [f64; 2] = [0.5, 1.3];
/// How long, hours.
const HOURS: usize = 8;
/// SLAs of jobs, one of which each has.
const SLAS: [f64; 7] = [0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6];
/// Shortest and longest job, minutes with its GPUs to itself.
const ALONE: (f64, f64) = (4.0, 24.0);

type Played = (Rule, &'static str, f64, u64);

/// Carries `--fleet` out.
pub(super) fn run(
    args: &Args,
    file: &Path,
    calibration: Option<&Calibration>,
) -> anyhow::Result<()> {
    let traces = args.traces.as_deref().unwrap_or(Path::new("."));
    let out = args.out.as_deref().unwrap_or(Path::new("."));
    let asked = read(file, traces)?;
    std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let mut specs = Vec::new();
    for node in &asked.nodes {
        let mut own = beside(node, &asked.jobs)?;
        for spec in &mut own {
            calibrate(calibration, spec).with_context(|| node.id.clone())?;
        }
        specs.push(own);
    }
    let threads = args.threads.unwrap_or_else(cores);
    let bar = ProgressBar::new((asked.nodes.len() * asked.jobs.len()) as u64);
    let style = "{msg} {wide_bar} {pos} of {len} runs, {eta} left";
    bar.set_style(ProgressStyle::with_template(style).context("the progress bar's template")?);
    bar.set_message("replaying");
    let measured = Measured::of(&specs, 1, threads, || bar.inc(1))?;
    bar.finish_and_clear();
    let tending = Tending::default();
    let window = (tending.window.as_secs() / 60) as usize;
    let tables = Tables::of(&measured, &asked.kinds, &asked.needs, window)?;
    let fleet = Fleet {
        minutes: 60 * HOURS,
        slas: SLAS.to_vec(),
        alone: ALONE,
        counts: asked.counts.clone(),
        tending,
    };
    let mut work: Vec<Played> = Vec::new();
    for load in LOADS {
        for (rule, name) in Rule::ALL {
            let seeds = 1..=args.seeds.unwrap_or(3);
            work.extend(seeds.map(|seed| (rule, name, load, seed)));
        }
    }
    let played = in_parallel::<_, _, anyhow::Error>(
        threads,
        &work,
        |&(rule, _, load, seed)| Ok(play(&fleet, &tables, rule, load, seed)),
        |_| {},
    )?;
    let mut table =
        "rule,seed,load,gpus_saved,violating_time_pct,evictions,jobs_met_pct\n".to_owned();
    for ((_, name, load, seed), outcome) in work.iter().zip(&played) {
        let _ = writeln!(
            table,
            "{name},{seed},{load},{:.4},{:.4},{},{:.2}",
            outcome.gpus_saved, outcome.violating_pct, outcome.evictions, outcome.met_pct
        );
    }
    write(&out.join("fleet.csv"), &table)?;
    print(&told(&work, &played))?;
    print(&format!("\nwritten: {}\n", out.join("fleet.csv").display()))
}

fn told(work: &[Played], played: &[Outcome]) -> String {
    let mut text = String::new();
    for load in LOADS {
        let _ = writeln!(
            text,
            "\nWork for {load} times what the fleet harvests, {HOURS} h\n\n\
             {:12}{:>12}{:>12}{:>11}{:>8}{:>11}{:>7}",
            "", "GPUs saved", "violating", "evictions", "SLA met", "harvested", "worth"
        );
        for (rule, name) in Rule::ALL {
            let own = work.iter().zip(played);
            let own = own.filter(|((other, _, at, _), _)| *other == rule && *at == load);
            let own: Vec<&Outcome> = own.map(|(_, outcome)| outcome).collect();
            let mean = |of: fn(&Outcome) -> f64| {
                own.iter().map(|outcome| of(outcome)).sum::<f64>() / own.len().max(1) as f64
            };
            let saved = mean(|outcome| outcome.gpus_saved);
            let worth = mean(|outcome| outcome.gpus_saved / (outcome.harvested * outcome.gpus));
            let _ = writeln!(
                text,
                "{name:12}{saved:>12.2}{:>10.2} %{:>11.1}{:>6.1} %{:>9.1} %{worth:>7.2}",
                mean(|outcome| outcome.violating_pct),
                mean(|outcome| outcome.evictions as f64),
                mean(|outcome| outcome.met_pct),
                mean(|outcome| 100.0 * outcome.harvested),
            );
        }
    }
    text += "\n  GPUs saved: throughput over what the jobs have by themselves, summed.\n\
             \x20 Violating: of the time jobs ran, that in which a job's last hour on its\n\
             \x20 node was below its SLA. Worth: GPUs saved over GPU time harvested (Valve's\n\
             \x20 production: 34.6 % harvested, 0.27 saved a GPU, worth 0.78).\n";
    text
}
