//! A table of runs: every workload, under every policy, beside the runs it is compared with.
//!
//! Each workload runs alone, under Channel+Prism and under the oracle, whatever is asked for:
//! increases are paired with the first and throughput is compared with the others. Figures come in
//! the order workload, policy, and are the same however many threads there were.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

use crate::cases::{ALONE, CHANNEL_PRISM, Case, ORACLE};
use crate::figures::{Beside, Figures};
use crate::plan::Alone;
use crate::record::Outcome;
use crate::run::{self, Attempt};
use crate::spec::{Spec, SpecError};
use crate::sweep::in_parallel;

/// One pair of online and offline jobs with one seed, to be run under several policies.
#[derive(Clone, Debug)]
pub struct Workload {
    /// What is run; its policies are replaced.
    pub spec: Spec,
    /// Which requests of its trace, in words.
    pub cut: String,
}

/// One run that was asked for.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Place of its workload.
    pub workload: usize,
    /// What came of it.
    pub figures: Figures,
    /// The run itself, if it was to be kept.
    pub outcome: Option<Outcome>,
}

/// A table of runs.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// Each workload alone, in order.
    pub alone: Vec<Outcome>,
    /// What was asked for, by workload, then by case.
    pub ran: Vec<Ran>,
}

/// A workload cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{scenario}: {source}")]
pub struct EvaluationError {
    /// The workload's name.
    pub scenario: String,
    /// Why.
    pub source: SpecError,
}

const BESIDE: [Case; 2] = [CHANNEL_PRISM, ORACLE];

/// How many runs [`evaluate`] makes.
#[must_use]
pub fn runs(workloads: usize, cases: &[Case]) -> usize {
    let beside = BESIDE.map(|case| Attempt::of(case.memory).len());
    let asked = cases.iter().filter(|case| is_only_asked(**case)).count();
    workloads * (1 + beside.iter().sum::<usize>() + asked)
}

/// Whether it is run for no other reason than that it was asked for.
fn is_only_asked(case: Case) -> bool {
    case != ALONE && !BESIDE.contains(&case)
}

/// Runs each of `workloads` under each of `cases`. `keep` tells whose outcome is wanted whole, and
/// `done` hears of each run.
///
/// # Errors
/// With the first workload that cannot be run.
pub fn evaluate(
    workloads: &[Workload],
    cases: &[Case],
    threads: NonZeroUsize,
    keep: impl Fn(usize, Case) -> bool + Sync,
    done: impl Fn() + Sync,
) -> Result<Evaluation, EvaluationError> {
    let plan = Plan {
        workloads,
        threads,
        keep,
        done,
    };
    let alone = plan.alone()?;
    let beside = plan.beside(&alone)?;
    let ran = plan.asked(cases, &alone, &beside)?;
    let alone = alone.into_iter().map(|alone| alone.outcome).collect();
    Ok(Evaluation { alone, ran })
}

/// What is run, and who is told.
struct Plan<'a, K, D> {
    workloads: &'a [Workload],
    threads: NonZeroUsize,
    keep: K,
    done: D,
}

