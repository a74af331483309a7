//! Memory of several offline jobs on a GPU: who pays, who is given what, and what each has in the end.
//!
//! A case is a number: jobs of several users come and go on two GPUs, some on both, online demands memory and gives it
//! back, processes answer late or refuse. What a job deserves is found here by halving, from what the model's processes
//! have and were born with; who pays is read from the orders that they get.

mod owes;
mod room;

use crate::bench::Bench;
use crate::dice::Dice;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use tidegate_policy::config::{Config, Cooldown, Fair, Reserving, Sharing};
use tidegate_policy::effect::{Effect, Granted, Report};
use tidegate_policy::event::Event;
use tidegate_policy::fair::{Class, Terms};
use tidegate_policy::ids::{
    AskId, BlockId, Bytes, GpuId, GpuSet, JobId, KvId, LogSeq, ReclaimId, RequestId, SessionId,
    StripeId, Tokens, UserId,
};
use tidegate_policy::layout::{Layout, Stripe};
use tidegate_policy::memory::MemoryEvent;
use tidegate_policy::reclaim::{Answer, Phase};

const CASES: u64 = 10_000;
const GPUS: u8 = 2;
const POOL: u64 = 1_000;
const STRIPE: u64 = 20;
const BATCH: u64 = 60;
const FIXED: u64 = 7;
/// Headroom that is shown to nobody.
const LEAST: u64 = 20;
const MS: u64 = 1_000_000;
const ONLINE: SessionId = SessionId(1);
const KV: KvId = KvId(1);

fn config() -> Config {
    Config {
        cooldown: Cooldown::Fixed(Duration::from_millis(5)),
        start_hold: Duration::ZERO,
        frozen_after: Duration::from_secs(3600),
        sharing: Sharing {
            batch: Bytes(BATCH),
            reserving: Reserving {
                min: Bytes(LEAST),
                ..Reserving::default()
            },
            ..Sharing::default()
        },
        ..Config::default()
    }
}

fn layout(stripes: u32) -> Layout {
    let stripe = |nth: u32| Stripe {
        handles: vec![2 * nth, 2 * nth + 1],
        blocks: (2 * nth..2 * nth + 2).map(BlockId).collect(),
    };
    Layout::of_stripes((0..stripes).map(stripe).collect(), Bytes(10))
}

/// One job as it is, whatever policy believes; every rank has the same stripes.
struct Job {
    terms: Terms,
    gpus: GpuSet,
    /// It is one of those among whom memory is divided.
    counts: bool,
    stripes: u32,
    backed: BTreeSet<u32>,
    /// Ranks that have not done what was begun.
    waits: BTreeSet<SessionId>,
    begun: Option<(ReclaimId, Vec<u32>, bool)>,
    /// It refused, and may not have run since.
    refused_at: Option<u64>,
    log: u64,
    withheld: u64,
}

impl Job {
    /// What it has on each of its GPUs, when what was begun is done.
    fn held(&self) -> u64 {
        let stands = self.backed.len() as u64;
        let held = match &self.begun {
            Some((_, stripes, true)) => stands - stripes.len() as u64,
            Some((_, stripes, false)) => stands + stripes.len() as u64,
            None => stands,
        };
        held * STRIPE + FIXED
    }

    fn claim(&self) -> u64 {
        u64::from(self.stripes) * STRIPE + FIXED
    }
}

struct World {
    bench: Bench,
    jobs: BTreeMap<u32, Job>,
    online: [u64; GPUS as usize],
    asks: BTreeMap<u64, (u8, u64)>,
    answered: Vec<(u64, bool)>,
    next: u64,
    orders: VecDeque<(ReclaimId, SessionId, bool)>,
    broken: Vec<String>,
    reclaims: u64,
}

fn session(job: u32, gpu: GpuId) -> SessionId {
    SessionId(100 + u64::from(job) * 2 + u64::from(gpu.0))
}

fn job_of(session: SessionId) -> u32 {
    u32::try_from((session.0 - 100) / 2).expect("few")
}

