//! The fair share of each offline job in a GPU's memory, and which of several jobs pays when memory is wanted.
//!
//! ```text
//!   fair share = level x W, but no less than what is never taken from it, and no more than it was born with;
//!                at the level at which all of them together are what online leaves
//! ```
//!
//! W is the weight of its user, divided among that user's jobs there. So what one job does not want goes to the others,
//! by weight. (The code calls the fair share `deserves`.)
//!
//! * Online's memory is taken from jobs that have at least a stripe more than their fair share, and from each at most
//!   the excess. Only if no such job can give any, a job below its share pays. Of several, the job pays that will then
//!   have lost the fewest tokens over its weight. So nobody pays twice before the others have paid once, unless that
//!   costs less. A job that could not pay for long, because it had no more than its share, owes for that time at most
//!   the most expensive reclaim of either job.
//! * Free memory is kept for jobs below their fair share, the job that lacks most over its weight first.
//! * If no job is below its share, nothing moves. If one is, for example because it has just started, jobs above their
//!   shares give memory up, one batch at a time, at most once per interval while they run.
//!
//! A job none of whose processes counts has no share beside others: all that it holds is taken first, and what it
//! reports takes nothing from theirs. The job itself is shown what it would have if it counted.
//!
//! A job alone on its GPUs is not weighed. Its weight changes no decision.

use super::Memory;
use super::books::Books;
use super::online::Elastic;
use crate::config::Means;
use crate::fair::Terms;
use crate::ids::{Bytes, GpuId, JobId, SessionId, UserId};
use crate::job::Job;
use crate::ledger::Ledger;
use crate::reclaim::Direction;
use crate::select::{Pick, Select};
use crate::time::Instant;
use crate::view::Weighed;

/// A user of weight 1 with one job has so much: to divide by 1,000 jobs keeps ten bits.
const UNIT: u64 = 1 << 20;
/// Nothing is taken from one offline job for another before both are off by this part of what they deserve: half of the
/// 5 % within which each is to have its part.
const SLACK: u64 = 40;

/// One job on one GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub job: JobId,
    pub weight: u64,
    /// Of it nothing is taken.
    fixed: Bytes,
    /// It never has more.
    claim: Bytes,
    /// It has this, when what was begun is done.
    pub held: Bytes,
    pub deserves: Bytes,
    /// It is one of those among whom memory is divided.
    counts: bool,
    settled: bool,
}

impl Part {
    /// What it has more than it deserves.
    pub(super) fn over(&self) -> Bytes {
        self.held.minus(self.deserves)
    }

    fn short(&self) -> Bytes {
        self.deserves.minus(self.held)
    }

    /// So much less than it deserves is as good as that.
    fn slack(&self, stripe: Bytes) -> Bytes {
        Bytes(self.deserves.0 / SLACK).max(stripe)
    }

    /// Who lacks most over its weight is first.
    fn lacks_more(&self, than: &Self) -> bool {
        let over = |part: &Self, weight: u64| u128::from(part.short().0) * u128::from(weight);
        over(self, than.weight) > over(than, self.weight)
    }
}

