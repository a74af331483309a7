//! What a scrape is made of, and the samples of one metric made of it.

use crate::watch::latency::{self, BOUNDS_NS, Buckets};
use crate::watch::recent::Shares;
use std::collections::BTreeMap;
use tidegate_proto::v1;

/// All that one scrape is made of.
#[derive(Clone, Debug, Default)]
pub struct Scrape {
    /// The node.
    pub status: v1::GetStatusResponse,
    /// By GPU: shares of the last minute.
    pub shares: Vec<Shares>,
    /// Calls that a socket refused: method and how many.
    pub denied: Vec<(&'static str, u64)>,
    /// Slices the history could not take.
    pub history_lost: u64,
}

pub(super) type Labels = Vec<(&'static str, String)>;

#[derive(Debug)]
pub(super) enum Sample {
    Count(u64),
    Seconds(f64),
    Gauge(f64),
    /// Upper bounds with what is counted in each, and the sum.
    Buckets(Vec<(f64, u64)>, f64),
}

pub(super) type Samples = Vec<(Labels, Sample)>;

pub(super) fn plain(sample: Sample) -> (Labels, Sample) {
    (Labels::new(), sample)
}

pub(super) fn flag(is: bool) -> f64 {
    f64::from(u8::from(is))
}

pub(super) fn whole(count: usize) -> f64 {
    real(u64::try_from(count).unwrap_or(u64::MAX))
}

#[expect(clippy::cast_precision_loss, reason = "a metric is a float")]
pub(super) const fn real(count: u64) -> f64 {
    count as f64
}

pub(super) fn seconds(ns: u64) -> f64 {
    real(ns) / 1e9
}

pub(super) fn gpu_labels(gpu: &v1::GpuStatus) -> Labels {
    vec![("gpu", gpu.index.to_string()), ("UUID", gpu.uuid.clone())]
}

pub(super) fn per_gpu(scrape: &Scrape, samples: impl Fn(&v1::GpuStatus) -> Samples) -> Samples {
    let mut all = Samples::new();
    for gpu in &scrape.status.gpus {
        for (more, sample) in samples(gpu) {
            let mut labels = gpu_labels(gpu);
            labels.extend(more);
            all.push((labels, sample));
        }
    }
    all
}

pub(super) fn memory(scrape: &Scrape, samples: impl Fn(&v1::GpuMemory) -> Samples) -> Samples {
    per_gpu(scrape, |gpu| {
        gpu.memory.as_ref().map(&samples).unwrap_or_default()
    })
}

pub(super) fn shares(scrape: &Scrape, share: impl Fn(&Shares) -> f64) -> Samples {
    let gpus = scrape.status.gpus.iter().zip(&scrape.shares);
    gpus.map(|(gpu, of)| (gpu_labels(gpu), Sample::Gauge(share(of))))
        .collect()
}

pub(super) fn time(gpu: &v1::GpuStatus, of: impl Fn(&v1::GpuUsage) -> u64) -> Samples {
    let usage = gpu.usage.iter();
    usage
        .map(|usage| plain(Sample::Seconds(seconds(of(usage)))))
        .collect()
}

pub(super) fn alignment(scrape: &Scrape) -> Samples {
    let mut all = Samples::new();
    for (a, share) in scrape.shares.iter().enumerate() {
        for (b, aligned) in share.aligned.iter().enumerate().skip(a + 1) {
            let labels = vec![("a", a.to_string()), ("b", b.to_string())];
            all.push((labels, Sample::Gauge(*aligned)));
        }
    }
    all
}

pub(super) fn buckets(histogram: &v1::Histogram) -> Sample {
    let bounds = histogram.bounds_ns.iter().map(|&ns| seconds(ns));
    let bounds = bounds.chain([f64::INFINITY]);
    let counted = bounds.zip(histogram.counts.iter().copied()).collect();
    Sample::Buckets(counted, seconds(histogram.sum_ns))
}

pub(super) fn latencies(latency: Option<&v1::Latency>) -> Samples {
    let histogram = latency.and_then(|latency| latency.histogram.as_ref());
    // Before the first there is nothing but the bounds; a series that comes later has no rate at first.
    let empty = || latency::histogram(&Buckets::new(&BOUNDS_NS));
    vec![plain(histogram.map_or_else(|| buckets(&empty()), buckets))]
}

pub(super) fn per_request(per: &v1::PreemptionsPerUnit) -> (Labels, Sample) {
    let more = per.units.saturating_sub(per.untouched + per.once);
    let counted = vec![(0.0, per.untouched), (1.0, per.once), (f64::INFINITY, more)];
    let labels = vec![("unit", per.unit.clone())];
    (labels, Sample::Buckets(counted, real(per.preemptions)))
}

/// By how much more users wait than alone, by what makes them wait. A preemption delays first tokens only: offline is
/// off the GPU when the others come.
pub(super) fn delayed(budget: &v1::Budget) -> Samples {
    let part = |slo: &str, cause: &str, waited_ns: u64, of_ns: u64| {
        let labels = vec![("slo", slo.to_owned()), ("cause", cause.to_owned())];
        (of_ns != 0).then(|| (labels, Sample::Gauge(real(waited_ns) / real(of_ns))))
    };
    let parts = [
        part("ttft", "preemption", budget.preempted_ns, budget.prompts_ns),
        part("ttft", "memory", budget.short_ns, budget.prompts_ns),
        part("tpot", "memory", budget.short_tpot_ns, budget.busy_ns),
    ];
    parts.into_iter().flatten().collect()
}

/// Basis points as ratios.
pub(super) fn allowed(budget: &v1::Budget) -> Samples {
    let allowed = [("ttft", budget.ttft_allowed), ("tpot", budget.tpot_allowed)];
    let set = allowed.into_iter().filter(|(_, basis)| *basis != 0);
    set.map(|(slo, basis)| {
        let ratio = f64::from(basis) / 10_000.0;
        (vec![("slo", slo.to_owned())], Sample::Gauge(ratio))
    })
    .collect()
}

pub(super) fn is_unmanaged(status: &v1::GetStatusResponse, process: &v1::ProcessStatus) -> bool {
    let given_up =
        |job: &v1::JobStatus| job.name == process.job && job.state() == v1::JobState::Unmanaged;
    process.role() == v1::Role::Offline
        && (process.channels != 0 && !process.proven || status.jobs.iter().any(given_up))
}

/// Every state has its series, so that one that nobody is in yet can be asked for.
pub(super) fn jobs_by_state(scrape: &Scrape) -> Samples {
    use v1::JobState::{Gated, Paused, Running, Unknown, Unmanaged};
    let states = [
        (Running, "running"),
        (Gated, "gated"),
        (Paused, "paused"),
        (Unknown, "unknown"),
        (Unmanaged, "unmanaged"),
    ];
    let count = |state| {
        let jobs = scrape.status.jobs.iter();
        jobs.filter(|job| job.state() == state).count()
    };
    let series = states.map(|(state, name)| {
        let labels = vec![("state", name.to_owned())];
        (labels, Sample::Gauge(whole(count(state))))
    });
    series.into()
}

/// Versions are few, but a tenant says its own: what is no version is called so.
pub(super) fn version(said: &str) -> String {
    let known = said.len() <= 16 && said.chars().all(|c| c.is_ascii_digit() || c == '.');
    if known { said } else { "other" }.to_owned()
}

pub(super) fn clients(scrape: &Scrape) -> Samples {
    let mut counts = BTreeMap::<(String, &str, String), u64>::new();
    for process in &scrape.status.processes {
        let state = if process.note.contains("connection lost") {
            "lost"
        } else {
            "attached"
        };
        let role = process
            .role()
            .as_str_name()
            .replace("ROLE_", "")
            .to_lowercase();
        let version = version(&process.library_version);
        *counts.entry((role, state, version)).or_default() += 1;
    }
    for role in ["online", "offline", "ignore"] {
        let none = (role.to_owned(), "attached", scrape.status.version.clone());
        counts.entry(none).or_default();
    }
    let series = counts.into_iter().map(|((role, state, version), count)| {
        let labels = vec![
            ("role", role),
            ("state", state.to_owned()),
            ("version", version),
        ];
        (labels, Sample::Gauge(real(count)))
    });
    series.collect()
}
