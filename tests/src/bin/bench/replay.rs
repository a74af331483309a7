//! How fast replay is: simulated iterations on one core, and the whole table of the paper's
//! Figure 10, with the oracle's six attempts at each pair, on all of them.

use crate::row::{Row, median};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tidegate_replay::cases::{Case, TIDEGATE};
use tidegate_replay::costs::Costs;
use tidegate_replay::engine::Limits;
use tidegate_replay::evaluation::{Workload, evaluate};
use tidegate_replay::gap::VLLM;
use tidegate_replay::generator::{CALLER, CONVERSATION};
use tidegate_replay::hardware::{H200, Model};
use tidegate_replay::run::{alone, paired};
use tidegate_replay::scenarios;
use tidegate_replay::spec::{Batching, Offline, Online, Spec};
use tidegate_replay::sweep::cores;
use tidegate_replay::trace::Lengths;
use tidegate_tests::monotonic_ns;

/// An hour of bursty callers beside a chat-like batch.
pub fn hour() -> Option<Spec> {
    let model = Model::named(&H200, "llama-3.1-8b")?;
    let lengths = CONVERSATION.generate(1, Duration::from_secs(300));
    let lengths = lengths.requests().iter().map(|request| Lengths {
        input_tokens: request.input_tokens,
        output_tokens: request.output_tokens,
    });
    Some(Spec {
        scenario: "an hour of callers".to_owned(),
        seed: 1,
        gpu: H200,
        online: Online {
            model: model.clone(),
            trace: Arc::new(CALLER.at_rate(2.5).generate(1, Duration::from_secs(3_600))),
            gaps: VLLM,
            limits: Limits::default(),
            batching: Batching::default(),
        },
        offline: Offline {
            model,
            lengths: lengths.collect(),
            limits: Limits {
                prefill_tokens: 2_048,
                ..Limits::default()
            },
            batching: Batching::default(),
        },
        kv_pool_bytes: 24 << 30,
        compute: TIDEGATE.compute,
        memory: TIDEGATE.memory,
        costs: Costs::default(),
        slo: None,
        timeline: false,
    })
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
pub fn measure() -> Vec<Row> {
    let mut rows = Vec::new();
    if let Some(spec) = hour() {
        let mut each = Vec::new();
        for _ in 0..5 {
            let begun = monotonic_ns();
            let alone = alone(&spec);
            if let Ok((outcome, alone)) =
                alone.and_then(|alone| paired(&spec, &alone).map(|outcome| (outcome, alone)))
            {
                // Those of the run alone are simulated too.
                let iterations = alone.outcome.online_iterations
                    + outcome.online_iterations
                    + outcome.offline.iterations;
                each.push(iterations as f64 * 1e9 / (monotonic_ns() - begun).max(1) as f64);
            }
        }
        let rate = Row::new("replay.iterations_per_s", median(each), "/s");
        rows.push(rate.at_least(1_000_000.0));
    }
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    match figure_10(&data) {
        Ok(seconds) => rows.push(Row::new("replay.figure_10_s", seconds, "s").at_most(60.0)),
        Err(why) => eprintln!("bench: SKIPPED replay.figure_10_s: {why}"),
    }
    rows
}

/// Seconds that ten scenarios, every usual policy and three seeds take.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn figure_10(data: &Path) -> anyhow::Result<f64> {
    let begun = monotonic_ns();
    let mut workloads = Vec::new();
    for scenario in scenarios::read(&data.join("scenarios.csv"), &data.join("traces"))? {
        let spec = scenario.spec()?;
        workloads.extend((1..=3).map(|seed| Workload {
            spec: Spec {
                seed,
                ..spec.clone()
            },
            cut: scenario.cut.to_string(),
        }));
    }
    evaluate(&workloads, &Case::usual(), cores(), |_, _| false, || {})?;
    Ok((monotonic_ns() - begun) as f64 / 1e9)
}
