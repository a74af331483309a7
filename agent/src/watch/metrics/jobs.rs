//! Metrics of jobs, and of jobs that train: a row each.

use super::families::{COUNTER, GAUGE};
use super::sample::{Sample, Samples, seconds};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use tidegate_proto::v1;

/// Metrics of jobs that train, under their names.
pub(super) const TRAINER_FAMILIES: [TrainerFamily; 4] = [
    TrainerFamily(
        "trainer_tokens",
        COUNTER,
        "Tokens that the job's trainers trained on",
        |trainer| Sample::Count(trainer.tokens),
    ),
    TrainerFamily(
        "trainer_steps",
        COUNTER,
        "Optimizer steps that the job's trainers did",
        |trainer| Sample::Count(trainer.steps),
    ),
    TrainerFamily(
        "trainer_units_redone",
        COUNTER,
        "Units, a layer of a token window each, that were done again because memory was taken",
        |trainer| Sample::Count(trainer.units_redone),
    ),
    TrainerFamily(
        "trainer_resident_layers",
        GAUGE,
        "Layers whose frozen weights are on the device",
        |trainer| {
            Sample::Gauge(
                trainer
                    .said
                    .as_ref()
                    .map_or(0.0, |said| said.resident_layers.into()),
            )
        },
    ),
];

/// Metrics of jobs, under their names.
pub(super) const JOB_FAMILIES: [JobFamily; 8] = [
    JobFamily(
        "job_units",
        None,
        COUNTER,
        "Useful units of work, as the job's processes count them",
        |job| Sample::Count(job.units),
    ),
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
        "job_paused",
        Some(Unit::Seconds),
        COUNTER,
        "Time of that in which an operator had paused the job or drained the node",
        |job| Sample::Seconds(seconds(job.paused_ns)),
    ),
    JobFamily(
        "job_memory_byte_seconds",
        None,
        COUNTER,
        "Memory that the job held of the pools, over time",
        |job| Sample::Count(job.held_byte_seconds),
    ),
    JobFamily(
        "job_preemptions",
        None,
        COUNTER,
        "Busy edges that stopped the job",
        |job| Sample::Count(job.preemptions),
    ),
    JobFamily(
        "job_turns",
        None,
        COUNTER,
        "Turns of the job among others on its GPUs",
        |job| Sample::Count(job.turns),
    ),
];

pub(super) struct TrainerFamily(
    pub(super) &'static str,
    pub(super) MetricType,
    pub(super) &'static str,
    pub(super) fn(&v1::TrainerStatus) -> Sample,
);

pub(super) struct JobFamily(
    pub(super) &'static str,
    pub(super) Option<Unit>,
    pub(super) MetricType,
    pub(super) &'static str,
    pub(super) fn(&v1::JobStatus) -> Sample,
);

/// What jobs that take turns deserve and get.
pub(super) fn job_shares(jobs: &[v1::JobStatus]) -> Samples {
    let mut all = Samples::new();
    for job in jobs {
        let Some(share) = &job.share else { continue };
        for (part, value) in [("deserved", share.deserved), ("got", share.got)] {
            let labels = vec![("offline_job", job.name.clone()), ("part", part.to_owned())];
            all.push((labels, Sample::Gauge(value)));
        }
    }
    all
}
