//! The router: who is told what, in what order.
//!
//! Every part of the shell asks for what has to happen elsewhere ([`Request`]); here each request finds its
//! part. Effects of one step are carried out to the last before the next event is stepped: an order that fails at
//! once must not be answered by newer orders before the rest of its own step has been handed on, or the rest would
//! come after, and replace them.

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

mod hearing;
mod leaving;
mod turn;
mod views;

use crate::adoption::Adoption;
use crate::counters::Counters;
use crate::gpus::Gpus;
use crate::journal::{Journal, Marked};
use crate::kinds::{Gpu, Level, Method, Switch};
use crate::lanes::{Lanes, all_said, said};
use crate::leases::{Leases, Lending};
use crate::members::{Field, Members};
use crate::memory::Memory;
use crate::message::{Input, Tunables};
use crate::ports::{Issuer, NodeEvent, Ports};
use crate::proofs::Proofs;
use crate::report::{self, Scene};
use crate::request::{Context, Notice, Request, Settings};
use crate::spans::Spans;
use crate::task::{Issued, Outcome};
use crate::text::Text;
use crate::usage::Usage;
use std::collections::VecDeque;
use std::sync::Arc;
use tidegate_abi::gate::Gate;
use tidegate_policy::config::{FairMode, Suspects};
use tidegate_policy::effect::{Effect, Look};
use tidegate_policy::event::Event;
use tidegate_policy::ids::{Channels, GpuId, GpuSet, JobId, SessionId};
use tidegate_policy::memory::MemoryEvent;
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
    usage: Usage,
    spans: Spans,
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
            usage: Usage::new(usize::from(count), now),
            spans: Spans::new(usize::from(count), now),
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

    // ------------------------------------------------------------ inputs

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

    // ------------------------------------------------------------ requests

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

    fn carry(&mut self, request: Request) {
        match request {
            Request::Step(event) => {
                self.flow.events.push_back(event);
                self.drain();
            }
            Request::Emit(notice) => self.emit(notice),
            Request::Claim(claim) => self.ports.prover.claim(claim),
            Request::Retire(retire) => self.retire(retire),
            Request::Changed {
                session,
                gpus,
                grown,
            } => self.channels_changed(session, gpus, grown),
            Request::Manage { session, client } => {
                let moving = self.policy.is_moving(SessionId(session));
                let mut field = Field {
                    gpus: &self.lanes.gpus,
                    adoption: &mut self.adoption,
                    moving,
                };
                let cx = &mut context!(self);
                let gpus = self.members.manage_client(session, client, &mut field, cx);
                cx.ask(Request::Changed {
                    session,
                    gpus,
                    grown: true,
                });
                self.suspect(session, client);
                self.look_elsewhere(session);
            }
            Request::Unasked(session, client) => self.proofs.drop((session, client)),
            Request::Announce(session) => {
                if let Some(event) = self.members.announcement(session) {
                    context!(self).step(event);
                }
                let job = self.members.get(session).and_then(|own| own.job);
                job.into_iter().for_each(|job| self.say_terms(job));
            }
            Request::Terms(job) => self.say_terms(job),
            Request::Gates(job) => {
                let level = self.settings.level;
                self.lanes.refresh_gates(job, &mut self.members, level);
            }
            Request::Tickets(session) => {
                let level = self.settings.level;
                self.lanes
                    .release_tickets(session, &mut self.members, level);
            }
            Request::JobTickets(job) => {
                let level = self.settings.level;
                self.lanes
                    .release_job_tickets(job, &mut self.members, level);
            }
            Request::LeaseOver {
                session,
                gpu,
                lease,
                units,
            } => {
                let by = (session, gpu);
                self.leases.over(by, (lease, units), &mut context!(self));
            }
            Request::Guards => {
                let ignore = self.settings.ignore_suspects;
                let members = &self.members;
                self.lanes.disarm_all();
                self.lanes.gpus.guard(|gpu| members.guards(gpu, ignore));
            }
            Request::ReadActivity(gpus) => {
                let events = &mut self.flow.events;
                self.members
                    .read_activity(gpus, |event| events.push_back(event));
            }
            Request::ProveAgain(job, gpu) => {
                let (prover, now) = (&*self.ports.prover, self.time.now);
                self.proofs
                    .ask_all((job, gpu), &self.lanes, &self.members, prover, now);
            }
            Request::Doubt(job) => {
                for batch in self.lanes.batches(job) {
                    let places = batch.places.iter();
                    places.for_each(|&place| self.adoption.journal.doubt(place));
                }
            }
            Request::Free(places) => self.adoption.free(places),
            Request::SharePool(gpu) => self.share_pool(gpu),
            Request::SharesStale => self.memory.shares_stale = true,
        }
    }

    /// Tells policy how many channels a process has on `gpus`, after the calls were prepared anew.
    fn channels_changed(&mut self, id: u64, gpus: GpuSet, grown: bool) {
        let Some(job) = self.members.get(id).and_then(|session| session.job) else {
            return;
        };
        self.members.look_at_work(id, &mut context!(self));
        if gpus.is_empty() {
            return;
        }
        for gpu in gpus.iter() {
            self.prepare(job, gpu, grown);
        }
        let mut cx = context!(self);
        if grown {
            cx.ask(Request::Announce(id));
        }
        let (slices, level) = (cx.settings.slices, cx.settings.level);
        for gpu in gpus.iter() {
            let own = self.members.get(id);
            if let Some(own) = own.filter(|_| slices) {
                cx.step(said(own, gpu, level));
            }
            let channels = own.map_or(0, |own| own.gated_on(gpu));
            cx.step(Event::ChannelsChanged {
                session: SessionId(id),
                gpu,
                channels: Channels(u32::try_from(channels).unwrap_or(u32::MAX)),
                grown,
            });
        }
        cx.ask(Request::Tickets(id));
    }

    /// Makes calls of its own for each process of a job, where the driver refused one for several and took those.
    fn keep_apart(&mut self, issued: &Issued) {
        let (job, gpu) = (issued.order.job, issued.order.gpu);
        if !issued.apart || issued.outcome != Outcome::Done {
            return;
        }
        if let Some(lane) = self.lanes.lane_mut(job, gpu) {
            lane.apart = true;
            self.prepare(job, gpu, false);
        }
    }

    pub(crate) fn prepare(&mut self, job: JobId, gpu: GpuId, grown: bool) {
        let means = (self.settings.level, self.settings.method);
        self.lanes.prepare((job, gpu), grown, &self.members, means);
        if !grown && self.lanes.is_watched(job, gpu) {
            // The thread is to let go of the calls, and with them of the files of who left.
            self.release(gpu, Vec::new(), None);
        }
    }

    fn emit(&mut self, notice: Notice) {
        let session = self.members.get(notice.session);
        let pid = session.map_or(0, |session| session.process().pid);
        if let (Some(session), Some(what)) = (session, notice.refused) {
            self.ports.events.refused(&session.peer.tenant, what);
        }
        let job = notice.job.and_then(|job| self.lanes.job(job));
        self.ports.events.event(NodeEvent {
            at_ns: self.time.now,
            kind: notice.kind,
            gpu: notice.gpu.map(|gpu| u32::from(gpu.0)),
            session: notice.session,
            pid: notice.pid.max(pid),
            tenant: session.map(|session| session.peer.tenant.clone()),
            job: job.map(|job| job.name.clone()),
            text: notice.text,
            value_ns: notice.value_ns,
        });
    }

    fn share_pool(&mut self, gpu: GpuId) {
        let bytes = tidegate_policy::ids::Bytes(self.settings.pool);
        self.step(MemoryEvent::Pool { gpu, bytes }.into());
    }

    /// Says how much of each GPU is shared out.
    pub(crate) fn share_pools(&mut self) {
        for gpu in self.lanes.gpus.ids() {
            self.share_pool(gpu);
        }
    }

    // ------------------------------------------------------------ the policy

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
        self.memory.shares_stale |= matches!(event, Event::Memory(_) | Event::Terms { .. });
        let now = Instant::from_nanos(self.time.now);
        let mut effects = std::mem::take(&mut self.flow.effects);
        effects.clear();
        self.policy.step(event, now, &mut effects);
        if let Some(recorder) = &mut self.ports.recorder {
            recorder.stepped(&event, now, &effects);
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

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Disable(order) => self.order(order, Switch::Disable, Look::Unconditional),
            Effect::Enable { order, look } => self.order(order, Switch::Enable, look),
            Effect::CloseLaunchGate { job } => self.set_launch_gate(job, Gate::Closed),
            Effect::OpenLaunchGate { job } => self.set_launch_gate(job, Gate::Open),
            Effect::HoldLaunchGate { job } => self.set_launch_gate(job, Gate::Held),
            Effect::Check { .. }
            | Effect::Move { .. }
            | Effect::CancelMove { .. }
            | Effect::Map { .. }
            | Effect::AnswerAsk { .. } => {
                let members = &mut self.members;
                self.memory
                    .order(effect, &self.policy, members, &self.adoption);
            }
            Effect::Timeslice { job, gpu, slice } => {
                let members = &mut self.members;
                self.lanes
                    .slice((job, gpu), slice, members, &mut context!(self));
            }
            Effect::Lease {
                job,
                gpu,
                lease,
                units,
                until,
                ..
            } => {
                let grace_ns = self.settings.leases.map_or(0, |own| own.grace_ns);
                let lending = Lending {
                    job,
                    gpu,
                    lease,
                    units,
                    until_ns: until.as_nanos().saturating_sub(grace_ns),
                };
                let members = &mut self.members;
                self.leases.lend(lending, members, &mut context!(self));
            }
            Effect::Withdraw { gpu, lease, .. } => {
                self.leases.withdraw((gpu, lease), &mut self.members);
            }
            Effect::ReadActivity { gpus } => context!(self).ask(Request::ReadActivity(gpus)),
            Effect::WakeAt(at) => self.time.timer = Some(at.as_nanos()),
            Effect::Emit(report) => {
                let scene = Scene {
                    lanes: &mut self.lanes,
                    members: &mut self.members,
                    memory: &mut self.memory,
                    policy: &self.policy,
                };
                report::emit(report, scene, &mut context!(self));
            }
        }
    }

    pub(crate) fn order(
        &mut self,
        order: tidegate_policy::event::Order,
        switch: Switch,
        look: Look,
    ) {
        let clock = &*self.ports.clock;
        self.lanes.order(
            order,
            (switch, look, self.policy.gpus_of(order.job)),
            &mut self.members,
            &self.adoption.journal,
            || clock.now_ns(),
            &mut context!(self),
        );
    }

    fn set_launch_gate(&mut self, job: JobId, gate: Gate) {
        self.lanes.set_launch_gate(job, gate);
        context!(self).ask(Request::Gates(job));
    }

    /// Adds the time since the last call to what stood until now. After the effects are handed on, so
    /// that no order waits for it.
    pub(crate) fn account(&mut self) {
        let standing = self.policy.standing();
        self.spans.stand(standing.busy, self.time.now);
        for gpu in self.lanes.gpus.ids() {
            let Some(ledger) = self.policy.ledger(gpu).filter(|own| !own.pool().is_zero()) else {
                continue;
            };
            let totals = ledger.totals();
            let room = ledger.pool().minus(totals.online).minus(totals.headroom);
            self.usage.leave(gpu, ledger.pool(), room, self.time.now);
        }
        self.usage
            .stand(standing, self.policy.uses(), self.time.now);
    }

    // ------------------------------------------------------------ what the turn and the end need

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
