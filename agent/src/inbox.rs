//! The inbox of the control thread: every message to it, and how it is woken.
//!
//! The gRPC side, the RM side and the operators' commands meet only here: each knows the control thread and none of the
//! others. A sender puts a message into a queue and raises a word. The control thread waits on that word together with
//! the doorbells of the pages.
//!
//! There are four queues, so that no sender waits behind a less important one: answers of issue threads, questions of
//! operators, messages of processes, and questions of readers.

use crate::standing::Standing;
use crossbeam_channel::{Receiver, Sender, bounded};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
pub use tidegate_node::Input as NodeInput;
pub use tidegate_node::message::{
    Asked, Channel, Library, Newcomer, Offer, Peer, RmChange, Said, SetChannels, Tell, Ticket,
    Tunables, Welcome,
};
use tidegate_node::ports::Outbox;
use tidegate_node::spans::Span;
use tidegate_node::text::Text;
use tidegate_policy::lease::record::Known;
use tidegate_proto::v1;
use tokio::sync::OwnedSemaphorePermit;

/// A message for the control thread.
#[derive(Debug)]
pub enum Input {
    /// For the shell of the node. Messages of processes are limited in number by the second field.
    Node(NodeInput, Option<Ahead>),
    /// The process of the MPS daemon; None: MPS has ended.
    Mps(Option<i32>),
    /// The processes that use the GPUs.
    Users(Vec<User>),
    /// A question.
    Ask(Ask),
    /// An operator did something: the kind of the event, and a text that says who did what.
    Audit(&'static str, String),
}

/// A process that uses a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Its number in the agent's namespace.
    pub pid: i32,
    /// Its name, as the kernel has it.
    pub name: String,
    /// How it stands to the library.
    pub standing: Standing,
}

impl From<NodeInput> for Input {
    fn from(input: NodeInput) -> Self {
        Self::Node(input, None)
    }
}

/// Permits that a message of a process holds while it waits here. Each process and each tenant has a limited number.
#[derive(Debug)]
pub struct Ahead {
    /// The process'.
    pub session: OwnedSemaphorePermit,
    /// Its tenant's; None: that has no limit.
    pub tenant: Option<OwnedSemaphorePermit>,
    /// What else is held for it: room for its bytes.
    pub room: Option<Arc<dyn Any + Send + Sync>>,
}

/// Sends to the stream of one process. If it is full or closed, the process does not listen, and is cut off.
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
    /// The status of the node.
    Report(Answer<Box<v1::GetStatusResponse>>),
    /// When online was busy on each GPU since the given time, and from when on the answer is complete.
    Busy(u64, Answer<Vec<BusySpans>>),
    /// Only the totals of GPUs and jobs, for those that ask often: faster than a report.
    Usage(Answer<Box<v1::GetStatusResponse>>),
    /// Close a job's gate (None: of every job) until resumed; answers which jobs.
    Pause(Option<String>, Answer<Vec<String>>),
    /// Undo a pause.
    Resume(Option<String>, Answer<Vec<String>>),
    /// Orders for jobs that start later, by name: paused, or not paused although all others are.
    Steered(Vec<(Text, bool)>),
    /// Drain the node, or end a drain; answers which jobs there are.
    Drain(bool, Answer<Vec<String>>),
    /// Begin an ungated block; answers which jobs there are, or why it is refused.
    Ungate(Ungate, Answer<Result<Vec<String>, String>>),
    /// End the ungated block of this number, if it has not ended.
    Regate(u64),
    /// How a process is attached, and why it runs or waits.
    Explain(i32, Answer<Box<Explanation>>),
    /// The leases of one job, or of every job that trains; None: there is no such job.
    Leases(Option<String>, Answer<Option<Vec<v1::GpuLeases>>>),
    /// What was learnt about iterations and units.
    Learnt(Answer<Learnt>),
    /// What is known about a handle of one job's cache, or of every job's.
    Handle(u32, Option<String>, Answer<Vec<v1::HandleStatus>>),
}

impl Ask {
    /// Whether the caller has disconnected, so that nobody would receive the answer.
    #[must_use]
    pub fn is_moot(&self) -> bool {
        match self {
            Self::Report(answer) | Self::Usage(answer) => answer.is_closed(),
            Self::Busy(_, answer) => answer.is_closed(),
            Self::Pause(_, answer) | Self::Resume(_, answer) | Self::Drain(_, answer) => {
                answer.is_closed()
            }
            Self::Ungate(_, answer) => answer.is_closed(),
            Self::Explain(_, answer) => answer.is_closed(),
            Self::Leases(_, answer) => answer.is_closed(),
            Self::Learnt(answer) => answer.is_closed(),
            Self::Handle(_, _, answer) => answer.is_closed(),
            Self::Regate(_) | Self::Steered(_) => false,
        }
    }
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// Whoever may open `control.sock`.
    Operator,
    /// Anybody.
    Reader,
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

/// What is known of iterations and units, by the UUID of the GPU.
pub type Learnt = BTreeMap<String, Vec<Known>>;

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
    done_tx: Sender<NodeInput>,
    operator_tx: Sender<Ask>,
    input_tx: Sender<Input>,
    reader_tx: Sender<Ask>,
    wake: Arc<AtomicU32>,
}

