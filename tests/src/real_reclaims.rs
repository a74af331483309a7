//! Random schedules of bursts and deaths, with a real agent between a running engine and an online cache.
//!
//! One device serves all schedules, one agent as long as it lives. In each an online program (`apps/kv_online.c`) wants
//! more memory than is free beside the offline engine (`apps/kv_engine.c`), which the agent takes from that, and gives
//! it up again. Engine, agent and online program are killed, or the engine is stopped for a while, at random moments: at
//! once, or at a step of the reclaim as the device sees it. What happened is judged by the engine, which compares every
//! token with what an undisturbed run makes of it, and by the device's history: nothing is unmapped beside an enabled
//! channel, nothing faults, what was allocated is freed with its owner, and both together never hold more than there is.

use crate::elastic::Elastic;
use crate::engine::{Engine, judge};
use crate::schedules::Rng;
use crate::{Node, RECORDS, explain, monotonic_ns, view, wait_until};
use std::cell::{Ref, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidegate_sim::timeline::{Timeline, Who};
use tidegate_vgpu::history::{Kind, Reader, Record};

/// What all schedules came to.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Schedules run.
    pub schedules: u64,
    /// Seed and what was broken.
    pub violations: Vec<(u64, String)>,
    /// Engines that found a wrong token.
    pub wrong_tokens: u64,
    /// Engines that ended or stood still with requests unanswered.
    pub lost_requests: u64,
    /// Faults the device saw.
    pub faults: u64,
    /// Blocks that engines were told are lost, and back.
    pub lost: u64,
    /// See `lost`.
    pub back: u64,
    /// Bursts that got all they wanted.
    pub granted: u64,
    /// Bursts that had to do with less.
    pub short: u64,
    /// Engines killed.
    pub kills: u64,
    /// Agents killed and followed.
    pub agents: u64,
    /// Online programs killed.
    pub onlines: u64,
    /// Engines stopped for a while.
    pub stops: u64,
}

impl Totals {
    /// Whether too little happened for a verdict.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.granted < self.schedules || self.lost < 2 * self.schedules || self.back == 0
    }
}

/// What is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// Nothing.
    Nothing,
    /// The engine goes on with blocks that it was told are lost.
    IgnoreLost,
    /// The judge is shown no disable.
    NoDisable,
    /// The judge is shown no release of memory.
    NoRelease,
}

impl Break {
    /// By name.
    pub const NAMES: [(&str, Self); 4] = [
        ("nothing", Self::Nothing),
        ("ignore-lost", Self::IgnoreLost),
        ("no-disable", Self::NoDisable),
        ("no-release", Self::NoRelease),
    ];
}

/// Beside the engine's 32 stripes, online's 32 blocks do not fit.
const POOL_MIB: u64 = 96;
/// What an engine begins with: its stripes, a quarantine page, and a chunk for plain allocations.
const ENGINE_MIB: u64 = 64 + 2 + CHUNK_MIB;
/// The driver cuts small allocations out of chunks of this; the agent counts what was asked for. The engine's two are
/// some KiB in one chunk, and the online program has none.
const CHUNK_MIB: u64 = 2;
const AGENT: &str = "[identity]\ntrust_env_uids = [\"self\"]\n[gate]\ncooldown = \"2ms\"\n[memory]\npool = \"96MiB\"\n\
                     headroom_min = \"4MiB\"\nheadroom_max = \"8MiB\"\nrestore_interval = \"20ms\"\n";
/// How long a burst asks before it has to do with less.
const BURST: Duration = Duration::from_millis(1_500);
const LAYOUTS: [&str; 2] = ["blocks", "layers"];

/// When something dies.
#[derive(Clone, Copy, Debug)]
enum Moment {
    After(Duration),
    /// The engine's next record of this kind.
    At(Kind),
}

impl Moment {
    fn draw(rng: &mut Rng) -> Self {
        match rng.between(0, 6) {
            0 => Self::At(Kind::DisableBegin),
            1 => Self::At(Kind::DisableEnd),
            2 => Self::At(Kind::Unmap),
            3 => Self::At(Kind::MemoryDown),
            _ => Self::After(Duration::from_micros(rng.between(0, 20_000))),
        }
    }
}

/// What the history has of channels and memory. Its many kernels are not kept, and nothing is read twice.
struct Seen {
    reader: Reader,
    records: Vec<Record>,
}

