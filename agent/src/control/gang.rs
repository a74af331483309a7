//! The channels of one offline job on one GPU: the calls prepared for them, and what stands.

use super::proofs::Proven;
use super::session::{Client, Held, Session};
use crate::channel::{Batch, Member, Plan, Via};
use crate::config::{Level, Method};
use crate::issue::{Outcome, Wanted};
use crate::journal::Place;
use std::collections::HashSet;
use std::sync::Arc;
use tidegate_abi::class::Engine;
use tidegate_abi::rm::MAX_PAIRS;
use tidegate_policy::event::Order;
use tidegate_policy::ids::{Generation, GpuId};

/// One job on one GPU.
#[derive(Debug, Default)]
pub struct Gang {
    /// Prepared calls.
    pub batches: Arc<Vec<Batch>>,
    /// The clients they name whose proof can be made again.
    pub proven: Vec<Proven>,
    /// What is wanted, for the issue thread.
    pub wanted: Arc<Wanted>,
    /// The newest order's number.
    pub newest: Generation,
    /// Orders without an answer.
    pub outstanding: u32,
    /// What the newest order asked for.
    pub disable: bool,
    /// When the words of online processes were read for the last enable; 0: they were not.
    pub looked_ns: u64,
    /// At level L5: launches may pass.
    pub launches_pass: bool,
    /// What the last answer said.
    pub applied: Applied,
    /// The channels changed after the newest order was given.
    pub stale: bool,
    /// At level L3: places of channels that are gone, until no answer can touch them any more.
    pub retired: Vec<Place>,
    /// At level L3: the newest order and the answers it still waits for.
    pub remote: Option<Remote>,
}

/// What is known of the channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Applied {
    /// They run.
    #[default]
    Enabled,
    /// They do not.
    Disabled,
    /// An order failed.
    Unknown,
}

/// An order that processes carry out themselves.
#[derive(Debug)]
pub struct Remote {
    /// The order.
    pub order: Order,
    /// Disable, else enable.
    pub disable: bool,
    /// Calls without an answer: sequence number and places.
    pub waiting: Vec<(u64, Vec<Place>)>,
    /// First failure.
    pub failed: Option<u32>,
    /// Entry of the last call.
    pub entered_ns: u64,
    /// Return of the last call.
    pub returned_ns: u64,
    /// When it counts as failed.
    pub deadline_ns: u64,
}

impl Gang {
    /// Whether what policy wants is what stands, for every channel there is.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.outstanding == 0
            && (!self.disable || (!self.stale && self.applied == Applied::Disabled))
    }

    /// Whether launches that are gated beside channels must wait.
    #[must_use]
    pub fn holds_launches(&self) -> bool {
        self.disable || self.outstanding != 0 || self.applied != Applied::Enabled
    }

    /// Whether a channel that leaves the lists now may be disabled, or will be by an order under way.
    #[must_use]
    pub fn may_be_disabled(&self) -> bool {
        self.outstanding != 0 || self.applied != Applied::Enabled
    }

    /// Notes what an answer says of the channels.
    pub fn answered(&mut self, disable: bool, outcome: Outcome) {
        self.outstanding = self.outstanding.saturating_sub(1);
        match outcome {
            Outcome::Done if disable => self.applied = Applied::Disabled,
            Outcome::Done => self.applied = Applied::Enabled,
            Outcome::Withheld => {}
            Outcome::Failed(_) => self.applied = Applied::Unknown,
        }
    }

    /// Channels managed here.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.batches.iter().map(Batch::pairs).sum()
    }
}

/// Groups by client and handle.
type Groups = HashSet<(u32, u32)>;

/// Prepares the calls for the channels of `sessions` on `gpu`: per process, so that one that fails
/// does not block the others, and TSGs that compute before those that copy.
#[must_use]
pub fn batches<'a>(
    sessions: impl Iterator<Item = &'a Session>,
    gpu: GpuId,
    level: Level,
    method: Method,
) -> Vec<Batch> {
    let mut plan = Plan::new(method, level == Level::L3);
    let mut rest = Vec::new();
    let mut add = |session: &Session, members: &[&Held], computing: &Groups| {
        for held in members {
            let Some(place) = held.place else { continue };
            let channel = held.channel;
            let file = match session.clients.get(&channel.client) {
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
        let mut held: Vec<&Held> = session
            .channels
            .iter()
            .filter(|held| held.gpu == Some(gpu) && held.place.is_some())
            .collect();
        let group = |held: &Held| (held.channel.client, held.channel.tsg);
        // A TSG is gated whole, and counts as computing if any channel of it does or may.
        let computing: Groups = held
            .iter()
            .filter(|held| matches!(held.channel.engine, Engine::Graphics | Engine::Unknown))
            .map(|held| group(held))
            .collect();
        held.sort_by_key(|held| {
            let tsg = group(held);
            (!computing.contains(&tsg), tsg, held.channel.channel)
        });
        let first = held.partition_point(|held| computing.contains(&group(held)));
        // The calls that this many take have room for whole groups that copy.
        let room = first.next_multiple_of(MAX_PAIRS).min(held.len());
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

/// The clients of `sessions` that have channels in `batches` and were proven by a file, once each.
#[must_use]
pub fn proven<'a>(sessions: impl Iterator<Item = &'a Session>, batches: &[Batch]) -> Vec<Proven> {
    let mut proven = Vec::new();
    for session in sessions {
        let mut own: Vec<u32> = batches
            .iter()
            .filter(|batch| batch.session == session.id)
            .flat_map(|batch| batch.entries().map(|(client, _, _)| client))
            .filter(|client| matches!(session.clients.get(client), Some(Client::Own(Some(_)))))
            .collect();
        own.sort_unstable();
        own.dedup();
        proven.extend(own.into_iter().map(|client| (session.id, client)));
    }
    proven
}
