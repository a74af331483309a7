//! The agent's shell in miniature: sessions, one issue thread per GPU, journal, heartbeat.
//!
//! It does what the real shell does around [`Node::step`] and takes drawn times for it. Decisions
//! are the node's alone.

use super::Break;
use super::method::Method;
use super::script::{MS, US};
use super::world::{Ev, World};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use tidegate_device::{ChannelId, TsgId};
use tidegate_policy::config::{Config, Cooldown, Means};
use tidegate_policy::effect::{Effect, Look};
use tidegate_policy::event::{Event, Order, Standing};
use tidegate_policy::ids::{Channels, Generation, GpuId, JobId, SessionId};
use tidegate_policy::node::Node;
use tidegate_policy::time::Instant;

/// An agent that was held up for longer than this orders everything anew.
const LATE: u64 = 250 * MS;
const HEARTBEAT: u64 = 50 * MS;

/// What reaches the control thread.
#[derive(Clone, Copy, Debug)]
pub(super) enum In {
    Doorbell(usize),
    Attach(usize),
    /// The channels of one device of a process, by index.
    Channels(usize, usize),
    /// A new channel waits to be scheduled.
    Schedule(usize, usize, TsgId),
    Gone(usize),
    Answer(Event<'static>),
    Timer(u64),
}

/// An order in an issue thread's queue.
#[derive(Clone, Debug)]
struct Command {
    order: Order,
    disable: bool,
    look: Look,
    list: Vec<ChannelId>,
    groups: Vec<TsgId>,
}

#[derive(Debug, Default)]
struct Issue {
    queue: VecDeque<Command>,
    busy: bool,
}

#[derive(Debug)]
pub(super) struct Agent {
    pub epoch: u64,
    pub stopped: bool,
    node: Node,
    sessions: BTreeMap<u64, usize>,
    jobs: BTreeMap<u32, JobId>,
    next: u32,
    issue: Vec<Issue>,
    newest: BTreeMap<(JobId, usize), Generation>,
    /// Where launches are all that can be held: jobs and GPUs on which they pass.
    pub passing: BTreeSet<(JobId, usize)>,
    unanswered: BTreeMap<(JobId, usize), BTreeSet<Generation>>,
    tickets: Vec<(usize, usize, TsgId)>,
    timer: Option<u64>,
    last_turn: u64,
    inbox: Vec<In>,
    /// Disables that are acknowledged without a call, per GPU.
    faked: BTreeSet<usize>,
    fakes: bool,
}

impl Agent {
    pub fn new(epoch: u64, gpus: u8, broken: Break, method: Method, now: u64) -> Self {
        let mut config = match broken {
            Break::NoCooldown => Config {
                cooldown: Cooldown::Fixed(Duration::ZERO),
                ..Config::default()
            },
            _ => Config::default(),
        };
        if method == Method::LaunchGate {
            config.means = Means::LaunchGate;
        }
        Self {
            epoch,
            stopped: false,
            node: Node::new(config, gpus, Instant::from_nanos(now)),
            sessions: BTreeMap::new(),
            jobs: BTreeMap::new(),
            next: 0,
            issue: (0..gpus).map(|_| Issue::default()).collect(),
            newest: BTreeMap::new(),
            passing: BTreeSet::new(),
            unanswered: BTreeMap::new(),
            tickets: Vec::new(),
            timer: None,
            last_turn: now,
            inbox: Vec::new(),
            faked: BTreeSet::new(),
            fakes: broken == Break::NoDisableOnRestart && epoch > 1,
        }
    }

