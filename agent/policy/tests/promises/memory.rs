//! How memory moves, under any list of events: who is disabled, who is promised what, and that
//! everything ends.

use crate::bench::Bench;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use tidegate_policy::config::{Config, Cooldown, Reserving, Sharing};
use tidegate_policy::effect::{Effect, Granted, Report};
use tidegate_policy::event::Event;
use tidegate_policy::ids::{
    AskId, BlockId, Bytes, GpuId, GpuSet, JobId, KvId, LogSeq, ReclaimId, RequestId, SessionId,
    StripeId, Tokens,
};
use tidegate_policy::layout::{Layout, Stripe};
use tidegate_policy::ledger::Place;
use tidegate_policy::memory::MemoryEvent;
use tidegate_policy::reclaim::{Answer, Direction, Phase};
use tidegate_policy::time::Instant;

const GPUS: u8 = 2;
const POOL: Bytes = Bytes(1_000);
const STRIPES: u32 = 8;
/// Bytes of a stripe: two handles of ten.
const STRIPE: u64 = 20;
/// Of online's cache, beside what grows.
const FIXED: Bytes = Bytes(5);
const MS: u64 = 1_000_000;
const ONLINE: SessionId = SessionId(1);
const KV: KvId = KvId(1);

fn config() -> Config {
    Config {
        cooldown: Cooldown::Fixed(Duration::from_millis(5)),
        start_hold: Duration::ZERO,
        frozen_after: Duration::from_secs(3600),
        sharing: Sharing {
            reserving: Reserving {
                step: Bytes(10),
                min: Bytes(20),
                max: Bytes(400),
                ..Reserving::default()
            },
            ..Sharing::default()
        },
        ..Config::default()
    }
}

fn layout() -> Layout {
    let stripe = |nth: u32| Stripe {
        handles: vec![2 * nth, 2 * nth + 1],
        blocks: (2 * nth..2 * nth + 3).map(BlockId).collect(),
    };
    Layout::of_stripes((0..STRIPES).map(stripe).collect(), Bytes(10))
}

/// What one offline process really has, whatever the policy believes.
#[derive(Clone, Debug)]
struct Process {
    job: JobId,
    gpu: GpuId,
    backed: BTreeSet<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Order {
    reclaim: ReclaimId,
    session: SessionId,
    direction: Option<Direction>,
}

struct World {
    bench: Bench,
    processes: BTreeMap<SessionId, Process>,
    /// Orders a process has and has not answered; the stripes of a move with it.
    open: Vec<(Order, Vec<StripeId>)>,
    /// Demands without an answer.
    asks: BTreeSet<u64>,
    logs: BTreeMap<JobId, u64>,
    /// What the engine of a job said that it withholds.
    withheld: BTreeMap<JobId, u64>,
    lost_at: BTreeMap<(JobId, u32), u64>,
    mapped: u64,
    target: Option<u64>,
    next_ask: u64,
}

impl World {
    fn new() -> Self {
        Self::with(config())
    }

    fn with(config: Config) -> Self {
        let mut bench = Bench::new(config, GPUS);
        for gpu in 0..GPUS {
            let gpu = GpuId(gpu);
            bench.send_memory(MemoryEvent::Pool { gpu, bytes: POOL });
        }
        bench.attach_online(ONLINE);
        bench.busy(ONLINE, GpuId(0));
        bench.idle(ONLINE, GpuId(0), 10, 0);
        let mut world = Self {
            bench,
            processes: BTreeMap::new(),
            open: Vec::new(),
            asks: BTreeSet::new(),
            logs: BTreeMap::new(),
            withheld: BTreeMap::new(),
            lost_at: BTreeMap::new(),
            mapped: 0,
            target: None,
            next_ask: 0,
        };
        let (session, gpu, kv) = (ONLINE, GpuId(0), KV);
        world.tell(MemoryEvent::ElasticRegistered {
            session,
            gpu,
            kv,
            mapped: Bytes::ZERO,
            fixed: FIXED,
            most: Bytes(2_000),
        });
        world
    }

    fn tell(&mut self, event: MemoryEvent<'_>) {
        self.bench.send_memory(event);
        self.check();
    }

