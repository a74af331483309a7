//! Everything that a schedule is at an instant, and what can happen next.
//!
//! Everything that takes time is an event in one queue; the device model's own events come before
//! those of the same instant. There is no other state, and nothing depends on the order in which
//! memory happens to lie.

use super::breaks::Break;
use super::judge::Judge;
use super::ports::{Time, Wire, Words};
use super::process::{PROBE_MAX, Process};
use super::script::{Dice, Fault, Script};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use tidegate_device::{ChannelId, Config, Gpu, TsgId};
use tidegate_node::batch::Kick;
use tidegate_node::journal::Journal;
use tidegate_node::kinds::{self, Level, Method, Switch};
use tidegate_node::task::{Carrying, Issue as IssueOrder, Released, Task};
use tidegate_node::{Input, Shell};
use tidegate_vgpu::personality::Personality;

/// How soon a thread that was stopped makes its next call.
pub(super) const SOON: u64 = 40_000;
/// The engine kernels run on.
pub(super) const GRAPHICS: u32 = 1;

/// Something that happens at a time.
#[derive(Debug)]
pub(super) enum Ev {
    /// An online process begins its next request.
    Request(usize),
    Launch(usize),
    LaunchReturned(usize),
    SyncReturned(usize),
    Probe(usize),
    Publish(usize, usize),
    /// An offline process looks at its agent, once or periodically.
    Reporter(usize),
    ReporterTick(usize),
    /// A message to the agent of that epoch.
    Agent(u64, Box<In>),
    /// That agent was told all of a process' channels, and whose they are.
    Reported(u64, usize),
    /// An issue thread makes its next call, or one came back.
    Enter(u64, usize),
    Returned(u64, usize, Box<(Working, u64)>),
    /// An issue thread makes the second call of a disable.
    Kick(Box<Following>),
    /// What left the lists was enabled.
    Released(u64, Box<Released>),
    /// An offline process has enabled its own channels.
    Landed(usize),
    Fault(Fault),
    AgentStarts,
    AgentGoesOn(u64),
    Spawn(Box<Process>),
    /// Whether the schedule is over.
    Over,
}

#[derive(Debug)]
pub(super) struct World {
    pub now: u64,
    pub dice: Dice,
    pub script: Script,
    pub broken: Break,
    pub personality: Personality,
    pub level: Level,
    /// The agent's own group on each GPU, by which it restarts the runlist.
    pub restarters: Vec<TsgId>,
    pub judge: Judge,
    pub processes: Vec<Process>,
    pub agent: Option<Agent>,
    /// Counts starts and ends of agents.
    pub epoch: u64,
    pub journal: Words,
    pub time: Time,
    /// Channels and groups by RM client and handle.
    pub handles: BTreeMap<(u32, u32), (usize, ChannelId)>,
    pub groups: BTreeMap<(u32, u32), TsgId>,
    /// Scheduling calls, by number.
    pub tickets: Vec<(usize, TsgId)>,
    /// Processes whose client an agent has had proven.
    pub proven: BTreeSet<(u64, usize)>,
    /// Where launches are all that can be held: processes and GPUs on which they pass.
    pub open_gates: BTreeSet<(usize, usize)>,
    pub gpus: Vec<Gpu>,
    /// Offline TSGs and online ones, for the history.
    pub offline_tsgs: BTreeSet<(usize, TsgId)>,
    pub history: Vec<(usize, tidegate_device::Event)>,
    pub queue: BTreeMap<(u64, u64), Ev>,
    pub events: u64,
    /// Faults, starts and ends that are still to come.
    pub pending: usize,
    pub last_action: u64,
    pub over: bool,
}

/// What reaches the control thread.
#[derive(Debug)]
pub(super) enum In {
    Doorbell,
    Attach(usize),
    /// RM objects of a process, all of them; a scheduling call may wait for them.
    Objects(usize, Option<(usize, TsgId)>),
    Gone(usize),
    Node(Input),
    /// The shell's own deadline.
    Due(u64),
}

/// An order that an issue thread carries out.
#[derive(Debug)]
pub(super) struct Working(pub Carrying);

