//! An honest pair on a node that every user may use, and processes of another user that mean it ill.
//!
//! The honest pair is judged by the device's own history: whether its job is stopped for each busy edge, how long that
//! takes, and whether it is woken again. The device process goes ahead of all ordinary ones, strangers too: a GPU does
//! not wait for a processor.

use crate::attacks::{ATTACKS, Attack};
use crate::limits::Limits;
use crate::peer::{NOBODY, Peer};
use crate::schedules::Rng;
use crate::view::{disabled, status, status_value};
use crate::{Node, TRUSTING, ahead_of_programs, clock, wait_until};
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use tidegate_vgpu::history::{Kind, Reader};

/// An honest online engine and an honest offline job.
#[derive(Debug)]
pub struct Honest {
    /// Where they are.
    pub node: Node,
    /// The engine.
    pub online: Peer,
    /// The job's RM client.
    pub client: u32,
    /// Within which the agent runs, where such can be made. Its processes end before it.
    pub limits: Option<Limits>,
    _offline: Peer,
    history: Reader,
}

impl Honest {
    /// None, loudly, where nobody can become another user.
    ///
    /// # Panics
    /// When the node cannot be made.
    #[must_use]
    pub fn beside_strangers(config: &str) -> Option<Self> {
        // Strangers with the GPU would else have turns of their own.
        Self::sharing_with_strangers(config, "together", 1)
    }

    /// The same with so many GPUs, which jobs share by the mode of `[fair]` that is given.
    ///
    /// # Panics
    /// When the node cannot be made.
    #[must_use]
    pub fn sharing_with_strangers(config: &str, fair: &str, gpus: u32) -> Option<Self> {
        if !nobody_can_be() {
            eprintln!("!!! SKIPPED: it takes root to become another user");
            return None;
        }
        let gate = format!("[gate]\ncooldown = \"5ms\"\n[fair]\nmode = \"{fair}\"\n");
        let mut node = Node::device_only(&["--gpus", &gpus.to_string()]);
        let limits = Limits::make();
        let hold = |command| match &limits {
            Some(limits) => limits.hold(command),
            None => command,
        };
        node.start_agent_by(&format!("{TRUSTING}{gate}{config}"), hold);
        open(node.dir(), 0o755);
        open(&node.run_dir(), 0o755);
        open(&node.vgpu_dir(), 0o777);
        for entry in std::fs::read_dir(node.vgpu_dir())
            .expect("it is there")
            .flatten()
        {
            open(&entry.path(), 0o777);
        }
        if !ahead_of_programs(&node.device) {
            eprintln!("!!! no SCHED_FIFO here: latencies are also those of the device process");
        }
        let mut online = Peer::attached(&node, "online", "");
        online.ask("idle 0");
        let mut offline = Peer::attached(&node, "offline", "honest");
        let (client, _) = offline.channels(0, 2);
        let history = Reader::open(&node.vgpu_dir()).expect("the device keeps a history");
        let mut honest = Self {
            node,
            online,
            client,
            limits,
            _offline: offline,
            history,
        };
        honest.becomes(false).expect("the job is woken");
        Some(honest)
    }

    /// Waits until the job's channels are disabled, or enabled.
    fn becomes(&mut self, want: bool) -> Result<(), String> {
        let all = || {
            let flags = disabled(&self.node, self.client);
            (!flags.is_empty() && flags.iter().all(|&flag| flag == want)).then_some(())
        };
        let state = if want { "stopped" } else { "woken" };
        wait_until(clock::DEADLINE, all).ok_or_else(|| format!("the honest job was not {state}"))
    }