    /// Takes new orders to their processes, and looks at every effect since the last look.
    fn check(&mut self) {
        for gpu in 0..GPUS {
            let ledger = self.bench.node.ledger(GpuId(gpu)).expect("it is there");
            assert_eq!(ledger.totals().sum(), POOL, "of GPU {gpu}");
        }
        while let Some(effect) = self.bench.orders.pop_front() {
            match effect {
                Effect::Prepare {
                    reclaim, session, ..
                } => {
                    let direction = None;
                    self.open.push((
                        Order {
                            reclaim,
                            session,
                            direction,
                        },
                        Vec::new(),
                    ));
                }
                Effect::Move {
                    reclaim,
                    session,
                    direction,
                    ..
                } => {
                    let job = self.processes[&session].job;
                    let stripes = self.bench.node.stripes(reclaim).to_vec();
                    assert!(!stripes.is_empty());
                    if direction == Direction::GiveBack {
                        self.is_promised(session, &stripes);
                        let withheld = self.withheld.get(&job).copied().unwrap_or(0);
                        for stripe in &stripes {
                            let lost = self.lost_at.get(&(job, stripe.0)).copied().unwrap_or(0);
                            assert!(lost <= withheld, "given back before it was withheld");
                        }
                    }
                    let direction = Some(direction);
                    self.open.push((
                        Order {
                            reclaim,
                            session,
                            direction,
                        },
                        stripes,
                    ));
                }
                Effect::CancelMove { .. } => {}
                Effect::Map { session, bytes, .. } => {
                    assert_eq!(session, ONLINE);
                    self.target = Some(bytes.0);
                }
                Effect::AnswerAsk { ask, granted, .. } => {
                    assert!(self.asks.remove(&ask.0), "answered twice, or never asked");
                    let _ = granted;
                }
                _ => {}
            }
        }
    }

    /// What a process is told to map again is kept for it, and for nobody else.
    fn is_promised(&self, session: SessionId, stripes: &[StripeId]) {
        let Process { gpu, backed, .. } = &self.processes[&session];
        let fresh = stripes.iter().filter(|stripe| !backed.contains(&stripe.0));
        let bytes = Bytes(STRIPE).times(fresh.count() as u64);
        let ledger = self.bench.node.ledger(*gpu).expect("it is there");
        let kept = ledger.account(session).at(Place::InFlight);
        assert!(
            kept >= bytes,
            "{bytes:?} are given back, {kept:?} kept for it"
        );
    }

    fn register(&mut self, session: SessionId) {
        let Some(process) = self.processes.get(&session).cloned() else {
            return;
        };
        let backed: Vec<bool> = (0..STRIPES).map(|s| process.backed.contains(&s)).collect();
        self.tell(MemoryEvent::KvRegistered {
            session,
            job: process.job,
            gpu: process.gpu,
            kv: KV,
            layout: layout(),
            backed: &backed,
            fixed: Bytes(7),
            reclaimable: true,
            counted: Bytes::ZERO,
        });
    }

    /// A process answers one of its orders; `Done` unless told otherwise.
    fn answer(&mut self, nth: usize, answer: Answer) {
        if self.open.is_empty() {
            return;
        }
        let (order, stripes) = self.open[nth % self.open.len()].clone();
        let Order {
            reclaim,
            session,
            direction,
        } = order;
        if answer != Answer::Late || direction.is_none() {
            self.open.retain(|(open, _)| {
                (open.reclaim, open.session, open.direction) != (reclaim, session, direction)
            });
        }
        if answer != Answer::Late {
            self.bench.moving.remove(&(reclaim, session));
        }
        let Some(direction) = direction else {
            return self.tell(MemoryEvent::Prepared {
                reclaim,
                session,
                answer,
            });
        };
        let done = match answer {
            Answer::Done => stripes.len(),
            Answer::Refused => stripes.len() / 2,
            Answer::Late => 0,
        };
        let stripes = &stripes[..done];
        let process = self.processes.get_mut(&session).expect("it has an order");
        let log = self.logs.entry(process.job).or_insert(0);
        for stripe in stripes {
            match direction {
                Direction::Take => {
                    if process.backed.remove(&stripe.0) {
                        *log += 1;
                        self.lost_at.insert((process.job, stripe.0), *log);
                    }
                }
                Direction::GiveBack => drop(process.backed.insert(stripe.0)),
            }
        }
        let log = LogSeq(*log);
        self.tell(MemoryEvent::Moved {
            reclaim,
            session,
            answer,
            stripes,
            log,
        });
    }

