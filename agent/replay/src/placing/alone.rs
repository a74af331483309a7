//! Kinds of offline jobs, and what each does with the GPU to itself and so much memory.

use std::path::PathBuf;

use crate::batch::{Batch, Spare, Store};
use crate::hardware::{Gpu, Model};
use crate::kv::{BLOCK_TOKENS, blocks_of};
use crate::memory::whole;
use crate::scenarios::{self, ENDINGS, Scenario};
use crate::spec::Offline;
use tidegate_policy::placement::Draft;

/// A kind of offline job: whichever scenarios have the same model, lengths and chunk have the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Its model, by name.
    pub model: String,
    /// Its requests' lengths.
    pub lengths: PathBuf,
    /// Prompt tokens of one iteration.
    pub chunk: u32,
}

/// The kinds of a table, in its order.
#[must_use]
pub fn kinds(scenarios: &[Scenario]) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for scenario in scenarios {
        let kind = Kind {
            model: scenario.offline_model.name.to_string(),
            lengths: scenario.offline_lengths.clone(),
            chunk: scenario.offline_chunk_tokens,
        };
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

/// What stands before the measurement, ns: the first requests have come to their ends.
const WARM: u64 = 120_000_000_000;
/// How long is measured, ns: thousands of requests.
const MEASURED: u64 = 600_000_000_000;
/// Points of a curve, GiB.
const POINTS: [f64; 13] = [
    0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0,
];
const GIB: f64 = (1u64 << 30) as f64;

/// What a kind does with a GPU to itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Standalone {
    /// GiB and tokens a second, from the least memory up; the last is all that the GPU has.
    pub points: Vec<(f64, f64)>,
    /// Memory that its longest request needs, GiB.
    pub least: f64,
    /// Seconds that reading one more prompt token takes.
    pub again: f64,
}

impl Kind {
    /// Its model on `gpu`.
    #[must_use]
    pub fn model_on(&self, gpu: &Gpu) -> Option<Model> {
        scenarios::model(gpu, &self.model).ok()
    }

    /// Model, lengths and chunk, for people.
    #[must_use]
    pub fn label(&self) -> String {
        let file = self
            .lengths
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        let endings = ENDINGS.iter().filter(|ending| !ending.is_empty());
        let name = endings.fold(&*file, |name, ending| {
            name.strip_suffix(ending).unwrap_or(name)
        });
        format!("{}/{name}/{}", self.model, self.chunk)
    }
}

impl Standalone {
    /// Tokens a second with all of the GPU's memory.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.points.last().map_or(0.0, |point| point.1)
    }

    /// Least memory with this share of the rate, GiB.
    #[must_use]
    pub fn needs(&self, share: f64) -> f64 {
        let enough = self
            .points
            .iter()
            .find(|point| point.1 >= share * self.rate());
        enough.or(self.points.last()).map_or(0.0, |point| point.0)
    }

    /// As somebody would write it: tokens, and a curve of what was measured; `lost` as [`Draft::lost`] has it.
    #[must_use]
    pub fn draft(&self, name: String, lost: f64) -> Draft {
        // More memory never does less: what a point is below one before it is chance.
        let mut most = 0.0_f64;
        let curve = self.points.iter().map(|&(gib, rate)| {
            most = most.max(rate);
            (gib, most)
        });
        let curve: Vec<(f64, f64)> = curve.collect();
        let curve = curve
            .iter()
            .map(|&(gib, rate)| (gib, rate / most.max(f64::MIN_POSITIVE)));
        Draft {
            name,
            unit: Some("tokens".to_owned()),
            gpus: Some(1.0),
            rate: Some(self.rate()),
            full: self.points.last().map(|point| point.0),
            half: None,
            curve: Some(curve.collect()),
            least: Some(self.least),
            lost: Some(lost),
            again: Some(self.again),
        }
    }

    /// Measures `offline` with up to `full` bytes.
    #[must_use]
    pub fn measure(offline: &Offline, full: u64) -> Self {
        let block = u64::from(BLOCK_TOKENS) * offline.model.shape.kv_bytes_per_token();
        let longest = offline.lengths.iter();
        let longest = longest.map(|one| one.input_tokens.saturating_add(one.output_tokens));
        let least = whole(u64::from(blocks_of(longest.max().unwrap_or(0))) * block);
        let sizes = POINTS.map(|gib| (gib * GIB) as u64).into_iter();
        let sizes = sizes.filter(|bytes| *bytes > least && *bytes < full);
        let sizes = core::iter::once(least).chain(sizes).chain([full]);
        let points = sizes.map(|bytes| (bytes as f64 / GIB, rate(offline, block, bytes)));
        let chunk = offline.limits.prefill_tokens;
        let cost = &offline.model.cost;
        let read = |tokens: u32| cost.prefill_ms(tokens, cost.attention_ms(tokens, 0), 0, 0);
        let half = (chunk / 2).max(1);
        Self {
            points: points.collect(),
            least: least as f64 / GIB,
            again: (read(chunk + half) - read(chunk)) / f64::from(half) / 1e3,
        }
    }
}

/// Tokens a second with `bytes` for its cache.
fn rate(offline: &Offline, block: u64, bytes: u64) -> f64 {
    let limit = u32::try_from(bytes / block.max(1)).unwrap_or(u32::MAX);
    let store = Store {
        pages: None,
        used: 0,
        limit,
        cache: limit,
        spare: Spare::OneEach,
    };
    let cost = offline.model.cost.clone();
    let mut batch = Batch::new(cost, offline.limits, offline.batching, store);
    let (mut now, mut next, mut warm) = (0, 0, None);
    let mut lengths = offline.lengths.iter().cycle();
    while now < WARM + MEASURED {
        while batch.waiting() < 64 {
            let Some(one) = lengths.next() else {
                return 0.0;
            };
            next += 1;
            batch.admit(next, one.input_tokens, one.output_tokens);
        }
        let Some(iteration) = batch.start() else {
            break;
        };
        now += iteration.ns;
        batch.finish(|_| {});
        if now >= WARM && warm.is_none() {
            warm = Some((now, batch.counts.tokens));
        }
    }
    let Some((since, before)) = warm else {
        return 0.0;
    };
    let kept = batch.counts.tokens.prompt + batch.counts.tokens.generated
        - before.prompt
        - before.generated;
    kept as f64 / ((now - since).max(1) as f64 / 1e9)
}
