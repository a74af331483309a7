//! How memory moves, under any list of events: who is disabled, who is promised what, and that
//! everything ends.

mod stories;
mod weighed;

use crate::bench::Bench;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use tidegate_policy::config::{Config, Cooldown, Reserving, Sharing};
use tidegate_policy::effect::{Effect, Granted, Report};
use tidegate_policy::event::Event;
use tidegate_policy::ids::{
    AskId, BlockId, Bytes, GpuId, GpuSet, Handles, JobId, KvId, LogSeq, ReclaimId, RequestId,
    SessionId, StripeId, Tokens,
};
use tidegate_policy::layout::{Layout, Stripe};
use tidegate_policy::ledger::Place;
use tidegate_policy::memory::MemoryEvent;
use tidegate_policy::reclaim::{Answer, Direction, Phase};
use tidegate_policy::time::Instant;
use tidegate_policy::view::HandlesView;

const GPUS: u8 = 2;
const POOL: Bytes = Bytes(1_000);
const STRIPES: u32 = 8;
/// Bytes of a stripe: two handles of ten.
const STRIPE: u64 = 20;
/// Of online's cache, beside what grows.
const FIXED: Bytes = Bytes(5);
/// What could be mapped of it.
const MOST: Bytes = Bytes(2_000);
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

/// An offline process registers its cache, all of which has memory; `counted` of it was counted before.
fn born(
    (session, job, gpu): (SessionId, JobId, GpuId),
    layout: &Layout,
    counted: Bytes,
) -> MemoryEvent<'_> {
    MemoryEvent::KvRegistered {
        session,
        job,
        gpu,
        kv: KV,
        layout,
        backed: &[true; STRIPES as usize],
        fixed: Bytes(7),
        reclaimable: true,
        counted,
    }
}

/// Online's process registers its elastic cache.
fn grows(gpu: GpuId, mapped: Bytes) -> MemoryEvent<'static> {
    MemoryEvent::ElasticRegistered {
        session: ONLINE,
        gpu,
        kv: KV,
        mapped,
        fixed: FIXED,
        most: MOST,
        handle: layout().handle(),
        stripe: Bytes(STRIPE),
    }
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