    /// One busy edge; how long the last of the job's channels took to be disabled, ns.
    ///
    /// # Errors
    /// When the job was not stopped, or not woken again.
    pub fn turn(&mut self) -> Result<u64, String> {
        let edge = self.online.ask("busy 0");
        self.becomes(true)?;
        let at: u64 = edge
            .split(' ')
            .nth(1)
            .and_then(|ns| ns.parse().ok())
            .unwrap_or(0);
        let said = self.history.read_new().map_err(|error| error.to_string())?;
        let own = said
            .iter()
            .filter(|r| r.kind == Kind::DisableEnd && r.client == self.client);
        let last = own.map(|r| r.at_ns).max().unwrap_or(at);
        self.online.ask("idle 0");
        self.becomes(false)?;
        Ok(last.saturating_sub(at))
    }

    /// So many edges.
    ///
    /// # Panics
    /// When the job was not stopped for one, or not woken again.
    #[track_caller]
    pub fn turns(&mut self, times: u32) {
        for _ in 0..times {
            self.turn().expect("the gate works");
        }
    }

    /// A stranger that is attached as offline, with GPU 0.
    ///
    /// # Panics
    /// When it cannot be.
    #[track_caller]
    #[must_use]
    pub fn stranger(&self, job: &str) -> Peer {
        let mut peer = Peer::of_nobody(&self.node);
        peer.ask("connect");
        peer.ask(&format!("hello offline {job}"));
        peer.ask("device 0 0");
        peer
    }

    /// Process id of the agent; 0: it has ended.
    pub fn agent(&mut self) -> u32 {
        let agent = self.node.agent.as_mut();
        agent.map_or(0, |agent| match agent.child.try_wait() {
            Ok(None) => agent.pid(),
            _ => 0,
        })
    }
}

fn nobody_can_be() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let uids = status.lines().find(|line| line.starts_with("Uid:"));
    uids.is_some_and(|line| line.split_whitespace().nth(2) == Some("0"))
}

fn open(path: &Path, mode: u32) {
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(path, mode).expect("own file");
}

/// Latencies of an honest job's preemptions, ns, on one node: alone, and then beside strangers of one kind.
#[derive(Clone, Debug, Default)]
pub struct Paired {
    /// Before any was here.
    pub alone: Vec<u64>,
    /// While one attacks, is gone, and the next one comes.
    pub beside: Vec<u64>,
}

/// Measures so many edges of each, a new stranger for every tenth. None: nobody can become another user here.
///
/// # Errors
/// When the job was not stopped, or not woken again.
pub fn paired(attack: &Attack, edges: u32) -> Option<Result<Paired, String>> {
    let mut honest = Honest::beside_strangers("[limits]\nconnections_per_uid = 64\n")?;
    let measure = |honest: &mut Honest| -> Result<Paired, String> {
        let mut found = Paired::default();
        for _ in 0..edges {
            found.alone.push(honest.turn()?);
        }
        for _ in 0..edges.div_ceil(10) {
            let stranger = attacks(honest, NOBODY, attack.words);
            for _ in 0..9 {
                found.beside.push(honest.turn()?);
            }
            drop(stranger);
            found.beside.push(honest.turn()?);
        }
        Ok(found)
    };
    Some(measure(&mut honest).map_err(|what| format!("beside {}: {what}", attack.what)))
}

/// What came of all schedules.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Schedules run.
    pub schedules: u64,
    /// Seed and words.
    pub violations: Vec<(u64, String)>,
    /// Times the agent was gone.
    pub deaths: u64,
    /// How often each kind was drawn.
    pub kinds: BTreeMap<&'static str, u64>,
    /// The agents ran within the unit's limits.
    pub limited: bool,
    /// Most resident memory of the agent seen, MiB.
    pub rss_mib_max: f64,
    /// Longest turn of a control thread, ms, without the time in which other programs had its processor.
    pub turn_ms_max: f64,
    /// The same by the wall clock, ms.
    pub turn_wall_ms_max: f64,
    /// How long a new engine took from its start as a process until it was attached, at most, ns.
    pub greet_ns_max: u64,
    /// How long each of root's `tidegate status` took, its start as a process included, ns.
    status: Vec<u64>,
    /// The same program at the same time, asking nobody.
    start: Vec<u64>,
    /// Latencies of the honest job's preemptions, alone and beside strangers, ns.
    alone: Vec<u64>,
    beside: Vec<u64>,
}

