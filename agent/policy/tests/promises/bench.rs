//! Policy by itself, and a model of the channels, activity words and moves that its effects are about.
//!
//! Properties ask what may follow from any order of events, so the test chooses them all: when an order is answered and
//! whether it fails, when a process says something, when time passes. Nothing is withheld, retried, queued or timed
//! here: what becomes of an effect on its way is the shell's (`tidegate-node`), and is judged with it by the schedules
//! of `tests/sim`. A promise is checked against the model, never against policy's own view of itself.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tidegate_policy::config::Config;
use tidegate_policy::effect::{Effect, Look, Report};
use tidegate_policy::event::{Event, Order, Reading, Standing};
use tidegate_policy::gap::Turns;
use tidegate_policy::ids::{
    Channels, GpuId, GpuSet, GraphId, JobId, Launches, ReclaimId, SessionId,
};
use tidegate_policy::node::Node;
use tidegate_policy::time::Instant;

/// An order on its way through an issue thread.
#[derive(Clone, Debug)]
pub struct Issued {
    pub order: Order,
    /// What the job held there when the order was given.
    pub list: Vec<SessionId>,
    pub enable: bool,
}

/// One device of one online process.
#[derive(Clone, Copy, Debug)]
pub struct Words {
    pub reading: Reading,
}

pub struct Bench {
    pub node: Node,
    pub now: u64,
    timer: Option<u64>,
    /// Per GPU, in order.
    pub issued: Vec<VecDeque<Issued>>,
    attached: BTreeSet<SessionId>,
    pub online: BTreeMap<(SessionId, GpuId), Words>,
    /// (session, gpu) -> job; an entry is a process with one channel there.
    pub held: BTreeMap<(SessionId, GpuId), (JobId, bool)>,
    pub jobs: BTreeMap<SessionId, JobId>,
    pub reports: Vec<Report>,
    /// Every effect, with the time and in order; the test takes what it wants.
    pub effects: Vec<(u64, Effect)>,
    buffer: Vec<Effect>,
    /// Jobs whose launch gate is held for a reclaim.
    pub held_jobs: BTreeSet<JobId>,
    /// Orders about memory that no process has seen yet, oldest first.
    pub orders: VecDeque<Effect>,
    /// Moves that no answer was given to.
    pub moving: BTreeSet<(ReclaimId, SessionId)>,
}

impl Bench {
    pub fn new(config: Config, gpus: u8) -> Self {
        Self {
            node: Node::new(config, gpus, Instant::from_nanos(0)),
            now: 0,
            timer: None,
            issued: vec![VecDeque::new(); usize::from(gpus)],
            attached: BTreeSet::new(),
            online: BTreeMap::new(),
            held: BTreeMap::new(),
            jobs: BTreeMap::new(),
            reports: Vec::new(),
            effects: Vec::new(),
            buffer: Vec::new(),
            held_jobs: BTreeSet::new(),
            orders: VecDeque::new(),
            moving: BTreeSet::new(),
        }
    }

    pub fn at(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    /// One event, and the effects that need no answer.
    pub fn send<'a>(&mut self, event: impl Into<Event<'a>>) {
        let mut todo = VecDeque::from([event.into()]);
        while let Some(event) = todo.pop_front() {
            let now = self.at();
            self.buffer.clear();
            let mut buffer = std::mem::take(&mut self.buffer);
            self.node.step(event, now, &mut buffer);
            if event.is_one_of_many() {
                assert!(buffer.is_empty(), "{event:?}: {buffer:?}");
                self.node.step(Event::Tick, now, &mut buffer);
            }
            self.carry_out(&buffer, &mut todo);
            self.buffer = buffer;
        }
    }

    /// Other settings, and the effects that need no answer.
    pub fn configure(&mut self, config: Config) {
        let (now, mut buffer, mut todo) = (self.at(), Vec::new(), VecDeque::new());
        self.node.configure(config, now, &mut buffer);
        self.carry_out(&buffer, &mut todo);
        for event in todo {
            self.send(event);
        }
    }

