//! Who gets which memory: what online demands, and which offline jobs it is taken from.
//!
//! ```text
//!   use, demands                       ledger   who holds each byte of a GPU
//!        | MemoryEvent                 reserve  online's reservation: what it wants mapped
//!        v                             select   which stripes cost least
//!   Node::step --> Memory              reclaim  one job: hold, disable, move, release
//!        |                             books    its ranks, and what was taken from it
//!        v Effect
//!   hold, prepare, move, map, answer
//! ```
//!
//! Free memory meets a demand at once. Otherwise stripes are taken from the job that loses the fewest tokens by it, or,
//! if several jobs share the GPU, from the one that [`weigh`] names. A demand for a cache waits no longer than the
//! deadline of one reclaim. An allocation may wait through several, and no demand waits for a particular job. Memory
//! that is free and that nobody wants is restored: to a job whose channels are disabled anyway, or, at most once per
//! interval, to a job that runs while online is idle.
//!
//! Invariants: only free memory is promised, and the ledger keeps all sums. Like the gate, all of this is settled from
//! the current state and `now`, after every event.

mod books;
mod hear;
mod lists;
mod online;
mod room;
mod rooms;
mod views;
mod weigh;

use crate::budget::Short;
use crate::config::{Means, Sharing};
use crate::effect::{Effect, Granted, Report};
use crate::ids::{Bytes, GpuId, GpuSet, ReclaimId, SessionId, StripeId};
use crate::job::Job;
use crate::ledger::{Ledger, Place};
use crate::reclaim::{Direction, Phase, Turn};
use crate::select::{Greedy, Pick, Select};
use crate::time::Instant;
pub use crate::words::choice::Choice;
pub use crate::words::memory::MemoryEvent;
use books::Books;
use core::time::Duration;
pub use lists::LISTS;
use lists::Lists;
use online::{Ask, Elastic};
use room::Room;

/// An online allocation waits for so long at least, through more than one reclaim: an engine that is refused its memory
/// ends, where one whose cache does not grow goes on. The library waits for 500 ms, and longer for more memory as here.
const ALLOCATION: Duration = Duration::from_millis(450);
/// So many bytes more wait a nanosecond longer. Reclaims of 256 MiB take 20 ms and more, which is 12 bytes a nanosecond
/// at best.
const BYTES_A_NANOSECOND: u64 = 4;

/// How long an online allocation waits.
const fn allocation(bytes: Bytes) -> Duration {
    ALLOCATION.saturating_add(Duration::from_nanos(bytes.0 / BYTES_A_NANOSECOND))
}

/// The memory of a node.
#[derive(Debug)]
pub(crate) struct Memory {
    sharing: Sharing,
    ledgers: Vec<Ledger>,
    elastic: Vec<Elastic>,
    counted: Vec<(SessionId, GpuId, Bytes)>,
    asks: Vec<Ask>,
    rooms: Vec<Room>,
    jobs: Vec<Books>,
    lists: Lists,
    last: ReclaimId,
    /// Offline jobs are not compared before, and are compared then at the latest.
    looked: Option<Instant>,
    looks_at: Option<Instant>,
    rule: Greedy,
}

impl Clone for Memory {
    fn clone(&self) -> Self {
        Self {
            sharing: self.sharing,
            ledgers: self.ledgers.clone(),
            elastic: self.elastic.clone(),
            counted: self.counted.clone(),
            asks: self.asks.clone(),
            rooms: self.rooms.clone(),
            jobs: self.jobs.clone(),
            lists: self.lists.clone(),
            last: self.last,
            looked: self.looked,
            looks_at: self.looks_at,
            // Only holds memory between selections.
            rule: Greedy::default(),
        }
    }
}

impl Memory {
    pub fn new(sharing: Sharing, gpus: usize) -> Self {
        Self {
            sharing,
            ledgers: vec![Ledger::new(Bytes::ZERO); gpus],
            elastic: Vec::new(),
            counted: Vec::new(),
            asks: Vec::new(),
            rooms: Vec::new(),
            jobs: Vec::new(),
            lists: Lists::default(),
            last: ReclaimId(0),
            looked: None,
            looks_at: None,
            rule: Greedy::default(),
        }
    }

