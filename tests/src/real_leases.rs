//! Random schedules of leases, with a real agent between a decoding engine and a trainer.
//!
//! Each schedule has a device and an agent of its own. An engine (`apps/decodes.c`) serves one request after the other and
//! reports its iterations, so that a trainer (`apps/trainer.c`) only ever runs on leases. The trainer keeps to them, is
//! late, lies, waits for none, or stops within one. Agent, trainer and engine are killed or stopped at random moments.
//! What happened is judged from the device's history, beside what the agent's recording says it granted:
//!
//! - *enabled without a lease*: each enable of the trainer's channels follows a lease of its own.
//! - *left enabled*: a lease that no other follows is followed by the disable of all of the trainer's channels.
//! - *ran while disabled*: nothing of the trainer runs between the return of a disable and the next enable.
//! - *units*: the trainer's kernels are those of an undisturbed run, each once and in order, and it counts as many.
//! - *left disabled*: without an agent the trainer goes on by itself, to its end.
//!
//! Real time decides nothing but deadlines: a machine with two noisy cores may stretch every step. How late a disable was
//! and what online's tokens took is counted and reported.

use crate::pair::{Lease, leases};
use crate::schedules::Rng;
use crate::watch::Testimony;
use crate::{Node, RECORDS, Running, TRUSTING, compile, monotonic_ns, wait_until};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ops::Range;
use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidegate_vgpu::history::{Kind, Record};

/// What all schedules came to.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Schedules run.
    pub schedules: u64,
    /// Seed and what was broken.
    pub violations: Vec<(u64, String)>,
    /// Leases given.
    pub leases: u64,
    /// Those that the trainer overran, as the agent recorded.
    pub overruns: u64,
    /// Units that the device ran.
    pub units: u64,
    /// Tokens of online that took longer than was promised.
    pub late: u64,
    /// Tokens of online.
    pub tokens: u64,
    /// Enables without a lease, and leases without a disable.
    pub ran_without_leave: u64,
    /// Trainers whose units were not those of an undisturbed run.
    pub wrong_adapters: u64,
    /// Leases of which the end was judged: no other followed, and nothing was struck meanwhile.
    pub judged_ends: u64,
    /// How long after the end of a lease the disable was entered, ns: the most.
    pub worst_late_ns: u64,
    /// Errors of the agent's predictions, and how many schedules had some.
    pub errors: (f64, u64),
    /// Agents killed and followed.
    pub agents: u64,
}

impl Totals {
    /// Whether too little happened for a verdict.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.leases < 3 * self.schedules
            || self.units < 3 * self.schedules
            || 4 * self.judged_ends < self.schedules
    }

    /// Of the agents' predictions of iterations.
    #[must_use]
    pub fn prediction_error(&self) -> f64 {
        self.errors.0 / self.errors.1.max(1) as f64
    }
}

/// What is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// Nothing.
    Nothing,
    /// The judge is shown every second lease.
    HalfTheLeases,
    /// The judge is shown no disable.
    NoDisable,
    /// The judge is not shown the fourth unit.
    NoUnit,
}

impl Break {
    /// By name.
    pub const NAMES: [(&str, Self); 4] = [
        ("nothing", Self::Nothing),
        ("half-the-leases", Self::HalfTheLeases),
        ("no-disable", Self::NoDisable),
        ("no-unit", Self::NoUnit),
    ];
}

/// Nothing opens by itself. The promise is one that a loaded machine keeps, so that there is slack to lend.
const CONFIG: &str =
    "[gate]\ncooldown = \"1h\"\n[lease]\ntpot = \"100ms\"\nttft = \"10s\"\ngrace = \"20ms\"\n";
const TPOT_NS: u64 = 100_000_000;
/// Longest that a disable may be late before it counts as lost.
const DEADLINE_NS: u64 = 500_000_000;
/// How long a schedule goes on once both programs run.
const PLAY: Duration = Duration::from_millis(1_500);
/// What the agent and the processes need after the schedule struck one of them.
const SETTLES_NS: u64 = 1_000_000_000;
/// The engine that runs kernels, as the history names it.
const COMPUTE: u64 = tidegate_abi::class::ENGINE_TYPE_GR0 as u64;

