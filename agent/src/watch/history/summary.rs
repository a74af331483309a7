//! What a history amounts to: the inputs a cluster scheduler places offline jobs by, and the two figures
//! that say whether colocation pays.
//!
//! *Harvested* is the share of a GPU's time in which offline work could run on it. A job's *fraction* is
//! its throughput over what it has with the GPUs to itself, and the GPUs it *saved* are that fraction
//! times its GPUs, over the whole period (the paper, section 7.1). Throughput is counted in launches, the
//! only unit the agent sees of every job. The standalone rate is given by the operator, else taken from
//! slices in which the job ran throughout, else from the time it ran in: each report says which.
//!
//! *Burstiness* is the coefficient of variation (standard deviation over mean) of the busy share of
//! slices, of the gaps, and of the memory online uses (section 2 there); *alignment* of two GPUs is
//! overlapping over united busy time (section 6).

use super::{GAPS, GpuSlice, JobSlice, Slice, Span, Subject};
use std::collections::BTreeMap;
use tidegate_node::usage::GAP_BOUNDS_NS;

/// What standalone rates were made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// The operator said it.
    Given,
    /// Slices in which the job ran throughout.
    Alone,
    /// The time in which it ran.
    WhileRunning,
}

impl Basis {
    /// For people and files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Given => "given",
            Self::Alone => "alone",
            Self::WhileRunning => "while_running",
        }
    }
}

/// Gaps of one GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gaps {
    /// How many ended.
    pub count: u64,
    /// By length, as [`GAP_BOUNDS_NS`] has it.
    pub counts: [u64; GAPS],
    /// Their mean, s.
    pub mean_s: f64,
    /// Their coefficient of variation.
    pub cv: f64,
}

impl Gaps {
    /// The bound at or below which a share `q` of the gaps is, ns; None: above all bounds, or no gap.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<u64> {
        let wanted = q * real(self.count);
        let mut seen = 0;
        for (place, count) in self.counts.iter().enumerate() {
            seen += count;
            if self.count != 0 && real(seen) >= wanted {
                return GAP_BOUNDS_NS.get(place).copied();
            }
        }
        None
    }
}

/// One GPU over the period. Shares are from 0 to 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gpu {
    /// Its index.
    pub gpu: u16,
    /// How much of the period the history knows, ns.
    pub observed: u64,
    /// Online was busy.
    pub busy: f64,
    /// Offline work could run.
    pub harvested: f64,
    /// The gate was open.
    pub open: f64,
    /// Times offline was taken off it.
    pub preemptions: u64,
    /// Times an online engine used nine tenths of its memory.
    pub pressure: u64,
    /// Times online left it idle.
    pub gaps: Gaps,
    /// Coefficient of variation of the busy share of slices.
    pub busy_cv: f64,
    /// Memory, where it is shared.
    pub memory: Option<Memory>,
}

/// Memory of one GPU over the period, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Memory {
    /// What is shared.
    pub pool: u64,
    /// Mean of what online leaves.
    pub mean: u64,
    /// In 5 % of the time it left at most this.
    pub p5: u64,
    /// The least it left.
    pub min: u64,
    /// Coefficient of variation of what online uses.
    pub used_cv: f64,
}

/// Two GPUs over the period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pair {
    /// The lower index.
    pub a: u16,
    /// The higher.
    pub b: u16,
    /// Overlapping over united busy time; None: online was busy on neither.
    pub alignment: Option<f64>,
}

/// One offline job over the period.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its name.
    pub name: String,
    /// Whose it is, where that is known.
    pub uid: Option<u32>,
    /// GPUs it used.
    pub gpus: u32,
    /// It had a process, ns.
    pub attached: u64,
    /// It could run, ns.
    pub running: u64,
    /// Its launches.
    pub launches: u64,
    /// Useful units of work, as it counts them.
    pub units: u64,
    /// Units that memory which was taken had it compute again.
    pub lost: u64,
    /// An operator had paused it or drained the node, ns.
    pub paused: u64,
    /// Memory that it held of the pools, on average while it was attached, bytes.
    pub held: u64,
    /// What it does per second with its GPUs to itself, and how that is known; None: it never ran.
    pub standalone: Option<(f64, Basis)>,
    /// Throughput while it was attached over standalone throughput.
    pub fraction: Option<f64>,
    /// GPUs that would have been needed to do the same: fraction x GPUs, on average over the period.
    pub saved: Option<f64>,
}

