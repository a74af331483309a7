//! A table of pairs, each predicted by rules that know more and more, and measured.

use std::num::NonZeroUsize;
use std::time::Duration;

use tidegate_policy::ids::{GpuId, GpuSet};
use tidegate_policy::placement::{Node, Prediction, Profile, Slice, Wrong, predict};

use super::alone::{Kind, Standalone};
use crate::evaluation::EvaluationError;
use crate::record::Placement;
use crate::run;
use crate::scenarios::Scenario;
use crate::spec::Spec;
use crate::sweep::in_parallel;

const GIB: f64 = (1u64 << 30) as f64;
/// Slices of the history: the agent's own, ns.
pub const SLICE: u64 = 60_000_000_000;
/// A job needs the memory with which it has this share of its rate: the paper's requirement, which it does not define.
const REQUIRED: f64 = 0.95;

/// What a prediction knows, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Idle time.
    Idle,
    /// Idle time times memory.
    Memory,
    /// The same less a coefficient times the expected deficit, as Valve builds it; fitted on the other nodes.
    Paper,
    /// The agent's model; what falls costs as on the other nodes.
    Model,
    /// The agent's model, with what a job of this kind lost on this node.
    Measured,
}

impl Stage {
    /// All, in order, with the names of the table.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Idle, "idle"),
        (Self::Memory, "idle_memory"),
        (Self::Paper, "paper"),
        (Self::Model, "model"),
        (Self::Measured, "model_measured"),
    ];
}

/// One pair, run.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Place of the scenario whose online side it has.
    pub node: usize,
    /// Place of its kind.
    pub kind: usize,
    /// Tokens a second.
    pub rate: f64,
    /// Tokens lost a second.
    pub lost: f64,
    /// Pools that fell a second.
    pub fallen: f64,
    /// What the agent and its offline work did, by slice.
    pub placement: Placement,
}

/// All that was run: what each kind does alone on each GPU, and every pair that fits.
#[derive(Clone, Debug)]
pub struct Measured {
    /// By node, then by kind.
    pub alone: Vec<Vec<Standalone>>,
    /// By node, then by kind.
    pub pairs: Vec<Pair>,
}