    fn ask(&mut self, bytes: u64, kv: bool) {
        self.next_ask += 1;
        let kv = kv.then_some(KV);
        if kv.is_some() {
            // A second demand for a cache replaces the first.
            self.asks.retain(|ask| ask % 2 == 0);
        }
        // Even: an allocation.
        let ask = 2 * self.next_ask + u64::from(kv.is_some());
        self.asks.insert(ask);
        let (session, gpu, bytes) = (ONLINE, GpuId(0), Bytes(bytes));
        self.tell(MemoryEvent::Asked {
            session,
            ask: AskId(ask),
            gpu,
            kv,
            bytes,
            mapped: kv.map(|_| Bytes(self.mapped)),
        });
    }

    fn map(&mut self, share: u64) {
        if let Some(target) = self.target.take() {
            self.mapped = if share >= 100 {
                target
            } else {
                self.mapped.min(target)
            };
            let (session, kv, mapped) = (ONLINE, KV, Bytes(self.mapped));
            self.tell(MemoryEvent::Mapped {
                session,
                kv,
                mapped,
                last: true,
            });
        }
    }

    fn kill(&mut self, session: SessionId) {
        self.processes.remove(&session);
        self.open.retain(|(open, _)| open.session != session);
        self.bench.offline_gone(session);
        self.check();
    }

    /// Everything that can be answered is, until nothing more happens.
    fn calm(&mut self) {
        for _ in 0..200 {
            self.answer_everything();
            for (job, log) in self.logs.clone() {
                self.withheld.insert(job, log);
                let of = |p: &(&SessionId, &Process)| p.1.job == job;
                if let Some((session, _)) = self.processes.iter().find(of) {
                    let (session, log) = (*session, LogSeq(log));
                    self.tell(MemoryEvent::Withheld { session, log });
                }
            }
            self.bench.pass(50 * MS);
            self.check();
        }
        self.answer_everything();
    }

