//! Room for an offline job that starts when other jobs hold all memory.
//!
//! ```text
//!   asked --> waits --> promised --> what was allocated is counted, or it lapses
//!               |
//!               +--> denied: nobody has a cache there to pay for it, or it took too long
//! ```
//!
//! An allocation that the driver refuses for lack of memory sends a request and waits. Its job is shown its fair share.
//! As long as the job has less, other jobs have at least as much more than their shares, and that is taken for it.
//! Online comes first: while online lacks anything, nothing is taken for anybody else.
//!
//! If no other job pays, because none has more than its share or the job has more than it is shown, the job's own cache
//! pays: an engine that is refused its workspace ends, and one that loses blocks only computes them again.

use super::Memory;
use super::books::Books;
use super::room::Room;
use super::weigh::{Part, Payers};
use crate::config::Means;
use crate::effect::{Effect, Granted};
use crate::ids::{AskId, Bytes, GpuId, JobId, SessionId};
use crate::job::Job;
use crate::ledger::{Ledger, Place};
use crate::reclaim::Direction;
use crate::select::Select;
use crate::time::Instant;
use core::time::Duration;

/// Half of a large GPU's memory in batches of 256 MiB, each of 20 ms and more, takes some ten seconds. An engine that
/// starts takes minutes.
pub(super) const PATIENCE: Duration = Duration::from_secs(25);
/// A process is counted with more than it sees itself: the pages that stand behind what is taken, and what its driver
/// rounds up. So it may have this part more than it is shown: the 5 % within which each is to have its part.
const SLACK: u64 = 20;
/// Allocations of one process that wait at once: each is a thread of it.
const MOST: usize = 16;

impl Memory {
    /// An offline process asks for room for an allocation.
    pub(super) fn wants_room(
        &mut self,
        (session, job): (SessionId, JobId),
        id: AskId,
        gpu: GpuId,
        bytes: Bytes,
        now: Instant,
    ) {
        self.leaves_room(|known| known.is(session, id));
        let own = self.rooms.iter().filter(|room| room.session == session);
        // Denied when it is looked at.
        let patience = if own.count() < MOST {
            PATIENCE
        } else {
            Duration::ZERO
        };
        self.rooms.push(Room {
            session,
            job,
            id,
            gpu,
            bytes,
            until: now.after(patience),
            promised: false,
        });
    }

    /// These are not waited for any more. What they were promised is free: who allocated has it by what is counted.
    pub(super) fn leaves_room(&mut self, which: impl Fn(&Room) -> bool) {
        let ledgers = &mut self.ledgers;
        self.rooms.retain(|room| {
            let goes = which(room);
            if goes
                && room.promised
                && let Some(ledger) = ledgers.get_mut(room.gpu.index())
            {
                ledger.shift(room.session, Place::InFlight, Place::Free, room.bytes);
            }
            !goes
        });
    }

    /// A process has allocated: what it was promised there is what it has.
    pub(super) fn took_room(&mut self, session: SessionId, gpu: GpuId) {
        self.leaves_room(|room| room.promised && (room.session, room.gpu) == (session, gpu));
    }

    /// What waits for room on a GPU.
    pub(super) fn wanted_rooms(&self, gpu: GpuId) -> Bytes {
        let waits = self
            .rooms
            .iter()
            .filter(|room| room.gpu == gpu && !room.promised);
        waits.map(|room| room.bytes).sum()
    }

    /// Whether a job waits for room there, or was promised it and may not have allocated yet.
    pub(super) fn has_rooms(&self, job: JobId, gpu: GpuId) -> bool {
        let mut own = self.rooms.iter();
        own.any(|room| (room.job, room.gpu) == (job, gpu))
    }

    /// Whether somebody waits for memory of which others have a cache.
    pub(super) fn is_asked_of(&self, gpu: GpuId) -> bool {
        let others =
            |room: &Room| room.gpu == gpu && self.caches(gpu).any(|books| books.job != room.job);
        self.rooms.iter().any(others)
    }

    /// Promises room that is free, takes what is missing from who has too much, and denies what there is no room for.
    pub(super) fn make_room(
        &mut self,
        gpu: GpuId,
        (jobs, means): (&[Job], Means),
        now: Instant,
        out: &mut Vec<Effect>,
    ) {
        let mut before = Bytes::ZERO;
        for at in 0..self.rooms.len() {
            let room = self.rooms[at];
            if room.gpu != gpu || room.promised {
                continue;
            }
            let right = self.has_a_right(&room, jobs);
            if now >= room.until || !(right || self.has_own(&room, jobs)) {
                self.rooms[at].bytes = Bytes::ZERO;
                out.push(room.answer(Granted::No));
                continue;
            }
            if !self.lacking(gpu, now).is_zero() {
                before = before.plus(room.bytes);
                continue;
            }
            let free = self.ledger(gpu).map_or(Bytes::ZERO, Ledger::free);
            if free.minus(before) >= room.bytes {
                let ledger = &mut self.ledgers[gpu.index()];
                ledger.shift(room.session, Place::Free, Place::InFlight, room.bytes);
                let promised = &mut self.rooms[at];
                promised.promised = true;
                promised.until = now.after(self.sharing.promise_lasts);
                out.push(room.answer(Granted::Yes));
                continue;
            }
            before = before.plus(room.bytes);
            let coming: Bytes = self.jobs.iter().map(|books| books.coming(gpu)).sum();
            let mut left = before.minus(free.plus(coming)).min(self.sharing.batch);
            while right
                && !left.is_zero()
                && let Some(bill) = self.bill(gpu, left, Payers::Above, (jobs, means), now)
            {
                left = left.minus(bill.bytes);
                let place = bill.place;
                self.collect(bill, Direction::Reclaim, jobs, now);
                self.jobs[place].evens = true;
            }
            if !left.is_zero() {
                self.takes_its_own(&room, left, (jobs, means), now);
            }
        }
        self.rooms.retain(|room| !room.bytes.is_zero());
    }