    fn session_of(&self, pid: usize) -> Option<SessionId> {
        self.sessions
            .iter()
            .find(|known| *known.1 == pid)
            .map(|known| SessionId(*known.0))
    }
}

impl World {
    pub fn agent_starts(&mut self) {
        self.epoch += 1;
        let now = self.now;
        // What an earlier agent may have left disabled is enabled before anything else.
        for (gpu, channel) in core::mem::take(&mut self.journal) {
            self.device(gpu).enable_at(now + 20 * US, &[channel], 0);
        }
        let (gpus, method) = (self.script.gpus, self.method);
        self.agent = Some(Agent::new(self.epoch, gpus, self.broken, method, now));
        self.judge.agent(now, true, true);
        for pid in 0..self.processes.len() {
            if self.processes[pid].alive {
                let wait = self.dice.between(MS, 60 * MS);
                self.tell_in(wait, In::Attach(pid));
            }
        }
        self.feed(Event::Tick);
        self.heartbeat();
    }

    pub fn agent_dies(&mut self) {
        self.agent = None;
        self.epoch += 1;
        let now = self.now;
        self.judge.agent(now, false, false);
        self.check_control();
        for pid in 0..self.processes.len() {
            self.processes[pid].attached = None;
            let wait = self.dice.between(50 * US, 2 * MS);
            if !self.processes[pid].is_online() {
                self.at(now + wait, Ev::Reporter(pid));
            }
        }
    }

    pub fn agent_stops(&mut self) {
        if let Some(agent) = &mut self.agent {
            agent.stopped = true;
            self.judge.agent(self.now, false, false);
            self.check_control();
        }
    }

    pub fn agent_goes_on(&mut self) {
        let now = self.now;
        let Some(agent) = &mut self.agent else { return };
        agent.stopped = false;
        let late = now - agent.last_turn > LATE;
        let inbox = core::mem::take(&mut agent.inbox);
        self.judge.agent(now, true, false);
        for message in inbox {
            self.hear(message);
        }
        self.read_words(None);
        if late {
            self.feed(Event::Reissue { job: None });
        }
        self.feed(Event::Tick);
        self.heartbeat();
        for gpu in 0..usize::from(self.script.gpus) {
            self.enter_next(gpu);
        }
        self.check_control();
    }

    pub fn heartbeat(&mut self) {
        let now = self.now;
        let Some(agent) = self.agent.as_mut().filter(|agent| !agent.stopped) else {
            return;
        };
        agent.last_turn = now;
        let epoch = agent.epoch;
        for process in &mut self.processes {
            if process.attached == Some(epoch)
                && let Some(harvesting) = process.harvesting()
            {
                harvesting.heartbeat = now;
            }
        }
        self.at(now + HEARTBEAT, Ev::Heartbeat(epoch));
    }

    /// Sends a message to the agent that lives now.
    pub fn tell_in(&mut self, wait: u64, message: In) {
        self.at(self.now + wait, Ev::Agent(self.epoch, message));
    }

    /// A message reaches the control thread of an agent.
    pub fn receive(&mut self, epoch: u64, message: In) {
        match &mut self.agent {
            Some(agent) if agent.epoch == epoch => {
                if agent.stopped {
                    agent.inbox.push(message);
                } else {
                    agent.last_turn = self.now;
                    self.hear(message);
                    self.check_control();
                }
            }
            _ => {}
        }
    }

    fn hear(&mut self, message: In) {
        match message {
            In::Doorbell(pid) => self.read_words(Some(pid)),
            In::Attach(pid) => self.attach(pid),
            In::Channels(pid, device) => self.channels(pid, device),
            In::Schedule(pid, device, tsg) => {
                self.channels(pid, device);
                if let Some(agent) = &mut self.agent {
                    agent.tickets.push((pid, device, tsg));
                }
                self.release_tickets();
            }
            In::Gone(pid) => self.gone(pid),
            In::Answer(event) => {
                let order = match event {
                    Event::Disabled { order, .. }
                    | Event::Enabled { order }
                    | Event::EnableSkipped { order } => Some(order),
                    _ => None,
                };
                if let (Some(order), Some(agent)) = (order, &mut self.agent)
                    && let Some(open) = agent.unanswered.get_mut(&(order.job, order.gpu.index()))
                {
                    open.remove(&order.generation);
                }
                self.feed(event);
                self.release_tickets();
            }
            In::Timer(at) => {
                if self
                    .agent
                    .as_ref()
                    .is_some_and(|agent| agent.timer == Some(at))
                {
                    self.feed(Event::Tick);
                }
            }
        }
    }

