//! The router: which part receives what, and in which order.
//!
//! Every part of the shell returns [`Request`]s for what has to happen elsewhere; here each request reaches its part.
//! All effects of one step are carried out before the next event is stepped. Otherwise an order that fails at once
//! could be answered by newer orders before the rest of its own step is carried out, and that rest would then replace
//! them.

/// A context over the fields that a part is not lent.
macro_rules! context {
    ($shell:expr) => {
        Context {
            now: $shell.time.now,
            settings: &$shell.settings,
            counters: &mut $shell.counters,
            out: &mut $shell.flow.asked,
        }
    };
}

mod effects;
mod hearing;
mod leaving;
mod requests;
mod turn;
mod views;

use crate::adoption::Adoption;
use crate::counters::Counters;
use crate::gpus::Gpus;
use crate::journal::{Journal, Marked};
use crate::kinds::{Gpu, Level, Method};
use crate::lanes::{Lanes, all_said};
use crate::leases::Leases;
use crate::members::Members;
use crate::memory::Memory;
use crate::message::{Input, Tunables};
use crate::ports::{Issuer, Ports};
use crate::proofs::Proofs;
use crate::request::{Context, Request, Settings};
use crate::spans::Spans;
use crate::task::{Issued, Outcome};
use crate::text::Text;
use crate::usage::Usage;
use std::collections::VecDeque;
use std::sync::Arc;
use tidegate_policy::config::{FairMode, Suspects};
use tidegate_policy::effect::Effect;
use tidegate_policy::event::Event;
use tidegate_policy::ids::{GpuId, JobId, SessionId};
use tidegate_policy::node::Node;
use tidegate_policy::time::Instant;
pub use turn::{HEARTBEAT_NS, LATE_NS};

/// What a shell is made of.
#[derive(Debug)]
pub struct Parts {
    /// Settings that may change.
    pub tunables: Tunables,
    /// How channels are controlled.
    pub level: Level,
    /// How that stops what runs.
    pub method: Method,
    /// Bytes of each GPU that are shared out; 0: none.
    pub pool: u64,
    /// Clients of processes without a control file belong to the first that reports them.
    pub believe_unproven: bool,
    /// The GPUs, in order, with their issue threads (none at L3 and L5).
    pub gpus: Vec<(Gpu, Option<Box<dyn Issuer>>)>,
    /// How many GPUs more there may be, known when a process names them. Their launches only are gated: at level L5.
    pub unseen: usize,
    /// This agent's generation.
    pub generation: u64,
    /// Disabled channels.
    pub journal: Arc<Journal>,
    /// Those that a predecessor handed over.
    pub adopted: Vec<Marked>,
    /// MPS runs.
    pub mps: bool,
    /// The world.
    pub ports: Ports,
}

/// The shell around the policy of one node.
#[derive(Debug)]
pub struct Shell {
    policy: Node,
    pub(crate) members: Members,
    pub(crate) lanes: Lanes,
    proofs: Proofs,
    memory: Memory,
    leases: Leases,
    pub(crate) adoption: Adoption,
    history: History,
    pub(crate) settings: Settings,
    pub(crate) counters: Counters,
    pub(crate) ports: Ports,
    pub(crate) time: Time,
    flow: Flow,
    /// Jobs that an operator paused, or let run while all others are paused, by name.
    pub(crate) steered: Vec<(Text, bool)>,
    pub(crate) end: End,
}

/// The shell's times, ns.
#[derive(Debug)]
pub(crate) struct Time {
    pub now: u64,
    pub started: u64,
    /// Of the last sign of life; 0: none yet.
    pub beat: u64,
    /// When policy wants a tick.
    pub timer: Option<u64>,
}

/// What was used, and when.
#[derive(Debug)]
struct History {
    usage: Usage,
    spans: Spans,
}

/// What is under way.
#[derive(Debug)]
struct Flow {
    /// Events that wait for the step.
    events: VecDeque<Event<'static>>,
    /// Effects of a step; taken while they are carried out.
    effects: Vec<Effect>,
    /// They are being carried out: what they make happen at once waits in `events` until all are.
    carrying_out: bool,
    /// What parts have asked for since the router last looked.
    asked: Vec<Request>,
    /// What is left to be done, the next at the end.
    work: Vec<Request>,
}

/// How the shell ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It does not.
    No,
    /// When everything is enabled, or then.
    By(u64),
    /// Now.
    Now,
}

/// Effects and events that a turn makes at most without allocating.
const FLOW: usize = 1_024;