impl Totals {
    /// p99 beside strangers by p99 alone; none: nothing was measured.
    #[must_use]
    pub fn honest_p99_ratio(&self) -> Option<f64> {
        Some(p99(&self.beside)? as f64 / p99(&self.alone)?.max(1) as f64)
    }

    /// p99 of the honest job's preemptions beside strangers, and alone, ms.
    #[must_use]
    pub fn honest_p99_ms(&self) -> [Option<f64>; 2] {
        [&self.beside, &self.alone].map(|values| p99(values).map(|ns| ns as f64 / 1e6))
    }

    /// p50, p99 and the longest of root's `tidegate status`, and of the start of that program alone, ms.
    #[must_use]
    pub fn status_ms(&self) -> [[f64; 3]; 2] {
        [&self.status, &self.start].map(|values| {
            let mut sorted = values.clone();
            sorted.sort_unstable();
            [50, 99, 100].map(|part| {
                let at = (sorted.len() * part / 100).min(sorted.len().saturating_sub(1));
                sorted.get(at).map_or(0.0, |ns| *ns as f64 / 1e6)
            })
        })
    }

    /// Edges that were measured beside strangers.
    #[must_use]
    pub fn edges(&self) -> usize {
        self.beside.len()
    }
}

fn p99(values: &[u64]) -> Option<u64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() * 99 / 100).copied()
}

/// Schedules on one node before it is made anew, and edges in each of its parts.
const A_NODE: u64 = 10;
const EDGES: u64 = 10;

/// Runs `schedules`, from `seed` on. None: nobody can become another user here.
pub fn run(seed: u64, schedules: u64, mut went: impl FnMut(u64, &Totals)) -> Option<Totals> {
    let mut totals = Totals::default();
    let mut honest = None;
    for nth in 0..schedules {
        let seed = seed + nth;
        if nth % A_NODE == 0 || honest.is_none() {
            let limits = "[limits]\nconnections_per_uid = 64\n";
            let mut fresh = Honest::sharing_with_strangers(limits, "together", 2)?;
            // Before any stranger was here: what one leaves behind when it goes is its doing, too.
            let alone: Result<Vec<u64>, String> =
                (0..A_NODE * EDGES).map(|_| fresh.turn()).collect();
            totals.limited = fresh.limits.is_some();
            match alone {
                Ok(alone) => totals.alone.extend(alone),
                Err(what) => {
                    totals.violations.push((seed, format!("alone: {what}")));
                    return Some(totals);
                }
            }
            honest = Some(fresh);
        }
        let broken = honest
            .as_mut()
            .and_then(|honest| schedule(honest, seed, &mut totals).err());
        totals.schedules += 1;
        if let Some(what) = broken {
            totals.violations.push((seed, what));
            honest = None;
        }
        went(seed, &totals);
    }
    Some(totals)
}

/// Tenants that mean it ill. The honest pair is a fourth.
const TENANTS: u32 = 3;

