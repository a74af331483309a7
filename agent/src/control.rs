//! The control thread: owns the state of the whole node and decides, by `tidegate_policy`, what runs.
//!
//! It sleeps on the doorbells of all online processes, one word that other threads raise, and the next
//! timer, all in one `futex_waitv`. Awake it reads what changed, stamps `now`, steps the policy, and
//! hands its effects on. It makes no call that may wait: the driver's ioctls are the issue threads',
//! proofs the prover's, logs the event thread's. In the steady state (edges, timers, answers) it
//! allocates nothing.
//!
//! Signs of life: every page's heartbeat is written at least every [`HEARTBEAT_NS`], and a turn that
//! comes late by [`LATE_NS`] means that this thread was stopped: processes may have landed softly
//! meanwhile, so the wanted state of every channel is ordered again.

mod claims;
mod devices;
mod gang;
mod leaving;
mod members;
mod memory;
mod orders;
mod proofs;
mod report;
mod session;
mod steer;
mod telling;
mod waiting;

use crate::clock::now_ns;
use crate::config::{Level, Method, Role};
use crate::events::{Happening, Teller};
use crate::gate::Gate;
use crate::inbox::{Inbox, Input, Mailbox, Tunables};
use crate::issue::{Guards, Issuer};
use crate::journal::{Journal, Marked, Place, Places};
use crate::latency::Latencies;
use crate::notify::Notifier;
use crate::obstacle::Obstacle;
use crate::prove::{Prover, Reprover};
use crate::recorder::Recorder;
use crate::rm::Gpu;
use crate::usage::Usage;
use claims::Claims;
use gang::Gang;
use leaving::{ADOPTION_NS, Adopted};
use proofs::Proofs;
use session::Session;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidegate_policy::config::Suspects;
use tidegate_policy::effect::{Effect, Look};
use tidegate_policy::event::Event;
use tidegate_policy::ids::{GpuId, GpuSet, JobId, ReclaimId, SessionId};
use tidegate_policy::node::Node;
use tidegate_policy::time::Instant;
use waiting::Waiting;

/// Longest time between two heartbeats in a page.
pub const HEARTBEAT_NS: u64 = 50_000_000;
/// A turn this late: processes may have given up on this agent.
pub const LATE_NS: u64 = 250_000_000;
/// How long the end waits for the last enables.
const END_NS: u64 = 2_000_000_000;
/// Messages taken in one turn before the doorbells are looked at again.
const TURN: usize = 64;

/// What the control thread is made of.
#[derive(Debug)]
pub struct Parts {
    /// Settings that may change.
    pub tunables: Tunables,
    /// How channels are controlled.
    pub level: Level,
    /// How it stops what runs.
    pub method: Method,
    /// Bytes of each GPU that are shared out; 0: none.
    pub pool: u64,
    /// Clients of processes without a control file belong to the first that reports them.
    pub believe_unproven: bool,
    /// The GPUs, in order, with their issue threads (none at L3 and L5).
    pub gpus: Vec<(Gpu, Option<Issuer>)>,
    /// How many GPUs more there may be, known when a process names them. Their launches only are gated: at level L5.
    pub unseen: usize,
    /// This agent's generation.
    pub generation: u64,
    /// Disabled channels.
    pub journal: Arc<Journal>,
    /// Those that a predecessor handed over.
    pub adopted: Vec<Marked>,
    /// Where claims go.
    pub prover: Prover,
    /// Where proofs go that are to be made again.
    pub reprover: Reprover,
    /// Where happenings go.
    pub teller: Teller,
    /// Where messages come from.
    pub inbox: Inbox,
    /// For threads the control thread starts.
    pub mailbox: Mailbox,
    /// The service manager, which wants to hear that the thread makes turns.
    pub notifier: Arc<Notifier>,
    /// What status says of the node.
    pub about: report::About,
    /// Where decisions are recorded, if they are.
    pub recorder: Option<Recorder>,
}

pub use report::About;

