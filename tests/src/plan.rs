//! Which requests the demo replays.
//!
//! A recorded trace was served by many GPUs, and half a minute of it may be all burst or all
//! silence. What one GPU can show in half a minute is cut out by rule, and the cut is printed: of
//! all places, and all factors to thin by, those that leave the GPU idle between 35 and 80 % of the
//! time, and of these the one where online returns most often. Times are never stretched.
//! `--thin` and `--start` choose otherwise.

use std::path::PathBuf;
use std::time::Duration;

use tidegate_replay::clock::Time;
use tidegate_replay::engine::{CostModel, LLAMA_3_1_8B};
use tidegate_replay::estimate::{Estimate, alone};
use tidegate_replay::gap::{GapModel, VLLM};
use tidegate_replay::generator::{CALLER, Preset};
use tidegate_replay::input::InputError;
use tidegate_replay::trace::{self, Trace};

/// The model that both programs stand for.
pub const COST: CostModel = LLAMA_3_1_8B;
/// The online engine's decode gaps.
pub const GAPS: GapModel = VLLM;
/// The built-in trace: bursty callers, at a rate that keeps the GPU busy about half of the time.
pub const BUILT_IN: Preset = Preset {
    rate: 2.5,
    ..CALLER
};
const BUILT_IN_LENGTH: Duration = Duration::from_secs(1_200);

/// How long the GPU has to be idle for the trace to count as having a gap there.
const GAP: Duration = Duration::from_millis(50);
const FACTORS: [u64; 8] = [1, 2, 3, 4, 6, 8, 12, 16];
const IDLE: std::ops::RangeInclusive<f64> = 0.35..=0.80;

/// The requests, where they are from, and what they would do alone.
#[derive(Debug)]
pub struct Plan {
    /// The requests, from the start of the run.
    pub trace: Trace,
    /// For people: source and cut.
    pub source: String,
    /// Alone, in virtual time.
    pub estimate: Estimate,
}

/// What the user asked for.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// A trace file, or the built-in generator.
    pub file: Option<PathBuf>,
    /// Of each run.
    pub length: Duration,
    /// Of the generator and the gaps.
    pub seed: u64,
    /// Thin by this factor instead of a chosen one.
    pub thin: Option<u64>,
    /// Start there instead of at a chosen place.
    pub start: Option<Duration>,
}

/// Chooses the requests.
///
/// # Errors
/// When the file cannot be read as a trace.
pub fn choose(wanted: &Wanted) -> Result<Plan, InputError> {
    Ok(match &wanted.file {
        None => {
            let start = wanted.start.unwrap_or_default();
            let whole = BUILT_IN.generate(wanted.seed, BUILT_IN_LENGTH.max(start + wanted.length));
            let name = format!(
                "built-in generator \"{}\", seed {}",
                BUILT_IN.name, wanted.seed
            );
            cut(&whole, &name, &[1], wanted)
        }
        Some(file) => {
            let name = file
                .file_name()
                .unwrap_or(file.as_os_str())
                .to_string_lossy();
            cut(&trace::read(file)?, &name, &FACTORS, wanted)
        }
    })
}

fn planned(trace: Trace, source: String, seed: u64) -> Plan {
    let estimate = alone(&trace, COST, &GAPS, seed);
    Plan {
        trace,
        source,
        estimate,
    }
}

fn describe(mut source: String, thin: u64, start: Duration) -> String {
    if thin > 1 {
        source += &format!(", one request in {thin}");
    }
    if !start.is_zero() {
        source += &format!(", from second {}", start.as_secs());
    }
    source
}

fn cut(whole: &Trace, name: &str, factors: &[u64], wanted: &Wanted) -> Plan {
    let chosen = wanted.thin.map(|factor| [factor]);
    let factors = chosen.as_ref().map_or(factors, |factor| factor);
    let step = (wanted.length / 2).max(Duration::from_millis(500));
    let last = whole.end().since(Time::ZERO).saturating_sub(wanted.length);
    let mut starts = vec![wanted.start.unwrap_or_default()];
    while wanted.start.is_none() && starts.last().is_some_and(|at| *at + step <= last) {
        starts.extend(starts.last().map(|at| *at + step));
    }
    let mut best = None;
    for factor in factors {
        let thinned = whole.thin(*factor);
        for start in &starts {
            let cut = thinned.window(Time::ZERO + *start, wanted.length);
            let plan = planned(cut, describe(name.to_owned(), *factor, *start), wanted.seed);
            let idle = plan.estimate.harvestable_share(GAP, wanted.length);
            let ends = plan.estimate.end <= Time::ZERO + wanted.length + wanted.length / 10;
            let fits = ends && IDLE.contains(&idle);
            let score = (
                !plan.trace.is_empty(),
                fits,
                plan.estimate.returns_after(GAP),
            );
            if best.as_ref().is_none_or(|(known, _)| score > *known) {
                best = Some((score, plan));
            }
        }
    }
    best.map_or_else(
        || planned(Trace::default(), name.to_owned(), wanted.seed),
        |(_, plan)| plan,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_replay::generator::CODE;

    fn wanted(seed: u64) -> Wanted {
        Wanted {
            file: None,
            length: Duration::from_secs(30),
            seed,
            thin: None,
            start: None,
        }
    }

    #[test]
    fn the_built_in_trace_has_gaps_to_harvest_and_returns_to_preempt() {
        for seed in 1..=10 {
            let plan = choose(&wanted(seed)).expect("no file is read");
            let idle = plan
                .estimate
                .harvestable_share(GAP, Duration::from_secs(30));
            let returns = plan.estimate.returns_after(GAP);
            assert!(
                IDLE.contains(&idle) && returns >= 28,
                "seed {seed}: {idle} {returns}"
            );
        }
    }

    #[test]
    fn a_fierce_trace_is_cut_where_it_can_be_shown() {
        let whole = CODE.generate(5, Duration::from_secs(1_200));
        let plan = cut(&whole, "code.csv", &FACTORS, &wanted(1));
        assert!(plan.source.starts_with("code.csv"), "{}", plan.source);
        assert!(!plan.trace.is_empty() && plan.trace.end() < Time::from(Duration::from_secs(30)));
        let again = cut(&whole, "code.csv", &FACTORS, &wanted(1));
        assert_eq!(
            plan.trace, again.trace,
            "the choice is a function of the trace"
        );
    }

    #[test]
    fn what_the_user_chose_is_not_chosen_otherwise() {
        let whole = BUILT_IN.generate(1, Duration::from_secs(100));
        let start = Duration::from_secs(10);
        let fixed = Wanted {
            thin: Some(2),
            start: Some(start),
            ..wanted(1)
        };
        let plan = cut(&whole, "t.csv", &FACTORS, &fixed);
        assert_eq!(plan.source, "t.csv, one request in 2, from second 10");
        assert_eq!(
            plan.trace,
            whole.thin(2).window(Time::from(start), fixed.length)
        );
    }

    /// Recorded traces are not part of the project; where a checkout has them, they must do.
    #[test]
    fn a_recorded_trace_can_be_shown_where_there_is_one() {
        let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/traces");
        let file = PathBuf::from(beside).join("azure23_code_a.csv.gz");
        if !file.exists() {
            eprintln!("SKIPPED: no {}", file.display());
            return;
        }
        let plan = choose(&Wanted {
            file: Some(file),
            ..wanted(1)
        })
        .expect("a trace");
        let returns = plan.estimate.returns_after(GAP);
        assert!(returns >= 28, "{}: {returns}", plan.source);
    }
}