impl<K: Fn(usize, Case) -> bool + Sync, D: Fn() + Sync> Plan<'_, K, D> {
    fn spec(&self, workload: usize, case: Case) -> Spec {
        let base = &self.workloads[workload].spec;
        Spec {
            compute: case.compute,
            memory: case.memory,
            timeline: base.timeline && (self.keep)(workload, case),
            ..base.clone()
        }
    }

    fn named(&self, workload: usize) -> impl Fn(SpecError) -> EvaluationError {
        move |source| EvaluationError {
            scenario: self.workloads[workload].spec.scenario.clone(),
            source,
        }
    }

    /// Each workload with each case.
    fn pairs(&self, cases: &[Case]) -> Vec<(usize, Case)> {
        let all = 0..self.workloads.len();
        all.flat_map(|workload| cases.iter().map(move |case| (workload, *case)))
            .collect()
    }

    /// Each workload alone.
    fn alone(&self) -> Result<Vec<Alone>, EvaluationError> {
        in_parallel(
            self.threads,
            &self.pairs(&[ALONE]),
            |(workload, case)| {
                run::alone(&self.spec(*workload, *case)).map_err(self.named(*workload))
            },
            |_| (self.done)(),
        )
    }

    /// Each workload under the cases that figures are compared with, the best of several attempts.
    fn beside(&self, alone: &[Alone]) -> Result<Vec<Outcome>, EvaluationError> {
        let beside = self.pairs(&BESIDE);
        let best: Vec<Mutex<(usize, Outcome)>> = beside.iter().map(|_| Mutex::default()).collect();
        // An attempt takes as long as any other run, so each is a piece of work.
        let attempts: Vec<(usize, usize, Attempt)> = (0..)
            .zip(&beside)
            .flat_map(|(place, (_, case))| {
                let attempts = (0..).zip(Attempt::of(case.memory));
                attempts.map(move |(turn, attempt)| (place, turn, attempt))
            })
            .collect();
        in_parallel(
            self.threads,
            &attempts,
            |(place, turn, attempt)| {
                let (workload, case) = beside[*place];
                let spec = self.spec(workload, case);
                let outcome = run::attempt(&spec, &alone[workload], *attempt)
                    .map_err(self.named(workload))?;
                let mut best = best[*place].lock().unwrap_or_else(PoisonError::into_inner);
                if (outcome.offline.tokens(), *turn) >= (best.1.offline.tokens(), best.0) {
                    *best = (*turn, outcome);
                }
                Ok(())
            },
            |_| (self.done)(),
        )?;
        let best = best.into_iter().map(Mutex::into_inner);
        Ok(best
            .map(|best| best.unwrap_or_else(PoisonError::into_inner).1)
            .collect())
    }

    /// What was asked for.
    fn asked(
        &self,
        cases: &[Case],
        alone: &[Alone],
        beside: &[Outcome],
    ) -> Result<Vec<Ran>, EvaluationError> {
        in_parallel(
            self.threads,
            &self.pairs(cases),
            |(workload, case)| {
                let known = &beside[workload * BESIDE.len()..][..BESIDE.len()];
                self.ran(*workload, *case, &alone[*workload], known)
            },
            |(_, case)| {
                if is_only_asked(*case) {
                    (self.done)();
                }
            },
        )
    }

    /// One case of one workload, run if it is not `known` already.
    fn ran(
        &self,
        workload: usize,
        case: Case,
        alone: &Alone,
        known: &[Outcome],
    ) -> Result<Ran, EvaluationError> {
        let spec = self.spec(workload, case);
        let own;
        let outcome = match BESIDE.iter().position(|other| *other == case) {
            Some(place) => &known[place],
            None if case == ALONE => &alone.outcome,
            None => {
                own = run::paired(&spec, alone).map_err(self.named(workload))?;
                &own
            }
        };
        let beside = Beside {
            alone: &alone.outcome,
            channel_prism: &known[0],
            oracle: &known[1],
        };
        let cut = self.workloads[workload].cut.clone();
        Ok(Ran {
            workload,
            figures: Figures::of(&spec, cut, outcome, beside),
            outcome: (self.keep)(workload, case).then(|| outcome.clone()),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::costs::Costs;
    use crate::engine::Limits;
    use crate::figures::{COLUMNS, csv};
    use crate::gap::VLLM;
    use crate::generator::CALLER;
    use crate::hardware::{H200, Model};
    use crate::spec::{Batching, Compute, Memory, Offline, Online};
    use crate::trace::Lengths;
    use crate::verdict::{self, Bounds, Verdict};

    fn workloads() -> Vec<Workload> {
        let model = Model::named(&H200, "llama-3.1-8b").expect("a fit");
        let workload = |seed: u64| Workload {
            spec: Spec {
                scenario: format!("caller, {seed}"),
                seed,
                gpu: H200,
                online: Online {
                    model: model.clone(),
                    trace: Arc::new(CALLER.generate(seed, Duration::from_secs(20))),
                    gaps: VLLM,
                    limits: Limits::default(),
                    batching: Batching::default(),
                },
                offline: Offline {
                    model: model.clone(),
                    lengths: [Lengths {
                        input_tokens: 700,
                        output_tokens: 50,
                    }]
                    .into(),
                    limits: Limits::default(),
                    batching: Batching::default(),
                },
                kv_pool_bytes: 20 << 30,
                compute: Compute::Standalone,
                memory: Memory::Prism,
                costs: Costs::default(),
                slo: None,
                timeline: true,
            },
            cut: "every request".to_owned(),
        };
        (1..4).map(workload).collect()
    }

    #[test]
    fn a_table_is_the_same_to_the_byte_however_many_threads_made_it() {
        let cases = Case::usual();
        let heard = AtomicUsize::new(0);
        let table = |threads: usize| {
            let threads = NonZeroUsize::new(threads).expect("not zero");
            let count = || {
                heard.fetch_add(1, Ordering::Relaxed);
            };
            let keep = |workload, case| workload == 1 && case == cases[0];
            let done = evaluate(&workloads(), &cases, threads, keep, count).expect("it runs");
            let kept = done.ran.iter().filter(|ran| ran.outcome.is_some());
            assert_eq!((done.alone.len(), kept.count()), (3, 1));
            let figures: Vec<Figures> = done.ran.into_iter().map(|ran| ran.figures).collect();
            csv(&figures)
        };
        let one = table(1);
        assert_eq!(one, table(5));
        assert_eq!(heard.into_inner(), 2 * runs(3, &cases));
        assert_eq!(one.lines().count(), 1 + 3 * cases.len());
        for line in one.lines().skip(1) {
            assert!(
                line.starts_with("\"caller, "),
                "a comma within a name is quoted: {line}"
            );
            assert_eq!(line.split(',').count(), COLUMNS.len() + 1, "{line}");
        }
    }

    /// P-REPLAY-4: a run that was given more memory than there is keeps no promise, and says so.
    #[test]
    fn a_drawn_run_with_more_memory_than_there_is_is_missed_and_named() {
        let cases = [ALONE, crate::cases::TIDEGATE];
        let done = evaluate(
            &workloads()[..1],
            &cases,
            NonZeroUsize::MIN,
            |_, _| false,
            || {},
        );
        let ran = done.expect("it runs").ran;
        let mut figures = ran.into_iter().map(|ran| ran.figures);
        let mut ours = figures.next_back().expect("Tidegate's");
        let bounds = Bounds {
            ttft_pct: f64::INFINITY,
            tpot_pct: f64::INFINITY,
            preemptions: u32::MAX,
        };
        let said = |figures: &Figures| {
            let verdict = Verdict::of(&bounds, &[figures]).expect("a run");
            let text = verdict::text(&bounds, &[("Ours".to_owned(), verdict)]);
            (
                verdict.kept,
                text.contains("WRONG"),
                verdict::missed(&bounds, &[figures]),
            )
        };
        assert_eq!(said(&ours), (1, false, String::new()));
        ours.faults = 1;
        let (kept, wrong, missed) = said(&ours);
        assert_eq!((kept, wrong), (0, true));
        assert!(missed.contains("more memory than there is"), "{missed}");
    }

    #[test]
    fn a_workload_that_cannot_run_is_named() {
        let mut workloads = workloads();
        workloads[1].spec.offline.lengths = Arc::new([]);
        let refused = evaluate(&workloads, &[ALONE], NonZeroUsize::MIN, |_, _| false, || {});
        let told = refused.expect_err("no offline requests").to_string();
        assert_eq!(told, "caller, 2: the offline workload has no requests");
    }
}
