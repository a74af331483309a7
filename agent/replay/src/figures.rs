//! The figures of one run, beside the runs it is compared with, and the table of many (`results.csv`).
//!
//! Increases are paired: mean of the differences over the mean alone, in percent ([`crate::pair`]).
//! A ratio to another run whose offline job did nothing is empty.
//!
//! [`COLUMNS`] is the one list of what is in the table: header, CSV and JSON are made from it.

use serde_json::{Map, Value};

use crate::cases::Case;
use crate::pair::{Interference, interference};
use crate::record::Outcome;
use crate::spec::Spec;
use tidegate_text::spread::Spread;

/// One run's figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// The scenario's name.
    pub scenario: String,
    /// Which requests of the trace, in words.
    pub cut: String,
    /// Of the gaps and of where the offline backlog begins.
    pub seed: u64,
    /// The policies.
    pub case: Case,
    /// Disable and save, enable and restore: microseconds.
    pub switch_us: [f64; 2],
    /// From a request to an idle engine's first launch.
    pub lead_us: f64,
    /// A switch between time slices, and a batch of page faults: microseconds.
    pub swept_us: [f64; 2],
    /// What the times of online's and offline's iterations are from.
    pub times: [&'static str; 2],
    /// Taking a handle from offline, and making one for online: microseconds.
    pub handle_us: [f64; 2],
    /// What online pays.
    pub interference: Interference,
    /// Time to first token, milliseconds.
    pub ttft_ms: Spread,
    /// Time per further token, milliseconds.
    pub tpot_ms: Spread,
    /// Preemptions in all.
    pub preemptions: usize,
    /// Preemptions charged per request: mean and largest.
    pub per_request: (f64, u32),
    /// From the online launch to offline off the GPU, microseconds.
    pub preempt_us: Spread,
    /// Offline tokens kept, per second.
    pub offline_tokens_per_s: f64,
    /// Offline tokens over those of Channel+Prism.
    pub vs_channel_prism: Option<f64>,
    /// Offline tokens over the oracle's.
    pub vs_oracle: Option<f64>,
    /// Shares of the run in which online ran, offline ran, neither for a switch.
    pub shares: [f64; 3],
    /// Reclaims in all.
    pub reclaims: usize,
    /// From online's asking to the memory mapped, milliseconds.
    pub reclaim_ms: Spread,
    /// Offline tokens computed again because their blocks were reclaimed or the job was killed.
    pub lost_tokens: u64,
    /// Offline tokens that iterations were given, and of those the ones computed before, for whatever reason.
    pub computed: (u64, u64),
    /// The latter per token generated.
    pub recompute_tax: Option<f64>,
    /// Times the offline job was killed.
    pub kills: u64,
    /// Offline requests that its engine refused, as they are larger than its whole cache, of so many.
    pub refused: (u64, u64),
    /// Handles that were given beyond what the pool has, at the worst moment: zero, or the policy is wrong.
    pub faults: u64,
    /// Twice the longest decode gap, and the cooldown in force at the end: milliseconds.
    pub cooldown_ms: (f64, Option<f64>),
    /// Online requests.
    pub requests: usize,
    /// Length of the run, seconds.
    pub seconds: f64,
}

/// The runs of the same scenario and seed that others are compared with.
#[derive(Clone, Copy, Debug)]
pub struct Beside<'a> {
    /// [`crate::cases::ALONE`].
    pub alone: &'a Outcome,
    /// [`crate::cases::CHANNEL_PRISM`].
    pub channel_prism: &'a Outcome,
    /// [`crate::cases::ORACLE`].
    pub oracle: &'a Outcome,
}

