//! Everything the agent can be told, by section.

use super::origin::Origin;
use super::tuning::Tuning;
use super::watching::Watching;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use tidegate_node::kinds::{Level, Method, Role};
use tidegate_policy::fair::{Class, UserShare};

/// Everything the agent can be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `node.run_dir`: sockets, lock, journal. A tmpfs.
    pub run_dir: PathBuf,
    /// `[identity]`
    pub identity: Identity,
    /// `[gate]`
    pub gate: Gate,
    /// `channel.level`: one level, or the best that works.
    pub level: LevelChoice,
    /// `channel.method`: how a level stops what runs, or the first way that is seen to.
    pub method: MethodChoice,
    /// `channel.unproven`: whose an RM client is when its process shows no control file.
    pub unproven: Unproven,
    /// `channel.prove_every`: how often each RM client is proven again while nothing is disabled; after
    /// every disable it is anyway. Bounds how long a client may be gone before that is noticed.
    pub prove_every: Duration,
    /// `channel.self_test`: how a level is tried before it is used.
    pub self_test: SelfTestKind,
    /// `channel.library`: the preloaded library, for the self-test; else beside the agent or in the
    /// system's library directories.
    pub library: Option<PathBuf>,
    /// `[fair]`
    pub fair: Fair,
    /// `[memory]`
    pub memory: Memory,
    /// `[slo]`
    pub slo: Slo,
    /// `[lease]`
    pub lease: Lease,
    /// `bench.ungated`: the longest block in which an operator may let offline run beside online; 0: none.
    pub ungated: Duration,
    /// `[agent_loss]`
    pub agent_loss: AgentLoss,
    /// `[limits]`
    pub limits: Limits,
    /// Times and counts of all sections.
    pub tuning: Tuning,
    /// `[metrics]` and `[history]`
    pub watching: Watching,
    /// `[log]`
    pub log: Log,
}

/// `[identity]`: which process is what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `trust_env_uids`: processes of these users may name either role by `TIDEGATE_ROLE`. A number,
    /// or "self" for the agent's own user.
    pub trust_env_uids: Vec<u32>,
    /// `labels`: the directory with files in which the node's own services say more of pods, containers
    /// and Slurm jobs ([`crate::identity::labels`]).
    pub labels: PathBuf,
    /// `pod_logs`: the directory in which the kubelet keeps the logs of pods, for their names
    /// ([`crate::identity::names`]).
    pub pod_logs: PathBuf,
    /// `rules`, in order; the first that matches decides. Nothing matches: ignore.
    pub rules: Vec<Rule>,
}

impl Default for Identity {
    fn default() -> Self {
        Self {
            trust_env_uids: Vec::new(),
            // Beside the agent's own directory, which is mounted into containers.
            labels: PathBuf::from("/run/tidegate-labels"),
            pod_logs: PathBuf::from("/var/log/pods"),
            rules: Vec::new(),
        }
    }
}

/// A Kubernetes class of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qos {
    /// No limits and no requests; batch pods of Koordinator too.
    BestEffort,
    /// Some.
    Burstable,
    /// Limits that are the requests.
    Guaranteed,
}

impl Qos {
    /// As rules name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BestEffort => "besteffort",
            Self::Burstable => "burstable",
            Self::Guaranteed => "guaranteed",
        }
    }
}

/// `[[identity.rules]]`. Every condition that is given must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// User of the process.
    pub uid: Option<u32>,
    /// A group of the process.
    pub gid: Option<u32>,
    /// The cgroup is this one or below it; `*` and `?` stand for characters of one component.
    pub cgroup: Option<String>,
    /// The unit of the system's service manager, with `*` and `?`.
    pub unit: Option<String>,
    /// Kubernetes' class of service, from the cgroup's path.
    pub qos: Option<Qos>,
    /// Id of the pod, from the cgroup's path.
    pub pod: Option<String>,
    /// Partition of the Slurm job, as the node's prolog wrote it down.
    pub slurm_partition: Option<String>,
    /// Labels of its pod, container or Slurm job, as somebody wrote them down.
    pub labels: BTreeMap<String, String>,
    /// What such a process is.
    pub role: Role,
    /// `weight`: of its job among the jobs of its user.
    pub weight: Option<u32>,
    /// `class`: when its job runs beside others.
    pub class: Option<Class>,
    /// `join`: processes that it matches and that name the same job are one, in however many containers.
    pub join: bool,
    /// Where it stands.
    pub origin: Origin,
}