impl Seen {
    fn catch_up(&mut self) {
        const LEFT_OUT: [Kind; 4] = [
            Kind::KernelStart,
            Kind::KernelEnd,
            Kind::TsgRun,
            Kind::TsgStop,
        ];
        let fresh = self.reader.read_new().unwrap_or_default().into_iter();
        self.records
            .extend(fresh.filter(|record| !LEFT_OUT.contains(&record.kind)));
    }
}

/// A promise that was broken: when, and how.
struct Broken {
    at_ns: u64,
    what: String,
}

impl From<String> for Broken {
    /// It shows now.
    fn from(what: String) -> Self {
        let at_ns = monotonic_ns();
        Self { at_ns, what }
    }
}

struct Stage {
    engine: Engine,
    online: Elastic,
    node: Node,
    seen: RefCell<Seen>,
    broken: Break,
    /// Blocks online holds.
    held: u64,
    engines: u64,
    /// Every engine and the addresses of its cache.
    ranges: BTreeMap<u32, Range<u64>>,
    /// Since when the agent knows all that is held. A process is born with memory that nobody gave it.
    known_ns: u64,
    /// Processes that ended, and when: the device hears of it a little later, as no driver does.
    dead: BTreeMap<u32, u64>,
    timeline: Option<Timeline>,
}

impl Stage {
    fn new(rng: &mut Rng, broken: Break, timeline: Option<&Timeline>) -> Result<Self, String> {
        let node = Node::new(&["--set", "poison=0xa5", "--set", "unmap_us=100"], AGENT);
        let reader = Reader::open(&node.vgpu_dir()).map_err(|error| error.to_string())?;
        let records = Vec::new();
        let engine = start(&node, rng, 0, broken);
        let online = Elastic::start(&node);
        let mut stage = Self {
            engine,
            online,
            node,
            seen: RefCell::new(Seen { reader, records }),
            broken,
            held: 0,
            engines: 0,
            ranges: BTreeMap::new(),
            known_ns: 0,
            dead: BTreeMap::new(),
            timeline: timeline.cloned(),
        };
        stage.settle()?;
        Ok(stage)
    }

    /// A new engine runs, and the agent knows of it.
    fn settle(&mut self) -> Result<(), String> {
        self.engine.progress(16)?;
        let range = self.engine.ready();
        self.ranges.insert(self.engine.process.pid(), range);
        self.known()
    }

    /// Waits until the agent counts what living processes hold, all of it.
    fn known(&mut self) -> Result<(), String> {
        let known = wait_until(crate::clock::DEADLINE, || {
            let held = held_by_the_living(&self.records(), &self.dead);
            let status = view::status(&self.node);
            let places = ["in_flight", "headroom", "online", "offline", "quarantined"];
            let bytes = |place| number(&status["gpus"][0]["memory"][format!("{place}_bytes")]);
            let counted = places.map(bytes).iter().sum::<u64>();
            // Until the agent has seen them end, it counts what the dead held.
            let processes = status["processes"].as_array();
            let of_dead = processes.into_iter().flatten().any(|process| {
                let dead = |pid: &u32| u64::from(*pid) == number(&process["pid"]);
                self.dead.keys().any(dead)
            });
            (!of_dead && counted + (CHUNK_MIB << 20) >= held).then_some(())
        });
        self.known_ns = monotonic_ns();
        known.ok_or_else(|| "the agent does not count all that is held".to_owned())
    }

    fn tell(&self, what: impl FnOnce() -> String) {
        if let Some(timeline) = &self.timeline {
            timeline.put(monotonic_ns(), Who::Schedule, what());
        }
    }

    /// What device and agents did, for the time line.
    fn explain(&self) {
        if let Some(timeline) = &self.timeline {
            let online = self.online.process.pid();
            explain::device(timeline, &self.records(), |pid| match pid {
                _ if pid == online => "online".to_owned(),
                _ if self.ranges.contains_key(&pid) => "engine".to_owned(),
                _ => String::new(),
            });
            explain::decisions(timeline, &self.node);
        }
    }

