//! What Prometheus scrapes: one row per metric, filled from the same report that `tidegate status` shows.
//!
//! Nothing is counted here. The control thread counts beside its decisions, and is asked once per scrape;
//! a scrape costs the gate what a `status` does, and all readers share the report of the last
//! [`super::reports::FRESH`]. Names, units and labels follow the field's exporters: base units, `_total`, and `gpu`
//! and `UUID` as dcgm-exporter has them, so that series join on `UUID`.
//!
//! Invariant: there are as many series as GPUs, pairs of GPUs, jobs and kinds of things; none is named
//! after a process, a request or anything else that a tenant can have more of at will. Series of a job
//! go with its last process, and beyond [`JOBS`] jobs there is one series for the rest.

mod families;
mod jobs;
mod sample;
pub mod serve;

use families::{COUNTER, FAMILIES};
use jobs::{JOB_FAMILIES, JobFamily, TRAINER_FAMILIES, TrainerFamily, job_shares};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
pub use sample::Scrape;
use sample::{Labels, Sample, Samples, plain};
use std::collections::BTreeMap;
use std::fmt;
use tidegate_proto::v1;

/// Jobs that get series of their own.
pub const JOBS: usize = 32;
/// What the others are called together.
const OTHER: &str = "(other)";
/// The jobs with names of their own, and the others as one.
fn jobs(status: &v1::GetStatusResponse) -> Vec<v1::JobStatus> {
    let mut jobs = status.jobs.clone();
    for job in &mut jobs {
        job.name = short(&job.name);
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
            rest.paused_ns += job.paused_ns;
            rest.held_byte_seconds = rest.held_byte_seconds.saturating_add(job.held_byte_seconds);
            rest.preemptions += job.preemptions;
            rest.turns += job.turns;
            rest.units = rest.units.saturating_add(job.units);
            rest.trainer = both(rest.trainer.take(), job.trainer);
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
                same.paused_ns += job.paused_ns;
                same.held_byte_seconds =
                    same.held_byte_seconds.saturating_add(job.held_byte_seconds);
                same.preemptions += job.preemptions;
                same.turns += job.turns;
                if let (Some(share), Some(more)) = (&mut same.share, &job.share) {
                    share.deserved += more.deserved;
                    share.got += more.got;
                }
                same.units = same.units.saturating_add(job.units);
                same.trainer = both(same.trainer.take(), job.trainer);
            }
        }
    }
    named.into_values().collect()
}

/// Two trainings under one name.
fn both(
    one: Option<v1::TrainerStatus>,
    other: Option<v1::TrainerStatus>,
) -> Option<v1::TrainerStatus> {
    let (Some(mut one), Some(other)) = (one.clone(), other.clone()) else {
        return one.or(other);
    };
    one.steps = one.steps.saturating_add(other.steps);
    one.tokens = one.tokens.saturating_add(other.tokens);
    one.units_redone = one.units_redone.saturating_add(other.units_redone);
    if let (Some(one), Some(other)) = (&mut one.said, other.said) {
        one.resident_layers = one.resident_layers.saturating_add(other.resident_layers);
    }
    Some(one)
}

/// The names of where each of `jobs` runs: a series each, and so no more than those have.
fn job_places(status: &v1::GetStatusResponse, jobs: &[v1::JobStatus]) -> Samples {
    let mut first = BTreeMap::new();
    for process in &status.processes {
        first.entry(short(&process.job)).or_insert(process);
    }
    let named = jobs.iter().filter(|job| job.name != OTHER);
    let series = named.filter_map(|job| {
        let place = first.get(&job.name)?.whereabouts.as_ref()?;
        let labels = vec![
            ("offline_job", job.name.clone()),
            ("offline_namespace", short(&place.namespace)),
            ("offline_pod", short(&place.pod)),
            ("offline_container", short(&place.container)),
            ("slurm_job", short(&place.slurm_job)),
            ("unit", short(&place.unit)),
        ];
        Some((labels, Sample::Gauge(1.0)))
    });
    series.collect()
}

/// A name as it stands in a label.
fn short(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(128).collect()
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
                .map(|job| (vec![("offline_job", job.name.clone())], sample(job)));
            let out = encoder.encode_descriptor(name, help, unit.as_ref(), *kind)?;
            write(out, &samples.collect::<Samples>())?;
        }
        for TrainerFamily(name, kind, help, sample) in &TRAINER_FAMILIES {
            let samples = jobs.iter().filter_map(|job| {
                let trainer = job.trainer.as_ref()?;
                Some((vec![("offline_job", job.name.clone())], sample(trainer)))
            });
            let out = encoder.encode_descriptor(name, help, None, *kind)?;
            write(out, &samples.collect::<Samples>())?;
        }
        let out = encoder.encode_descriptor(
            "job_share_ratio",
            "Part of the time in which the job could run, beside others on its GPUs, that it deserved and got; \
             by timeslices what those give it, not measured",
            None,
            MetricType::Gauge,
        )?;
        write(out, &job_shares(&jobs))?;
        let out = encoder.encode_descriptor(
            "job_info",
            "Where the first process of a job runs, to join on",
            None,
            MetricType::Gauge,
        )?;
        write(out, &job_places(&self.0.status, &jobs))?;
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
