//! One schedule from its first event to its verdict.

mod agent;

use super::engine::{Backing, Engine, PER_STRIPE, Pages, STRIPES, Step};
use super::figures::{Break, Figures};
use crate::virtual_nemesis::script::{Dice, MS, US};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidegate_device::{ChannelId, Config as DeviceConfig, EventKind, Gpu, TsgId, Work};
use tidegate_policy::config::{Config, Cooldown, Reserving, Sharing};
use tidegate_policy::effect::{Effect, Granted, Look, Report};
use tidegate_policy::event::{Event, Order, Reading, Standing};
use tidegate_policy::ids::{
    AskId, BlockId, Bytes, Channels, GpuId, GpuSet, GraphId, JobId, KvId, Launches, LogSeq,
    ReclaimId, RequestId, SessionId, StripeId, Tokens,
};
use tidegate_policy::layout::{Layout, Stripe};
use tidegate_policy::memory::MemoryEvent;
use tidegate_policy::node::Node;
use tidegate_policy::reclaim::{Answer, Direction};
use tidegate_policy::time::Instant;

const GPU: GpuId = GpuId(0);
const KV: KvId = KvId(1);
/// Bytes of a stripe: one handle.
const STRIPE: u64 = 10;
/// Beyond the offline caches.
const ROOM: u64 = 30;
/// Faults and demands end here, and everything is to come to rest.
const SCRIPT: u64 = 2_500 * MS;
/// No schedule lasts longer; one that does is stuck.
const LONGEST: u64 = 40_000 * MS;
/// Quiet at the end, longer than any interval of the policy.
const QUIET: u64 = 1_500 * MS;
/// Enough to see what is wrong.
const KEPT: usize = 5;

/// What a process says, in the order of its stream.
#[derive(Clone, Debug)]
enum Said {
    Event(Event<'static>),
    Registered(usize),
    Checked(ReclaimId, Answer),
    Moved(ReclaimId, Answer, Vec<StripeId>, u64),
    Published(u64, Option<(u64, Vec<u32>)>),
    Withheld(u64),
    Elastic(u64),
    Mapped(u64),
    Used(u64),
    Counted(u64),
    Asked(u64, u64),
    Withdrawn(u64),
}

#[derive(Debug)]
enum Ev {
    /// To the agent of that epoch, from that session.
    Said(u64, SessionId, Said),
    /// From it, to the process of that session.
    Ordered(u64, SessionId, Effect, Vec<StripeId>),
    MoveStarts(usize, Move),
    MoveEnds(usize, Move),
    Late(usize, ReclaimId),
    Visible(usize, usize),
    Enter(u64, Order, bool, Look),
    Timer(u64),
    Output(usize, Box<Step>),
    Turn(usize),
    Online(bool),
    Ask,
    Allocates(u64, u64),
    Frees(u64),
    Arrives(usize),
    Restart(usize),
    Kill(usize),
    AgentDies,
    AgentStarts,
    OnlineDies,
}

/// One order that a process carries out.
#[derive(Clone, Debug)]
struct Move {
    reclaim: ReclaimId,
    session: SessionId,
    direction: Direction,
    stripes: Vec<StripeId>,
}

#[derive(Debug)]
struct Process {
    alive: bool,
    job: JobId,
    session: SessionId,
    tsg: TsgId,
    channel: ChannelId,
    pages: Pages,
    engine: Engine,
    passes: bool,
    /// Moves under way, and whether the last one is answered as late.
    moving: usize,
    moved: BTreeSet<ReclaimId>,
    told: usize,
    /// When its stream, and the agent's to it, are free.
    up: u64,
    down: u64,
    /// When its last output is on the host.
    out: u64,
}

#[derive(Debug, Default)]
struct Online {
    /// Zero before the first.
    session: u64,
    busy: bool,
    edges: u64,
    mapped: u64,
    used: u64,
    counted: u64,
    asks: u64,
    open: BTreeMap<u64, u64>,
    up: u64,
}

#[derive(Debug)]
pub(super) struct World {
    now: u64,
    dice: Dice,
    broken: Break,
    gpu: Gpu,
    node: Option<Node>,
    epoch: u64,
    sessions: u64,
    jobs: u32,
    processes: Vec<Process>,
    online: Online,
    steps: BTreeMap<u64, (usize, Step)>,
    tags: u64,
    issue_free: u64,
    queue: BTreeMap<(u64, u64), Ev>,
    events: u64,
    pool: u64,
    violations: Vec<String>,
    figures: Figures,
}

impl World {
    pub fn new(seed: u64, broken: Break) -> Self {
        let mut dice = Dice::new(seed);
        let jobs = dice.between(1, 2);
        let gpu = Gpu::new(DeviceConfig {
            seed,
            ..DeviceConfig::default()
        });
        let mut world = Self {
            now: 0,
            dice,
            broken,
            gpu,
            node: None,
            epoch: 0,
            sessions: 0,
            jobs: 0,
            processes: Vec::new(),
            online: Online::default(),
            steps: BTreeMap::new(),
            tags: 0,
            issue_free: 0,
            queue: BTreeMap::new(),
            events: 0,
            pool: jobs * STRIPE * u64::from(STRIPES) + ROOM,
            violations: Vec::new(),
            figures: Figures::default(),
        };
        world.agent_starts();
        for _ in 0..jobs {
            let overlap = world.dice.percent(60);
            let mut engine = Engine::new(overlap, broken);
            for _ in 0..world.dice.between(20, 120) {
                world.dice_request(&mut engine);
            }
            world.spawn(engine);
        }
        world.script();
        world
    }