/// Three strangers attack, each in one or two ways at a time, while the honest pair works, root looks on and a new engine
/// comes.
fn schedule(honest: &mut Honest, seed: u64, totals: &mut Totals) -> Result<(), String> {
    let mut rng = Rng(seed);
    let before = honest.agent();
    let mut strangers = Vec::new();
    let mut kinds = Vec::new();
    for user in 0..TENANTS {
        for _ in 0..rng.between(1, 3) {
            let which = usize::try_from(rng.between(0, ATTACKS.len() as u64)).unwrap_or(0);
            let Attack { name, what, words } = &ATTACKS[which];
            *totals.kinds.entry(*name).or_default() += 1;
            kinds.push(*what);
            strangers.push(attacks(honest, NOBODY - user, words));
        }
    }
    let wrong = |what: String| format!("beside {}: {what}", kinds.join(", "));
    root_looks(honest, totals).map_err(wrong)?;
    for _ in 0..EDGES / 2 {
        totals.beside.push(honest.turn().map_err(wrong)?);
    }
    root_looks(honest, totals).map_err(wrong)?;
    let from = clock::monotonic_ns();
    let engine = Peer::attached(&honest.node, "online", "");
    totals.greet_ns_max = totals.greet_ns_max.max(clock::monotonic_ns() - from);
    drop(engine);
    for _ in EDGES / 2..EDGES {
        totals.beside.push(honest.turn().map_err(wrong)?);
    }
    let agent = honest.agent();
    if agent == 0 || agent != before {
        totals.deaths += 1;
        return Err(wrong("the agent is gone".to_owned()));
    }
    totals.rss_mib_max = totals
        .rss_mib_max
        .max(status_value(agent, "VmHWM") / 1024.0);
    let said = status(&honest.node);
    let turn_ms = |key: &str| said[key].as_u64().unwrap_or(0) as f64 / 1e6;
    totals.turn_ms_max = totals.turn_ms_max.max(turn_ms("longest_turn_own_ns"));
    totals.turn_wall_ms_max = totals.turn_wall_ms_max.max(turn_ms("longest_turn_ns"));
    if let Some(row) = unnamed(&said) {
        return Err(wrong(format!(
            "a refusal names nobody, or no reason: {row}"
        )));
    }
    drop(strangers);
    totals.beside.push(honest.turn().map_err(wrong)?);
    root_looks(honest, totals).map_err(wrong)?;
    match forged(&honest.node) {
        Some(line) => Err(wrong(format!("a forged line: {line:?}"))),
        None => Ok(()),
    }
}

/// Root asks for status, and for nothing but the program that does.
fn root_looks(honest: &Honest, totals: &mut Totals) -> Result<(), String> {
    let asks = |words: &[&str]| {
        let from = clock::monotonic_ns();
        let asked = honest.node.tidegate(words);
        (asked, clock::monotonic_ns() - from)
    };
    totals.start.push(asks(&["--version"]).1);
    let (asked, took) = asks(&["status"]);
    totals.status.push(took);
    if asked.status.success() {
        Ok(())
    } else {
        let said = String::from_utf8_lossy(&asked.stderr);
        Err(format!("root's status is not answered: {}", said.trim()))
    }
}

/// A row of refusals without a tenant or a reason.
fn unnamed(status: &Value) -> Option<Value> {
    let lacks = |row: &Value, key: &str| row[key].as_str().is_none_or(str::is_empty);
    let mut rows = status["refusals"].as_array().into_iter().flatten();
    rows.find(|row| lacks(row, "who") || lacks(row, "what"))
        .cloned()
}

/// A stranger is waited for so long before it begins with its attack.
const PATIENCE: Duration = Duration::from_secs(10);

/// A stranger begins with its attack. What the agent refuses of it, or leaves waiting, is its own affair.
fn attacks(honest: &Honest, user: u32, words: &[&str]) -> Peer {
    let mut stranger = Peer::of_user(&honest.node, user);
    let (last, first) = words.split_last().unwrap_or((&"", &[]));
    for word in first {
        drop(stranger.ask_within(PATIENCE, word));
    }
    let client = if last.contains("{}") {
        let made = stranger
            .ask_within(PATIENCE, "make 0 0")
            .unwrap_or_default();
        made.split(' ').nth(1).unwrap_or("0x0").to_owned()
    } else {
        String::new()
    };
    stranger.tell(&last.replace("{}", &client));
    stranger
}

/// A line of the agent's log that does not begin as its lines do.
fn forged(node: &Node) -> Option<String> {
    let log = std::fs::read_to_string(node.agent_log()).ok()?;
    let begins =
        |line: &str| line.starts_with("20") || line.starts_with("\u{1b}") || line.is_empty();
    log.lines().find(|line| !begins(line)).map(str::to_owned)
}