impl Shell {
    /// A node with nobody attached.
    #[must_use]
    pub fn new(mut parts: Parts) -> Self {
        let now = parts.ports.clock.now_ns();
        let gpus = Gpus::new(parts.gpus, parts.unseen);
        let (policy, count) = (parts.tunables.policy, gpus.count());
        if let Some(recorder) = &mut parts.ports.recorder {
            recorder.begin(&policy, count, Instant::from_nanos(now));
        }
        Self {
            policy: Node::new(policy, count, Instant::from_nanos(now)),
            members: Members::default(),
            lanes: Lanes::new(gpus),
            proofs: Proofs::default(),
            memory: Memory::new(),
            leases: Leases::default(),
            adoption: Adoption::new(parts.journal, parts.adopted, now),
            history: History {
                usage: Usage::new(usize::from(count), now),
                spans: Spans::new(usize::from(count), now),
            },
            settings: Settings {
                level: parts.level,
                method: parts.method,
                pool: parts.pool,
                believe_unproven: parts.believe_unproven,
                ignore_suspects: policy.suspects == Suspects::Ignore,
                generation: parts.generation,
                rings_per_second: parts.tunables.rings_per_second,
                prove_every_ns: parts.tunables.prove_every_ns,
                stall_ns: parts.tunables.stall_ns,
                answer_ns: parts.tunables.answer_ns,
                users: parts.tunables.users,
                slices: policy.fair.mode == FairMode::Slices,
                leases: policy.leases,
                mps: parts.mps,
            },
            counters: Counters::default(),
            ports: parts.ports,
            time: Time {
                now,
                started: now,
                beat: 0,
                timer: None,
            },
            flow: Flow {
                events: VecDeque::with_capacity(FLOW),
                effects: Vec::with_capacity(FLOW),
                carrying_out: false,
                asked: Vec::with_capacity(FLOW),
                work: Vec::with_capacity(FLOW),
            },
            steered: Vec::new(),
            end: End::No,
        }
    }

    /// Where an input goes.
    pub(crate) fn route(&mut self, input: Input) {
        match input {
            Input::Attached(newcomer) => self.attach(*newcomer),
            Input::Said(session, said) => self.hear(session, said),
            Input::Disconnected(session) => {
                self.members.disconnect(session, &mut context!(self));
            }
            Input::Exited(process) => self.bury(process),
            Input::Proof(proof) => self.members.judge(proof, &mut context!(self)),
            Input::Issued(issued) if issued.unasked => self.fired(issued),
            Input::Issued(issued) => {
                self.lanes
                    .answered(issued, &mut self.members, &mut context!(self));
                self.keep_apart(&issued);
            }
            Input::Aged(aged) => {
                let answer = (aged.session, aged.client);
                let next = self.proofs.answered(answer, aged.seq, aged.owner);
                self.aged(answer, next);
            }
            Input::Released(released) => self.released(released),
            Input::Sliced(sliced) => self.lanes.sliced(sliced, &mut context!(self)),
            Input::Mps(runs) => self.settings.mps = runs,
            Input::Configure(tunables) => self.configure(&tunables),
            Input::Stop => self.begin_end(),
            Input::HandOver => self.hand_over(),
        }
        self.settle();
    }

    /// An issue thread did what an armed order says: policy finds the edge, or orders anew what it wants.
    fn fired(&mut self, issued: Issued) {
        self.counters.fired += 1;
        // The order for the edge makes the calls again, and has its own failure told of.
        self.counters.disables_failed += u64::from(matches!(issued.outcome, Outcome::Failed(_)));
        let order = issued.order;
        if !self.lanes.fired(order) || !self.may_step() {
            return;
        }
        self.ask(Request::ReadActivity(self.policy.gpus_of(order.job)));
        self.settle();
        self.drain();
        if self.lanes.has_strayed(order) {
            self.counters.strayed += 1;
            let job = Some(order.job);
            self.step(Event::Reissue { job });
        }
    }

    /// Goes on with other settings.
    fn configure(&mut self, tunables: &Tunables) {
        let ignored = self.settings.ignore_suspects;
        let ending = !self.may_step();
        self.settings.tune(tunables);
        self.proofs.hurry(self.time.now);
        if ending {
            return;
        }
        if self.settings.ignore_suspects != ignored {
            context!(self).ask(Request::Guards);
            self.settle();
        }
        if self.settings.slices {
            // Before it decides by them.
            for event in all_said(&self.members, self.settings.level) {
                self.step(event);
            }
        }
        let now = Instant::from_nanos(self.time.now);
        let mut effects = std::mem::take(&mut self.flow.effects);
        effects.clear();
        self.policy.configure(tunables.policy, now, &mut effects);
        if let Some(recorder) = &mut self.ports.recorder {
            recorder.configured(&tunables.policy, now, &effects);
        }
        self.carry_out_all(effects);
        self.drain();
        for job in self.members.live_jobs() {
            self.say_terms(job);
        }
        if self.settings.leases.is_none() {
            self.members.forget_leases(&mut context!(self));
        }
        self.memory.shares_stale = true;
        self.settle();
    }

