//! Jobs, gates and channels of the schedules in [`super`], and what is promised of them.

use crate::dice::Dice;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidegate_policy::config::{Config, Cooldown, Fair, FairMode};
use tidegate_policy::effect::Effect;
use tidegate_policy::event::{Event, Order, Reading, Standing};
use tidegate_policy::fair::{Class, Terms};
use tidegate_policy::gap::Turns;
use tidegate_policy::ids::{Channels, GpuId, GpuSet, GraphId, JobId, Launches, SessionId, UserId};
use tidegate_policy::node::Node;
use tidegate_policy::time::Instant;

const GPUS: u8 = 3;
const TURN: u64 = 100_000_000;
const COOLDOWN: u64 = 1_000_000;
const GRACE: u64 = 10_000_000;
/// Longest way of an order to disable, and to enable, in these schedules.
const STOPS: f64 = 20e6;
const STARTS: f64 = 3e6;
const SLACK: u64 = 2 * (STOPS as u64 + STARTS as u64);

/// What a schedule may draw.
#[derive(Clone, Copy, Debug, Default)]
pub struct Draw {
    pub fails: bool,
    /// No order takes longer than most do.
    pub prompt: bool,
    /// This GPU takes no order at all.
    pub lost: Option<GpuId>,
}

#[derive(Debug)]
struct Job {
    gpus: GpuSet,
    weight: u64,
    class: Class,
    works: bool,
    paused: bool,
    /// Where an order about it was carried out: before that it is as it was born.
    settled: GpuSet,
    /// An order about it failed.
    broken: bool,
    waits: u64,
    ran: u64,
}

pub struct World {
    pub node: Node,
    pub now: u64,
    timer: Option<u64>,
    dice: Dice,
    draw: Draw,
    /// Nothing fails any more.
    calm: bool,
    jobs: BTreeMap<u32, Job>,
    enabled: BTreeMap<(u32, GpuId), bool>,
    /// When it is done, its number, itself, whether it enables.
    orders: Vec<(u64, u64, Order, bool)>,
    count: u64,
    /// Generation, whether online is busy, since when.
    busy: [(u64, bool, u64); GPUS as usize],
    /// Of two jobs with the same GPUs: how far the first is ahead, and the least and the most of that.
    ahead: BTreeMap<(u32, u32), (i128, i128, i128)>,
    unused: [u64; GPUS as usize],
    /// Who could run and wanted to, as of last.
    active: BTreeSet<u32>,
    /// Most GPUs that had orders under way at once.
    pub most_at_once: usize,
    pub broken: Vec<String>,
}

fn session(job: u32) -> SessionId {
    SessionId(100 + u64::from(job))
}

impl World {
    pub fn new(seed: u64, draw: Draw) -> Self {
        let config = Config {
            cooldown: Cooldown::Fixed(Duration::from_nanos(COOLDOWN)),
            start_hold: Duration::ZERO,
            frozen_after: Duration::from_secs(3600),
            fair: Fair {
                mode: FairMode::Turns,
                turn: Duration::from_nanos(TURN),
                ..Fair::default()
            },
            ..Config::default()
        };
        let mut world = Self {
            node: Node::new(config, GPUS, Instant::from_nanos(0)),
            now: 0,
            timer: None,
            dice: Dice::new(seed ^ 0x5eed),
            draw,
            calm: false,
            jobs: BTreeMap::new(),
            enabled: BTreeMap::new(),
            orders: Vec::new(),
            count: 0,
            busy: [(0, false, 0); GPUS as usize],
            ahead: BTreeMap::new(),
            unused: [0; GPUS as usize],
            active: BTreeSet::new(),
            most_at_once: 0,
            broken: Vec::new(),
        };
        for gpu in 0..GPUS {
            world.send(Event::OnlineAttached {
                session: SessionId(u64::from(gpu)),
            });
        }
        world.pass(10 * COOLDOWN);
        world
    }

    fn send(&mut self, event: Event<'_>) {
        let mut out = Vec::new();
        let now = Instant::from_nanos(self.now);
        self.node.step(event, now, &mut out);
        for effect in out {
            match effect {
                Effect::Disable(order) => self.issue(order, false),
                Effect::Enable { order, .. } => self.issue(order, true),
                Effect::WakeAt(at) => self.timer = Some(at.as_nanos()),
                _ => {}
            }
        }
    }

