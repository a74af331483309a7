//! One GPU, two engines, one pool and two policies in virtual time.
//!
//! The GPU has one context at a time. Online's iteration waits until offline is off the GPU; what
//! that takes is the policy's boundary and the switch. [`crate::compute`] has the states of
//! offline; its iterations go on from where they were stopped, save those a policy repeats.
//!
//! A preemption is counted here, for every policy by the same rule: offline was let in and is told
//! to go. It is charged to every request in flight at that moment, or else to the next to arrive.

use std::time::Duration;

use super::plan::{Alone, Demand, Stretch};
use super::slots::{NEVER, Slot, Slots};
use crate::baselines::KERNELS_PER_LAYER;
use crate::batch::{Batch, Iteration, Progress, Spare, Store};
use crate::clock::Time;
use crate::compute::{self, Boundary, Command, Event};
use crate::kv::{BLOCK_TOKENS, Blocks};
use crate::memory::{self, Pool, Wants};
use crate::record::{Outcome, Preemption, Request, Span, SpanKind};
use crate::rng::{Rng, splitmix64};
use crate::spec::{Compute, Spec};

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
    compute: Box<dyn compute::Policy>,
    memory: Box<dyn memory::Policy>,
    pool: Pool,
    commands: Vec<Command>,
    state: State,
    share: Option<Share>,
    /// Start of the switch, or of the drain, under way.
    switch_from: u64,
    online: Option<Work>,
    offline: Option<Work>,
    /// When online submitted what waits.
    wanted: Option<u64>,
    /// When offline was last told to go.
    told: u64,
    /// Online has requests and no memory for any.
    starved: bool,
    idle_since: u64,
    in_gap: bool,
    next_request: usize,
    in_flight: u32,
    /// Requests up to here have their last token.
    oldest: usize,
    finished: Vec<bool>,
    preemptions: u32,
    /// Charged to the next request to arrive.
    charge_next: u32,
    next_lengths: usize,
    last_offline_id: u64,
    wastes: u64,
    outcome: Outcome,
    stretches: Vec<Stretch>,
    /// What online used at each launch, while it runs alone.
    demand: Vec<Demand>,
    idle: u64,
}

