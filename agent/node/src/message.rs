//! Messages to the shell, and messages from the shell to processes. They contain no types of the wire format: the
//! caller decodes and bounds them first.

pub mod memory;

use crate::beats::BeatRef;
use crate::clock::ProcessClock;
use crate::file::{File, SentFile};
use crate::kinds::{Level, Method, Process, Role, Switch, Tenant};
use crate::page::{Activity, LeaseWords, PageRef};
use crate::task::{Issued, Released, Sliced};
use crate::text::Text;
use crate::work::Training;
use memory::{MemoryOrder, MemorySaid};
use std::collections::BTreeMap;
use std::fmt;
use tidegate_abi::class::Engine;
use tidegate_policy::fair::{Gives, UserShare};

/// A message for the shell.
#[derive(Debug)]
pub enum Input {
    /// A process sent its greeting on its stream.
    Attached(Box<Newcomer>),
    /// An attached process sent a message.
    Said(u64, Said),
    /// The connection of a session ended.
    Disconnected(u64),
    /// A process ended, and all of its sessions with it.
    Exited(Process),
    /// The prover checked a session's clients.
    Proof(Proof),
    /// An ownership check was repeated.
    Aged(Aged),
    /// An issue thread did its task, or failed.
    Issued(Issued),
    /// Channels that are in no list any more were enabled, or could not be.
    Released(Released),
    /// An issue thread set timeslices, or failed.
    Sliced(Sliced),
    /// MPS started or ended. While it runs, clients of processes that sent no file are not managed.
    Mps(bool),
    /// Other settings are in force.
    Configure(Box<Tunables>),
    /// Enable everything, then end.
    Stop,
    /// A successor waits: leave the channels as they are, and end.
    HandOver,
}

/// What the kernel says about a process, as far as the shell uses it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Its process id.
    pub process: Process,
    /// Its effective user when it connected.
    pub uid: u32,
    /// `comm`.
    pub name: Text,
    /// The tenant whose rate limits it uses.
    pub tenant: Tenant,
    /// Where it runs.
    pub whereabouts: Whereabouts,
}

/// Where a process runs, by the names on which metrics are joined. A field is empty if it does not apply or is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Whereabouts {
    /// Unit of the system's service manager.
    pub unit: Text,
    /// The container's id.
    pub container: Text,
    /// The pod's UID.
    pub pod_uid: Text,
    /// Its namespace.
    pub namespace: Text,
    /// Its name.
    pub pod: Text,
    /// Number of the Slurm job.
    pub slurm_job: Text,
}

/// How many digits of a container's id tools print.
const SHORT_ID: usize = 12;

impl Whereabouts {
    /// The most specific of these, for operators.
    #[must_use]
    pub fn text(&self) -> String {
        let short: String = self.container.chars().take(SHORT_ID).collect();
        if !self.pod.is_empty() {
            format!("{}/{}", self.namespace, self.pod)
        } else if !self.slurm_job.is_empty() {
            format!("slurm {}", self.slurm_job)
        } else if !self.pod_uid.is_empty() {
            format!("pod {}", self.pod_uid)
        } else if !short.is_empty() {
            format!("container {short}")
        } else {
            self.unit.to_string()
        }
    }
}

/// The library in a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Library {
    /// Its version.
    pub version: Text,
    /// The driver version that it saw.
    pub driver: Text,
    /// It counts launches in plain words, with membarrier; otherwise by atomic adds.
    pub membarrier: bool,
    /// It accepts orders about memory.
    pub takes_memory: bool,
    /// Its page says whether it has work, if the agent asks.
    pub says_work: bool,
    /// It has words for leases: a trainer takes them, and an online engine reports its iterations.
    pub knows_leases: bool,
}

/// The role that a process asked for, and the result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// The role; None: it asked for none.
    pub role: Option<Role>,
    /// Why it did not get the role, human-readable; empty: it did, or asked for none.
    pub refused: String,
}

/// A process that attached.
#[derive(Debug)]
pub struct Newcomer {
    /// The agent's number for this connection.
    pub session: u64,
    /// The process.
    pub peer: Peer,
    /// Its role.
    pub role: Role,
    /// Why it has that role, human-readable.
    pub rule: String,
    /// The role that it asked for.
    pub asked: Asked,
    /// The weight and class that it gives its job.
    pub gives: Gives,
    /// The job it belongs to if it is offline. Jobs of different owners never mix.
    pub job: Text,
    /// The rule that makes one job of all processes that it matches and that name the same; None: the job is its
    /// container's, or its user's.
    pub joined_by: Option<Text>,
    /// Its library.
    pub library: Library,
    /// Generation of the agent that it obeyed before; 0: none.
    pub last_agent_generation: u64,
    /// Its clock, on which all of its times are.
    pub clock: ProcessClock,
    /// Its page; None: it could not receive one.
    pub page: Option<PageRef>,
    /// The control file that it sent; not checked yet.
    pub control_file: Option<SentFile>,
    /// Its stream, to which messages go.
    pub outbox: Box<dyn Outbox>,
}