    fn attach(&mut self, pid: usize) {
        let (now, method) = (self.now, self.method);
        let process = &mut self.processes[pid];
        let Some(agent) = &mut self.agent else { return };
        if !process.alive || process.attached == Some(agent.epoch) {
            return;
        }
        // A number that a process cannot have had under this agent before.
        let session = SessionId(u64::try_from(pid).unwrap_or(0) + 1);
        agent.sessions.insert(session.0, pid);
        let standing = if process.obeyed == 0 {
            Standing::Enabled
        } else {
            Standing::Unknown
        };
        process.attached = Some(agent.epoch);
        process.attached_once = true;
        process.obeyed = agent.epoch;
        process.reported = BTreeSet::new();
        if process.is_online() {
            process.reported = (0..process.devices.len()).collect();
            for device in &mut process.devices {
                device.new_page(now);
            }
            self.feed(Event::OnlineAttached { session });
            self.read_words(Some(pid));
            self.wake_prober(pid);
            return;
        }
        let gpus = process
            .devices
            .iter()
            .map(|device| gpu_id(device.gpu))
            .collect();
        let devices = process.devices.len();
        let on: Vec<usize> = process.devices.iter().map(|device| device.gpu).collect();
        let Some(harvesting) = process.harvesting() else {
            return;
        };
        harvesting.heartbeat = now;
        harvesting.gate_closed = method != Method::LaunchGate;
        let next = &mut agent.next;
        let job = *agent.jobs.entry(harvesting.job).or_insert_with(|| {
            *next += 1;
            JobId(*next)
        });
        if method == Method::LaunchGate {
            let passes = |gpu: &usize| agent.passing.contains(&(job, *gpu));
            harvesting.held = on.into_iter().filter(|gpu| !passes(gpu)).collect();
        }
        self.feed(Event::OfflineAttached {
            session,
            job,
            gpus,
            standing,
        });
        for device in 0..devices {
            let wait = self.dice.between(50 * US, 500 * US);
            self.tell_in(wait, In::Channels(pid, device));
        }
        self.at(now, Ev::Reporter(pid));
    }

    fn channels(&mut self, pid: usize, device: usize) {
        let Some(session) = self.agent.as_ref().and_then(|agent| agent.session_of(pid)) else {
            return;
        };
        let process = &mut self.processes[pid];
        if !process.alive {
            return;
        }
        process.reported.insert(device);
        let held = &process.devices[device];
        let channels = Channels(u32::try_from(held.channels.len()).unwrap_or(0));
        let gpu = gpu_id(held.gpu);
        self.feed(Event::ChannelsChanged {
            session,
            gpu,
            channels,
            grown: true,
        });
    }

    fn gone(&mut self, pid: usize) {
        let Some(agent) = &mut self.agent else { return };
        let Some(session) = agent.session_of(pid) else {
            return;
        };
        agent.sessions.remove(&session.0);
        match self.processes[pid].job() {
            None => self.feed(Event::OnlineGone { session }),
            Some(job) => {
                let left = agent
                    .sessions
                    .values()
                    .any(|p| self.processes[*p].job() == Some(job));
                if !left {
                    // A job that comes back is another one.
                    agent.jobs.remove(&job);
                }
                self.feed(Event::OfflineGone { session });
            }
        }
    }

    /// Reads the activity words of one process, or of all.
    fn read_words(&mut self, which: Option<usize>) {
        let Some(agent) = &self.agent else { return };
        let mut readings = Vec::new();
        for (session, pid) in &agent.sessions {
            let process = &self.processes[*pid];
            // A page outlives its process for as long as the agent has it mapped.
            if process.is_online() && which.is_none_or(|which| which == *pid) {
                for device in &process.devices {
                    readings.push((SessionId(*session), gpu_id(device.gpu), device.reading()));
                }
            }
        }
        for (session, gpu, reading) in readings {
            self.feed(Event::Activity {
                session,
                gpu,
                reading,
            });
        }
    }

