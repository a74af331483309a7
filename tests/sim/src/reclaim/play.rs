//! The scenario: its processes, what happens to them, and what the checker records.

use super::engine::{Engine, Pages, STRIPES, Step};
use super::fault::{Fault, SCRIPT, Trigger};
use super::figures::{Break, Figures};
use crate::dice::{Dice, MS};
use crate::process::Process;
use crate::timeline::{Timeline, Who};
use crate::world::{Fact, Play, Rules, World};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use tidegate_node::kinds::{Level, Method};
use tidegate_node::memory::MemoryOrder;
use tidegate_policy::config::{Config, Cooldown, Fair, FairMode, Reserving, Sharing};
use tidegate_policy::ids::{Bytes, ReclaimId, StripeId};
use tidegate_policy::reclaim::Direction;
use tidegate_vgpu::personality::Personality;

/// Bytes of a stripe: one handle.
pub(super) const STRIPE: u64 = 10;
/// Bytes beyond the offline caches.
const ROOM: u64 = 30;
/// Violations that are kept; enough to see what is wrong.
const KEPT: usize = 5;

/// What is of this play.
#[derive(Debug)]
pub(super) struct Reclaim {
    pub broken: Break,
    /// Steps on the device, by tag.
    pub steps: BTreeMap<u64, (usize, Step)>,
    pub tags: u64,
    /// Faults that wait for an order.
    pub armed: Vec<(Trigger, Fault)>,
    /// Whether the online process is to be busy.
    pub busy: bool,
    pub violations: Vec<String>,
    pub figures: Figures,
    /// When each job ran last, once the script is over, ns.
    pub ran: BTreeMap<Option<u32>, u64>,
    /// Where violations are marked besides, if the schedule is told.
    pub timeline: Option<Timeline>,
}

/// What happens to programs.
#[derive(Debug)]
pub(super) enum Happening {
    /// A process hears an order, in the session of that number of its own.
    Ordered(usize, u64, MemoryOrder),
    /// The service thread of an offline process takes its next order, finds nobody inside a call any more, or has
    /// changed the mappings of a stripe.
    Serve(usize),
    Clear(usize, Order),
    Changed(usize),
    /// The time of an order is over.
    Late(usize, u64, ReclaimId),
    /// The log can be read up to there.
    Visible(usize, usize),
    /// The reporter of a process says what has changed.
    Deliver(usize),
    /// The outputs of a step are on the host.
    Output(usize, Box<Step>),
    /// The engine schedules, once or periodically.
    Turn(usize),
    Tick(usize),
    /// Online becomes busy, or idle.
    Online(bool),
    /// Online needs memory for an allocation, has allocated it, and frees it.
    Demand,
    Allocates(usize, u64),
    Frees(usize, u64),
    /// An online process has mapped what it was ordered to.
    Mapped(usize),
    /// Issue threads take orders again.
    QueueDrains,
    Fault(Option<Trigger>, Fault),
    /// A fault that was waited for happens to this process.
    Strikes(usize, Fault),
}

/// When the two directions of a stream are free: what is said arrives in order.
#[derive(Debug, Default)]
pub(super) struct Line {
    pub up: u64,
    pub down: u64,
    /// Counts sessions: what was ordered in an earlier one is void.
    pub era: u64,
}

/// An order about memory as a library keeps it.
#[derive(Clone, Debug)]
pub(super) struct Order {
    pub era: u64,
    pub reclaim: ReclaimId,
    pub deadline: u64,
    /// None: whether a thread is inside a call is asked.
    pub moves: Option<(Direction, Vec<StripeId>)>,
}

/// A change of mappings under way.
#[derive(Debug)]
pub(super) struct Change {
    pub order: Order,
    pub direction: Direction,
    pub stripes: Vec<StripeId>,
    /// Stripes that are done.
    pub done: usize,
    /// How long one takes.
    pub each: u64,
    /// How much longer the next one takes.
    pub hangs: u64,
    pub answered: bool,
}

/// The thread that carries out orders, and what the reporter knows of them.
#[derive(Debug, Default)]
pub(super) struct Service {
    pub orders: VecDeque<Order>,
    /// Orders without a last answer.
    pub open: Vec<Order>,
    pub cancelled: BTreeSet<ReclaimId>,
    pub busy: bool,
    pub change: Option<Change>,
}

/// A KV cache and the engine that uses it.
#[derive(Debug)]
pub(super) struct Cache {
    pub pages: Pages,
    pub engine: Engine,
    /// Log entries that the agent knows to be withheld.
    pub told: usize,
    /// When the reporter last spoke of requests, and whether it is about to.
    pub delivered: u64,
    pub delivers: bool,
    /// When the last output is on the host.
    pub out: u64,
}

/// An offline process; one without a cache has channels only.
#[derive(Debug)]
pub(super) struct Offline {
    pub line: Line,
    pub service: Service,
    pub cache: Option<Cache>,
    /// Nothing of it runs on the host until then.
    pub stopped_until: u64,
}

