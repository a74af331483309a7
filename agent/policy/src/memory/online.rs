//! Online's side: caches that grow and shrink, and demands that wait.

use crate::config::Sharing;
use crate::effect::{Effect, Granted, Report};
use crate::ids::{AskId, Bytes, GpuId, KvId, SessionId};
use crate::ledger::{Ledger, Place};
use crate::reserve::{Change, Reserve};
use crate::time::Instant;

/// An elastic cache.
#[derive(Clone, Debug)]
pub(super) struct Elastic {
    pub session: SessionId,
    pub gpu: GpuId,
    pub kv: KvId,
    most: Bytes,
    mapped: Bytes,
    /// Promised by `Map`, and not said to be mapped yet.
    promised: Bytes,
    pub used: Bytes,
    /// The most it asked to have mapped since it was last settled.
    asked: Bytes,
    pub reserve: Reserve,
    retry_at: Instant,
}

impl Elastic {
    pub fn new(
        (session, gpu, kv): (SessionId, GpuId, KvId),
        most: Bytes,
        sharing: &Sharing,
        now: Instant,
    ) -> Self {
        Self {
            session,
            gpu,
            kv,
            most,
            mapped: Bytes::ZERO,
            promised: Bytes::ZERO,
            used: Bytes::ZERO,
            asked: Bytes::ZERO,
            reserve: Reserve::new(sharing.reserving, now),
            retry_at: now,
        }
    }

    pub const fn mapped(&self) -> Bytes {
        self.mapped
    }

    /// When it may be promised something again.
    pub const fn retries_at(&self) -> Instant {
        self.retry_at
    }

    fn wanted(&self) -> Bytes {
        self.reserve.reservation().min(self.most)
    }

    /// What it wants beyond what it has and was promised.
    pub fn lacks(&self, now: Instant) -> Bytes {
        if now < self.retry_at {
            return Bytes::ZERO;
        }
        self.wanted().minus(self.mapped.plus(self.promised))
    }

    /// It waits for so much more.
    pub fn asks(&mut self, bytes: Bytes) {
        self.asked = self.asked.max(self.mapped.plus(self.promised).plus(bytes));
    }

    /// Tells the use to the reservation, also when its interval is over; before that, what a demand
    /// would make it.
    pub fn settle(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let asked = core::mem::take(&mut self.asked);
        if asked > self.reserve.reservation() {
            self.reserve.settle(asked, now);
        }
        match self.reserve.settle(self.used, now) {
            Some(Change::Grow(reservation)) => out.push(Effect::Emit(Report::Pressure {
                session: self.session,
                gpu: self.gpu,
                used: self.used,
                reservation,
            })),
            Some(Change::Shrink(_)) if self.promised.is_zero() && self.wanted() < self.mapped => {
                out.push(self.map(self.wanted()));
            }
            _ => {}
        }
    }

    fn map(&self, bytes: Bytes) -> Effect {
        Effect::Map {
            session: self.session,
            kv: self.kv,
            bytes,
        }
    }

    /// Promises it up to `bytes` of what is free. Says how much.
    pub fn promise(&mut self, bytes: Bytes, ledger: &mut Ledger, out: &mut Vec<Effect>) -> Bytes {
        let given = ledger.shift(self.session, Place::Free, Place::InFlight, bytes);
        if !given.is_zero() {
            self.promised = self.promised.plus(given);
            out.push(self.map(self.mapped.plus(self.promised)));
        }
        given
    }

    /// It has this much mapped, and is done with what it was told.
    pub fn mapped_is(
        &mut self,
        mapped: Bytes,
        ledger: &mut Ledger,
        sharing: &Sharing,
        now: Instant,
    ) {
        let (more, less) = (mapped.minus(self.mapped), self.mapped.minus(mapped));
        let kept = more.min(self.promised);
        let arrived = ledger.shift(self.session, Place::InFlight, Place::Headroom, kept);
        ledger.adopt(self.session, Place::Headroom, more.minus(arrived));
        let left = self.promised.minus(kept);
        if !left.is_zero() {
            ledger.shift(self.session, Place::InFlight, Place::Free, left);
            self.retry_at = now.after(sharing.map_retry);
        }
        self.promised = Bytes::ZERO;
        give_up(self.session, less, ledger);
        self.mapped = mapped;
    }

    /// It is gone, but its process is not.
    pub fn close(&mut self, ledger: &mut Ledger) {
        ledger.shift(self.session, Place::InFlight, Place::Free, self.promised);
        give_up(self.session, self.mapped, ledger);
        (self.promised, self.mapped) = (Bytes::ZERO, Bytes::ZERO);
    }
}

/// An online process gave memory back, used or not.
pub(super) fn give_up(session: SessionId, bytes: Bytes, ledger: &mut Ledger) {
    let spare = ledger.shift(session, Place::Headroom, Place::Free, bytes);
    let used = ledger.shift(session, Place::Online, Place::Headroom, bytes.minus(spare));
    ledger.shift(session, Place::Headroom, Place::Free, used);
}

/// A demand that waits, or an allocation that was promised its memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub session: SessionId,
    pub id: AskId,
    pub gpu: GpuId,
    pub kv: Option<KvId>,
    pub bytes: Bytes,
    /// When it is denied, or what was promised is taken back.
    pub until: Instant,
    /// Promised to an allocation.
    pub promised: bool,
}

impl Ask {
    pub fn answer(&self, granted: Granted) -> Effect {
        Effect::AnswerAsk {
            session: self.session,
            ask: self.id,
            granted,
        }
    }
}
