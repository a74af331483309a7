//! The scenario: its processes, what happens to them, and what the checker learns.

use super::breaks::Break;
use super::judge::{Figures, Judge};
use super::script::{Fault, Request, Script, Word};
use crate::dice::{Dice, MS};
use crate::process::{PROBE_MAX, Process};
use crate::timeline::Timeline;
use crate::world::{Fact, Play, Rules, World};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;
use tidegate_device::Eviction;
use tidegate_node::kinds::{Level, Method};
use tidegate_policy::config::{Config, Cooldown, FairMode, Means};
use tidegate_policy::fair::Gives;
use tidegate_vgpu::personality::Personality;

/// What all schedules have in common.
#[derive(Clone, Copy, Debug)]
pub struct Played {
    /// What is broken.
    pub broken: Break,
    /// What the firmware does.
    pub personality: Personality,
    /// Offline jobs, which take turns; 0: one or two, which do not.
    pub jobs: u32,
    /// Online processes say something of their requests, and not all of them the truth.
    pub hints: bool,
}

/// What is of this play.
#[derive(Debug)]
pub(super) struct Gate {
    pub script: Script,
    pub judge: Judge,
    /// Where launches are all that can be held: processes and GPUs on which they pass.
    pub open_gates: BTreeSet<(usize, usize)>,
    pub broken: Break,
}

/// What happens to programs.
#[derive(Debug)]
pub(super) enum Happening {
    /// An online process begins its next request.
    Request(usize),
    Launch(usize),
    LaunchReturned(usize),
    SyncReturned(usize),
    /// A liar says something else.
    Lie(usize),
    /// No agent believes that liar any more.
    Seen,
    Fault(Fault),
}

/// What an online process is doing.
#[derive(Debug)]
pub(super) struct Serving {
    pub word: Word,
    pub requests: VecDeque<Request>,
    pub request: Option<Request>,
    /// Iterations of the request that are done; the first is the prefill.
    pub done: u64,
    pub launches_left: u64,
    pub syncing: bool,
    /// Length of the idle time that the next launch ends, if that is a decode gap.
    pub gap: Option<u64>,
}

/// What a process is doing.
#[derive(Debug)]
pub(super) enum Own {
    Serving(Serving),
    Harvesting,
}

impl Own {
    pub fn online(gpus: u8, requests: VecDeque<Request>, word: Word) -> Process<Self> {
        let serving = Serving {
            word,
            requests,
            request: None,
            done: 0,
            launches_left: 0,
            syncing: false,
            gap: None,
        };
        Process::new(None, gpus, Self::Serving(serving))
    }

    pub fn offline(job: u32, gpus: u8) -> Process<Self> {
        Process::new(Some(job), gpus, Self::Harvesting)
    }

    pub fn serving(&mut self) -> Option<&mut Serving> {
        match self {
            Self::Serving(serving) => Some(serving),
            Self::Harvesting => None,
        }
    }
}

/// Level and method by the measurements that the personality plays. Where a disable alone stops what runs, every fifth
/// schedule preempts before it disables, as an operator may set it.
const fn means(personality: Personality, broken: Break, seed: u64) -> (Level, Method) {
    if matches!(broken, Break::DisableOnly) {
        return (Level::L1, Method::Disable);
    }
    match personality {
        Personality::Evicts | Personality::RefusesForeign if seed % 5 == 2 => {
            (Level::L1, Method::PreemptFirst)
        }
        Personality::Evicts | Personality::RefusesForeign | Personality::KernelEnd => {
            (Level::L1, Method::Disable)
        }
        Personality::Restart => (Level::L1, Method::Restart),
        Personality::Preempt | Personality::RefusesRestart => (Level::L1, Method::Preempt),
        Personality::Deaf => (Level::L5, Method::Disable),
    }
}

impl Gate {
    /// One schedule from its first event to its verdict.
    pub fn schedule(
        seed: u64,
        played: Played,
        timeline: Option<&Timeline>,
    ) -> (Vec<String>, Figures) {
        let Played {
            broken,
            personality,
            jobs,
            hints,
        } = played;
        let mut dice = Dice::new(seed);
        let mut script = Script::draw(&mut dice);
        let (level, method) = means(personality, broken, seed);
        let mut config = Config::default();
        if broken == Break::NoCooldown {
            config.cooldown = Cooldown::Fixed(Duration::ZERO);
        }
        // Without `jobs` those that a script draws run at once.
        config.fair.mode = FairMode::Together;
        if jobs > 0 {
            script.draw_jobs(jobs, &mut dice);
            config.fair.turn = Duration::from_millis(dice.between(10, 20));
        }
        // By timeslices in every fourth schedule, as far as the jobs that it draws can.
        let shares = match jobs {
            0 => FairMode::Together,
            _ if seed % 4 == 3 && broken == Break::Nothing => FairMode::Slices,
            _ => FairMode::Turns,
        };
        if broken != Break::NoTurns {
            config.fair.mode = shares;
        }
        if hints {
            script.draw_words(&mut dice);
        }
        if broken == Break::Believed {
            config.frozen_after = Duration::from_secs(3_600);
        }
        if level == Level::L5 {
            config.means = Means::LaunchGate;
        }
        let rules = Rules {
            gpus: script.gpus,
            config,
            pool: 0,
            level,
            method,
            personality,
            broken: broken.defect(),
        };
        let slack = if script.syncs { 0 } else { PROBE_MAX };
        let mut gate = Self {
            judge: Judge::new(
                script.gpus,
                slack,
                shares,
                personality.eviction() == Eviction::AtKernelEnd,
            ),
            script,
            open_gates: BTreeSet::new(),
            broken,
        };
        gate.judge.timeline = timeline.cloned();
        let mut world = World::new(seed, dice, rules, gate);
        world.timeline = timeline.cloned();
        let (gate, end) = world.run();
        gate.judge.close(end)
    }
}