/// The jobs of one user over the period.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct User {
    /// None: those of agents that did not say whose they were.
    pub uid: Option<u32>,
    /// How many.
    pub jobs: u32,
    /// Sums over them, ns.
    pub attached: u64,
    /// See there.
    pub running: u64,
    /// Their launches.
    pub launches: u64,
    /// GPUs that would have been needed to do the same.
    pub saved: f64,
}

/// The whole period.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Begin and end by the calendar, ms since 1970, of what the history knows.
    pub begin_unix_ms: u64,
    /// See there.
    pub end_unix_ms: u64,
    /// By index.
    pub gpus: Vec<Gpu>,
    /// Every pair.
    pub pairs: Vec<Pair>,
    /// By name, and by user within.
    pub jobs: Vec<Job>,
}

impl Summary {
    /// The sums of each user's jobs, those unknown last.
    #[must_use]
    pub fn users(&self) -> Vec<User> {
        let mut users = BTreeMap::<(bool, Option<u32>), User>::new();
        for job in &self.jobs {
            let sum = users.entry((job.uid.is_none(), job.uid)).or_default();
            sum.uid = job.uid;
            sum.jobs += 1;
            sum.attached = sum.attached.saturating_add(job.attached);
            sum.running = sum.running.saturating_add(job.running);
            sum.launches = sum.launches.saturating_add(job.launches);
            sum.saved += job.saved.unwrap_or(0.0);
        }
        users.into_values().collect()
    }
}

#[expect(clippy::cast_precision_loss, reason = "shares and means, for people")]
const fn real(count: u64) -> f64 {
    count as f64
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole != 0).then(|| real(part) / real(whole))
}