    fn dice_request(&mut self, engine: &mut Engine) {
        // Prompts begin alike, so that they share blocks.
        let kind = self.dice.between(1, 25);
        let alike = self.dice.between(8, 40);
        let own = self.dice.between(1, 10);
        let mut prompt: Vec<u64> = (0..alike).map(|n| kind * 100 + n).collect();
        prompt.extend((0..own).map(|_| self.dice.between(1_000, 1 << 40)));
        let want = self.dice.between(3, 24);
        engine.add(prompt, usize::try_from(want).unwrap_or(1));
    }

    fn script(&mut self) {
        let mut at = 450 * MS;
        let mut busy = false;
        while at < SCRIPT {
            busy = !busy;
            self.at(at, Ev::Online(busy));
            at += if busy {
                self.dice.scale(MS, 80 * MS)
            } else {
                self.dice.scale(4 * MS, 200 * MS)
            };
        }
        self.at(SCRIPT, Ev::Online(false));
        for _ in 0..self.dice.between(4, 14) {
            let at = self.dice.between(500 * MS, SCRIPT);
            self.at(at, Ev::Ask);
        }
        for _ in 0..self.dice.between(0, 6) {
            let at = self.dice.between(100 * MS, SCRIPT);
            let pid = usize::try_from(self.dice.between(0, 1)).unwrap_or(0);
            let event = match self.dice.between(0, 9) {
                0..=2 => Ev::Restart(pid),
                3 | 4 => Ev::Kill(pid),
                5 | 6 => Ev::AgentDies,
                7 => Ev::OnlineDies,
                _ => Ev::Arrives(pid),
            };
            self.at(at, event);
        }
    }

    fn at(&mut self, at: u64, event: Ev) {
        self.events += 1;
        self.queue.insert((at.max(self.now), self.events), event);
    }

    fn violated(&mut self, what: &str) {
        if self.violations.len() < KEPT {
            let (ms, ns) = (self.now / MS, self.now % MS);
            self.violations.push(format!("at {ms}.{ns:06} ms: {what}"));
        }
    }

    pub fn run(mut self) -> (Vec<String>, Figures) {
        let mut rest = None;
        while self.now < LONGEST {
            let device = self.gpu.next_event();
            let event = self.queue.first_key_value().map(|(key, _)| key.0);
            match (device, event) {
                (Some(at), event) if event.is_none_or(|event| at <= event) => {
                    self.now = at.max(self.now);
                    self.device();
                }
                (_, Some(at)) => {
                    self.now = at;
                    if let Some((_, event)) = self.queue.pop_first() {
                        self.happens(event);
                        self.device();
                    }
                }
                _ => break,
            }
            let left: u64 = self.live().map(|process| process.engine.left()).sum();
            if self.now > SCRIPT && left == 0 && self.node.is_some() {
                let since = *rest.get_or_insert(self.now);
                if self.now > since + QUIET {
                    break;
                }
            }
        }
        self.close();
        (self.violations, self.figures)
    }

    fn live(&self) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(|process| process.alive)
    }

    fn close(&mut self) {
        let left: u64 = self.live().map(|process| process.engine.left()).sum();
        self.figures.lost_requests += left;
        if left > 0 {
            self.violated(&format!("{left} requests never ended"));
        }
        let held = self.live().filter(|process| !process.passes).count();
        let channels: Vec<ChannelId> = self.live().map(|process| process.channel).collect();
        let disabled = channels
            .iter()
            .filter(|channel| self.gpu.is_disabled(**channel))
            .count();
        if held + disabled > 0 {
            self.violated(&format!(
                "{disabled} jobs left disabled and {held} held although all is quiet"
            ));
        }
    }