impl Working {
    pub fn switch(&self) -> Switch {
        self.0.switch()
    }

    /// The order's number, for the judge.
    pub fn ticket(&self) -> u64 {
        self.0.issued().order.generation.0
    }
}

#[derive(Debug, Default)]
pub(super) struct Issue {
    pub queue: VecDeque<Task>,
    /// The order whose next call is to be made.
    pub working: Option<Working>,
    pub busy: bool,
    /// The last order, for a thread that is broken.
    pub older: Option<IssueOrder>,
}

#[derive(Debug)]
pub(super) struct Agent {
    pub epoch: u64,
    pub stopped: bool,
    pub shell: Shell,
    pub wire: Wire,
    pub journal: Arc<Journal>,
    pub issue: Vec<Issue>,
    pub sessions: u64,
    /// When the shell is due to be turned next.
    pub due: u64,
    pub inbox: Vec<In>,
    /// Disables that are acknowledged without a call, per GPU.
    pub faked: BTreeSet<usize>,
    pub fakes: bool,
}

pub(super) const fn uuid(gpu: usize) -> [u8; 16] {
    [gpu as u8 + 1; 16]
}

/// The RM client of a process.
pub(super) fn client_of(pid: usize) -> u32 {
    0xc1d0_0000 + u32::try_from(pid).unwrap_or(u32::MAX)
}

pub(super) fn pid_of(client: u32) -> usize {
    usize::try_from(client.wrapping_sub(0xc1d0_0000)).unwrap_or(usize::MAX)
}

/// The process as the kernel names it.
pub(super) fn process_of(pid: usize) -> kinds::Process {
    kinds::Process {
        pid: i32::try_from(pid).unwrap_or(0) + 100,
        started: 1,
    }
}

/// Level and method by the measurements that the personality plays.
pub(super) const fn means(personality: Personality, broken: Break) -> (Level, Method) {
    if matches!(broken, Break::DisableOnly) {
        return (Level::L1, Method::Disable);
    }
    match personality {
        Personality::Evicts | Personality::RefusesForeign | Personality::KernelEnd => {
            (Level::L1, Method::Disable)
        }
        Personality::Restart => (Level::L1, Method::Restart),
        Personality::Preempt | Personality::RefusesRestart => (Level::L1, Method::Preempt),
        Personality::Deaf => (Level::L5, Method::Disable),
    }
}

/// A call that was made, and what follows it.
#[derive(Debug)]
pub(super) struct Following {
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

impl World {
    pub fn new(seed: u64, broken: Break, personality: Personality) -> Self {
        let mut dice = Dice::new(seed);
        let script = Script::draw(&mut dice);
        let mut gpus: Vec<Gpu> = (0..script.gpus)
            .map(|gpu| {
                let seed = seed.wrapping_mul(0x9e37_79b9).wrapping_add(u64::from(gpu));
                Gpu::new(Config {
                    seed,
                    eviction: personality.eviction(),
                    ..Config::default()
                })
            })
            .collect();
        let restarters = gpus.iter_mut().map(|gpu| gpu.add_tsg(GRAPHICS)).collect();
        let slack = if script.syncs { 0 } else { PROBE_MAX };
        Self {
            now: 0,
            dice,
            judge: Judge::new(script.gpus, slack),
            script,
            broken,
            personality,
            level: means(personality, broken).0,
            restarters,
            processes: Vec::new(),
            agent: None,
            epoch: 0,
            journal: Words::default(),
            time: Time::default(),
            handles: BTreeMap::new(),
            groups: BTreeMap::new(),
            tickets: Vec::new(),
            proven: BTreeSet::new(),
            open_gates: BTreeSet::new(),
            gpus,
            offline_tsgs: BTreeSet::new(),
            history: Vec::new(),
            queue: BTreeMap::new(),
            events: 0,
            pending: 0,
            last_action: 0,
            over: false,
        }
    }

    pub fn at(&mut self, at: u64, event: Ev) {
        self.events += 1;
        self.queue.insert((at.max(self.now), self.events), event);
    }

    /// The device model of one GPU, brought to this instant.
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
}