/// Coefficient of variation of `(value, weight)`; 0 where the mean is 0.
fn variation(values: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (mut weight, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for (value, of) in values {
        weight += of;
        sum += value * of;
        squares += value * value * of;
    }
    cv(weight, sum, squares)
}

fn cv(weight: f64, sum: f64, squares: f64) -> f64 {
    if weight <= 0.0 || sum <= 0.0 {
        return 0.0;
    }
    let mean = sum / weight;
    (squares / weight - mean * mean).max(0.0).sqrt() / mean
}

/// Sums up `slices`. `standalone` are rates that the operator knows, launches per second, by job.
#[must_use]
pub fn summarise(slices: &[Slice], standalone: &BTreeMap<String, f64>) -> Summary {
    let mut gpus = BTreeMap::<u16, Vec<(u64, &GpuSlice)>>::new();
    let mut pairs = BTreeMap::<(u16, u16), (u64, u64)>::new();
    let mut jobs = BTreeMap::<(&str, Option<u32>), Vec<(f64, &JobSlice)>>::new();
    let crowds = Crowds::of(slices);
    for slice in slices {
        let length = slice.span.length_ns;
        match &slice.subject {
            Subject::Gpu(gpu) => gpus.entry(gpu.gpu).or_default().push((length, gpu)),
            Subject::Pair(pair) => {
                let sum = pairs.entry((pair.a, pair.b)).or_default();
                *sum = (
                    sum.0.saturating_add(pair.both),
                    sum.1.saturating_add(pair.either),
                );
            }
            Subject::Job(job) => {
                let own = jobs.entry((&job.name, job.uid)).or_default();
                own.push((crowds.share(slice.span, job), job));
            }
            // Of these, placement makes something (`place::facts`).
            Subject::Open(_) | Subject::Memory(_) => {}
        }
    }
    let begin = slices.iter().map(|slice| {
        slice
            .span
            .end_unix_ms
            .saturating_sub(slice.span.length_ns / 1_000_000)
    });
    let gpus: Vec<_> = gpus
        .into_iter()
        .map(|(gpu, of)| sum_gpu(gpu, &of))
        .collect();
    let observed = gpus.iter().map(|gpu| gpu.observed).max().unwrap_or(0);
    Summary {
        begin_unix_ms: begin.min().unwrap_or(0),
        end_unix_ms: slices
            .iter()
            .map(|slice| slice.span.end_unix_ms)
            .max()
            .unwrap_or(0),
        pairs: pairs
            .into_iter()
            .map(|((a, b), (both, either))| Pair {
                a,
                b,
                alignment: ratio(both, either).map(|share| share.min(1.0)),
            })
            .collect(),
        jobs: jobs
            .into_iter()
            .map(|((name, uid), of)| Job {
                uid,
                ..sum_job(name, &of, standalone.get(name).copied(), observed)
            })
            .collect(),
        gpus,
    }
}

fn sum_gpu(gpu: u16, of: &[(u64, &GpuSlice)]) -> Gpu {
    let total = |part: fn(&GpuSlice) -> u64| {
        of.iter()
            .map(|(_, slice)| part(slice))
            .fold(0, u64::saturating_add)
    };
    let observed = of
        .iter()
        .map(|(length, _)| *length)
        .fold(0, u64::saturating_add);
    let share = |part| ratio(total(part), observed).unwrap_or(0.0).min(1.0);
    let mut gaps = Gaps::default();
    for (sum, place) in gaps.counts.iter_mut().zip(0..) {
        *sum = of
            .iter()
            .map(|(_, slice)| u64::from(slice.gaps[place]))
            .sum();
    }
    gaps.count = gaps.counts.iter().sum();
    let gap_sum_s = real(total(|slice| slice.gap_sum)) / 1e9;
    let squares = of.iter().map(|(_, slice)| slice.gap_squares).sum();
    if gaps.count != 0 {
        gaps.mean_s = gap_sum_s / real(gaps.count);
        gaps.cv = cv(real(gaps.count), gap_sum_s, squares);
    }
    let busy = of
        .iter()
        .map(|&(length, slice)| (ratio(slice.busy, length).unwrap_or(0.0), real(length)));
    Gpu {
        gpu,
        observed,
        busy: share(|slice| slice.busy),
        harvested: share(|slice| slice.running),
        open: share(|slice| slice.open),
        preemptions: total(|slice| slice.preemptions.into()),
        pressure: total(|slice| slice.pressure.into()),
        gaps,
        busy_cv: variation(busy),
        memory: sum_memory(of),
    }
}

fn sum_memory(of: &[(u64, &GpuSlice)]) -> Option<Memory> {
    let mut known: Vec<_> = of.iter().filter(|(_, slice)| slice.pool != 0).collect();
    let newest = known.last()?.1.pool;
    let time: u128 = known.iter().map(|(length, _)| u128::from(*length)).sum();
    // Not exact, and cannot overflow whatever a file says.
    let weighted: f64 = known
        .iter()
        .map(|(length, slice)| real(*length) * real(slice.available_mean))
        .sum();
    #[expect(clippy::cast_precision_loss, reason = "the weight of a mean")]
    let weight = time.max(1) as f64;
    let used = known.iter().map(|(length, slice)| {
        (
            real(slice.pool.saturating_sub(slice.available_mean)),
            real(*length),
        )
    });
    let used_cv = variation(used);
    known.sort_by_key(|(_, slice)| slice.available_min);
    let mut seen = 0;
    let low = known.iter().find(|(length, _)| {
        seen += u128::from(*length);
        seen * 20 >= time
    });
    Some(Memory {
        pool: newest,
        mean: (weighted / weight) as u64,
        p5: low.map_or(0, |(_, slice)| slice.available_min),
        min: known.first().map_or(0, |(_, slice)| slice.available_min),
        used_cv,
    })
}

/// How long offline jobs ran on each GPU in each slice, all together: those that run at once divide it among them.
#[derive(Debug, Default)]
struct Crowds(BTreeMap<(u64, u32), u64>);

impl Crowds {
    fn of(slices: &[Slice]) -> Self {
        let mut crowds = Self::default();
        for slice in slices {
            if let Subject::Job(job) = &slice.subject {
                for gpu in gpus_of(job) {
                    let ran = crowds.0.entry((slice.span.end_unix_ms, gpu)).or_default();
                    *ran = ran.saturating_add(job.running);
                }
            }
        }
        crowds
    }

    /// What part of its GPUs a job had while it ran, as if those that ran with it had as much.
    fn share(&self, span: Span, job: &JobSlice) -> f64 {
        gpus_of(job)
            .filter_map(|gpu| {
                let ran = self.0.get(&(span.end_unix_ms, gpu))?;
                ratio(span.length_ns, *ran)
            })
            .fold(1.0, f64::min)
    }
}

fn gpus_of(job: &JobSlice) -> impl Iterator<Item = u32> {
    let gpus = job.gpus;
    (0..u64::BITS).filter(move |gpu| gpus >> gpu & 1 == 1)
}

/// A job that had this part of its GPUs had them to itself: slices are not cut to the nanosecond.
const ITS_OWN: f64 = 0.99;

/// The slices of a job, each with its share of its GPUs.
fn sum_job(name: &str, of: &[(f64, &JobSlice)], given: Option<f64>, observed: u64) -> Job {
    let total = |part: fn(&JobSlice) -> u64| {
        of.iter()
            .map(|(_, slice)| part(slice))
            .fold(0, u64::saturating_add)
    };
    let (attached, running, launches) = (
        total(|slice| slice.attached),
        total(|slice| slice.running),
        total(|slice| slice.launches),
    );
    let gpus = of
        .iter()
        .fold(0, |all, (_, slice)| all | slice.gpus)
        .count_ones();
    let rate = |launches: u64, ns: u64| ratio(launches, ns).map(|per_ns| per_ns * 1e9);
    let alone = of
        .iter()
        .filter(|(share, slice)| *share > ITS_OWN && slice.undisturbed && slice.launches != 0);
    let (own, time) = alone.fold((0u64, 0u64), |(own, time), (_, slice)| {
        (
            own.saturating_add(slice.launches),
            time.saturating_add(slice.running),
        )
    });
    let shares = of.iter().map(|(share, slice)| share * real(slice.running));
    let as_if_alone = shares.sum::<f64>();
    let while_running = (as_if_alone > 0.0).then(|| real(launches) * 1e9 / as_if_alone);
    let standalone = given
        .map(|rate| (rate, Basis::Given))
        .or_else(|| Some((rate(own, time)?, Basis::Alone)))
        .or_else(|| Some((while_running?, Basis::WhileRunning)))
        .filter(|(rate, _)| *rate > 0.0);
    let fraction = standalone.and_then(|(alone, _)| Some(rate(launches, attached)? / alone));
    let saved =
        fraction.and_then(|fraction| Some(fraction * f64::from(gpus) * ratio(attached, observed)?));
    Job {
        name: name.to_owned(),
        uid: None,
        gpus,
        attached,
        running,
        launches,
        units: total(|slice| slice.units),
        lost: total(|slice| slice.lost),
        paused: total(|slice| slice.paused),
        held: mean(total(|slice| slice.held), attached),
        standalone,
        fraction,
        saved,
    }
}

/// The mean of what adds up to bytes x s over so many ns.
fn mean(byte_seconds: u64, ns: u64) -> u64 {
    let mean = (u128::from(byte_seconds) * 1_000_000_000).checked_div(u128::from(ns));
    mean.and_then(|mean| u64::try_from(mean).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests;