impl World {
    fn new() -> Self {
        let mut bench = Bench::new(config(), GPUS);
        for gpu in (0..GPUS).map(GpuId) {
            let bytes = Bytes(POOL);
            bench.send(MemoryEvent::Pool { gpu, bytes });
        }
        bench.attach_online(ONLINE);
        for gpu in (0..GPUS).map(GpuId) {
            bench.busy(ONLINE, gpu);
            bench.idle(ONLINE, gpu, 10, 0);
        }
        Self {
            bench,
            jobs: BTreeMap::new(),
            online: [0; GPUS as usize],
            asks: BTreeMap::new(),
            answered: Vec::new(),
            next: 0,
            orders: VecDeque::new(),
            broken: Vec::new(),
            reclaims: 0,
        }
    }

    fn tell<'a>(&mut self, event: impl Into<Event<'a>>) {
        self.bench.send(event);
        self.look();
    }

    fn pass(&mut self, ns: u64) {
        // In pieces, so that what is judged is as it was when it was decided.
        let mut left = ns;
        while left > 0 {
            let piece = left.min(MS);
            self.bench.pass(piece);
            self.look();
            left -= piece;
        }
    }

    fn wanted(&self, gpu: GpuId) -> u64 {
        let asks = self.asks.values().filter(|ask| ask.0 == gpu.0);
        asks.map(|ask| ask.1).sum()
    }

    fn here(&self, gpu: GpuId) -> impl Iterator<Item = (u32, &Job)> {
        let jobs = self.jobs.iter().map(|(id, job)| (*id, job));
        jobs.filter(move |(_, job)| job.gpus.contains(gpu))
    }

    /// Found by halving: the level at which all deserve together what there is.
    fn deserved(&self, gpu: GpuId) -> BTreeMap<u32, f64> {
        let left = POOL as f64 - self.online[gpu.index()] as f64 - self.wanted(gpu) as f64;
        let weight = |job: &Job| {
            let own = |other: &&(u32, &Job)| other.1.counts && other.1.terms.user == job.terms.user;
            let all = self.here(gpu).filter(|other| own(&other));
            let sum: u32 = all.map(|other| other.1.terms.weight).sum();
            f64::from(job.terms.user_weight * job.terms.weight) / f64::from(sum)
        };
        let at = |level: f64, job: &Job| match job.counts {
            true => (level * weight(job)).clamp(FIXED as f64, job.claim() as f64),
            false => 0.0,
        };
        let (mut low, mut high) = (0.0, 1e9);
        for _ in 0..100 {
            let level = f64::midpoint(low, high);
            let sum: f64 = self.here(gpu).map(|(_, job)| at(level, job)).sum();
            if sum > left {
                high = level;
            } else {
                low = level;
            }
        }
        self.here(gpu).map(|(id, job)| (id, at(low, job))).collect()
    }

    /// Takes what was decided to the processes, and judges it.
    fn look(&mut self) {
        let (mut begun, mut granted, mut over) = (BTreeSet::new(), Vec::new(), Vec::new());
        while let Some(effect) = self.bench.orders.pop_front() {
            match effect {
                Effect::Check {
                    reclaim, session, ..
                } => {
                    // The last of a job that leaves may still be asked.
                    let Some(job) = self.jobs.get_mut(&job_of(session)) else {
                        continue;
                    };
                    self.orders.push_back((reclaim, session, false));
                    let stripes = self.bench.node.stripes(reclaim);
                    let stripes: Vec<u32> = stripes.iter().map(|stripe| stripe.0).collect();
                    let takes = stripes.iter().all(|stripe| job.backed.contains(stripe));
                    // One that was called off at once took nothing, and what was decided since is not what it stood on.
                    let goes_on = !stripes.is_empty();
                    job.begun = Some((reclaim, stripes, takes));
                    if takes && goes_on {
                        begun.insert(job_of(session));
                    }
                }
                Effect::Move {
                    reclaim, session, ..
                } => {
                    let Some(job) = self.jobs.get_mut(&job_of(session)) else {
                        continue;
                    };
                    let stripes = self.bench.node.stripes(reclaim);
                    let stripes = stripes.iter().map(|stripe| stripe.0).collect();
                    let takes = job.begun.as_ref().is_some_and(|begun| begun.2);
                    job.begun = Some((reclaim, stripes, takes));
                    job.waits.insert(session);
                    self.orders.push_back((reclaim, session, true));
                }
                Effect::AnswerAsk {
                    ask, granted: said, ..
                } => {
                    let yes = said == Granted::Yes;
                    self.answered.push((ask.0, yes));
                    if yes { &mut granted } else { &mut over }.push(ask.0);
                }
                _ => {}
            }
        }
        for job in begun {
            self.judge(job);
        }
        let (now, held) = (self.bench.now, &self.bench.held);
        for (id, job) in &mut self.jobs {
            let runs = held.values().any(|held| *held == (JobId(*id), true));
            let asked_again = |at: &u64| runs && now > at + 100 * MS;
            job.refused_at = job.refused_at.filter(|at| !asked_again(at));
        }
        for (id, job) in &mut self.jobs {
            // What was called off before anything moved leaves no trace but this.
            let memory = self.bench.node.job_memory(JobId(*id));
            if job.waits.is_empty() && memory.is_none_or(|memory| memory.phase == Phase::Idle) {
                job.begun = None;
            }
        }
        self.asks.retain(|ask, _| !over.contains(ask));
        for ask in granted {
            let Some((gpu, bytes)) = self.asks.remove(&ask) else {
                continue;
            };
            self.online[usize::from(gpu)] += bytes;
            self.count(gpu);
        }
    }

    fn count(&mut self, gpu: u8) {
        let (session, bytes) = (ONLINE, Bytes(self.online[usize::from(gpu)]));
        let gpu = GpuId(gpu);
        self.tell(MemoryEvent::Counted {
            session,
            gpu,
            bytes,
        });
    }

    /// Nobody that has less than it deserves pays while another has a stripe more, on any GPU it pays on.
    fn judge(&mut self, payer: u32) {
        self.reclaims += 1;
        let unfair = |gpu: GpuId| {
            let deserved = self.deserved(gpu);
            let below = (self.jobs[&payer].held() as f64) < deserved[&payer] - 4.0;
            let richer = self.here(gpu).find(|(id, job)| {
                let above = job.held() as f64 - deserved[id] >= STRIPE as f64 + 4.0;
                *id != payer && above && job.refused_at.is_none()
            });
            below.then_some(richer).flatten().map(|richer| richer.0)
        };
        let gpus = self.jobs[&payer].gpus;
        let unfair: Vec<_> = gpus.iter().map(unfair).collect();
        if unfair.iter().all(Option::is_some) {
            let has: Vec<_> = self
                .jobs
                .iter()
                .map(|(id, job)| (*id, job.held()))
                .collect();
            self.broken.push(format!(
                "{payer} pays and {unfair:?} has more than it deserves: {has:?} of {:?}",
                self.deserved(GpuId(0))
            ));
        }
    }

    fn attach(&mut self, id: u32, dice: &mut Dice) {
        if self.jobs.contains_key(&id) {
            return;
        }
        let both = dice.next().is_multiple_of(4);
        let one = GpuId(u8::from(dice.next().is_multiple_of(4)));
        let gpus = if both {
            (0..GPUS).map(GpuId).collect()
        } else {
            GpuSet::of(one)
        };
        let user = (dice.next() % 3) as u32;
        let terms = Terms {
            user: UserId(user),
            user_weight: [1, 2, 5][user as usize],
            weight: 1 + (dice.next() % 4) as u32,
            class: Class::Normal,
            most: 1000,
        };
        self.add(id, gpus, terms, 4 + (dice.next() % 36) as u32);
    }

    fn add(&mut self, id: u32, gpus: GpuSet, terms: Terms, stripes: u32) {
        for gpu in gpus.iter() {
            self.bench
                .attach_offline(session(id, gpu), JobId(id), GpuSet::of(gpu));
        }
        let job = JobId(id);
        self.bench.send(Event::Terms { job, terms });
        self.look();
        self.jobs.insert(
            id,
            Job {
                terms,
                gpus: GpuSet::EMPTY,
                counts: true,
                stripes,
                backed: (0..stripes).collect(),
                waits: BTreeSet::new(),
                begun: None,
                refused_at: None,
                log: 0,
                withheld: 0,
            },
        );
        for gpu in gpus.iter() {
            let known = self.jobs.get_mut(&id).expect("it is there");
            known.gpus = known.gpus.with(gpu);
            self.tell(MemoryEvent::KvRegistered {
                session: session(id, gpu),
                job,
                gpu,
                kv: KV,
                layout: &layout(stripes),
                backed: &vec![true; stripes as usize],
                fixed: Bytes(FIXED),
                reclaimable: true,
                counted: Bytes::ZERO,
            });
        }
    }

    /// Each process of a job has shown that it has a channel, or none has any more.
    fn set_counts(&mut self, id: u32, counts: bool) {
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        let gpus: Vec<GpuId> = job.gpus.iter().collect();
        for (nth, gpu) in (1..).zip(&gpus) {
            // One process that counts is enough.
            if counts || nth == gpus.len() {
                self.jobs.get_mut(&id).expect("it is there").counts = counts;
            }
            let session = session(id, *gpu);
            self.tell(Event::Counts { session, counts });
        }
    }

    fn leave(&mut self, id: u32) {
        let Some(job) = self.jobs.remove(&id) else {
            return;
        };
        self.orders.retain(|order| job_of(order.1) != id);
        for gpu in job.gpus.iter() {
            self.bench.offline_gone(session(id, gpu));
        }
        self.look();
    }

    fn answer(&mut self, refuses: bool) {
        let Some((reclaim, session, moves)) = self.orders.pop_front() else {
            return;
        };
        let id = job_of(session);
        let now = self.bench.now;
        let job = self.jobs.get_mut(&id).expect("it has an order");
        if !moves {
            let answer = if refuses {
                Answer::Refused
            } else {
                Answer::Done
            };
            if refuses {
                job.refused_at = Some(now);
                job.begun = None;
                // What the others of it say no longer matters.
                self.orders.retain(|order| order.0 != reclaim);
            }
            return self.tell(MemoryEvent::Checked {
                reclaim,
                session,
                answer,
            });
        }
        self.bench.moving.remove(&(reclaim, session));
        job.waits.remove(&session);
        let (_, stripes, takes) = job.begun.clone().expect("it moves");
        if job.waits.is_empty() {
            for stripe in &stripes {
                if takes {
                    job.backed.remove(stripe);
                    job.log += 1;
                } else {
                    job.backed.insert(*stripe);
                }
            }
            job.begun = None;
        }
        let log = LogSeq(job.log);
        let stripes: Vec<StripeId> = stripes.into_iter().map(StripeId).collect();
        self.tell(MemoryEvent::Moved {
            reclaim,
            session,
            answer: Answer::Done,
            stripes: &stripes,
            log,
        });
    }

    fn ask(&mut self, gpu: u8, bytes: u64) {
        self.next += 1;
        let at = GpuId(gpu);
        let claimed: u64 = self.here(at).map(|_| FIXED).sum();
        let taken = self.online[at.index()] + self.wanted(at) + claimed;
        let bytes = bytes.min(POOL.saturating_sub(taken));
        if bytes == 0 {
            return;
        }
        self.asks.insert(self.next, (gpu, bytes));
        self.tell(MemoryEvent::Asked {
            session: ONLINE,
            ask: AskId(self.next),
            gpu: at,
            kv: None,
            bytes: Bytes(bytes),
            mapped: None,
            ahead: false,
        });
    }

    fn publish(&mut self, id: u32, request: u64, stripe: u32, tokens: u64) {
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        let first = stripe % job.stripes;
        let blocks: Vec<BlockId> = (2 * first..(2 * first + 6).min(2 * job.stripes))
            .map(BlockId)
            .collect();
        let gpu = job.gpus.iter().next().expect("it has one");
        self.tell(MemoryEvent::Published {
            session: session(id, gpu),
            request: RequestId(request),
            tokens: Tokens(tokens),
            blocks: &blocks,
        });
    }

    fn withhold(&mut self, id: u32) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        job.withheld = job.log;
        let (log, gpu) = (LogSeq(job.log), job.gpus.iter().next().expect("one"));
        let session = session(id, gpu);
        self.tell(MemoryEvent::Withheld { session, log });
    }

    /// Everybody answers, for so long.
    fn calm(&mut self, ms: u64) {
        for _ in 0..ms / 5 {
            self.answer_all();
            for id in self.jobs.keys().copied().collect::<Vec<_>>() {
                if self.jobs[&id].withheld < self.jobs[&id].log {
                    self.withhold(id);
                }
            }
            self.pass(5 * MS);
        }
        self.answer_all();
    }

    fn answer_all(&mut self) {
        while !(self.orders.is_empty() && self.bench.issued.iter().all(VecDeque::is_empty)) {
            self.bench.answer_all();
            self.look();
            self.answer(false);
        }
    }

    /// Everybody has what it deserves, by a stripe, or the part for which nothing is taken from anybody.
    fn settled(&mut self) {
        for gpu in (0..GPUS).map(GpuId) {
            let deserved = self.deserved(gpu);
            let gangs = self.jobs.values().any(|job| job.gpus.len() > 1);
            let off = |(id, job): &(u32, &Job)| {
                let slack = (deserved[id] / 40.0).max(STRIPE as f64);
                // Nobody takes what one that does not count has and nobody wants.
                job.counts && (job.held() as f64 - deserved[id]).abs() > 2.0 * slack
            };
            let several = self.here(gpu).nth(1).is_some() && !gangs;
            let off = self.here(gpu).find(|known| several && off(known));
            if let Some((id, has)) = off.map(|(id, job)| (id, job.held())) {
                let what = format!("{id} has {has} in the end and deserves {deserved:?}");
                self.broken.push(what);
            }
        }
    }
}