    fn carry_out(&mut self, buffer: &[Effect], todo: &mut VecDeque<Event<'_>>) {
        let now = self.at();
        for effect in buffer {
            self.effects.push((self.now, *effect));
            match *effect {
                Effect::Disable(order) => self.issue(order, false),
                Effect::Enable { order, .. } => {
                    let of = |moving: &&(ReclaimId, SessionId)| self.jobs[&moving.1] == order.job;
                    assert_eq!(
                        self.moving.iter().find(of),
                        None,
                        "enabled while memory moves"
                    );
                    self.issue(order, true);
                }
                Effect::WakeAt(at) => {
                    assert!(at > now, "a timer in the past would never end");
                    self.timer = Some(at.as_nanos());
                }
                Effect::ReadActivity { gpus } => {
                    for (&(session, gpu), words) in &self.online {
                        if gpus.contains(gpu) {
                            let reading = words.reading;
                            todo.push_back(Event::Activity {
                                session,
                                gpu,
                                reading,
                            });
                        }
                    }
                }
                Effect::Emit(report) => self.reports.push(report),
                Effect::HoldLaunchGate { job } => drop(self.held_jobs.insert(job)),
                Effect::CloseLaunchGate { job } | Effect::OpenLaunchGate { job } => {
                    self.held_jobs.remove(&job);
                }
                Effect::Check { session, .. } => {
                    let job = self.jobs[&session];
                    assert!(self.held_jobs.contains(&job), "asked beside launches");
                    self.orders.push_back(*effect);
                }
                Effect::Move {
                    reclaim, session, ..
                } => {
                    let job = self.jobs[&session];
                    assert!(self.held_jobs.contains(&job), "moves beside launches");
                    let enabled = |held: &&(JobId, bool)| held.0 == job && held.1;
                    assert_eq!(self.held.values().find(enabled), None, "moves beside work");
                    self.moving.insert((reclaim, session));
                    self.orders.push_back(*effect);
                }
                // A test of leases is the trainer, and takes them from the list.
                Effect::Lease { .. } | Effect::Withdraw { .. } => {}
                // Nobody here shares by timeslices.
                Effect::Timeslice { .. } => {}
                Effect::CancelMove { .. } | Effect::Map { .. } | Effect::AnswerAsk { .. } => {
                    self.orders.push_back(*effect)
                }
            }
        }
    }

    fn issue(&mut self, order: Order, enable: bool) {
        let of_order = self
            .held
            .iter()
            .filter(|(key, held)| (key.1, held.0) == (order.gpu, order.job));
        let list = of_order.map(|(key, _)| key.0).collect();
        self.issued[order.gpu.index()].push_back(Issued {
            order,
            list,
            enable,
        });
    }

    /// Lets `ns` pass, with every timer on its way.
    pub fn pass(&mut self, ns: u64) {
        let end = self.now + ns;
        while let Some(at) = self.timer.filter(|at| *at <= end) {
            self.timer = None;
            self.now = at.max(self.now);
            self.send(Event::Tick);
        }
        self.now = end;
    }

    /// The oldest order of an issue thread is done, or fails and leaves a random half of it done.
    pub fn answer(&mut self, gpu: GpuId, fails: bool) {
        let Some(issued) = self.issued[gpu.index()].pop_front() else {
            return;
        };
        let order = issued.order;
        for ((session, at), (_, enabled)) in &mut self.held {
            if *at == gpu && issued.list.contains(session) && !fails {
                *enabled = issued.enable;
            }
        }
        let (at, status) = (self.at(), 0x65);
        self.send(match (issued.enable, fails) {
            (true, false) => Event::Enabled { order },
            (true, true) => Event::EnableFailed { order, status },
            (false, false) => Event::Disabled {
                order,
                entered: at,
                returned: at,
            },
            (false, true) => Event::DisableFailed { order, status },
        });
    }

    pub fn answer_all(&mut self) {
        while let Some(gpu) = self.issued.iter().position(|queue| !queue.is_empty()) {
            self.answer(GpuId(u8::try_from(gpu).unwrap()), false);
        }
    }