/// A message of a process.
#[derive(Debug)]
pub enum Said {
    /// A device of its page is this GPU.
    Device {
        /// Index of the device in the page.
        slot: u32,
        /// The GPU.
        uuid: [u8; 16],
    },
    /// Its RM objects.
    Rm {
        /// `changes` is everything that exists, not only what is new.
        snapshot: bool,
        /// In order.
        changes: Vec<RmChange>,
    },
    /// A scheduling call waits for [`Tell::Go`].
    Schedule(Ticket),
    /// An edge of a process without a page.
    Edge {
        /// Place of the device.
        slot: u32,
        /// Its activity afterwards.
        edge: Activity,
    },
    /// The answer to [`Tell::Set`].
    Channels {
        /// Which.
        seq: u64,
        /// RM status.
        status: u32,
        /// errno.
        errno: i32,
        /// When the ioctl was entered.
        entered_ns: u64,
        /// When it returned.
        returned_ns: u64,
        /// The method that was carried out; None: the library is of an age that knows of none.
        method: Option<Method>,
    },
    /// A device is busy without launches for a reason, or (0) is no longer.
    Suspect {
        /// Place of the device.
        slot: u32,
        /// `BusyReason` of the protocol.
        reason: u32,
    },
    /// Something worth an event.
    Note {
        /// Its kind.
        kind: Text,
        /// Its text.
        text: Text,
    },
    /// Launches began or ceased to wait on the gate.
    GateWait(bool),
    /// Its descriptor of the UVM file.
    Uvm(i32),
    /// Its descriptor of the control file on which its channels are by now.
    ControlFile(i32),
    /// Something about memory.
    Memory(Box<MemorySaid>),
    /// What its training has done.
    Training(Box<Training>),
    /// Useful units of work since the greeting, of a process without a page.
    Progress(u64),
    /// Its descriptor of the page on which it says its iterations.
    Beats(i32),
    /// What its trainer could run next, of a process without a page.
    Unit(Offer),
    /// Its trainer ended a lease, of a process without a page.
    LeaseOver {
        /// Place of the device.
        slot: u32,
        /// Which.
        lease: u64,
        /// Units that ran.
        units: u64,
    },
}

/// A change in a process' RM objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RmChange {
    /// A channel came to be.
    ChannelUp(Channel),
    /// A channel went.
    ChannelDown {
        /// Its RM client.
        client: u32,
        /// The channel.
        channel: u32,
    },
    /// A client came to be.
    ClientUp(u32),
    /// A client went, and all it held.
    ClientDown(u32),
}

/// A channel as its process reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Its RM client.
    pub client: u32,
    /// The channel.
    pub channel: u32,
    /// Its TSG, or itself.
    pub tsg: u32,
    /// What it feeds.
    pub engine: Engine,
    /// Device instance, if known.
    pub device_instance: Option<u32>,
    /// The GPU, if UVM named it.
    pub uuid: Option<[u8; 16]>,
    /// A subdevice of its client on that GPU, for calls through the owner's file; 0: none seen.
    pub subdevice: u32,
}

impl Channel {
    /// What names it on the node.
    #[must_use]
    pub const fn pair(&self) -> (u32, u32) {
        (self.client, self.channel)
    }
}

/// A scheduling call that waits.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    /// Names it.
    pub ticket: u64,
    /// Its client.
    pub client: u32,
    /// TSG or channel.
    pub object: u32,
}

/// The way to one process. Dropped, it is cut off.
pub trait Outbox: fmt::Debug + Send {
    /// Tells it something; false when it does not listen.
    fn tell(&self, tell: Tell) -> bool;
}

/// What a process is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Tell {
    /// What it is; the first message.
    Welcome(Welcome),
    /// The launch gate of a device, for a process without a page.
    Gate {
        /// Place of the device.
        slot: u32,
        /// Launches wait.
        closed: bool,
    },
    /// A held scheduling call may pass.
    Go {
        /// Which.
        ticket: u64,
    },
    /// Disable or enable own channels.
    Set(SetChannels),
    /// An order about memory.
    Memory(Box<MemoryOrder>),
    /// It is to say its iterations.
    BeatsWanted,
    /// The lease of a device, for a process without a page.
    Lease {
        /// Place of the device.
        slot: u32,
        /// The lease.
        lease: LeaseWords,
    },
}