    /// Goes on by other rules.
    pub fn configure(&mut self, sharing: Sharing, now: Instant) {
        self.sharing = sharing;
        for elastic in &mut self.elastic {
            elastic.reserve.configure(sharing.reserving, now);
        }
    }

    /// How long online did without memory that it demanded on a GPU, of each shortage that is over, once.
    pub fn shortages(&mut self, gpu: GpuId, busy: bool, now: Instant) -> Option<Short> {
        let mut longest: Option<Short> = None;
        for elastic in self.elastic.iter_mut().filter(|elastic| elastic.gpu == gpu) {
            let waited = elastic.was_short(!busy, &self.sharing, now);
            for short in elastic.waited.take().into_iter().chain(waited) {
                longest = Some(longest.map_or(short, |known| known.longer(short)));
            }
        }
        longest
    }

    /// Shortages may come this often on a GPU.
    pub fn steer(&mut self, gpu: GpuId, every: Duration, now: Instant) {
        for elastic in self.elastic.iter_mut().filter(|elastic| elastic.gpu == gpu) {
            elastic.reserve.steer(every, now);
        }
    }

    /// Promises what is free, begins reclaims for the rest, and gives back what nobody wants. A node
    /// that has just `started` does neither: who holds what is told as processes attach.
    pub fn plan(
        &mut self,
        started: bool,
        jobs: &[Job],
        means: Means,
        busy: GpuSet,
        now: Instant,
        out: &mut Vec<Effect>,
    ) {
        for elastic in &mut self.elastic {
            elastic.settle(&self.sharing, now, out);
        }
        for books in &mut self.jobs {
            if let Some(job) = jobs.iter().find(|job| job.id == books.job) {
                books.machine.look(job.sight(means), now);
            }
        }
        let lapsed = |ask: &Ask| ask.promised && (now >= ask.until || ask.bytes.is_zero());
        self.withdraw(lapsed);
        self.lapse_rooms(now);
        for gpu in 0..self.ledgers.len() {
            let Ok(gpu) = u8::try_from(gpu).map(GpuId) else {
                continue;
            };
            if started {
                self.deny(gpu, now, out);
                continue;
            }
            if self.ledgers[gpu.index()].pool().is_zero() {
                self.leave_alone(gpu, now, out);
            } else {
                self.promise(gpu, now, out);
            }
            let lacking = self.lacking(gpu, now);
            let coming: Bytes = self.jobs.iter().map(|books| books.coming(gpu)).sum();
            let missing = lacking.minus(self.ledgers[gpu.index()].free().plus(coming));
            if missing.is_zero() {
            } else if self.contested(gpu) {
                self.take_by_weight(gpu, missing, jobs, means, now);
            } else {
                self.take_from_somebody(gpu, missing, jobs, means, now);
            }
            self.deny(gpu, now, out);
            self.make_room(gpu, (jobs, means), now, out);
        }
        self.cancel(now, out);
        if !started {
            self.even_out(jobs, means, now);
            self.give_back(jobs, means, busy, now);
        }
    }

    /// Nothing of that GPU is shared: who asks may take what the device has. It is denied while the device has had no
    /// memory for it, so that somebody hears of that.
    fn leave_alone(&mut self, gpu: GpuId, now: Instant, out: &mut Vec<Effect>) {
        let (elastic, asks) = (&mut self.elastic, &mut self.asks);
        for elastic in elastic.iter_mut().filter(|elastic| elastic.gpu == gpu) {
            elastic.takes_all(now, out);
        }
        for ask in asks.extract_if(.., |ask| ask.gpu == gpu) {
            if ask.kv.is_none() {
                // The driver has refused it, and nobody is asked to give anything up.
                out.push(ask.answer(Granted::No));
                continue;
            }
            let own = |e: &&Elastic| (e.session, Some(e.kv)) == (ask.session, ask.kv);
            if elastic.iter().find(own).is_none_or(Elastic::has_all) {
                out.push(ask.answer(Granted::Yes));
            } else {
                deny_ask(&ask, out);
            }
        }
    }