/// The control thread's end of a [`Mailbox`].
#[derive(Debug)]
pub struct Inbox {
    /// What issue threads did.
    pub done_rx: Receiver<NodeInput>,
    operator_rx: Receiver<Ask>,
    /// The messages.
    pub input_rx: Receiver<Input>,
    reader_rx: Receiver<Ask>,
    /// Raised after a message was put.
    pub wake: Arc<AtomicU32>,
}

/// Messages that may wait for the control thread, which takes them faster than they can come. The
/// queue is made whole at the start, so that neither end allocates; a sender that finds it full waits.
const QUEUE: usize = 8_192;
/// Answers of issue threads that may wait. They are taken before all else.
const DONE: usize = 1_024;
/// Questions of operators that may wait, and of readers. One that finds no place is refused.
const OPERATORS: usize = 1_024;
/// See [`OPERATORS`].
const READERS: usize = 64;

/// Makes both ends.
#[must_use]
pub fn inbox() -> (Mailbox, Inbox) {
    let (done_tx, done_rx) = bounded(DONE);
    let (operator_tx, operator_rx) = bounded(OPERATORS);
    let (input_tx, input_rx) = bounded(QUEUE);
    let (reader_tx, reader_rx) = bounded(READERS);
    let wake = Arc::new(AtomicU32::new(0));
    let mailbox = Mailbox {
        done_tx,
        operator_tx,
        input_tx,
        reader_tx,
        wake: Arc::clone(&wake),
    };
    let inbox = Inbox {
        done_rx,
        operator_rx,
        input_rx,
        reader_rx,
        wake,
    };
    (mailbox, inbox)
}

impl Mailbox {
    /// Puts a message and wakes the control thread. After its end messages vanish.
    pub fn put(&self, input: impl Into<Input>) {
        if self.input_tx.send(input.into()).is_ok() {
            self.raise();
        }
    }

    /// As [`Self::put`], but a message that finds the queue full vanishes.
    pub fn offer(&self, input: Input) {
        if self.input_tx.try_send(input).is_ok() {
            self.raise();
        }
    }

    /// What an issue thread did, which waits behind nobody.
    pub fn done(&self, input: NodeInput) {
        if self.done_tx.send(input).is_ok() {
            self.raise();
        }
    }

    /// Somebody asks. `false`: too many questions wait, or nobody answers any more.
    #[must_use]
    pub fn ask(&self, asker: Asker, ask: Ask) -> bool {
        let queue = match asker {
            Asker::Operator => &self.operator_tx,
            Asker::Reader => &self.reader_tx,
        };
        let asked = queue.try_send(ask).is_ok();
        if asked {
            self.raise();
        }
        asked
    }

    fn raise(&self) {
        self.wake.fetch_add(1, Ordering::Release);
        crate::sys::futex_wake(&self.wake);
    }
}

impl Inbox {
    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.done_rx.is_empty()
            && self.input_rx.is_empty()
            && self.operator_rx.is_empty()
            && self.reader_rx.is_empty()
    }

    /// The next question that somebody waits for: operators go first.
    #[must_use]
    pub fn next_ask(&self) -> Option<Ask> {
        let waits = |ask: &Ask| !ask.is_moot();
        let mut all = self.operator_rx.try_iter().chain(self.reader_rx.try_iter());
        all.find(waits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot::channel;

    /// P-SECURITY-21: readers of status keep nobody from steering.
    #[test]
    fn an_operator_is_answered_before_readers_and_nobody_who_has_left() {
        let (mailbox, inbox) = inbox();
        let (explain, _here) = channel();
        assert!(mailbox.ask(Asker::Reader, Ask::Explain(1, explain)));
        let (report, gone) = channel();
        assert!(mailbox.ask(Asker::Reader, Ask::Report(report)));
        drop(gone);
        let (drain, _here_too) = channel();
        assert!(mailbox.ask(Asker::Operator, Ask::Drain(true, drain)));
        assert!(matches!(inbox.next_ask(), Some(Ask::Drain(true, _))));
        assert!(matches!(inbox.next_ask(), Some(Ask::Explain(1, _))));
        assert!(inbox.next_ask().is_none() && inbox.is_empty());
    }

    /// P-SECURITY-21: readers of status keep nobody from steering.
    #[test]
    fn readers_without_end_leave_room_for_operators_and_for_what_issue_threads_did() {
        let (mailbox, inbox) = inbox();
        let reads = || Ask::Report(channel().0);
        let asked = (0..100_000).filter(|_| mailbox.ask(Asker::Reader, reads()));
        assert_eq!(asked.count(), READERS);
        assert!(mailbox.ask(Asker::Operator, Ask::Regate(1)));
        mailbox.done(NodeInput::Stop);
        assert!(matches!(inbox.next_ask(), Some(Ask::Regate(1))));
        assert_eq!(inbox.done_rx.len(), 1);
    }
}
