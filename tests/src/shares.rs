//! What each of several jobs had of a GPU, by the device's own history.

use crate::figures::Span;
use crate::watch::Testimony;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_abi::class::ENGINE_TYPE_GR0;
use tidegate_vgpu::history::{Kind, Record};

/// The history by time.
#[must_use]
pub fn by_time(testimony: &Testimony) -> Vec<&Record> {
    let mut records: Vec<_> = testimony.0.iter().collect();
    records.sort_by_key(|record| record.at_ns);
    records
}

/// How long groups of each job, given by its processes, were on the graphics engine in a span.
#[must_use]
pub fn engine_time(testimony: &Testimony, pids: &[BTreeSet<u32>], span: Span) -> Vec<u64> {
    let mut on = BTreeMap::new();
    let mut ran = vec![0; pids.len()];
    let mut add = |job: usize, since: u64, to: u64| {
        let [since, to] = [since, to].map(|at| at.clamp(span.from_ns, span.to_ns));
        ran[job] += to - since;
    };
    for record in by_time(testimony) {
        let Some(job) = pids.iter().position(|own| own.contains(&record.pid)) else {
            continue;
        };
        if record.value != u64::from(ENGINE_TYPE_GR0) {
            continue;
        }
        let group = (record.gpu, record.client, record.object);
        match record.kind {
            Kind::TsgRun => drop(on.insert(group, (job, record.at_ns))),
            Kind::TsgStop => {
                if let Some((job, since)) = on.remove(&group) {
                    add(job, since, record.at_ns);
                }
            }
            _ => {}
        }
    }
    for (job, since) in on.into_values() {
        add(job, since, span.to_ns.max(since));
    }
    ran
}

/// The part of each.
#[must_use]
pub fn shares(ran: &[u64]) -> Vec<f64> {
    let all: u64 = ran.iter().sum();
    let share = |own: &u64| *own as f64 / all.max(1) as f64;
    ran.iter().map(share).collect()
}
