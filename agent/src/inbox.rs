//! Everything that is told to the control thread, and how it is woken.
//!
//! The gRPC side, the RM side and the command line meet only here: each knows the control thread and
//! none of the others. A message is put into a queue and a word is raised, which the control thread
//! waits on together with the doorbells of the pages.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
pub use tidegate_node::Input as NodeInput;
pub use tidegate_node::message::{
    Asked, Channel, Library, Newcomer, Peer, RmChange, Said, SetChannels, Tell, Ticket, Tunables,
    Welcome,
};
use tidegate_node::ports::Outbox;
use tidegate_node::spans::Span;
use tidegate_node::text::Text;
use tidegate_proto::v1;
use tokio::sync::OwnedSemaphorePermit;

/// A message for the control thread.
#[derive(Debug)]
pub enum Input {
    /// For the shell of the node; of those that a process sends, so many may be here.
    Node(NodeInput, Option<Ahead>),
    /// MPS runs, as this process, or no longer.
    Mps(Option<i32>),
    /// Somebody wants an answer.
    Ask(Ask),
    /// An operator did something: a kind of event, and who did what.
    Audit(&'static str, String),
}

impl From<NodeInput> for Input {
    fn from(input: NodeInput) -> Self {
        Self::Node(input, None)
    }
}

/// Held by a message of a process while it waits here, of which each process and each tenant may have so many.
#[derive(Debug)]
pub struct Ahead {
    /// The process'.
    pub session: OwnedSemaphorePermit,
    /// Its tenant's; None: that has no limit.
    pub tenant: Option<OwnedSemaphorePermit>,
    /// What else is held for it: room for its bytes.
    pub room: Option<Arc<dyn Any + Send + Sync>>,
}

/// The way to one process' stream. Full or closed: the process is not listening, and is cut off.
#[derive(Debug)]
pub struct Stream(pub tokio::sync::mpsc::Sender<Tell>);

impl Outbox for Stream {
    fn tell(&self, tell: Tell) -> bool {
        self.0.try_send(tell).is_ok()
    }
}

/// A question with a way to answer.
#[derive(Debug)]
pub enum Ask {
    /// How the node stands.
    Report(Answer<Box<v1::GetStatusResponse>>),
    /// When online was busy on each GPU since then, and from when on that is complete.
    Busy(u64, Answer<Vec<BusySpans>>),
    /// Only the totals of its GPUs and jobs: quicker than a report, for whoever asks often.
    Usage(Answer<Box<v1::GetStatusResponse>>),
    /// Close a job's gate (None: of every job) until resumed; answers which jobs.
    Pause(Option<String>, Answer<Vec<String>>),
    /// Undo a pause.
    Resume(Option<String>, Answer<Vec<String>>),
    /// What was said of jobs by name, for those that begin from here on: paused, or not although all others are.
    Steered(Vec<(Text, bool)>),
    /// Let no offline job run, or let them again; answers which jobs there are.
    Drain(bool, Answer<Vec<String>>),
    /// Let offline run beside online; answers which jobs there are, or why not.
    Ungate(Ungate, Answer<Result<Vec<String>, String>>),
    /// That block is over, if it still stands.
    Regate(u64),
    /// How a process is attached, and why it runs or waits.
    Explain(i32, Answer<Box<Explanation>>),
    /// What is known of a handle of one job's cache, or of every job's.
    Handle(u32, Option<String>, Answer<Vec<v1::HandleStatus>>),
}

/// An order to let offline run beside online.
#[derive(Clone, Debug)]
pub struct Ungate {
    /// Names the block.
    pub block: u64,
    /// How long at most, ns.
    pub length_ns: u64,
    /// Who asks.
    pub who: String,
}

/// When online was busy on one GPU, and from when on that is complete.
pub type BusySpans = (Vec<Span>, u64);

/// How a process stands with the agent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Explanation {
    /// Its connections.
    pub attached: Vec<v1::ProcessStatus>,
    /// Their jobs.
    pub jobs: Vec<v1::JobStatus>,
    /// Why it runs or waits.
    pub reasons: Vec<String>,
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
    pub fn put(&self, input: impl Into<Input>) {
        if self.input_tx.send(input.into()).is_ok() {
            self.wake.fetch_add(1, Ordering::Release);
            crate::sys::futex_wake(&self.wake);
        }
    }

    /// As [`Self::put`], but a message that finds the queue full vanishes.
    pub fn offer(&self, input: Input) {
        if self.input_tx.try_send(input).is_ok() {
            self.wake.fetch_add(1, Ordering::Release);
            crate::sys::futex_wake(&self.wake);
        }
    }
}
