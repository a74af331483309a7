//! Blocks: a stretch of the same requests in one mode, and two modes compared.

use crate::plan::{Mode, Schedule};
use crate::record::{Failure, Figure, Seen, failures};
use crate::stats::{BATCHES, Estimate, batches, interval};
use std::time::Duration;

/// Times that each request has to keep, so that it counts as goodput.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bounds {
    /// To the first token, ms.
    pub ttft_ms: Option<f64>,
    /// By further token, ms.
    pub tpot_ms: Option<f64>,
}

impl Bounds {
    /// Whether anything is asked.
    #[must_use]
    pub const fn any(&self) -> bool {
        self.ttft_ms.is_some() || self.tpot_ms.is_some()
    }

    /// Whether a request kept them. One that was not served did not.
    #[must_use]
    pub fn kept(&self, seen: &Seen) -> bool {
        let within = |value: Option<f64>, bound: Option<f64>| match (value, bound) {
            (_, None) => true,
            (Some(value), Some(bound)) => value <= bound,
            // A single token has no further one.
            (None, Some(_)) => true,
        };
        seen.served() && within(seen.ttft_ms, self.ttft_ms) && within(seen.tpot_ms, self.tpot_ms)
    }
}

/// What the agent, or the offline engine itself, says of offline during a block.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Offline {
    /// Kernels and graphs that the offline jobs launched.
    pub launches: Option<u64>,
    /// Tokens that the offline engine made.
    pub tokens: Option<u64>,
    /// Disables while offline ran, on all GPUs.
    pub preemptions: Option<u64>,
    /// How long these were counted.
    pub seconds: f64,
}

/// One block's results.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// What offline did.
    pub mode: Option<Mode>,
    /// Who measured: empty for the own generator, else the tool and its file.
    pub source: String,
    /// Length of what is counted, seconds; zero if a tool does not say.
    pub seconds: f64,
    /// To the first token.
    pub ttft: Option<Figure>,
    /// By further token.
    pub tpot: Option<Figure>,
    /// Between two pieces of text.
    pub itl: Option<Figure>,
    /// Requests that were counted and served.
    pub served: usize,
    /// Requests that were counted and failed.
    pub failed: usize,
    /// Requests that were sent and not counted: warm-up and cool-down.
    pub uncounted: usize,
    /// Tokens of those served.
    pub output_tokens: u64,
    /// Counted requests that kept the bounds; none without bounds.
    pub good: Option<usize>,
    /// The failures, a line for each kind; those of uncounted requests too.
    pub failures: Vec<Failure>,
    /// By how much the own generator sent late: 99th percentile, ms.
    pub late_p99_ms: Option<f64>,
    /// Why this is not a whole block; none if it is.
    pub partial: Option<String>,
    /// What offline did.
    pub offline: Offline,
    /// Counted requests that were served, in the order of their arrival; none where a tool gives sums only.
    pub requests: Vec<Seen>,
}

impl Block {
    /// Of all that was `seen` of a block of `schedule`.
    #[must_use]
    pub fn measured(mode: Mode, schedule: &Schedule, seen: Vec<Seen>, bounds: &Bounds) -> Self {
        let counts = |one: &Seen| {
            Duration::try_from_secs_f64(one.at_s).is_ok_and(|due| schedule.counts(due))
        };
        let (counted, others): (Vec<Seen>, Vec<Seen>) = seen.into_iter().partition(counts);
        let mut block = Self::of(counted, bounds);
        block.mode = Some(mode);
        block.seconds = schedule.counted().as_secs_f64();
        block.uncounted = others.len();
        let all = block.requests.iter().chain(&others);
        block.late_p99_ms =
            Some(tidegate_text::spread::Spread::of(all.map(|one| one.late_ms).collect()).p99);
        for failure in failures(others.iter()) {
            match block
                .failures
                .iter_mut()
                .find(|own| own.what == failure.what)
            {
                Some(own) => own.count += failure.count,
                None => block.failures.push(failure),
            }
        }
        block
    }

    /// Of requests that are all counted.
    #[must_use]
    pub fn of(mut counted: Vec<Seen>, bounds: &Bounds) -> Self {
        counted.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        let failures = failures(counted.iter());
        let good = bounds
            .any()
            .then(|| counted.iter().filter(|one| bounds.kept(one)).count());
        let all = counted.len();
        counted.retain(Seen::served);
        let each =
            |of: fn(&Seen) -> Option<f64>| -> Vec<f64> { counted.iter().filter_map(of).collect() };
        let itl: Vec<f64> = counted
            .iter()
            .flat_map(|one| one.itl_ms.iter().copied())
            .collect();
        Self {
            ttft: Figure::of(&each(|one| one.ttft_ms)),
            tpot: Figure::of(&each(|one| one.tpot_ms)),
            itl: Figure::of(&itl),
            served: counted.len(),
            failed: all - counted.len(),
            output_tokens: counted.iter().map(|one| one.output_tokens).sum(),
            good,
            failures,
            requests: counted,
            ..Self::default()
        }
    }

