//! Jobs that run at once by timeslices, judged from a model of a GPU that gives each group with work its timeslice in
//! turn, and from the weights.

use crate::dice::Dice;
use std::collections::BTreeMap;
use std::time::Duration;
use tidegate_policy::config::{Config, Cooldown, Fair, FairMode, Means};
use tidegate_policy::effect::{Effect, Report};
use tidegate_policy::event::{Event, Order, Standing};
use tidegate_policy::fair::{Class, Lacks, RESTS, SETTLES, Terms};
use tidegate_policy::ids::{Channels, GpuId, GpuSet, JobId, SessionId, UserId};
use tidegate_policy::node::Node;
use tidegate_policy::time::{Instant, nanos};

const CASES: u64 = 10_000;
const GPU: GpuId = GpuId(0);
/// What the driver gives, us.
const USUAL: u64 = 2_000;

#[derive(Clone, Debug)]
struct Process {
    job: u32,
    groups: u32,
    works: bool,
    lacks: bool,
}

#[derive(Clone, Debug)]
struct Job {
    terms: Terms,
    gpus: GpuSet,
    paused: bool,
    refused: bool,
    /// What each group has, us, and of which processes' groups that is so.
    slice: BTreeMap<u64, u64>,
    on: bool,
}

struct World {
    node: Node,
    now: u64,
    timer: Option<u64>,
    processes: BTreeMap<u64, Process>,
    jobs: BTreeMap<u32, Job>,
    next: u64,
    /// Timeslices that were ordered.
    orders: u64,
    told: Vec<(JobId, Lacks)>,
    /// The driver refuses.
    refuses: bool,
}

fn config(mode: FairMode) -> Config {
    Config {
        cooldown: Cooldown::Fixed(Duration::from_millis(1)),
        start_hold: Duration::ZERO,
        fair: Fair {
            mode,
            ..Fair::default()
        },
        ..Config::default()
    }
}

impl World {
    fn new(config: Config) -> Self {
        let mut world = Self {
            node: Node::new(config, 2, Instant::from_nanos(0)),
            now: 0,
            timer: None,
            processes: BTreeMap::new(),
            jobs: BTreeMap::new(),
            next: 1,
            orders: 0,
            told: Vec::new(),
            refuses: false,
        };
        world.pass(Duration::from_millis(10));
        world
    }