    fn answer_everything(&mut self) {
        while !(self.open.is_empty() && self.bench.issued.iter().all(VecDeque::is_empty)) {
            self.bench.answer_all();
            self.check();
            self.answer(0, Answer::Done);
        }
        self.map(100);
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Pass(u64),
    Busy(bool),
    Attach(u64, u32, u8),
    Register(u64),
    Kill(u64),
    Orders(u8, bool),
    Answer(usize, Answer),
    Publish(u64, u64, u32, u64),
    Forget(u64, u64),
    Withhold(u32),
    Ask(u64, bool),
    Withdraw,
    Use(u64),
    Map(u64),
    Count(u64, u8, u64),
    Grow(u64, u8),
    Pause(bool),
    OnlineDies,
}

fn op() -> impl Strategy<Value = Op> {
    let (session, gpu, job) = (10u64..14, 0..GPUS, 0u32..2);
    let answer = prop_oneof![
        6 => Just(Answer::Done), 1 => Just(Answer::Refused), 1 => Just(Answer::Late),
    ];
    prop_oneof![
        6 => (0u64..30 * MS).prop_map(Op::Pass),
        1 => Just(Op::Pass(1_500 * MS)),
        4 => any::<bool>().prop_map(Op::Busy),
        4 => (session.clone(), job.clone(), gpu.clone()).prop_map(|(s, j, g)| Op::Attach(s, j, g)),
        1 => session.clone().prop_map(Op::Register),
        1 => session.clone().prop_map(Op::Kill),
        8 => (gpu.clone(), prop::bool::weighted(0.1)).prop_map(|(g, f)| Op::Orders(g, f)),
        10 => (0usize..4, answer).prop_map(|(n, a)| Op::Answer(n, a)),
        4 => (session.clone(), 0u64..6, 0u32..16, 1u64..100)
            .prop_map(|(s, r, b, t)| Op::Publish(s, r, b, t)),
        1 => (session.clone(), 0u64..6).prop_map(|(s, r)| Op::Forget(s, r)),
        2 => job.prop_map(Op::Withhold),
        4 => (1u64..200, any::<bool>()).prop_map(|(b, k)| Op::Ask(b, k)),
        1 => Just(Op::Withdraw),
        3 => (0u64..1_000).prop_map(Op::Use),
        5 => (50u64..150).prop_map(Op::Map),
        2 => (prop_oneof![Just(1u64), session.clone()], gpu.clone(), 0u64..900)
            .prop_map(|(s, g, b)| Op::Count(s, g, b)),
        1 => (session, gpu).prop_map(|(s, g)| Op::Grow(s, g)),
        1 => any::<bool>().prop_map(Op::Pause),
        1 => Just(Op::OnlineDies),
    ]
}

fn apply(world: &mut World, op: Op) {
    match op {
        Op::Pass(ns) => world.bench.pass(ns),
        Op::Busy(true) => world.bench.busy(ONLINE, GpuId(0)),
        Op::Busy(false) => world.bench.idle(ONLINE, GpuId(0), 10, 0),
        Op::Attach(session, job, gpu) => {
            let (session, job, gpu) = (SessionId(session), JobId(job), GpuId(gpu));
            if !world.processes.contains_key(&session) {
                let backed = (0..STRIPES).collect();
                world.bench.attach_offline(session, job, GpuSet::of(gpu));
                world
                    .processes
                    .insert(session, Process { job, gpu, backed });
                world.register(session);
            }
        }
        Op::Register(session) => {
            let session = SessionId(session);
            // Said again only when nothing of it is under way, as the library does.
            if !world.open.iter().any(|(open, _)| open.session == session) {
                world.register(session);
            }
        }
        Op::Kill(session) => world.kill(SessionId(session)),
        Op::Orders(gpu, fails) => world.bench.answer(GpuId(gpu), fails),
        Op::Answer(nth, answer) => world.answer(nth, answer),
        Op::Publish(session, request, block, tokens) => {
            let blocks: Vec<BlockId> = (block..block + 3).map(BlockId).collect();
            world.tell(MemoryEvent::Published {
                session: SessionId(session),
                request: RequestId(request),
                tokens: Tokens(tokens),
                blocks: &blocks,
            });
        }
        Op::Forget(session, request) => world.tell(MemoryEvent::Forgotten {
            session: SessionId(session),
            request: (request > 0).then_some(RequestId(request)),
        }),
        Op::Withhold(job) => {
            let job = JobId(job);
            let log = world.logs.get(&job).copied().unwrap_or(0);
            world.withheld.insert(job, log);
            if let Some((session, _)) = world.processes.iter().find(|p| p.1.job == job) {
                let (session, log) = (*session, LogSeq(log));
                world.tell(MemoryEvent::Withheld { session, log });
            }
        }
        Op::Ask(bytes, kv) => world.ask(bytes, kv),
        Op::Withdraw => {
            if let Some(ask) = world.asks.pop_first() {
                let (session, ask) = (ONLINE, AskId(ask));
                world.tell(MemoryEvent::Withdrawn { session, ask });
            }
        }
        Op::Use(used) => {
            let (session, kv, used) = (ONLINE, KV, Bytes(used));
            world.tell(MemoryEvent::Usage { session, kv, used });
        }
        Op::Map(share) => world.map(share),
        Op::Count(session, gpu, bytes) => world.tell(MemoryEvent::Counted {
            session: SessionId(session),
            gpu: GpuId(gpu),
            bytes: Bytes(bytes),
        }),
        Op::Grow(session, gpu) => {
            let session = SessionId(session);
            if let Some(&job) = world.bench.jobs.get(&session) {
                // A new channel is born enabled; the move that may be under way began without it,
                // and the driver's hook keeps it from being scheduled until it is in the lists.
                let known = world.bench.held.entry((session, GpuId(gpu)));
                known.or_insert((job, true));
                world.bench.send(Event::ChannelsChanged {
                    session,
                    gpu: GpuId(gpu),
                    channels: tidegate_policy::ids::Channels(2),
                    grown: true,
                });
            }
        }
        Op::Pause(true) => world.bench.send(Event::Pause { job: None }),
        Op::Pause(false) => world.bench.send(Event::Resume { job: None }),
        Op::OnlineDies => {
            world.asks.clear();
            (world.mapped, world.target) = (0, None);
            world.bench.online_gone(ONLINE);
            world.bench.attach_online(ONLINE);
        }
    }
    world.check();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_024))]

    #[test]
    fn memory_moves_only_while_all_of_the_job_is_disabled_and_everything_ends(
        ops in prop::collection::vec(op(), 0..150),
    ) {
        let mut world = World::new();
        for op in ops {
            apply(&mut world, op);
        }
        world.bench.send(Event::Resume { job: None });
        world.bench.idle(ONLINE, GpuId(0), 10, 0);
        world.calm();
        prop_assert!(world.asks.is_empty(), "unanswered: {:?}", world.asks);
        for job in world.bench.node.jobs().collect::<Vec<_>>() {
            prop_assert!(!world.bench.held_jobs.contains(&job.job), "{:?} is still held", job);
            let memory = world.bench.node.job_memory(job.job);
            prop_assert!(memory.is_none_or(|memory| memory.phase == Phase::Idle));
        }
        prop_assert_eq!(world.bench.held.values().filter(|held| !held.1).count(), 0);
        // The books say what the processes have.
        for gpu in (0..GPUS).map(GpuId) {
            let totals = world.bench.node.ledger(gpu).expect("it is there").totals();
            prop_assert_eq!(totals.quarantined, Bytes::ZERO);
            prop_assert_eq!(totals.in_flight, Bytes::ZERO);
        }
    }
}

