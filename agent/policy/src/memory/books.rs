//! The memory of one offline job: its ranks, who holds what, and what was taken.

use super::lists::Lists;
use crate::effect::{Effect, Report};
use crate::holders::{Backing, Holders};
use crate::ids::{
    Bytes, GpuId, GpuSet, Handles, JobId, KvId, LogSeq, SessionId, StripeId, Tokens, UserId,
};
use crate::layout::Layout;
use crate::ledger::{Ledger, Place};
use crate::reclaim::{Direction, Phase, Reclaim};
use crate::select::Pick;
use crate::time::Instant;
use crate::view::HandlesView;
use crate::words::choice::Choice;
use std::collections::VecDeque;

/// Choices kept for `explain`.
const KEPT: usize = 256;

/// The cache of one process.
#[derive(Clone, Debug)]
pub(super) struct Rank {
    pub session: SessionId,
    pub gpu: GpuId,
    pub kv: KvId,
    fixed: Bytes,
    reclaimable: bool,
    /// Per stripe: no memory of its own stands behind it.
    lacks: Vec<bool>,
    /// Bytes of the stripes that do not lack it. A sum that stops at the largest number could not be taken from again.
    backed: u128,
    /// What stood behind it at its birth.
    claimed: Bytes,
}

#[derive(Clone, Debug)]
pub(super) struct Books {
    pub job: JobId,
    listed: Listed,
    pub ranks: Vec<Rank>,
    pub holders: Holders,
    losses: Losses,
    pub withheld: LogSeq,
    pub machine: Reclaim,
    pub begun: Instant,
    pub restored_at: Option<Instant>,
    pub picks: Vec<Pick>,
    pub choices: VecDeque<Choice>,
    pub taken: Taken,
    /// Its largest stripe.
    pub stripe: Bytes,
    pub cost: Cost,
    /// The reclaim under way is for another offline job.
    pub evens: bool,
}

/// Whose the lists of requests are, and the bytes that are counted of them.
#[derive(Clone, Copy, Debug, Default)]
struct Listed {
    user: UserId,
    bytes: usize,
}

/// Which stripes lack memory.
#[derive(Clone, Debug, Default)]
struct Losses {
    /// Per stripe: the ranks that lack it.
    lacking: Vec<u32>,
    /// Per stripe: the log entry that names its blocks as lost, while they are.
    lost: Vec<LogSeq>,
    /// No entry before this names blocks that are lost.
    soonest: LogSeq,
}

/// What reclaims took from a job.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    pub reclaims: u64,
    pub tokens: Tokens,
    pub blocks_lost: u64,
}

/// What reclaims cost a job: tokens over weight.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    /// The one under way.
    pub price: u128,
    /// All so far.
    pub paid: u128,
    /// The dearest.
    pub dearest: u128,
}

impl Books {
    pub fn new(job: JobId) -> Self {
        Self {
            job,
            listed: Listed::default(),
            ranks: Vec::new(),
            holders: Holders::default(),
            losses: Losses::default(),
            withheld: LogSeq(0),
            machine: Reclaim::default(),
            begun: Instant::default(),
            restored_at: None,
            picks: Vec::new(),
            choices: VecDeque::new(),
            taken: Taken::default(),
            stripe: Bytes(1),
            cost: Cost::default(),
            evens: false,
        }
    }