/// Divides `room` among `parts` by weight within their bounds, as CSS resolves flexible lengths: what would be out of
/// bounds is settled on the side that weighs more, and the rest is divided again.
fn level(parts: &mut [Part], room: Bytes) {
    let mut left = u128::from(room.0);
    for part in parts.iter_mut().filter(|part| !part.counts) {
        (part.deserves, part.settled) = (part.fixed, true);
        left = left.saturating_sub(u128::from(part.fixed.0));
    }
    loop {
        let open = parts.iter().filter(|part| !part.settled);
        let weights: u128 = open.map(|part| u128::from(part.weight)).sum();
        if weights == 0 {
            return;
        }
        let (mut more, mut less) = (0u128, 0u128);
        let fair = |part: &Part| {
            let fair = left * u128::from(part.weight) / weights;
            Bytes(u64::try_from(fair).unwrap_or(u64::MAX))
        };
        for part in parts.iter_mut().filter(|part| !part.settled) {
            let fair = fair(part);
            part.deserves = fair.clamp(part.fixed, part.claim.max(part.fixed));
            more += u128::from(part.deserves.minus(fair).0);
            less += u128::from(fair.minus(part.deserves).0);
        }
        let mut spent = 0;
        for part in parts.iter_mut().filter(|part| !part.settled) {
            let fair = fair(part);
            part.settled = match more.cmp(&less) {
                core::cmp::Ordering::Greater => part.deserves > fair,
                core::cmp::Ordering::Less => part.deserves < fair,
                core::cmp::Ordering::Equal => true,
            };
            if part.settled {
                spent += u128::from(part.deserves.0);
            }
        }
        left = left.saturating_sub(spent);
    }
}

/// The weight of a user is divided among its jobs there.
fn weigh<'a>(here: impl Iterator<Item = &'a Job> + Clone) -> impl Fn(Terms) -> u64 {
    let mut users: Vec<(UserId, u64)> = Vec::new();
    for terms in here.map(|job| job.terms) {
        let weight = u64::from(terms.weight.max(1));
        match users.iter_mut().find(|user| user.0 == terms.user) {
            Some(user) => user.1 += weight,
            None => users.push((terms.user, weight)),
        }
    }
    move |terms| {
        let weight = u64::from(terms.weight.max(1));
        let of_user = users.iter().find(|user| user.0 == terms.user);
        let sum = of_user.map_or(weight, |user| user.1.max(weight));
        (u64::from(terms.user_weight.max(1)) * UNIT * weight / sum).max(1)
    }
}

/// Who may pay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Payers {
    /// Only who has so much too much that another may have it.
    Givers,
    /// Whoever has a stripe too much.
    Above,
    /// As before, where what cannot be taken now counts as never taken.
    AboveOfThose,
    /// Whoever has anything, one stripe at a time.
    Any,
}

/// One that may pay, and what.
pub(super) struct Bill {
    pub place: usize,
    picked: Vec<Pick>,
    pub bytes: Bytes,
    price: u128,
}

impl Memory {
    pub(super) fn caches(&self, gpu: GpuId) -> impl Iterator<Item = &Books> {
        let here = move |books: &&Books| books.ranks.iter().any(|rank| rank.gpu == gpu);
        self.jobs.iter().filter(here)
    }

    /// Whether jobs are weighed there.
    pub(super) fn contested(&self, gpu: GpuId) -> bool {
        self.caches(gpu).nth(1).is_some() || self.is_asked_of(gpu)
    }

    /// Jobs that have or had something of a GPU, and one that is to have, without what they deserve.
    fn members(&self, gpu: GpuId, jobs: &[Job], also: Option<JobId>) -> Vec<Part> {
        let Some(ledger) = self.ledger(gpu) else {
            return Vec::new();
        };
        let here = |job: &&Job| {
            let cached = self.caches(gpu).any(|books| books.job == job.id);
            let counted = |c: &(SessionId, GpuId, Bytes)| c.1 == gpu && !c.2.is_zero();
            also == Some(job.id)
                || cached
                || self.has_rooms(job.id, gpu)
                || self.counted.iter().any(|c| counted(c) && job.has(c.0))
        };
        let counts = |job: &Job| job.counts() || also == Some(job.id);
        let weight = weigh(jobs.iter().filter(|job| here(job) && counts(job)));
        let member = |job: &Job| {
            let counted = self.counted.iter();
            let counted = counted.filter(|counted| counted.1 == gpu && job.has(counted.0));
            let counted: Bytes = counted.map(|counted| counted.2).sum();
            let held = job.sessions().map(|session| {
                let account = ledger.account(session);
                let stands = account.offline.plus(account.in_flight);
                stands.plus(ledger.excess_of(session))
            });
            let mut part = Part {
                job: job.id,
                weight: weight(job.terms),
                fixed: counted,
                claim: counted,
                held: held.sum(),
                deserves: Bytes::ZERO,
                counts: counts(job),
                settled: false,
            };
            if let Some(books) = self.jobs.iter().find(|books| books.job == job.id) {
                let claims: Bytes = books.claims(gpu).map(|claim| claim.1).sum();
                part.fixed = part.fixed.plus(books.fixed(gpu));
                part.claim = part.claim.plus(claims);
                let (goes, comes) = books.begun_with(gpu);
                part.held = part.held.plus(comes).minus(goes);
            }
            if self.has_rooms(job.id, gpu) {
                // What it will want is not known before it has a cache.
                part.claim = ledger.pool();
            }
            if !part.counts {
                (part.fixed, part.claim) = (Bytes::ZERO, Bytes::ZERO);
            }
            part
        };
        jobs.iter().filter(here).map(member).collect()
    }