fn schedule(seed: u64) -> (Vec<String>, u64) {
    let mut dice = Dice::new(seed);
    let mut world = World::new();
    for _ in 0..40 {
        let (job, gpu) = ((dice.next() % 4) as u32, (dice.next() % 2) as u8);
        match dice.next() % 17 {
            16 => world.set_counts(job, dice.next().is_multiple_of(2)),
            0..=2 => world.attach(job, &mut dice),
            3 if dice.next().is_multiple_of(3) => world.leave(job),
            4..=6 => world.ask(gpu, 1 + dice.next() % 200),
            7 => {
                let kept = dice.next() % (world.online[usize::from(gpu)] + 1);
                world.online[usize::from(gpu)] = kept;
                world.count(gpu);
            }
            8 => world.bench.busy(ONLINE, GpuId(gpu)),
            9 => world.bench.idle(ONLINE, GpuId(gpu), 10, 0),
            10..=11 => {
                let (request, stripe) = (dice.next() % 8, (dice.next() % 40) as u32);
                world.publish(job, request, stripe, 1 + dice.next() % 99);
            }
            12 => world.withhold(job),
            13 => world.answer(dice.next().is_multiple_of(4)),
            _ => world.answer_all(),
        }
        world.look();
        world.pass(dice.next() % (3 * MS));
        // Nobody is so slow that it counts as stuck: that is another promise.
        world.answer_all();
        if dice.next().is_multiple_of(8) {
            for _ in 0..220 {
                world.pass(5 * MS);
                world.answer_all();
            }
        }
    }
    for gpu in (0..GPUS).map(GpuId) {
        world.bench.idle(ONLINE, gpu, 10, 0);
    }
    world.look();
    if seed.is_multiple_of(50) {
        world.calm(20_000);
        world.settled();
    }
    (world.broken, world.reclaims)
}

