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
    /// A process counts as online from here on (its role is online, or not known yet). Its devices
    /// count from their first [`Event::Activity`], which the shell reads and sends right after.
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
    /// The process' prober still makes rounds (or, without a page, its stream still speaks).
    Progress {
        /// The process.
        session: SessionId,
        /// Its last round.
        at: Instant,
    },
    /// A device of an online process is busy without launches, or no longer so.
    Suspected {
        /// The process.
        session: SessionId,
        /// The device.
        gpu: GpuId,
        /// Whether it is.
        suspect: bool,
    },
    /// Lifecycle hint: a request is in flight from here on.
    RequestStarted {
        /// The engine.
        session: SessionId,
        /// The request.
        request: RequestId,
    },
    /// Lifecycle hint: its last token is out, or it was given up. Of a request that never started: none is in flight,
    /// and the engine will say when one comes.
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
    /// An offline process created or freed channels the agent can control. The shell has put new
    /// ones into its lists *before* it says so, so that the disable that may follow reaches them.
    ChannelsChanged {
        /// The process.
        session: SessionId,
        /// Where.
        gpu: GpuId,
        /// How many it holds there from here on.
        channels: Channels,
        /// Some of them are new, so an order carried out before did not reach them.
        grown: bool,
    },
    /// An offline process has work for a GPU, or none. Until it says so it counts as having some.
    Works {
        /// The process.
        session: SessionId,
        /// Whether it has.
        works: bool,
    },
    /// Whether an offline process counts when memory is divided among jobs. Until it says so it does.
    Counts {
        /// The process.
        session: SessionId,
        /// Whether it does.
        counts: bool,
    },
    /// Where jobs are to share GPUs by timeslices: what an offline process has there that can be given some. Said before
    /// the [`Event::ChannelsChanged`] that goes with it.
    Groups {
        /// The process.
        session: SessionId,
        /// Where.
        gpu: GpuId,
        /// Groups of channels that compute.
        groups: u32,
        /// Why they cannot be given any.
        lacks: Option<Lacks>,
    },
    /// Answer to `Timeslice`: the driver refused some of it.
    SliceRefused {
        /// The job.
        job: JobId,
        /// RM status.
        status: u32,
    },
    /// What the operator's rules give a job beside others; until then it has the least of everything.
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
        /// Entry of the last disable ioctl (or the gate word's store).
        entered: Instant,
        /// Its return.
        returned: Instant,
    },
    /// Answer to `Disable`: it failed in whole or in part, and the state of those channels is unknown.
    DisableFailed {
        /// The order.
        order: Order,
        /// RM status, or what the level calls an error.
        status: u32,
    },
    /// Answer to `Enable`: done.
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
    /// Answer to `Enable`: not carried out, because the activity word read right before said busy.
    /// The shell has sent that reading first, so that the gate is shut when this arrives.
    EnableSkipped {
        /// The order.
        order: Order,
    },
    /// An issue thread has sat in one call for longer than the shell allows. Its answer may still come.
    IssueStalled {
        /// Its GPU.
        gpu: GpuId,
    },
    /// The operator closes the gate of one job, or of all present and future ones (`None`).
    Pause {
        /// Which.
        job: Option<JobId>,
    },
    /// The operator takes that back. Also gives a job that was given up another chance.
    Resume {
        /// Which.
        job: Option<JobId>,
    },
    /// The operator takes the node out of use for offline work, or back into it: while it is drained no
    /// job runs, those to come included, whatever is paused or resumed meanwhile.
    Drain {
        /// Whether it is drained from here on.
        drained: bool,
    },
    /// The operator measures what online pays without gates: until then none holds a job, and what a pause, a drain,
    /// a turn or a reclaim holds stays held. A time that is over ends it at once.
    Ungate {
        /// Until when.
        until: Instant,
    },
    /// What the agent believes about channels may be wrong (it was stopped, or a process released
    /// its own): order the wanted state again, without enabling anything first.
    Reissue {
        /// Which job, or all.
        job: Option<JobId>,
    },
    /// The agent did not run for so long: it was stopped or frozen, or the machine was. What a process did meanwhile is
    /// not known, and that nothing was heard of it counts against nobody. Said before anything that was heard since.
    Absent {
        /// How long.
        lasted: Duration,
    },
    /// Something about memory. Those that carry lists borrow them for the step.
    Memory(MemoryEvent<'a>),
    /// Something about leases; where they are off it changes nothing.
    Lease(LeaseEvent),
    /// A timer. Early and superfluous ones are harmless.
    Tick,
}

impl<'a> From<MemoryEvent<'a>> for Event<'a> {
    fn from(event: MemoryEvent<'a>) -> Self {
        Self::Memory(event)
    }
}

/// An order to one issue thread, named the same way in its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Whose issue thread.
    pub gpu: GpuId,
    /// Whose channels: all the job holds on that GPU.
    pub job: JobId,
    /// Which decision.
    pub generation: Generation,
}

/// Activity of one device of one online process, word for word as its page has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Edges so far: a reading that skips some says that periods came and went unseen.
    pub generation: u64,
    /// Whether it is busy.
    pub busy: bool,
    /// When the last busy edge rang.
    pub busy_since: Instant,
    /// When the work before the last idle edge was proven done.
    pub idle_since: Instant,
    /// Launches of the period that ended there.
    pub launches: Launches,
    /// The graph last launched in it.
    pub graph: GraphId,
    /// Iterations in it that nobody saw apart.
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

/// Iterations of one busy period between which nobody saw the device idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// How many. The process says so, and may lie.
    pub count: u64,
    /// Launches up to the end of the first; zero: there was none. [`Self::NO_GRAPH`]: it launched no graph.
    pub first: Launches,
    /// Idle time between two of them was shorter.
    pub apart: Duration,
}

/// No step of a model is shorter: of a busy period no more turns are believed. A model of 1 billion parameters takes
/// 1.4 ms a step on an H100 (tests/hardware, P13).
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