impl Play for Gate {
    type Own = Own;
    type Ev = Happening;
    const LONGEST: u64 = 120_000 * MS;
    /// Start hold, longest cooldown, and time to spare.
    const QUIET: u64 = 1_200 * MS;

    fn begins(world: &mut World<Self>) {
        for (gpus, requests, word) in world.play.script.online.clone() {
            world.spawn_in(world.now, Own::online(gpus, requests.into(), word));
        }
        for (job, gpus) in world.play.script.offline.clone() {
            world.spawn_in(world.now, Own::offline(job, gpus));
        }
        for (at, fault) in world.play.script.faults.clone() {
            world.pending += 1;
            world.play_at(at, Happening::Fault(fault));
        }
    }

    fn spawned(world: &mut World<Self>, pid: usize) {
        if world.processes[pid].is_online() {
            world.next_request(pid, 20 * MS);
        } else {
            world.begin_reporter(pid);
        }
    }

    fn happens(world: &mut World<Self>, event: Happening) {
        match event {
            Happening::Request(pid) => world.request(pid),
            Happening::Launch(pid) => world.launch(pid),
            Happening::LaunchReturned(pid) => world.launch_returned(pid),
            Happening::SyncReturned(pid) => world.sync_returned(pid),
            Happening::Lie(pid) => world.lies(pid),
            Happening::Seen => world.arrives(),
            Happening::Fault(fault) => {
                world.arrives();
                world.fault(fault);
            }
        }
    }

    fn attached(world: &mut World<Self>, pid: usize) {
        world.speaks(pid);
    }

    fn is_busy(world: &mut World<Self>) -> bool {
        world.processes.iter_mut().any(|process| {
            let alive = process.alive;
            let serving = process.own.serving();
            alive && serving.is_some_and(|s| s.request.is_some() || !s.requests.is_empty())
        })
    }

    fn finished(world: &mut World<Self>, gpu: usize, tag: u64, at: u64) {
        world.work_ends(gpu, tag, at);
    }

    fn passes(world: &mut World<Self>, pid: usize) {
        world.offline_feeds(pid);
    }

    fn learns(&mut self, now: u64, fact: Fact<'_>) {
        self.judge.learns(now, fact);
    }

    fn told_of(event: &Happening) -> Option<(String, bool)> {
        match event {
            Happening::Request(pid) => Some((format!("process {pid} begins a request"), false)),
            Happening::Launch(pid) => Some((format!("process {pid} launches"), true)),
            Happening::Lie(pid) => Some((format!("process {pid} lies of its requests"), false)),
            Happening::Fault(fault) => Some((format!("fault: {fault}"), false)),
            Happening::LaunchReturned(_) | Happening::SyncReturned(_) | Happening::Seen => None,
        }
    }

    fn fired(&mut self) {
        self.judge.fired();
    }

    fn gives(world: &World<Self>, pid: usize) -> Gives {
        let job = world.processes[pid].job.unwrap_or(0) as usize;
        let weights = &world.play.script.weights;
        Gives {
            weight: weights.get(job).copied().unwrap_or(1),
            ..Gives::default()
        }
    }

    fn turned(world: &mut World<Self>) {
        world.look_at_gates();
    }

    /// The agent is in control once every process it may know has attached to it.
    fn settled(world: &mut World<Self>) {
        let agent = world.agent.as_ref();
        let epoch = agent
            .filter(|agent| !agent.stopped)
            .map(|agent| agent.epoch);
        let known = world
            .processes
            .iter()
            .filter(|p| p.alive && p.attached_once);
        let mut known = known.map(|process| process.attached == epoch && process.is_reported());
        let controlled = epoch.is_some() && known.all(|is_known| is_known);
        world.play.judge.control(world.now, controlled);
        if controlled {
            let known = world.processes.iter().filter(|own| own.attached == epoch);
            let devices = known.flat_map(|own| &own.devices);
            let channels = devices.flat_map(|device| {
                let own = device.channels.iter();
                own.map(|channel| (device.gpu, channel.1))
            });
            world.play.judge.knows(channels, world.now);
        }
    }
}
