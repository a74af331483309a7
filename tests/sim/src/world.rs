//! The complete state of a schedule at an instant, and what can happen next.
//!
//! Everything that takes time is an event in one queue. At the same instant, the device model's own events come first.
//! There is no other state, and nothing depends on the order in which memory happens to lie.

use crate::defect::Defect;
use crate::dice::{Dice, MS};
use crate::ports::{Switches, Time, Wire, Words};
use crate::process::Process;
use crate::timeline::{Timeline, Who};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use tidegate_device::{ChannelId, EventKind, Gpu, TsgId};
use tidegate_node::batch::Kick;
use tidegate_node::beats::BeatRef;
use tidegate_node::journal::Journal;
use tidegate_node::kinds::{self, Level, Method, Switch};
use tidegate_node::memory::MemoryOrder;
use tidegate_node::task::{Arms, Carrying, Issue as IssueOrder, Queue, Released};
use tidegate_node::{Input, Shell};
use tidegate_policy::config::Config;
use tidegate_policy::fair::Gives;
use tidegate_vgpu::personality::Personality;

/// How long a thread that was stopped takes to make its next call, ns.
pub(crate) const SOON: u64 = 40_000;
/// The engine on which kernels run.
pub(crate) const GRAPHICS: u32 = 1;
/// How often the world checks whether the schedule is over, ns.
const LOOK_EVERY: u64 = 50 * MS;

/// The programs of a scenario, its faults, and its checker.
pub(crate) trait Play: Debug + Sized {
    /// The scenario's state of a program, beside its page and its channels.
    type Own: Debug;
    /// What happens to programs.
    type Ev: Debug;
    /// The libraries support leases.
    const LEASES: bool = false;
    /// The longest duration of a schedule, ns. A schedule that exceeds it is stuck.
    const LONGEST: u64;
    /// The quiet time at the end of a schedule, ns: longer than any interval of the policy.
    const QUIET: u64;

    /// The agent runs; programs start now.
    fn begins(world: &mut World<Self>);
    /// Handles an event of the scenario.
    fn happens(world: &mut World<Self>, event: Self::Ev);
    /// Whether anything remains to be done that the world does not know of.
    fn is_busy(world: &mut World<Self>) -> bool;
    /// Work on a device is done.
    fn finished(world: &mut World<Self>, gpu: usize, tag: u64, at: u64);
    /// Launches of an offline process may pass.
    fn passes(world: &mut World<Self>, pid: usize);
    /// The schedule is over.
    fn ends(_world: &mut World<Self>) {}
    /// The checker learns a fact.
    fn learns(&mut self, now: u64, fact: Fact<'_>);
    /// The text of an event of the scenario in a time line, and whether there are many alike; None: it gets no line.
    fn told_of(event: &Self::Ev) -> Option<(String, bool)>;

    /// A process began and is about to attach.
    fn spawned(world: &mut World<Self>, pid: usize);
    /// A process has attached and reported its devices.
    fn attached(_world: &mut World<Self>, _pid: usize) {}
    /// The stream of a process ended, and with it all of its orders.
    fn detached(_world: &mut World<Self>, _pid: usize) {}
    /// A process receives a message about its memory.
    fn told(_world: &mut World<Self>, _pid: usize, _order: MemoryOrder) {}
    /// An online process receives the request for its page of iterations.
    fn asked_for_beats(_world: &mut World<Self>, _pid: usize) {}
    /// That page, once it was sent.
    fn beats(_world: &mut World<Self>) -> Option<BeatRef> {
        None
    }
    /// A process is in the middle of a change of its mappings.
    fn is_changing(_world: &World<Self>, _pid: usize) -> bool {
        false
    }
    /// What the rules give a process' job among others.
    fn gives(_world: &World<Self>, _pid: usize) -> Gives {
        Gives::default()
    }
    /// The shell made an iteration.
    fn turned(_world: &mut World<Self>) {}
    /// Whether the agent is in control may have changed.
    fn settled(_world: &mut World<Self>) {}
    /// An issue thread acts on an armed order.
    fn fired(&mut self) {}
    /// The shell reported an event of this kind to operators.
    fn noted(&mut self, _kind: &'static str) {}
}

/// What a checker learns.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fact<'a> {
    /// The agent started, died, was stopped or continued.
    Agent {
        up: bool,
        new: bool,
    },
    /// An offline channel of a job. `late`: its process is attached already, and the agent does not know the channel
    /// yet.
    ChannelUp {
        gpu: usize,
        channel: ChannelId,
        job: u32,
        late: bool,
    },
    ChannelDown(usize, ChannelId),
    /// An online process is gone.
    OnlineGone(usize),
    /// An offline group is on its engine, or left it.
    Run(usize, TsgId, u64),
    Stop(usize, TsgId, u64),
    /// A disable or enable took effect.
    Disabled(usize, ChannelId, u64),
    Enabled(usize, ChannelId, u64),
    /// A call of an issue thread, for an order; `drawn`: how long it takes to stop running work.
    DisableCall {
        gpu: usize,
        list: &'a [ChannelId],
        order: u64,
        drawn: u64,
    },
    EnableCall {
        gpu: usize,
        list: &'a [ChannelId],
        order: u64,
    },
}

/// Something that happens at a time.
#[derive(Debug)]
pub(crate) enum Ev<P: Play> {
    /// The prober of an online process looks at its devices, and reports what it saw of one.
    Probe(usize),
    Publish(usize, usize),
    /// An offline process checks its agent, once or periodically.
    Reporter(usize),
    ReporterTick(usize),
    /// A message to the agent of that epoch.
    Agent(u64, Box<In>),
    /// That agent now knows all channels of a process, and who owns them.
    Reported(u64, usize),
    /// An issue thread makes its next call, or a call returned.
    Enter(u64, usize),
    Returned(u64, usize, Box<(Working, u64)>),
    /// An issue thread makes the second call of a disable.
    Kick(Box<Following>),
    /// A channel that left the lists was enabled.
    Released(u64, Box<Released>),
    /// An offline process has enabled its own channels.
    Landed(usize),
    AgentStarts,
    AgentGoesOn(u64),
    Spawn(Box<Process<P::Own>>),
    /// Whether the schedule is over.
    Over,
    Play(P::Ev),
}

/// What is true for a whole schedule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub gpus: u8,
    pub config: Config,
    /// Bytes of each GPU that are shared; 0: none.
    pub pool: u64,
    pub level: Level,
    pub method: Method,
    pub personality: Personality,
    pub broken: Option<Defect>,
}

