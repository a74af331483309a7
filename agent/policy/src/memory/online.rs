//! Online's side: caches that grow and shrink, and demands that wait.

use crate::budget::Short;
use crate::config::Sharing;
use crate::effect::{Effect, Granted, Report};
use crate::ids::{AskId, Bytes, GpuId, Handles, KvId, SessionId};
use crate::ledger::{Ledger, Place};
use crate::reserve::{Change, Reserve};
use crate::time::Instant;
use crate::view::HandlesView;
use core::time::Duration;

/// A demand of online: more than it has mapped.
#[derive(Clone, Copy, Debug)]
struct Shortage {
    /// When it was first made.
    asked: Instant,
    /// When the engine came to it; `None`: not yet, so nothing waits.
    came: Option<Instant>,
    /// Since when the engine has done without; `None`: it computes a part meanwhile.
    since: Option<Instant>,
    /// How long it did without before.
    still: Duration,
    /// How often it computed a part.
    parts: u32,
    /// All that was demanded.
    wanted: Bytes,
    /// The demand is mapped; what runs meanwhile still runs.
    met: bool,
}

/// An elastic cache.
#[derive(Clone, Debug)]
pub(super) struct Elastic {
    pub session: SessionId,
    pub gpu: GpuId,
    pub kv: KvId,
    sizes: Sizes,
    /// It has memory as long as it exists, and counts as used.
    fixed: Bytes,
    mapped: Bytes,
    told: Told,
    pub used: Bytes,
    /// Nothing of its GPU is shared: all of it is to have memory, as that of an engine that nobody knows.
    all: bool,
    /// The most it asked to have mapped since it was last settled.
    asked: Bytes,
    pub reserve: Reserve,
    short: Option<Shortage>,
    /// How long the last stall was, until somebody asks.
    pub waited: Option<Short>,
    retry_at: Instant,
    /// What was mapped for a demand stays until then: it asks again for what it demanded.
    kept_until: Instant,
}

/// How large an elastic cache may become, and in which pieces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub most: Bytes,
    pub handle: Bytes,
    /// The unit in which it maps memory.
    pub stripe: Bytes,
}

/// How much an elastic cache was ordered to have mapped.
#[derive(Clone, Copy, Debug)]
struct Told {
    /// Promised by `Map`, but not reported as mapped yet.
    promised: Bytes,
    /// The last order.
    target: Bytes,
    /// The most of what it was told and has not answered for: which order it is at, nobody knows.
    ordered: Bytes,
    /// The size to which it was last ordered to shrink, and when to order it again: it keeps what it reserved.
    shrinks: Option<(Bytes, Instant)>,
}

impl Elastic {
    pub fn new(
        (session, gpu, kv): (SessionId, GpuId, KvId),
        sizes: Sizes,
        sharing: &Sharing,
        now: Instant,
    ) -> Self {
        Self {
            session,
            gpu,
            kv,
            sizes,
            fixed: Bytes::ZERO,
            mapped: Bytes::ZERO,
            told: Told {
                promised: Bytes::ZERO,
                target: Bytes::ZERO,
                ordered: Bytes::ZERO,
                shrinks: None,
            },
            used: Bytes::ZERO,
            all: false,
            asked: Bytes::ZERO,
            reserve: Reserve::new(sharing.reserving, now),
            short: None,
            waited: None,
            retry_at: now,
            kept_until: now,
        }
    }

    pub const fn mapped(&self) -> Bytes {
        self.mapped
    }

    pub const fn fixed(&self) -> Bytes {
        self.fixed
    }

    /// Its handles by state.
    pub fn handles(&self) -> HandlesView {
        let count = |bytes: Bytes| {
            let handles = bytes.0.checked_div(self.sizes.handle.0).unwrap_or(0);
            Handles(u32::try_from(handles).unwrap_or(u32::MAX))
        };
        HandlesView {
            held: count(self.mapped),
            in_flight: count(self.told.promised),
            ..HandlesView::default()
        }
    }

    /// When it may get a promise again.
    pub const fn retries_at(&self) -> Instant {
        self.retry_at
    }