/// How the trainer behaves, drawn with these weights.
const HOW: [(&str, u64); 5] = [
    ("obedient", 45),
    ("late", 20),
    ("liar", 12),
    ("greedy", 13),
    ("frozen", 10),
];

#[derive(Clone, Copy, Debug)]
enum Fault {
    AgentKilled(Duration),
    AgentStopped(Duration),
    TrainerKilled,
    TrainerStopped(Duration),
}

/// What is drawn from a seed.
#[derive(Clone, Debug)]
struct Script {
    iteration_ns: u64,
    apart_ns: u64,
    tokens: u64,
    how: &'static str,
    unit_ns: u64,
    /// Units that follow one another; 0: without end.
    follow: u64,
    faults: Vec<(Duration, Fault)>,
    /// At the end the agent is killed; else it is asked to end.
    crashes: bool,
}

impl Script {
    fn draw(rng: &mut Rng) -> Self {
        let mut at = rng.between(0, 100);
        let how = HOW.iter().find(|(_, weight)| {
            let here = at < *weight;
            at = at.saturating_sub(*weight);
            here
        });
        let away = |rng: &mut Rng| Duration::from_millis(rng.between(5, 900));
        let fault = |rng: &mut Rng| match rng.between(0, 4) {
            0 => Fault::AgentKilled(away(rng)),
            1 => Fault::AgentStopped(away(rng)),
            2 => Fault::TrainerKilled,
            _ => Fault::TrainerStopped(away(rng)),
        };
        let mut faults: Vec<_> = (0..rng.between(0, 3))
            .map(|_| {
                let at = Duration::from_millis(rng.between(100, 1_000));
                (at, fault(rng))
            })
            .collect();
        faults.sort_by_key(|fault| fault.0);
        Self {
            iteration_ns: rng.between(1_000_000, 6_000_000),
            apart_ns: rng.between(300_000, 3_000_000),
            tokens: rng.between(8, 33),
            how: how.map_or(HOW[0].0, |how| how.0),
            unit_ns: rng.between(300_000, 2_000_000),
            follow: if rng.percent(50) {
                0
            } else {
                rng.between(1, 17)
            },
            faults,
            crashes: rng.percent(50),
        }
    }
}

/// One trainer process.
#[derive(Debug)]
struct Trainer {
    running: Option<Running>,
    pid: u32,
    /// Killed by the schedule.
    killed: bool,
}

/// One schedule under way.
struct Stage {
    node: Node,
    online: Running,
    trainers: Vec<Trainer>,
    /// When the schedule struck somebody, and until order is judged again.
    struck: Vec<Range<u64>>,
    agents: u64,
}

fn start(node: &Node, program: &str, role: &str, args: &[String]) -> Running {
    let mut command = node.preloaded(compile(program, &["-lcuda"]), role);
    command
        .env("TIDEGATE_JOB", role)
        .args(args)
        .stdout(Stdio::piped());
    Running::start(program, &mut command)
}

impl Stage {
    fn new(script: &Script) -> Result<Self, String> {
        let mut node = Node::device_only(&[]);
        node.start_agent(&format!("{TRUSTING}{CONFIG}"));
        let args = [script.iteration_ns, script.apart_ns, script.tokens];
        let online = start(&node, "decodes", "online", &args.map(|arg| arg.to_string()));
        let pid = online.pid();
        let runs = || {
            let ran = Testimony::of(&node).all(&[pid], Kind::KernelEnd).count();
            (ran > 2).then_some(())
        };
        wait_until(crate::clock::DEADLINE, runs).ok_or("the engine runs nothing")?;
        let mut stage = Self {
            node,
            online,
            trainers: Vec::new(),
            struck: Vec::new(),
            agents: 0,
        };
        stage.train(script);
        Ok(stage)
    }