/// P-FAIR-11: nobody below what it deserves of memory pays while another is above by a stripe.
#[test]
fn nobody_that_has_less_than_it_deserves_pays_while_another_has_a_stripe_more() {
    let mut reclaims = 0;
    for seed in 0..CASES {
        let (broken, of_it) = schedule(seed);
        assert!(broken.is_empty(), "seed {seed}: {}", broken.join("\n"));
        reclaims += of_it;
    }
    assert!(
        reclaims > 10 * CASES,
        "{reclaims} reclaims in {CASES} cases"
    );
}

const GPU: GpuSet = GpuSet::of(GpuId(0));

fn of_user(user: u32, weight: u32) -> Terms {
    Terms {
        user: UserId(user),
        weight,
        ..Terms::default()
    }
}

fn shown(world: &mut World, id: u32) -> Option<u64> {
    let share = world.bench.node.share(session(id, GpuId(0)), GpuId(0));
    share.map(|bytes| bytes.0)
}

/// P-FAIR-12: a newcomer is shown what it deserves, and gets it from who has more.
#[test]
fn who_comes_second_is_shown_its_part_and_has_it_within_5_percent() {
    let mut world = World::new();
    world.add(0, GPU, of_user(0, 2), 48);
    // Of one user with weights 2 and 1, so that what is divided is the user's.
    let all = POOL - LEAST;
    assert_eq!(shown(&mut world, 0), Some(all));
    world
        .bench
        .attach_offline(session(1, GpuId(0)), JobId(1), GPU);
    let (job, terms) = (JobId(1), of_user(0, 1));
    world.bench.send(Event::Terms { job, terms });
    assert_eq!(shown(&mut world, 1), Some(all / 3));
    world.leave(1);
    world.add(1, GPU, terms, u32::try_from(all / 3 / STRIPE).expect("few"));
    world.calm(30_000);
    let has = |world: &World, id: u32| world.jobs[&id].held() as f64;
    assert!(
        has(&world, 1) >= 0.95 * (all / 3) as f64,
        "{}",
        has(&world, 1)
    );
    let rest = POOL as f64 - has(&world, 1);
    assert!(
        (has(&world, 0) - rest).abs() <= STRIPE as f64,
        "{}",
        has(&world, 0)
    );
    // Another user's job weighs as much as both, and the first one pays for it in proportion.
    world.add(2, GPU, of_user(1, 1), 25);
    world.calm(30_000);
    for (id, part) in [(0, 1.0 / 3.0), (1, 1.0 / 6.0), (2, 0.5)] {
        let off = (has(&world, id) - part * POOL as f64).abs();
        assert!(off <= STRIPE as f64, "{id} has {}", has(&world, id));
    }
    let said = world.bench.node.weighed(JobId(2), world.bench.at());
    let said = said.expect("it is weighed");
    assert_eq!(said.has.0 as f64, has(&world, 2));
    assert!(said.deserves.0.abs_diff(POOL / 2) <= 1, "{said:?}");
    world.leave(1);
    world.leave(2);
    world.calm(30_000);
    assert_eq!(world.jobs[&0].backed.len(), 48, "it is alone again");
    assert_eq!(world.bench.node.weighed(JobId(0), world.bench.at()), None);
}