    fn carry_out(&mut self, effects: Vec<Effect>) -> Vec<Event<'static>> {
        let mut answers = Vec::new();
        let at = Instant::from_nanos(self.now);
        let ordered = |jobs: &mut BTreeMap<u32, Job>, order: Order, on: bool| {
            if let Some(job) = jobs.get_mut(&order.job.0) {
                job.on = on;
            }
        };
        for effect in effects {
            match effect {
                Effect::Disable(order) => {
                    ordered(&mut self.jobs, order, false);
                    answers.push(Event::Disabled {
                        order,
                        entered: at,
                        returned: at,
                    });
                }
                Effect::Enable { order, .. } => {
                    ordered(&mut self.jobs, order, true);
                    answers.push(Event::Enabled { order });
                }
                Effect::WakeAt(at) => self.timer = Some(at.as_nanos()),
                Effect::Emit(Report::TurnsInstead { job, lacks }) => self.told.push((job, lacks)),
                Effect::Timeslice { job, slice, .. } => {
                    self.orders += 1;
                    let Some(known) = self.jobs.get_mut(&job.0) else {
                        continue;
                    };
                    if self.refuses && slice.is_some() {
                        known.refused = true;
                        answers.push(Event::SliceRefused { job, status: 0x56 });
                        continue;
                    }
                    known.slice.clear();
                    if let Some(slice) = slice {
                        let own = self.processes.iter().filter(|(_, own)| own.job == job.0);
                        let us = slice.as_micros() as u64;
                        known.slice.extend(own.map(|(id, _)| (*id, us)));
                    }
                }
                _ => {}
            }
        }
        answers
    }

    fn send(&mut self, event: Event<'_>) {
        let mut out = Vec::new();
        self.node
            .step(event, Instant::from_nanos(self.now), &mut out);
        for answer in self.carry_out(out) {
            self.send(answer);
        }
    }

    fn configure(&mut self, config: Config) {
        let mut out = Vec::new();
        self.node
            .configure(config, Instant::from_nanos(self.now), &mut out);
        self.jobs.values_mut().for_each(|job| job.refused = false);
        for answer in self.carry_out(out) {
            self.send(answer);
        }
    }

    fn pass(&mut self, span: Duration) {
        let end = self.now + nanos(span);
        while let Some(at) = self.timer.filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.timer = None;
            self.send(Event::Tick);
        }
        self.now = end;
        self.send(Event::Tick);
    }

    fn terms(&mut self, job: u32, terms: Terms) {
        self.jobs.get_mut(&job).expect("one of them").terms = terms;
        let job = JobId(job);
        self.send(Event::Terms { job, terms });
    }

    fn attach(&mut self, job: u32, gpus: GpuSet, groups: u32, lacks: Option<Lacks>) -> u64 {
        let id = self.next;
        self.next += 1;
        let new = !self.jobs.contains_key(&job);
        self.jobs.entry(job).or_insert(Job {
            terms: Terms::default(),
            gpus,
            paused: false,
            refused: false,
            slice: BTreeMap::new(),
            on: true,
        });
        let process = Process {
            job,
            groups,
            works: true,
            lacks: lacks.is_some(),
        };
        self.processes.insert(id, process);
        let session = SessionId(id);
        self.send(Event::OfflineAttached {
            session,
            job: JobId(job),
            gpus,
            standing: Standing::Enabled,
        });
        if new {
            let user = UserId(job);
            self.terms(
                job,
                Terms {
                    user,
                    ..Terms::default()
                },
            );
        }
        for gpu in gpus.iter() {
            self.send(Event::Groups {
                session,
                gpu,
                groups,
                lacks,
            });
            self.send(Event::ChannelsChanged {
                session,
                gpu,
                channels: Channels(groups),
                grown: true,
            });
        }
        id
    }

    fn leave(&mut self, id: u64) {
        let Some(process) = self.processes.remove(&id) else {
            return;
        };
        if !self
            .processes
            .values()
            .any(|other| other.job == process.job)
        {
            self.jobs.remove(&process.job);
        }
        self.send(Event::OfflineGone {
            session: SessionId(id),
        });
    }

    fn works(&mut self, id: u64, works: bool) {
        if let Some(process) = self.processes.get_mut(&id) {
            process.works = works;
            let session = SessionId(id);
            self.send(Event::Works { session, works });
        }
    }

    fn pause(&mut self, id: u32, paused: bool) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.paused = paused;
            let job = Some(JobId(id));
            self.send(if paused {
                Event::Pause { job }
            } else {
                Event::Resume { job }
            });
        }
    }

    fn works_at_all(&self, job: u32) -> bool {
        self.processes
            .values()
            .any(|own| own.job == job && own.works)
    }

    /// The class that runs, and the jobs of it that have work.
    fn runners(&self) -> Vec<u32> {
        let wants = |(id, job): &(&u32, &Job)| !job.paused && self.works_at_all(**id);
        let class = self
            .jobs
            .iter()
            .filter(wants)
            .map(|(_, job)| job.terms.class)
            .min();
        let of_class = |(_, job): &(&u32, &Job)| Some(job.terms.class) == class;
        let runs = self.jobs.iter().filter(wants).filter(of_class);
        runs.map(|(id, _)| *id).collect()
    }

    /// Part of a round that each job gets whose channels are enabled.
    fn shares(&self) -> BTreeMap<u32, f64> {
        let mut time: BTreeMap<u32, f64> = BTreeMap::new();
        for (id, process) in &self.processes {
            let job = &self.jobs[&process.job];
            if job.on && process.works {
                let us = job.slice.get(id).copied().unwrap_or(USUAL);
                *time.entry(process.job).or_default() += (us * u64::from(process.groups)) as f64;
            }
        }
        let all: f64 = time.values().sum();
        time.values_mut().for_each(|own| *own /= all);
        time
    }

    /// By the weights alone.
    fn deserved(&self) -> BTreeMap<u32, f64> {
        let runners = self.runners();
        let weight = |id: &u32| {
            let terms = self.jobs[id].terms;
            let user = runners
                .iter()
                .filter(|other| self.jobs[other].terms.user == terms.user);
            let sum: u32 = user.map(|other| self.jobs[other].terms.weight).sum();
            f64::from(terms.user_weight * terms.weight) / f64::from(sum)
        };
        let all: f64 = runners.iter().map(weight).sum();
        runners.iter().map(|id| (*id, weight(id) / all)).collect()
    }

    /// Why they may not run at once.
    fn turns(&self) -> bool {
        let lacks = self.processes.values().any(|own| own.lacks);
        let refused = self
            .jobs
            .values()
            .any(|job| job.refused || job.gpus.len() > 1);
        self.jobs.len() > 1 && (lacks || refused)
    }

    fn on(&self) -> Vec<u32> {
        let on = self.jobs.iter().filter(|(_, job)| job.on);
        on.map(|(id, _)| *id).collect()
    }
}

