//! The agent's own policy, `tidegate_policy::node`, and around it what lies between it and the GPU.
//!
//! ```text
//!   launch, done -> page words -> doorbell ~edge~> Node::step -> order -> issue thread -> world
//!                    (prober)                         ^                       |
//!                                                     +-------- answer -------+
//! ```
//!
//! The node sees what it sees on a machine: the activity words of one online process, read when a
//! doorbell has been heard; launch counts and graphs; answers to its orders, which one issue thread
//! carries out one after the other. A gap shorter than the prober's round stays unseen. With
//! lifecycle hints it also hears of requests.

use std::collections::VecDeque;
use std::time::Duration;

use tidegate_policy::config::Config;
use tidegate_policy::effect::{Effect, Look};
use tidegate_policy::event::{self, Order, Reading, Standing};
use tidegate_policy::ids::{
    Channels, GpuId, GpuSet, GraphId, JobId, Launches, RequestId, SessionId,
};
use tidegate_policy::node::Node;
use tidegate_policy::time::Instant;

use super::policy::{Boundary, Command, Event, NEVER, Policy, noticed, ns};
use crate::baselines::KERNELS_PER_LAYER;
use crate::costs::Costs;
use crate::record::CooldownRecord;

const GPU: GpuId = GpuId(0);
const ONLINE: SessionId = SessionId(1);
const OFFLINE: SessionId = SessionId(2);
const JOB: JobId = JobId(1);
/// How often the prober's progress is told while online is busy.
const PROGRESS: u64 = 1_000_000_000;
/// Kernel launches of one prefill iteration: not a graph.
const PREFILL_LAUNCHES: u64 = 32 * KERNELS_PER_LAYER as u64;
/// Largest batch with a graph of its own size; above it and between, the next multiple of eight, as
/// vLLM captures them.
const EXACT_GRAPHS: u32 = 4;

/// Whether an engine plugin says when requests begin and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hints {
    /// An unmodified engine.
    None,
    /// A plugin.
    Lifecycle,
}

#[derive(Debug)]
pub(super) struct Tidegate {
    node: Node,
    hints: Hints,
    edge: u64,
    probe: u64,
    disable: u64,
    enable: u64,
    effects: Vec<Effect>,
    /// The page's words.
    page: Reading,
    launches: u64,
    graph: u64,
    done: u64,
    /// When the prober publishes idle.
    publish: u64,
    /// When the agent has heard a doorbell.
    doorbell: u64,
    tick: u64,
    progress: u64,
    queue: VecDeque<(Order, Option<Look>)>,
    call: Option<Call>,
    /// Cooldowns in force at each wake.
    cooldowns: (u64, Duration),
}

#[derive(Clone, Copy, Debug)]
struct Call {
    order: Order,
    disables: bool,
    entered: u64,
    ends: u64,
}

impl Tidegate {
    pub fn new(costs: &Costs, hints: Hints) -> Self {
        let page = Reading {
            generation: 0,
            busy: false,
            busy_since: Instant::default(),
            idle_since: Instant::default(),
            launches: Launches(0),
            graph: GraphId(0),
        };
        Self {
            node: Node::new(Config::default(), 1, Instant::default()),
            hints,
            edge: ns(costs.edge),
            probe: ns(costs.probe),
            disable: ns(costs.disable_save),
            enable: ns(costs.enable_restore),
            effects: Vec::new(),
            page,
            launches: 0,
            graph: 0,
            done: 0,
            publish: NEVER,
            doorbell: NEVER,
            tick: NEVER,
            progress: NEVER,
            queue: VecDeque::new(),
            call: None,
            cooldowns: (0, Duration::ZERO),
        }
    }

    fn start(&mut self, now: u64, out: &mut Vec<Command>) {
        let gpus = GpuSet::of(GPU);
        for event in [
            event::Event::OnlineAttached { session: ONLINE },
            event::Event::Activity {
                session: ONLINE,
                gpu: GPU,
                reading: self.page,
            },
            event::Event::OfflineAttached {
                session: OFFLINE,
                job: JOB,
                gpus,
                standing: Standing::Enabled,
            },
            event::Event::ChannelsChanged {
                session: OFFLINE,
                gpu: GPU,
                channels: Channels(1),
                grown: true,
            },
        ] {
            self.feed(event, now, out);
        }
    }