    /// Another trainer.
    fn train(&mut self, script: &Script) {
        let mut args = vec![script.how.to_owned(), script.unit_ns.to_string()];
        if script.follow > 0 {
            args.push(script.follow.to_string());
        }
        let running = start(&self.node, "trainer", "offline", &args);
        let pid = running.pid();
        self.trainers.push(Trainer {
            running: Some(running),
            pid,
            killed: false,
        });
    }

    fn trainer(&mut self) -> Option<&mut Trainer> {
        self.trainers.last_mut()
    }

    fn strike(&mut self, script: &Script, fault: Fault) {
        let from = monotonic_ns();
        match fault {
            Fault::AgentKilled(away) => {
                self.node.agent = None;
                self.agents += 1;
                std::thread::sleep(away);
                self.node.start_agent(&format!("{TRUSTING}{CONFIG}"));
            }
            Fault::AgentStopped(away) => {
                if let Some(agent) = &self.node.agent {
                    agent.freeze();
                    std::thread::sleep(away);
                    agent.signal(libc::SIGCONT);
                }
            }
            Fault::TrainerKilled => {
                if let Some(trainer) = self.trainer() {
                    trainer.killed = true;
                    trainer.running = None;
                }
                self.train(script);
            }
            Fault::TrainerStopped(away) => {
                if let Some(running) = self.trainer().and_then(|own| own.running.as_ref()) {
                    running.signal(libc::SIGSTOP);
                    std::thread::sleep(away);
                    running.signal(libc::SIGCONT);
                }
            }
        }
        let kept = !matches!(fault, Fault::TrainerStopped(_));
        if kept {
            self.struck.push(from..monotonic_ns() + SETTLES_NS);
        }
    }

    /// Online ends, and so does the agent; then each trainer, which nothing holds back any more. What it counted.
    fn end(&mut self, script: &Script) -> Result<Vec<(u32, u64)>, String> {
        for trainer in &self.trainers {
            if let Some(running) = &trainer.running {
                running.signal(libc::SIGCONT);
                running.signal(libc::SIGTERM);
            }
        }
        if script.crashes {
            self.node.agent = None;
        } else if let Some(agent) = self.node.agent.take() {
            agent.signal(libc::SIGTERM);
            drop(agent.finish());
        }
        let mut counts = Vec::new();
        for trainer in &mut self.trainers {
            let Some(running) = trainer.running.take() else {
                continue;
            };
            // It may stop itself once more before it hears of the signal.
            running.signal(libc::SIGCONT);
            let text = running.succeed();
            let last = text.lines().last().and_then(|line| line.parse().ok());
            let count = last.ok_or_else(|| format!("the trainer ended with {text:?}"))?;
            counts.push((trainer.pid, count));
        }
        Ok(counts)
    }

    fn leases(&self) -> Vec<Lease> {
        let agents = 0..self.node.recordings();
        agents
            .flat_map(|agent| leases(&self.node.recording(agent)))
            .collect()
    }
}

fn struck(spans: &[Range<u64>], at: Range<u64>) -> bool {
    let meets = |span: &Range<u64>| span.start < at.end && at.start < span.end;
    spans.iter().any(meets)
}

/// What the judge looks at.
struct Evidence<'a> {
    history: &'a [Record],
    leases: &'a [Lease],
    struck: &'a [Range<u64>],
    /// When the engine was told to end.
    end_ns: u64,
}