    fn device(&mut self) {
        loop {
            let mut events = Vec::new();
            self.gpu.advance(self.now, &mut events);
            if events.is_empty() {
                return;
            }
            for event in events {
                if let EventKind::Finished { tag, .. } = event.kind
                    && let Some((pid, step)) = self.steps.remove(&tag)
                {
                    self.finished(pid, step);
                }
            }
        }
    }

    fn finished(&mut self, pid: usize, mut step: Step) {
        let process = &mut self.processes[pid];
        if !process.alive {
            return;
        }
        let torn = process.pages.backing.contains(&Backing::Nothing);
        process.engine.execute(&mut step, &mut process.pages);
        if torn {
            self.figures.faults += 1;
            self.violated("a kernel ran on an unmapped page");
        }
        let at = self.now + self.dice.between(10 * US, 400 * US);
        let process = &mut self.processes[pid];
        process.out = process.out.max(at) + 1;
        let at = process.out;
        self.at(at, Ev::Output(pid, Box::new(step)));
    }

    fn turn(&mut self, pid: usize) {
        loop {
            let process = &mut self.processes[pid];
            if !process.alive || !process.passes {
                return;
            }
            if process.engine.under_way == 0 {
                self.figures.hit += process.engine.poll(&process.pages);
            }
            let Some(step) = process.engine.schedule() else {
                break;
            };
            let channel = process.channel;
            self.tags += 1;
            let (tag, ns) = (self.tags, self.dice.scale(100 * US, 6 * MS));
            self.steps.insert(tag, (pid, step));
            self.gpu.submit(channel, Work::Run { ns, tag });
        }
        self.report(pid);
    }

    /// Tells the agent what the engine holds and has read.
    fn report(&mut self, pid: usize) {
        let process = &mut self.processes[pid];
        let changed = core::mem::take(&mut process.engine.changed);
        let mut said: Vec<Said> = changed
            .into_iter()
            .map(|id| {
                let held = process.engine.held(id);
                Said::Published(id, held.map(|(tokens, blocks)| (tokens, blocks.to_vec())))
            })
            .collect();
        if process.engine.read > process.told {
            process.told = process.engine.read;
            said.push(Said::Withheld(process.told as u64));
        }
        for said in said {
            self.says(pid, said);
        }
    }

    fn says(&mut self, pid: usize, said: Said) {
        let delay = self.dice.scale(15 * US, 400 * US);
        let process = &mut self.processes[pid];
        process.up = process.up.max(self.now + delay) + 1;
        let (at, session) = (process.up, process.session);
        self.at(at, Ev::Said(self.epoch, session, said));
    }

    fn online_says(&mut self, said: Said) {
        let delay = self.dice.scale(5 * US, 200 * US);
        self.online.up = self.online.up.max(self.now + delay) + 1;
        let (at, session) = (self.online.up, SessionId(self.online.session));
        self.at(at, Ev::Said(self.epoch, session, said));
    }

    // ------------------------------------------------------------ processes

    fn spawn(&mut self, engine: Engine) {
        let tsg = self.gpu.add_tsg(1);
        let channel = self.gpu.add_channel(tsg);
        self.gpu.set_scheduled(tsg, true);
        self.jobs += 1;
        self.processes.push(Process {
            alive: true,
            job: JobId(self.jobs),
            session: SessionId(0),
            tsg,
            channel,
            pages: Pages::new(),
            engine,
            passes: false,
            moving: 0,
            moved: BTreeSet::new(),
            told: 0,
            up: 0,
            down: 0,
            out: 0,
        });
        let pid = self.processes.len() - 1;
        self.attach(pid, Standing::Enabled);
        self.at(self.now + MS, Ev::Turn(pid));
    }

    /// A process connects to the agent there is.
    fn attach(&mut self, pid: usize, standing: Standing) {
        self.sessions += 1;
        let session = SessionId(self.sessions);
        let process = &mut self.processes[pid];
        (process.session, process.passes, process.told) = (session, false, 0);
        let (job, gpus) = (process.job, GpuSet::of(GPU));
        self.says(
            pid,
            Said::Event(Event::OfflineAttached {
                session,
                job,
                gpus,
                standing,
            }),
        );
        let (gpu, channels, grown) = (GPU, Channels(1), true);
        self.says(
            pid,
            Said::Event(Event::ChannelsChanged {
                session,
                gpu,
                channels,
                grown,
            }),
        );
        // While memory moves it has nothing to say about it.
        if self.processes[pid].moving == 0 {
            self.says(pid, Said::Registered(pid));
        }
        let engine = &mut self.processes[pid].engine;
        engine.changed.extend(engine.ids());
        self.report(pid);
    }