fn draw(world: &mut World, dice: &mut Dice) {
    let job = (dice.next() % 4) as u32;
    let known: Vec<u64> = world.processes.keys().copied().collect();
    let process = known
        .get((dice.next() % known.len().max(1) as u64) as usize)
        .copied();
    match (dice.next() % 12, process) {
        (0..=3, _) | (_, None) => {
            let groups = 1 + (dice.next() % 3) as u32;
            world.attach(job, GpuSet::of(GPU), groups, None);
        }
        (4, Some(id)) => world.leave(id),
        (5..=7, Some(id)) => world.works(id, !dice.next().is_multiple_of(2)),
        (8, _) => world.pause(job, dice.next().is_multiple_of(2)),
        _ if world.jobs.contains_key(&job) => {
            let idle = dice.next().is_multiple_of(6);
            let terms = Terms {
                user: UserId((dice.next() % 3) as u32),
                user_weight: 1,
                weight: 1 + (dice.next() % 7) as u32,
                class: if idle { Class::Idle } else { Class::Normal },
                most: 1000,
            };
            world.terms(job, terms);
        }
        _ => {}
    }
}

/// P-FAIR-15: timeslices add up to what the weights say, whatever number of processes and groups a job has, and the
/// driver is asked only when that changes.
#[test]
fn timeslices_add_up_by_weight_and_are_ordered_only_on_change() {
    let mut several = 0u64;
    for seed in 0..CASES {
        let mut dice = Dice::new(seed);
        let mut world = World::new(config(FairMode::Slices));
        for _ in 0..12 {
            draw(&mut world, &mut dice);
            world.pass(Duration::from_millis(dice.next() % 300));
        }
        world.pass(RESTS + SETTLES);
        let (got, deserved) = (world.shares(), world.deserved());
        for (job, part) in &deserved {
            let own = got.get(job).copied().unwrap_or(0.0);
            let apart = (own / part - 1.0).abs();
            assert!(
                apart < 2e-3,
                "seed {seed}: job {job} has {own} and deserves {part}"
            );
        }
        assert_eq!(
            got.len(),
            deserved.len(),
            "seed {seed}: {got:?} for {deserved:?}"
        );
        several += u64::from(deserved.len() > 1);
        let orders = world.orders;
        world.pass(Duration::from_secs(5));
        assert_eq!(world.orders, orders, "seed {seed}: nothing changed");
    }
    assert!(
        several > CASES / 3,
        "only {several} cases had jobs beside each other"
    );
}