#[derive(Debug)]
pub(crate) struct World<P: Play> {
    pub now: u64,
    pub dice: Dice,
    pub rules: Rules,
    pub play: P,
    /// The agent's own group on each GPU, by which it restarts the runlist.
    pub restarters: Vec<TsgId>,
    pub processes: Vec<Process<P::Own>>,
    pub agent: Option<Agent>,
    /// Number of starts and ends of agents.
    pub epoch: u64,
    pub journal: Words,
    pub time: Time,
    /// What the ports of every agent read.
    pub switches: Switches,
    /// Until when the driver refuses disables and enables.
    pub refuses_until: u64,
    /// Channels and groups by RM client and handle.
    pub handles: BTreeMap<(u32, u32), (usize, ChannelId)>,
    pub groups: BTreeMap<(u32, u32), TsgId>,
    /// Scheduling calls, by number.
    pub tickets: Vec<(usize, TsgId)>,
    /// Processes of which an agent has proven a client.
    pub proven: BTreeSet<(u64, usize)>,
    pub gpus: Vec<Gpu>,
    /// Offline TSGs, for the history.
    pub offline_tsgs: BTreeSet<(usize, TsgId)>,
    pub history: Vec<(usize, tidegate_device::Event)>,
    pub queue: BTreeMap<(u64, u64), Ev<P>>,
    pub events: u64,
    /// Faults, starts and ends that have not happened yet.
    pub pending: usize,
    pub last_action: u64,
    pub over: bool,
    /// The time line, if the schedule is explained.
    pub timeline: Option<Timeline>,
}

/// Messages to the control thread.
#[derive(Debug)]
pub(crate) enum In {
    Doorbell,
    Attach(usize),
    /// RM objects of a process, all of them; a scheduling call may wait for them.
    Objects(usize, Option<(usize, TsgId)>),
    Gone(usize),
    Node(Input),
    /// The shell's own timer.
    Due(u64),
}

/// An order that an issue thread carries out, and whether the call under way is refused.
#[derive(Debug)]
pub(crate) struct Working {
    pub carrying: Carrying,
    pub refused: bool,
}