    fn wanted(&self) -> Bytes {
        if self.all {
            return self.sizes.most;
        }
        self.whole(self.reserve.reservation())
    }

    /// How many stripes this much memory takes.
    fn whole(&self, bytes: Bytes) -> Bytes {
        bytes.round_up(self.sizes.stripe).min(self.sizes.most)
    }

    /// How much it wants beyond what it has and was promised.
    pub fn lacks(&self, now: Instant) -> Bytes {
        if now < self.retry_at {
            return Bytes::ZERO;
        }
        self.wanted().minus(self.mapped.plus(self.told.promised))
    }

    /// It waits for `bytes` more than it had mapped when it asked, as far as it ever maps, or will, as it asks `ahead`.
    /// Who has come to what it lacks, and then asks ahead for no more, goes on with a part of it.
    /// Says what that is beyond all it was promised.
    pub fn asks(
        &mut self,
        (bytes, mapped): (Bytes, Option<Bytes>),
        ahead: bool,
        now: Instant,
    ) -> Bytes {
        let promised = self.mapped.plus(self.told.promised);
        let wanted = self.whole(mapped.unwrap_or(promised).plus(bytes));
        self.asked = self.asked.max(wanted);
        if wanted > self.mapped {
            let short = self.short.get_or_insert(Shortage {
                asked: now,
                came: None,
                since: None,
                still: Duration::ZERO,
                parts: 0,
                wanted,
                met: false,
            });
            if !ahead {
                short.came.get_or_insert(now);
                short.since.get_or_insert(now);
            } else if wanted <= short.wanted
                && let Some(since) = short.since.take()
            {
                short.still += now.since(since);
                short.parts += 1;
            }
            short.wanted = short.wanted.max(wanted);
            short.met = false;
        }
        wanted.minus(promised)
    }

    /// Tells the use to the reservation, also when its interval is over, and before that what a
    /// demand would make it; has it give back what is mapped beyond.
    pub fn settle(&mut self, sharing: &Sharing, now: Instant, out: &mut Vec<Effect>) {
        let asked = core::mem::take(&mut self.asked);
        if asked > self.reserve.reservation() {
            self.reserve.settle(asked, now);
        }
        if let Some(Change::Grow(reservation)) = self.reserve.settle(self.used, now) {
            out.push(Effect::Emit(Report::Pressure {
                session: self.session,
                gpu: self.gpu,
                used: self.used,
                reservation,
            }));
        }
        if self.shrinks_at().is_some_and(|at| now >= at) {
            let wanted = self.wanted();
            self.told.shrinks = Some((wanted, now.after(sharing.promise_lasts)));
            out.push(self.order(wanted));
        }
    }

    /// When it has to give something back, if there is anything.
    pub fn shrinks_at(&self) -> Option<Instant> {
        let wanted = self.wanted();
        let again = self.told.shrinks.filter(|told| told.0 == wanted);
        let at = again.map_or(self.kept_until, |told| told.1.max(self.kept_until));
        (self.told.promised.is_zero() && wanted < self.mapped).then_some(at)
    }

    /// How long online did without what it demanded, once: it `goes_on` with it, or has not got it for as long
    /// as a promise lasts, and counts anew. Nothing, where the engine had it before it came to it.
    pub fn was_short(&mut self, goes_on: bool, sharing: &Sharing, now: Instant) -> Option<Short> {
        let short = self.short.as_mut()?;
        short.met |= self.mapped >= short.wanted;
        let given_up = now.since(short.came.unwrap_or(short.asked)) >= sharing.promise_lasts;
        let over = (short.met && goes_on) || given_up;
        if !over {
            return None;
        }
        let since = |from: Option<Instant>| from.map_or(Duration::ZERO, |from| now.since(from));
        let over = Short {
            whole: since(short.came),
            still: short.still + since(short.since),
            parts: short.parts,
        };
        self.short = None;
        Some(over)
    }

    /// A demand of it is met: what is mapped for it stays for a while.
    pub fn keep(&mut self, sharing: &Sharing, now: Instant) {
        self.kept_until = now.after(sharing.promise_lasts);
    }

    fn order(&mut self, bytes: Bytes) -> Effect {
        (self.told.target, self.told.ordered) = (bytes, self.told.ordered.max(bytes));
        Effect::Map {
            session: self.session,
            kv: self.kv,
            bytes,
        }
    }

