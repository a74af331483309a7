//! Everything that is told to the control thread, and how it is woken.
//!
//! The gRPC side, the RM side and the command line meet only here: each knows the control thread and
//! none of the others. A message is put into a queue and a word is raised, which the control thread
//! waits on together with the doorbells of the pages.

use crate::config::{Method, Role};
use crate::identity::Credentials;
use crate::issue::Issued;
use crate::journal::Place;
use crate::prove::{Aged, Proof};
use crate::sys::SharedPage;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tidegate_proto::v1;

/// A message for the control thread.
#[derive(Debug)]
pub enum Input {
    /// A process said hello on its stream.
    Attached(Box<Newcomer>),
    /// An attached process said something.
    Said(u64, Said),
    /// The connection of a session ended.
    Disconnected(u64),
    /// A process ended, with all its sessions.
    Exited(Process),
    /// The prover looked at a session's clients.
    Proof(Proof),
    /// A proof was made again.
    Aged(Aged),
    /// An issue thread did, or failed to do, what it was asked.
    Issued(Issued),
    /// Channels that are in no list any more have been enabled, or are gone.
    Released(Vec<Place>),
    /// As [`Self::Released`], but these could not be enabled, and what the driver said of the first of them.
    Stuck {
        /// Enabled, or gone.
        free: Vec<Place>,
        /// Still disabled.
        stuck: Vec<Place>,
        /// The driver's words.
        why: String,
    },
    /// MPS runs, as this process, or no longer.
    Mps(Option<i32>),
    /// Somebody wants an answer.
    Ask(Ask),
    /// Other settings are in force.
    Configure(Box<Tunables>),
    /// An operator did something: a kind of event, and who did what.
    Audit(&'static str, String),
    /// Enable everything, then end.
    Stop,
    /// A successor waits: leave the channels as they are and end.
    HandOver,
}

impl Input {
    /// What became of `places`, of which `stuck` could not be enabled, each with the driver's words.
    pub fn released(places: impl Iterator<Item = Place>, stuck: Vec<(Place, String)>) -> Self {
        let is_free = |place: &Place| !stuck.iter().any(|(left, _)| left == place);
        let free = places.filter(is_free).collect();
        let Some((_, why)) = stuck.first().cloned() else {
            return Self::Released(free);
        };
        Self::Stuck {
            free,
            stuck: stuck.into_iter().map(|(place, _)| place).collect(),
            why,
        }
    }
}

/// A process, named for good: its id and the time it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    /// In the agent's pid namespace.
    pub pid: i32,
    /// Ticks since boot.
    pub started: u64,
}

/// A process that attached.
#[derive(Debug)]
pub struct Newcomer {
    /// The agent's number for this connection.
    pub session: u64,
    /// Who it is.
    pub peer: Credentials,
    /// What it is, and why.
    pub role: Role,
    /// For people.
    pub rule: String,
    /// The job it says it belongs to; empty: not said.
    pub job: String,
    /// Version of its library.
    pub version: String,
    /// Driver version it saw.
    pub driver: String,
    /// Plain counts with membarrier, else atomic adds.
    pub membarrier: bool,
    /// Generation of the agent it obeyed before; 0: none.
    pub last_agent_generation: u64,
    /// It takes orders about memory.
    pub takes_memory: bool,
    /// Its page; None for a client that could not take it.
    pub page: Option<SharedPage>,
    /// The control file it sent; not looked at yet.
    pub control_file: Option<OwnedFd>,
    /// Where it listens.
    pub outbox: Outbox,
}

/// The way back to one process. Full or closed: the process is not listening, and is cut off.
pub type Outbox = tokio::sync::mpsc::Sender<Tell>;

/// What a process reports.
#[derive(Debug)]
pub enum Said {
    /// A place of its page is this GPU.
    Device {
        /// The place.
        slot: u32,
        /// The GPU.
        uuid: [u8; 16],
    },
    /// Its RM objects.
    Rm {
        /// `changes` is everything there is, not what is new.
        snapshot: bool,
        /// In order.
        changes: Vec<RmChange>,
    },
    /// A scheduling call waits for [`Tell::Go`].
    Schedule {
        /// Names the call.
        ticket: u64,
        /// Its RM client.
        client: u32,
        /// A TSG or channel of it.
        object: u32,
    },
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
        kind: String,
        /// Its text.
        text: String,
    },
    /// Launches began or ceased to wait on the gate.
    GateWait(bool),
    /// Its descriptor of the UVM file.
    Uvm(i32),
    /// Its descriptor of the control file on which its channels are by now.
    ControlFile(i32),
    /// Something about memory, word for word.
    Memory(Box<v1::client_event::Event>),
}