impl Figures {
    /// Of `outcome`, the run of `spec`; `cut` says in words what its trace was cut to.
    #[must_use]
    pub fn of(spec: &Spec, cut: String, outcome: &Outcome, beside: Beside<'_>) -> Self {
        let seconds = outcome.length.as_secs_f64();
        let share = |of: std::time::Duration| of.as_secs_f64() / seconds.max(f64::MIN_POSITIVE);
        let tokens = outcome.offline_tokens_per_s();
        let over = |other: &Outcome| {
            let other = other.offline_tokens_per_s();
            (other > 0.0).then(|| tokens / other)
        };
        Self {
            scenario: spec.scenario.clone(),
            cut,
            seed: spec.seed,
            case: Case::of(spec.compute, spec.memory),
            switch_us: [spec.costs.disable_save, spec.costs.enable_restore]
                .map(|cost| cost.as_secs_f64() * 1e6),
            lead_us: spec.costs.lead.as_secs_f64() * 1e6,
            swept_us: [spec.costs.timeslice_switch, spec.costs.fault_group]
                .map(|cost| cost.as_secs_f64() * 1e6),
            times: [&spec.online.model, &spec.offline.model].map(|model| model.cost.source()),
            handle_us: [
                spec.costs.quarantine_handle + spec.costs.release_handle,
                spec.costs.create_handle + spec.costs.map_handle,
            ]
            .map(|cost| cost.as_secs_f64() * 1e6),
            interference: interference(beside.alone, outcome),
            ttft_ms: Spread::of(ttft_ms(outcome)),
            tpot_ms: Spread::of(tpot_ms(outcome)),
            preemptions: outcome.preemptions.len(),
            per_request: (
                outcome.preemptions_per_request_mean(),
                outcome.preemptions_per_request_max(),
            ),
            preempt_us: Spread::of(preempt_us(outcome)),
            offline_tokens_per_s: tokens,
            vs_channel_prism: over(beside.channel_prism),
            vs_oracle: over(beside.oracle),
            shares: [
                outcome.gpu.online,
                outcome.gpu.offline,
                outcome.gpu.switching,
            ]
            .map(share),
            reclaims: outcome.reclaims.len(),
            reclaim_ms: Spread::of(reclaim_ms(outcome)),
            lost_tokens: outcome.offline.lost_tokens,
            computed: (
                outcome.offline.computed_tokens,
                outcome.offline.again_tokens,
            ),
            recompute_tax: outcome.offline.recompute_tax(),
            kills: outcome.offline.kills,
            refused: (outcome.offline.refused, outcome.offline.offered),
            faults: outcome.faults,
            cooldown_ms: (
                2e3 * outcome.cooldown.longest_gap.as_secs_f64(),
                outcome
                    .cooldown
                    .at_end
                    .map(|cooldown| cooldown.as_secs_f64() * 1e3),
            ),
            requests: outcome.requests.len(),
            seconds,
        }
    }

    /// As a JSON object with the names of [`COLUMNS`]; what is empty in the table is null here.
    #[must_use]
    pub fn json(&self) -> Value {
        let pairs = COLUMNS.iter().map(|(name, cell)| {
            let value = match cell(self) {
                Cell::Text(text) => Value::String(text),
                Cell::Whole(number) => number.into(),
                Cell::Real(number, _) => number.into(),
                Cell::Nothing => Value::Null,
            };
            ((*name).to_owned(), value)
        });
        Value::Object(pairs.collect::<Map<_, _>>())
    }
}

/// Time to first token of each request, milliseconds.
#[must_use]
pub fn ttft_ms(outcome: &Outcome) -> Vec<f64> {
    let requests = outcome.requests.iter();
    requests
        .map(|request| request.ttft().as_secs_f64() * 1e3)
        .collect()
}

/// Time per further token of each request that has any, milliseconds.
#[must_use]
pub fn tpot_ms(outcome: &Outcome) -> Vec<f64> {
    let further = outcome.requests.iter().filter_map(|request| request.tpot());
    further.map(|tpot| tpot.as_secs_f64() * 1e3).collect()
}

/// Latency of each preemption, microseconds.
#[must_use]
pub fn preempt_us(outcome: &Outcome) -> Vec<f64> {
    let preemptions = outcome.preemptions.iter();
    preemptions
        .map(|one| one.latency().as_secs_f64() * 1e6)
        .collect()
}

/// Duration of each reclaim, milliseconds.
#[must_use]
pub fn reclaim_ms(outcome: &Outcome) -> Vec<f64> {
    let reclaims = outcome.reclaims.iter();
    reclaims
        .map(|one| one.mapped.since(one.asked).as_secs_f64() * 1e3)
        .collect()
}

/// What stands in one column of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// A word.
    Text(String),
    /// A count.
    Whole(u64),
    /// A number, and its decimals in CSV.
    Real(f64, usize),
    /// There is no such figure.
    Nothing,
}