/// P-FAIR-12: for those that are to come, as many as the operator says, their parts are left from the start.
#[test]
fn slots_keep_the_parts_of_jobs_to_come() {
    let mut world = World::new();
    let slots = |world: &mut World, slots: u32| {
        let fair = Fair {
            slots,
            ..Fair::default()
        };
        world.bench.configure(Config { fair, ..config() });
    };
    world.add(0, GPU, of_user(0, 5), 4);
    slots(&mut world, 4);
    assert_eq!(shown(&mut world, 0), Some((POOL - LEAST) / 4));
    slots(&mut world, u32::MAX);
    assert_eq!(
        shown(&mut world, 0),
        Some(4 * STRIPE + FIXED),
        "what it has"
    );
    slots(&mut world, 1);
    assert_eq!(shown(&mut world, 0), Some(POOL - LEAST));
}

/// Job `id` says that a request holds each of its first stripes, and how many tokens it is.
fn publish(world: &mut World, id: u32, stripes: u32, tokens: u64) {
    for stripe in 0..stripes {
        let blocks = [2 * stripe, 2 * stripe + 1].map(BlockId);
        world.tell(MemoryEvent::Published {
            session: session(id, GpuId(0)),
            request: RequestId(u64::from(stripe)),
            tokens: Tokens(tokens),
            blocks: &blocks,
        });
    }
}

