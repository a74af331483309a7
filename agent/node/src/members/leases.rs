//! The processes' side of leases: iterations that online reports, units that trainers offer, and leases that they end.

use super::Members;
use crate::beats::{Beat, BeatRef, Follower};
use crate::kinds::Role;
use crate::message::{Claim, Offer, Tell};
use crate::request::{Context, Notice, Request};
use crate::session::{Leasing, Session};
use std::sync::atomic::Ordering;
use tidegate_abi::beats;
use tidegate_abi::page::{
    LEASED_NUMBER, LEASED_OVER, LEASED_UNITS, UNIT_BACKWARD, UNIT_MOST, UNIT_TOKENS,
};
use tidegate_policy::event::Event;
use tidegate_policy::ids::{GpuId, GpuSet, JobId, LeaseId};
use tidegate_policy::lease::event::{Key, Kind, LeaseEvent};

/// Longest unit that is believed, ns: no lease is that long.
const UNIT_NS: u64 = 10_000_000_000;

impl Leasing {
    /// What its trainer offers takes about the same whenever it is offered.
    #[must_use]
    pub fn key(&self) -> Key {
        Key {
            fingerprint: self.salt ^ self.offered.tokens,
            kind: if self.offered.backward {
                Kind::Backward
            } else {
                Kind::Forward
            },
        }
    }
}

/// What a trainer offers: nothing where leases are off, or it has no words for them.
fn offer(session: &Session, on: bool) -> Offer {
    if !on || !session.library.knows_leases {
        return Offer::default();
    }
    let Some(page) = &session.link.page else {
        return bounded(session.lease.streamed);
    };
    let unit = page.process.unit.load(Ordering::Acquire);
    bounded(Offer {
        most: u32::try_from(unit >> UNIT_MOST).unwrap_or(u32::MAX),
        backward: unit & UNIT_BACKWARD != 0,
        tokens: unit & UNIT_TOKENS,
        unit_ns: page.process.unit_ns.load(Ordering::Relaxed),
    })
}

fn bounded(offer: Offer) -> Offer {
    Offer {
        unit_ns: offer.unit_ns.min(UNIT_NS),
        ..offer
    }
}

