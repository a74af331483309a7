//! What happened: everything that can change a [`crate::node::Node`].
//!
//! Any event may come in any state, late, twice or with an unknown name; then it changes nothing. Time stamps come from
//! other processes: they are read as at most `now`.

use crate::words::ids::{
    Channels, Generation, GpuId, GpuSet, GraphId, JobId, Launches, RequestId, SessionId,
};
use crate::words::lease::LeaseEvent;
use crate::words::memory::MemoryEvent;
use crate::words::terms::{Lacks, Terms};
use crate::words::time::{Instant, nanos};
use core::time::Duration;

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// From now on a process counts as online (its role is online, or not known yet). Its devices count from their
    /// first [`Event::Activity`], which the shell reads and sends right after this.
    OnlineAttached {
        /// The process.
        session: SessionId,
    },
    /// The process is gone, or turned out not to be online.
    OnlineGone {
        /// The process.
        session: SessionId,
    },
    /// The activity words of one device, as read after a doorbell, on [`crate::effect::Effect::ReadActivity`],
    /// right before an enable, or taken from an `Edge` message. A repeated reading changes nothing.
    Activity {
        /// The process.
        session: SessionId,
        /// The device.
        gpu: GpuId,
        /// What its words said.
        reading: Reading,
    },
    /// The process' prober still makes rounds (or, without a page, its stream still sends messages).
    Progress {
        /// The process.
        session: SessionId,
        /// Its last round.
        at: Instant,
    },
    /// A device of an online process is busy without launches, or this is no longer so.
    Suspected {
        /// The process.
        session: SessionId,
        /// The device.
        gpu: GpuId,
        /// Whether it is.
        suspect: bool,
    },
    /// The engine reports that a request is in flight from now on.
    RequestStarted {
        /// The engine.
        session: SessionId,
        /// The request.
        request: RequestId,
    },
    /// The engine reports that a request has ended: its last token is out, or it was aborted. For a request that never
    /// started it means that none is in flight, and that the engine will report when one arrives.
    RequestEnded {
        /// The engine.
        session: SessionId,
        /// The request.
        request: RequestId,
    },
    /// An offline process joined its job, or uses more GPUs than before.
    OfflineAttached {
        /// The process.
        session: SessionId,
        /// The job that is gated as one.
        job: JobId,
        /// GPUs the process is known to use; those named before stay.
        gpus: GpuSet,
        /// What an earlier agent may have left behind.
        standing: Standing,
    },
    /// The process is gone, with all it held.
    OfflineGone {
        /// The process.
        session: SessionId,
    },
    /// An offline process created or freed channels that the agent can control. The shell has put new ones into its
    /// lists *before* this event, so that a disable that follows reaches them.
    ChannelsChanged {
        /// The process.
        session: SessionId,
        /// Where.
        gpu: GpuId,
        /// How many it holds there from now on.
        channels: Channels,
        /// Some of them are new, so an order that was carried out before did not reach them.
        grown: bool,
    },
    /// Whether an offline process has work for a GPU. Before this event it counts as having work.
    Works {
        /// The process.
        session: SessionId,
        /// Whether it has work.
        works: bool,
    },
    /// Whether an offline process counts when memory is divided among jobs. Before this event it does.
    Counts {
        /// The process.
        session: SessionId,
        /// Whether it counts.
        counts: bool,
    },
    /// Which channel groups of an offline process can get timeslices, if jobs share GPUs by timeslices. The event comes
    /// before the [`Event::ChannelsChanged`] that belongs to it.
    Groups {
        /// The process.
        session: SessionId,
        /// Where.
        gpu: GpuId,
        /// Number of channel groups that compute.
        groups: u32,
        /// Why they cannot get timeslices.
        lacks: Option<Lacks>,
    },
    /// Answer to `Timeslice`: the driver refused at least one.
    SliceRefused {
        /// The job.
        job: JobId,
        /// RM status.
        status: u32,
    },
    /// What the operator's rules give a job beside others. Before this event it has the least of everything.
    Terms {
        /// The job.
        job: JobId,
        /// Its weights, class and user.
        terms: Terms,
    },
    /// Answer to `Disable`: from `returned` on nothing of the job runs on that GPU.
    Disabled {
        /// The order.
        order: Order,
        /// When the last disable ioctl was entered (or the gate word was stored).
        entered: Instant,
        /// When it returned.
        returned: Instant,
    },
    /// Answer to `Disable`: it failed in whole or in part, and the state of those channels is unknown.
    DisableFailed {
        /// The order.
        order: Order,
        /// RM status, or what the level calls an error.
        status: u32,
    },
    /// Answer to `Enable`: it was carried out.
    Enabled {
        /// The order.
        order: Order,
    },
    /// Answer to `Enable`: it failed; some channels may still be disabled.
    EnableFailed {
        /// The order.
        order: Order,
        /// RM status, or what the level calls an error.
        status: u32,
    },
    /// Answer to `Enable`: it was not carried out, because an activity word that was read right before it was busy. The
    /// shell has sent that reading first, so the gate is closed when this event arrives.
    EnableSkipped {
        /// The order.
        order: Order,
    },
    /// An issue thread has been in one call for longer than the shell allows. Its answer may still come.
    IssueStalled {
        /// Its GPU.
        gpu: GpuId,
    },
    /// The operator closes the gate of one job, or of all present and future ones (`None`).
    Pause {
        /// Which.
        job: Option<JobId>,
    },
    /// The operator undoes a pause. A job that was given up gets another chance.
    Resume {
        /// Which.
        job: Option<JobId>,
    },
    /// The operator drains the node, or ends a drain. While the node is drained no job runs, including jobs that start
    /// later. Pauses and resumes do not change that.
    Drain {
        /// Whether it is drained from now on.
        drained: bool,
    },
    /// The operator measures what online pays without gates: until the given time no gate holds a job. Pauses, drains,
    /// turns and reclaims still do. A time in the past ends the block at once.
    Ungate {
        /// Until when.
        until: Instant,
    },
    /// What the agent believes about channels may be wrong (it was stopped, or a process released its own channels):
    /// order the wanted state again, without enabling anything first.
    Reissue {
        /// Which job; `None`: all jobs.
        job: Option<JobId>,
    },
    /// The agent did not run for a time: it or the machine was stopped or frozen. Nobody knows what processes did
    /// meanwhile, and their silence counts against nobody. This event comes before everything that was received since.
    Absent {
        /// How long.
        lasted: Duration,
    },
    /// An event about memory. Those with lists borrow the lists for the step.
    Memory(MemoryEvent<'a>),
    /// An event about leases; it changes nothing if leases are off.
    Lease(LeaseEvent),
    /// The timer. Early and superfluous ticks are harmless.
    Tick,
}

