//! Judges from the device's own history that jobs on a GPU take turns: no channel is enabled while one of another job is.
//!
//! Between the agent's call for one job and its effect nothing of another is enabled either, so the effects say it all.
//! Channels of a newcomer are enabled from their birth until the agent hears of them, so they count from the first time
//! that they were disabled.

use crate::judge::Schedule;
use std::collections::BTreeMap;
use tidegate_vgpu::history::{Kind, Record};

/// A channel, by GPU, RM client and handle.
type Key = (u32, u32, u32);

/// How a channel stands.
#[derive(Clone, Copy, Debug)]
struct Channel {
    pid: u32,
    enabled: bool,
    known: bool,
}

/// How often a job was enabled after another since the schedule began, and what was broken then.
#[must_use]
pub fn judge(
    schedule: &Schedule,
    of_job: &BTreeMap<u32, u32>,
    records: &[Record],
) -> (u64, Vec<(u64, String)>) {
    let mut records: Vec<&Record> = records
        .iter()
        .filter(|r| of_job.contains_key(&r.pid))
        .collect();
    records.sort_by_key(|record| record.at_ns);
    let mut channels: BTreeMap<Key, Channel> = BTreeMap::new();
    let (mut swaps, mut broken, mut last) = (0, Vec::new(), BTreeMap::new());
    for record in records {
        let (key, at) = ((record.gpu, record.client, record.object), record.at_ns);
        let job = of_job.get(&record.pid);
        match record.kind {
            Kind::ChannelUp => {
                let channel = Channel {
                    pid: record.pid,
                    enabled: true,
                    known: false,
                };
                channels.insert(key, channel);
            }
            Kind::ChannelDown => drop(channels.remove(&key)),
            Kind::DisableEnd => {
                if let Some(channel) = channels.get_mut(&key) {
                    (channel.enabled, channel.known) = (false, true);
                }
            }
            Kind::EnableEnd => {
                let Some(channel) = channels.get_mut(&key) else {
                    continue;
                };
                let slept = !core::mem::replace(&mut channel.enabled, true);
                if !slept || at < schedule.start_ns || is_excused(schedule, record) {
                    continue;
                }
                let before = last.insert(record.gpu, job);
                swaps += u64::from(before.is_some_and(|before| before != job));
                let beside = channels.iter().find(|(other, channel)| {
                    let dead = schedule
                        .killed
                        .get(&channel.pid)
                        .is_some_and(|died| *died <= at);
                    let foreign = other.0 == record.gpu && of_job.get(&channel.pid) != job;
                    foreign && channel.enabled && channel.known && !dead
                });
                if let Some((_, other)) = beside {
                    let what = format!(
                        "at {at} process {} was enabled beside {}, of another job",
                        record.pid, other.pid
                    );
                    broken.push((at, what));
                }
            }
            _ => {}
        }
    }
    (swaps, broken)
}

/// The agent was away, or the process is dead and its channels are enabled for the driver to take them down.
fn is_excused(schedule: &Schedule, record: &Record) -> bool {
    let at = record.at_ns;
    let killed = schedule.killed.get(&record.pid);
    schedule.excused.iter().any(|span| span.contains(&at)) || killed.is_some_and(|died| *died <= at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What two processes of two jobs do, by millisecond.
    fn judged(told: &[(u64, Kind, u32)]) -> (u64, usize) {
        let records: Vec<Record> = told
            .iter()
            .map(|&(at_ms, kind, pid)| {
                let mut record = Record::new(at_ms * 1_000_000, kind);
                (record.pid, record.client) = (pid, pid);
                record
            })
            .collect();
        let of_job = BTreeMap::from([(1, 0), (2, 1)]);
        let (swaps, broken) = judge(&Schedule::default(), &of_job, &records);
        (swaps, broken.len())
    }

    #[test]
    fn one_after_the_other_is_a_turn_and_one_beside_the_other_is_none() {
        let born = [
            (0, Kind::ChannelUp, 1),
            (0, Kind::ChannelUp, 2),
            (1, Kind::DisableEnd, 2),
        ];
        let swap = [(9, Kind::DisableEnd, 1), (10, Kind::EnableEnd, 2)];
        let back = [(20, Kind::DisableEnd, 2), (21, Kind::EnableEnd, 1)];
        let all = |parts: &[&[(u64, Kind, u32)]]| judged(&parts.concat());
        assert_eq!(all(&[&born, &swap, &back]), (1, 0));
        let late = [(20, Kind::EnableEnd, 1), (21, Kind::DisableEnd, 2)];
        assert_eq!(all(&[&born, &swap, &late]), (1, 1));
    }
}