    /// Preemptions per counted request; the agent's count is of the whole block, so all requests sent share them.
    #[must_use]
    pub fn preemptions_per_request(&self) -> Option<f64> {
        let sent = self.served + self.failed + self.uncounted;
        let preemptions = self.offline.preemptions?;
        (sent > 0).then(|| preemptions as f64 / sent as f64)
    }
}

/// What a mode costs online over the reference, in percent of the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paired {
    /// The mode that is compared.
    pub mode: Mode,
    /// The mode that it is compared with.
    pub reference: Mode,
    /// More time to the first token.
    pub ttft_pct: Option<Estimate>,
    /// More time by further token.
    pub tpot_pct: Option<Estimate>,
    /// Pairs of blocks.
    pub pairs: usize,
}

/// Pairs of blocks from which on each is one value: what differs from block to block is then in the interval.
const PAIRS_AS_VALUES: usize = 3;

/// Compares `mode` with the reference among `blocks`; none unless both are there.
///
/// The first block of one is paired with the first of the other, and so on: in the order of [`crate::plan::order`]
/// they are neighbours. Within a pair the same requests are compared, those that both served, so that what a request
/// asks for is in neither side's favour. Of at least three pairs each pair is one value of the interval; of fewer,
/// batches of requests are, which leaves out what differs from block to block.
#[must_use]
pub fn paired(blocks: &[Block], mode: Mode) -> Option<Paired> {
    let of = |wanted: &dyn Fn(Mode) -> bool| -> Vec<&Block> {
        blocks
            .iter()
            .filter(|block| block.mode.is_some_and(wanted))
            .collect()
    };
    let reference = blocks
        .iter()
        .filter_map(|block| block.mode)
        .find(|mode| mode.is_reference())?;
    let pairs: Vec<(&Block, &Block)> = of(&|own| own == reference)
        .into_iter()
        .zip(of(&|own| own == mode))
        .collect();
    (!pairs.is_empty() && mode != reference).then(|| Paired {
        mode,
        reference,
        ttft_pct: increase(&pairs, |one| one.ttft_ms, |block| block.ttft),
        tpot_pct: increase(&pairs, |one| one.tpot_ms, |block| block.tpot),
        pairs: pairs.len(),
    })
}

/// Pairs of values: the reference's and the other's.
type Both = Vec<(f64, f64)>;

fn increase(
    pairs: &[(&Block, &Block)],
    of: fn(&Seen) -> Option<f64>,
    sum: fn(&Block) -> Option<Figure>,
) -> Option<Estimate> {
    let requests: Vec<Both> = pairs.iter().map(|pair| common(*pair, of)).collect();
    if requests.iter().all(|both| !both.is_empty()) {
        let all = || requests.iter().flatten();
        let base = all().map(|both| both.0).sum::<f64>() / all().count() as f64;
        let pct = |both: &(f64, f64)| 100.0 * (both.1 - both.0) / base;
        let differences = requests
            .iter()
            .map(|both| both.iter().map(pct).collect::<Vec<f64>>());
        let values: Vec<f64> = if pairs.len() >= PAIRS_AS_VALUES {
            differences
                .map(|own| own.iter().sum::<f64>() / own.len() as f64)
                .collect()
        } else {
            differences
                .flat_map(|own| batches(&own, BATCHES.min(own.len())))
                .collect()
        };
        return interval(&values);
    }
    // Sums only.
    let means: Option<Both> = pairs
        .iter()
        .map(|(a, b)| Some((sum(a)?.spread.mean, sum(b)?.spread.mean)))
        .collect();
    let means = means?;
    let base = means.iter().map(|both| both.0).sum::<f64>() / means.len() as f64;
    let pct: Vec<f64> = means
        .iter()
        .map(|both| 100.0 * (both.1 - both.0) / base)
        .collect();
    interval(&pct)
}

/// A value of each request that both blocks served.
fn common((reference, other): (&Block, &Block), of: fn(&Seen) -> Option<f64>) -> Both {
    let by_index = |block: &Block| -> std::collections::BTreeMap<usize, f64> {
        block
            .requests
            .iter()
            .filter_map(|one| Some((one.index, of(one)?)))
            .collect()
    };
    let others = by_index(other);
    by_index(reference)
        .into_iter()
        .filter_map(|(index, value)| Some((value, *others.get(&index)?)))
        .collect()
}

#[cfg(test)]
mod tests;