    /// Whether what its own job can give up is enough for it.
    fn has_own(&self, room: &Room, jobs: &[Job]) -> bool {
        let Some(ledger) = self.ledger(room.gpu) else {
            return false;
        };
        let sessions = jobs.iter().filter(|job| job.id == room.job);
        let sessions = sessions.flat_map(Job::sessions);
        let excess: Bytes = sessions.map(|session| ledger.excess_of(session)).sum();
        self.own(room).is_some_and(|place| {
            let books = &self.jobs[place];
            let layout = books.holders.layout();
            let stripes = books.holders.candidates();
            let held: Bytes = stripes.map(|stripe| layout.bytes(stripe)).sum();
            let held = held.times(books.ranks_on(room.gpu));
            let there = ledger.free().plus(books.coming(room.gpu)).plus(held);
            books.gives() && there >= room.bytes.plus(excess)
        })
    }

    /// The books of its own job's cache, if there is one on that GPU.
    fn own(&self, room: &Room) -> Option<usize> {
        let own = |books: &Books| books.job == room.job && books.gpus().contains(room.gpu);
        self.jobs.iter().position(own)
    }

    /// Takes `left` for an allocation from the cache of its own job.
    fn takes_its_own(
        &mut self,
        room: &Room,
        left: Bytes,
        (jobs, means): (&[Job], Means),
        now: Instant,
    ) {
        let Some(place) = self.own(room) else {
            return;
        };
        let books = &mut self.jobs[place];
        if !Self::reachable(books, jobs, means) {
            return;
        }
        let mut picked = Vec::new();
        self.rule.select(&books.holders, left, &mut picked);
        if picked.is_empty() {
            return;
        }
        let stripes = picked.iter().map(|pick| pick.stripe).collect();
        books.picks = picked;
        self.begin(place, Direction::Reclaim, stripes, jobs, now);
        self.jobs[place].evens = true;
    }

    /// What others give up for a process of a job that has no cache there yet: what they have too much beside it, if it
    /// wants all that it is shown.
    pub fn yields(&self, session: SessionId, gpu: GpuId, jobs: &[Job], now: Instant) -> Bytes {
        let Some(job) = jobs.iter().find(|job| job.has(session)) else {
            return Bytes::ZERO;
        };
        if self.caches(gpu).any(|books| books.job == job.id) {
            return Bytes::ZERO;
        }
        let parts = self.parts_beside(gpu, job.id, jobs, now);
        let over = |part: &Part| {
            let books = self.caches(gpu).find(|books| books.job == part.job)?;
            Some(part.over().round_down(books.stripe))
        };
        parts.iter().filter_map(over).sum()
    }

    /// What offline caches on a GPU give up for what online allocates, in one reclaim after another: all that is not fixed,
    /// less what online waits for already.
    pub fn yields_to_online(
        &self,
        gpu: GpuId,
        (jobs, means): (&[Job], Means),
        now: Instant,
    ) -> Bytes {
        let Some(ledger) = self.ledger(gpu) else {
            return Bytes::ZERO;
        };
        let within_reach = |books: &&Books| {
            let job = jobs.iter().find(|job| job.id == books.job);
            books.gives() && job.is_some_and(|job| !job.sight(means).beyond_control)
        };
        let counted = |session: SessionId| {
            let own = self.counted.iter().find(|c| (c.0, c.1) == (session, gpu));
            own.map_or(Bytes::ZERO, |counted| counted.2)
        };
        let given = self.caches(gpu).filter(within_reach).map(|books| {
            let ranks = books.ranks.iter().filter(|rank| rank.gpu == gpu);
            let held = ranks.map(|rank| {
                let held = ledger.account(rank.session).at(Place::Offline);
                held.minus(counted(rank.session))
            });
            held.sum::<Bytes>().minus(books.fixed(gpu))
        });
        given.sum::<Bytes>().minus(self.lacking(gpu, now))
    }

    /// Whether others have too much as long as this has not been allocated.
    fn has_a_right(&self, room: &Room, jobs: &[Job]) -> bool {
        let shared = self.caches(room.gpu).any(|books| books.job != room.job);
        let Some(job) = jobs.iter().find(|job| job.id == room.job && shared) else {
            return false;
        };
        let Some(ledger) = self.ledger(room.gpu) else {
            return false;
        };
        let held = job.sessions().map(|session| {
            let account = ledger.account(session);
            let has = account.offline.plus(account.in_flight);
            has.plus(ledger.excess_of(session))
        });
        let held: Bytes = held.sum();
        // What is kept for jobs to come is no less room for it.
        let shown = self.shown(job, room.gpu, jobs, 1);
        held.plus(room.bytes) <= shown.plus(Bytes(shown.0 / SLACK))
    }

    /// What was promised and not allocated in time is free again.
    pub(super) fn lapse_rooms(&mut self, now: Instant) {
        self.leaves_room(|room| room.promised && now >= room.until);
    }
}