impl Working {
    pub const fn on(carrying: Carrying) -> Self {
        Self {
            carrying,
            refused: false,
        }
    }

    pub fn switch(&self) -> Switch {
        self.carrying.switch()
    }

    /// The order's number, for the checker.
    pub fn ticket(&self) -> u64 {
        self.carrying.issued().order.generation.0
    }
}

#[derive(Debug, Default)]
pub(crate) struct Issue {
    pub queue: Queue,
    pub arms: Arms,
    /// Orders under way, each gone before the next call of the one below it.
    pub working: Vec<Working>,
    pub busy: bool,
    /// The last order, for a thread that is broken.
    pub older: Option<IssueOrder>,
}

#[derive(Debug)]
pub(crate) struct Agent {
    pub epoch: u64,
    pub stopped: bool,
    pub shell: Shell,
    pub wire: Wire,
    pub journal: Arc<Journal>,
    pub issue: Vec<Issue>,
    pub sessions: u64,
    /// When the shell makes its next iteration.
    pub due: u64,
    pub inbox: Vec<In>,
    /// Disables that are acknowledged without a call, per GPU.
    pub faked: BTreeSet<usize>,
    pub fakes: bool,
}

/// A call that was made, and what follows it.
#[derive(Debug)]
pub(crate) struct Following {
    pub epoch: u64,
    pub gpu: usize,
    pub working: Working,
    /// When the call was entered.
    pub entered: u64,
    pub kicks: Vec<Kick>,
    /// How long they take.
    pub drawn: u64,
    pub ticket: u64,
    /// The agent was stopped between the two.
    pub held_up: bool,
}

pub(crate) const fn uuid(gpu: usize) -> [u8; 16] {
    [gpu as u8 + 1; 16]
}

/// The RM client of a process.
pub(crate) fn client_of(pid: usize) -> u32 {
    0xc1d0_0000 + u32::try_from(pid).unwrap_or(u32::MAX)
}

pub(crate) fn pid_of(client: u32) -> usize {
    usize::try_from(client.wrapping_sub(0xc1d0_0000)).unwrap_or(usize::MAX)
}

/// The process as the kernel names it.
pub(crate) fn process_of(pid: usize) -> kinds::Process {
    kinds::Process {
        pid: i32::try_from(pid).unwrap_or(0) + 100,
        started: 1,
    }
}

impl<P: Play> World<P> {
    pub fn new(seed: u64, dice: Dice, rules: Rules, play: P) -> Self {
        let mut gpus: Vec<Gpu> = (0..rules.gpus)
            .map(|gpu| {
                let seed = seed.wrapping_mul(0x9e37_79b9).wrapping_add(u64::from(gpu));
                Gpu::new(tidegate_device::Config {
                    seed,
                    eviction: rules.personality.eviction(),
                    ..tidegate_device::Config::default()
                })
            })
            .collect();
        let restarters = gpus.iter_mut().map(|gpu| gpu.add_tsg(GRAPHICS)).collect();
        Self {
            now: 0,
            dice,
            rules,
            play,
            restarters,
            processes: Vec::new(),
            agent: None,
            epoch: 0,
            journal: Words::default(),
            time: Time::default(),
            // Every other schedule is of threads that wait to be told, as the daemon's do.
            switches: Switches::with_arms(seed.is_multiple_of(2)),
            refuses_until: 0,
            handles: BTreeMap::new(),
            groups: BTreeMap::new(),
            tickets: Vec::new(),
            proven: BTreeSet::new(),
            gpus,
            offline_tsgs: BTreeSet::new(),
            history: Vec::new(),
            queue: BTreeMap::new(),
            events: 0,
            pending: 0,
            last_action: 0,
            over: false,
            timeline: None,
        }
    }

    pub fn at(&mut self, at: u64, event: Ev<P>) {
        self.events += 1;
        self.queue.insert((at.max(self.now), self.events), event);
    }

    /// Queues an event of the scenario.
    pub fn play_at(&mut self, at: u64, event: P::Ev) {
        self.at(at, Ev::Play(event));
    }

    pub fn is_broken(&self, defect: Defect) -> bool {
        self.rules.broken == Some(defect)
    }

