//! Receives events about memory. Every event changes what is known; nothing is decided here.

use super::books::Books;
use super::online::{Ask, Elastic, Sizes, give_up};
use super::{Memory, MemoryEvent};
use crate::ids::{Bytes, GpuId, JobId, KvId, LogSeq, ReclaimId, SessionId, StripeId, UserId};
use crate::ledger::{Ledger, Place};
use crate::reclaim::{Answer, Phase};
use crate::time::Instant;

impl Memory {
    /// Takes one event. `job_of` says to which job an offline process belongs, and whose that is: one of a job may
    /// only schedule, and have no memory itself.
    pub fn take(
        &mut self,
        event: MemoryEvent<'_>,
        job_of: impl Fn(SessionId) -> Option<(JobId, UserId)>,
        now: Instant,
    ) {
        match event {
            MemoryEvent::Pool { .. }
            | MemoryEvent::KvRegistered { .. }
            | MemoryEvent::ElasticRegistered { .. }
            | MemoryEvent::KvGone { .. } => self.registered(event, now),
            MemoryEvent::Published { .. }
            | MemoryEvent::Forgotten { .. }
            | MemoryEvent::Withheld { .. }
            | MemoryEvent::Checked { .. } => self.heard_of_job(event, job_of),
            MemoryEvent::Moved {
                reclaim,
                session,
                answer,
                stripes,
                log,
            } => self.moved(reclaim, session, answer, stripes, log),
            MemoryEvent::Usage { .. } | MemoryEvent::Mapped { .. } => {
                self.heard_of_online(event, now);
            }
            MemoryEvent::Counted {
                session,
                gpu,
                bytes,
            } => {
                self.count(session, gpu, bytes, job_of(session).is_some());
            }
            MemoryEvent::Asked {
                session,
                ask,
                gpu,
                kv,
                bytes,
                mapped,
                ahead,
            } => {
                if let Some((job, _)) = job_of(session) {
                    self.wants_room((session, job), ask, gpu, bytes, now);
                    return;
                }
                // A later demand for the same cache replaces an earlier one.
                self.withdraw(|known| {
                    known.session == session
                        && (known.id == ask || (kv.is_some() && known.kv == kv))
                });
                let known = |e: &&mut Elastic| (e.session, Some(e.kv)) == (session, kv);
                let elastic = self.elastic.iter_mut().find(known);
                let bytes =
                    elastic.map_or(bytes, |elastic| elastic.asks((bytes, mapped), ahead, now));
                let patience = match kv {
                    Some(_) => self.sharing.reclaim_deadline,
                    None => self.sharing.reclaim_deadline.max(super::allocation(bytes)),
                };
                let until = now.after(patience);
                let promised = false;
                self.asks.push(Ask {
                    session,
                    id: ask,
                    gpu,
                    kv,
                    bytes,
                    until,
                    promised,
                });
            }
            MemoryEvent::Withdrawn { session, ask } => {
                self.withdraw(|known| (known.session, known.id) == (session, ask));
                self.leaves_room(|room| room.is(session, ask));
            }
        }
    }

    /// A process has moved stripes of its cache, or says why not.
    fn moved(
        &mut self,
        reclaim: ReclaimId,
        session: SessionId,
        answer: Answer,
        stripes: &[StripeId],
        log: LogSeq,
    ) {
        let Self { jobs, ledgers, .. } = self;
        let of = |books: &&mut Books| books.ranks.iter().any(|r| r.session == session);
        if let Some(books) = jobs.iter_mut().find(of) {
            let all = stripes.len() >= books.machine.stripes.len();
            let answer = match answer {
                Answer::Done if !all => Answer::Refused,
                answer => answer,
            };
            let phase = if books.machine.id == reclaim {
                Phase::Moving
            } else {
                Phase::Idle
            };
            if books.machine.answered(session, phase, answer)
                && !books.machine.waiting().contains(&session)
            {
                books.moved(session, stripes, log, ledgers);
            }
        }
    }

    /// What an online process says of its cache.
    fn heard_of_online(&mut self, event: MemoryEvent<'_>, now: Instant) {
        match event {
            MemoryEvent::Usage { session, kv, used } => {
                let known = |e: &&mut Elastic| (e.session, e.kv) == (session, kv);
                if let Some(elastic) = self.elastic.iter_mut().find(known) {
                    let grew = used > elastic.used;
                    elastic.used = used.min(elastic.mapped());
                    let waited = elastic.was_short(grew, &self.sharing, now);
                    elastic.waited = elastic.waited.or(waited);
                    let gpu = elastic.gpu;
                    self.note_use(session, gpu);
                }
            }
            MemoryEvent::Mapped {
                session,
                kv,
                mapped,
                last,
            } => {
                let known = |e: &&mut Elastic| (e.session, e.kv) == (session, kv);
                if let Some(elastic) = self.elastic.iter_mut().find(known)
                    && let Some(ledger) = self.ledgers.get_mut(elastic.gpu.index())
                {
                    elastic.mapped_is((mapped, last), ledger, &self.sharing, now);
                    let gpu = elastic.gpu;
                    self.note_use(session, gpu);
                }
            }
            _ => {}
        }
    }