/// The control thread's state.
#[derive(Debug)]
pub struct Control {
    node: Node,
    recorder: Option<Recorder>,
    level: Level,
    method: Method,
    rings_per_second: u32,
    /// Bytes of each GPU that are shared out; 0: none.
    pool: u64,
    believe_unproven: bool,
    ignore_suspects: bool,
    /// How long gates stay shut after the start.
    start_hold_ns: u64,
    generation: u64,
    gpus: Vec<GpuState>,
    /// How many GPUs more may be met.
    unseen: usize,
    jobs: Vec<Job>,
    sessions: BTreeMap<u64, Session>,
    claims: Claims,
    journal: Arc<Journal>,
    places: Places,
    adopted: Vec<Adopted>,
    mailbox: Mailbox,
    prover: Prover,
    reprover: Reprover,
    proofs: Proofs,
    prove_every_ns: u64,
    prove_at: u64,
    stall_ns: u64,
    answer_ns: u64,
    teller: Teller,
    notifier: Arc<Notifier>,
    notified: u64,
    inbox: Inbox,
    waiting: Waiting,
    about: report::About,
    counters: report::Counters,
    usage: Usage,
    reclaims: Latencies,
    events: VecDeque<Event<'static>>,
    effects: Vec<Effect>,
    /// Effects of one step are being carried out: what they make happen at once waits in `events` until all are.
    carrying_out: bool,
    now: u64,
    started: u64,
    beat: u64,
    timer: Option<u64>,
    next_seq: u64,
    /// Elastic caches whose use is read from pages.
    watched: Vec<memory::Watched>,
    /// Processes that could not be asked about memory, by reclaim.
    unanswerable: Vec<(ReclaimId, SessionId)>,
    /// What offline processes are shown may have changed.
    shares_stale: bool,
    map_orders: u64,
    /// Releases without an answer.
    releases: u32,
    end: End,
}

/// How the thread ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It does not.
    No,
    /// When everything is enabled, or then.
    By(u64),
    /// Now.
    Now,
}

#[derive(Debug)]
struct GpuState {
    gpu: Gpu,
    issuer: Option<Issuer>,
    guards: Arc<Guards>,
    /// Orders the issue thread has not answered.
    pending: u32,
    /// Since when it owes the next answer.
    pending_since: u64,
    stalled: bool,
    preempt: Latencies,
    gate: Latencies,
    pressure_events: u64,
}

impl GpuState {
    fn new(gpu: Gpu, issuer: Option<Issuer>) -> Self {
        Self {
            gpu,
            issuer,
            guards: Arc::default(),
            pending: 0,
            pending_since: 0,
            stalled: false,
            preempt: Latencies::new(),
            gate: Latencies::new(),
            pressure_events: 0,
        }
    }
}

#[derive(Debug)]
struct Job {
    uid: u32,
    name: Arc<str>,
    /// What policy does with its launches, on every device.
    launches: Gate,
    /// By GPU.
    gangs: Vec<Gang>,
    /// Launches of its processes that are gone.
    launched: u64,
    /// Blocks that reclaims invalidated, as counted so far.
    blocks_lost: u64,
}

/// A GPU's index as policy names it.
pub(crate) fn gpu_id(index: usize) -> GpuId {
    GpuId(u8::try_from(index).unwrap_or(u8::MAX))
}