/// An offline job with all its memory, and online idle.
fn colocated(job_bytes: u32) -> World {
    let mut world = World::new();
    world.map(100);
    let session = SessionId(10);
    world
        .bench
        .attach_offline(session, JobId(0), GpuSet::of(GpuId(0)));
    let backed = (0..job_bytes).collect();
    world.processes.insert(
        session,
        Process {
            job: JobId(0),
            gpu: GpuId(0),
            backed,
        },
    );
    world.register(session);
    world.bench.pass(10 * MS);
    world.bench.answer_all();
    let fill = world
        .bench
        .node
        .ledger(GpuId(0))
        .expect("it is there")
        .free();
    world.tell(MemoryEvent::Counted {
        session: ONLINE,
        gpu: GpuId(0),
        bytes: fill,
    });
    world.check();
    world
}

fn granted(world: &World) -> Vec<Granted> {
    let answers = world
        .bench
        .effects
        .iter()
        .filter_map(|effect| match effect.1 {
            Effect::AnswerAsk { granted, .. } => Some(granted),
            _ => None,
        });
    answers.collect()
}

#[test]
fn a_demand_is_met_from_the_job_that_is_disabled_for_it_and_runs_again() {
    let mut world = colocated(STRIPES);
    world.ask(15, false);
    assert!(
        world.bench.issued[0].is_empty(),
        "asked before anything is disabled"
    );
    world.answer(0, Answer::Done);
    assert_eq!(
        world.open.len(),
        0,
        "nothing moves while channels are enabled"
    );
    world.bench.answer_all();
    world.check();
    world.answer(0, Answer::Done);
    assert_eq!(granted(&world), [Granted::Yes]);
    world.bench.answer_all();
    world.check();
    assert!(
        world.bench.held[&(SessionId(10), GpuId(0))].1,
        "it runs again"
    );
    assert!(!world.bench.held_jobs.contains(&JobId(0)));
}

#[test]
fn a_job_that_does_not_answer_is_left_disabled_and_nobody_waits_for_it() {
    let mut world = colocated(STRIPES);
    world.ask(15, false);
    world.answer(0, Answer::Done);
    world.bench.answer_all();
    world.check();
    assert_eq!(world.open.len(), 1, "its process was told to move");
    world.bench.pass(21 * MS);
    world.check();
    assert_eq!(granted(&world), [Granted::No]);
    world.bench.pass(2_000 * MS);
    world.check();
    assert!(
        !world.bench.held[&(SessionId(10), GpuId(0))].1,
        "between an unmap and a map"
    );
    world.ask(15, false);
    assert_eq!(granted(&world), [Granted::No, Granted::No]);
    world.answer(0, Answer::Done);
    world.bench.answer_all();
    world.check();
    assert!(
        world.bench.held[&(SessionId(10), GpuId(0))].1,
        "it answered"
    );
}