    fn kill(&mut self, pid: usize) {
        let process = &mut self.processes[pid];
        process.alive = false;
        let (tsg, session) = (process.tsg, process.session);
        let mut engine = process.engine.clone();
        self.gpu.remove_tsg(tsg);
        self.steps.retain(|_, step| step.0 != pid);
        let at = self.now + self.dice.between(MS, 4 * MS);
        self.at(
            at,
            Ev::Said(
                self.epoch,
                session,
                Said::Event(Event::OfflineGone { session }),
            ),
        );
        engine.restart();
        engine.under_way = 0;
        self.spawn(engine);
    }

    fn pid_of(&self, session: SessionId) -> Option<usize> {
        self.processes
            .iter()
            .position(|process| process.alive && process.session == session)
    }

    fn ordered(&mut self, pid: usize, effect: Effect, stripes: Vec<StripeId>) {
        match effect {
            Effect::Check { reclaim, .. } => {
                if self.broken == Break::UnmapEnabled {
                    self.fault_if_enabled(pid);
                }
                let inside = self.dice.percent(6);
                let answer = if inside {
                    Answer::Refused
                } else {
                    Answer::Done
                };
                self.says(pid, Said::Checked(reclaim, answer));
            }
            Effect::Move {
                reclaim,
                session,
                direction,
                until,
                ..
            } => {
                let order = Move {
                    reclaim,
                    session,
                    direction,
                    stripes,
                };
                let stopped = self.dice.percent(4);
                let wait = if stopped {
                    self.dice.between(25 * MS, 200 * MS)
                } else {
                    self.dice.scale(10 * US, 500 * US)
                };
                self.processes[pid].moving += 1;
                self.at(self.now + wait, Ev::MoveStarts(pid, order));
                self.at(until.as_nanos(), Ev::Late(pid, reclaim));
            }
            _ => {}
        }
    }

    fn fault_if_enabled(&mut self, pid: usize) {
        if self.processes[pid].alive && !self.gpu.is_disabled(self.processes[pid].channel) {
            self.figures.faults += 1;
            self.violated("memory moved beside an enabled channel");
        }
    }

    fn move_starts(&mut self, pid: usize, order: Move) {
        self.fault_if_enabled(pid);
        for stripe in &order.stripes {
            self.processes[pid].pages.set(stripe.0, Backing::Nothing);
        }
        let took = self.dice.scale(50 * US, 3 * MS);
        self.at(self.now + took, Ev::MoveEnds(pid, order));
    }

    fn move_ends(&mut self, pid: usize, order: Move) {
        self.fault_if_enabled(pid);
        let Move {
            reclaim,
            session,
            direction,
            stripes,
        } = order;
        let process = &mut self.processes[pid];
        process.moving -= 1;
        process.moved.insert(reclaim);
        let takes = direction == Direction::Reclaim;
        for stripe in &stripes {
            let backing = if takes {
                Backing::Quarantine
            } else {
                Backing::Own
            };
            process.pages.set(stripe.0, backing);
            process.pages.append(stripe.0, takes);
        }
        process.pages.clear_quarantine();
        let end = process.pages.log_end();
        if self.broken == Break::LateLog {
            let at = self.now + self.dice.between(2 * MS, 20 * MS);
            self.at(at, Ev::Visible(pid, end));
        } else {
            self.processes[pid].pages.visible = end;
        }
        if self.processes[pid].session == session {
            self.says(pid, Said::Moved(reclaim, Answer::Done, stripes, end as u64));
        } else {
            // The order was of an agent that is gone; the next hears what stands.
            self.says(pid, Said::Registered(pid));
        }
    }

    // ------------------------------------------------------------ what happens