    /// The same with what they deserve of what online leaves.
    pub(super) fn parts(
        &self,
        gpu: GpuId,
        jobs: &[Job],
        now: Instant,
        stuck: impl Fn(&Books) -> bool,
    ) -> Vec<Part> {
        let mut parts = self.members(gpu, jobs, None);
        for part in &mut parts {
            let books = self.jobs.iter().find(|books| books.job == part.job);
            if books.is_some_and(&stuck) {
                part.fixed = part.fixed.max(part.held);
            }
        }
        level(&mut parts, self.left_by_online(gpu, jobs, now));
        parts
    }

    /// What jobs there deserve of what online leaves, if `job`, with or without a cache, wants all there is.
    pub(super) fn parts_beside(
        &self,
        gpu: GpuId,
        job: JobId,
        jobs: &[Job],
        now: Instant,
    ) -> Vec<Part> {
        let pool = self.ledger(gpu).map_or(Bytes::ZERO, Ledger::pool);
        let mut parts = self.members(gpu, jobs, Some(job));
        for part in parts.iter_mut().filter(|part| part.job == job) {
            part.claim = pool;
        }
        level(&mut parts, self.left_by_online(gpu, jobs, now));
        parts
    }

    fn left_by_online(&self, gpu: GpuId, jobs: &[Job], now: Instant) -> Bytes {
        let Some(ledger) = self.ledger(gpu) else {
            return Bytes::ZERO;
        };
        let offline = jobs.iter().flat_map(Job::sessions).map(|session| {
            let account = ledger.account(session);
            account
                .offline
                .plus(account.in_flight)
                .plus(account.quarantined)
        });
        let offline: Bytes = offline.sum();
        offline.plus(ledger.free()).minus(self.lacking(gpu, now))
    }

    /// What a process of `job` may believe the job has of a GPU: what it would deserve if it wanted all there is, beside
    /// `slots` jobs at least. Those to come weigh as much as a user of weight 1.
    pub(super) fn shown(&self, job: &Job, gpu: GpuId, jobs: &[Job], slots: u32) -> Bytes {
        let pool = self.ledger(gpu).map_or(Bytes::ZERO, Ledger::pool);
        let online = self.elastic.iter().filter(|elastic| elastic.gpu == gpu);
        let caches = online.clone().count().max(1) as u64;
        let least = self.sharing.reserving.min.times(caches);
        let stays: Bytes = online.map(Elastic::fixed).sum();
        let of_online =
            |c: &&(SessionId, GpuId, Bytes)| c.1 == gpu && !jobs.iter().any(|j| j.has(c.0));
        let counted: Bytes = self.counted.iter().filter(of_online).map(|c| c.2).sum();
        let room = pool.minus(least.plus(stays).plus(counted));
        let mut parts = self.members(gpu, jobs, Some(job.id));
        let Some(at) = parts.iter().position(|part| part.job == job.id) else {
            return Bytes::ZERO;
        };
        parts[at].claim = pool;
        let counting = parts.iter().filter(|part| part.counts).count();
        let to_come = u64::from(slots).saturating_sub(counting as u64);
        if to_come > 0 {
            parts.push(Part {
                weight: UNIT * to_come,
                fixed: Bytes::ZERO,
                held: Bytes::ZERO,
                ..parts[at]
            });
        }
        level(&mut parts, room);
        parts[at].deserves
    }