/// An online process.
#[derive(Debug, Default)]
pub(super) struct Online {
    pub line: Line,
    pub mapped: u64,
    pub used: u64,
    pub counted: u64,
    pub demands: u64,
    /// Demands without an answer, by number.
    pub open: BTreeMap<u64, u64>,
    /// The newest order about what is to be mapped, and whether it is being carried out.
    pub target: Option<(u64, u64)>,
    pub maps: bool,
    /// When the reporter last spoke of what is allocated, and whether it is about to.
    pub delivered: u64,
    pub delivers: bool,
}

#[derive(Debug)]
pub(super) enum Own {
    Online(Online),
    Offline(Box<Offline>),
}

impl Own {
    pub fn offline(job: u32, engine: Option<Engine>) -> Process<Self> {
        let cache = engine.map(|engine| Cache {
            pages: Pages::new(),
            engine,
            told: 0,
            delivered: 0,
            delivers: false,
            out: 0,
        });
        let offline = Offline {
            line: Line::default(),
            service: Service::default(),
            cache,
            stopped_until: 0,
        };
        Process::new(Some(job), 1, Self::Offline(Box::new(offline)))
    }

    pub fn online() -> Process<Self> {
        Process::new(None, 1, Self::Online(Online::default()))
    }

    pub fn line(&mut self) -> &mut Line {
        match self {
            Self::Online(online) => &mut online.line,
            Self::Offline(offline) => &mut offline.line,
        }
    }

    pub fn as_online(&mut self) -> Option<&mut Online> {
        match self {
            Self::Online(online) => Some(online),
            Self::Offline(_) => None,
        }
    }

    pub fn as_offline(&mut self) -> Option<&mut Offline> {
        match self {
            Self::Offline(offline) => Some(offline),
            Self::Online(_) => None,
        }
    }

    pub fn cache(&mut self) -> Option<&mut Cache> {
        self.as_offline()?.cache.as_mut()
    }
}

/// A turn, where jobs take turns: shorter than most of what online does, so that moves and switches meet, ms.
pub(super) const TURN_MS: u64 = 15;

/// With every other seed, jobs take turns, and with half of the others they run at once by timeslices.
fn config(seed: u64) -> Config {
    let fair = Fair {
        mode: match seed % 4 {
            1 | 3 => FairMode::Turns,
            2 => FairMode::Slices,
            _ => FairMode::Together,
        },
        turn: Duration::from_millis(TURN_MS),
        ..Fair::default()
    };
    Config {
        fair,
        cooldown: Cooldown::Fixed(Duration::from_millis(3)),
        sharing: Sharing {
            restore_interval: Duration::from_millis(100),
            reserving: Reserving {
                pressure_every: Duration::from_millis(200),
                step: Bytes(2),
                min: Bytes(4),
                max: Bytes(60),
                ..Reserving::default()
            },
            ..Sharing::default()
        },
        ..Config::default()
    }
}

impl Reclaim {
    /// One schedule from its first event to its verdict.
    pub fn schedule(
        seed: u64,
        broken: Break,
        timeline: Option<&Timeline>,
    ) -> (Vec<String>, Figures) {
        let mut dice = Dice::new(seed);
        let jobs = dice.between(1, 2);
        let rules = Rules {
            gpus: 1,
            config: config(seed),
            pool: jobs * STRIPE * u64::from(STRIPES) + ROOM,
            level: Level::L1,
            method: Method::Disable,
            personality: Personality::Evicts,
            broken: broken.defect(),
        };
        let reclaim = Self {
            broken,
            steps: BTreeMap::new(),
            tags: 0,
            armed: Vec::new(),
            busy: false,
            violations: Vec::new(),
            figures: Figures::default(),
            ran: BTreeMap::new(),
            timeline: timeline.cloned(),
        };
        let mut world = World::new(seed, dice, rules, reclaim);
        world.timeline = timeline.cloned();
        world.draw_programs(jobs);
        let (reclaim, _) = world.run();
        (reclaim.violations, reclaim.figures)
    }

    pub fn violated(&mut self, now: u64, what: &str) {
        if let Some(timeline) = &self.timeline {
            timeline.put(now, Who::Judge, what);
        }
        if self.violations.len() < KEPT {
            let (ms, ns) = (now / MS, now % MS);
            self.violations.push(format!("at {ms}.{ns:06} ms: {what}"));
        }
    }
}

impl Play for Reclaim {
    type Own = Own;
    type Ev = Happening;
    const LONGEST: u64 = 40_000 * MS;
    const QUIET: u64 = 1_500 * MS;

    fn begins(world: &mut World<Self>) {
        world.draw_script();
    }

    fn spawned(world: &mut World<Self>, pid: usize) {
        if !world.processes[pid].is_online() {
            world.begin_reporter(pid);
        }
        if world.processes[pid].own.cache().is_some() {
            world.play_at(world.now + MS, Happening::Tick(pid));
        }
    }