/// A row of status that names who was refused `what`.
#[must_use]
pub fn refusal(status: &Value, who: &str, what: &str) -> Option<Value> {
    let rows = status["refusals"].as_array()?;
    let is = |row: &&Value| {
        row["who"] == who && row["what"].as_str().is_some_and(|said| said.contains(what))
    };
    rows.iter().find(is).cloned()
}

/// What hostile tenants may cost: the time until root has its status, and a new engine is attached, both with the start of
/// their programs; the agent's own part of a turn; its memory; and p99 of the honest job's preemptions by that alone.
const ROOT_MOST_MS: f64 = 1_000.0;
const GREET_MOST_MS: f64 = 2_000.0;
const TURN_MOST_MS: f64 = 5.0;
const RSS_MOST_MIB: f64 = 256.0;
const RATIO_MOST: f64 = 1.5;
/// A machine with so many programs for each processor, or that stood still for longer, says nothing of times.
const LOAD_MOST: f64 = 0.5;
const STOOD_MOST_MS: f64 = 100.0;

/// What was beyond its bounds, and the figures. What is judged by time is only reported where the machine was busy before,
/// or stood still for so many ns.
#[must_use]
pub fn judged(totals: &Totals, load: f64, stood: Option<u64>) -> (Vec<String>, Value) {
    let stood_ms = stood.map(|ns| ns as f64 / 1e6);
    let [status_ms, start_ms] = totals.status_ms();
    let (greet_ms, ratio) = (totals.greet_ns_max as f64 / 1e6, totals.honest_p99_ratio());
    let quiet = load < LOAD_MOST && stood_ms.is_some_and(|ms| ms < STOOD_MOST_MS);
    if !quiet {
        eprintln!(
            "!!! {load:.1} programs run for each processor beside this, and the machine stood still for {:.0} ms: what is \
             judged by time is only reported",
            stood_ms.unwrap_or(f64::NAN)
        );
    }
    let bounds = [
        (true, "rss_mib_max", totals.rss_mib_max, RSS_MOST_MIB),
        (quiet, "root_ms_max", status_ms[2], ROOT_MOST_MS),
        (quiet, "greet_ms_max", greet_ms, GREET_MOST_MS),
        (quiet, "turn_ms_max", totals.turn_ms_max, TURN_MOST_MS),
        // Programs that are not optimised are no measure of it.
        (
            quiet && !cfg!(debug_assertions),
            "honest_p99_ratio",
            ratio.unwrap_or(0.0),
            RATIO_MOST,
        ),
    ];
    let beyond = bounds
        .iter()
        .filter(|(judged, _, found, most)| *judged && found > most);
    let beyond = beyond.map(|(_, what, found, most)| format!("{what}: {found:.1}, {most} at most"));
    let figures = serde_json::json!({
        "schedules": totals.schedules,
        "deaths": totals.deaths,
        "rss_mib_max": totals.rss_mib_max,
        "turn_ms_max": totals.turn_ms_max,
        "turn_wall_ms_max": totals.turn_wall_ms_max,
        "root_ms_max": status_ms[2],
        "root_ms_p50_p99": status_ms[..2],
        "start_ms_p50_p99_max": start_ms,
        "greet_ms_max": greet_ms,
        "honest_p99_ratio": ratio,
        "honest_p99_ms": totals.honest_p99_ms(),
        "kinds": totals.kinds,
        "within_unit_limits": totals.limited,
        "load_before": load,
        "standstill_ms_max": stood_ms,
        "judged_by_time": quiet,
    });
    (beyond.collect(), figures)
}

/// Programs that ran in the last minute, for each processor.
#[must_use]
pub fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text
        .split(' ')
        .next()
        .and_then(|word| word.parse::<f64>().ok());
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    first.unwrap_or(f64::MAX) / processors as f64
}