    fn share_out(&mut self, gpu: GpuId, bytes: Bytes) {
        if let Some(ledger) = self.ledgers.get_mut(gpu.index())
            && ledger.pool().is_zero()
        {
            *ledger = Ledger::new(bytes);
        }
    }

    /// What there is: pools and caches.
    fn registered(&mut self, event: MemoryEvent<'_>, now: Instant) {
        match event {
            MemoryEvent::Pool { gpu, bytes } => self.share_out(gpu, bytes),
            MemoryEvent::KvRegistered {
                session,
                job,
                gpu,
                kv,
                layout,
                backed,
                fixed,
                reclaimable,
                counted,
            } => {
                // What it was promised has become its cache.
                self.took_room(session, gpu);
                let same =
                    |known: &&mut (SessionId, GpuId, Bytes)| (known.0, known.1) == (session, gpu);
                let known = self.counted.iter_mut().find(same);
                if let (Some(known), Some(ledger)) = (known, self.ledgers.get_mut(gpu.index())) {
                    let moves = counted.min(known.2);
                    known.2 = known.2.minus(moves);
                    ledger.shift(session, Place::Offline, Place::Free, moves);
                }
                if !self.jobs.iter().any(|books| books.job == job) {
                    let here = self.jobs.iter().filter(|books| books.gpus().contains(gpu));
                    let paid = here.map(|books| books.cost.paid).min().unwrap_or_default();
                    let mut books = Books::new(job);
                    // It owes nothing for what others paid before it came.
                    books.cost.paid = paid;
                    self.jobs.push(books);
                }
                let books = self.jobs.iter_mut().find(|books| books.job == job);
                let ledger = self.ledgers.get_mut(gpu.index());
                if let (Some(books), Some(ledger)) = (books, ledger) {
                    let rank = (session, gpu, kv);
                    books.register(rank, layout, backed, (fixed, reclaimable), ledger);
                    books.relist(&mut self.lists);
                }
            }
            MemoryEvent::ElasticRegistered {
                session,
                gpu,
                kv,
                mapped,
                fixed,
                most,
                handle,
                stripe,
            } => {
                let Some(ledger) = self.ledgers.get_mut(gpu.index()) else {
                    return;
                };
                let known = |e: &&mut Elastic| (e.session, e.kv) == (session, kv);
                // Said again, it may be at an order still.
                let first = self.elastic.iter_mut().find(known).is_none();
                if first {
                    let (known, sizes) = (
                        (session, gpu, kv),
                        Sizes {
                            most,
                            handle,
                            stripe,
                        },
                    );
                    self.elastic
                        .push(Elastic::new(known, sizes, &self.sharing, now));
                }
                if let Some(elastic) = self.elastic.iter_mut().find(known) {
                    elastic.mapped_is((mapped, first), ledger, &self.sharing, now);
                    elastic.fixed_is(fixed, ledger);
                    self.note_use(session, gpu);
                }
            }
            MemoryEvent::KvGone { session, kv } => self.kv_gone(session, kv),
            _ => {}
        }
    }

    fn kv_gone(&mut self, session: SessionId, kv: KvId) {
        for elastic in self
            .elastic
            .iter_mut()
            .filter(|e| (e.session, e.kv) == (session, kv))
        {
            if let Some(ledger) = self.ledgers.get_mut(elastic.gpu.index()) {
                elastic.close(ledger);
            }
        }
        self.elastic.retain(|e| (e.session, e.kv) != (session, kv));
        for books in &mut self.jobs {
            for rank in books.ranks.clone() {
                if let Some(ledger) = self.ledgers.get_mut(rank.gpu.index())
                    && (rank.session, rank.kv) == (session, kv)
                {
                    books.machine.gone(session);
                    books.unregister(session, Some(kv), ledger);
                }
            }
        }
        self.drop_empty();
    }