    fn issue(&mut self, order: Order, enable: bool) {
        // One GPU's orders are carried out in order.
        let here = self.orders.iter().filter(|o| o.2.gpu == order.gpu);
        let before = here.map(|o| o.0).max().unwrap_or(0);
        let late = !self.draw.prompt && self.dice.next().is_multiple_of(16);
        let takes = match (enable, late) {
            (false, true) => self.dice.between(1e6, STOPS / 2.0),
            (true, true) => self.dice.between(0.5e6, STARTS / 2.0),
            _ => self.dice.between(2e4, 6e5),
        };
        self.count += 1;
        let at = before.max(self.now) + takes as u64;
        self.orders.push((at, self.count, order, enable));
        let on: BTreeSet<GpuId> = self.orders.iter().map(|o| o.2.gpu).collect();
        self.most_at_once = self.most_at_once.max(on.len());
    }

    pub fn attach(&mut self, id: u32, dice: &mut Dice) {
        if self.jobs.contains_key(&id) {
            return;
        }
        let masks = [1u8, 1, 1, 2, 3, 3, 6, 7];
        let mask = masks[(dice.next() % 8) as usize];
        let gpus = (0..GPUS).filter(|g| mask >> g & 1 == 1).map(GpuId);
        let idle = dice.next().is_multiple_of(8);
        let class = if idle { Class::Idle } else { Class::Normal };
        self.add(id, gpus.collect(), 1 + dice.next() % 4, class);
    }

    pub fn add(&mut self, id: u32, gpus: GpuSet, weight: u64, class: Class) {
        let terms = Terms {
            user: UserId(id),
            user_weight: weight as u32,
            class,
            ..Terms::default()
        };
        self.add_for(id, gpus, terms);
    }

    pub fn add_for(&mut self, id: u32, gpus: GpuSet, terms: Terms) {
        let job = Job {
            gpus,
            weight: u64::from(terms.user_weight),
            class: terms.class,
            works: true,
            paused: false,
            settled: GpuSet::EMPTY,
            broken: false,
            waits: 0,
            ran: 0,
        };
        self.jobs.insert(id, job);
        for gpu in gpus.iter() {
            self.enabled.insert((id, gpu), true);
        }
        self.send(Event::OfflineAttached {
            session: session(id),
            job: JobId(id),
            gpus,
            standing: Standing::Enabled,
        });
        for gpu in gpus.iter() {
            self.send(Event::ChannelsChanged {
                session: session(id),
                gpu,
                channels: Channels(1),
                grown: true,
            });
        }
        let job = JobId(id);
        self.send(Event::Terms { job, terms });
    }

    /// The operator gives the user of a job another weight.
    pub fn weigh(&mut self, id: u32, weight: u32) {
        let Some(known) = self.jobs.get_mut(&id) else {
            return;
        };
        known.weight = u64::from(weight);
        let terms = Terms {
            user: UserId(id),
            user_weight: weight,
            class: known.class,
            ..Terms::default()
        };
        self.forget(id);
        self.new_rivals();
        let job = JobId(id);
        self.send(Event::Terms { job, terms });
    }

    /// The clock is so much later at once: nobody knows who ran meanwhile. Orders under way are as far as before.
    pub fn jump(&mut self, ns: u64) {
        self.now += ns;
        self.orders.iter_mut().for_each(|order| order.0 += ns);
    }

    /// One step is stamped so much too early.
    pub fn step_back(&mut self, ns: u64) {
        let now = self.now;
        self.now = now.saturating_sub(ns);
        self.send(Event::Tick);
        self.now = now;
    }

    pub fn leave(&mut self, id: u32) {
        if self.jobs.remove(&id).is_some() {
            self.enabled.retain(|key, _| key.0 != id);
            self.forget(id);
            let session = session(id);
            self.send(Event::OfflineGone { session });
        }
    }

    pub fn works(&mut self, id: u32, works: bool) {
        if let Some(job) = self.jobs.get_mut(&id)
            && job.works != works
        {
            job.works = works;
            self.forget(id);
            let session = session(id);
            self.send(Event::Works { session, works });
        }
    }

    pub fn pause(&mut self, id: u32, paused: bool) {
        if let Some(job) = self.jobs.get_mut(&id)
            && job.paused != paused
        {
            job.paused = paused;
            self.forget(id);
            let job = Some(JobId(id));
            self.send(if paused {
                Event::Pause { job }
            } else {
                Event::Resume { job }
            });
        }
    }

    pub fn online(&mut self, gpu: u8, busy: bool) {
        let (generation, was, _) = self.busy[usize::from(gpu)];
        if was == busy {
            return;
        }
        self.busy[usize::from(gpu)] = (generation + 1, busy, self.now);
        let now = Instant::from_nanos(self.now);
        self.send(Event::Activity {
            session: SessionId(u64::from(gpu)),
            gpu: GpuId(gpu),
            reading: Reading {
                generation: generation + 1,
                busy,
                busy_since: now,
                idle_since: now,
                launches: Launches(1),
                graph: GraphId(0),
                turns: Turns::default(),
            },
        });
    }