#[test]
fn a_thread_inside_the_driver_costs_the_job_nothing_and_a_second_job_is_taken() {
    let mut world = colocated(STRIPES);
    let second = SessionId(11);
    world
        .bench
        .attach_offline(second, JobId(1), GpuSet::of(GpuId(0)));
    let backed = (0..STRIPES).collect();
    world.processes.insert(
        second,
        Process {
            job: JobId(1),
            gpu: GpuId(0),
            backed,
        },
    );
    // What the second job has was online's until now.
    let counted = POOL.0 - 7 - u64::from(STRIPES) * STRIPE;
    world.tell(MemoryEvent::Counted {
        session: ONLINE,
        gpu: GpuId(0),
        bytes: Bytes(counted - 167 - 20),
    });
    world.register(second);
    world.bench.pass(10 * MS);
    world.bench.answer_all();
    world.ask(15, false);
    let first = world.open[0].0.session;
    world.answer(0, Answer::Refused);
    assert!(world.bench.issued[0].is_empty(), "nothing was disabled");
    assert_ne!(world.open[0].0.session, first, "the other is asked");
    world.answer(0, Answer::Done);
    world.bench.answer_all();
    world.check();
    world.answer(0, Answer::Done);
    assert_eq!(granted(&world), [Granted::Yes]);
}

#[test]
fn the_cheapest_stripe_goes_and_comes_back_once_withheld() {
    let mut world = colocated(STRIPES);
    let session = SessionId(10);
    for (request, block, tokens) in [(1, 0, 900), (2, 4, 100), (3, 8, 900), (4, 12, 900)] {
        let blocks: Vec<BlockId> = (block..block + 4).map(BlockId).collect();
        world.tell(MemoryEvent::Published {
            session,
            request: RequestId(request),
            tokens: Tokens(tokens),
            blocks: &blocks,
        });
    }
    world.ask(15, false);
    world.answer(0, Answer::Done);
    world.bench.answer_all();
    world.check();
    let picked = world.open[0].1.clone();
    world.answer(0, Answer::Done);
    assert_eq!(picked, [StripeId(2)], "blocks 4 to 6, of request 2 alone");
    let taken = world
        .bench
        .node
        .stripe_of(JobId(0), 5)
        .expect("the stripe of handle 5");
    assert_eq!(taken.choice.map(|choice| choice.nth), Some(0));
    world.ask(0, false);
    world.bench.answer_all();
    world.tell(MemoryEvent::Counted {
        session: ONLINE,
        gpu: GpuId(0),
        bytes: Bytes(0),
    });
    world.bench.pass(1_500 * MS);
    world.check();
    assert!(
        world.open.is_empty(),
        "the engine has not said that it withholds the blocks"
    );
    world.calm();
    assert_eq!(world.processes[&session].backed.len(), STRIPES as usize);
    let restored = |report: &Report| matches!(report, Report::Restored { .. });
    assert!(world.bench.reports.iter().any(restored));
}

#[test]
fn what_online_is_promised_while_a_job_is_stopped_is_not_given_back_to_it() {
    let mut world = colocated(STRIPES);
    let session = SessionId(10);
    world.ask(4 * STRIPE, false);
    while !world.open.is_empty() {
        world.answer(0, Answer::Done);
        world.bench.answer_all();
        world.check();
    }
    assert_eq!(granted(&world), [Granted::Yes]);
    let taken = STRIPES as usize - world.processes[&session].backed.len();
    assert_eq!(taken, 4);
    let (job, log) = (JobId(0), world.logs[&JobId(0)]);
    world.withheld.insert(job, log);
    let log = LogSeq(log);
    world.tell(MemoryEvent::Withheld { session, log });
    // Online did not need it: all four are to come back, and the job is asked to let its launches wait.
    while world.open.is_empty() {
        world.bench.pass(50 * MS);
        world.bench.answer_all();
        world.check();
    }
    // Meanwhile online takes the room of three.
    world.ask(2 * STRIPE + 1, false);
    assert_eq!(granted(&world), [Granted::Yes, Granted::Yes]);
    world.answer(0, Answer::Done);
    world.bench.answer_all();
    world.check();
    assert_eq!(world.open[0].1.len(), 1, "of four");
    world.answer(0, Answer::Done);
    assert_eq!(world.processes[&session].backed.len(), STRIPES as usize - 3);
}

#[test]
fn online_under_pressure_is_mapped_ahead_and_what_it_leaves_is_given_back() {
    let mut world = colocated(STRIPES);
    let before = world.mapped;
    let (session, kv, used) = (ONLINE, KV, Bytes(before));
    world.tell(MemoryEvent::Usage { session, kv, used });
    world.calm();
    assert!(world.mapped > before, "{} after {before}", world.mapped);
    let pressure = |report: &&Report| matches!(report, Report::Pressure { .. });
    assert_eq!(world.bench.reports.iter().filter(pressure).count(), 1);
    assert!(world.processes[&SessionId(10)].backed.len() < STRIPES as usize);
    let rate = world
        .bench
        .node
        .elastics(Instant::from_nanos(world.bench.now))
        .next();
    assert!(rate.is_some_and(|view| view.events == 0 && view.mapped == Bytes(world.mapped)));
}