    fn promise(&mut self, gpu: GpuId, now: Instant, out: &mut Vec<Effect>) {
        let ledger = &mut self.ledgers[gpu.index()];
        // What those who asked before wait for.
        let mut before = Bytes::ZERO;
        for ask in self
            .asks
            .iter_mut()
            .filter(|ask| ask.gpu == gpu && !ask.promised)
        {
            let known = |e: &&mut Elastic| e.session == ask.session && Some(e.kv) == ask.kv;
            let elastic = self.elastic.iter_mut().find(known);
            if ledger.free() < ask.bytes {
                if let Some(elastic) = elastic {
                    // It maps what there is while the rest is still being taken.
                    let spare = ledger.free().minus(before);
                    let given = elastic.promise(spare.min(ask.bytes), ledger, out);
                    if !given.is_zero() {
                        elastic.keep(&self.sharing, now);
                        ask.bytes = ask.bytes.minus(given);
                    }
                }
                before = before.plus(ask.bytes);
                continue;
            }
            match (ask.kv, elastic) {
                (Some(_), Some(elastic)) => {
                    elastic.promise(ask.bytes, ledger, out);
                    elastic.keep(&self.sharing, now);
                    ask.bytes = Bytes::ZERO;
                }
                (Some(_), None) => ask.bytes = Bytes::ZERO,
                (None, _) => {
                    ledger.shift(ask.session, Place::Free, Place::InFlight, ask.bytes);
                }
            }
            ask.promised = true;
            ask.until = now.after(self.sharing.promise_lasts);
            out.push(ask.answer(Granted::Yes));
        }
        self.asks
            .retain(|ask| !(ask.promised && ask.bytes.is_zero()));
        // Demands come first: they wait, and a reservation does not.
        let waits: Bytes = self
            .asks
            .iter()
            .filter(|a| a.gpu == gpu && !a.promised)
            .map(|a| a.bytes)
            .sum();
        for elastic in self.elastic.iter_mut().filter(|elastic| elastic.gpu == gpu) {
            let spare = ledger.free().minus(waits);
            elastic.promise(elastic.lacks(now).min(spare), ledger, out);
        }
    }

    /// What online wants on a GPU and was not promised. A cache's reservation counts what it asked for.
    fn lacking(&self, gpu: GpuId, now: Instant) -> Bytes {
        if self
            .ledger(gpu)
            .is_none_or(|ledger| ledger.pool().is_zero())
        {
            return Bytes::ZERO;
        }
        let asks = self
            .asks
            .iter()
            .filter(|ask| ask.gpu == gpu && !ask.promised);
        let elastic = self.elastic.iter().filter(|elastic| elastic.gpu == gpu);
        let beyond = elastic.map(|elastic| {
            let own = |ask: &&Ask| (ask.session, ask.kv) == (elastic.session, Some(elastic.kv));
            let asked = asks.clone().find(own).map_or(Bytes::ZERO, |ask| ask.bytes);
            elastic.lacks(now).minus(asked)
        });
        asks.clone().map(|ask| ask.bytes).chain(beyond).sum()
    }

    /// Begins with the job that loses least by it, one batch at a time; of those that have less than
    /// that, the one that has most.
    fn take_from_somebody(
        &mut self,
        gpu: GpuId,
        missing: Bytes,
        jobs: &[Job],
        means: Means,
        now: Instant,
    ) {
        let mut missing = missing;
        while !missing.is_zero() {
            let batch = missing.min(self.sharing.batch);
            let mut best: Option<(Bytes, u64, usize, Vec<Pick>)> = None;
            for (place, books) in self.jobs.iter().enumerate() {
                if !books.gpus().contains(gpu) || !Self::reachable(books, jobs, means) {
                    continue;
                }
                let mut picked = Vec::new();
                let selected = self.rule.select(&books.holders, batch, &mut picked);
                let short = batch.minus(selected.bytes);
                let better = best
                    .as_ref()
                    .is_none_or(|known| (short, selected.tokens.0) < (known.0, known.1));
                if better && !picked.is_empty() {
                    best = Some((short, selected.tokens.0, place, picked));
                }
            }
            let Some((short, _, place, picked)) = best else {
                return;
            };
            missing = missing.minus(batch.minus(short));
            let stripes = picked.iter().map(|pick| pick.stripe).collect();
            self.jobs[place].picks = picked;
            self.begin(place, Direction::Reclaim, stripes, jobs, now);
            if short.is_zero() {
                // The rest is chosen when this is done: who else has it would lose more.
                return;
            }
        }
    }