    /// One step of the node, and its effects.
    fn feed(&mut self, event: Event<'static>) {
        let now = Instant::from_nanos(self.now);
        let Some(agent) = &mut self.agent else { return };
        let mut out = Vec::new();
        agent.node.step(event, now, &mut out);
        for effect in out {
            match effect {
                Effect::Disable(order) => self.order(order, true, Look::First),
                Effect::Enable { order, look } => self.order(order, false, look),
                Effect::CloseLaunchGate { job } | Effect::HoldLaunchGate { job } => {
                    self.launch_gate(job, true);
                }
                Effect::OpenLaunchGate { job } => self.launch_gate(job, false),
                Effect::ReadActivity { .. } => self.read_words(None),
                Effect::WakeAt(at) => {
                    let at = at.as_nanos();
                    let epoch = self.epoch;
                    if let Some(agent) = &mut self.agent {
                        agent.timer = Some(at);
                    }
                    self.at(at, Ev::Agent(epoch, In::Timer(at)));
                }
                Effect::Emit(_) => {}
                // Nobody shares memory in these schedules.
                Effect::Prepare { .. }
                | Effect::Move { .. }
                | Effect::CancelMove { .. }
                | Effect::Map { .. }
                | Effect::AnswerAsk { .. } => {}
            }
        }
    }

    fn launch_gate(&mut self, job: JobId, closed: bool) {
        if self.method == Method::LaunchGate {
            // Orders are what opens and closes it.
            return;
        }
        let Some(agent) = &self.agent else { return };
        let Some(number) = agent
            .jobs
            .iter()
            .find(|known| *known.1 == job)
            .map(|known| *known.0)
        else {
            return;
        };
        let pids: Vec<usize> = agent.sessions.values().copied().collect();
        for pid in pids {
            let process = &mut self.processes[pid];
            if process.job() == Some(number)
                && let Some(harvesting) = process.harvesting()
            {
                harvesting.gate_closed = closed;
                self.offline_feeds(pid);
            }
        }
    }

    fn order(&mut self, order: Order, disable: bool, look: Look) {
        let gpu = order.gpu.index();
        let (mut list, mut groups) = (Vec::new(), Vec::new());
        for pid in self.pids_of(order.job) {
            let devices = self.processes[pid].devices.iter();
            for device in devices.filter(|device| device.gpu == gpu) {
                list.extend(device.channels.iter().map(|channel| channel.1));
                groups.extend(device.channels.iter().map(|channel| channel.0));
            }
        }
        if self.method == Method::LaunchGate {
            return self.order_launches(order, disable, look, &list);
        }
        let Some(agent) = &mut self.agent else { return };
        let key = (order.job, gpu);
        agent.newest.insert(key, order.generation);
        agent
            .unanswered
            .entry(key)
            .or_default()
            .insert(order.generation);
        agent.issue[gpu].queue.push_back(Command {
            order,
            disable,
            look,
            list,
            groups,
        });
        self.enter_next(gpu);
    }

    /// The processes of a job that are attached.
    pub fn pids_of(&self, job: JobId) -> Vec<usize> {
        let Some(agent) = &self.agent else {
            return Vec::new();
        };
        let is_of = |pid: &usize| {
            let own = self.processes[*pid].job();
            own.and_then(|own| agent.jobs.get(&own)) == Some(&job)
        };
        agent.sessions.values().copied().filter(is_of).collect()
    }

    /// Whether an online process that the agent knows is busy on `gpu`.
    pub fn is_online_busy(&self, gpu: usize) -> bool {
        let Some(agent) = &self.agent else {
            return false;
        };
        agent.sessions.values().any(|pid| {
            let process = &self.processes[*pid];
            let mut devices = process.devices.iter();
            process.is_online() && devices.any(|device| device.gpu == gpu && device.busy())
        })
    }