    /// Writes a line of the time line, if there is one.
    pub fn tells(&self, who: Who, what: impl FnOnce() -> String) {
        if let Some(timeline) = &self.timeline {
            timeline.put(self.now, who, what());
        }
    }

    /// The checker learns something.
    pub fn learns(&mut self, fact: Fact<'_>) {
        self.tells_fact(&fact);
        self.play.learns(self.now, fact);
    }

    /// The device model of one GPU, advanced to this instant.
    pub fn device(&mut self, gpu: usize) -> &mut Gpu {
        let mut events = Vec::new();
        self.gpus[gpu].advance(self.now, &mut events);
        self.history
            .extend(events.into_iter().map(|event| (gpu, event)));
        &mut self.gpus[gpu]
    }

    /// Sends a message to the agent that lives now.
    pub fn tell_in(&mut self, wait: u64, message: In) {
        self.at(self.now + wait, Ev::Agent(self.epoch, Box::new(message)));
    }

    pub fn acts(&mut self) {
        self.last_action = self.now;
    }

    /// A planned start, end or fault has happened.
    pub fn arrives(&mut self) {
        self.pending -= 1;
        self.acts();
    }

    /// From the first event to the last.
    pub fn run(mut self) -> (P, u64) {
        self.agent_starts();
        P::begins(&mut self);
        self.at(P::QUIET, Ev::Over);
        while !self.over && self.now < P::LONGEST {
            let device = (0..self.gpus.len())
                .filter_map(|gpu| self.gpus[gpu].next_event().map(|at| (at, gpu)))
                .min();
            let event = self.queue.first_key_value().map(|(key, _)| key.0);
            match (device, event) {
                (Some((at, gpu)), event) if event.is_none_or(|event| at <= event) => {
                    self.now = at.max(self.now);
                    self.device(gpu);
                }
                (_, Some(at)) => {
                    self.now = at;
                    if let Some((_, event)) = self.queue.pop_first() {
                        self.happens(event);
                    }
                }
                _ => break,
            }
            self.remember();
        }
        P::ends(&mut self);
        (self.play, self.now)
    }

    /// Writes what the device did into the time line.
    fn tells_device(&self, gpu: usize, event: &tidegate_device::Event) {
        let Some(timeline) = &self.timeline else {
            return;
        };
        let whose = |owns: &dyn Fn(&(TsgId, ChannelId)) -> bool| {
            let used = |process: &Process<P::Own>| {
                let devices = process.devices.iter().filter(|own| own.gpu == gpu);
                devices.flat_map(|own| &own.channels).any(owns)
            };
            let pid = self.processes.iter().position(used);
            match pid.map(|pid| (pid, self.processes[pid].job)) {
                Some((pid, Some(job))) => format!("GPU {gpu}, process {pid} (job {job})"),
                Some((pid, None)) => format!("GPU {gpu}, process {pid} (online)"),
                None => format!("GPU {gpu}, nobody's"),
            }
        };
        let of = |channel: ChannelId| whose(&|own| own.1 == channel);
        let (whom, what) = match event.kind {
            EventKind::Started { channel, .. } => (of(channel), "a kernel begins"),
            EventKind::Finished { channel, .. } => (of(channel), "a kernel ends"),
            EventKind::TsgRun { tsg, .. } => (whose(&|own| own.0 == tsg), "gets on the engine"),
            EventKind::TsgStop { tsg, .. } => (whose(&|own| own.0 == tsg), "gets off the engine"),
            EventKind::Disabled { channel, .. } | EventKind::Enabled { channel, .. } => {
                let on = matches!(event.kind, EventKind::Enabled { .. });
                let what = if on { "enabled" } else { "disabled" };
                let line = format!("{}: {channel:?} is {what}", of(channel));
                return timeline.put(event.at, Who::Device, line);
            }
            EventKind::Overtaken { .. } => return,
        };
        timeline.put_often(event.at, Who::Device, whom, what);
    }