    /// The books of a pair are of time in which both wanted to run.
    fn forget(&mut self, id: u32) {
        self.ahead.retain(|pair, _| pair.0 != id && pair.1 != id);
    }

    /// Who waits now waits for others than before.
    fn new_rivals(&mut self) {
        self.jobs.values_mut().for_each(|job| job.waits = 0);
    }

    /// What a job had since it came, in nanoseconds.
    pub fn ran(&self, id: u32) -> u64 {
        self.jobs.get(&id).map_or(0, |job| job.ran)
    }

    fn is_open(&self, gpu: GpuId) -> bool {
        let (_, busy, since) = self.busy[gpu.index()];
        !busy && self.now >= since + COOLDOWN
    }

    fn eligible(&self, job: &Job) -> bool {
        !job.paused && job.gpus.iter().all(|gpu| self.is_open(gpu))
    }

    fn whole(&self, id: u32, job: &Job) -> bool {
        job.gpus.iter().all(|gpu| self.enabled[&(id, gpu)])
    }

    /// Lets time pass, with all that is due.
    pub fn pass(&mut self, span: u64) {
        let end = self.now + span;
        loop {
            let order = self.orders.iter().map(|o| (o.0, o.1)).min();
            let opens = self.busy.iter().filter(|b| !b.1).map(|b| b.2 + COOLDOWN);
            let opens = opens.filter(|at| *at > self.now).min();
            let next = [order.map(|o| o.0), self.timer, opens, Some(end)];
            let at = next.into_iter().flatten().min().unwrap_or(end);
            let at = at.max(self.now);
            self.account(at - self.now);
            self.now = at;
            if let Some((_, number)) = order.filter(|order| order.0 <= at) {
                self.carry_out(number);
            } else if self.timer.is_some_and(|due| due <= at) {
                self.timer = None;
                self.send(Event::Tick);
            } else if at == end {
                return;
            }
            self.look();
        }
    }

    /// Once nothing fails any more but on a GPU that is lost, and online is idle, whoever wants to runs.
    pub fn calm(&mut self) {
        self.calm = true;
        (0..GPUS).for_each(|gpu| self.online(gpu, false));
        self.send(Event::Resume { job: None });
        let ids: Vec<u32> = self.jobs.keys().copied().collect();
        for id in &ids {
            let job = self.jobs.get_mut(id).expect("one of them");
            (job.paused, job.ran) = (false, 0);
        }
        // What failed is tried again after a second at most; then come some turns of each.
        self.pass(4_000_000_000);
        for id in ids {
            let job = &self.jobs[&id];
            let sound = self.draw.lost.is_none_or(|lost| !job.gpus.contains(lost));
            if sound && job.works && job.class == Class::Normal && job.ran == 0 {
                self.breaks(&format!("(4) job {id} starves"));
            }
        }
    }

    fn carry_out(&mut self, number: u64) {
        let Some(at) = self.orders.iter().position(|o| o.1 == number) else {
            return;
        };
        let (_, _, order, enable) = self.orders.remove(at);
        let drawn = self.draw.fails && !self.calm && self.dice.next().is_multiple_of(8);
        let fails = drawn || self.draw.lost == Some(order.gpu);
        if let Some(on) = self.enabled.get_mut(&(order.job.0, order.gpu))
            && !fails
        {
            *on = enable;
        }
        if let Some(job) = self.jobs.get_mut(&order.job.0) {
            job.settled = job.settled.with(order.gpu);
            job.broken |= fails;
        }
        let (now, status) = (Instant::from_nanos(self.now), 1);
        self.send(match (enable, fails) {
            (true, false) => Event::Enabled { order },
            (true, true) => Event::EnableFailed { order, status },
            (false, true) => Event::DisableFailed { order, status },
            (false, false) => Event::Disabled {
                order,
                entered: now,
                returned: now,
            },
        });
    }

    fn breaks(&mut self, what: &str) {
        if self.broken.len() < 4 {
            let at = self.now / 1000;
            self.broken.push(format!("at {at} us: {what}"));
        }
    }