    fn begin(
        &mut self,
        place: usize,
        direction: Direction,
        stripes: Vec<StripeId>,
        jobs: &[Job],
        now: Instant,
    ) {
        self.last = ReclaimId(self.last.0 + 1);
        let books = &mut self.jobs[place];
        books.begun = now;
        books.evens = false;
        let job = jobs.iter().find(|job| job.id == books.job);
        let sessions = job.into_iter().flat_map(Job::sessions);
        let times = (now, self.sharing.reclaim_deadline);
        books
            .machine
            .begin(self.last, direction, stripes, sessions, times);
    }

    fn deny(&mut self, gpu: GpuId, now: Instant, out: &mut Vec<Effect>) {
        let hope = self.jobs.iter().any(|books| !books.coming(gpu).is_zero());
        let later = self
            .caches(gpu)
            .any(|books| books.gives() && books.holders.candidates().next().is_some());
        self.asks.retain(|ask| {
            let hope = hope || (ask.kv.is_none() && later);
            let stays = ask.gpu != gpu || ask.promised || (hope && now < ask.until);
            if !stays {
                deny_ask(ask, out);
            }
            stays
        });
    }

    /// A reclaim that nobody waits for any more ends where it stands.
    fn cancel(&mut self, now: Instant, out: &mut Vec<Effect>) {
        for place in 0..self.jobs.len() {
            let books = &self.jobs[place];
            let reclaims = books.machine.direction == Some(Direction::Reclaim);
            // One whose time is over ends for that: the demand it was for is over with it.
            let late = books.machine.phase < Phase::Moving && now >= books.machine.until;
            let over = books.machine.phase == Phase::Idle
                || books.machine.cancelled
                || late
                || books.evens;
            if !reclaims
                || over
                || books
                    .gpus()
                    .iter()
                    .any(|gpu| !self.lacking(gpu, now).is_zero())
            {
                continue;
            }
            let machine = &mut self.jobs[place].machine;
            machine.cancel();
            if machine.phase == Phase::Moving && machine.sent {
                let reclaim = machine.id;
                let cancels = machine.waiting().iter();
                out.extend(cancels.map(|session| Effect::CancelMove {
                    reclaim,
                    session: *session,
                }));
            }
        }
    }

    fn give_back(&mut self, jobs: &[Job], means: Means, busy: GpuSet, now: Instant) {
        for place in 0..self.jobs.len() {
            let books = &self.jobs[place];
            let gpus = books.gpus();
            let Some(job) = jobs.iter().find(|job| job.id == books.job) else {
                continue;
            };
            let sight = job.sight(means);
            let early = self.restores_at(books).is_some_and(|at| now < at);
            if !books.machine.is_fit() || (early && !sight.stopped) {
                continue;
            }
            let quiet = sight.runs && gpus.intersection(busy).is_empty();
            let wanted = gpus.iter().any(|gpu| !self.lacking(gpu, now).is_zero());
            if wanted || sight.beyond_control || !(sight.stopped || quiet) {
                continue;
            }
            // Every rank gets as much, and two may be on one GPU.
            let room = gpus.iter().map(|gpu| {
                let ranks = books.ranks.iter().filter(|rank| rank.gpu == gpu).count() as u64;
                Bytes(self.spare(place, gpu, jobs, means, now).0 / ranks.max(1))
            });
            let room = room.min().unwrap_or_default();
            let stripes = books.restorable(room, self.sharing.batch);
            if !stripes.is_empty() {
                self.begin(place, Direction::Restore, stripes, jobs, now);
                self.jobs[place].restored_at = Some(now);
            }
        }
    }