    fn enter_next(&mut self, gpu: usize) {
        let Some(agent) = &mut self.agent else { return };
        let (epoch, issue) = (agent.epoch, &mut agent.issue[gpu]);
        if !agent.stopped && !issue.busy && !issue.queue.is_empty() {
            issue.busy = true;
            let wait = self.dice.between(2 * US, 12 * US);
            self.at(self.now + wait, Ev::Enter(epoch, gpu));
        }
    }

    /// An issue thread is about to make its next call.
    pub fn enter(&mut self, epoch: u64, gpu: usize) {
        let now = self.now;
        let Some(agent) = self.agent.as_mut().filter(|agent| agent.epoch == epoch) else {
            return;
        };
        agent.issue[gpu].busy = false;
        if agent.stopped {
            return;
        }
        let Some(command) = agent.issue[gpu].queue.pop_front() else {
            return;
        };
        let Command {
            order,
            disable,
            look,
            list,
            groups,
        } = command;
        let key = (order.job, gpu);
        let overtaken = agent.newest.get(&key) != Some(&order.generation);
        let stamp = Instant::from_nanos(now);
        if overtaken {
            if let Some(open) = agent.unanswered.get_mut(&key) {
                open.remove(&order.generation);
            }
            return self.enter_next(gpu);
        }
        if disable && agent.fakes && agent.faked.insert(gpu) {
            let answer = Event::Disabled {
                order,
                entered: stamp,
                returned: stamp,
            };
            self.tell_in(3 * US, In::Answer(answer));
            return self.enter_next(gpu);
        }
        if !disable && look == Look::First && self.is_online_busy(gpu) {
            self.tell_in(2 * US, In::Answer(Event::EnableSkipped { order }));
            return self.enter_next(gpu);
        }
        if let Some(agent) = &mut self.agent {
            agent.issue[gpu].busy = true;
        }
        let generation = order.generation.0;
        if disable {
            self.journal
                .extend(list.iter().map(|channel| (gpu, *channel)));
            return self.disable(epoch, order, &list, groups);
        }
        let mut done = now + self.dice.between(5 * US, 20 * US);
        self.device(gpu).enable_at(done, &list, generation);
        self.judge.enable_call(gpu, &list, generation, now);
        if self.method == Method::Restart {
            done += 20 * US;
            let own = self.restarters[gpu];
            self.device(gpu).restart_at(done, own);
        }
        for channel in &list {
            self.journal.remove(&(gpu, *channel));
        }
        self.at(done, Ev::Returned(epoch, gpu, Event::Enabled { order }));
    }

    /// A call came back.
    pub fn call_returned(&mut self, epoch: u64, gpu: usize, answer: Event<'static>) {
        if let Some(agent) = self.agent.as_mut().filter(|agent| agent.epoch == epoch) {
            agent.issue[gpu].busy = false;
            let wait = self.dice.between(3 * US, 12 * US);
            self.tell_in(wait, In::Answer(answer));
            self.enter_next(gpu);
        }
    }

    fn release_tickets(&mut self) {
        let Some(agent) = &mut self.agent else { return };
        let mut go = Vec::new();
        let processes = &self.processes;
        let (jobs, unanswered) = (&agent.jobs, &agent.unanswered);
        agent.tickets.retain(|&(pid, device, tsg)| {
            let gpu = processes[pid].devices[device].gpu;
            let job = processes[pid].job().and_then(|job| jobs.get(&job));
            let waits = job
                .and_then(|job| unanswered.get(&(*job, gpu)))
                .is_some_and(|open| !open.is_empty());
            if !waits {
                go.push((gpu, tsg));
            }
            waits
        });
        for (gpu, tsg) in go {
            self.device(gpu).set_scheduled(tsg, true);
        }
    }
}

fn gpu_id(gpu: usize) -> GpuId {
    GpuId(u8::try_from(gpu).unwrap_or(u8::MAX))
}