    /// What a job's processes say of their blocks, and of a reclaim that is to begin.
    fn heard_of_job(
        &mut self,
        event: MemoryEvent<'_>,
        job_of: impl Fn(SessionId) -> Option<(JobId, UserId)>,
    ) {
        match event {
            MemoryEvent::Published {
                session,
                request,
                tokens,
                blocks,
            } => {
                let Some((job, user)) = job_of(session) else {
                    return;
                };
                let Self { jobs, lists, .. } = self;
                if let Some(books) = jobs.iter_mut().find(|books| books.job == job) {
                    books.list(user, lists);
                    let room = lists.room(user);
                    books.holders.publish_within(room, request, tokens, blocks);
                    books.relist(lists);
                }
            }
            MemoryEvent::Forgotten { session, request } => {
                let Some((job, _)) = job_of(session) else {
                    return;
                };
                let Self { jobs, lists, .. } = self;
                if let Some(books) = jobs.iter_mut().find(|books| books.job == job) {
                    match request {
                        Some(request) => books.holders.forget(request),
                        None => books.holders.forget_all(),
                    }
                    books.relist(lists);
                }
            }
            MemoryEvent::Withheld { session, log } => {
                if let Some(books) = self.books_of(job_of(session)) {
                    books.withheld = books.withheld.max(log);
                }
            }
            MemoryEvent::Checked {
                reclaim,
                session,
                answer,
            } => {
                if let Some(books) = self.books_of(job_of(session)) {
                    let phase = if books.machine.id == reclaim {
                        Phase::Checking
                    } else {
                        Phase::Idle
                    };
                    books.machine.answered(session, phase, answer);
                }
            }
            _ => {}
        }
    }

    fn books_of(&mut self, job: Option<(JobId, UserId)>) -> Option<&mut Books> {
        let (job, _) = job?;
        self.jobs.iter_mut().find(|books| books.job == job)
    }

    fn note_use(&mut self, session: SessionId, gpu: GpuId) {
        let caches = self
            .elastic
            .iter()
            .filter(|e| (e.session, e.gpu) == (session, gpu));
        let used: Bytes = caches.map(|e| e.used.plus(e.fixed())).sum();
        let counted = self.counted.iter().find(|c| (c.0, c.1) == (session, gpu));
        let counted = counted.map_or(Bytes::ZERO, |counted| counted.2);
        if let Some(ledger) = self.ledgers.get_mut(gpu.index()) {
            ledger.set_used(session, used.plus(counted));
        }
    }

    fn count(&mut self, session: SessionId, gpu: GpuId, bytes: Bytes, offline: bool) {
        let Some(ledger) = self.ledgers.get_mut(gpu.index()) else {
            return;
        };
        let place = self
            .counted
            .iter()
            .position(|c| (c.0, c.1) == (session, gpu));
        let place = place.unwrap_or_else(|| {
            self.counted.push((session, gpu, Bytes::ZERO));
            self.counted.len() - 1
        });
        let before = core::mem::replace(&mut self.counted[place].2, bytes);
        let (more, less) = (bytes.minus(before), before.minus(bytes));
        if offline {
            self.took_room(session, gpu);
            let Some(ledger) = self.ledgers.get_mut(gpu.index()) else {
                return;
            };
            ledger.adopt(session, Place::Offline, more);
            ledger.shift(session, Place::Offline, Place::Free, less);
            return;
        }
        let mut rest = more;
        for ask in self
            .asks
            .iter_mut()
            .filter(|a| a.promised && (a.session, a.gpu) == (session, gpu))
        {
            let used = ledger.shift(
                session,
                Place::InFlight,
                Place::Headroom,
                ask.bytes.min(rest),
            );
            (ask.bytes, rest) = (ask.bytes.minus(used), rest.minus(used));
        }
        ledger.adopt(session, Place::Headroom, rest);
        give_up(session, less, ledger);
        self.note_use(session, gpu);
    }

    pub(super) fn withdraw(&mut self, which: impl Fn(&Ask) -> bool) {
        let ledgers = &mut self.ledgers;
        self.asks.retain(|ask| {
            let goes = which(ask);
            if goes
                && ask.promised
                && let Some(ledger) = ledgers.get_mut(ask.gpu.index())
            {
                ledger.shift(ask.session, Place::InFlight, Place::Free, ask.bytes);
            }
            !goes
        });
    }

    /// A process is gone with all it had.
    pub fn gone(&mut self, session: SessionId) {
        for books in &mut self.jobs {
            books.gone(session);
        }
        self.drop_empty();
        self.elastic.retain(|elastic| elastic.session != session);
        self.counted.retain(|counted| counted.0 != session);
        self.asks.retain(|ask| ask.session != session);
        self.rooms.retain(|room| room.session != session);
        for ledger in &mut self.ledgers {
            ledger.close(session);
        }
    }

    fn drop_empty(&mut self) {
        let Self { jobs, lists, .. } = self;
        for books in jobs.extract_if(.., |books| books.ranks.is_empty()) {
            books.unlist(lists);
        }
    }
}
