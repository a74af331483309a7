//! `tidegate replay --draw`: does the promise hold on scenarios that nobody chose?

use std::path::Path;

use super::ask::{Args, Usage, calibrate, swept, write};
use super::compute::{compute, figures_of, seeded, write_figures};
use crate::print::print;
use anyhow::Context;
use tidegate_replay::calibration::Calibration;
use tidegate_replay::cases::{Case, TIDEGATE};
use tidegate_replay::draw::{DrawError, Drawn, Half, Sources, table};
use tidegate_replay::figures::{Figures, csv};
use tidegate_replay::sweep::{cores, in_parallel};
use tidegate_replay::verdict::{Bounds, Verdict, missed, text};

/// Carries `--draw` out.
pub(super) fn run(
    args: &Args,
    count: u32,
    calibration: Option<&Calibration>,
) -> anyhow::Result<()> {
    let traces = args.traces.as_deref().unwrap_or(Path::new("."));
    let out = args.out.as_deref().unwrap_or(Path::new("."));
    let cases = if args.policy.is_empty() && args.memory.is_empty() {
        vec![TIDEGATE]
    } else {
        Case::named(&args.policy, &args.memory).map_err(Usage::from)?
    };
    let &[costs] = &*swept(args, calibration) else {
        let told = "several values of --switch-ms, --timeslice-us or --fault-us are for a table of \
                    scenarios: give one";
        return Err(Usage(told.to_owned()).into());
    };
    let sources = Sources::read(traces)?;
    std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let threads = args.threads.unwrap_or_else(cores);
    let numbers: Vec<u32> = (1..=count).collect();
    let drawn: Vec<Drawn> = in_parallel::<_, _, DrawError>(
        threads,
        &numbers,
        |number| sources.draw(*number, args.seed, args.half),
        |_| {},
    )?;
    write(&out.join("scenarios.csv"), &table(&drawn))?;
    let mut workloads = Vec::new();
    for one in &drawn {
        let mut spec = one.scenario.spec()?;
        calibrate(calibration, &mut spec).with_context(|| one.scenario.id.clone())?;
        workloads.extend(seeded(args, &spec, costs, &one.scenario.cut.to_string(), 1));
    }
    let figures = figures_of(compute(args, &workloads, &cases, |_, _| false)?);
    write(&out.join("results.csv"), &csv(&figures))?;
    write_figures(args, &figures)?;
    print(&told(args, &drawn, &cases, &figures))?;
    print(&format!(
        "\nwritten: {}, results.csv\n",
        out.join("scenarios.csv").display()
    ))
}

fn told(args: &Args, drawn: &[Drawn], cases: &[Case], figures: &[Figures]) -> String {
    let bounds = Bounds::default();
    let mut rows = Vec::new();
    let mut misses = String::new();
    let half_of = |figures: &Figures| {
        let own = drawn.iter().find(|d| d.scenario.id == figures.scenario);
        own.map(|drawn| drawn.half)
    };
    for case in cases {
        let own: Vec<&Figures> = figures.iter().filter(|f| f.case == *case).collect();
        rows.extend(Verdict::of(&bounds, &own).map(|all| (case.to_string(), all)));
        for half in Half::ALL {
            let part: Vec<&Figures> = own
                .iter()
                .copied()
                .filter(|f| half_of(f) == Some(half))
                .collect();
            let verdict = Verdict::of(&bounds, &part).filter(|_| args.half.is_none());
            rows.extend(verdict.map(|part| (format!("  {half} half"), part)));
        }
        misses += &missed(&bounds, &own);
    }
    format!(
        "\n{} scenarios drawn with seed {}\n\n{}{misses}",
        drawn.len(),
        args.seed,
        text(&bounds, &rows)
    )
}
