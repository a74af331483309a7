//! What Prometheus scrapes: one row per metric, filled from the same report that `tidegate status` shows.
//!
//! Nothing is counted here. The control thread counts beside its decisions, and is asked once per scrape;
//! a scrape costs the gate what a `status` does, and no more than one of them is answered anew in
//! [`serve::FRESH`]. Names, units and labels follow the field's exporters: base units, `_total`, and `gpu`
//! and `UUID` as dcgm-exporter has them, so that series join on `UUID`.
//!
//! Invariant: there are as many series as GPUs, pairs of GPUs, jobs and kinds of things; none is named
//! after a process, a request or anything else that a tenant can have more of at will. Series of a job
//! go with its last process, and beyond [`JOBS`] jobs there is one series for the rest.

pub mod recent;
pub mod serve;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use recent::Shares;
use std::collections::BTreeMap;
use std::fmt;
use tidegate_proto::v1;

/// Jobs that get series of their own.
pub const JOBS: usize = 32;
/// What the others are called together.
const OTHER: &str = "(other)";
/// Bytes of a page as the quarantine counts them.
const PAGE: u64 = 2 << 20;

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

type Labels = Vec<(&'static str, String)>;

#[derive(Debug)]
enum Sample {
    Count(u64),
    Seconds(f64),
    Gauge(f64),
    /// Upper bounds with what is counted in each, and the sum.
    Buckets(Vec<(f64, u64)>, f64),
}

type Samples = Vec<(Labels, Sample)>;

/// One metric.
struct Family {
    /// Without the unit and `_total`.
    name: &'static str,
    unit: Option<Unit>,
    kind: MetricType,
    help: &'static str,
    samples: fn(&Scrape) -> Samples,
}

const fn family(
    kind: MetricType,
    name: &'static str,
    unit: Option<Unit>,
    help: &'static str,
    samples: fn(&Scrape) -> Samples,
) -> Family {
    Family {
        name,
        unit,
        kind,
        help,
        samples,
    }
}

const COUNTER: MetricType = MetricType::Counter;
const GAUGE: MetricType = MetricType::Gauge;
const HISTOGRAM: MetricType = MetricType::Histogram;

/// Every metric but the plain counters of [`v1::Counter`], which bring their names and help.
const FAMILIES: [Family; 33] = [
    family(
        GAUGE,
        "build_info",
        None,
        "Version of the agent and of the driver, and the channel level in force",
        |s| {
            let labels = vec![
                ("version", s.status.version.clone()),
                ("driver_version", s.status.driver_version.clone()),
                (
                    "level",
                    s.status
                        .level()
                        .as_str_name()
                        .replace("CHANNEL_LEVEL_", "")
                        .to_lowercase(),
                ),
            ];
            vec![(labels, Sample::Gauge(1.0))]
        },
    ),
    family(
        GAUGE,
        "stop_method",
        None,
        "How channels are stopped: the self-test's choice, or none at the launch gate",
        |s| {
            let method = crate::wire::method_said(s.status.method());
            let name = method.map_or("none", crate::config::Method::name);
            let when = if s.status.method_at_kernel_end {
                "kernel_end"
            } else {
                "at_once"
            };
            let labels = vec![("method", name.to_owned()), ("when", when.to_owned())];
            vec![(labels, Sample::Gauge(1.0))]
        },
    ),
    family(
        GAUGE,
        "uptime",
        Some(Unit::Seconds),
        "Time since the agent's start",
        |s| vec![(Labels::new(), Sample::Gauge(seconds(s.status.uptime_ns)))],
    ),
    family(
        GAUGE,
        "agent_generation",
        None,
        "Number of this agent since the node booted",
        |s| {
            vec![(
                Labels::new(),
                Sample::Gauge(real(s.status.agent_generation)),
            )]
        },
    ),
    family(
        COUNTER,
        "preemptions",
        None,
        "Times offline work was on the GPU and was taken off it, by what asked for it",
        |s| {
            per_gpu(s, |gpu| {
                vec![(
                    vec![("reason", "online".to_owned())],
                    Sample::Count(gpu.preemptions),
                )]
            })
        },
    ),
    family(
        HISTOGRAM,
        "preempt_latency",
        Some(Unit::Seconds),
        "Doorbell ring to return of the last disable",
        |s| per_gpu(s, |gpu| latencies(gpu.preempt_latency.as_ref())),
    ),
    family(
        HISTOGRAM,
        "gate_latency",
        Some(Unit::Seconds),
        "Doorbell ring to entry of the last disable",
        |s| per_gpu(s, |gpu| latencies(gpu.gate_latency.as_ref())),
    ),
    family(
        HISTOGRAM,
        "preemptions_per_request",
        None,
        "Preemptions charged to one online request (unit=\"request\", known from lifecycle hints) or one busy period",
        |s| {
            per_gpu(s, |gpu| {
                gpu.preemptions_per_unit.iter().map(per_request).collect()
            })
        },
    ),
    family(
        COUNTER,
        "resume",
        None,
        "Times offline got the GPU back",
        |s| per_gpu(s, |gpu| vec![plain(Sample::Count(gpu.wakes))]),
    ),
    family(
        GAUGE,
        "cooldown",
        Some(Unit::Seconds),
        "How long online must stay idle before offline runs",
        |s| {
            per_gpu(s, |gpu| {
                vec![plain(Sample::Gauge(seconds(gpu.cooldown_ns)))]
            })
        },
    ),
    family(
        GAUGE,
        "longest_decode_gap",
        Some(Unit::Seconds),
        "Longest decode gap in the window; 0 before the first",
        |s| {
            per_gpu(s, |gpu| {
                vec![plain(Sample::Gauge(seconds(gpu.longest_gap_ns)))]
            })
        },
    ),
    family(
        GAUGE,
        "gate_state",
        None,
        "1 for the state the gate is in",
        |s| {
            per_gpu(s, |gpu| {
                let state = |state: v1::GateState, name: &str| {
                    (
                        vec![("state", name.to_owned())],
                        Sample::Gauge(flag(gpu.gate() == state)),
                    )
                };
                vec![
                    state(v1::GateState::Open, "open"),
                    state(v1::GateState::Closed, "closed"),
                    state(v1::GateState::Cooling, "cooling"),
                ]
            })
        },
    ),
    family(
        GAUGE,
        "online_busy_ratio",
        None,
        "Share of the last minute in which online was busy",
        |s| shares(s, |share| share.online_busy),
    ),
    family(
        GAUGE,
        "idle_compute_ratio",
        None,
        "Share of the last minute in which online left the GPU idle",
        |s| shares(s, |share| 1.0 - share.online_busy),
    ),
    family(
        GAUGE,
        "offline_running_ratio",
        None,
        "Share of the last minute in which offline work could run on the GPU",
        |s| shares(s, |share| share.offline_running),
    ),
    family(
        COUNTER,
        "observed",
        Some(Unit::Seconds),
        "Time the GPU was watched",
        |s| per_gpu(s, |gpu| time(gpu, |usage| usage.observed_ns)),
    ),
    family(
        COUNTER,
        "online_busy",
        Some(Unit::Seconds),
        "Time online was busy",
        |s| per_gpu(s, |gpu| time(gpu, |usage| usage.online_busy_ns)),
    ),
    family(
        COUNTER,
        "gate_open",
        Some(Unit::Seconds),
        "Time the gate was open",
        |s| per_gpu(s, |gpu| time(gpu, |usage| usage.gate_open_ns)),
    ),
    family(
        COUNTER,
        "offline_running",
        Some(Unit::Seconds),
        "Time offline work could run on the GPU",
        |s| per_gpu(s, |gpu| time(gpu, |usage| usage.offline_running_ns)),
    ),
    family(
        HISTOGRAM,
        "online_idle_gap",
        Some(Unit::Seconds),
        "Times online left the GPU idle between two busy periods",
        |s| {
            per_gpu(s, |gpu| {
                let gaps = gpu.usage.as_ref().and_then(|usage| usage.gaps.as_ref());
                gaps.map(|gaps| plain(buckets(gaps))).into_iter().collect()
            })
        },
    ),
    family(
        GAUGE,
        "pair_alignment",
        None,
        "Of the time online was busy on one of two GPUs, the share in which it was busy on both, in the last minute",
        alignment,
    ),
    family(
        GAUGE,
        "pool",
        Some(Unit::Bytes),
        "Memory of the shared pool by who has it",
        |s| {
            memory(s, |memory| {
                let part = |name: &str, bytes| {
                    (vec![("state", name.to_owned())], Sample::Gauge(real(bytes)))
                };
                vec![
                    part("free", memory.free_bytes),
                    part("in_flight", memory.in_flight_bytes),
                    part("headroom", memory.headroom_bytes),
                    part("online", memory.online_bytes),
                    part("offline", memory.offline_bytes),
                    part("quarantined", memory.quarantined_bytes),
                ]
            })
        },
    ),
    family(
        GAUGE,
        "reservation",
        Some(Unit::Bytes),
        "Memory to be mapped for online engines, their headroom included",
        |s| {
            memory(s, |memory| {
                let reserved = memory
                    .caches
                    .iter()
                    .map(|cache| cache.reservation_bytes)
                    .sum();
                vec![plain(Sample::Gauge(real(reserved)))]
            })
        },
    ),
    family(
        GAUGE,
        "headroom",
        Some(Unit::Bytes),
        "Memory mapped for online ahead of need",
        |s| {
            memory(s, |memory| {
                vec![plain(Sample::Gauge(real(memory.headroom_bytes)))]
            })
        },
    ),
    family(
        GAUGE,
        "quarantined_pages",
        None,
        "Pages of 2 MiB taken from offline and not yet released",
        |s| {
            memory(s, |memory| {
                vec![plain(Sample::Gauge(real(memory.quarantined_bytes / PAGE)))]
            })
        },
    ),
    family(
        COUNTER,
        "pressure_events",
        None,
        "Times an online engine had nine tenths of its mapped memory in use",
        |s| per_gpu(s, |gpu| vec![plain(Sample::Count(gpu.pressure_events))]),
    ),
    family(
        COUNTER,
        "reclaim",
        None,
        "Times memory was taken from an offline job, by how it was chosen",
        |s| {
            let count = s
                .status
                .reclaim_latency
                .as_ref()
                .map_or(0, |latency| latency.count);
            vec![(
                vec![("policy", "least_token_cost".to_owned())],
                Sample::Count(count),
            )]
        },
    ),
    family(
        HISTOGRAM,
        "reclaim_latency",
        Some(Unit::Seconds),
        "From the decision to take memory to the last handle released",
        |s| latencies(s.status.reclaim_latency.as_ref()),
    ),
    family(
        GAUGE,
        "channels",
        None,
        "Channels of offline jobs under control",
        |s| {
            per_gpu(s, |gpu| {
                let state = |name: &str, count| {
                    (
                        vec![("state", name.to_owned())],
                        Sample::Gauge(f64::from(count)),
                    )
                };
                vec![
                    state(
                        "enabled",
                        gpu.channels.saturating_sub(gpu.channels_disabled),
                    ),
                    state("disabled", gpu.channels_disabled),
                ]
            })
        },
    ),
    family(
        GAUGE,
        "channel_disabled",
        Some(Unit::Seconds),
        "How long the job that waits longest for the GPU has been disabled; 0: none is",
        |s| {
            per_gpu(s, |gpu| {
                vec![plain(Sample::Gauge(seconds(gpu.disabled_ns)))]
            })
        },
    ),
    family(GAUGE, "clients", None, "Attached processes", clients),
    family(
        GAUGE,
        "unmanaged_clients",
        None,
        "Offline processes whose channels cannot be controlled; their launches wait instead",
        |s| {
            let count = s
                .status
                .processes
                .iter()
                .filter(|process| is_unmanaged(&s.status, process))
                .count();
            vec![(Labels::new(), Sample::Gauge(whole(count)))]
        },
    ),
    family(
        COUNTER,
        "control_denied",
        None,
        "Calls refused on a socket that does not serve them",
        |s| {
            let denied = s.denied.iter().map(|(method, count)| {
                let labels = vec![
                    ("method", (*method).to_owned()),
                    ("reason", "socket".to_owned()),
                ];
                (labels, Sample::Count(*count))
            });
            denied.collect()
        },
    ),
];

/// Metrics of jobs, under their names.
const JOB_FAMILIES: [JobFamily; 4] = [
    JobFamily(
        "job_launches",
        None,
        COUNTER,
        "Launches of the job's processes",
        |job| Sample::Count(job.launches),
    ),
    JobFamily(
        "job_running",
        Some(Unit::Seconds),
        COUNTER,
        "Time the job could run",
        |job| Sample::Seconds(seconds(job.running_ns)),
    ),
    JobFamily(
        "job_attached",
        Some(Unit::Seconds),
        COUNTER,
        "Time the job had a process",
        |job| Sample::Seconds(seconds(job.attached_ns)),
    ),
    JobFamily(
        "job_preemptions",
        None,
        COUNTER,
        "Busy edges that stopped the job",
        |job| Sample::Count(job.preemptions),
    ),
];

struct JobFamily(
    &'static str,
    Option<Unit>,
    MetricType,
    &'static str,
    fn(&v1::JobStatus) -> Sample,
);

fn plain(sample: Sample) -> (Labels, Sample) {
    (Labels::new(), sample)
}

fn flag(is: bool) -> f64 {
    f64::from(u8::from(is))
}

fn whole(count: usize) -> f64 {
    real(u64::try_from(count).unwrap_or(u64::MAX))
}

#[expect(clippy::cast_precision_loss, reason = "a metric is a float")]
const fn real(count: u64) -> f64 {
    count as f64
}

fn seconds(ns: u64) -> f64 {
    real(ns) / 1e9
}

fn gpu_labels(gpu: &v1::GpuStatus) -> Labels {
    vec![("gpu", gpu.index.to_string()), ("UUID", gpu.uuid.clone())]
}

fn per_gpu(scrape: &Scrape, samples: impl Fn(&v1::GpuStatus) -> Samples) -> Samples {
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

fn memory(scrape: &Scrape, samples: impl Fn(&v1::GpuMemory) -> Samples) -> Samples {
    per_gpu(scrape, |gpu| {
        gpu.memory.as_ref().map(&samples).unwrap_or_default()
    })
}

fn shares(scrape: &Scrape, share: impl Fn(&Shares) -> f64) -> Samples {
    let gpus = scrape.status.gpus.iter().zip(&scrape.shares);
    gpus.map(|(gpu, of)| (gpu_labels(gpu), Sample::Gauge(share(of))))
        .collect()
}

fn time(gpu: &v1::GpuStatus, of: impl Fn(&v1::GpuUsage) -> u64) -> Samples {
    let usage = gpu.usage.iter();
    usage
        .map(|usage| plain(Sample::Seconds(seconds(of(usage)))))
        .collect()
}

fn alignment(scrape: &Scrape) -> Samples {
    let mut all = Samples::new();
    for (a, share) in scrape.shares.iter().enumerate() {
        for (b, aligned) in share.aligned.iter().enumerate().skip(a + 1) {
            let labels = vec![("a", a.to_string()), ("b", b.to_string())];
            all.push((labels, Sample::Gauge(*aligned)));
        }
    }
    all
}

fn buckets(histogram: &v1::Histogram) -> Sample {
    let bounds = histogram.bounds_ns.iter().map(|&ns| seconds(ns));
    let bounds = bounds.chain([f64::INFINITY]);
    let counted = bounds.zip(histogram.counts.iter().copied()).collect();
    Sample::Buckets(counted, seconds(histogram.sum_ns))
}

fn latencies(latency: Option<&v1::Latency>) -> Samples {
    let histogram = latency.and_then(|latency| latency.histogram.as_ref());
    // Before the first there is nothing but the bounds; a series that comes later has no rate at first.
    let empty = || {
        crate::watch::latency::histogram(&crate::watch::latency::Buckets::new(
            &crate::watch::latency::BOUNDS_NS,
        ))
    };
    vec![plain(histogram.map_or_else(|| buckets(&empty()), buckets))]
}

fn per_request(per: &v1::PreemptionsPerUnit) -> (Labels, Sample) {
    let more = per.units.saturating_sub(per.untouched + per.once);
    let counted = vec![(0.0, per.untouched), (1.0, per.once), (f64::INFINITY, more)];
    let labels = vec![("unit", per.unit.clone())];
    (labels, Sample::Buckets(counted, real(per.preemptions)))
}

fn is_unmanaged(status: &v1::GetStatusResponse, process: &v1::ProcessStatus) -> bool {
    let given_up =
        |job: &v1::JobStatus| job.name == process.job && job.state() == v1::JobState::Unmanaged;
    process.role() == v1::Role::Offline
        && (process.channels != 0 && !process.proven || status.jobs.iter().any(given_up))
}

/// Versions are few, but a tenant says its own: what is no version is called so.
fn version(said: &str) -> String {
    let known = said.len() <= 16 && said.chars().all(|c| c.is_ascii_digit() || c == '.');
    if known { said } else { "other" }.to_owned()
}

fn clients(scrape: &Scrape) -> Samples {
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
    for role in ["online", "offline"] {
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

/// The jobs with names of their own, and the others as one.
fn jobs(status: &v1::GetStatusResponse) -> Vec<v1::JobStatus> {
    let mut jobs = status.jobs.clone();
    for job in &mut jobs {
        job.name = job
            .name
            .chars()
            .filter(|c| !c.is_control())
            .take(128)
            .collect();
    }
    if jobs.len() > JOBS {
        let mut rest = v1::JobStatus {
            name: OTHER.to_owned(),
            ..v1::JobStatus::default()
        };
        for job in jobs.drain(JOBS - 1..) {
            rest.launches += job.launches;
            rest.running_ns += job.running_ns;
            rest.attached_ns += job.attached_ns;
            rest.preemptions += job.preemptions;
        }
        jobs.push(rest);
    }
    // Two users may have given one name.
    let mut named = BTreeMap::<String, v1::JobStatus>::new();
    for job in jobs {
        match named.get_mut(&job.name) {
            None => {
                named.insert(job.name.clone(), job);
            }
            Some(same) => {
                same.launches += job.launches;
                same.running_ns += job.running_ns;
                same.attached_ns += job.attached_ns;
                same.preemptions += job.preemptions;
            }
        }
    }
    named.into_values().collect()
}

#[derive(Debug)]
struct Rows(Scrape);

impl Collector for Rows {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        for family in &FAMILIES {
            let out = encoder.encode_descriptor(
                family.name,
                family.help,
                family.unit.as_ref(),
                family.kind,
            )?;
            write(out, &(family.samples)(&self.0))?;
        }
        let jobs = jobs(&self.0.status);
        for JobFamily(name, unit, kind, help, sample) in &JOB_FAMILIES {
            let samples = jobs
                .iter()
                .map(|job| (vec![("job", job.name.clone())], sample(job)));
            let out = encoder.encode_descriptor(name, help, unit.as_ref(), *kind)?;
            write(out, &samples.collect::<Samples>())?;
        }
        let counters = self.0.status.counters.iter();
        let counters = counters.map(|counter| (&*counter.name, &*counter.help, counter.value));
        let lost = (
            "history_lost",
            "Slices of time that the history on disk could not take",
            self.0.history_lost,
        );
        for (name, help, value) in counters.chain([lost]) {
            let out = encoder.encode_descriptor(name, help, None, COUNTER)?;
            write(out, &[plain(Sample::Count(value))])?;
        }
        Ok(())
    }
}

fn write(mut out: MetricEncoder, samples: &[(Labels, Sample)]) -> Result<(), fmt::Error> {
    for (labels, sample) in samples {
        let mut out = out.encode_family(labels)?;
        match sample {
            Sample::Count(value) => out.encode_counter::<Labels, _, u64>(value, None)?,
            Sample::Seconds(value) => out.encode_counter::<Labels, _, u64>(value, None)?,
            Sample::Gauge(value) => out.encode_gauge(value)?,
            Sample::Buckets(counted, sum) => {
                let count = counted.iter().map(|(_, count)| count).sum();
                out.encode_histogram::<Labels>(*sum, count, counted, None)?;
            }
        }
    }
    Ok(())
}

/// How a scraper wants it written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0, with units.
    OpenMetrics,
    /// The text format that every scraper reads.
    Text,
}

impl Format {
    /// By the header `Accept`.
    #[must_use]
    pub fn accepted(header: &str) -> Self {
        if header.contains("application/openmetrics-text") {
            Self::OpenMetrics
        } else {
            Self::Text
        }
    }

    /// For the header `Content-Type`.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The whole answer to a scrape.
#[must_use]
pub fn render(scrape: Scrape, format: Format) -> String {
    let mut registry = Registry::with_prefix("tidegate");
    registry.register_collector(Box::new(Rows(scrape)));
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = encode(&mut text, &registry);
    match format {
        Format::OpenMetrics => text,
        Format::Text => to_text(&text),
    }
}

/// The older format names a counter as its sample and knows neither units nor an end.
fn to_text(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut help = None;
    for line in open_metrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let Some((name, kind)) = rest.split_once(' ') else {
                continue;
            };
            let suffix = if kind == "counter" { "_total" } else { "" };
            let about = help.take().map_or("", |(_, about)| about);
            text.push_str(&format!(
                "# HELP {name}{suffix} {about}\n# TYPE {name}{suffix} {kind}\n"
            ));
        } else if !line.starts_with('#') {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests;