/// P-FAIR-16: a job that cannot be given timeslices has its component take turns, people are told which and why, and what
/// was given is put back; when it is gone, or the operator tries again, they run at once again.
#[test]
fn what_cannot_be_given_timeslices_takes_turns_and_says_why() {
    for seed in 0..CASES {
        let mut dice = Dice::new(seed);
        let mut world = World::new(config(FairMode::Slices));
        for job in 0..3 {
            for _ in 0..=dice.next() % 2 {
                world.attach(job, GpuSet::of(GPU), 1, None);
            }
        }
        // Unequal weights, so that everybody was given something.
        let terms = |user, weight| Terms {
            user: UserId(user),
            weight: 1,
            user_weight: weight,
            ..Terms::default()
        };
        (0..3).for_each(|job| world.terms(job, terms(job, 1 + job)));
        world.pass(2 * SETTLES);
        assert_eq!(world.on(), [0, 1, 2], "seed {seed}: at once");
        assert!(
            world.jobs.values().all(|job| !job.slice.is_empty()),
            "seed {seed}"
        );
        let (lacks, cause) = match dice.next() % 3 {
            0 => {
                let both = [GPU, GpuId(1)].into_iter().collect();
                (Lacks::Gang, Some(world.attach(9, both, 1, None)))
            }
            1 => {
                let file = Some(Lacks::File);
                (Lacks::File, Some(world.attach(9, GpuSet::of(GPU), 1, file)))
            }
            _ => {
                world.refuses = true;
                world.attach(9, GpuSet::of(GPU), 1, None);
                (Lacks::Refused(0x56), None)
            }
        };
        world.pass(2 * SETTLES);
        assert!(world.turns(), "seed {seed}");
        let on = world.on();
        assert!(on.len() == 1, "seed {seed}: {on:?} in turns, {lacks:?}");
        assert_eq!(world.told.len(), 1, "seed {seed}: {:?}", world.told);
        assert_eq!(world.told[0].1, lacks, "seed {seed}");
        let view = world.node.turns(JobId(1), Instant::from_nanos(world.now));
        assert_eq!(view.lacks, Some(world.told[0]), "seed {seed}");
        let put_back = world.jobs.values().all(|job| job.slice.is_empty());
        assert!(put_back, "seed {seed}: {lacks:?}");
        world.pass(Duration::from_secs(2));
        assert_eq!(world.told.len(), 1, "seed {seed}: told once");
        world.refuses = false;
        match cause {
            Some(id) => world.leave(id),
            None => world.configure(config(FairMode::Slices)),
        }
        world.pass(2 * SETTLES);
        let all = world.jobs.keys().copied().collect::<Vec<_>>();
        assert_eq!(world.on(), all, "seed {seed}: at once again");
        assert!(
            world.jobs.values().all(|job| !job.slice.is_empty()),
            "seed {seed}"
        );
    }
}

/// P-FAIR-17: what was given is put back when the operator wants turns, drains the node, or only one job is left.
#[test]
fn what_was_given_is_put_back() {
    for end in 0..3 {
        let mut world = World::new(config(FairMode::Slices));
        let other = world.attach(0, GpuSet::of(GPU), 2, None);
        world.attach(1, GpuSet::of(GPU), 1, None);
        world.pass(2 * SETTLES);
        let given: Vec<u64> = world
            .jobs
            .values()
            .flat_map(|job| job.slice.values())
            .copied()
            .collect();
        assert_eq!(
            given,
            [5_000, 10_000],
            "one for each of two groups, and one for one"
        );
        match end {
            0 => world.configure(config(FairMode::Turns)),
            1 => world.send(Event::Drain { drained: true }),
            _ => world.leave(other),
        }
        if end == 2 {
            world.pass(2 * SETTLES);
        }
        assert!(world.jobs.values().all(|job| job.slice.is_empty()), "{end}");
    }
}

/// P-FAIR-16: at the launch gate alone nobody makes calls for channels, so jobs take turns.
#[test]
fn at_the_launch_gate_jobs_take_turns() {
    let mut world = World::new(Config {
        means: Means::LaunchGate,
        ..config(FairMode::Slices)
    });
    world.attach(0, GpuSet::of(GPU), 1, None);
    world.attach(1, GpuSet::of(GPU), 1, None);
    world.pass(2 * SETTLES);
    assert_eq!(world.on().len(), 1);
    assert_eq!(world.told.first().map(|told| told.1), Some(Lacks::Level));
    assert_eq!(world.orders, 0);
}

/// P-FAIR-17: what an earlier agent gave is put back where nobody shares, and set anew where somebody does.
#[test]
fn what_an_earlier_agent_gave_is_put_right() {
    let mut world = World::new(config(FairMode::Slices));
    let session = SessionId(7);
    world.jobs.insert(
        0,
        Job {
            terms: Terms::default(),
            gpus: GpuSet::of(GPU),
            paused: false,
            refused: false,
            slice: BTreeMap::from([(7, 40_000)]),
            on: true,
        },
    );
    world.processes.insert(
        7,
        Process {
            job: 0,
            groups: 1,
            works: true,
            lacks: false,
        },
    );
    world.send(Event::OfflineAttached {
        session,
        job: JobId(0),
        gpus: GpuSet::of(GPU),
        standing: Standing::Unknown,
    });
    world.send(Event::Groups {
        session,
        gpu: GPU,
        groups: 1,
        lacks: None,
    });
    world.pass(2 * SETTLES);
    assert!(world.jobs[&0].slice.is_empty(), "put back");
    assert_eq!(world.orders, 1);
    world.attach(1, GpuSet::of(GPU), 1, None);
    world.pass(2 * SETTLES);
    assert_eq!(world.jobs[&0].slice, BTreeMap::from([(7, 5_000)]));
}