impl Measured {
    /// Runs every one of `kinds` beside the online side of every one of `nodes`, of which all have the seeds 1 to
    /// `seeds`. A kind that a node's pool has no room for is left out there.
    ///
    /// # Errors
    /// When a pair cannot be run for any other reason.
    pub fn of(
        specs: &[Vec<Spec>],
        seeds: u64,
        threads: NonZeroUsize,
        done: impl Fn() + Sync,
    ) -> Result<Self, EvaluationError> {
        let mut cells: Vec<(&'static str, usize, &Spec)> = Vec::new();
        for spec in specs.iter().flat_map(|kinds| kinds.iter().enumerate()) {
            let (kind, spec) = spec;
            if !cells
                .iter()
                .any(|cell| (cell.0, cell.1) == (spec.gpu.name, kind))
            {
                cells.push((spec.gpu.name, kind, spec));
            }
        }
        let alone = in_parallel::<_, _, EvaluationError>(
            threads,
            &cells,
            |(_, _, spec)| Ok(Standalone::measure(&spec.offline, whole_gpu(spec))),
            |_| done(),
        )?;
        let alone_of = |spec: &Spec, kind: usize| {
            let cell = cells
                .iter()
                .position(|cell| (cell.0, cell.1) == (spec.gpu.name, kind));
            cell.map(|cell| alone[cell].clone())
        };
        let work: Vec<(usize, usize, &Spec)> = specs
            .iter()
            .enumerate()
            .flat_map(|(node, kinds)| {
                let kinds = kinds.iter().enumerate();
                kinds.map(move |(kind, spec)| (node, kind, spec))
            })
            .filter(|(_, _, spec)| run::check(spec).is_ok())
            .collect();
        let pairs = in_parallel(
            threads,
            &work,
            |&(node, kind, spec)| {
                pair(node, kind, spec, seeds).map_err(|source| EvaluationError {
                    scenario: spec.scenario.clone(),
                    source,
                })
            },
            |_| done(),
        )?;
        let all = specs.iter().map(|kinds| {
            let kinds = kinds.iter().enumerate();
            kinds
                .filter_map(|(kind, spec)| alone_of(spec, kind))
                .collect()
        });
        Ok(Self {
            alone: all.collect(),
            pairs,
        })
    }

    /// What `pair` got, as a share of what its kind does alone.
    #[must_use]
    pub fn got(&self, pair: &Pair) -> f64 {
        pair.rate
            / self.alone[pair.node][pair.kind]
                .rate()
                .max(f64::MIN_POSITIVE)
    }

    /// The history of a node while another kind ran there; the same kind, if it is the only one.
    #[must_use]
    pub fn history(&self, pair: &Pair) -> &[Slice] {
        &self.other(pair).placement.history
    }

    /// The pair of another kind on the same node; the same, if it is the only one.
    #[must_use]
    pub fn other<'a>(&'a self, pair: &Pair) -> &'a Pair {
        let there: Vec<&Pair> = self.pairs.iter().filter(|p| p.node == pair.node).collect();
        let own = there
            .iter()
            .position(|other| other.kind == pair.kind)
            .unwrap_or(0);
        there[(own + 1) % there.len()]
    }

    /// Units that a kind computes again for a pool that fell: the geometric mean of all nodes but `node`.
    #[must_use]
    pub fn lost_per_pool(&self, kind: usize, node: usize) -> f64 {
        let others = self
            .pairs
            .iter()
            .filter(|p| p.kind == kind && p.node != node);
        let logs: Vec<f64> = others
            .filter(|pair| pair.fallen > 0.0)
            .map(|pair| (pair.lost.max(1.0) / pair.fallen).ln())
            .collect();
        if logs.is_empty() {
            return 0.0;
        }
        (logs.iter().sum::<f64>() / logs.len() as f64).exp()
    }

    /// The profile of `pair`'s kind, with nothing in it that its node showed.
    ///
    /// # Errors
    /// When what was measured makes no profile.
    pub fn profile(&self, pair: &Pair) -> Result<Profile, Wrong> {
        let lost = self.lost_per_pool(pair.kind, pair.node);
        self.alone[pair.node][pair.kind]
            .draft(format!("offline_{}", pair.kind), lost)
            .check()
    }

    /// What each stage says of `pair`; none, if the model refuses to say anything.
    ///
    /// # Errors
    /// When what was measured makes no profile.
    pub fn stages(&self, pair: &Pair) -> Result<Option<[f64; 5]>, Wrong> {
        let profile = self.profile(pair)?;
        let history = self.history(pair);
        let node = node_of(history);
        let model = predict(&profile, 1, &node);
        let measured = Node {
            lost_per_s: Some(pair.lost),
            ..node
        };
        let measured = predict(&profile, 1, &measured);
        if !model.refusals.is_empty() {
            return Ok(None);
        }
        let paper = self.paper(pair, &model)?;
        let Prediction { parts, .. } = &model;
        Ok(Some([
            parts.open,
            parts.open * parts.memory,
            paper,
            model.ratio,
            measured.ratio,
        ]))
    }

    /// Valve's equation 2: the mean over memory, less a coefficient times the deficit. The coefficient is fitted to the
    /// other nodes by least squares.
    pub(crate) fn paper(&self, pair: &Pair, model: &Prediction) -> Result<f64, Wrong> {
        let required = self.alone[pair.node][pair.kind].needs(REQUIRED);
        let (mut up, mut down) = (0.0, 0.0);
        let others = self
            .pairs
            .iter()
            .filter(|p| p.kind == pair.kind && p.node != pair.node);
        for other in others {
            let history = self.history(other);
            let told = predict(&self.profile(other)?, 1, &node_of(history));
            let open = told.parts.open;
            let weight = open * deficit(history, required);
            up += weight * (open * told.parts.memory - self.got(other));
            down += weight * weight;
        }
        let coefficient = if down > 0.0 {
            (up / down).max(0.0)
        } else {
            0.0
        };
        let memory = model.parts.memory - coefficient * deficit(self.history(pair), required);
        Ok(model.parts.open * memory.max(0.0))
    }
}

/// All of a history as one window.
pub(crate) fn node_of(history: &[Slice]) -> Node<'_> {
    let mut node = Node::new(GpuSet::of(GpuId(0)), history);
    node.horizon.window = Duration::from_secs(1 << 40);
    node.horizon.judged = node.horizon.window;
    node.horizon.least = Duration::from_nanos(1);
    node
}

/// Memory of the whole GPU that the offline model's weights leave, bytes.
fn whole_gpu(spec: &Spec) -> u64 {
    spec.gpu.left(&[&spec.offline.model]).unwrap_or(1)
}

/// Memory missing from `required`, GiB, in the mean over open time.
fn deficit(history: &[Slice], required: f64) -> f64 {
    let all = history.iter().flat_map(|slice| &slice.gpus);
    let levels = all
        .filter_map(|gpu| gpu.available)
        .flat_map(|own| own.levels);
    let (mut time, mut missing) = (0.0, 0.0);
    for level in levels {
        time += level.ns as f64;
        missing += level.ns as f64 * (required - level.mean().0 as f64 / GIB).max(0.0);
    }
    if time > 0.0 { missing / time } else { 0.0 }
}