    /// A rank says what it has. Its word counts, not what was known.
    pub fn register(
        &mut self,
        (session, gpu, kv): (SessionId, GpuId, KvId),
        layout: &Layout,
        backed: &[bool],
        (fixed, reclaimable): (Bytes, bool),
        ledger: &mut Ledger,
    ) {
        self.unregister(session, Some(kv), ledger);
        if self.ranks.is_empty() && layout != self.holders.layout() {
            self.losses.lost = vec![LogSeq(0); layout.len()];
            self.losses.lacking = vec![0; layout.len()];
            self.holders = Holders::new(layout.clone());
            let stripes = (0u32..).take(layout.len()).map(StripeId);
            let largest = stripes.map(|stripe| layout.bytes(stripe)).max();
            self.stripe = largest.unwrap_or_default().max(Bytes(1));
        }
        // Cut otherwise than the others, a stripe does not mean the same everywhere; and answers are
        // told apart by their process.
        let alone = self.ranks.iter().all(|rank| rank.session != session);
        let alike = alone && layout == self.holders.layout();
        let lacks = (0..layout.len()).map(|nth| !backed.get(nth).copied().unwrap_or(false));
        let mut rank = Rank {
            session,
            gpu,
            kv,
            fixed,
            reclaimable: reclaimable && alike,
            lacks: lacks.collect(),
            backed: 0,
            claimed: Bytes::ZERO,
        };
        rank.backed = rank.counted(layout);
        if !alike {
            // Nothing of it is ever taken, so all it holds is fixed.
            rank.fixed = rank.held();
            rank.lacks.clear();
            rank.backed = 0;
        }
        rank.claimed = rank.claims(layout);
        ledger.adopt(session, Place::Offline, rank.held());
        for (lacking, lacks) in self.losses.lacking.iter_mut().zip(&rank.lacks) {
            *lacking += u32::from(*lacks);
        }
        let settles = !rank.lacks.is_empty();
        self.ranks.push(rank);
        if settles {
            self.settle_all();
        }
    }

    /// Ranks with stripes came or went. What moves is settled when it has moved.
    fn settle_all(&mut self) {
        let mut moving = Vec::new();
        if self.machine.phase == Phase::Moving {
            moving.clone_from(&self.machine.stripes);
            moving.sort_unstable();
        }
        for stripe in (0u32..).take(self.holders.layout().len()).map(StripeId) {
            if moving.binary_search(&stripe).is_err() {
                self.settle_backing(stripe);
            }
        }
        self.note_soonest();
    }

    /// Ranks for which `goes` is true are gone.
    fn drop_ranks(&mut self, mut goes: impl FnMut(&Rank) -> bool) {
        let lacking = &mut self.losses.lacking;
        let mut settles = false;
        self.ranks.retain(|rank| {
            let goes = goes(rank);
            if goes {
                for (lacking, lacks) in lacking.iter_mut().zip(&rank.lacks) {
                    *lacking -= u32::from(*lacks);
                }
                settles = settles || !rank.lacks.is_empty();
            }
            !goes
        });
        if settles {
            self.settle_all();
        }
    }

    /// Its lists belong to `user`, and are counted as they are now.
    pub fn list(&mut self, user: UserId, lists: &mut Lists) {
        self.unlist(lists);
        let bytes = self.holders.bytes();
        self.listed = Listed { user, bytes };
        lists.take(user, bytes);
    }

    /// It has none any more.
    pub fn unlist(&self, lists: &mut Lists) {
        lists.give_up(self.listed.user, self.listed.bytes);
    }

    /// As before, whoever they belong to.
    pub fn relist(&mut self, lists: &mut Lists) {
        self.list(self.listed.user, lists);
    }

    fn note_soonest(&mut self) {
        let all = (0u32..).map(StripeId).zip(&self.losses.lost);
        let taken = all.filter(|(stripe, _)| self.holders.backing(*stripe) == Backing::Taken);
        self.losses.soonest = taken.map(|(_, lost)| *lost).min().unwrap_or_default();
    }

    /// What one rank lacks is gone for all.
    fn settle_backing(&mut self, stripe: StripeId) -> Backing {
        let gone = self
            .losses
            .lacking
            .get(stripe.0 as usize)
            .is_some_and(|&ranks| ranks > 0);
        let backing = if gone {
            Backing::Taken
        } else {
            Backing::Backed
        };
        self.holders.set_backing(stripe, backing);
        backing
    }

    /// A cache of a process is gone, or all of them; its memory is nobody's.
    pub fn unregister(&mut self, session: SessionId, kv: Option<KvId>, ledger: &mut Ledger) {
        self.drop_ranks(|rank| {
            let goes = rank.session == session && kv.is_none_or(|kv| kv == rank.kv);
            if goes {
                ledger.shift(session, Place::Offline, Place::Free, rank.held());
                // Whatever it was moving is void.
                for place in [Place::Quarantined, Place::InFlight] {
                    let moving = ledger.account(session).at(place);
                    ledger.shift(session, place, Place::Free, moving);
                }
            }
            goes
        });
    }

    /// A process is gone with all its caches; its account is closed with it.
    pub fn gone(&mut self, session: SessionId) {
        self.machine.gone(session);
        self.drop_ranks(|rank| rank.session == session);
    }