impl Evidence<'_> {
    /// The trainer's channels were enabled, disabled, and ran, in the right order.
    fn leave(&self, pid: u32, totals: &mut Totals) -> Result<(), String> {
        // Of each channel: the lease that its last enable was by, and since when it is disabled.
        let mut channels: BTreeMap<(u32, u32), (Option<u64>, Option<u64>)> = BTreeMap::new();
        let own = |record: &&Record| record.pid == pid && record.at_ns <= self.end_ns;
        for record in self.history.iter().filter(own) {
            let at = record.at_ns;
            let key = (record.client, record.object);
            match record.kind {
                Kind::EnableEnd => {
                    let (used, disabled) = channels.entry(key).or_default();
                    *disabled = None;
                    if struck(self.struck, record.value..at) {
                        continue;
                    }
                    let given = |lease: &&Lease| lease.given_ns <= record.value;
                    let lease = self.leases.iter().rfind(given);
                    let lease = lease.map(|lease| lease.given_ns);
                    if lease.is_none() || lease == *used {
                        totals.ran_without_leave += 1;
                        return Err(format!(
                            "process {pid} was enabled at {at} without a lease; its last was given at {lease:?}"
                        ));
                    }
                    *used = lease;
                }
                Kind::DisableEnd => channels.entry(key).or_default().1 = Some(at),
                Kind::TsgRun if record.value == COMPUTE => {
                    let disabled = channels.values().map(|channel| channel.1);
                    let since = disabled.min().flatten();
                    if let Some(since) = since
                        && !struck(self.struck, since..at)
                    {
                        totals.ran_without_leave += 1;
                        return Err(format!("process {pid} ran at {at}, disabled since {since}"));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Behind each lease that no other follows in time, the trainer was disabled: grace is part of a lease's time.
    fn ends(&self, pid: u32, totals: &mut Totals) -> Result<(), String> {
        let own = || self.history.iter().filter(|record| record.pid == pid);
        let Some(up) = own().find(|record| record.kind == Kind::ChannelUp) else {
            return Ok(());
        };
        let down = own().find(|record| record.kind == Kind::ChannelDown);
        let down = down.map_or(u64::MAX, |record| record.at_ns);
        for lease in self.leases.iter().filter(|lease| lease.given_ns > up.at_ns) {
            let until = lease.until_ns;
            let (from, deadline) = (lease.given_ns, until + DEADLINE_NS);
            let next = |other: &Lease| other.given_ns > from && other.given_ns <= until;
            if struck(self.struck, from..deadline) || self.leases.iter().any(next) {
                continue;
            }
            let mut calls = own().filter(|record| record.kind == Kind::DisableBegin);
            let call = calls
                .find(|record| record.value >= from)
                .map(|record| record.value);
            if let Some(call) = call.filter(|call| *call <= deadline) {
                totals.judged_ends += 1;
                totals.worst_late_ns = totals.worst_late_ns.max(call.saturating_sub(until));
            } else if deadline < self.end_ns.min(down) {
                totals.ran_without_leave += 1;
                let number = lease.number;
                return Err(format!(
                    "process {pid} was not disabled within {} ms of the end of lease {number}, at {until}",
                    DEADLINE_NS / 1_000_000
                ));
            }
        }
        Ok(())
    }

    /// The kernels of a trainer, each once and in order; how many ended.
    fn units(&self, pid: u32, count: Option<u64>) -> Result<u64, String> {
        let tags = |kind| {
            let own = self
                .history
                .iter()
                .filter(move |record| record.pid == pid && record.kind == kind);
            own.map(|record| record.tag)
        };
        let (begun, ended) = (
            tags(Kind::KernelStart).count() as u64,
            tags(Kind::KernelEnd).count() as u64,
        );
        for kind in [Kind::KernelStart, Kind::KernelEnd] {
            if let Some((place, tag)) = (0..).zip(tags(kind)).find(|(place, tag)| place != tag) {
                return Err(format!(
                    "process {pid} ran unit {tag} where unit {place} was next"
                ));
            }
        }
        match count {
            Some(count) if count != ended || begun != ended => Err(format!(
                "process {pid} counts {count} units, and {ended} of {begun} ended"
            )),
            _ => Ok(ended),
        }
    }
}

/// Intervals between the iterations of a request, of all requests that nothing struck: how many, and how many too long.
fn late(history: &[Record], online: u32, tokens: u64, spans: &[Range<u64>]) -> (u64, u64) {
    let ends = history
        .iter()
        .filter(|record| record.pid == online && record.kind == Kind::KernelEnd);
    let ends: Vec<(u64, u64)> = ends.map(|record| (record.tag, record.at_ns)).collect();
    let mut counts = (0, 0);
    for pair in ends.windows(2) {
        let [(_, before), (tag, at)] = pair else {
            continue;
        };
        // Tags begin with 1, and each request with a prompt.
        if (tag - 1) % tokens != 0 && !struck(spans, *before..*at) {
            counts.0 += 1;
            counts.1 += u64::from(at - before > TPOT_NS);
        }
    }
    counts
}

/// What the agent says of its predictions.
fn prediction_error(node: &Node) -> Option<f64> {
    let output = node.tidegate(&["explain", "lease", "--output", "json"]);
    let json: Value = serde_json::from_slice(&output.stdout).ok()?;
    let leases = &json["gpus"][0]["leases"];
    (leases["predictions"].as_u64()? > 0).then(|| leases["prediction_error"].as_f64())?
}

fn schedule(seed: u64, broken: Break, totals: &mut Totals) -> Result<(), String> {
    let script = Script::draw(&mut Rng(seed));
    let mut stage = Stage::new(&script)?;
    let begun = monotonic_ns();
    let passed = || Duration::from_nanos(monotonic_ns() - begun);
    for (at, fault) in script.faults.clone() {
        std::thread::sleep(at.saturating_sub(passed()));
        stage.strike(&script, fault);
    }
    std::thread::sleep(PLAY.saturating_sub(passed()));
    if let Some(error) = prediction_error(&stage.node) {
        totals.errors.0 += error;
        totals.errors.1 += 1;
    }
    let (end_ns, online) = (monotonic_ns(), stage.online.pid());
    let (mut history, mut leases) = (Vec::new(), stage.leases());
    let counts = stage.end(&script)?;
    totals.agents += stage.agents;
    history.append(&mut Testimony::of(&stage.node).0);
    let judged: Vec<u32> = stage.trainers.iter().map(|trainer| trainer.pid).collect();
    match broken {
        Break::Nothing => {}
        Break::HalfTheLeases => leases.retain(|lease| lease.number % 2 == 0),
        Break::NoDisable => {
            history.retain(|record| !matches!(record.kind, Kind::DisableBegin | Kind::DisableEnd))
        }
        Break::NoUnit => history.retain(|record| {
            !judged.contains(&record.pid) || record.tag != 3 || record.kind != Kind::KernelStart
        }),
    }
    totals.leases += leases.len() as u64;
    totals.overruns += leases
        .iter()
        .filter(|lease| matches!(lease.over, Some((_, false))))
        .count() as u64;
    let (tokens, slow) = late(&history, online, script.tokens, &stage.struck);
    totals.tokens += tokens;
    totals.late += slow;
    let evidence = Evidence {
        history: &history,
        leases: &leases,
        struck: &stage.struck,
        end_ns,
    };
    for trainer in &stage.trainers {
        let pid = trainer.pid;
        let count = counts.iter().find(|own| own.0 == pid).map(|own| own.1);
        if count.is_none() && !trainer.killed {
            return Err(format!("process {pid} counted nothing"));
        }
        totals.units += evidence
            .units(pid, count)
            .inspect_err(|_| totals.wrong_adapters += 1)?;
        evidence.leave(pid, totals)?;
        evidence.ends(pid, totals)?;
    }
    Ok(())
}

/// Runs `count` schedules with the seeds from `seed` on; `progress` hears of each.
pub fn run(seed: u64, count: u64, broken: Break, mut progress: impl FnMut(u64, &Totals)) -> Totals {
    RECORDS.store(true, Ordering::Relaxed);
    let mut totals = Totals::default();
    for seed in seed..seed + count {
        let ran = crate::sweep::caught(|| schedule(seed, broken, &mut totals));
        if let Err(what) = ran {
            totals.violations.push((seed, what));
        }
        totals.schedules += 1;
        progress(seed, &totals);
    }
    totals
}