impl Rule {
    /// A rule without conditions yet.
    #[must_use]
    pub const fn giving(role: Role) -> Self {
        Self {
            uid: None,
            gid: None,
            cgroup: None,
            unit: None,
            qos: None,
            pod: None,
            slurm_partition: None,
            labels: BTreeMap::new(),
            role,
            weight: None,
            class: None,
            join: false,
            origin: Origin::Default,
        }
    }
}

/// `[gate]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gate {
    /// `cooldown`: "learn" (2 x the longest decode gap), or a fixed time.
    pub cooldown: Cooldown,
    /// `max_gated`: a job gated this long without a turn is reported. Below vLLM's 300 s.
    pub max_gated: Duration,
    /// `long_gate`: what then.
    pub long_gate: LongGate,
    /// `breathe`: length of one turn under `long_gate = "breathe"`.
    pub breathe: Duration,
    /// `busy_suspect`: an online process busy this long without a launch is named in status.
    pub busy_suspect: Duration,
    /// `suspects`: whether such a process still keeps the gate closed.
    pub suspects: Suspects,
}

/// `[fair]`: several offline jobs on one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fair {
    /// `mode`: whether they take turns.
    pub mode: FairMode,
    /// `turn`: how long one runs before another has its turn.
    pub turn: Duration,
    /// `slots`: jobs for which a GPU's memory is divided before they are there.
    pub slots: u32,
    /// `users`: what users have among each other, by number; the others weigh 1 and may have all.
    pub users: BTreeMap<u32, UserShare>,
}

/// `fair.mode`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FairMode {
    /// "auto": what is best as far as is known; turns.
    Auto,
    /// "turns": one after the other.
    Turns,
    /// "together": all run at once.
    Together,
    /// "slices": all run at once, by timeslices where they can be set.
    Slices,
}

/// `[memory]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// `pool`: bytes of each GPU that online and offline share; by default none are, and every process
    /// keeps what it has.
    pub pool: u64,
    /// `pressure_every`: how often on average an online engine may run out of headroom.
    pub pressure_every: Duration,
    /// `headroom_min`: fewest bytes mapped beyond an online engine's use; 0: an eighth of the pool, 1.25
    /// GiB at most.
    pub headroom_min: u64,
    /// `headroom_max`: most.
    pub headroom_max: u64,
    /// `step`: what the headroom loses at a time, bytes.
    pub step: u64,
    /// `reclaim_deadline`: longest time a reclaim may take before online does without.
    pub reclaim_deadline: Duration,
    /// `restore_interval`: memory is given back to an offline job at most this often.
    pub restore_interval: Duration,
}

/// `[slo]`: hundredths of a percent; `None`: "off".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slo {
    /// `ttft`: by how much online's mean time to first token may rise.
    pub ttft: Option<u32>,
    /// `tpot`: the same of the mean time per further token.
    pub tpot: Option<u32>,
}

/// `[lease]`: what online promises its users while trainers run beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// `tpot`: mean time per further token of a request; `None`: "off", and no lease is given.
    pub tpot: Option<Duration>,
    /// `ttft`: time to first token; `None`: "off". `tpot` needs it.
    pub ttft: Option<Duration>,
    /// `margin`: what of the promise is left unused, in thousandths.
    pub margin: u32,
    /// `grace`: how much longer a lease may take before its trainer is disabled.
    pub grace: Duration,
}

impl Lease {
    /// The promise, where leases are on: time to first token and per further token.
    #[must_use]
    pub fn promise(&self) -> Option<(Duration, Duration)> {
        self.ttft.zip(self.tpot)
    }
}

impl Default for Lease {
    fn default() -> Self {
        Self {
            tpot: None,
            ttft: None,
            margin: 50,
            grace: Duration::from_micros(500),
        }
    }
}

impl Slo {
    /// Where only the other is set: of the default bounds of replay, half the rise of the time to first token, as
    /// what the agent measures is a mean over ten minutes.
    pub const USUAL: (u32, u32) = (100, 50);
}

/// `gate.cooldown`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cooldown {
    /// "learn"
    Learn,
    /// e.g. "5ms"
    Fixed(Duration),
}

/// `gate.long_gate`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongGate {
    /// "hold": stay closed.
    Hold,
    /// "breathe": one turn in the longest idle gap seen.
    Breathe,
}

