//! Replay against the demo: the same requests through real processes on the virtual GPU, and through
//! virtual time. What replay promises an operator is worth what the two have in common.
//!
//! The demo's online and offline programs batch in the order of [`Batching::PrefillFirst`]; the
//! offline one reads [`BATCH`] prompts of [`PROMPT`] tokens, gives each [`STEPS`] more, and begins
//! again (`apps/llm_offline.c`). Its memory is of no concern, so the pool is large. The demo's last
//! run goes on to its planned end, in which offline has the GPU to itself: replay, which ends with
//! the last token, is given that time at the rate at which offline ran.

use std::sync::Arc;
use std::time::Duration;

use tidegate_replay::costs::Costs;
use tidegate_replay::engine::Limits;
use tidegate_replay::hardware::{H200, Model};
use tidegate_replay::input::InputError;
use tidegate_replay::pair::interference;
use tidegate_replay::record::Outcome;
use tidegate_replay::run::{alone, paired};
use tidegate_replay::spec::{Batching, Compute, Memory, Offline, Online, Spec, SpecError};
use tidegate_replay::trace::Lengths;
use tidegate_tests::TempDir;
use tidegate_tests::plan::{COST, GAPS, Plan, Wanted, choose};

use crate::demo::{DemoError, all, once, ratio};
use crate::row::{Row, median};

/// The offline program's prompts, how many it decodes together, and tokens it gives each.
const PROMPT: u32 = 2_048;
const BATCH: usize = 8;
const STEPS: u32 = 16;
/// Of generator and gaps: the demo's default.
const SEED: u64 = 1;

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum ReplayDemoError {
    /// The demo gave none.
    #[error(transparent)]
    Demo(#[from] DemoError),
    /// Its requests could not be chosen.
    #[error(transparent)]
    Plan(#[from] InputError),
    /// They could not be replayed.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// There is no fit of its model.
    #[error("no iteration times for {0} on {gpu}", gpu = H200.name)]
    Model(&'static str),
    /// The demo replayed others.
    #[error("the demo replayed {theirs}, and replay {ours}")]
    Other {
        /// The demo's.
        theirs: String,
        /// The plan's.
        ours: String,
    },
}

/// What the demo runs under Tidegate.
fn spec(plan: &Plan) -> Result<Spec, ReplayDemoError> {
    let model = Model::named(&H200, COST.name).ok_or(ReplayDemoError::Model(COST.name))?;
    Ok(Spec {
        scenario: plan.source.clone(),
        seed: SEED,
        gpu: H200,
        online: Online {
            model: model.clone(),
            trace: Arc::new(plan.trace.clone()),
            gaps: GAPS,
            limits: Limits::default(),
            batching: Batching::PrefillFirst,
        },
        offline: Offline {
            model,
            // Its first token is out with its prompt.
            lengths: Arc::new([Lengths {
                input_tokens: PROMPT,
                output_tokens: STEPS + 1,
            }]),
            limits: Limits {
                prefill_tokens: PROMPT,
                running: BATCH,
            },
            batching: Batching::PrefillFirst,
        },
        kv_pool_bytes: 100 << 30,
        compute: Compute::Tidegate,
        memory: Memory::Prism,
        costs: Costs::default(),
        slo: None,
        timeline: false,
    })
}

/// Offline tokens per second over `length`, or to the last token if that is later.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn tokens_per_s(outcome: &Outcome, length: Duration) -> f64 {
    let tokens = outcome.offline.tokens() as f64;
    let running = outcome.gpu.offline.as_secs_f64().max(f64::MIN_POSITIVE);
    let rest = length.saturating_sub(outcome.length).as_secs_f64();
    (tokens + tokens / running * rest) / outcome.length.max(length).as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
pub fn measure(runs: u64, seconds: u64) -> Result<Vec<Row>, ReplayDemoError> {
    let length = Duration::from_secs(seconds);
    let plan = choose(&Wanted {
        file: None,
        length,
        seed: SEED,
        thin: None,
        start: None,
    })?;
    let spec = spec(&plan)?;
    let alone = alone(&spec)?;
    let replayed = paired(&spec, &alone)?;
    let paid = interference(&alone.outcome, &replayed);

    let dir = TempDir::new();
    let file = dir.path().join("demo.json");
    let demos = (0..runs).map(|_| once(None, seconds, &file));
    let demos = demos.collect::<Result<Vec<_>, _>>()?;
    for demo in &demos {
        let theirs = demo["trace"].as_str().unwrap_or_default();
        if theirs != plan.source || demo["requests"] != plan.trace.len() {
            return Err(ReplayDemoError::Other {
                theirs: format!("{} requests of {theirs}", demo["requests"]),
                ours: format!("{} requests of {}", plan.trace.len(), plan.source),
            });
        }
    }

    let mut rows = Vec::new();
    let mut compare = |name: &str, unit, demo: f64, replay: f64| {
        for (of, value) in [("demo", demo), ("replay", replay)] {
            rows.push(Row::new(format!("replay_demo.{name}.{of}"), value, unit));
        }
    };
    let gated = |path: &str| median(all(&demos, &format!("/runs/tidegate/{path}")));
    let increase = |metric: &str| {
        let mean = |run: &str| format!("/runs/{run}/{metric}/mean");
        100.0 * (ratio(&demos, &mean("tidegate"), &mean("alone")) - 1.0)
    };
    let (mean, max) = (
        "preemptions_per_request/mean",
        "preemptions_per_request/max",
    );
    let of_mean = (gated(mean), replayed.preemptions_per_request_mean());
    let of_max = (
        gated(max),
        f64::from(replayed.preemptions_per_request_max()),
    );
    let tokens = (
        gated("offline_tokens_per_s"),
        tokens_per_s(&replayed, length),
    );
    let all = replayed.preemptions.len() as f64;
    compare("preemptions", "", gated("preemptions"), all);
    compare("per_request_mean", "", of_mean.0, of_mean.1);
    compare("per_request_max", "", of_max.0, of_max.1);
    compare("offline_tokens", "/s", tokens.0, tokens.1);
    compare(
        "ttft_increase",
        "%",
        increase("ttft_ms"),
        paid.ttft.mean_pct,
    );
    compare(
        "tpot_increase",
        "%",
        increase("tpot_ms"),
        paid.tpot.mean_pct,
    );
    for (name, (demo, replay)) in [("mean", of_mean), ("max", of_max)] {
        let key = format!("replay_demo.per_request_{name}.apart");
        rows.push(Row::new(key, (replay - demo).abs(), "").at_most((0.1 * demo).max(1.0)));
    }
    let apart = 100.0 * (tokens.1 / tokens.0 - 1.0).abs();
    rows.push(Row::new("replay_demo.offline_tokens.apart", apart, "%").at_most(10.0));
    Ok(rows)
}