    /// What a job has of the GPUs on which it is weighed, and what it deserves there; None where it is alone.
    pub fn weighed(&self, job: JobId, jobs: &[Job], now: Instant) -> Option<Weighed> {
        let books = self.jobs.iter().find(|books| books.job == job)?;
        let mut sum: Option<Weighed> = None;
        for gpu in books.gpus().iter().filter(|gpu| self.contested(*gpu)) {
            let parts = self.parts(gpu, jobs, now, |_| false);
            let part = parts.iter().find(|part| part.job == job)?;
            let known = sum.get_or_insert_default();
            known.has = known.has.plus(part.held);
            known.deserves = known.deserves.plus(part.deserves);
        }
        sum
    }

    /// Whether something can be taken from it or given to it now.
    pub(super) fn reachable(books: &Books, jobs: &[Job], means: Means) -> bool {
        let job = jobs.iter().find(|job| job.id == books.job);
        books.is_open() && job.is_some_and(|job| !job.sight(means).beyond_control)
    }

    /// Takes up to a batch from those that are to pay.
    pub(super) fn take_by_weight(
        &mut self,
        gpu: GpuId,
        missing: Bytes,
        jobs: &[Job],
        means: Means,
        now: Instant,
    ) {
        let mut left = missing.min(self.sharing.batch);
        while !left.is_zero() {
            let payers = [Payers::Above, Payers::AboveOfThose, Payers::Any];
            let mut bills = payers
                .iter()
                .map(|payers| self.bill(gpu, left, *payers, (jobs, means), now));
            let Some(bill) = bills.find_map(|bill| bill) else {
                return;
            };
            left = left.minus(bill.bytes);
            self.collect(bill, Direction::Reclaim, jobs, now);
        }
    }

    pub(super) fn collect(&mut self, bill: Bill, direction: Direction, jobs: &[Job], now: Instant) {
        let stripes = bill.picked.iter().map(|pick| pick.stripe).collect();
        let books = &mut self.jobs[bill.place];
        (books.picks, books.cost.price) = (bill.picked, bill.price);
        books.cost.dearest = books.cost.dearest.max(bill.price);
        let (owed, dearest, gpus) = (books.cost.paid, books.cost.dearest, books.gpus());
        // Who could not pay for long owes no more of that time than one reclaim.
        for (at, other) in self.jobs.iter_mut().enumerate() {
            if at != bill.place && other.gpus().iter().any(|gpu| gpus.contains(gpu)) {
                let behind = dearest
                    .max(other.cost.dearest)
                    .saturating_add(other.cost.price);
                other.cost.paid = other.cost.paid.max(owed.saturating_sub(behind));
            }
        }
        self.begin(bill.place, direction, stripes, jobs, now);
    }