impl Members {
    /// Passes on what a trainer offers, where it is news.
    pub(super) fn hear_offer(&mut self, id: u64, cx: &mut Context<'_>) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Some(job) = session.job.filter(|_| session.role == Role::Offline) else {
            return;
        };
        let offer = offer(session, cx.settings.leases.is_some());
        let gpus: GpuSet = session.slots.iter().filter_map(|slot| slot.gpu).collect();
        if (offer, gpus) == (session.lease.offered, session.lease.offered_on) {
            return;
        }
        let before = std::mem::replace(&mut session.lease.offered_on, gpus);
        session.lease.offered = offer;
        if offer.most == 0 && !session.lease.trains {
            // Another process of its job may be the trainer.
            return;
        }
        let trains = offer.most > 0;
        session.lease.trains = trains;
        if trains {
            self.trainers.insert(id);
            // From now on it is heard also while it offers nothing: it may end a lease then.
            if let Some(page) = &session.link.page
                && !self.bells.has(id)
            {
                self.bells.add_offline(id, page);
            }
        }
        for gpu in before.union(gpus).iter() {
            cx.step(self.front_offer(job, gpu));
        }
    }

    /// A trainer rang: its offer, and leases that it ended.
    pub(super) fn hear_trainer(&mut self, id: u64, cx: &mut Context<'_>) {
        if cx.settings.leases.is_none() {
            return;
        }
        self.hear_offer(id, cx);
        let trainer = self.trainers.contains(&id);
        let Some(session) = self.sessions.get_mut(&id).filter(|_| trainer) else {
            return;
        };
        let Some(page) = &session.link.page else {
            return;
        };
        let done = &mut session.lease.done;
        for ((slot, words), done) in session.slots.iter().zip(&page.memory).zip(done) {
            let Some(gpu) = slot.gpu else { continue };
            let word = words.leased.load(Ordering::Acquire);
            if word == *done || word & LEASED_OVER == 0 {
                continue;
            }
            *done = word;
            over(id, gpu, (word >> LEASED_NUMBER, word & LEASED_UNITS), cx);
        }
    }

    /// An offline process uses a GPU, and could offer units: its words say from now on whether it needs a lease. Until it
    /// offers some they could say so too late, and a unit would be launched that runs when its channels are enabled.
    pub(super) fn could_train(&mut self, id: u64, cx: &Context<'_>) {
        let knows = self.get(id).is_some_and(|own| own.library.knows_leases);
        if knows && cx.settings.leases.is_some() {
            self.trainers.insert(id);
        }
    }

    /// It needs no lease any more.
    pub(super) fn needs_no_lease(&mut self, id: u64) {
        if !self.trainers.remove(&id) {
            return;
        }
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        for slot in 0..session.slots.len() {
            if session.lease.told[slot].is_some() {
                session.tell_no_lease(slot, true);
            }
        }
        if !session.state.asked {
            self.bells.remove(id);
        }
    }

    /// Each process that offers units or could, with its job.
    pub(crate) fn each_trainer(&mut self, mut each: impl FnMut(&mut Session, JobId)) {
        for id in &self.trainers {
            let session = self.sessions.get_mut(id);
            if let Some((session, job)) = session.and_then(|own| own.job.map(|job| (own, job))) {
                each(session, job);
            }
        }
    }

    /// The agent ends and gates are open: nobody needs a lease.
    pub(crate) fn end_leases(&mut self) {
        self.each_trainer(|session, _| {
            for slot in 0..session.slots.len() {
                if session.lease.told[slot].is_some() {
                    session.tell_no_lease(slot, true);
                }
            }
        });
    }

    /// A process without a page ended a lease.
    pub(super) fn hear_over(
        &mut self,
        id: u64,
        (slot, lease, units): (u32, u64, u64),
        cx: &mut Context<'_>,
    ) {
        let session = self.get(id).filter(|own| own.link.page.is_none());
        let gpu = session.and_then(|own| own.slots.get(slot as usize)?.gpu);
        if let Some(gpu) = gpu {
            over(id, gpu, (lease, units), cx);
        }
    }

    /// Offers that nobody rang for, and who is asked for iterations: at every heartbeat.
    pub(super) fn tend_leases(&mut self, cx: &mut Context<'_>) {
        let trainers: Vec<u64> = {
            let all = self.sessions.values();
            let trainers = all.filter(|own| own.role == Role::Offline && own.library.knows_leases);
            trainers.map(|own| own.id).collect()
        };
        for id in trainers {
            self.could_train(id, cx);
            self.hear_offer(id, cx);
        }
        if cx.settings.leases.is_none() {
            return;
        }
        let all = self.sessions.values();
        let trained: GpuSet = all
            .filter(|own| own.lease.trains)
            .map(|own| own.lease.offered_on)
            .fold(GpuSet::EMPTY, GpuSet::union);
        for session in self.sessions.values_mut() {
            let asks = session.is_online()
                && session.lease.silence.asked_ns.is_none()
                && session.library.knows_leases
                && session.link.page.is_some()
                && session.gpus().any(|gpu| trained.contains(gpu));
            if asks && session.tell(Tell::BeatsWanted) {
                session.lease.silence.asked_ns = Some(cx.now);
            }
        }
        let beside =
            |own: &&Session| own.is_online() && own.gpus().any(|gpu| trained.contains(gpu));
        let beside: Vec<u64> = {
            let all = self.sessions.values().filter(beside);
            all.map(|own| own.id).collect()
        };
        for id in beside {
            self.tell_silent(id, cx);
        }
    }

    /// Leases are off: what was heard for their sake is forgotten.
    pub(crate) fn forget_leases(&mut self, cx: &mut Context<'_>) {
        let ids: Vec<u64> = self.sessions.keys().copied().collect();
        for id in ids {
            self.hear_offer(id, cx);
            self.needs_no_lease(id);
            if let Some(session) = self.sessions.get_mut(&id) {
                session.lease.followers.clear();
            }
        }
    }

    /// A process sent the page on which it says its iterations, as it was asked to. It is mapped once.
    pub(super) fn claim_beats(&mut self, id: u64, fd: i32, cx: &mut Context<'_>) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let asked = session.is_online() && session.lease.silence.asked_ns.is_some();
        if !asked || std::mem::replace(&mut session.lease.claimed, true) {
            return;
        }
        cx.ask(Request::Claim(Claim::Beats {
            session: id,
            process: session.process(),
            fd,
        }));
    }

    /// The page was mapped, or is none.
    pub(super) fn judge_beats(&mut self, id: u64, page: Option<BeatRef>, cx: &mut Context<'_>) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let is = |page: &BeatRef| {
            let header = &page.header;
            header.magic.load(Ordering::Acquire) == beats::MAGIC
                && header.major.load(Ordering::Relaxed) == beats::MAJOR
        };
        session.lease.beats = page.filter(is);
        if session.lease.beats.is_none() {
            cx.emit(Notice {
                kind: "note",
                session: id,
                text: "what it sent as the page of its iterations is none: no lease is given beside it".to_owned(),
                refused: Some("sent no page for its iterations"),
                ..Notice::default()
            });
        }
    }

    /// An online process rang: iterations that ended, and requests that came.
    pub(super) fn hear_beats(&mut self, id: u64, cx: &mut Context<'_>) {
        if cx.settings.leases.is_none() {
            return;
        }
        let mut news = std::mem::take(&mut self.news);
        let users = |gpu: GpuId| {
            let online = self.sessions.values().filter(|own| own.is_online());
            online
                .filter(|own| own.gpus().any(|used| used == gpu))
                .count()
        };
        // A promise is kept for one engine on each GPU.
        let mut shared = GpuSet::EMPTY;
        for gpu in self.get(id).into_iter().flat_map(Session::gpus) {
            if users(gpu) > 1 {
                shared = shared.with(gpu);
            }
        }
        if let Some(session) = self.sessions.get_mut(&id) {
            hear(session, shared, &mut news, cx);
        }
        self.news = news;
    }

    /// Who is gone has no requests any more.
    pub(crate) fn end_beats(session: &mut Session, cx: &mut Context<'_>) {
        let mut news = Vec::new();
        for (at, mut follower) in std::mem::take(&mut session.lease.followers) {
            let Some(gpu) = session.slots.get(at).and_then(|slot| slot.gpu) else {
                continue;
            };
            follower.end(cx.now, &mut news);
            for event in news.drain(..) {
                cx.step(Event::Lease(LeaseEvent::Seen { gpu, event }));
            }
        }
    }
}