/// Activity of one device, from a page or from a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// `generation << 1 | busy`.
    pub word: u64,
    /// Of the last busy edge.
    pub busy_since_ns: u64,
    /// When the work before the last idle edge was proven done.
    pub idle_since_ns: u64,
    /// Launches of the period that ended with it.
    pub launches: u64,
    /// The graph last launched in it.
    pub graph: u64,
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
    pub engine: tidegate_abi::class::Engine,
    /// Device instance, if known.
    pub device_instance: Option<u32>,
    /// The GPU, if UVM named it.
    pub uuid: Option<[u8; 16]>,
    /// A subdevice of its client on that GPU, for calls through the owner's file; 0: none seen.
    pub subdevice: u32,
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
    Set {
        /// Names the answer.
        seq: u64,
        /// Disable, else enable.
        disable: bool,
        /// At most 64 (client, channel).
        pairs: Vec<(u32, u32)>,
        /// The GPU.
        device_instance: u32,
        /// How to stop what runs.
        method: Method,
        /// Another of the same order follows.
        more: bool,
    },
    /// An order about memory, word for word.
    Memory(Box<v1::agent_command::Command>),
}

/// See [`Tell::Welcome`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The agent's number for the connection.
    pub session: u64,
    /// What the process is.
    pub role: Role,
    /// How its channels are controlled.
    pub level: crate::config::Level,
    /// How that stops what runs.
    pub method: Method,
    /// Which agent speaks.
    pub agent_generation: u64,
}

/// A question with a way to answer.
#[derive(Debug)]
pub enum Ask {
    /// How the node stands.
    Report(Answer<Box<v1::GetStatusResponse>>),
    /// Only the totals of its GPUs and jobs: quicker than a report, for whoever asks often.
    Usage(Answer<Box<v1::GetStatusResponse>>),
    /// Close a job's gate (None: of every job) until resumed; answers which jobs.
    Pause(Option<String>, Answer<Vec<String>>),
    /// Undo a pause.
    Resume(Option<String>, Answer<Vec<String>>),
    /// Let no offline job run, or let them again; answers which jobs there are.
    Drain(bool, Answer<Vec<String>>),
    /// How a process is attached, and why it runs or waits.
    Explain(i32, Answer<Box<Standing>>),
    /// What is known of a handle of one job's cache, or of every job's.
    Handle(u32, Option<String>, Answer<Vec<v1::HandleStatus>>),
}

/// How a process stands with the agent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Standing {
    /// Its connections.
    pub attached: Vec<v1::ProcessStatus>,
    /// Their jobs.
    pub jobs: Vec<v1::JobStatus>,
    /// Why it runs or waits.
    pub reasons: Vec<String>,
}

/// Settings of the control thread that may change while it runs.
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
}

/// Takes one answer.
pub type Answer<T> = tokio::sync::oneshot::Sender<T>;

/// Where messages for the control thread are put. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Mailbox {
    input_tx: crossbeam_channel::Sender<Input>,
    wake: Arc<AtomicU32>,
}

/// The control thread's end of a [`Mailbox`].
#[derive(Debug)]
pub struct Inbox {
    /// The messages.
    pub input_rx: crossbeam_channel::Receiver<Input>,
    /// Raised after a message was put.
    pub wake: Arc<AtomicU32>,
}

/// Messages that may wait for the control thread, which takes them faster than they can come. The
/// queue is made whole at the start, so that neither end allocates; a sender that finds it full waits.
const QUEUE: usize = 8_192;

/// Makes both ends.
#[must_use]
pub fn inbox() -> (Mailbox, Inbox) {
    let (input_tx, input_rx) = crossbeam_channel::bounded(QUEUE);
    let wake = Arc::new(AtomicU32::new(0));
    let mailbox = Mailbox {
        input_tx,
        wake: Arc::clone(&wake),
    };
    (mailbox, Inbox { input_rx, wake })
}

impl Mailbox {
    /// Puts a message and wakes the control thread. After its end messages vanish.
    pub fn put(&self, input: Input) {
        if self.input_tx.send(input).is_ok() {
            self.wake.fetch_add(1, Ordering::Release);
            crate::sys::futex_wake(&self.wake);
        }
    }
}