    pub fn gpus(&self) -> GpuSet {
        self.ranks.iter().map(|rank| rank.gpu).collect()
    }

    /// Whether anything may be taken from it now.
    pub fn is_open(&self) -> bool {
        self.machine.is_fit() && self.gives()
    }

    /// Whether anything may be taken from it at all.
    pub fn gives(&self) -> bool {
        !self.ranks.is_empty() && self.ranks.iter().all(|r| r.reclaimable)
    }

    /// Whether a process was told to change its mappings, and has not said that it ended.
    pub fn moves(&self, session: SessionId) -> bool {
        self.machine.phase == Phase::Moving && self.machine.waiting().contains(&session)
    }

    /// The handles of each process' cache on a GPU, by where they stand.
    pub fn handles(&self, gpu: GpuId) -> impl Iterator<Item = (SessionId, HandlesView)> + '_ {
        let ranks = self.ranks.iter().filter(move |rank| rank.gpu == gpu);
        ranks.map(|rank| (rank.session, self.handles_of(rank)))
    }

    fn handles_of(&self, rank: &Rank) -> HandlesView {
        let layout = self.holders.layout();
        let count = |lacks: bool, stripes: &mut dyn Iterator<Item = StripeId>| {
            let has = |stripe: &StripeId| rank.lacks.get(stripe.0 as usize) == Some(&lacks);
            let handles = stripes.filter(has).map(|stripe| layout.handles(stripe));
            handles.fold(0u32, u32::saturating_add)
        };
        let all = |lacks| count(lacks, &mut (0u32..).take(layout.len()).map(StripeId));
        let reclaims = self.machine.direction == Some(Direction::Reclaim);
        let moving = |lacks| {
            let moves = self.moves(rank.session) && reclaims != lacks;
            let stripes = self.machine.stripes.iter().filter(|_| moves);
            count(lacks, &mut stripes.copied())
        };
        let (quarantined, in_flight) = (moving(false), moving(true));
        HandlesView {
            held: Handles(all(false).saturating_sub(quarantined)),
            quarantined: Handles(quarantined),
            in_flight: Handles(in_flight),
            taken: Handles(all(true).saturating_sub(in_flight)),
        }
    }

    /// Bytes on one GPU that a reclaim under way will free.
    pub fn coming(&self, gpu: GpuId) -> Bytes {
        let reclaims = self.machine.phase != Phase::Idle
            && self.machine.direction == Some(Direction::Reclaim)
            && !self.machine.overdue
            && !self.machine.cancelled;
        if !reclaims || !self.gpus().contains(gpu) {
            return Bytes::ZERO;
        }
        self.planned()
    }

    /// What each process believes its cache has on a GPU, taken from it or not.
    pub fn claims(&self, gpu: GpuId) -> impl Iterator<Item = (SessionId, Bytes)> + '_ {
        let ranks = self.ranks.iter().filter(move |rank| rank.gpu == gpu);
        ranks.map(|rank| (rank.session, rank.claimed))
    }

    /// What is never taken from its caches on a GPU.
    pub fn fixed(&self, gpu: GpuId) -> Bytes {
        let open = self.ranks.iter().all(|rank| rank.reclaimable);
        let ranks = self.ranks.iter().filter(|rank| rank.gpu == gpu);
        let fixed = ranks.map(|rank| match open {
            true => rank.fixed,
            false => rank.held(),
        });
        fixed.sum()
    }

    /// Its processes on a GPU.
    pub fn ranks_on(&self, gpu: GpuId) -> u64 {
        self.ranks.iter().filter(|rank| rank.gpu == gpu).count() as u64
    }

    /// What is to be taken from it on a GPU and to be given to it, and does not move yet.
    pub fn begun_with(&self, gpu: GpuId) -> (Bytes, Bytes) {
        let waits = matches!(self.machine.phase, Phase::Checking | Phase::Disabling);
        if !waits || self.machine.cancelled {
            return (Bytes::ZERO, Bytes::ZERO);
        }
        let bytes = self.planned().times(self.ranks_on(gpu));
        match self.machine.direction {
            Some(Direction::Reclaim) => (bytes, Bytes::ZERO),
            _ => (Bytes::ZERO, bytes),
        }
    }

    /// Whether its engine withholds what was taken, so that it can be given back.
    pub fn heeds(&self) -> bool {
        self.withheld >= self.losses.soonest
    }

    fn planned(&self) -> Bytes {
        let stripes = self.machine.stripes.iter();
        stripes.map(|s| self.holders.layout().bytes(*s)).sum()
    }

    /// Stripes to restore, of which the engine knows that they are lost: at most `room` bytes, and
    /// no more than one beyond `batch`.
    pub fn restorable(&self, room: Bytes, batch: Bytes) -> Vec<StripeId> {
        // Asked at every step while the job is disabled, and mostly in vain.
        if room.is_zero() || self.holders.is_whole() || self.withheld < self.losses.soonest {
            return Vec::new();
        }
        let (layout, mut room, mut chosen) = (self.holders.layout(), room, Bytes::ZERO);
        (0u32..)
            .map(StripeId)
            .zip(&self.losses.lost)
            .filter(|(stripe, lost)| {
                self.holders.backing(*stripe) == Backing::Taken && **lost <= self.withheld
            })
            .map(|(stripe, _)| stripe)
            .take_while(|stripe| {
                let bytes = layout.bytes(*stripe);
                let fits = bytes <= room && chosen < batch;
                (room, chosen) = (room.minus(bytes), chosen.plus(bytes));
                fits
            })
            .collect()
    }

    /// Its channels are disabled: memory begins to move.
    pub fn start_moving(&mut self, ledgers: &mut [Ledger]) {
        let layout = self.holders.layout().clone();
        let mut stripes = core::mem::take(&mut self.machine.stripes);
        let reclaims = self.machine.direction == Some(Direction::Reclaim);
        if reclaims {
            for rank in &self.ranks {
                let Some(ledger) = ledgers.get_mut(rank.gpu.index()) else {
                    continue;
                };
                for stripe in stripes.iter().filter(|stripe| !rank.lacks(**stripe)) {
                    let bytes = layout.bytes(*stripe);
                    ledger.shift(rank.session, Place::Offline, Place::Quarantined, bytes);
                }
            }
        } else {
            stripes.retain(|stripe| {
                let lacks = self.ranks.iter().any(|rank| rank.lacks(*stripe));
                lacks && self.promise(*stripe, layout.bytes(*stripe), ledgers)
            });
        }
        self.machine.stripes = stripes;
        if reclaims {
            for (nth, pick) in (0u32..).zip(&self.picks) {
                self.holders.set_backing(pick.stripe, Backing::Taken);
                self.holders.hit(pick.stripe);
                if self.choices.len() == KEPT {
                    self.choices.pop_front();
                }
                self.choices.push_back(Choice {
                    reclaim: self.machine.id,
                    at: self.begun,
                    nth,
                    pick: *pick,
                });
            }
        }
    }

    /// Promises a stripe to every rank that lacks it, or to none: what was free when it was chosen may
    /// have been promised to online since.
    fn promise(&self, stripe: StripeId, bytes: Bytes, ledgers: &mut [Ledger]) -> bool {
        let lacking = || self.ranks.iter().filter(|rank| rank.lacks(stripe));
        let fits = self.gpus().iter().all(|gpu| {
            let here = lacking().filter(|rank| rank.gpu == gpu).count() as u64;
            let free = ledgers.get(gpu.index()).map_or(Bytes::ZERO, Ledger::free);
            bytes.times(here) <= free
        });
        for rank in lacking().filter(|_| fits) {
            if let Some(ledger) = ledgers.get_mut(rank.gpu.index()) {
                ledger.shift(rank.session, Place::Free, Place::InFlight, bytes);
            }
        }
        fits
    }

    /// One process said what it did, once and for all.
    pub fn moved(
        &mut self,
        session: SessionId,
        stripes: &[StripeId],
        log: LogSeq,
        ledgers: &mut [Ledger],
    ) {
        let Self {
            ranks,
            machine,
            holders,
            losses: Losses { lacking, lost, .. },
            ..
        } = self;
        let Some(direction) = machine.direction else {
            return;
        };
        for rank in ranks.iter_mut().filter(|rank| rank.session == session) {
            let Some(ledger) = ledgers.get_mut(rank.gpu.index()) else {
                continue;
            };
            for stripe in &machine.stripes {
                let (bytes, done) = (holders.layout().bytes(*stripe), stripes.contains(stripe));
                let lacked = rank.lacks(*stripe);
                match (direction, lacked, done) {
                    (Direction::Reclaim, false, true) => {
                        ledger.shift(session, Place::Quarantined, Place::Free, bytes);
                        rank.set_lacks((*stripe, bytes), true, lacking);
                        if let Some(lost) = lost.get_mut(stripe.0 as usize) {
                            *lost = log.max(*lost);
                        }
                    }
                    (Direction::Reclaim, false, false) => {
                        ledger.shift(session, Place::Quarantined, Place::Offline, bytes);
                    }
                    (Direction::Restore, true, true) => {
                        ledger.shift(session, Place::InFlight, Place::Offline, bytes);
                        rank.set_lacks((*stripe, bytes), false, lacking);
                    }
                    (Direction::Restore, true, false) => {
                        ledger.shift(session, Place::InFlight, Place::Free, bytes);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Everybody answered or is gone.
    pub fn finish(&mut self, now: Instant, out: &mut Vec<Effect>) {
        let layout = self.holders.layout().clone();
        let (mut handles, mut bytes) = (0u32, Bytes::ZERO);
        for stripe in core::mem::take(&mut self.machine.stripes) {
            let gone = self.settle_backing(stripe) == Backing::Taken;
            let reclaims = self.machine.direction == Some(Direction::Reclaim);
            if gone == reclaims {
                handles = handles.saturating_add(layout.handles(stripe));
                bytes = bytes.plus(layout.bytes(stripe));
                if reclaims {
                    self.taken.blocks_lost += layout.blocks(stripe);
                }
            }
        }
        let job = self.job;
        match self.machine.direction {
            Some(Direction::Reclaim) => {
                let tokens = self.picks.iter().map(|pick| pick.extra.0).sum();
                self.taken.reclaims += 1;
                self.cost.paid = self
                    .cost
                    .paid
                    .saturating_add(core::mem::take(&mut self.cost.price));
                self.taken.tokens = Tokens(self.taken.tokens.0.saturating_add(tokens));
                out.push(Effect::Emit(Report::Reclaimed {
                    job,
                    reclaim: self.machine.id,
                    handles: Handles(handles),
                    bytes,
                    tokens: Tokens(tokens),
                    took: now.since(self.begun),
                }));
            }
            Some(Direction::Restore) => {
                self.restored_at = Some(now);
                out.push(Effect::Emit(Report::Restored { job, bytes }));
            }
            None => {}
        }
        self.picks.clear();
        self.note_soonest();
    }
}

impl Rank {
    /// What stands behind it.
    fn held(&self) -> Bytes {
        Bytes(u64::try_from(self.backed).unwrap_or(u64::MAX)).plus(self.fixed)
    }

    /// What [`Self::backed`] is, stripe by stripe.
    fn counted(&self, layout: &Layout) -> u128 {
        let stripes = (0u32..).map(StripeId).zip(&self.lacks);
        let backed = stripes.filter(|(_, lacks)| !**lacks);
        backed
            .map(|(stripe, _)| u128::from(layout.bytes(stripe).0))
            .sum()
    }

    /// What stood behind it at its birth.
    fn claims(&self, layout: &Layout) -> Bytes {
        let stripes = (0u32..).take(self.lacks.len());
        stripes
            .map(|nth| layout.bytes(StripeId(nth)))
            .sum::<Bytes>()
            .plus(self.fixed)
    }

    fn lacks(&self, stripe: StripeId) -> bool {
        self.lacks.get(stripe.0 as usize).copied().unwrap_or(false)
    }

    /// It was otherwise before.
    fn set_lacks(&mut self, (stripe, bytes): (StripeId, Bytes), lacks: bool, lacking: &mut [u32]) {
        let (nth, bytes) = (stripe.0 as usize, u128::from(bytes.0));
        if let (Some(known), Some(ranks)) = (self.lacks.get_mut(nth), lacking.get_mut(nth)) {
            if lacks {
                (*ranks, self.backed) = (*ranks + 1, self.backed - bytes);
            } else {
                (*ranks, self.backed) = (*ranks - 1, self.backed + bytes);
            }
            *known = lacks;
        }
    }
}