    fn restores_at(&self, books: &Books) -> Option<Instant> {
        books
            .restored_at
            .map(|at| at.after(self.sharing.restore_interval))
    }

    /// What a reclaim keeps the job from.
    pub fn set_hold(&self, job: &mut Job) {
        let books = self.jobs.iter().find(|books| books.job == job.id);
        job.hold = books.map(|books| books.machine.hold()).unwrap_or_default();
    }

    /// Goes on with every reclaim as far as it goes; jobs have settled under their holds. Says
    /// whether a hold changed.
    pub fn advance(
        &mut self,
        jobs: &[Job],
        means: Means,
        now: Instant,
        out: &mut Vec<Effect>,
    ) -> bool {
        let mut changed = false;
        for books in &mut self.jobs {
            let Some(job) = jobs.iter().find(|job| job.id == books.job) else {
                continue;
            };
            let ranks: Vec<SessionId> = books.ranks.iter().map(|rank| rank.session).collect();
            let phase = books.machine.phase;
            match books
                .machine
                .advance(job.sight(means), ranks.into_iter(), now)
            {
                Turn::Waits => {}
                Turn::Went => {
                    changed = true;
                    if books.machine.phase == Phase::Moving {
                        books.start_moving(&mut self.ledgers);
                    }
                    if books.machine.stripes.is_empty() {
                        books.machine.give_up();
                    }
                }
                Turn::GivenUp => {
                    changed = true;
                    books.picks.clear();
                    books.cost.price = 0;
                    books.machine.stripes.clear();
                    if !books.machine.is_fit() {
                        let job = books.job;
                        out.push(Effect::Emit(Report::Unreclaimable { job, phase }));
                    }
                }
                Turn::Over => {
                    changed = true;
                    books.finish(now, out);
                }
            }
            // Under its hold only: a job is held before anybody is asked, and frozen before anybody
            // moves.
            if !books.machine.sent && books.machine.hold() == job.hold {
                books.machine.sent = true;
                send(books, out);
            }
        }
        changed
    }

    /// When time alone changes something.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let reclaims = self
            .jobs
            .iter()
            .filter_map(|books| books.machine.deadline());
        let asks = self.asks.iter().map(|ask| ask.until);
        let reserves = self
            .elastic
            .iter()
            .filter_map(|elastic| elastic.reserve.due());
        let restores = self.jobs.iter().filter_map(|books| {
            self.restores_at(books)
                .filter(|_| !books.holders.is_whole())
        });
        let rooms = self.rooms.iter().map(|room| room.until);
        let retries = self.elastic.iter().map(Elastic::retries_at);
        let shrinks = self.elastic.iter().filter_map(Elastic::shrinks_at);
        reclaims
            .chain(asks)
            .chain(reserves)
            .chain(restores)
            .chain(rooms)
            .chain(retries)
            .chain(shrinks)
            .chain(self.looks_at)
            .filter(|at| *at > now)
            .min()
    }
}

/// Answers no, and tells of it.
fn deny_ask(ask: &Ask, out: &mut Vec<Effect>) {
    let Ask {
        session,
        gpu,
        bytes,
        ..
    } = *ask;
    out.push(ask.answer(Granted::No));
    out.push(Effect::Emit(Report::Denied {
        session,
        gpu,
        bytes,
    }));
}

fn send(books: &Books, out: &mut Vec<Effect>) {
    let machine = &books.machine;
    let (reclaim, until) = (machine.id, machine.until);
    match (machine.phase, machine.direction) {
        (Phase::Checking, _) => {
            let sessions = machine.waiting().iter().copied();
            out.extend(sessions.map(|session| Effect::Check {
                reclaim,
                session,
                until: machine.answer_by,
            }));
        }
        (Phase::Moving, Some(direction)) => {
            let moves = books.ranks.iter().map(|rank| Effect::Move {
                reclaim,
                session: rank.session,
                kv: rank.kv,
                direction,
                until,
            });
            out.extend(moves);
        }
        _ => {}
    }
}