/// A column of the table: its name, and its cell.
pub type Column = (&'static str, fn(&Figures) -> Cell);

fn some(value: Option<f64>) -> Cell {
    value.map_or(Cell::Nothing, |value| Cell::Real(value, 4))
}

/// The table's columns, in order. Increases, shares and ratios of tokens are as in [`Figures`];
/// units are in the names.
pub const COLUMNS: [Column; 51] = [
    ("scenario", |f| Cell::Text(f.scenario.clone())),
    ("seed", |f| Cell::Whole(f.seed)),
    ("compute", |f| Cell::Text(f.case.compute.name())),
    ("memory", |f| Cell::Text(f.case.memory.name().to_owned())),
    ("ttft_increase_pct", |f| {
        Cell::Real(f.interference.ttft.mean_pct, 4)
    }),
    ("tpot_increase_pct", |f| {
        Cell::Real(f.interference.tpot.mean_pct, 4)
    }),
    ("preemptions_per_request_max", |f| {
        Cell::Whole(f.per_request.1.into())
    }),
    ("preempt_latency_p99_us", |f| {
        Cell::Real(f.preempt_us.p99, 3)
    }),
    ("offline_tokens_per_s", |f| {
        Cell::Real(f.offline_tokens_per_s, 3)
    }),
    ("offline_vs_channel_prism", |f| some(f.vs_channel_prism)),
    ("offline_vs_oracle", |f| some(f.vs_oracle)),
    ("reclaims", |f| Cell::Whole(f.reclaims as u64)),
    ("lost_tokens", |f| Cell::Whole(f.lost_tokens)),
    ("faults", |f| Cell::Whole(f.faults)),
    ("ttft_increase_median_pct", |f| {
        Cell::Real(f.interference.ttft.median_pct, 4)
    }),
    ("ttft_increase_p99_pct", |f| {
        Cell::Real(f.interference.ttft.p99_pct, 4)
    }),
    ("tpot_increase_median_pct", |f| {
        Cell::Real(f.interference.tpot.median_pct, 4)
    }),
    ("tpot_increase_p99_pct", |f| {
        Cell::Real(f.interference.tpot.p99_pct, 4)
    }),
    ("ttft_mean_ms", |f| Cell::Real(f.ttft_ms.mean, 4)),
    ("ttft_p50_ms", |f| Cell::Real(f.ttft_ms.p50, 4)),
    ("ttft_p99_ms", |f| Cell::Real(f.ttft_ms.p99, 4)),
    ("tpot_mean_ms", |f| Cell::Real(f.tpot_ms.mean, 4)),
    ("tpot_p50_ms", |f| Cell::Real(f.tpot_ms.p50, 4)),
    ("tpot_p99_ms", |f| Cell::Real(f.tpot_ms.p99, 4)),
    ("preemptions", |f| Cell::Whole(f.preemptions as u64)),
    ("preemptions_per_request_mean", |f| {
        Cell::Real(f.per_request.0, 4)
    }),
    ("preempt_latency_p50_us", |f| {
        Cell::Real(f.preempt_us.p50, 3)
    }),
    ("preempt_latency_max_us", |f| {
        Cell::Real(f.preempt_us.max, 3)
    }),
    ("online_gpu_share", |f| Cell::Real(f.shares[0], 4)),
    ("offline_gpu_share", |f| Cell::Real(f.shares[1], 4)),
    ("switching_gpu_share", |f| Cell::Real(f.shares[2], 4)),
    ("reclaim_p50_ms", |f| Cell::Real(f.reclaim_ms.p50, 4)),
    ("reclaim_p99_ms", |f| Cell::Real(f.reclaim_ms.p99, 4)),
    ("offline_kills", |f| Cell::Whole(f.kills)),
    ("computed_tokens", |f| Cell::Whole(f.computed.0)),
    ("recomputed_tokens", |f| Cell::Whole(f.computed.1)),
    ("recomputed_per_generated", |f| some(f.recompute_tax)),
    ("true_cooldown_ms", |f| Cell::Real(f.cooldown_ms.0, 4)),
    ("cooldown_ms", |f| some(f.cooldown_ms.1)),
    ("disable_save_us", |f| Cell::Real(f.switch_us[0], 3)),
    ("enable_restore_us", |f| Cell::Real(f.switch_us[1], 3)),
    ("timeslice_switch_us", |f| Cell::Real(f.swept_us[0], 3)),
    ("fault_group_us", |f| Cell::Real(f.swept_us[1], 3)),
    ("lead_us", |f| Cell::Real(f.lead_us, 3)),
    ("take_handle_us", |f| Cell::Real(f.handle_us[0], 3)),
    ("make_handle_us", |f| Cell::Real(f.handle_us[1], 3)),
    ("online_times", |f| Cell::Text(f.times[0].to_owned())),
    ("offline_times", |f| Cell::Text(f.times[1].to_owned())),
    ("online_requests", |f| Cell::Whole(f.requests as u64)),
    ("offline_refused", |f| Cell::Whole(f.refused.0)),
    ("cut", |f| Cell::Text(f.cut.clone())),
];

/// The table as CSV, a row for each of `figures`.
#[must_use]
pub fn csv(figures: &[Figures]) -> String {
    let names: Vec<&str> = COLUMNS.iter().map(|(name, _)| *name).collect();
    let mut table = names.join(",") + "\n";
    for one in figures {
        let cells: Vec<String> = COLUMNS.iter().map(|(_, cell)| cell(one).csv()).collect();
        table += &(cells.join(",") + "\n");
    }
    table
}

impl Cell {
    fn csv(&self) -> String {
        match self {
            Self::Text(text) if text.contains([',', '"', '\n', '\r']) => {
                format!("\"{}\"", text.replace('"', "\"\""))
            }
            Self::Text(text) => text.clone(),
            Self::Whole(number) => number.to_string(),
            // Minus zero is a difference of nothing.
            Self::Real(number, decimals) => format!("{:.decimals$}", number + 0.0),
            Self::Nothing => String::new(),
        }
    }
}