/// Number of an order about online's cache, and bytes to be mapped, or mapped.
type Target = (u64, u64);

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
    /// Of online's cache, as it is, and as its process said last.
    mapped: u64,
    heard: u64,
    /// Orders about it so far.
    ordered: u64,
    /// The newest that its process has not begun; the one that it is carrying out, to its end; what it said
    /// about those before, with their numbers, on the way.
    target: Option<u64>,
    begun: Option<Target>,
    unheard: VecDeque<Target>,
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
            bench.send(MemoryEvent::Pool { gpu, bytes: POOL });
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
            heard: 0,
            ordered: 0,
            target: None,
            begun: None,
            unheard: VecDeque::new(),
            next_ask: 0,
        };
        world.tell(grows(GpuId(0), Bytes::ZERO));
        world
    }

    fn tell(&mut self, event: MemoryEvent<'_>) {
        self.bench.send(event);
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
                Effect::Check {
                    reclaim,
                    session,
                    until,
                } => {
                    let half = Sharing::default().reclaim_deadline / 2;
                    assert!(until <= self.bench.at().after(half), "no time is left");
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
                    if direction == Direction::Restore {
                        self.is_promised(session, &stripes);
                        let withheld = self.withheld.get(&job).copied().unwrap_or(0);
                        for stripe in &stripes {
                            let lost = self.lost_at.get(&(job, stripe.0)).copied().unwrap_or(0);
                            assert!(lost <= withheld, "given back before it was withheld");
                            let ranks = self.processes.values().filter(|known| known.job == job);
                            let lacking = |rank: &Process| !rank.backed.contains(&stripe.0);
                            assert!({ ranks }.any(lacking), "{stripe:?} is nobody's to get back");
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
                    let whole = bytes.0.is_multiple_of(STRIPE) || bytes == MOST;
                    assert!(whole, "it maps whole stripes, not {bytes:?}");
                    self.ordered += 1;
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

    /// Shown by owner, each place has what the books have there, and each cache the handles its
    /// process has, in the places where their bytes are.
    fn owners_add_up(&self, gpu: GpuId) {
        let ledger = self.bench.node.ledger(gpu).expect("it is there");
        let owners = self.bench.node.owners(gpu);
        for place in Place::ALL.into_iter().filter(|place| *place != Place::Free) {
            let shown: Bytes = owners.iter().map(|owner| owner.account.at(place)).sum();
            assert_eq!(shown, ledger.totals().at(place), "{}", place.name());
        }
        let excess: Bytes = owners.iter().map(|owner| owner.excess).sum();
        assert_eq!(excess, ledger.excess());
        let handle = layout().handle();
        for owner in &owners {
            let HandlesView {
                held,
                quarantined,
                in_flight,
                taken,
            } = owner.handles;
            let real = self.processes.get(&owner.session);
            if let Some(process) = real.filter(|process| process.gpu == gpu) {
                let backed = 2 * u32::try_from(process.backed.len()).expect("few");
                assert_eq!(held.0 + quarantined.0, backed, "{owner:?}");
                assert_eq!(in_flight.0 + taken.0, 2 * STRIPES - backed, "{owner:?}");
                let account = owner.account;
                // Counted before it was attached, it was taken for online.
                if owner.excess.is_zero() && account.mapped().is_zero() {
                    let bytes = |handles: Handles| handle.times(handles.0.into());
                    assert_eq!(account.quarantined, bytes(quarantined), "{owner:?}");
                    assert_eq!(account.in_flight, bytes(in_flight), "{owner:?}");
                    assert!(account.offline >= bytes(held), "{owner:?}");
                }
            } else if owner.session == ONLINE && gpu == GpuId(0) {
                assert_eq!(u64::from(held.0), self.heard / handle.0, "{owner:?}");
                assert_eq!((quarantined, taken), (Handles(0), Handles(0)));
            } else {
                assert_eq!(owner.handles, HandlesView::default(), "{owner:?}");
            }
        }
        if gpu == GpuId(0) {
            let online = owners.iter().find(|owner| owner.session == ONLINE);
            let kept = online.map_or(0, |owner| owner.handles.held.0 + owner.handles.in_flight.0);
            let kept = handle.times(kept.into());
            let begun = self.begun.map(|order| order.1);
            for bytes in [begun, self.target, Some(self.mapped)]
                .into_iter()
                .flatten()
            {
                assert!(
                    kept.0 >= bytes,
                    "{bytes} are or may be mapped, {kept:?} are kept for it"
                );
            }
        }
        let here = self.processes.iter().filter(|known| known.1.gpu == gpu);
        for session in here.map(|known| *known.0) {
            assert!(owners.iter().any(|owner| owner.session == session));
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
            layout: &layout(),
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
            return self.tell(MemoryEvent::Checked {
                reclaim,
                session,
                answer,
            });
        };
        let done = match answer {
            Answer::Done => stripes.len(),
            Answer::Refused | Answer::Missed => stripes.len() / 2,
            Answer::Late => 0,
        };
        let stripes = &stripes[..done];
        let process = self.processes.get_mut(&session).expect("it has an order");
        let log = self.logs.entry(process.job).or_insert(0);
        for stripe in stripes {
            match direction {
                Direction::Reclaim => {
                    if process.backed.remove(&stripe.0) {
                        *log += 1;
                        self.lost_at.insert((process.job, stripe.0), *log);
                    }
                }
                Direction::Restore => drop(process.backed.insert(stripe.0)),
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
            ahead: kv.is_some() && ask.is_multiple_of(3),
        });
    }

    /// Online's process begins what it was told last.
    fn begin_map(&mut self) {
        if self.begun.is_none() {
            self.begun = self.target.take().map(|target| (self.ordered, target));
        }
    }

    /// It ends what it began; only then it begins what it was told meanwhile.
    fn end_map(&mut self, share: u64) {
        if let Some((order, target)) = self.begun.take() {
            self.mapped = if share >= 100 {
                target
            } else {
                self.mapped.min(target)
            };
            self.unheard.push_back((order, self.mapped));
        }
    }

    /// What it said of one order arrives.
    fn hear_mapped(&mut self) {
        if let Some((order, mapped)) = self.unheard.pop_front() {
            self.heard = mapped;
            self.tell(MemoryEvent::Mapped {
                session: ONLINE,
                kv: KV,
                mapped: Bytes(mapped),
                last: order == self.ordered,
            });
        }
    }

    /// It says all of its cache again, whatever it is at.
    fn say_again(&mut self) {
        while !self.unheard.is_empty() {
            self.hear_mapped();
        }
        self.tell(grows(GpuId(0), Bytes(self.mapped)));
    }

    /// It carries out what it was told, and says so.
    fn map(&mut self, share: u64) {
        self.begin_map();
        self.end_map(share);
        while !self.unheard.is_empty() {
            self.hear_mapped();
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
    BeginMap,
    EndMap(u64),
    HearMapped,
    SayAgain,
    Count(u64, u8, u64),
    Grow(u64, u8),
    Pause(bool),
    OnlineDies,
}

fn op() -> impl Strategy<Value = Op> {
    let (session, gpu, job) = (10u64..14, 0..GPUS, 0u32..2);
    let answer = prop_oneof![
        6 => Just(Answer::Done), 1 => Just(Answer::Refused), 1 => Just(Answer::Late),
        1 => Just(Answer::Missed),
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
        4 => Just(Op::BeginMap),
        4 => (50u64..150).prop_map(Op::EndMap),
        4 => Just(Op::HearMapped),
        1 => Just(Op::SayAgain),
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
        Op::BeginMap => world.begin_map(),
        Op::EndMap(share) => world.end_map(share),
        Op::HearMapped => world.hear_mapped(),
        Op::SayAgain => world.say_again(),
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
            (world.mapped, world.heard, world.ordered) = (0, 0, 0);
            (world.target, world.begun) = (None, None);
            world.unheard.clear();
            world.bench.online_gone(ONLINE);
            world.bench.attach_online(ONLINE);
        }
    }
    world.check();
    for gpu in 0..GPUS {
        world.owners_add_up(GpuId(gpu));
    }
}

/// P-MEMORY-27: an engine that asks on a GPU of which nothing is shared has all of its memory. Nothing is taken for it.
#[test]
fn a_cache_on_a_gpu_without_a_pool_is_mapped_whole_and_nothing_is_taken_for_it() {
    let mut bench = Bench::new(config(), 1);
    let gpu = GpuId(0);
    bench.send(MemoryEvent::Pool {
        gpu,
        bytes: Bytes::ZERO,
    });
    bench.attach_online(ONLINE);
    let (offline, job) = (SessionId(10), JobId(1));
    bench.attach_offline(offline, job, GpuSet::of(gpu));
    bench.send(born((offline, job, gpu), &layout(), Bytes::ZERO));
    bench.send(grows(gpu, Bytes::ZERO));
    // Said again when it was told to map all of it, which it is still at.
    bench.send(grows(gpu, Bytes::ZERO));
    let mut mapped = 0;
    let asks = |bench: &mut Bench, ask: u64, mapped: u64| {
        bench.send(MemoryEvent::Asked {
            session: ONLINE,
            ask: AskId(ask),
            gpu,
            kv: Some(KV),
            bytes: Bytes(100),
            mapped: Some(Bytes(mapped)),
            ahead: false,
        });
    };
    for ask in 1..20 {
        asks(&mut bench, 2 * ask, mapped);
        if ask == 3 {
            // The device had no memory for more.
            mapped = 500;
        }
        bench.send(MemoryEvent::Mapped {
            session: ONLINE,
            kv: KV,
            mapped: Bytes(mapped),
            last: ask >= 3,
        });
        // At once again: it is told so, until the device is tried again.
        asks(&mut bench, 2 * ask + 1, mapped);
        bench.send(MemoryEvent::Usage {
            session: ONLINE,
            kv: KV,
            used: Bytes(mapped.min(40 * ask)),
        });
        bench.pass(200 * MS);
        bench.answer_all();
    }
    let effects = || bench.effects.iter().map(|(_, effect)| effect);
    let answers: Vec<Granted> = effects()
        .filter_map(|effect| match effect {
            Effect::AnswerAsk { granted, .. } => Some(*granted),
            _ => None,
        })
        .collect();
    let told = |nth: usize| match nth % 2 {
        1 if nth >= 5 => Granted::No,
        _ => Granted::Yes,
    };
    assert_eq!(answers, (0..38).map(told).collect::<Vec<_>>());
    let denied = effects().filter(|e| matches!(e, Effect::Emit(Report::Denied { .. })));
    assert_eq!(denied.count(), 17);
    let maps: Vec<Bytes> = effects()
        .filter_map(|effect| match effect {
            Effect::Map { bytes, .. } => Some(*bytes),
            _ => None,
        })
        .collect();
    assert!(
        maps.len() > 1 && maps.iter().all(|bytes| *bytes == MOST),
        "{maps:?}"
    );
    let takes = effects().filter(|e| matches!(e, Effect::Check { .. } | Effect::Move { .. }));
    assert_eq!(takes.count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_024))]

    /// P-MEMORY-1: memory moves only while its job is disabled.
    /// P-MEMORY-2: every byte is in one ledger entry; the cheapest stripes go.
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
        // The books say what the processes have.
        for gpu in (0..GPUS).map(GpuId) {
            let totals = world.bench.node.ledger(gpu).expect("it is there").totals();
            prop_assert_eq!(totals.quarantined, Bytes::ZERO);
            prop_assert_eq!(totals.in_flight, Bytes::ZERO);
        }
        prop_assert_eq!(world.bench.never_on(), []);
    }
}