    /// Tells policy what a job has among others, where that has changed.
    fn say_terms(&mut self, job: JobId) {
        if let Some(event) = self.members.terms(job, &self.settings.users) {
            context!(self).step(event);
        }
    }

    /// Carries out all that was asked for, each with what follows from it before the next.
    pub(crate) fn settle(&mut self) {
        let base = self.flow.work.len();
        loop {
            while let Some(request) = self.flow.asked.pop() {
                self.flow.work.push(request);
            }
            if self.flow.work.len() == base {
                return;
            }
            if let Some(request) = self.flow.work.pop() {
                self.carry(request);
            }
        }
    }

    /// A node that is ending decides nothing any more.
    pub(crate) fn may_step(&self) -> bool {
        self.end == End::No
    }

    /// Steps the policy with what waits, and with all that follows from it.
    pub(crate) fn drain(&mut self) {
        if self.flow.carrying_out {
            return;
        }
        while let Some(event) = self.flow.events.pop_front() {
            self.step_once(event);
        }
    }

    /// Steps the policy with one event, and with all that follows from it.
    pub(crate) fn step(&mut self, event: Event<'_>) {
        self.step_once(event);
        self.drain();
    }

    fn step_once(&mut self, event: Event<'_>) {
        if !self.may_step() {
            return;
        }
        let one_of_many = event.is_one_of_many();
        let of_shares = matches!(event, Event::Memory(_) | Event::Terms { .. });
        self.memory.shares_stale |= of_shares;
        let now = Instant::from_nanos(self.time.now);
        let mut effects = std::mem::take(&mut self.flow.effects);
        effects.clear();
        self.policy.step(event, now, &mut effects);
        if let Some(recorder) = &mut self.ports.recorder {
            recorder.stepped(&event, now, &effects);
        }
        if one_of_many {
            self.flow.effects = effects;
            return;
        }
        self.carry_out_all(effects);
    }

    fn carry_out_all(&mut self, effects: Vec<Effect>) {
        self.flow.carrying_out = true;
        for &effect in &effects {
            self.carry_out(effect);
            self.settle();
        }
        self.leases.settle(&self.policy, &mut self.members);
        self.flow.carrying_out = false;
        self.flow.effects = effects;
        self.account();
    }

    /// Adds the time since the last call to what stood until now. After the effects are handed on, so
    /// that no order waits for it.
    pub(crate) fn account(&mut self) {
        let standing = self.policy.standing();
        self.history.spans.stand(standing.busy, self.time.now);
        for gpu in self.lanes.gpus.ids() {
            let Some(ledger) = self.policy.ledger(gpu).filter(|own| !own.pool().is_zero()) else {
                continue;
            };
            let totals = ledger.totals();
            let room = ledger.pool().minus(totals.online).minus(totals.headroom);
            self.history
                .usage
                .leave(gpu, ledger.pool(), room, self.time.now);
        }
        self.history
            .usage
            .stand(standing, self.policy.uses(), self.time.now);
    }

    pub(crate) fn ask(&mut self, request: Request) {
        self.flow.asked.push(request);
    }

    /// Lends members, lanes and a context at once.
    pub(crate) fn with<T>(
        &mut self,
        part: impl FnOnce(&mut Members, &mut Lanes, &mut Context<'_>) -> T,
    ) -> T {
        let mut cx = context!(self);
        part(&mut self.members, &mut self.lanes, &mut cx)
    }

    pub(crate) fn release_remote(
        &mut self,
        session: u64,
        lane: (Option<JobId>, GpuId),
        places: Vec<crate::journal::Place>,
    ) {
        let with = (&mut self.members, &*self.adoption.journal);
        self.lanes
            .release_remote(session, lane, places, with, &mut context!(self));
    }

    /// Use of memory, answers for who could not be asked, shares.
    pub(crate) fn attend_to_memory(&mut self) {
        self.memory.read_usage(&self.members, &mut context!(self));
        self.settle();
        while let Some(event) = self.memory.answer_for_the_silent() {
            self.step(event);
        }
        let now = Instant::from_nanos(self.time.now);
        self.memory
            .tell_shares(&self.policy, &mut self.members, now);
    }

    pub(crate) fn are_proofs_due(&mut self) -> bool {
        let every = self.settings.prove_every_ns;
        self.proofs.is_due(self.time.now, every)
    }

    pub(crate) fn forget_proofs(&mut self, session: u64) {
        self.proofs.drop_all(session);
    }

    pub(crate) fn is_moving(&self, session: SessionId) -> bool {
        self.policy.is_moving(session)
    }
}