/// P-FAIR-11: nobody pays twice before the others have paid once, by weight.
#[test]
fn under_200_reclaims_each_loses_as_many_tokens_over_its_weight() {
    const TOKENS: u64 = 100;
    let mut world = World::new();
    for (id, weight) in [(0, 1), (1, 2)] {
        world.add(id, GPU, of_user(0, weight), 48);
    }
    world.calm(30_000);
    let mut dice = Dice::new(7);
    let (mut taken, mut reclaims) = ([0u64; 2], 0);
    world.bench.reports.clear();
    while reclaims < 200 {
        for id in 0..2 {
            publish(&mut world, id, 48, TOKENS);
        }
        world.ask(0, 1 + dice.next() % 200);
        world.calm(20);
        for report in std::mem::take(&mut world.bench.reports) {
            if let Report::Reclaimed { job, tokens, .. } = report {
                taken[job.0 as usize] += tokens.0;
                reclaims += 1;
            }
        }
        let apart = taken[0].abs_diff(taken[1] / 2);
        assert!(
            apart <= BATCH / STRIPE * TOKENS,
            "{taken:?} after {reclaims}"
        );
        world.online[0] = 0;
        world.count(0);
        world.calm(2_000);
    }
    assert!(taken[0] > 2_000, "{taken:?}");
    assert!(world.broken.is_empty(), "{:?}", world.broken);
}