    /// Who pays `left` or a part of it.
    pub(super) fn bill(
        &mut self,
        gpu: GpuId,
        left: Bytes,
        payers: Payers,
        (jobs, means): (&[Job], Means),
        now: Instant,
    ) -> Option<Bill> {
        // One from which something is taken or to which something is given now pays when that is done.
        let stuck = |books: &Books| {
            matches!(payers, Payers::AboveOfThose | Payers::Any)
                && !Self::reachable(books, jobs, means)
                && !books.machine.ends_in_time()
        };
        let parts = self.parts(gpu, jobs, now, stuck);
        let pace = self.sharing.restore_interval;
        let mut best: Option<Bill> = None;
        for (place, books) in self.jobs.iter().enumerate() {
            let Some(part) = parts.iter().find(|part| part.job == books.job) else {
                continue;
            };
            if !books.gpus().contains(gpu) || !Self::reachable(books, jobs, means) {
                continue;
            }
            let job = jobs.iter().find(|job| job.id == books.job);
            let stopped = job.is_some_and(|job| job.sight(means).stopped);
            let rests = stopped || now >= books.begun.after(pace);
            let (stripe, over) = (books.stripe, part.over());
            let need = match payers {
                Payers::Givers if over < part.slack(stripe) || !rests => continue,
                Payers::Above | Payers::AboveOfThose if over < stripe => continue,
                Payers::Any => stripe,
                _ => left.min(over.round_down(stripe)),
            };
            let mut picked = Vec::new();
            let selected = self.rule.select(&books.holders, need, &mut picked);
            let lost = u128::from(selected.tokens.0) * u128::from(UNIT) * u128::from(UNIT);
            let price = lost / u128::from(part.weight);
            let total = |price: u128, books: &Books| books.cost.paid.saturating_add(price);
            let better = best.as_ref().is_none_or(|known| {
                total(price, books) < total(known.price, &self.jobs[known.place])
            });
            if better && !picked.is_empty() {
                let bytes = selected.bytes.times(books.ranks_on(gpu));
                best = Some(Bill {
                    place,
                    picked,
                    bytes,
                    price,
                });
            }
        }
        // Nobody pays the last stripe for another that is to pay next, and only has not done so yet.
        let is_next = |books: &&Books| {
            let part = parts.iter().find(|part| part.job == books.job);
            let above = part.is_some_and(|part| part.over() >= books.stripe);
            let paid = books.cost.paid.saturating_add(books.cost.price);
            let behind = best.as_ref().is_some_and(|best| {
                paid < self.jobs[best.place].cost.paid.saturating_add(best.price)
            });
            books.machine.ends_in_time() && (above || behind)
        };
        let waits = payers == Payers::Any && self.caches(gpu).find(is_next).is_some();
        best.filter(|_| !waits)
    }

    /// Takes from who has too much for who has too little: nobody else wants it. Says when to look again, if anybody
    /// still has too little.
    pub(super) fn even_out(&mut self, jobs: &[Job], means: Means, now: Instant) {
        let contested = |at: &usize| {
            let gpu = u8::try_from(*at).map(GpuId);
            gpu.is_ok_and(|gpu| self.contested(gpu))
        };
        let gpus: Vec<usize> = (0..self.ledgers.len()).filter(contested).collect();
        if gpus.is_empty() {
            self.looks_at = None;
            return;
        }
        if self.looked.is_some_and(|at| now < at) {
            self.looks_at = self.looked;
            return;
        }
        let (mut uneven, mut begun) = (false, false);
        for gpu in gpus
            .into_iter()
            .filter_map(|at| u8::try_from(at).ok())
            .map(GpuId)
        {
            if !self.lacking(gpu, now).is_zero() {
                continue;
            }
            let wanted = self.wanted_by_offline(gpu, jobs, means, now);
            let coming: Bytes = self.jobs.iter().map(|books| books.coming(gpu)).sum();
            let free = self.ledger(gpu).map_or(Bytes::ZERO, Ledger::free);
            let mut left = wanted.minus(free.plus(coming)).min(self.sharing.batch);
            uneven |= !left.is_zero();
            while !left.is_zero()
                && let Some(bill) = self.bill(gpu, left, Payers::Givers, (jobs, means), now)
            {
                left = left.minus(bill.bytes);
                let place = bill.place;
                self.collect(bill, Direction::Reclaim, jobs, now);
                self.jobs[place].evens = true;
                begun = true;
            }
        }
        let pace = if begun {
            self.sharing.reclaim_deadline
        } else {
            self.sharing.restore_interval
        };
        let next = now.after(pace);
        self.looked = Some(if uneven { next } else { now });
        self.looks_at = uneven.then_some(next);
    }