#[test]
fn online_that_waits_for_more_than_is_mapped_is_kept_more_headroom() {
    let mut world = colocated(STRIPES);
    let view = |world: &World| {
        let now = Instant::from_nanos(world.bench.now);
        world.bench.node.elastics(now).next().expect("it is there")
    };
    let before = view(&world);
    world.ask(before.reservation.0 - world.mapped + 10, true);
    world.calm();
    let after = view(&world);
    assert_eq!(after.events, 1);
    assert!(after.headroom > before.headroom, "{after:?}");
}

#[test]
fn a_new_agent_promises_nothing_until_processes_had_time_to_attach() {
    let mut world = World::with(Config {
        start_hold: Duration::from_millis(500),
        ..config()
    });
    world.ask(50, true);
    assert_eq!(granted(&world), [Granted::No]);
    assert_eq!(world.target, None, "an offline process may hold all of it");
    world.bench.pass(600 * MS);
    world.check();
    assert!(world.target.is_some(), "by now it would have said so");
}

#[test]
fn a_cache_that_was_counted_is_not_counted_again_when_it_is_registered() {
    let mut world = World::new();
    world.map(100);
    let (session, gpu) = (SessionId(10), GpuId(0));
    world
        .bench
        .attach_offline(session, JobId(0), GpuSet::of(gpu));
    let free = |world: &World| world.bench.node.ledger(gpu).expect("it is there").free();
    let before = free(&world);
    let all = Bytes(u64::from(STRIPES) * STRIPE + 7);
    let bytes = Bytes(all.0 + 30);
    world.tell(MemoryEvent::Counted {
        session,
        gpu,
        bytes,
    });
    world.tell(MemoryEvent::KvRegistered {
        session,
        job: JobId(0),
        gpu,
        kv: KV,
        layout: layout(),
        backed: &[true; STRIPES as usize],
        fixed: Bytes(7),
        reclaimable: true,
        counted: all,
    });
    assert_eq!(free(&world), before.minus(bytes));
    let bytes = Bytes(30);
    world.tell(MemoryEvent::Counted {
        session,
        gpu,
        bytes,
    });
    assert_eq!(free(&world), before.minus(all).minus(bytes));
}

#[test]
fn a_process_that_only_schedules_answers_and_speaks_for_its_job() {
    let mut world = colocated(STRIPES);
    let session = SessionId(11);
    world.bench.attach_offline(session, JobId(0), GpuSet::EMPTY);
    let blocks: Vec<BlockId> = (0..3 * 2).map(BlockId).collect();
    world.tell(MemoryEvent::Published {
        session,
        request: RequestId(1),
        tokens: Tokens(900),
        blocks: &blocks,
    });
    world.ask(15, false);
    let asked: BTreeSet<SessionId> = world.open.iter().map(|open| open.0.session).collect();
    assert_eq!(asked, [SessionId(10), session].into());
    world.answer(0, Answer::Done);
    world.answer(0, Answer::Done);
    world.bench.answer_all();
    world.check();
    let (order, picked) = world.open[0].clone();
    assert_eq!(order.session, SessionId(10), "who has no memory moves none");
    assert_eq!(picked, [StripeId(3)], "those before it cost tokens");
    world.answer(0, Answer::Done);
    assert_eq!(granted(&world), [Granted::Yes]);
}

#[test]
fn what_was_mapped_for_a_demand_stays_for_a_while_and_goes_if_it_is_not_used() {
    let mut world = World::new();
    world.map(100);
    let before = world.mapped;
    world.ask(100, true);
    world.map(100);
    assert_eq!(world.mapped, before + 100);
    let now = Instant::from_nanos(world.bench.now);
    let view = world.bench.node.elastics(now).next().expect("it is there");
    let wanted = view.reservation.0;
    assert!(wanted < world.mapped);
    world.bench.pass(500 * MS);
    world.check();
    assert_eq!(world.target, None, "it may ask again for what it demanded");
    world.bench.pass(600 * MS);
    world.check();
    assert_eq!(world.target, Some(wanted));
    world.target = None;
    let (session, kv, mapped) = (ONLINE, KV, Bytes(world.mapped));
    world.tell(MemoryEvent::Mapped {
        session,
        kv,
        mapped,
        last: true,
    });
    world.bench.pass(1_100 * MS);
    world.check();
    assert_eq!(
        world.target,
        Some(wanted),
        "told again: it may have kept what it reserved"
    );
}