impl Control {
    /// A node with nobody attached.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        let now = now_ns();
        let gpus: Vec<_> = parts
            .gpus
            .into_iter()
            .map(|(gpu, issuer)| GpuState::new(gpu, issuer))
            .collect();
        let count = u8::try_from(gpus.len() + parts.unseen).unwrap_or(u8::MAX);
        let mut recorder = parts.recorder;
        let Tunables {
            policy,
            rings_per_second,
            prove_every_ns,
            stall_ns,
            answer_ns,
        } = parts.tunables;
        if let Some(recorder) = &mut recorder {
            recorder.begin(&policy, count, Instant::from_nanos(now));
        }
        Self {
            recorder,
            node: Node::new(policy, count, Instant::from_nanos(now)),
            level: parts.level,
            method: parts.method,
            rings_per_second,
            pool: parts.pool,
            believe_unproven: parts.believe_unproven,
            start_hold_ns: crate::clock::nanos(policy.start_hold),
            ignore_suspects: policy.suspects == Suspects::Ignore,
            generation: parts.generation,
            gpus,
            unseen: parts.unseen,
            jobs: Vec::new(),
            sessions: BTreeMap::new(),
            claims: Claims::default(),
            journal: parts.journal,
            places: Places::without(&parts.adopted),
            adopted: parts
                .adopted
                .into_iter()
                .map(|marked| Adopted {
                    marked,
                    due_ns: now + ADOPTION_NS,
                })
                .collect(),
            mailbox: parts.mailbox,
            prover: parts.prover,
            reprover: parts.reprover,
            proofs: Proofs::default(),
            prove_every_ns,
            stall_ns,
            answer_ns,
            prove_at: now,
            teller: parts.teller,
            notifier: parts.notifier,
            notified: 0,
            waiting: Waiting::new(Arc::clone(&parts.inbox.wake)),
            inbox: parts.inbox,
            about: parts.about,
            counters: report::Counters::default(),
            usage: Usage::new(usize::from(count), now),
            reclaims: Latencies::new(),
            events: VecDeque::with_capacity(1_024),
            effects: Vec::with_capacity(1_024),
            carrying_out: false,
            now,
            started: now,
            beat: 0,
            timer: None,
            next_seq: 1,
            watched: Vec::new(),
            unanswerable: Vec::new(),
            shares_stale: false,
            map_orders: 0,
            releases: 0,
            end: End::No,
        }
    }

    /// Runs until it is told to end.
    pub fn run(mut self) {
        self.begin();
        loop {
            self.turn();
            match self.end {
                End::Now => break,
                End::By(limit) if self.nothing_outstanding() || self.now >= limit => break,
                _ => {}
            }
            let raised = self.inbox.wake.load(Ordering::Acquire);
            if self.inbox.input_rx.is_empty() {
                self.waiting.wait(raised, self.deadline());
            }
        }
    }

    fn deadline(&self) -> u64 {
        let stall = self
            .gpus
            .iter()
            .filter(|gpu| gpu.pending != 0 && !gpu.stalled)
            .map(|gpu| gpu.pending_since + self.stall_ns)
            .min();
        let adopted = self.adopted.iter().map(|adopted| adopted.due_ns).min();
        [self.timer, stall, adopted, self.remote_deadline()]
            .into_iter()
            .flatten()
            .fold(self.beat + HEARTBEAT_NS, u64::min)
    }

    /// Before the first turn.
    #[doc(hidden)]
    pub fn begin(&mut self) {
        self.feed(Event::Tick);
        self.share_pools(self.pool);
    }

    /// Reads everything that changed since the last turn, and never waits.
    #[doc(hidden)]
    pub fn turn(&mut self) {
        self.stamp();
        self.read_bells();
        for _ in 0..TURN {
            let Ok(input) = self.inbox.input_rx.try_recv() else {
                break;
            };
            // After it was received, so that nothing is stamped earlier than it can have been true.
            self.stamp();
            self.take(input);
            self.read_bells();
        }
        if self.timer.is_some_and(|at| at <= self.now) {
            self.timer = None;
            self.feed(Event::Tick);
        }
        self.look_for_stalls();
        self.read_usage();
        while self.answer_for_the_deaf() {}
        self.tell_shares();
        self.give_up_on_remotes();
        self.release_unclaimed(self.now);
        self.prove_all_again();
        self.account();
    }

    /// Adds the time since the last call to what stood until now. After the effects are handed on, so
    /// that no order waits for it.
    fn account(&mut self) {
        self.usage
            .stand(self.node.standing(), self.node.runs(), self.now);
    }

    /// Stamps `now`, and gives the signs of life when they are due.
    fn stamp(&mut self) {
        self.now = now_ns();
        if self.now < self.beat + HEARTBEAT_NS {
            return;
        }
        let late = self.beat != 0 && self.now - self.beat > LATE_NS;
        self.beat = self.now;
        let every = self.notifier.alive_every_ns();
        if every != 0 && self.now - self.notified >= every {
            self.notified = self.now;
            self.notifier.alive();
        }
        for session in self.sessions.values() {
            if let Some(page) = &session.page {
                page.agent.heartbeat_ns.store(self.now, Ordering::Release);
            }
        }
        if late {
            self.counters.late_turns += 1;
            self.tell(Happening {
                kind: "agent_was_stopped",
                text: "the control thread came late; ordering every channel anew".to_owned(),
                ..Happening::default()
            });
            self.feed(Event::Reissue { job: None });
        }
        self.look_at_pages();
    }

    /// What pages say without ringing: progress, suspects, soft landings.
    fn look_at_pages(&mut self) {
        let mut landed = Vec::new();
        let mut suspected = false;
        for session in self.sessions.values_mut() {
            let Some(page) = &session.page else { continue };
            let progress = page.process.prober_ns.load(Ordering::Relaxed);
            if session.role == Role::Online && progress != session.progress_ns {
                session.progress_ns = progress;
                self.events.push_back(Event::Progress {
                    session: SessionId(session.id),
                    at: Instant::from_nanos(progress.min(self.now)),
                });
            }
            for (slot, words) in session.slots.iter_mut().zip(&page.devices) {
                let Some(gpu) = slot.gpu else { continue };
                let suspect = words.suspect.load(Ordering::Relaxed);
                let suspect = u32::try_from(suspect).unwrap_or(u32::MAX);
                if suspect != slot.suspect {
                    slot.suspect = suspect;
                    if session.role == Role::Online {
                        suspected = true;
                        self.events.push_back(Event::Suspected {
                            session: SessionId(session.id),
                            gpu,
                            suspect: suspect != 0,
                        });
                    }
                }
            }
            let released = page.process.released.load(Ordering::Acquire);
            if released != session.released {
                session.released = released;
                if released == self.generation {
                    landed.push((session.id, session.job));
                }
            }
        }
        if suspected && self.ignore_suspects {
            self.rebuild_guards();
        }
        for (session, job) in landed {
            self.tell(Happening {
                kind: "landed",
                session,
                job: self.job_name(job),
                text: "the process enabled its own channels".to_owned(),
                ..Happening::default()
            });
            if job.is_some() {
                self.feed(Event::Reissue { job });
            }
        }
        self.drain();
    }

    /// Reads the activity of every process whose doorbell changed.
    fn read_bells(&mut self) {
        let mut at = 0;
        while let Some((session, changed)) = self.waiting.look(at) {
            at += 1;
            if !changed {
                continue;
            }
            let per_second = self.rings_per_second;
            let Some(state) = self.sessions.get_mut(&session) else {
                continue;
            };
            if state.rings.exceeds(self.now, per_second) {
                self.drop_page(session);
                continue;
            }
            self.counters.rings += 1;
            let Some(page) = state.page.clone() else {
                continue;
            };
            for (slot, words) in state.slots.iter_mut().zip(&page.devices) {
                let Some(gpu) = slot.gpu else { continue };
                let activity = session::read(words);
                if activity.word != slot.seen.word {
                    slot.seen = activity;
                    self.events.push_back(Event::Activity {
                        session: SessionId(session),
                        gpu,
                        reading: session::reading(activity),
                    });
                }
            }
            // A cooldown counts from here: stamped before the words were read, it would end too early
            // by as long as this thread was kept from reading them.
            self.now = now_ns();
            self.drain();
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Attached(newcomer) => self.attach(*newcomer),
            Input::Said(session, said) => self.hear(session, said),
            Input::Disconnected(session) => self.disconnect(session),
            Input::Exited(process) => self.bury(process),
            Input::Proof(proof) => self.judge(proof),
            Input::Issued(issued) => self.answered(issued),
            Input::Aged(aged) => self.aged(aged),
            Input::Released(places) => {
                self.releases = self.releases.saturating_sub(1);
                self.give_back(places);
            }
            Input::Stuck { free, stuck, why } => {
                self.releases = self.releases.saturating_sub(1);
                self.give_back(free);
                self.keep_stuck(&stuck, &why);
            }
            Input::Mps(pid) => self.see_mps(pid),
            Input::Ask(ask) => self.answer(ask),
            Input::Configure(tunables) => self.configure(&tunables),
            Input::Audit(kind, text) => self.tell(Happening {
                kind,
                text,
                ..Happening::default()
            }),
            Input::Stop => self.begin_end(),
            Input::HandOver => self.hand_over(),
        }
    }

    /// MPS came or went. The level stays as it was chosen; clients that are reported while it runs
    /// are not managed.
    fn see_mps(&mut self, pid: Option<i32>) {
        let about = &mut self.about.obstacles;
        about.retain(|obstacle| !matches!(obstacle, Obstacle::Mps(_)));
        about.extend(pid.map(Obstacle::Mps));
        self.tell(Happening {
            kind: if pid.is_some() {
                "obstacle"
            } else {
                "obstacle_gone"
            },
            text: pid.map_or_else(
                || "MPS ended".to_owned(),
                |pid| Obstacle::Mps(pid).to_string(),
            ),
            ..Happening::default()
        });
    }

    /// Steps the policy with one event, and with all that follow from it.
    fn feed(&mut self, event: Event<'static>) {
        self.events.push_back(event);
        self.drain();
    }

    /// A node that is ending decides nothing any more.
    fn may_step(&self) -> bool {
        self.end == End::No
    }

    fn drain(&mut self) {
        // An order that fails at once must not be answered by newer orders before the rest of its own step has
        // been handed on: the rest would come after, and replace them.
        if self.carrying_out {
            return;
        }
        while let Some(event) = self.events.pop_front() {
            if !self.may_step() {
                continue;
            }
            let mut effects = std::mem::take(&mut self.effects);
            effects.clear();
            let now = Instant::from_nanos(self.now);
            self.node.step(event, now, &mut effects);
            if let Some(recorder) = &mut self.recorder {
                recorder.stepped(&event, now, &effects);
            }
            self.carry_out_all(effects);
        }
    }

    fn carry_out_all(&mut self, effects: Vec<Effect>) {
        self.carrying_out = true;
        for &effect in &effects {
            self.carry_out(effect);
        }
        self.carrying_out = false;
        self.effects = effects;
        self.account();
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Disable(order) => self.order(order, true, Look::Unconditional),
            Effect::Enable { order, look } => self.order(order, false, look),
            Effect::CloseLaunchGate { job } => self.set_launch_gate(job, Gate::Closed),
            Effect::OpenLaunchGate { job } => self.set_launch_gate(job, Gate::Open),
            Effect::HoldLaunchGate { job } => self.set_launch_gate(job, Gate::Held),
            Effect::Prepare { .. }
            | Effect::Move { .. }
            | Effect::CancelMove { .. }
            | Effect::Map { .. }
            | Effect::AnswerAsk { .. } => self.order_memory(effect),
            Effect::ReadActivity { gpus } => self.read_activity(gpus),
            Effect::WakeAt(at) => self.timer = Some(at.as_nanos()),
            Effect::Emit(report) => self.emit(report),
        }
    }

    /// Reads the activity of every online process on `gpus`.
    fn read_activity(&mut self, gpus: GpuSet) {
        for session in self.sessions.values_mut().filter(|s| s.is_online()) {
            for (at, slot) in session.slots.iter_mut().enumerate() {
                let Some(gpu) = slot.gpu.filter(|&gpu| gpus.contains(gpu)) else {
                    continue;
                };
                if let Some(page) = &session.page {
                    slot.seen = session::read(&page.devices[at]);
                }
                self.events.push_back(Event::Activity {
                    session: SessionId(session.id),
                    gpu,
                    reading: session::reading(slot.seen),
                });
            }
        }
    }

    fn set_lapsed(&mut self, session: SessionId, lapsed: bool) {
        if let Some(state) = self.sessions.get_mut(&session.0) {
            state.lapsed = lapsed;
            self.rebuild_guards();
        }
    }

    /// Adds to the node's books what the last reclaim of `job` invalidated.
    fn count_lost_blocks(&mut self, id: JobId) {
        let lost = self.node.job_memory(id).map_or(0, |view| view.blocks_lost);
        let Some(job) = self.job(id) else { return };
        let before = std::mem::replace(&mut job.blocks_lost, lost);
        self.counters.blocks_invalidated += lost.saturating_sub(before);
    }

    fn job_name(&self, job: Option<JobId>) -> Option<Arc<str>> {
        let job = self.jobs.get(usize::try_from(job?.0).ok()?)?;
        Some(Arc::clone(&job.name))
    }

    fn job(&mut self, job: JobId) -> Option<&mut Job> {
        self.jobs.get_mut(usize::try_from(job.0).ok()?)
    }

    fn gang(&mut self, job: JobId, gpu: GpuId) -> Option<&mut Gang> {
        self.job(job)?.gangs.get_mut(gpu.index())
    }

    /// Jobs with a process.
    fn live_jobs(&self) -> Vec<JobId> {
        let mut live: Vec<_> = self.sessions.values().filter_map(|s| s.job).collect();
        live.sort_unstable();
        live.dedup();
        live
    }

    fn look_for_stalls(&mut self) {
        for index in 0..self.gpus.len() {
            let gpu = &mut self.gpus[index];
            if gpu.pending != 0 && !gpu.stalled && self.now >= gpu.pending_since + self.stall_ns {
                gpu.stalled = true;
                self.counters.stalls += 1;
                self.feed(Event::IssueStalled { gpu: gpu_id(index) });
            }
        }
    }

    fn give_back(&mut self, places: Vec<Place>) {
        for place in places {
            self.journal.clear(place);
            self.places.give_back(place);
        }
    }

    /// Enables everything, then ends.
    fn begin_end(&mut self) {
        if self.end == End::No {
            self.enable_everything();
            self.end = End::By(self.now + END_NS);
        }
    }

    /// Leaves everything as it is for a successor, says so, and ends.
    fn hand_over(&mut self) {
        self.journal.set_handing_over(self.now);
        for session in self.sessions.values() {
            if let Some(page) = &session.page {
                page.agent
                    .handing_over_ns
                    .store(self.now, Ordering::Release);
            }
        }
        self.end = End::Now;
    }
}
