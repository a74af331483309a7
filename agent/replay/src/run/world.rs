//! One GPU, two engines, one pool and two policies in virtual time.
//!
//! The GPU has one context at a time. Online's iteration waits until offline is off the GPU; what
//! that takes is the policy's boundary and the switch. [`crate::compute`] has the states of
//! offline; its iterations go on from where they were stopped, save those a policy repeats.
//!
//! A preemption is counted here, for every policy by the same rule: offline was let in and is told
//! to go. It is charged to every request in flight at that moment, or else to the next to arrive.

mod gpu;
mod offline;
mod online;

pub(super) use online::gap;
use std::time::Duration;

use super::slots::{Slot, Slots};
use crate::batch::{Batch, Iteration, Progress, Spare, Store};
use crate::clock::Time;
use crate::compute::{Boundary, Command, Event};
use crate::costs::HANDLE_BYTES;
use crate::kv::{BLOCK_TOKENS, Blocks};
use crate::memory::{self, Pool};
use crate::plan::{Alone, Demand, Stretch};
use crate::policies::Policies;
use crate::record::{Outcome, Request, Span, SpanKind};
use crate::spec::{Memory, Spec};
use tidegate_text::rng::splitmix64;

/// Offline and the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Off,
    Starting,
    On,
    /// Runs on to a boundary, is stopped there, and this long later is off.
    Draining {
        takes: u64,
        again: bool,
    },
    Stopping,
}

/// Work submitted to the GPU.
#[derive(Clone, Copy, Debug)]
struct Work {
    iteration: Iteration,
    left: u64,
    /// Since when it runs.
    since: Option<u64>,
}

impl Work {
    fn new(iteration: Iteration) -> Self {
        Self {
            iteration,
            left: iteration.ns,
            since: None,
        }
    }
}

/// Turns of a GPU that is shared.
#[derive(Clone, Copy, Debug)]
struct Share {
    slice: u64,
    switch: u64,
    /// Whose turn it is.
    online: bool,
    began: u64,
}

#[derive(Debug)]
pub(super) struct World<'a> {
    spec: &'a Spec,
    slots: Slots,
    policies: Policies,
    pool: Pool,
    commands: Vec<Command>,
    state: State,
    online: Option<Work>,
    offline: Option<Work>,
    turn: Turn,
    waits: Waits,
    pause: Pause,
    queue: Queue,
    counts: Counts,
    feed: Feed,
    kept: Kept,
}

/// Who has a GPU that is shared.
#[derive(Debug, Default)]
struct Turn {
    share: Option<Share>,
    /// Start of the switch, or of the drain, under way.
    switch_from: u64,
}

/// What online, or offline for its sake, waits for.
#[derive(Debug, Default)]
struct Waits {
    /// When online submitted what waits.
    wanted: Option<u64>,
    /// When offline was last told to go for online's sake.
    told: u64,
    /// Offline was stopped for memory that moves, and online has not launched since.
    held: bool,
    /// The GPU is shared, and offline gets no turn while memory moves.
    barred: bool,
    /// Since when online has no memory for an iteration.
    short_since: Option<u64>,
    /// Online has requests and no memory for any.
    starved: bool,
}

/// Online's pause.
#[derive(Debug, Default)]
struct Pause {
    idle_since: u64,
    in_gap: bool,
}

/// Online's requests.
#[derive(Debug, Default)]
struct Queue {
    next_request: usize,
    in_flight: u32,
    /// Requests up to here have their last token.
    oldest: usize,
    finished: Vec<bool>,
}

/// What is counted.
#[derive(Debug, Default)]
struct Counts {
    preemptions: u32,
    /// Charged to the next request to arrive.
    charge_next: u32,
    wastes: u64,
}

/// Offline's requests.
#[derive(Debug, Default)]
struct Feed {
    next_lengths: usize,
    last_offline_id: u64,
}

/// What the run gives.
#[derive(Debug, Default)]
struct Kept {
    outcome: Outcome,
    stretches: Vec<Stretch>,
    /// What online used at each launch, while it runs alone.
    demand: Vec<Demand>,
    idle: u64,
    /// Length of the slices in which offline's tokens are counted, ns; 0: they are not.
    slice: u64,
}

pub(super) fn store(bytes: u64, block: u64, spare: Spare, paged: bool) -> Store {
    let limit = u32::try_from(bytes / block.max(1)).unwrap_or(u32::MAX);
    Store {
        pages: paged.then(|| Blocks::new(bytes, block, memory::stripe_of(block))),
        used: 0,
        limit,
        cache: limit,
        spare,
    }
}

/// What the offline engine keeps queued: it never runs dry.
const BACKLOG: usize = 64;

impl<'a> World<'a> {
    pub fn new(spec: &'a Spec, alone: Option<&Alone>, horizon: Option<u64>) -> Self {
        let block = |bytes_per_token: u64| bytes_per_token * u64::from(BLOCK_TOKENS);
        let online_block = block(spec.online.model.shape.kv_bytes_per_token());
        let offline_block = block(spec.offline.model.shape.kv_bytes_per_token());
        let bytes = spec.kv_pool_bytes;
        let mut pool = Pool {
            bytes,
            online: Batch::new(
                spec.online.model.cost.clone(),
                spec.online.limits,
                spec.online.batching,
                store(bytes, online_block, Spare::None, false),
            ),
            online_block,
            offline: Batch::new(
                spec.offline.model.cost.clone(),
                spec.offline.limits,
                spec.offline.batching,
                store(bytes, offline_block, Spare::OneEach, spec.memory.is_paged()),
            ),
            offline_block,
            gated: true,
            offline_layer_left: 0,
            offline_down_until: 0,
            reclaims: Vec::new(),
            kills: 0,
            lost_tokens: 0,
            offline_void: false,
        };
        let requests = spec.online.trace.requests();
        let outcome = Outcome {
            requests: requests.iter().map(Request::arrived).collect(),
            ..Outcome::default()
        };
        let policies = Policies::of(spec, alone, horizon);
        pool.cache_offline(policies.offline_cache(bytes));
        let lengths = spec.offline.lengths.len().max(1) as u64;
        Self {
            slots: Slots::new(),
            policies,
            pool,
            commands: Vec::new(),
            state: State::Off,
            turn: Turn::default(),
            online: None,
            offline: None,
            waits: Waits::default(),
            pause: Pause::default(),
            queue: Queue {
                finished: vec![false; requests.len()],
                ..Queue::default()
            },
            counts: Counts::default(),
            feed: Feed {
                next_lengths: (splitmix64(spec.seed) % lengths) as usize,
                last_offline_id: 0,
            },
            kept: Kept {
                outcome,
                ..Kept::default()
            },
            spec,
        }
    }