impl Event<'_> {
    /// Whether a process says it in a list of thousands: which blocks a request holds. The node only takes such an event.
    /// Whoever told it the last one of a list follows with [`Event::Tick`], at which the node decides.
    #[must_use]
    pub const fn is_one_of_many(&self) -> bool {
        use MemoryEvent::{Forgotten, Published};
        matches!(self, Self::Memory(Published { .. } | Forgotten { .. }))
    }
}

impl<'a> From<MemoryEvent<'a>> for Event<'a> {
    fn from(event: MemoryEvent<'a>) -> Self {
        Self::Memory(event)
    }
}

/// An order to one issue thread. Its answer names it in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// The GPU whose issue thread carries it out.
    pub gpu: GpuId,
    /// The job; the order is about all channels that it holds on that GPU.
    pub job: JobId,
    /// Number of the decision.
    pub generation: Generation,
}

/// Activity of one device of one online process, as its page has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Number of edges so far. A reading that skips numbers shows that some busy periods were not seen.
    pub generation: u64,
    /// Whether it is busy.
    pub busy: bool,
    /// When the last busy edge rang.
    pub busy_since: Instant,
    /// When the work before the last idle edge was known to be done.
    pub idle_since: Instant,
    /// Launches of the busy period that ended there.
    pub launches: Launches,
    /// The graph that was launched last in it.
    pub graph: GraphId,
    /// Iterations in it between which no idle time was seen.
    pub turns: Turns,
}

/// What may have been done to an offline process' channels before it attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing: no agent has gated it yet.
    Enabled,
    /// It was under an earlier agent: any of its channels may be disabled.
    Unknown,
}

/// Iterations of one busy period between which no idle time was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// How many. The process reports this, and may lie.
    pub count: u64,
    /// Launches up to the end of the first one; zero: there was none. [`Self::NO_GRAPH`]: it launched no graph.
    pub first: Launches,
    /// An upper bound for the idle time between two of them.
    pub apart: Duration,
}

/// The shortest plausible step of a model, which bounds how many iterations of a busy period are believed. A model of
/// 1 billion parameters takes 1.4 ms a step on an H100 (tests/hardware, P13).
const SHORTEST_TURN: Duration = Duration::from_micros(250);

impl Turns {
    /// What a first iteration that launched no graph has as its launches.
    pub const NO_GRAPH: Launches = Launches(u64::MAX);

    /// Decode gaps among them that are to be believed of a busy period of `span`.
    #[must_use]
    pub fn gaps(self, span: Duration) -> u64 {
        let most = nanos(span) / nanos(SHORTEST_TURN);
        match self.apart {
            Duration::ZERO => 0,
            _ => self.count.saturating_sub(1).min(most),
        }
    }
}
