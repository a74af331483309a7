//! An honest pair on a node that every user may use, and processes of another user that mean it ill.
//!
//! The honest pair is judged by the device's own history: whether its job is stopped for each busy edge, how long that
//! takes, and whether it is woken again. The device process goes ahead of all ordinary ones, strangers too: a GPU does
//! not wait for a processor.

use crate::peer::Peer;
use crate::schedules::Rng;
use crate::view::{disabled, status, status_value};
use crate::{Node, TRUSTING, ahead_of_programs, clock, wait_until};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
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
        if !nobody_can_be() {
            eprintln!("!!! SKIPPED: it takes root to become another user");
            return None;
        }
        // Strangers with the GPU would else have turns of their own.
        let gate = "[gate]\ncooldown = \"5ms\"\n[fair]\nmode = \"together\"\n";
        let node = Node::new(&[], &format!("{TRUSTING}{gate}{config}"));
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

/// What a stranger does.
#[derive(Debug)]
pub struct Attack {
    /// For a command line.
    pub name: &'static str,
    /// For people.
    what: &'static str,
    /// What it is told, one after the other; the last goes on. `{}` stands for a client of its own.
    words: &'static [&'static str],
}

const fn attack(name: &'static str, what: &'static str, words: &'static [&'static str]) -> Attack {
    Attack { name, what, words }
}

/// Every kind.
pub const ATTACKS: [Attack; 10] = [
    attack(
        "hook-connections",
        "connections to hook.sock",
        &["hold hook.sock 1500"],
    ),
    attack(
        "status-connections",
        "connections to status.sock",
        &["hold status.sock 1500"],
    ),
    attack("lingering-sockets", "sockets that linger", &["linger"]),
    attack(
        "lingering-file",
        "a control file that lingers",
        &["connect lingering", "hello offline lingering"],
    ),
    attack(
        "invented-channels",
        "invented channels",
        &[
            "connect",
            "hello offline greedy",
            "device 0 0",
            "invent {} 1024",
        ],
    ),
    attack(
        "storm",
        "long messages",
        &["connect", "hello offline storm", "storm 50 2000"],
    ),
    attack(
        "long-message",
        "a message of 120,000 changes",
        &["connect", "hello offline huge", "storm 1 120000"],
    ),
    attack(
        "notes",
        "notes",
        &["connect", "hello offline notes", "flood 20000"],
    ),
    attack(
        "large-message",
        "a message of 2 MiB",
        &["connect", "hello offline huge", "huge"],
    ),
    attack(
        "pages",
        "random pages",
        &[
            "connect",
            "hello offline page",
            "device 0 0",
            "scribble 500",
        ],
    ),
];

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
            let stranger = attacks(honest, attack.words);
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
    pub agent_deaths: u64,
    /// Most resident memory of the agent seen, MiB.
    pub rss_mib_max: f64,
    /// Longest turn of a control thread, ms, without the time in which other programs had its processor.
    pub turn_ms_max: f64,
    /// The same by the wall clock, ms.
    pub turn_wall_ms_max: f64,
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
        if nth % A_NODE == 0 || honest.is_none() {
            let mut fresh = Honest::beside_strangers("[limits]\nconnections_per_uid = 64\n")?;
            // Before any stranger was here: what one leaves behind when it goes is its doing, too.
            let alone = (0..A_NODE * EDGES).filter_map(|_| fresh.turn().ok());
            totals.alone.extend(alone);
            honest = Some(fresh);
        }
        let seed = seed + nth;
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

/// One to four strangers attack, each in its way, while the honest pair works.
fn schedule(honest: &mut Honest, seed: u64, totals: &mut Totals) -> Result<(), String> {
    let mut rng = Rng(seed);
    let before = honest.agent();
    let mut strangers = Vec::new();
    let mut kinds = Vec::new();
    for _ in 0..rng.between(1, 5) {
        let which = usize::try_from(rng.between(0, ATTACKS.len() as u64)).unwrap_or(0);
        kinds.push(ATTACKS[which].what);
        strangers.push(attacks(honest, ATTACKS[which].words));
    }
    let wrong = |what: String| format!("beside {}: {what}", kinds.join(", "));
    for _ in 0..EDGES {
        totals.beside.push(honest.turn().map_err(wrong)?);
    }
    let agent = honest.agent();
    if agent == 0 || agent != before {
        totals.agent_deaths += 1;
        return Err(wrong("the agent is gone".to_owned()));
    }
    totals.rss_mib_max = totals
        .rss_mib_max
        .max(status_value(agent, "VmRSS") / 1024.0);
    let asks = |words: &[&str]| {
        let from = clock::monotonic_ns();
        let asked = honest.node.tidegate(words);
        (asked, clock::monotonic_ns() - from)
    };
    totals.start.push(asks(&["--version"]).1);
    let (asked, took) = asks(&["status"]);
    totals.status.push(took);
    if !asked.status.success() {
        return Err(wrong("root's status is not answered".to_owned()));
    }
    let said = status(&honest.node);
    let turn_ms = |key: &str| said[key].as_u64().unwrap_or(0) as f64 / 1e6;
    totals.turn_ms_max = totals.turn_ms_max.max(turn_ms("longest_turn_own_ns"));
    totals.turn_wall_ms_max = totals.turn_wall_ms_max.max(turn_ms("longest_turn_ns"));
    drop(strangers);
    totals.beside.push(honest.turn().map_err(wrong)?);
    match forged(&honest.node) {
        Some(line) => Err(wrong(format!("a forged line: {line:?}"))),
        None => Ok(()),
    }
}

/// A stranger begins with its attack. What the agent refuses of it is its own affair.
fn attacks(honest: &Honest, words: &[&str]) -> Peer {
    let mut stranger = Peer::of_nobody(&honest.node);
    let (last, first) = words.split_last().unwrap_or((&"", &[]));
    for word in first {
        drop(stranger.try_ask(word));
    }
    let client = if last.contains("{}") {
        let made = stranger.try_ask("make 0 0");
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