    fn happens(&mut self, event: Ev) {
        match event {
            Ev::Said(epoch, session, said) if epoch == self.epoch => self.hears(session, said),
            Ev::Ordered(epoch, session, effect, stripes) if epoch == self.epoch => {
                if let Some(pid) = self.pid_of(session) {
                    self.ordered(pid, effect, stripes);
                }
            }
            Ev::Enter(epoch, order, disable, look) if epoch == self.epoch => {
                self.enter(order, disable, look);
            }
            Ev::Timer(epoch) if epoch == self.epoch => self.feed(Event::Tick),
            Ev::Said(..) | Ev::Ordered(..) | Ev::Enter(..) | Ev::Timer(..) => {}
            Ev::MoveStarts(pid, order) if self.processes[pid].alive => self.move_starts(pid, order),
            Ev::MoveEnds(pid, order) if self.processes[pid].alive => self.move_ends(pid, order),
            Ev::MoveStarts(..) | Ev::MoveEnds(..) => {}
            Ev::Late(pid, reclaim) => {
                let process = &self.processes[pid];
                if process.alive && process.moving > 0 && !process.moved.contains(&reclaim) {
                    self.says(pid, Said::Moved(reclaim, Answer::Late, Vec::new(), 0));
                }
            }
            Ev::Visible(pid, end) => {
                let pages = &mut self.processes[pid].pages;
                pages.visible = pages.visible.max(end);
            }
            Ev::Output(pid, step) => {
                let process = &mut self.processes[pid];
                if process.alive {
                    let came = process.engine.process(&step, &process.pages);
                    self.figures.wrong_tokens += came.wrong;
                    self.figures.hit += came.hit;
                    self.figures.tokens += came.accepted;
                    if came.wrong > 0 {
                        self.violated(&format!("{} wrong tokens", came.wrong));
                    }
                    self.report(pid);
                    self.turn(pid);
                }
            }
            Ev::Turn(pid) => {
                if self.processes[pid].alive {
                    self.turn(pid);
                    // An engine that has nothing to do still looks at the log now and then.
                    self.at(self.now + 20 * MS, Ev::Turn(pid));
                }
            }
            Ev::Online(busy) => {
                if self.online.busy != busy {
                    self.online.busy = busy;
                    self.online.edges += 1;
                    self.figures.edges += u64::from(busy);
                    self.rings();
                }
                let most = if self.now < SCRIPT && busy {
                    self.online.mapped
                } else {
                    0
                };
                self.online.used = self.dice.between(0, most);
                self.online_says(Said::Used(self.online.used));
            }
            Ev::Ask => {
                self.online.asks += 1;
                let (ask, bytes) = (self.online.asks, self.dice.between(1, 9 * STRIPE));
                self.online.open.insert(ask, bytes);
                self.online_says(Said::Asked(ask, bytes));
                if self.dice.percent(15) {
                    self.online.open.remove(&ask);
                    self.online_says(Said::Withdrawn(ask));
                }
            }
            Ev::Allocates(session, bytes) if session == self.online.session => {
                self.online.counted += bytes;
                self.online_says(Said::Counted(self.online.counted));
                let at = self.now + self.dice.scale(5 * MS, 600 * MS);
                self.at(at, Ev::Frees(bytes));
            }
            Ev::Allocates(..) => {}
            Ev::Frees(bytes) => {
                self.online.counted = self.online.counted.saturating_sub(bytes);
                self.online_says(Said::Counted(self.online.counted));
            }
            Ev::Arrives(pid) => {
                if let Some(pid) = self.nth_alive(pid) {
                    let mut engine = self.processes[pid].engine.clone();
                    self.dice_request(&mut engine);
                    self.processes[pid].engine = engine;
                    self.turn(pid);
                }
            }
            Ev::Restart(pid) => {
                if let Some(pid) = self.nth_alive(pid) {
                    let process = &mut self.processes[pid];
                    process.engine.restart();
                    // A scheduler that starts reads the whole log before it allocates.
                    process.engine.poll(&process.pages);
                    self.report(pid);
                }
            }
            Ev::Kill(pid) => {
                if let Some(pid) = self.nth_alive(pid) {
                    self.kill(pid);
                }
            }
            Ev::AgentDies => {
                if self.node.take().is_some() {
                    self.epoch += 1;
                    let at = self.now + self.dice.scale(5 * MS, 400 * MS);
                    self.at(at, Ev::AgentStarts);
                }
            }
            Ev::AgentStarts => self.agent_starts(),
            Ev::OnlineDies => {
                let session = SessionId(self.online.session);
                self.online_says(Said::Event(Event::OnlineGone { session }));
                let up = self.online.up;
                self.online = Online {
                    edges: self.online.edges,
                    busy: self.online.busy,
                    up,
                    ..Online::default()
                };
                self.online_attaches();
            }
        }
    }

    fn nth_alive(&self, nth: usize) -> Option<usize> {
        let alive = (0..self.processes.len()).filter(|pid| self.processes[*pid].alive);
        let alive: Vec<usize> = alive.collect();
        alive.get(nth % alive.len().max(1)).copied()
    }
}