/// What a trainer could run next, as it says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// So many in a row; 0: it takes no lease.
    pub most: u32,
    /// A backward unit.
    pub backward: bool,
    /// Tokens of its window.
    pub tokens: u64,
    /// What one takes alone, ns; 0: it does not say.
    pub unit_ns: u64,
}

/// See [`Tell::Set`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetChannels {
    /// Names the answer.
    pub seq: u64,
    /// What to do.
    pub switch: Switch,
    /// At most 64 (client, channel).
    pub pairs: Vec<(u32, u32)>,
    /// The GPU.
    pub device_instance: u32,
    /// How to stop what runs.
    pub method: Method,
    /// Another of the same order follows.
    pub more: bool,
}

/// See [`Tell::Welcome`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The agent's number for the connection.
    pub session: u64,
    /// What the process is.
    pub role: Role,
    /// How its channels are controlled.
    pub level: Level,
    /// How that stops what runs.
    pub method: Method,
    /// Which agent speaks.
    pub agent_generation: u64,
}

/// What the prover is asked.
#[derive(Debug)]
pub enum Claim {
    /// Look at the file a session sent, before anything else is asked of it.
    File {
        /// The session.
        session: u64,
        /// What it sent.
        file: SentFile,
    },
    /// Take a copy of a process' control file, and look at it as at one that was sent.
    Taken {
        /// The session.
        session: u64,
        /// Its process.
        process: Process,
        /// The process' own descriptor.
        fd: i32,
    },
    /// Does `client` belong to the process behind this file?
    Client {
        /// The session.
        session: u64,
        /// Its control file.
        file: File,
        /// Its process, whose other control files are tried when this one does not own the client.
        process: Process,
        /// The client it reports.
        client: u32,
    },
    /// Map the page on which a process says its iterations.
    Beats {
        /// The session.
        session: u64,
        /// Its process.
        process: Process,
        /// The process' own descriptor.
        fd: i32,
    },
    /// Take a copy of a process' UVM file.
    Uvm {
        /// The session.
        session: u64,
        /// Its process.
        process: Process,
        /// The process' own descriptor.
        fd: i32,
    },
}

/// What the prover found.
#[derive(Debug)]
pub enum Proof {
    /// The file is the driver's control device (None: it is not).
    File {
        /// The session.
        session: u64,
        /// To be used for this session only.
        file: Option<File>,
    },
    /// Whether the client is the session's own.
    Client {
        /// The session.
        session: u64,
        /// The client.
        client: u32,
        /// The file it was created on; None: not proven.
        file: Option<File>,
    },
    /// The client is one of a process whose GPU work goes through MPS.
    Mps {
        /// The session.
        session: u64,
        /// The client.
        client: u32,
    },
    /// The page on which it says its iterations (None: it is not one, or cannot be had).
    Beats {
        /// The session.
        session: u64,
        /// To be read for this session only.
        page: Option<BeatRef>,
    },
    /// A copy of its UVM file (None: it is not, or cannot be had).
    Uvm {
        /// The session.
        session: u64,
        /// Only ever held.
        file: Option<File>,
    },
}

/// A proof to be made again.
#[derive(Debug)]
pub struct Again {
    /// The session.
    pub session: u64,
    /// The client it proved.
    pub client: u32,
    /// Names the question in the answer.
    pub seq: u64,
    /// The file it was proven on.
    pub file: File,
}

/// What became of a proof.
#[derive(Clone, Copy, Debug)]
pub struct Aged {
    /// [`Again::session`]
    pub session: u64,
    /// [`Again::client`]
    pub client: u32,
    /// [`Again::seq`]
    pub seq: u64,
    /// Whose it is by now; None: the driver does not say.
    pub owner: Option<Owner>,
}

/// Whose a client is, as seen from one open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// It was made on this file.
    Own,
    /// It was made on another.
    Foreign,
    /// There is none of that number.
    Nobody,
}

/// Settings of the shell that may change while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunables {
    /// The policy's.
    pub policy: tidegate_policy::config::Config,
    /// Rings of one page per second that are believed.
    pub rings_per_second: u32,
    /// How often proofs are made again, beside after every disable.
    pub prove_every_ns: u64,
    /// An issue thread without an answer for this long is stalled.
    pub stall_ns: u64,
    /// How long a process may take to disable its own channels.
    pub answer_ns: u64,
    /// What users have among others, by number; whoever is not here has the default.
    pub users: BTreeMap<u32, UserShare>,
}