    fn tells_fact(&self, fact: &Fact<'_>) {
        let line = match fact {
            Fact::Agent { up: true, new } => {
                let what = if *new { "starts" } else { "goes on" };
                (Who::Schedule, format!("the agent {what}"))
            }
            Fact::Agent { up: false, .. } => {
                (Who::Schedule, "the agent is killed or stopped".to_owned())
            }
            Fact::ChannelUp {
                gpu, channel, job, ..
            } => (
                Who::Schedule,
                format!("job {job} makes {channel:?} on GPU {gpu}"),
            ),
            Fact::ChannelDown(gpu, channel) => {
                (Who::Schedule, format!("{channel:?} of GPU {gpu} is freed"))
            }
            Fact::OnlineGone(pid) => (Who::Schedule, format!("process {pid} (online) is gone")),
            Fact::DisableCall {
                gpu,
                list,
                order,
                drawn,
            } => {
                let us = drawn / 1_000;
                let what = format!("order {order}: disables {list:?} of GPU {gpu}, in {us} us");
                (Who::Agent, what)
            }
            Fact::EnableCall { gpu, list, order } => (
                Who::Agent,
                format!("order {order}: enables {list:?} of GPU {gpu}"),
            ),
            // The device's history has these.
            Fact::Run(..) | Fact::Stop(..) | Fact::Disabled(..) | Fact::Enabled(..) => return,
        };
        self.tells(line.0, || line.1);
    }

    fn tells_play(&self, event: &P::Ev) {
        let told = self.timeline.as_ref().zip(P::told_of(event));
        match told {
            Some((timeline, (what, true))) => {
                timeline.put_often(self.now, Who::Schedule, "", &what);
            }
            Some((timeline, (what, false))) => timeline.put(self.now, Who::Schedule, what),
            None => {}
        }
    }

    /// Passes the device's history to the checker, and to the processes that wait for work to end.
    fn remember(&mut self) {
        while !self.history.is_empty() {
            for (gpu, event) in core::mem::take(&mut self.history) {
                self.tells_device(gpu, &event);
                let at = event.at;
                let fact = match event.kind {
                    EventKind::Finished { tag, .. } => {
                        P::finished(self, gpu, tag, at);
                        continue;
                    }
                    EventKind::TsgRun { tsg, .. } if self.offline_tsgs.contains(&(gpu, tsg)) => {
                        Fact::Run(gpu, tsg, at)
                    }
                    EventKind::TsgStop { tsg, .. } => Fact::Stop(gpu, tsg, at),
                    EventKind::Disabled { channel, .. } => Fact::Disabled(gpu, channel, at),
                    EventKind::Enabled { channel, .. } => Fact::Enabled(gpu, channel, at),
                    _ => continue,
                };
                self.learns(fact);
            }
        }
    }

    fn happens(&mut self, event: Ev<P>) {
        match event {
            Ev::Probe(pid) => self.probe(pid),
            Ev::Publish(pid, device) => self.publish(pid, device),
            Ev::Reporter(pid) => self.reporter(pid),
            Ev::ReporterTick(pid) => {
                if self.processes[pid].alive {
                    self.reporter(pid);
                    self.at(self.now + LOOK_EVERY, Ev::ReporterTick(pid));
                }
            }
            Ev::Kick(kick) => self.kick(*kick),
            Ev::Agent(epoch, message) => self.receive(epoch, *message),
            Ev::Reported(epoch, pid) => self.reported(epoch, pid),
            Ev::Enter(epoch, gpu) => self.enter(epoch, gpu),
            Ev::Returned(epoch, gpu, done) => self.call_returned(epoch, gpu, *done),
            Ev::Released(epoch, released) => {
                let released = In::Node(Input::Released(*released));
                self.at(self.now, Ev::Agent(epoch, Box::new(released)));
            }
            Ev::Landed(pid) => self.processes[pid].released(),
            Ev::AgentStarts => {
                self.arrives();
                self.agent_starts();
            }
            Ev::AgentGoesOn(epoch) => {
                self.arrives();
                if self
                    .agent
                    .as_ref()
                    .is_some_and(|agent| agent.epoch == epoch)
                {
                    self.agent_goes_on();
                }
            }
            Ev::Spawn(process) => {
                self.arrives();
                self.spawn(*process);
            }
            Ev::Over => self.is_over(),
            Ev::Play(event) => {
                self.tells_play(&event);
                P::happens(self, event);
            }
        }
    }

    fn is_over(&mut self) {
        if P::is_busy(self) || self.pending > 0 {
            self.acts();
        }
        self.over = self.now >= self.last_action + P::QUIET;
        self.at(self.now + LOOK_EVERY, Ev::Over);
    }
}