    /// Nothing of its GPU is shared: it maps all of itself, once, and again some time after the device had no memory
    /// for it.
    pub fn takes_all(&mut self, now: Instant, out: &mut Vec<Effect>) {
        self.all = true;
        if !self.has_all() && now >= self.retry_at {
            out.push(self.order(self.sizes.most));
        }
    }

    /// Whether all of it has memory, or is being given it.
    pub fn has_all(&self) -> bool {
        self.mapped >= self.sizes.most || !self.told.ordered.is_zero()
    }

    /// Promises it up to `bytes` of what is free: no part of a stripe, which would be of no use to it and
    /// lack where it is. Says how much.
    pub fn promise(&mut self, bytes: Bytes, ledger: &mut Ledger, out: &mut Vec<Effect>) -> Bytes {
        let stands = self.mapped.plus(self.told.promised);
        let target = stands.plus(bytes.min(ledger.free()));
        let target = if target >= self.sizes.most {
            self.sizes.most
        } else {
            target.round_down(self.sizes.stripe)
        };
        let bytes = target.minus(stands);
        let given = ledger.shift(self.session, Place::Free, Place::InFlight, bytes);
        if !given.is_zero() {
            self.told.promised = self.told.promised.plus(given);
            let target = self.mapped.plus(self.told.promised);
            out.push(self.order(target));
        }
        given
    }

    /// It has this much mapped, and, if that is its `last` word, is done with what it was told.
    pub fn mapped_is(
        &mut self,
        (mapped, last): (Bytes, bool),
        ledger: &mut Ledger,
        sharing: &Sharing,
        now: Instant,
    ) {
        let (more, less) = (mapped.minus(self.mapped), self.mapped.minus(mapped));
        let kept = more.min(self.told.promised);
        let arrived = ledger.shift(self.session, Place::InFlight, Place::Headroom, kept);
        ledger.adopt(self.session, Place::Headroom, more.minus(arrived));
        self.told.promised = self.told.promised.minus(kept);
        if last && !self.told.promised.is_zero() {
            ledger.shift(
                self.session,
                Place::InFlight,
                Place::Free,
                self.told.promised,
            );
            self.told.promised = Bytes::ZERO;
            if mapped < self.told.target {
                self.retry_at = now.after(sharing.map_retry);
            }
        }
        give_up(self.session, less, ledger);
        self.mapped = mapped;
        if last {
            self.told.ordered = Bytes::ZERO;
            if self.all && !self.has_all() {
                self.retry_at = now.after(sharing.map_retry);
            }
        } else {
            // It may be at an order that a later one has taken back: until it answers that one, what it gave back
            // may be mapped again, whoever else it was for.
            let again = self.told.ordered.minus(mapped.plus(self.told.promised));
            ledger.adopt(self.session, Place::InFlight, again);
            self.told.promised = self.told.promised.plus(again);
        }
    }

    /// This much of it always has memory.
    pub fn fixed_is(&mut self, fixed: Bytes, ledger: &mut Ledger) {
        ledger.adopt(self.session, Place::Headroom, fixed.minus(self.fixed));
        give_up(self.session, self.fixed.minus(fixed), ledger);
        self.fixed = fixed;
    }

    /// The cache is gone, but its process is not.
    pub fn close(&mut self, ledger: &mut Ledger) {
        ledger.shift(
            self.session,
            Place::InFlight,
            Place::Free,
            self.told.promised,
        );
        give_up(self.session, self.mapped.plus(self.fixed), ledger);
        (self.told.promised, self.mapped, self.fixed) = (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO);
    }
}

/// An online process gave memory back, whether it had used it or not.
pub(super) fn give_up(session: SessionId, bytes: Bytes, ledger: &mut Ledger) {
    let spare = ledger.shift(session, Place::Headroom, Place::Free, bytes);
    let used = ledger.shift(session, Place::Online, Place::Headroom, bytes.minus(spare));
    ledger.shift(session, Place::Headroom, Place::Free, used);
}

/// A demand that waits, or an allocation that was promised memory.
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