    fn records(&self) -> Ref<'_, [Record]> {
        self.seen.borrow_mut().catch_up();
        Ref::map(self.seen.borrow(), |seen| seen.records.as_slice())
    }

    /// Online wants more, and gets it before long or does with less.
    fn burst(&mut self, rng: &mut Rng, totals: &mut Totals) -> Result<(), String> {
        let wanted = rng.between(20, 31);
        self.tell(|| format!("online wants {wanted} blocks"));
        let got = wait_until(BURST, || {
            self.ask(wanted)
                .map(|held| held >= wanted)
                .filter(|all| *all)
        });
        self.tell(|| format!("online has {} of {wanted} blocks", self.held));
        if got.is_some() {
            totals.granted += 1;
        } else {
            totals.short += 1;
        }
        self.check()
    }

    fn ask(&mut self, wanted: u64) -> Option<u64> {
        let missing = wanted.saturating_sub(self.held);
        let answer = self.online.ask(&format!("reserve {missing}"));
        self.held += answer.split(' ').next()?.parse::<u64>().ok()?;
        Some(self.held)
    }

    fn check(&mut self) -> Result<(), String> {
        match self.online.ask("check").as_str() {
            "ok" => Ok(()),
            _ => Err("online lost what it wrote".to_owned()),
        }
    }

    fn calm(&mut self) {
        self.tell(|| format!("online gives up {} blocks", self.held));
        self.online.ask(&format!("release {}", self.held));
        self.held = 0;
    }

    /// Online begins to want more; `then` happens at some moment of what follows.
    fn amid(&mut self, rng: &mut Rng, then: impl FnOnce(&mut Self, &mut Rng)) {
        self.calm();
        let pid = self.engine.process.pid();
        let moment = Moment::draw(rng);
        let seen = self.records().len();
        self.ask(28);
        match moment {
            Moment::After(time) => std::thread::sleep(time),
            Moment::At(kind) => {
                // A reclaim may be put off, or not be needed.
                wait_until(Duration::from_millis(300), || {
                    self.ask(28);
                    let records = self.records();
                    let fresh = records.get(seen..).unwrap_or_default();
                    fresh
                        .iter()
                        .any(|r| r.pid == pid && r.kind == kind)
                        .then_some(())
                });
            }
        }
        then(self, rng);
    }

    fn kill_engine(&mut self, rng: &mut Rng) -> Result<(), String> {
        let pid = self.engine.process.pid();
        self.tell(|| format!("fault: the engine {pid} is killed"));
        self.engine.process.signal(libc::SIGKILL);
        let _ = self.engine.process.child.wait();
        self.dead.insert(pid, monotonic_ns());
        // The next takes all it wants at its birth: it begins when online has given up what it took.
        self.calm();
        let room = (POOL_MIB - ENGINE_MIB) << 20;
        let gave = wait_until(crate::clock::DEADLINE, || {
            (held_by_the_living(&self.records(), &self.dead) <= room).then_some(())
        });
        gave.ok_or_else(|| {
            let held = held_by_the_living(&self.records(), &self.dead);
            let status = view::status(&self.node);
            format!(
                "online keeps what it gave up: {held} bytes are held, {room} would leave room; the agent says {} of {}",
                status["gpus"][0]["memory"], status["processes"]
            )
        })?;
        self.engines += 1;
        self.engine = start(&self.node, rng, self.engines, self.broken);
        self.settle()
    }

    fn kill_online(&mut self) -> Result<(), String> {
        self.tell(|| "fault: the online process is killed".to_owned());
        self.online.process.signal(libc::SIGKILL);
        let _ = self.online.process.child.wait();
        self.dead.insert(self.online.process.pid(), monotonic_ns());
        self.held = 0;
        self.online = Elastic::start(&self.node);
        self.known()
    }

    fn kill_agent(&mut self, rng: &mut Rng) {
        self.tell(|| "fault: the agent is killed".to_owned());
        self.node.agent = None;
        // Shorter and longer than processes look for it ever more rarely.
        let most = if rng.percent(30) { 1_500 } else { 300 };
        let gone = Duration::from_millis(rng.between(0, most));
        std::thread::sleep(gone);
        self.node.start_agent(AGENT);
        self.tell(|| "another agent serves".to_owned());
    }

    fn fault(&mut self, rng: &mut Rng, totals: &mut Totals) -> Result<(), String> {
        let mut ended = Ok(());
        match rng.between(0, 8) {
            0..3 => {
                totals.kills += 1;
                self.amid(rng, |stage, rng| ended = stage.kill_engine(rng));
            }
            3..5 => {
                totals.agents += 1;
                self.amid(rng, Self::kill_agent);
            }
            5 => {
                totals.onlines += 1;
                self.amid(rng, |stage, _| ended = stage.kill_online());
            }
            _ => {
                totals.stops += 1;
                self.amid(rng, |stage, rng| {
                    stage.tell(|| "fault: the engine is stopped".to_owned());
                    stage.engine.process.signal(libc::SIGSTOP);
                    std::thread::sleep(Duration::from_millis(rng.between(1, 80)));
                    stage.engine.process.signal(libc::SIGCONT);
                    stage.tell(|| "the engine goes on".to_owned());
                });
            }
        }
        ended?;
        self.check()
    }

    fn run(&mut self, rng: &mut Rng, totals: &mut Totals) -> Result<(), Broken> {
        let from = monotonic_ns();
        let fault_at = rng.percent(50).then(|| rng.between(0, 2));
        let (mut pid, mut before) = (self.engine.process.pid(), self.engine.told());
        for turn in 0..2 {
            if Some(turn) == fault_at {
                self.fault(rng, totals)?;
            }
            self.burst(rng, totals)?;
            self.online.ask(&format!("use {}", self.held));
            self.goes_on(rng.between(1, 3) * 8, totals)?;
            self.check()?;
            self.online.ask("use 0");
            self.calm();
            self.goes_on(rng.between(1, 3) * 8, totals)?;
            if self.engine.process.pid() != pid {
                (pid, before) = (self.engine.process.pid(), (0, 0));
            }
            let told = self.engine.told();
            totals.lost += told.0 - before.0;
            totals.back += told.1 - before.1;
            before = told;
        }
        self.judge(from, totals)
    }

    fn goes_on(&mut self, tokens: u64, totals: &mut Totals) -> Result<(), String> {
        self.engine.progress(tokens).inspect_err(|end| {
            if end.contains("exit status: 3") {
                totals.wrong_tokens += 1;
            } else {
                totals.lost_requests += 1;
            }
        })
    }

    fn judge(&mut self, from_ns: u64, totals: &mut Totals) -> Result<(), Broken> {
        // A dead process' memory is free once the device has seen it go.
        let mut unfreed = None;
        // Shown no release, it waits in vain.
        let patience = match self.broken {
            Break::NoRelease => Duration::from_secs(1),
            _ => crate::clock::DEADLINE,
        };
        wait_until(patience, || {
            unfreed = self.unfreed();
            unfreed.is_none().then_some(())
        });
        if let Some(pid) = unfreed {
            return Err(format!("memory of the dead process {pid} was not freed").into());
        }
        let records = self.shown();
        for (pid, range) in &self.ranges {
            let wrong = judge(&records, *pid, range);
            let fresh = wrong.faults.iter().filter(|r| r.at_ns >= from_ns);
            totals.faults += fresh.count() as u64;
            if let Some(fault) = wrong.faults.first() {
                return Err(Broken {
                    at_ns: fault.at_ns,
                    what: format!("the device faulted: {fault:?}"),
                });
            }
            if let Some(unmap) = wrong.unmaps.first() {
                return Err(Broken {
                    at_ns: unmap.at_ns,
                    what: format!("a mapping changed while a channel was enabled: {unmap:?}"),
                });
            }
        }
        if let Some((at, held)) = overdrawn(&records, from_ns.max(self.known_ns), &self.dead) {
            let sum: u64 = held.values().sum();
            let held: Vec<String> = held
                .iter()
                .map(|(pid, bytes)| format!("{pid}: {} KiB", bytes >> 10))
                .collect();
            let order: Vec<String> = in_order(&records)
                .iter()
                .filter(|record| record.at_ns + 1_000_000_000 > at)
                .map(|record| {
                    let (before, kib) = (at.saturating_sub(record.at_ns), record.tag >> 10);
                    let (ms, us) = (before / 1_000_000, before / 1_000 % 1_000);
                    format!(
                        "-{ms}.{us:03} ms {:?} {} {kib} KiB",
                        record.kind, record.pid
                    )
                })
                .collect();
            let log = std::fs::read_to_string(self.node.agent_log()).unwrap_or_default();
            let log: Vec<&str> = log.lines().collect();
            let what = format!(
                "{} MiB were held at once, of {POOL_MIB} MiB ({}; online is {}, engine {}), {} ms after the schedule began \
                 and {} ms ago\n{}\n{}",
                sum >> 20,
                held.join(", "),
                self.online.process.pid(),
                self.engine.process.pid(),
                (at - from_ns) / 1_000_000,
                (monotonic_ns() - at) / 1_000_000,
                order.join("\n"),
                log[log.len().saturating_sub(80)..].join("\n"),
            );
            return Err(Broken { at_ns: at, what });
        }
        let dead = std::mem::take(&mut self.dead);
        self.ranges.retain(|pid, _| !dead.contains_key(pid));
        Ok(())
    }

    fn shown(&self) -> Vec<Record> {
        let mut records = self.records().to_vec();
        records.retain(|record| match self.broken {
            Break::NoDisable => record.kind != Kind::DisableEnd,
            Break::NoRelease => record.kind != Kind::MemoryDown,
            _ => true,
        });
        records
    }

    fn unfreed(&self) -> Option<u32> {
        let records = self.shown();
        self.dead.keys().copied().find(|pid| {
            let count = |kind| {
                let mine = records.iter().filter(|r| r.pid == *pid && r.kind == kind);
                mine.count()
            };
            count(Kind::MemoryUp) != count(Kind::MemoryDown)
        })
    }
}