    fn happens(world: &mut World<Self>, event: Happening) {
        let of = world.whose(&event);
        if let Some((pid, until)) = of {
            if !world.processes[pid].alive {
                return;
            }
            if world.now < until {
                return world.play_at(until, event);
            }
        }
        match event {
            Happening::Ordered(pid, era, order) => world.ordered(pid, era, order),
            Happening::Serve(pid) => world.serve(pid),
            Happening::Clear(pid, order) => world.clear(pid, order),
            Happening::Changed(pid) => world.changed(pid),
            Happening::Late(pid, era, reclaim) => world.late(pid, era, reclaim),
            Happening::Visible(pid, end) => world.visible(pid, end),
            Happening::Deliver(pid) => world.deliver(pid),
            Happening::Output(pid, step) => world.output(pid, &step),
            Happening::Turn(pid) => world.schedules(pid),
            Happening::Tick(pid) => world.tick(pid),
            Happening::Online(busy) => world.online_is(busy),
            Happening::Demand => world.demands(),
            Happening::Allocates(pid, bytes) => world.allocates(pid, bytes),
            Happening::Frees(pid, bytes) => world.frees(pid, bytes),
            Happening::Mapped(pid) => world.maps(pid),
            Happening::QueueDrains => {
                world.arrives();
                world.switches.set_full(false, false);
            }
            Happening::Fault(trigger, fault) => {
                world.arrives();
                match trigger {
                    Some(trigger) => world.play.armed.push((trigger, fault)),
                    None => world.fault(None, fault),
                }
            }
            Happening::Strikes(pid, fault) => {
                world.arrives();
                world.fault(Some(pid), fault);
            }
        }
    }

    fn is_busy(world: &mut World<Self>) -> bool {
        let works = world.agent.as_ref().is_some_and(|agent| !agent.stopped);
        world.now < SCRIPT || !works || world.left() > 0 || world.moves_or_stands_still()
    }

    fn ends(world: &mut World<Self>) {
        world.close();
    }

    fn finished(world: &mut World<Self>, _gpu: usize, tag: u64, _at: u64) {
        world.step_ends(tag);
    }

    fn passes(world: &mut World<Self>, pid: usize) {
        world.play_at(world.now + 5_000, Happening::Turn(pid));
    }

    fn attached(world: &mut World<Self>, pid: usize) {
        world.describes(pid);
    }

    fn detached(world: &mut World<Self>, pid: usize) {
        world.void(pid);
    }

    fn told(world: &mut World<Self>, pid: usize, order: MemoryOrder) {
        world.hears(pid, order);
    }

    fn is_changing(world: &World<Self>, pid: usize) -> bool {
        match &world.processes[pid].own {
            Own::Offline(offline) => offline.service.change.is_some(),
            Own::Online(_) => false,
        }
    }

    fn turned(world: &mut World<Self>) {
        world.check_ledger();
        if world.now > SCRIPT {
            world.note_running();
        }
    }

    fn learns(&mut self, _now: u64, _fact: Fact<'_>) {}

    fn told_of(event: &Happening) -> Option<(String, bool)> {
        let (often, once) = (|text| Some((text, true)), |text| Some((text, false)));
        match event {
            Happening::Ordered(pid, _, order) => once(format!("process {pid} hears {order:?}")),
            Happening::Changed(pid) => {
                often(format!("process {pid} has changed a stripe's mapping"))
            }
            Happening::Late(pid, _, reclaim) => {
                once(format!("process {pid}: the time of {reclaim:?} is over"))
            }
            Happening::Online(true) => once("online becomes busy".to_owned()),
            Happening::Online(false) => once("online becomes idle".to_owned()),
            Happening::Demand => once("online demands memory".to_owned()),
            Happening::Allocates(pid, bytes) => {
                once(format!("process {pid} (online) allocates {bytes} bytes"))
            }
            Happening::Frees(pid, bytes) => {
                once(format!("process {pid} (online) frees {bytes} bytes"))
            }
            Happening::Mapped(pid) => once(format!(
                "process {pid} (online) has mapped what it was ordered to"
            )),
            Happening::QueueDrains => once("issue threads take orders again".to_owned()),
            Happening::Fault(None, fault) | Happening::Strikes(_, fault) => {
                once(format!("fault: {fault}"))
            }
            Happening::Fault(Some(trigger), fault) => {
                once(format!("a fault waits for a {trigger:?}: {fault}"))
            }
            Happening::Serve(_)
            | Happening::Clear(..)
            | Happening::Visible(..)
            | Happening::Deliver(_)
            | Happening::Output(..)
            | Happening::Turn(_)
            | Happening::Tick(_) => None,
        }
    }

    fn noted(&mut self, kind: &'static str) {
        match kind {
            "reclaimed" => self.figures.reclaims += 1,
            "restored" => self.figures.restores += 1,
            _ => {}
        }
    }
}