    /// What jobs that have too little lack on a GPU, and what processes have there that the pool has not.
    fn wanted_by_offline(&self, gpu: GpuId, jobs: &[Job], means: Means, now: Instant) -> Bytes {
        let parts = self.parts(gpu, jobs, now, |_| false);
        let books_of = |part: &Part| self.jobs.iter().find(|books| books.job == part.job);
        // What is little for who has much may be much for who has little: where one has too much, a stripe counts.
        let too_much = |part: &Part| {
            books_of(part).is_some_and(|books| part.over() >= part.slack(books.stripe))
        };
        let finely = parts.iter().any(too_much);
        let lacks = parts.iter().filter(|part| {
            books_of(part).is_some_and(|books| {
                let least = if finely {
                    books.stripe
                } else {
                    part.slack(books.stripe)
                };
                part.short() >= least && Self::takes(books, jobs, means)
            })
        });
        let excess = jobs.iter().flat_map(Job::sessions);
        let excess = excess.filter_map(|session| Some(self.ledger(gpu)?.excess_of(session)));
        lacks.map(Part::short).sum::<Bytes>().plus(excess.sum())
    }

    /// Whether it could be given something.
    fn takes(books: &Books, jobs: &[Job], means: Means) -> bool {
        Self::reachable(books, jobs, means) && books.heeds()
    }

    /// What of the free memory of a GPU is not kept for others that have more of a right to it.
    pub(super) fn spare(
        &self,
        place: usize,
        gpu: GpuId,
        jobs: &[Job],
        means: Means,
        now: Instant,
    ) -> Bytes {
        let free = self.ledger(gpu).map_or(Bytes::ZERO, Ledger::free);
        let free = free.minus(self.wanted_rooms(gpu));
        if !self.contested(gpu) {
            return free;
        }
        let parts = self.parts(gpu, jobs, now, |_| false);
        let own = self.jobs[place].job;
        let Some(own) = parts.iter().find(|part| part.job == own) else {
            return free;
        };
        let (mut all, mut before) = (Bytes::ZERO, Bytes::ZERO);
        for books in self
            .caches(gpu)
            .filter(|books| Self::takes(books, jobs, means))
        {
            let other = parts
                .iter()
                .find(|part| part.job == books.job && part.job != own.job);
            let short = other.map_or(Bytes::ZERO, Part::short);
            all = all.plus(short);
            if other.is_some_and(|other| other.lacks_more(own)) {
                before = before.plus(short);
            }
        }
        free.minus(all).max(free.minus(before).min(own.short()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(weight: u64, fixed: u64, claim: u64) -> Part {
        Part {
            job: JobId(0),
            weight,
            fixed: Bytes(fixed),
            claim: Bytes(claim),
            held: Bytes::ZERO,
            deserves: Bytes::ZERO,
            counts: true,
            settled: false,
        }
    }

    fn divided(parts: &[(u64, u64, u64)], room: u64) -> Vec<u64> {
        let mut parts: Vec<Part> = parts.iter().map(|p| part(p.0, p.1, p.2)).collect();
        level(&mut parts, Bytes(room));
        parts.iter().map(|part| part.deserves.0).collect()
    }

    #[test]
    fn what_one_does_not_want_goes_to_the_others_by_weight() {
        assert_eq!(divided(&[(1, 0, 900), (4, 0, 900)], 1_000), [200, 800]);
        assert_eq!(divided(&[(1, 0, 900), (4, 0, 300)], 1_000), [700, 300]);
        assert_eq!(divided(&[(1, 500, 900), (4, 0, 900)], 1_000), [500, 500]);
        assert_eq!(divided(&[(1, 0, 100), (4, 0, 200)], 1_000), [100, 200]);
        assert_eq!(divided(&[(1, 600, 600), (4, 700, 900)], 1_000), [600, 700]);
        assert_eq!(
            divided(&[(1, 400, 900), (1, 0, 200), (2, 0, 900)], 1_000),
            [400, 200, 400]
        );
    }
}
