//! What the shell measures, as the protocol says it.

use tidegate_node::kinds::gpu_id;
pub use tidegate_node::latency::{BOUNDS_NS, Buckets, Latencies};
use tidegate_node::usage::Usage;
use tidegate_policy::placement::{Available, Level};
use tidegate_proto::v1;

/// Counts of times between fixed bounds.
#[must_use]
pub fn histogram(buckets: &Buckets) -> v1::Histogram {
    v1::Histogram {
        bounds_ns: buckets.bounds().to_vec(),
        counts: buckets.counts().to_vec(),
        sum_ns: buckets.sum_ns(),
        sum_squares_s2: buckets.squares(),
    }
}

/// Quantiles and counts.
#[must_use]
pub fn summary(latencies: &Latencies) -> v1::Latency {
    latencies
        .exact()
        .map_or_else(v1::Latency::default, |exact| v1::Latency {
            count: exact.len(),
            p50_ns: exact.value_at_quantile(0.5),
            p99_ns: exact.value_at_quantile(0.99),
            max_ns: exact.max(),
            histogram: Some(histogram(latencies.buckets())),
        })
}

/// Where the time of GPU `at` among the first `count` went.
#[must_use]
pub fn usage(usage: &Usage, at: usize, count: usize) -> Option<v1::GpuUsage> {
    let gpu = usage.gpus().get(at)?;
    Some(v1::GpuUsage {
        observed_ns: usage.observed(),
        online_busy_ns: gpu.busy,
        gate_open_ns: gpu.open,
        offline_running_ns: gpu.running,
        edges: gpu.edges,
        gaps: Some(histogram(&gpu.gaps)),
        overlap_ns: (0..count)
            .map(|other| usage.overlap(gpu_id(at), gpu_id(other)))
            .collect(),
        openings: gpu.openings,
        open_memory: gpu.available.as_ref().map(open_memory),
    })
}

fn open_memory(available: &Available) -> v1::OpenMemory {
    let levels = available.levels.iter();
    #[expect(clippy::cast_precision_loss, reason = "a sum for a mean")]
    let byte_seconds = |level: &Level| level.byte_ns as f64 * 1e-9;
    v1::OpenMemory {
        time_ns: levels.clone().map(|level| level.ns).collect(),
        byte_seconds: levels.map(byte_seconds).collect(),
        fallen_bytes: available.fallen.0,
    }
}

/// The time of each exact set of open gates.
#[must_use]
pub fn open_sets(usage: &Usage) -> Vec<v1::OpenSet> {
    let rows = usage.open_sets().rows().iter();
    rows.map(|(gpus, time)| v1::OpenSet {
        gpus: gpus.bits(),
        time_ns: *time,
    })
    .collect()
}