    /// So much time passed as things stand.
    fn account(&mut self, span: u64) {
        let (mut runs, mut active) = (BTreeSet::new(), BTreeSet::new());
        for (&id, job) in &self.jobs {
            if job.works && self.eligible(job) {
                active.insert(id);
                if self.whole(id, job) {
                    runs.insert(id);
                }
            }
        }
        if active != self.active {
            self.new_rivals();
            self.active.clone_from(&active);
        }
        for id in &runs {
            let job = self.jobs.get_mut(id).expect("one of them");
            (job.ran, job.waits) = (job.ran + span, 0);
        }
        if self.draw.fails {
            return;
        }
        self.pairs(&active, &runs, span);
        self.waits(&active, &runs, span);
        self.unused(&active, &runs, span);
    }

    /// (1) and (6).
    fn pairs(&mut self, active: &BTreeSet<u32>, runs: &BTreeSet<u32>, span: u64) {
        let mut broken = None;
        for &one in active {
            for &two in active.range(one + 1..) {
                let (a, b) = (&self.jobs[&one], &self.jobs[&two]);
                if a.gpus != b.gpus || a.class != b.class {
                    continue;
                }
                // Every weight divides 12.
                let part = |id, weight: u64| match runs.contains(&id) {
                    true => i128::from(span) * 12 / i128::from(weight),
                    false => 0,
                };
                let books = self.ahead.entry((one, two)).or_default();
                books.0 += part(one, a.weight) - part(two, b.weight);
                (books.1, books.2) = (books.1.min(books.0), books.2.max(books.0));
                let each = |weight: u64| i128::from(TURN + SLACK) * 12 / i128::from(weight);
                let apart = books.2 - books.1;
                if apart > each(a.weight) + each(b.weight) {
                    let (a, b, us) = (a.weight, b.weight, apart / 12_000);
                    broken = Some(format!(
                        "(1) jobs {one} of weight {a} and {two} of weight {b} are {us} us apart"
                    ));
                }
            }
        }
        if let Some(broken) = broken {
            self.ahead.clear();
            self.breaks(&broken);
        }
    }

    /// (4)
    fn waits(&mut self, active: &BTreeSet<u32>, runs: &BTreeSet<u32>, span: u64) {
        let mut broken = None;
        for &id in active.difference(runs) {
            let own = &self.jobs[&id];
            let others = active.iter().filter(|&&other| other != id);
            let turns = others.map(|other| {
                let weight = self.jobs[other].weight;
                TURN * weight.div_ceil(own.weight) + TURN + SLACK
            });
            let bound: u64 = turns.sum::<u64>() + GRACE + SLACK;
            let waits = own.waits + span;
            if waits > bound && own.class == Class::Normal {
                broken = Some(format!("(4) job {id} waits for {} us", waits / 1000));
            }
            self.jobs.get_mut(&id).expect("one of them").waits = waits;
        }
        if let Some(broken) = broken {
            self.new_rivals();
            self.breaks(&broken);
        }
    }

    /// (5)
    fn unused(&mut self, active: &BTreeSet<u32>, runs: &BTreeSet<u32>, span: u64) {
        for gpu in (0..GPUS).map(GpuId) {
            let gpus = |id: &u32| self.jobs[id].gpus;
            let wanted = active.iter().any(|id| gpus(id) == GpuSet::of(gpu));
            let used = runs.iter().any(|id| gpus(id).contains(gpu));
            let so_far = &mut self.unused[gpu.index()];
            *so_far = if wanted && !used { *so_far + span } else { 0 };
            if *so_far > GRACE + SLACK {
                *so_far = 0;
                self.breaks(&format!("(5) GPU {} is wanted and not used", gpu.0));
            }
        }
    }

    /// (3)
    fn look(&mut self) {
        let mut broken = None;
        for gpu in (0..GPUS).map(GpuId) {
            let on = self.jobs.iter().filter(|(id, job)| {
                job.settled.contains(gpu)
                    && !job.broken
                    && self.enabled.get(&(**id, gpu)) == Some(&true)
            });
            let on: Vec<u32> = on.map(|(id, _)| *id).collect();
            if on.len() > 1 {
                broken = Some(format!("(3) jobs {on:?} are on GPU {}", gpu.0));
            }
        }
        let sound = self
            .jobs
            .iter()
            .filter(|(_, job)| job.settled == job.gpus && !job.broken);
        for (id, job) in sound {
            let under_way = self.orders.iter().any(|o| o.2.job.0 == *id);
            let any = job.gpus.iter().any(|gpu| self.enabled[&(*id, gpu)]);
            if !under_way && any && !self.whole(*id, job) {
                broken = Some(format!("(3) job {id} is half on"));
            }
        }
        if let Some(broken) = broken {
            self.breaks(&broken);
        }
    }
}