fn store(bytes: u64, block: u64, spare: Spare, paged: bool) -> Store {
    let limit = u32::try_from(bytes / block.max(1)).unwrap_or(u32::MAX);
    Store {
        pages: paged.then(|| Blocks::new(bytes, block, memory::stripe_of(block))),
        used: 0,
        limit,
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
        let pool = Pool {
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
            requests: requests
                .iter()
                .map(|request| Request {
                    arrival: request.arrival,
                    first_token: request.arrival,
                    last_token: request.arrival,
                    ..Request::default()
                })
                .collect(),
            ..Outcome::default()
        };
        let lengths = spec.offline.lengths.len().max(1) as u64;
        Self {
            slots: Slots::new(),
            compute: compute::make(spec, alone),
            memory: memory::make(spec, alone, horizon),
            pool,
            commands: Vec::new(),
            state: State::Off,
            share: None,
            switch_from: 0,
            online: None,
            offline: None,
            wanted: None,
            told: 0,
            starved: false,
            idle_since: 0,
            in_gap: false,
            next_request: 0,
            in_flight: 0,
            oldest: 0,
            finished: vec![false; requests.len()],
            preemptions: 0,
            charge_next: 0,
            next_lengths: (splitmix64(spec.seed) % lengths) as usize,
            last_offline_id: 0,
            wastes: 0,
            outcome,
            stretches: Vec::new(),
            demand: Vec::new(),
            idle: 0,
            spec,
        }
    }

    /// Runs until every online request has its last token.
    pub fn run(&mut self) -> Outcome {
        let requests = self.spec.online.trace.requests();
        if let Some(first) = requests.first() {
            self.slots.set(Slot::Arrival, first.arrival.0);
        }
        self.tell(Event::Start, 0);
        let mut end = 0;
        while let Some((now, slot)) = self.slots.pop() {
            if self.oldest == requests.len() {
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
                Slot::Memory => self.memory.due(now, &mut self.pool),
                Slot::Compute => self.tell(Event::Due, now),
            }
            self.slots.set(Slot::Memory, self.memory.next());
        }
        self.pause_offline(end);
        self.close(end)
    }

    fn close(&mut self, end: u64) -> Outcome {
        let mut outcome = core::mem::take(&mut self.outcome);
        outcome.length = Duration::from_nanos(end);
        let (online, offline) = (&self.pool.online, &self.pool.offline);
        outcome.offline.prompt_tokens = offline.tokens.prompt;
        outcome.offline.generated_tokens = offline.tokens.generated;
        outcome.offline.finished = offline.finished;
        outcome.offline.capacity_preemptions = offline.pushed_back;
        outcome.offline.kills = self.pool.kills;
        outcome.offline.lost_tokens = self.pool.lost_tokens;
        outcome.online_capacity_preemptions = online.pushed_back;
        outcome.gpu.wasted = Duration::from_nanos(self.wastes);
        outcome.reclaims = core::mem::take(&mut self.pool.reclaims);
        self.compute.learnt(end, &mut outcome.cooldown);
        outcome.timeline.sort_by_key(|span| span.from);
        outcome
    }

    /// Idle times of online and its demands, once it ran.
    pub fn into_plan(self) -> (Vec<Stretch>, Vec<Demand>) {
        (self.stretches, self.demand)
    }

    fn span(&mut self, kind: SpanKind, from: u64, to: u64) {
        if self.spec.timeline && to > from {
            let (from, to) = (Time(from), Time(to));
            self.outcome.timeline.push(Span { kind, from, to });
        }
    }

    fn tell(&mut self, event: Event, now: u64) {
        let mut commands = core::mem::take(&mut self.commands);
        self.compute.step(event, now, &mut commands);
        self.slots.set(Slot::Compute, self.compute.next());
        for command in commands.drain(..) {
            match command {
                Command::Run { takes } => self.let_in(takes, now),
                Command::Stop { at, takes } => self.tell_to_go(at, takes, now),
                Command::Share { slice, switch } => {
                    self.state = State::On;
                    self.share = Some(Share {
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

    // What online does.

    fn arrives(&mut self, now: u64) {
        let requests = self.spec.online.trace.requests();
        let place = self.next_request;
        let Some(request) = requests.get(place) else {
            return;
        };
        self.next_request += 1;
        if let Some(next) = requests.get(self.next_request) {
            self.slots.set(Slot::Arrival, next.arrival.0);
        }
        let id = place as u64;
        self.pool
            .online
            .admit(id, request.input_tokens, request.output_tokens);
        self.in_flight += 1;
        // Charged for what is over before it came, so that the difference at its end is its own.
        self.outcome.requests[place].preemptions =
            self.preemptions - core::mem::take(&mut self.charge_next);
        let idle = self.online.is_none() && self.slots.at(Slot::Launch) == NEVER;
        if idle {
            self.slots.set(Slot::Launch, now);
        }
        let event = Event::Arrived {
            request: id,
            in_flight: self.in_flight,
        };
        self.tell(event, now);
    }

    fn launch(&mut self, now: u64) {
        let bytes = |blocks: u32| memory::whole(u64::from(blocks) * self.pool.online_block);
        let wants = Wants {
            all: bytes(self.pool.online.wants()),
            least: bytes(self.pool.online.needs()),
        };
        self.pool.offline_layer_left = self.boundary(Boundary::LayerAndAgain, now) - now;
        let waits = self.memory.online_wants(wants, now, &mut self.pool);
        self.void_offline(now);
        let used = self.pool.online_used();
        let Some(iteration) = self.pool.online.start() else {
            self.starved = !self.pool.online.is_idle();
            return;
        };
        let used = used.max(self.pool.online_used());
        self.outcome.online_kv_peak_bytes = self.outcome.online_kv_peak_bytes.max(used);
        self.outcome.online_iterations += 1;
        self.starved = false;
        self.note_idle(now);
        if self.spec.compute == Compute::Standalone {
            self.demand.push(Demand {
                at: now,
                bytes: used,
                idle: self.idle,
            });
        }
        let mut work = Work::new(iteration);
        work.left += waits;
        self.online = Some(work);
        self.wanted = Some(now);
        if waits > 0 {
            self.span(SpanKind::Memory, now, now + waits);
        }
        let event = Event::Launch {
            prompt: iteration.prompt_tokens > 0,
            decodes: iteration.decodes,
        };
        self.tell(event, now);
    }

    /// Online used the GPU again.
    fn note_idle(&mut self, now: u64) {
        let (from, oldest) = (self.idle_since, self.oldest);
        let oldest = self.outcome.requests[oldest].arrival.0;
        if self.in_gap {
            let gap = Duration::from_nanos(now - from);
            let longest = &mut self.outcome.cooldown.longest_gap;
            *longest = (*longest).max(gap);
        }
        if now > from {
            self.idle += now - from;
            self.stretches.push(Stretch {
                from,
                to: now,
                oldest: if self.in_gap { oldest } else { now },
            });
        }
    }

    fn online_done(&mut self, now: u64) {
        self.pause_online(now);
        let Some(work) = self.online.take() else {
            return;
        };
        let kind = if work.iteration.prompt_tokens > 0 {
            SpanKind::OnlinePrefill
        } else {
            SpanKind::OnlineDecode
        };
        self.span(kind, now - work.iteration.ns.min(now), now);
        let (requests, finished) = (&mut self.outcome.requests, &mut self.finished);
        let trace = self.spec.online.trace.requests();
        let preemptions = self.preemptions;
        let mut ended = [0u64; 8];
        let mut ends = 0;
        let mut more = Vec::new();
        self.pool.online.finish(|progress| match progress {
            Progress::First(id) => requests[id as usize].first_token = Time(now),
            Progress::Finished(id) => {
                let place = id as usize;
                requests[place].last_token = Time(now);
                requests[place].tokens = trace[place].output_tokens;
                requests[place].preemptions = preemptions - requests[place].preemptions;
                finished[place] = true;
                match ended.get_mut(ends) {
                    Some(free) => *free = id,
                    None => more.push(id),
                }
                ends += 1;
            }
        });
        while self.finished.get(self.oldest).copied().unwrap_or(false) {
            self.oldest += 1;
        }
        self.memory.online_done(now, &mut self.pool);
        self.idle_since = now;
        self.in_gap = !self.pool.online.is_idle();
        if self.in_gap {
            self.slots.set(Slot::Launch, now + self.gap());
        }
        self.tell(Event::Done, now);
        for request in ended.into_iter().take(ends).chain(more) {
            self.in_flight -= 1;
            let in_flight = self.in_flight;
            self.tell(Event::Ended { request, in_flight }, now);
        }
    }

    /// The decode gap before the next iteration: it belongs to the oldest request of the batch and
    /// its token, so that runs which differ by a delay meet the same gaps.
    fn gap(&self) -> u64 {
        let (request, token) = self.pool.online.head();
        let key = splitmix64(request).wrapping_add(u64::from(token));
        let mut rng = Rng::new(splitmix64(self.spec.seed) ^ splitmix64(key));
        let gap = self.spec.online.gaps.draw(&mut rng);
        u64::try_from(gap.as_nanos()).unwrap_or(u64::MAX).max(1)
    }

    // What offline does.

    fn offline_done(&mut self, now: u64) {
        self.pause_offline(now);
        self.offline = None;
        self.outcome.offline.iterations += 1;
        self.pool.offline.finish(|_| {});
        if let State::Draining { takes, .. } = self.state {
            self.stop(takes, now);
        }
        self.retry_online(now);
        self.tell(Event::OfflineDone, now);
    }

    /// What offline did may have freed what online waits for.
    fn retry_online(&mut self, now: u64) {
        if self.starved && self.slots.at(Slot::Launch) == NEVER {
            self.slots.set(Slot::Launch, now);
        }
    }

    /// Offline's process died with what it had submitted.
    fn void_offline(&mut self, now: u64) {
        if core::mem::take(&mut self.pool.offline_void) {
            self.pause_offline(now);
            if let Some(work) = self.offline.take() {
                self.wastes += work.iteration.ns - work.left;
            }
            self.slots.set(Slot::OfflineDone, NEVER);
        }
    }

    fn submit_offline(&mut self, now: u64) {
        if self.offline.is_some() || now < self.pool.offline_down_until {
            return;
        }
        let taxed = self.memory.offline_wants(now, &mut self.pool);
        while self.pool.offline.waiting() < BACKLOG {
            let lengths = self.spec.offline.lengths[self.next_lengths];
            self.next_lengths = (self.next_lengths + 1) % self.spec.offline.lengths.len();
            self.last_offline_id += 1;
            self.pool.offline.admit(
                self.last_offline_id,
                lengths.input_tokens,
                lengths.output_tokens,
            );
        }
        if let Some(mut iteration) = self.pool.offline.start() {
            iteration.ns += taxed;
            self.offline = Some(Work::new(iteration));
        }
    }

    fn let_in(&mut self, takes: u64, now: u64) {
        if !matches!(self.state, State::Off | State::Stopping) {
            return;
        }
        let waits = self.memory.gate(true, now, &mut self.pool);
        let from = match self.state {
            State::Stopping => self.slots.at(Slot::Switch),
            _ => now,
        };
        self.state = State::Starting;
        self.pool.gated = false;
        self.outcome.wakes += 1;
        if self.in_flight > 0 && self.in_gap {
            self.outcome.cooldown.woken_in_gap += 1;
        }
        self.switch_from = from;
        self.slots.set(Slot::Switch, from + waits + takes);
        if takes == 0 && from + waits == now {
            self.slots.set(Slot::Switch, NEVER);
            self.switched(now);
        }
    }

    fn tell_to_go(&mut self, at: Boundary, takes: u64, now: u64) {
        match self.state {
            State::Starting => {
                self.charge(now);
                self.outcome.gpu.switching += Duration::from_nanos(now - self.switch_from.min(now));
                self.stop(takes, now);
            }
            State::On => {
                self.charge(now);
                self.pause_offline(now);
                let until = self.boundary(at, now);
                let again = at == Boundary::LayerAndAgain;
                if until <= now {
                    self.stop(takes, now);
                } else {
                    self.state = State::Draining { takes, again };
                    self.switch_from = now;
                    // The end of the iteration is an event of its own.
                    if self.offline.is_none_or(|work| now + work.left > until) {
                        self.slots.set(Slot::Switch, until);
                    }
                }
            }
            State::Off | State::Draining { .. } | State::Stopping => {}
        }
    }

    /// A preemption, charged by the rule above.
    fn charge(&mut self, now: u64) {
        self.told = now;
        self.preemptions += 1;
        if self.in_flight == 0 {
            self.charge_next += 1;
        }
    }

    /// When the unit that runs can be interrupted.
    fn boundary(&self, at: Boundary, now: u64) -> u64 {
        let Some(work) = self.offline else {
            return match at {
                Boundary::After(ns) => now + ns,
                _ => now,
            };
        };
        let (total, done) = (work.iteration.ns, work.iteration.ns - work.left);
        let layers = u64::from(self.spec.offline.model.shape.layers.max(1));
        let unit = match at {
            Boundary::After(ns) => return now + ns,
            Boundary::Iteration => total,
            Boundary::Kernels(_) if work.iteration.prompt_tokens == 0 => total,
            Boundary::Kernels(in_flight) => {
                let kernels = layers * u64::from(KERNELS_PER_LAYER);
                total / kernels * u64::from(in_flight)
            }
            Boundary::LayerAndAgain => total / layers,
        };
        let end = done.next_multiple_of(unit.max(1)).min(total);
        now + end - done
    }

    /// Offline stops running and is off after `takes`.
    fn stop(&mut self, takes: u64, now: u64) {
        if let State::Draining { again: true, .. } = self.state
            && let Some(work) = &mut self.offline
        {
            self.wastes += work.iteration.ns - work.left;
            work.left = work.iteration.ns;
        }
        self.pool.gated = true;
        self.state = State::Stopping;
        self.switch_from = now;
        let waits = self.memory.gate(false, now, &mut self.pool);
        self.slots.set(Slot::Switch, now + takes + waits);
        if takes + waits == 0 {
            self.slots.set(Slot::Switch, NEVER);
            self.switched(now);
        }
    }

    /// The boundary of a drain, or the end of a switch.
    fn switched(&mut self, now: u64) {
        match self.state {
            State::Draining { takes, .. } => {
                self.pause_offline(now);
                self.stop(takes, now);
                if self.state == State::Stopping {
                    return;
                }
            }
            State::Starting => {
                self.state = State::On;
                self.switch_over(now);
                self.tell(Event::Running, now);
            }
            State::Stopping => {
                self.state = State::Off;
                self.switch_over(now);
                let wanted = self
                    .wanted
                    .map_or(self.told, |wanted| wanted.min(self.told));
                self.outcome.preemptions.push(Preemption {
                    wanted: Time(wanted),
                    off: Time(now),
                });
                self.tell(Event::Stopped, now);
            }
            State::Off | State::On => {}
        }
        self.dispatch(now);
    }

    fn switch_over(&mut self, now: u64) {
        self.outcome.gpu.switching += Duration::from_nanos(now - self.switch_from.min(now));
        self.span(SpanKind::Switch, self.switch_from, now);
    }

    // The GPU.

    fn dispatch(&mut self, now: u64) {
        if self.share.is_some() {
            return self.dispatch_shared(now);
        }
        match self.state {
            State::Off => self.run_online(now),
            State::On => {
                if self.online.is_none_or(|work| work.since.is_none()) {
                    self.submit_offline(now);
                    self.run_offline(now);
                }
            }
            State::Draining { .. } => self.run_offline(now),
            State::Starting | State::Stopping => {}
        }
    }

    fn run_online(&mut self, now: u64) {
        if let Some(work) = &mut self.online
            && work.since.is_none()
        {
            work.since = Some(now);
            self.wanted = None;
            self.slots.set(Slot::OnlineDone, now + work.left);
        }
    }

    fn run_offline(&mut self, now: u64) {
        if let Some(work) = &mut self.offline
            && work.since.is_none()
        {
            work.since = Some(now);
            self.slots.set(Slot::OfflineDone, now + work.left);
        }
    }

    fn pause_online(&mut self, now: u64) {
        if let Some(work) = &mut self.online
            && let Some(since) = work.since.take()
        {
            work.left -= (now - since).min(work.left);
            self.outcome.gpu.online += Duration::from_nanos(now - since);
            self.slots.set(Slot::OnlineDone, NEVER);
        }
    }

    fn pause_offline(&mut self, now: u64) {
        if let Some(work) = &mut self.offline
            && let Some(since) = work.since.take()
        {
            work.left -= (now - since).min(work.left);
            self.outcome.gpu.offline += Duration::from_nanos(now - since);
            self.slots.set(Slot::OfflineDone, NEVER);
            self.span(SpanKind::Offline, since, now);
        }
    }

    /// Both may run: who has the turn keeps it for a slice, or until it has nothing to do.
    fn dispatch_shared(&mut self, now: u64) {
        let Some(mut share) = self.share else { return };
        if self.state == State::Starting {
            return;
        }
        if !share.online || self.online.is_none() {
            self.submit_offline(now);
        }
        let (online, offline) = (self.online.is_some(), self.offline.is_some());
        let running = |work: Option<Work>| work.is_some_and(|work| work.since.is_some());
        let holder_has_work = if share.online { online } else { offline };
        if !holder_has_work && (online || offline) {
            return self.change_turns(now);
        }
        if online && offline {
            // A turn that began long ago without a rival is counted in whole slices.
            let into = (now - share.began) % share.slice;
            if self.slots.at(Slot::Turn) == NEVER {
                share.began = now - into;
                self.slots.set(Slot::Turn, now - into + share.slice);
            }
        }
        self.share = Some(share);
        if share.online && !running(self.online) {
            self.run_online(now);
        } else if !share.online && !running(self.offline) {
            self.run_offline(now);
        }
    }

    fn turn(&mut self, now: u64) {
        if self.online.is_some() && self.offline.is_some() {
            self.change_turns(now);
        }
    }

    fn change_turns(&mut self, now: u64) {
        self.pause_online(now);
        self.pause_offline(now);
        let Some(share) = &mut self.share else { return };
        share.online = !share.online;
        share.began = now + share.switch;
        if share.online {
            self.preemptions += 1;
        }
        self.state = State::Starting;
        self.switch_from = now;
        self.slots.set(Slot::Turn, NEVER);
        self.slots.set(Slot::Switch, now + share.switch);
    }
}