    /// What stays disabled although everybody had time for a turn. A job whose disable is answered late pays for what
    /// it ran meanwhile, which is seconds in some of these cases.
    pub fn never_on(&mut self) -> Vec<(SessionId, GpuId)> {
        let mut waits: Vec<_> = self.held.keys().copied().collect();
        for _ in 0..400 {
            if waits.is_empty() {
                break;
            }
            self.answer_all();
            waits.retain(|key| self.held.get(key).is_some_and(|held| !held.1));
            self.pass(100_000_000);
        }
        waits
    }

    pub fn attach_online(&mut self, session: SessionId) {
        self.attached.insert(session);
        self.send(Event::OnlineAttached { session });
    }

    /// The device goes busy or idle; nothing happens if it is already.
    pub fn edge(&mut self, session: SessionId, gpu: GpuId, busy: bool, launches: u64, graph: u64) {
        if !self.attached.contains(&session) {
            return;
        }
        let now = self.at();
        let words = self.online.entry((session, gpu)).or_insert(Words {
            reading: Reading {
                generation: 0,
                busy: false,
                busy_since: now,
                idle_since: now,
                launches: Launches(0),
                graph: GraphId(0),
                turns: Turns::default(),
            },
        });
        let reading = &mut words.reading;
        if reading.busy == busy {
            return;
        }
        reading.generation += 1;
        reading.busy = busy;
        if busy {
            reading.busy_since = now;
        } else {
            reading.idle_since = now;
            reading.launches = Launches(launches);
            reading.graph = GraphId(graph);
        }
    }

    pub fn read(&mut self, session: SessionId, gpu: GpuId) {
        if let Some(words) = self.online.get(&(session, gpu)) {
            let reading = words.reading;
            self.send(Event::Activity {
                session,
                gpu,
                reading,
            });
        }
    }

    pub fn busy(&mut self, session: SessionId, gpu: GpuId) {
        self.edge(session, gpu, true, 0, 0);
        self.read(session, gpu);
    }

    pub fn idle(&mut self, session: SessionId, gpu: GpuId, launches: u64, graph: u64) {
        self.edge(session, gpu, false, launches, graph);
        self.read(session, gpu);
    }

    pub fn online_gone(&mut self, session: SessionId) {
        self.attached.remove(&session);
        self.online.retain(|key, _| key.0 != session);
        self.send(Event::OnlineGone { session });
    }

    pub fn attach_offline(&mut self, session: SessionId, job: JobId, gpus: GpuSet) {
        if *self.jobs.entry(session).or_insert(job) != job {
            return;
        }
        let standing = Standing::Enabled;
        // What is ordered the moment it comes is about it too.
        for gpu in gpus.iter() {
            self.held.entry((session, gpu)).or_insert((job, true));
        }
        self.send(Event::OfflineAttached {
            session,
            job,
            gpus,
            standing,
        });
        for gpu in gpus.iter() {
            let channels = Channels(1);
            self.send(Event::ChannelsChanged {
                session,
                gpu,
                channels,
                grown: true,
            });
        }
    }

    pub fn offline_gone(&mut self, session: SessionId) {
        self.held.retain(|key, _| key.0 != session);
        for issued in self.issued.iter_mut().flatten() {
            issued.list.retain(|listed| *listed != session);
        }
        self.jobs.remove(&session);
        self.moving.retain(|moving| moving.1 != session);
        self.send(Event::OfflineGone { session });
    }

    pub fn busy_gpus(&self) -> GpuSet {
        self.online
            .iter()
            .filter(|(_, w)| w.reading.busy)
            .map(|(key, _)| key.1)
            .collect()
    }

    /// GPUs of a job, as the model has it.
    pub fn gpus_of(&self, job: JobId) -> GpuSet {
        self.held
            .iter()
            .filter(|(_, held)| held.0 == job)
            .map(|(key, _)| key.1)
            .collect()
    }

    /// Enables that were ordered on the condition that online is idle.
    pub fn enables(&self) -> impl Iterator<Item = (u64, Order)> + '_ {
        self.effects.iter().filter_map(|(at, effect)| match effect {
            Effect::Enable {
                order,
                look: Look::First,
            } => Some((*at, *order)),
            _ => None,
        })
    }
}