fn hear(
    session: &mut Session,
    shared: GpuSet,
    news: &mut Vec<tidegate_policy::lease::event::Event>,
    cx: &mut Context<'_>,
) {
    let (Some(beats), Some(page)) = (&session.lease.beats, &session.link.page) else {
        return;
    };
    // The word is their number plus one; 0 says nothing.
    let flight = page
        .process
        .in_flight
        .load(Ordering::Acquire)
        .checked_sub(1);
    for (at, (slot, words)) in session.slots.iter().zip(&beats.devices).enumerate() {
        let Some(gpu) = slot.gpu else { continue };
        let followers = &mut session.lease.followers;
        let follower = followers
            .entry(at)
            .or_insert_with(|| Follower::new(session.id));
        if let Some(flight) = flight {
            follower.in_flight(flight, cx.now, news);
        }
        let beat = Beat::read(words, session.link.clock, cx.now);
        let beat = beat.filter(|beat| beat.count != follower.count());
        let next = beat.and_then(|beat| follower.hear(beat, flight, cx.now, news));
        for event in news.drain(..) {
            cx.step(Event::Lease(LeaseEvent::Seen { gpu, event }));
        }
        if let Some(next) = next.filter(|_| !shared.contains(gpu)) {
            cx.step(Event::Lease(LeaseEvent::Next { gpu, next }));
        }
    }
}

fn over(session: u64, gpu: GpuId, (lease, units): (u64, u64), cx: &mut Context<'_>) {
    cx.ask(Request::LeaseOver {
        session,
        gpu,
        lease: LeaseId(lease),
        units: u32::try_from(units).unwrap_or(u32::MAX),
    });
}
