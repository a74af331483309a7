//! Prepares calls from the channels of a job's processes.

use super::{Lanes, Proven};
use crate::batch::{Batch, Member, Plan, Via};
use crate::kinds::{Level, Method};
use crate::members::Members;
use crate::session::{Client, Held, Session};
use std::collections::HashSet;
use std::sync::Arc;
use tidegate_abi::rm::MAX_PAIRS;
use tidegate_policy::ids::{GpuId, JobId};

impl Lanes {
    /// Prepares the calls for a job's channels on `gpu` anew.
    pub(crate) fn prepare(
        &mut self,
        (job, gpu): (JobId, GpuId),
        grown: bool,
        members: &Members,
        (level, method): (Level, Method),
    ) {
        let together = level == Level::L1 && !self.lane(job, gpu).is_some_and(|lane| lane.apart);
        let prepared = batches(members.of_job(job), gpu, (level, method), together);
        let proven = proven(members.of_job(job), gpu);
        if let Some(lane) = self.lane_mut(job, gpu) {
            if !grown {
                // Pairs left the lists, which its calls still name.
                lane.disarm();
            }
            lane.batches = Arc::new(prepared);
            lane.proven = proven;
            lane.stale |= grown;
        }
    }
}

/// Groups by client and handle.
type Groups = HashSet<(u32, u32)>;

/// Prepares the calls for the channels of `sessions` on `gpu`, TSGs that compute before those that copy. `together`: a call
/// may name channels of several processes; one that is refused is made for each of them.
fn batches<'a>(
    sessions: impl Iterator<Item = &'a Session>,
    gpu: GpuId,
    (level, method): (Level, Method),
    together: bool,
) -> Vec<Batch> {
    let mut plan = Plan::new(method, level == Level::L3).together(together);
    let mut rest = Vec::new();
    let mut add = |session: &Session, members: &[&Held], computing: &Groups| {
        for held in members {
            let Some(place) = held.place else { continue };
            let channel = held.channel;
            let file = match session.rm.clients.get(&channel.client) {
                Some(Client::Own(file)) => file.clone(),
                _ => None,
            };
            let via = Via::of(level, file.as_ref(), channel.client, channel.subdevice);
            let member = Member {
                client: channel.client,
                channel: channel.channel,
                group: channel.tsg,
                computes: computing.contains(&(channel.client, channel.tsg)),
                file,
                place,
            };
            plan.push(session.id, via, &member);
        }
    };
    for session in sessions {
        let mut held: Vec<&Held> = on(session, gpu).collect();
        let group = |held: &Held| (held.channel.client, held.channel.tsg);
        // A TSG is gated whole, and counts as computing if any channel of it does or may.
        let computing: Groups = held
            .iter()
            .filter(|held| held.channel.engine.may_compute())
            .map(|held| group(held))
            .collect();
        held.sort_by_key(|held| {
            let tsg = group(held);
            (!computing.contains(&tsg), tsg, held.channel.channel)
        });
        let first = held.partition_point(|held| computing.contains(&group(held)));
        // The calls that this many take have room for whole groups that copy, where nobody else's come next.
        let room = if together {
            first
        } else {
            first.next_multiple_of(MAX_PAIRS).min(held.len())
        };
        let ends = |at: &usize| {
            held.get(*at)
                .is_none_or(|next| group(next) != group(held[*at - 1]))
        };
        let cut = (first + 1..=room).rev().find(ends).unwrap_or(first);
        let late = held.split_off(cut);
        add(session, &held, &computing);
        rest.push((session, late, computing));
    }
    for (session, late, computing) in rest {
        add(session, &late, &computing);
    }
    plan.finish()
}

/// The clients of `sessions` that have channels in the calls for `gpu` and were proven by a file, once each.
fn proven<'a>(sessions: impl Iterator<Item = &'a Session>, gpu: GpuId) -> Vec<Proven> {
    let mut proven = Vec::new();
    for session in sessions {
        let mut own: Vec<u32> = on(session, gpu)
            .map(|held| held.channel.client)
            .filter(|client| matches!(session.rm.clients.get(client), Some(Client::Own(Some(_)))))
            .collect();
        own.sort_unstable();
        own.dedup();
        proven.extend(own.into_iter().map(|client| (session.id, client)));
    }
    proven
}

/// The channels of a process that are gated on `gpu`.
fn on(session: &Session, gpu: GpuId) -> impl Iterator<Item = &Held> {
    let all = session.channels.iter();
    all.filter(move |held| held.gpu == Some(gpu) && held.place.is_some())
}