fn pair(node: usize, kind: usize, spec: &Spec, seeds: u64) -> Result<Pair, crate::spec::SpecError> {
    let mut all: Option<Pair> = None;
    for seed in 1..=seeds.max(1) {
        let spec = Spec {
            seed,
            ..spec.clone()
        };
        let outcome = run::watched(&spec, SLICE)?;
        let seconds = outcome.length.as_secs_f64().max(f64::MIN_POSITIVE);
        let lost: u64 = outcome
            .reclaims
            .iter()
            .map(|reclaim| reclaim.lost_tokens)
            .sum();
        let own = outcome
            .placement
            .history
            .iter()
            .flat_map(|slice| &slice.gpus);
        let fallen = own.filter_map(|gpu| gpu.available);
        let fallen: f64 = fallen
            .map(|own| own.fallen.0 as f64 / own.pool.0.max(1) as f64)
            .sum();
        let rate = outcome.offline_tokens_per_s();
        let share = 1.0 / seeds.max(1) as f64;
        let own = all.get_or_insert(Pair {
            node,
            kind,
            rate: 0.0,
            lost: 0.0,
            fallen: 0.0,
            placement: outcome.placement,
        });
        own.rate += rate * share;
        own.lost += lost as f64 / seconds * share;
        own.fallen += fallen / seconds * share;
    }
    all.ok_or(crate::spec::SpecError::NoOffline)
}

/// Every one of `kinds` beside the online side of `scenario`.
///
/// # Errors
/// When a trace cannot be read, or the GPU has no such model.
pub fn beside(scenario: &Scenario, kinds: &[Kind]) -> Result<Vec<Spec>, crate::input::InputError> {
    let each = kinds.iter().map(|kind| {
        let mut own = scenario.clone();
        own.offline_model = kind.model_on(&scenario.gpu).unwrap_or(own.offline_model);
        own.offline_lengths.clone_from(&kind.lengths);
        own.offline_chunk_tokens = kind.chunk;
        own.spec()
    });
    each.collect()
}

/// How far predictions are off.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Errors {
    /// Pairs.
    pub pairs: usize,
    /// Mean of the absolute errors, percent of what was measured.
    pub mean: f64,
    /// Their median.
    pub median: f64,
    /// Nine of ten are below.
    pub p90: f64,
    /// The largest.
    pub most: f64,
}

impl Errors {
    /// Of predicted and measured values.
    #[must_use]
    pub fn of(pairs: &[(f64, f64)]) -> Self {
        let off = |&(predicted, measured): &(f64, f64)| error(predicted, measured).abs();
        let mut all: Vec<f64> = pairs.iter().map(off).collect();
        all.sort_by(f64::total_cmp);
        let Some(&most) = all.last() else {
            return Self::default();
        };
        let at = |share: f64| all[((all.len() - 1) as f64 * share).round() as usize];
        Self {
            pairs: all.len(),
            mean: all.iter().sum::<f64>() / all.len() as f64,
            median: at(0.5),
            p90: at(0.9),
            most,
        }
    }
}

/// By how many percent of `measured` a prediction is off.
#[must_use]
pub fn error(predicted: f64, measured: f64) -> f64 {
    100.0 * (predicted / measured.max(f64::MIN_POSITIVE) - 1.0)
}

/// Spearman's rank correlation; equal values have the mean of their ranks.
#[must_use]
pub fn rank_correlation(pairs: &[(f64, f64)]) -> f64 {
    let ranks = |of: fn(&(f64, f64)) -> f64| -> Vec<f64> {
        let rank = |pair: &(f64, f64)| {
            let below = pairs.iter().filter(|other| of(other) < of(pair)).count();
            let same = pairs.iter().filter(|other| of(other) == of(pair)).count();
            below as f64 + (same as f64 - 1.0) / 2.0
        };
        pairs.iter().map(rank).collect()
    };
    let (a, b) = (ranks(|pair| pair.0), ranks(|pair| pair.1));
    let mean = (pairs.len() as f64 - 1.0) / 2.0;
    let (mut both, mut one, mut other) = (0.0, 0.0, 0.0);
    for (a, b) in a.iter().zip(&b) {
        both += (a - mean) * (b - mean);
        one += (a - mean).powi(2);
        other += (b - mean).powi(2);
    }
    both / (one * other).sqrt().max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_and_ranks_by_hand() {
        let pairs = [(1.1, 1.0), (1.8, 2.0), (3.0, 3.0), (5.0, 4.0)];
        let told = Errors::of(&pairs);
        assert_eq!(told.pairs, 4);
        for (told, truth) in [(told.mean, 11.25), (told.median, 10.0), (told.most, 25.0)] {
            assert!((told - truth).abs() < 1e-9, "{told} is not {truth}");
        }
        assert!((rank_correlation(&pairs) - 1.0).abs() < 1e-12);
        let turned = [(1.0, 4.0), (2.0, 3.0), (3.0, 2.0), (4.0, 1.0)];
        assert!((rank_correlation(&turned) + 1.0).abs() < 1e-12);
        // 1 - 6 sum d^2 / n (n^2 - 1), without equal values.
        let some = [(1.0, 2.0), (2.0, 1.0), (3.0, 4.0), (4.0, 3.0), (5.0, 5.0)];
        assert!((rank_correlation(&some) - 0.8).abs() < 1e-12);
        assert_eq!(Errors::of(&[]), Errors::default());
    }
}
