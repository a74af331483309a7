//! The shapes of the paper's comparison, from recorded workloads.
//!
//! Three workloads and one seed run by default; `TIDEGATE_EVALUATION=full` runs all ten and three
//! seeds and prints the table.

mod recorded;

use recorded::full;
use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_replay::pair::{Interference, interference};
use tidegate_replay::plan::Alone;
use tidegate_replay::record::Outcome;
use tidegate_replay::run;
use tidegate_replay::spec::{Compute, FIGURE_10, Memory, Spec};

/// Pairs whose online memory is bursty too.
const MEMORY_BURSTY: [&str; 4] = ["P07", "P08", "P09", "P10"];
const OURS: (Compute, Memory) = (Compute::Tidegate, Memory::Tidegate);
const LIMIT: (Compute, Memory) = (Compute::Oracle, Memory::Oracle);
/// Above every policy: memory moves for nothing.
const BOUND: (Compute, Memory) = (Compute::Oracle, Memory::Bound);

/// The scenarios to run, with their seeds.
fn specs() -> Vec<Spec> {
    let seeds = if full() { 1..=3 } else { 1..=1 };
    recorded::workloads()
        .into_iter()
        .flat_map(|spec| {
            seeds.clone().map(move |seed| Spec {
                seed,
                ..spec.clone()
            })
        })
        .collect()
}

struct Compared {
    outcome: Outcome,
    paid: Interference,
}

impl Compared {
    fn run(spec: &Spec, alone: &Alone, (compute, memory): (Compute, Memory)) -> Self {
        let spec = Spec {
            compute,
            memory,
            ..spec.clone()
        };
        let outcome = run::paired(&spec, alone).expect("a run");
        let paid = interference(&alone.outcome, &outcome);
        Self { outcome, paid }
    }

    fn tokens(&self) -> f64 {
        self.outcome.offline_tokens_per_s()
    }

    fn keeps_the_bounds(&self) -> bool {
        let (ttft, tpot) = (self.paid.ttft.mean_pct, self.paid.tpot.mean_pct);
        ttft <= 2.0 && tpot <= 0.5 && self.outcome.preemptions_per_request_max() <= 1
    }
}

