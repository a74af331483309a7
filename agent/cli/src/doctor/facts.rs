//! What was found on the node. Plain data: nothing here was judged.
//!
//! A fact that could not be had is an `Err` with the reason, in words for the evidence.

use std::path::PathBuf;
use tidegate_agent::channels::level;
use tidegate_agent::channels::obstacle::Obstacle;
use tidegate_agent::config::Config;
use tidegate_agent::host::rundir::Holder;
use tidegate_agent::standing::Standing;
use tidegate_driver::device::Device;
use tidegate_driver_patch::module::Module;
use tidegate_proto::v1;

/// A fact, or why it is not known.
pub type Found<T> = Result<T, String>;

/// Everything.
#[derive(Debug)]
pub struct Facts {
    /// Which GPUs were looked at.
    pub device: Device,
    /// Version of this command line.
    pub version: &'static str,
    /// None where only the library was asked for.
    pub node: Option<Node>,
    /// None where it was not asked for.
    pub library: Option<Library>,
}

/// All of the node but the library's file.
#[derive(Debug)]
pub struct Node {
    /// Kernel and limits.
    pub system: System,
    /// Driver and GPUs.
    pub driver: Driver,
    /// The configuration's file, and what stands in it.
    pub config: (PathBuf, Found<Config>),
    /// The agent's directory.
    pub run_dir: RunDir,
    /// What the agent says.
    pub agent: Agent,
    /// Agents among the processes, whoever started them.
    pub agents: Vec<AgentProcess>,
    /// Processes that use the GPUs.
    pub processes: Vec<GpuProcess>,
    /// Processes that this user may not look into.
    pub hidden: Vec<String>,
}

/// Kernel and limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct System {
    /// `uname -r`.
    pub kernel: String,
    /// Where the cgroup2 hierarchy is mounted; None: nowhere.
    pub cgroup2: Option<PathBuf>,
    /// `membarrier(PRIVATE_EXPEDITED)`.
    pub membarrier: Found<()>,
    /// `futex_waitv`.
    pub futex_waitv: bool,
    /// `pidfd_open` and `pidfd_getfd`.
    pub pidfd: Found<()>,
    /// SCHED_FIFO, tried by this process.
    pub fifo: Found<()>,
    /// How many files the agent, or else this process, may hold open.
    pub open_files: Found<u64>,
    /// The kernel's clock source.
    pub clock: Option<String>,
}

/// Driver and GPUs.
#[derive(Debug)]
pub struct Driver {
    /// Device files, and whether this process may open them.
    pub files: Vec<(String, Found<()>)>,
    /// What it says of itself.
    pub answer: Found<Answer>,
    /// The loaded module.
    pub loaded: Option<LoadedModule>,
    /// Version of the driver's library (libcuda), where one is installed.
    pub library: Option<String>,
    /// The module's file, as modprobe would find it.
    pub file: Found<(PathBuf, Module)>,
    /// Version of the firmware of each GPU, as /proc/driver/nvidia says.
    pub firmware: Vec<(String, String)>,
    /// What rules the channel levels out; None: the agent was asked instead, or there is no driver.
    pub obstacles: Option<Found<Vec<Obstacle>>>,
    /// What there is to be known of MPS' pipe directory where no server is found.
    pub mps_left_over: Option<String>,
    /// The level that the self-test reaches; None: the agent was asked instead.
    pub level: Option<Found<level::Choice>>,
}

/// What the driver says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Its version.
    pub version: String,
    /// GPUs that this process can open.
    pub gpus: usize,
    /// GPUs that it cannot, and why.
    pub hidden: Vec<String>,
}

/// The module in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedModule {
    /// `/sys/module/nvidia/version`.
    pub version: String,
    /// First line of `/proc/driver/nvidia/version`.
    pub banner: String,
    /// Its build id, where the kernel keeps it.
    pub build_id: Option<Vec<u8>>,
}

/// The agent's directory.
#[derive(Debug)]
pub struct RunDir {
    /// Where.
    pub path: PathBuf,
    /// The directory itself.
    pub entry: Found<Entry>,
    /// Whether it lies in memory.
    pub in_memory: bool,
    /// Who holds, or last held, the lock.
    pub holder: Option<Holder>,
    /// Whether that process is a living agent.
    pub holder_lives: bool,
    /// The sockets by name.
    pub sockets: Vec<(&'static str, Found<Entry>)>,
    /// Number of the group that may use control.sock.
    pub group: Option<u32>,
    /// What is marked in the journal; None: there is no journal.
    pub journal: Found<Option<Journal>>,
    /// Journals that an agent could not read and has set aside.
    pub unreadable: Vec<PathBuf>,
}

/// Mode and owner of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// What the journal says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Journal {
    /// Generation of the last agent.
    pub generation: u64,
    /// Channels that may be disabled.
    pub marked: usize,
    /// An agent is handing over to a successor.
    pub handing_over: bool,
}

/// What the agent says.
#[derive(Debug)]
pub enum Agent {
    /// Nobody listens.
    Absent,
    /// Somebody listens and does not answer, or may not be asked.
    Silent(String),
    /// Its status.
    Answers(Box<v1::GetStatusResponse>),
}

impl Agent {
    /// Its status, if it answers.
    #[must_use]
    pub fn status(&self) -> Option<&v1::GetStatusResponse> {
        match self {
            Self::Answers(status) => Some(status),
            _ => None,
        }
    }
}

/// A process named tidegate-agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentProcess {
    /// Its id.
    pub pid: i32,
    /// Its `--device`; None: its command line cannot be read.
    pub device: Option<String>,
}

/// A process that uses the GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuProcess {
    /// Its id.
    pub pid: i32,
    /// Its `comm`.
    pub name: String,
    /// How it stands to the library.
    pub standing: Standing,
    /// It has NCCL mapped.
    pub nccl: bool,
    /// Its command line or environment names vLLM.
    pub vllm: bool,
    /// `TIDEGATE_ROLE`.
    pub wished_role: Option<String>,
    /// `VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS`.
    pub vllm_timeout_s: Option<u64>,
    /// `TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC`.
    pub nccl_timeout_s: Option<u64>,
    /// `WORLD_SIZE`: ranks of its process group.
    pub ranks: Option<u64>,
}

/// The library's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// Where; None: none was found.
    pub path: Option<PathBuf>,
    /// What it asks of the programs it is loaded into.
    pub needs: Found<Needs>,
}

/// What a shared object asks of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Newest version of glibc it asks for, e.g. (2, 28).
    pub glibc: Option<(u32, u32)>,
    /// Libraries it must find.
    pub libraries: Vec<String>,
}