    fn feed(&mut self, event: event::Event, now: u64, out: &mut Vec<Command>) {
        let mut effects = core::mem::take(&mut self.effects);
        self.node
            .step(event, Instant::from_nanos(now), &mut effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::Disable(order) => self.queue.push_back((order, None)),
                Effect::Enable { order, look } => self.queue.push_back((order, Some(look))),
                Effect::ReadActivity { .. } => self.doorbell = self.doorbell.min(now),
                Effect::WakeAt(at) => self.tick = at.as_nanos(),
                _ => {}
            }
        }
        self.effects = effects;
        self.enter(now, out);
    }

    /// The issue thread begins its next call.
    fn enter(&mut self, now: u64, out: &mut Vec<Command>) {
        while self.call.is_none() {
            let Some((order, enables)) = self.queue.pop_front() else {
                return;
            };
            let takes = match enables {
                None => {
                    out.push(Command::Stop {
                        at: Boundary::After(0),
                        takes: self.disable,
                    });
                    self.disable
                }
                Some(Look::First) if self.page.busy => {
                    self.feed(event::Event::EnableSkipped { order }, now, out);
                    continue;
                }
                Some(_) => {
                    let cooldown = self.node.gpu(GPU, Instant::from_nanos(now));
                    self.cooldowns.0 += 1;
                    self.cooldowns.1 += cooldown.map_or(Duration::ZERO, |view| view.cooldown);
                    out.push(Command::Run { takes: self.enable });
                    self.enable
                }
            };
            self.call = Some(Call {
                order,
                disables: enables.is_none(),
                entered: now,
                ends: now + takes,
            });
        }
    }

    fn launched(&mut self, prompt: bool, decodes: u32, now: u64) {
        self.publish = NEVER;
        if !self.page.busy {
            self.page.busy = true;
            self.page.generation += 1;
            self.page.busy_since = Instant::from_nanos(now);
            self.launches = 0;
            self.graph = 0;
            self.progress = now + PROGRESS;
            self.doorbell = self.doorbell.min(now + self.edge);
        }
        if prompt {
            self.launches += PREFILL_LAUNCHES;
        } else {
            self.launches += 1;
            self.graph = u64::from(if decodes <= EXACT_GRAPHS {
                decodes
            } else {
                decodes.next_multiple_of(8)
            });
        }
    }

    fn due(&mut self, now: u64, out: &mut Vec<Command>) {
        if now >= self.publish {
            self.publish = NEVER;
            self.progress = NEVER;
            self.page.busy = false;
            self.page.generation += 1;
            self.page.idle_since = Instant::from_nanos(self.done);
            self.page.launches = Launches(self.launches);
            self.page.graph = GraphId(self.graph);
            self.doorbell = self.doorbell.min(now + self.edge);
        }
        if let Some(call) = self.call.filter(|call| now >= call.ends) {
            self.call = None;
            let order = call.order;
            let answer = if call.disables {
                event::Event::Disabled {
                    order,
                    entered: Instant::from_nanos(call.entered),
                    returned: Instant::from_nanos(now),
                }
            } else {
                event::Event::Enabled { order }
            };
            self.feed(answer, now, out);
        }
        if now >= self.doorbell {
            self.doorbell = NEVER;
            let event = event::Event::Activity {
                session: ONLINE,
                gpu: GPU,
                reading: self.page,
            };
            self.feed(event, now, out);
        }
        if now >= self.progress {
            self.progress = now + PROGRESS;
            let event = event::Event::Progress {
                session: ONLINE,
                at: Instant::from_nanos(now),
            };
            self.feed(event, now, out);
        }
        if now >= self.tick {
            self.tick = NEVER;
            self.feed(event::Event::Tick, now, out);
        }
    }
}

impl Policy for Tidegate {
    fn step(&mut self, event: Event, now: u64, out: &mut Vec<Command>) {
        match event {
            Event::Start => self.start(now, out),
            Event::Launch { prompt, decodes } => self.launched(prompt, decodes, now),
            Event::Done => {
                self.done = now;
                self.publish = noticed(now, self.probe);
            }
            Event::Arrived { request, .. } if self.hints == Hints::Lifecycle => {
                let request = RequestId(request);
                let session = ONLINE;
                self.feed(event::Event::RequestStarted { session, request }, now, out);
            }
            Event::Ended { request, .. } if self.hints == Hints::Lifecycle => {
                let request = RequestId(request);
                let session = ONLINE;
                self.feed(event::Event::RequestEnded { session, request }, now, out);
            }
            Event::Due => self.due(now, out),
            _ => {}
        }
    }

    fn next(&self) -> u64 {
        let call = self.call.map_or(NEVER, |call| call.ends);
        self.publish
            .min(self.doorbell)
            .min(self.tick)
            .min(self.progress)
            .min(call)
    }

    fn learnt(&self, now: u64, record: &mut CooldownRecord) {
        if let Some(view) = self.node.gpu(GPU, Instant::from_nanos(now)) {
            record.at_end = Some(view.cooldown);
            record.gaps_seen = view.decode_gaps;
        }
        let (wakes, sum) = self.cooldowns;
        record.mean = u32::try_from(wakes)
            .ok()
            .and_then(|wakes| sum.checked_div(wakes));
    }
}