/// Device memory as it is allocated and freed, in order; of one moment, what goes comes first.
fn in_order(records: &[Record]) -> Vec<&Record> {
    let mut ordered: Vec<&Record> = records
        .iter()
        .filter(|record| matches!(record.kind, Kind::MemoryUp | Kind::MemoryDown))
        .collect();
    ordered.sort_by_key(|record| (record.at_ns, record.kind == Kind::MemoryUp));
    ordered
}

fn count(held: &mut BTreeMap<u32, u64>, record: &Record) {
    let of = held.entry(record.pid).or_default();
    *of = match record.kind {
        Kind::MemoryUp => *of + record.tag,
        _ => of.saturating_sub(record.tag),
    };
}

fn held_by_the_living(records: &[Record], dead: &BTreeMap<u32, u64>) -> u64 {
    let mut held = BTreeMap::new();
    in_order(records).iter().for_each(|r| count(&mut held, r));
    held.retain(|pid, _| !dead.contains_key(pid));
    held.values().sum()
}

/// What each process held when one was given more than there is, from `known_ns` on, and when that was.
fn overdrawn(
    records: &[Record],
    known_ns: u64,
    dead: &BTreeMap<u32, u64>,
) -> Option<(u64, BTreeMap<u32, u64>)> {
    let mut held = BTreeMap::new();
    in_order(records).into_iter().find_map(|record| {
        count(&mut held, record);
        let lives = |pid: &u32| dead.get(pid).is_none_or(|ended| record.at_ns < *ended);
        let sum: u64 = held.iter().filter(|of| lives(of.0)).map(|of| of.1).sum();
        let given = record.kind == Kind::MemoryUp && record.at_ns > known_ns;
        (given && sum > (POOL_MIB + CHUNK_MIB) << 20).then(|| {
            held.retain(|pid, bytes| lives(pid) && *bytes > 0);
            (record.at_ns, std::mem::take(&mut held))
        })
    })
}