/// P-REPLAY-5: Tidegate keeps its bounds on recorded workloads.
/// P-REPLAY-7: offline throughput on recorded workloads.
/// P-GATE-17: a request is preempted once while decode gaps are stationary.
#[test]
fn the_figure_has_the_papers_shape_and_ours_keeps_its_bounds() {
    let mut ratios: BTreeMap<(String, &str), Vec<f64>> = BTreeMap::new();
    for spec in specs() {
        let alone = run::alone(&spec).expect("a run");
        let id = spec.scenario.clone();
        let all: Vec<_> = FIGURE_10
            .into_iter()
            .chain([LIMIT, BOUND])
            .map(|pair| (pair, Compared::run(&spec, &alone, pair)))
            .collect();
        let of = |pair| &all.iter().find(|known| known.0 == pair).expect("it ran").1;
        let limit = of(LIMIT).tokens();
        assert!(of(LIMIT).keeps_the_bounds() && limit <= of(BOUND).tokens());
        for ((compute, memory), found) in &all {
            println!(
                "{id} seed {}  {:>14}+{:<10} TTFT {:+8.2} %  TPOT {:+7.2} %  per request max {:>4}  \
                 {:>7.0} tokens/s, {:.3} of the oracle's{}",
                spec.seed,
                compute.name(),
                memory.name(),
                found.paid.ttft.mean_pct,
                found.paid.tpot.mean_pct,
                found.outcome.preemptions_per_request_max(),
                found.tokens(),
                found.tokens() / limit.max(1.0),
                if found.keeps_the_bounds() {
                    ""
                } else {
                    "  (pays for it)"
                },
            );
            let name = (compute.name(), memory.name());
            ratios.entry(name).or_default().push(found.tokens() / limit);
        }

        let ours = of(OURS);
        assert!(
            ours.keeps_the_bounds(),
            "{id} seed {}: {:?}",
            spec.seed,
            ours.paid
        );
        assert_eq!(ours.outcome.faults, 0);
        // What the gate learnt is what there was to learn.
        let twice = 2.0 * alone.longest_gap.as_secs_f64();
        let learnt = ours
            .outcome
            .cooldown
            .at_end
            .unwrap_or_default()
            .as_secs_f64();
        println!(
            "{id} seed {}  cooldown {learnt:.4} s, twice the longest gap {twice:.4} s",
            spec.seed
        );
        assert!(
            (0.9 * twice..=1.1 * twice).contains(&learnt),
            "{id}: {learnt} for {twice}"
        );

        // Who stops at kernels or at every launch preempts without end; an iteration is not soon.
        for compute in [Compute::KernelPreempt, Compute::GPreempt] {
            let per_request = of((compute, Memory::Uvm))
                .outcome
                .preemptions_per_request_max();
            assert!(per_request > 50, "{id} {compute:?}: {per_request}");
        }
        let kernels = of((Compute::KernelPreempt, Memory::Uvm)).paid;
        assert!(kernels.tpot.mean_pct > 5.0, "{id}: {kernels:?}");
        if MEMORY_BURSTY.contains(&id.as_str()) {
            let prism = of((Compute::Channel, Memory::Prism)).paid;
            assert!(
                prism.ttft.mean_pct > 10.0,
                "{id}: nothing taken back, {prism:?}"
            );
            for pair in [
                (Compute::KernelPreempt, Memory::Uvm),
                (Compute::Channel, Memory::Uvm),
                (Compute::Channel, Memory::StaticMem),
            ] {
                let theirs = of(pair).tokens();
                assert!(ours.tokens() > theirs, "{id} {pair:?}: {theirs}");
            }
            let less = 1.0 - of((Compute::Channel, Memory::StaticMem)).tokens() / ours.tokens();
            assert!(less > 0.09, "{id}: a static share has only {less:.2} less");
        }
    }
    for ((compute, memory), ratios) in &ratios {
        let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
        println!("{compute}+{memory}: {mean:.3} of the oracle's tokens on average");
    }
}

/// Figure 11(a): tokens lost against taking the oldest handles.
/// P-REPLAY-5: Tidegate keeps its bounds on recorded workloads.
#[test]
fn choosing_by_marginal_cost_loses_fewer_tokens_than_first_in_first_out() {
    let mut saved = Vec::new();
    for spec in specs() {
        let alone = run::alone(&spec).expect("a run");
        let lost = |memory| {
            let found = Compared::run(&spec, &alone, (Compute::Tidegate, memory));
            found.outcome.offline.lost_tokens
        };
        let (ours, oldest) = (lost(Memory::Tidegate), lost(Memory::TidegateFifo));
        println!(
            "{} seed {}: lost {ours} tokens, first in first out {oldest}",
            spec.scenario, spec.seed
        );
        if oldest > 0 {
            saved.push(1.0 - ours as f64 / oldest as f64);
        }
    }
    if !saved.is_empty() {
        let mean = saved.iter().sum::<f64>() / saved.len() as f64;
        println!("{:.1} % fewer on average", 100.0 * mean);
        assert!(mean > 0.15, "{saved:?}");
    }
}

/// Table 1: what has to end before offline is off the GPU.
/// P-REPLAY-5: Tidegate keeps its bounds on recorded workloads.
#[test]
fn a_preemption_waits_for_an_iteration_a_layer_or_nothing() {
    for mut spec in specs() {
        spec.offline.limits.prefill_tokens = 8_192;
        let alone = run::alone(&spec).expect("a run");
        let longest = |compute| {
            let found = Compared::run(&spec, &alone, (compute, Memory::Bound));
            let latencies = found.outcome.preemptions.iter().map(|p| p.latency());
            latencies.max().unwrap_or_default()
        };
        let iteration = longest(Compute::TemporalShare(64));
        let layer = longest(Compute::LayerPreempt);
        let channel = longest(Compute::Channel);
        println!(
            "{}: iteration {iteration:?}, layer {layer:?}, channel {channel:?}",
            spec.scenario
        );
        assert!(channel < Duration::from_millis(1));
        assert!(layer > channel && iteration > 10 * layer);
    }
}