#[test]
fn an_answer_to_an_earlier_order_takes_back_no_promise() {
    let mut world = World::new();
    world.map(100);
    world.ask(100, true);
    let target = world.target.expect("it is promised more");
    let (session, kv, gpu) = (ONLINE, KV, GpuId(0));
    let promised = |world: &World| {
        let ledger = world.bench.node.ledger(gpu).expect("it is there");
        ledger.account(ONLINE).in_flight
    };
    let before = promised(&world);
    let mut say = |mapped, last| {
        let mapped = Bytes(mapped);
        world.tell(MemoryEvent::Mapped {
            session,
            kv,
            mapped,
            last,
        });
        promised(&world)
    };
    assert_eq!(say(target - 40, false), Bytes(40));
    assert_eq!(before, Bytes(100));
    assert_eq!(say(target - 40, true), Bytes::ZERO);
}

#[test]
fn a_demand_while_memory_arrives_counts_what_has_arrived() {
    let mut world = World::new();
    world.map(100);
    let before = world.mapped;
    world.ask(100, true);
    assert_eq!(world.target, Some(before + 100));
    world.mapped = before + 60;
    world.ask(40, true);
    assert_eq!(world.target, Some(before + 100), "that much is on its way");
    assert_eq!(granted(&world), [Granted::Yes, Granted::Yes]);
    world.map(100);
    let ledger = world.bench.node.ledger(GpuId(0)).expect("it is there");
    let mapped = ledger.account(ONLINE).mapped();
    assert_eq!(mapped, FIXED.plus(Bytes(before + 100)));
}

#[test]
fn a_demand_that_waits_is_taken_once() {
    let mut world = colocated(STRIPES);
    let now = Instant::from_nanos(world.bench.now);
    let view = world.bench.node.elastics(now).next().expect("it is there");
    let asked = view.reservation.0 - world.mapped + 2 * STRIPE;
    world.ask(asked, true);
    world.answer(0, Answer::Done);
    world.bench.answer_all();
    world.check();
    let (_, picked) = world.open[0].clone();
    let now = Instant::from_nanos(world.bench.now);
    let view = world.bench.node.elastics(now).next().expect("it is there");
    let headroom = view.reservation.0 - world.mapped;
    assert!(headroom > 0, "it is short of that as well");
    assert_eq!(picked.len() as u64, asked.max(headroom).div_ceil(STRIPE));
}

#[test]
fn a_caches_fixed_part_is_counted_as_long_as_it_stands() {
    let mut world = World::new();
    world.map(100);
    let account = |world: &World| {
        let ledger = world.bench.node.ledger(GpuId(0));
        ledger.expect("it is there").account(ONLINE)
    };
    assert_eq!(account(&world).mapped(), FIXED.plus(Bytes(world.mapped)));
    assert_eq!(account(&world).at(Place::Online), FIXED);
    let (session, kv) = (ONLINE, KV);
    world.tell(MemoryEvent::KvGone { session, kv });
    assert_eq!(account(&world).sum(), Bytes::ZERO);
}

#[test]
fn what_is_given_back_before_a_higher_target_is_heard_stays_promised() {
    let mut world = World::new();
    world.map(100);
    world.ask(100, true);
    world.map(100);
    let most = world.mapped;
    world.bench.pass(1_100 * MS);
    world.check();
    let less = world.target.expect("it gives back what it does not use");
    assert!(less < most);
    world.ask(50, true);
    assert_eq!(world.target, Some(most + 50));
    let (session, kv, mapped, last) = (ONLINE, KV, Bytes(less), false);
    world.tell(MemoryEvent::Mapped {
        session,
        kv,
        mapped,
        last,
    });
    let target = Bytes(world.target.expect("it was told"));
    let ledger = world.bench.node.ledger(GpuId(0)).expect("it is there");
    assert_eq!(ledger.account(ONLINE).sum(), FIXED.plus(target));
}