    /// Keeps a history for placement, in slices of `slice` ns.
    pub fn watch(&mut self, slice: u64) {
        self.kept.slice = slice.max(1);
        self.policies.watch(self.kept.slice);
    }

    /// Runs until every online request has its last token.
    pub fn run(&mut self) -> Outcome {
        let requests = self.spec.online.trace.requests();
        if let Some(first) = requests.first() {
            self.slots.set(Slot::Arrival, first.arrival.0);
        }
        self.tell(Event::Start, 0);
        self.slots.set(Slot::Compute, self.policies.next());
        let mut end = 0;
        while let Some((now, slot)) = self.slots.pop() {
            if self.queue.oldest == requests.len() {
                break;
            }
            end = now;
            match slot {
                Slot::OnlineDone => self.online_done(now),
                Slot::OfflineDone => self.offline_done(now),
                Slot::Switch => self.switched(now),
                Slot::Turn => self.turn(now),
                Slot::Arrival => self.arrives(now),
                Slot::Launch => self.launch(now),
                Slot::Memory => self.policies.memory_due(now, &mut self.pool),
                Slot::Compute => self.tell(Event::Due, now),
            }
            self.slots.set(Slot::Memory, self.policies.memory_next());
            self.slots.set(Slot::Compute, self.policies.next());
        }
        self.pause_offline(end);
        self.close(end)
    }

    fn close(&mut self, end: u64) -> Outcome {
        let mut outcome = core::mem::take(&mut self.kept.outcome);
        outcome.length = Duration::from_nanos(end);
        let (online, offline) = (&self.pool.online, &self.pool.offline);
        outcome.offline.prompt_tokens = offline.counts.tokens.prompt;
        outcome.offline.generated_tokens = offline.counts.tokens.generated;
        outcome.offline.finished = offline.counts.finished;
        let given = offline.given();
        outcome.offline.computed_tokens = given.computed;
        outcome.offline.again_tokens = given.again;
        outcome.offline.capacity_preemptions = offline.counts.pushed_back;
        outcome.offline.offered = self.feed.last_offline_id;
        outcome.offline.refused = offline.counts.refused;
        outcome.offline.kills = self.pool.kills;
        outcome.offline.lost_tokens = self.pool.lost_tokens;
        outcome.online_capacity_preemptions = online.counts.pushed_back;
        outcome.gpu.wasted = Duration::from_nanos(self.counts.wastes);
        outcome.reclaims = core::mem::take(&mut self.pool.reclaims);
        self.policies.learnt(end, &mut outcome.cooldown);
        outcome.faults = self.policies.overdrawn().div_ceil(HANDLE_BYTES);
        if self.kept.slice > 0 {
            self.count_slice(end, &mut outcome.placement.by_slice);
            (outcome.placement.history, outcome.placement.gates) = self.policies.history(end);
        }
        outcome.timeline.sort_by_key(|span| span.from);
        outcome
    }

    /// Idle times of online and its demands, once it ran.
    pub fn into_plan(self) -> (Vec<Stretch>, Vec<Demand>) {
        (self.kept.stretches, self.kept.demand)
    }

    /// What offline has kept since the last count is of the slice of `now`.
    fn count_slice(&self, now: u64, by_slice: &mut Vec<u64>) {
        let place = (now / self.kept.slice) as usize;
        if by_slice.len() <= place {
            by_slice.resize(place + 1, 0);
        }
        let kept = self.pool.offline.counts.tokens;
        let counted: u64 = by_slice.iter().sum();
        by_slice[place] += (kept.prompt + kept.generated).saturating_sub(counted);
    }

    fn span(&mut self, kind: SpanKind, from: u64, to: u64) {
        if self.spec.timeline && to > from {
            let (from, to) = (Time(from), Time(to));
            self.kept.outcome.timeline.push(Span { kind, from, to });
        }
    }

    fn tell(&mut self, event: Event, now: u64) {
        let mut commands = core::mem::take(&mut self.commands);
        if self.spec.memory == Memory::TidegateLayerBoundary {
            self.pool.offline_layer_left = self.boundary(Boundary::LayerAndAgain, now) - now;
        }
        self.policies
            .step(event, now, &mut self.pool, &mut commands);
        for command in commands.drain(..) {
            match command {
                Command::Run { takes } => self.let_in(takes, now),
                Command::Stop { at, takes } => self.tell_to_go(at, takes, now),
                Command::Hold { takes } => self.hold(takes, now),
                Command::Retry => self.retry(now),
                Command::Share { slice, switch } => {
                    self.state = State::On;
                    self.turn.share = Some(Share {
                        slice,
                        switch,
                        online: false,
                        began: now,
                    });
                }
            }
        }
        self.commands = commands;
        self.dispatch(now);
    }
}