/// `gate.suspects`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspects {
    /// "busy"
    Busy,
    /// "ignore"
    Ignore,
}

/// `channel.level`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelChoice {
    /// "auto": the first of L1, L2, L3, L5 that passes the self-test.
    Auto,
    /// This one or none.
    Forced(Level),
}

/// `channel.method`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodChoice {
    /// "auto": the first of them that stops work three times of three. Not [`Method::PreemptFirst`], which stops work as
    /// [`Method::Disable`] does: what it is for, that work yields at once, is nothing that the self-test sees.
    Auto,
    /// This one or none.
    Forced(Method),
}

impl MethodChoice {
    /// The first that may be used.
    #[must_use]
    pub const fn first(self) -> Method {
        match self {
            Self::Auto => Method::Disable,
            Self::Forced(method) => method,
        }
    }

    /// The one that needs most, of those that may be used: a channel of the agent's own.
    #[must_use]
    pub fn needs(self) -> Method {
        if self.allows(Method::Restart) {
            Method::Restart
        } else {
            self.first()
        }
    }

    /// Whether `method` may be used.
    #[must_use]
    pub fn allows(self, method: Method) -> bool {
        match self {
            Self::Auto => method != Method::PreemptFirst,
            Self::Forced(only) => only == method,
        }
    }
}

/// `channel.unproven`. A process in a sandbox that cannot pass files (gVisor) proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unproven {
    /// "refuse": its channels are not managed, its launches wait instead.
    Refuse,
    /// "first_claim": it belongs to the first live process that reported it. Any process may then have
    /// channels disabled that it does not own: only where all processes trust each other.
    FirstClaim,
}

/// `channel.self_test`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelfTestKind {
    /// "full": on GPU work of a child process, once per boot and driver. Takes a CUDA context on every
    /// GPU for that time.
    Full,
    /// "calls": whether the driver takes the calls.
    Calls,
}

/// `[agent_loss]`: what offline processes do when the agent is gone and does not come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentLoss {
    /// `action`
    pub action: OnAgentLoss,
    /// `max_hold`: after this long they run all the same and say so; "0s": never.
    pub max_hold: Duration,
}

/// `agent_loss.action`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnAgentLoss {
    /// "hold": launches wait for an agent.
    Hold,
    /// "run": launches pass.
    Run,
}

/// `[limits]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `connections_per_uid` on hook.sock, the agent's own user apart.
    pub connections_per_uid: usize,
    /// `rings_per_second`: a client that rings more often loses its page. A library that keeps its
    /// probing interval cannot exceed 10 000.
    pub rings_per_second: u32,
}

/// `[log]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// `format`
    pub format: LogFormat,
    /// `level`: as `tracing` filters read it.
    pub level: String,
}

/// `log.format`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// "text"
    Text,
    /// "json", one object a line.
    Json,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            run_dir: PathBuf::from(tidegate_proto::RUN_DIR),
            identity: Identity::default(),
            gate: Gate {
                cooldown: Cooldown::Learn,
                max_gated: Duration::from_secs(240),
                long_gate: LongGate::Hold,
                breathe: Duration::from_millis(20),
                busy_suspect: Duration::from_secs(5),
                suspects: Suspects::Busy,
            },
            level: LevelChoice::Auto,
            method: MethodChoice::Auto,
            unproven: Unproven::Refuse,
            prove_every: Duration::from_secs(1),
            self_test: SelfTestKind::Full,
            library: None,
            agent_loss: AgentLoss {
                action: OnAgentLoss::Hold,
                max_hold: Duration::ZERO,
            },
            limits: Limits {
                connections_per_uid: 1024,
                rings_per_second: 50_000,
            },
            fair: Fair {
                mode: FairMode::Auto,
                turn: Duration::from_millis(100),
                slots: 1,
                users: BTreeMap::new(),
            },
            memory: Memory {
                pool: 0,
                pressure_every: Duration::from_secs(15),
                headroom_min: 0,
                headroom_max: 16 << 30,
                step: 2 << 20,
                reclaim_deadline: Duration::from_millis(20),
                restore_interval: Duration::from_secs(1),
            },
            slo: Slo::default(),
            lease: Lease::default(),
            ungated: Duration::ZERO,
            tuning: Tuning::default(),
            watching: Watching::default(),
            log: Log {
                format: LogFormat::Text,
                level: "info".to_owned(),
            },
        }
    }
}