fn number(value: &serde_json::Value) -> u64 {
    let text = value.as_str().and_then(|text| text.parse().ok());
    value.as_u64().or(text).unwrap_or(0)
}

fn start(node: &Node, rng: &mut Rng, number: u64, broken: Break) -> Engine {
    let job = format!("reclaims-{}", node.device.pid());
    let layout = LAYOUTS[usize::try_from(rng.between(0, 2)).unwrap_or(0)];
    let seed = (number * 1_000_000 + 1).to_string();
    let mut args = vec![
        "--layout", layout, "--ns", "50000", "--say", "8", "--seed", &seed,
    ];
    if broken == Break::IgnoreLost {
        args.push("--ignore-lost");
    }
    Engine::start(node, &job, &args)
}

/// Runs `count` schedules from `seed` on, and tells them on `timeline`.
pub fn run(
    seed: u64,
    count: u64,
    broken: Break,
    timeline: Option<&Timeline>,
    mut progress: impl FnMut(u64, &Totals),
) -> Totals {
    RECORDS.store(timeline.is_some(), Ordering::Relaxed);
    let mut totals = Totals::default();
    let mut stage: Option<Stage> = None;
    for seed in seed..seed + count {
        let mut rng = Rng(seed);
        let ran = crate::sweep::caught(|| {
            let here = match &mut stage {
                Some(stage) => stage,
                none => none.insert(Stage::new(&mut rng, broken, timeline)?),
            };
            here.run(&mut rng, &mut totals)
        });
        if let Some(stage) = &stage {
            stage.explain();
        }
        if let Err(what) = ran {
            if let Some(timeline) = timeline {
                timeline.put(what.at_ns, Who::Judge, what.what.as_str());
            }
            let what = what.what;
            totals.violations.push((seed, what));
            stage = None;
        }
        totals.schedules += 1;
        progress(seed, &totals);
    }
    totals
}
