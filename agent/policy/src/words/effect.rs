//! What the shell must do, as data and in the order it must be done.

use crate::words::event::Order;
use crate::words::ids::{
    AskId, Bytes, GpuId, GpuSet, Handles, JobId, KvId, LeaseId, ReclaimId, SessionId, Tokens,
};
use crate::words::reclaim::{Direction, Phase};
use crate::words::terms::Lacks;
use crate::words::time::Instant;
use core::time::Duration;

/// One thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Disable every channel the job holds on that GPU now. Orders to one GPU are carried out in order;
    /// each is answered once, by `Disabled` or `DisableFailed`, unless a later order for the same
    /// job and GPU has overtaken it: then the answer may be left out.
    Disable(Order),
    /// Enable every channel the job holds on that GPU now, after one more look at the activity words of
    /// the online processes of that GPU. Answered by `Enabled`, `EnableFailed` or `EnableSkipped`.
    Enable {
        /// The order.
        order: Order,
        /// Whether that last look counts.
        look: Look,
    },
    /// Close the job's launch gate on every device: launches wait.
    CloseLaunchGate {
        /// The job.
        job: JobId,
    },
    /// Open the job's launch gate on every device. A process that attaches finds it closed.
    OpenLaunchGate {
        /// The job.
        job: JobId,
    },
    /// Close the job's launch gate on every device, and make calls that may hold the driver's locks
    /// wait too: a reclaim is under way.
    HoldLaunchGate {
        /// The job.
        job: JobId,
    },
    /// Ask a process whether a thread of it is inside a call that may hold the driver's locks, once
    /// its launch gate is held. Answered by `Checked`.
    Check {
        /// The order.
        reclaim: ReclaimId,
        /// Who.
        session: SessionId,
        /// When the answer is no use any more.
        until: Instant,
    },
    /// Have a process reclaim or restore the stripes of [`crate::node::Node::stripes`], in that
    /// order. Every channel of its job is disabled, and stays so until it has answered by `Moved`.
    Move {
        /// The order.
        reclaim: ReclaimId,
        /// Who.
        session: SessionId,
        /// Its KV cache.
        kv: KvId,
        /// Which way.
        direction: Direction,
        /// When to be done.
        until: Instant,
    },
    /// Nobody waits for that move any more: stop where it stands, and say where that is.
    CancelMove {
        /// The order.
        reclaim: ReclaimId,
        /// Who.
        session: SessionId,
    },
    /// Have an online process map its elastic cache up or down to this. Answered by `Mapped`.
    Map {
        /// Who.
        session: SessionId,
        /// Its KV cache.
        kv: KvId,
        /// All that is to be mapped of it.
        bytes: Bytes,
    },
    /// Tell an online process whether its demand is met.
    AnswerAsk {
        /// Who.
        session: SessionId,
        /// Its number for the demand.
        ask: AskId,
        /// Whether it is.
        granted: Granted,
    },
    /// Tell a trainer to run units beside online. Its launch gate opens after it, and the channels of the job are
    /// enabled. The trainer begins no unit that it does not expect to end within `granted`, and answers by `Returned`.
    Lease {
        /// Whose trainer.
        job: JobId,
        /// Where.
        gpu: GpuId,
        /// Which.
        lease: LeaseId,
        /// So many units at most.
        units: u32,
        /// What they may take, from when it has the GPU.
        granted: Duration,
        /// When the gate shuts, whatever runs.
        until: Instant,
    },
    /// Tell a trainer to begin no further unit of that lease.
    Withdraw {
        /// Whose trainer.
        job: JobId,
        /// Where.
        gpu: GpuId,
        /// Which.
        lease: LeaseId,
    },
    /// Set how long each group of channels that computes for the job keeps that GPU beside others. Unanswered where it is
    /// done; else answered by `SliceRefused`.
    Timeslice {
        /// Whose.
        job: JobId,
        /// Where.
        gpu: GpuId,
        /// How long; `None`: what it was before the first time.
        slice: Option<Duration>,
    },
    /// Read the activity words of every online process on these GPUs and send them as events.
    ReadActivity {
        /// Which.
        gpus: GpuSet,
    },
    /// Send `Tick` at that time. Replaces the timer of every earlier `WakeAt`.
    WakeAt(Instant),
    /// Tell people: an event, a metric, a log line.
    Emit(Report),
}

/// Whether a demand for memory is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granted {
    /// The memory is there for it.
    Yes,
    /// It is not, and will not be in time.
    No,
}

/// Whether an enable is given up when online turns out to be busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Yes: skip the order then and answer `EnableSkipped`.
    First,
    /// No: channels in an unknown state are enabled whatever online does, and decided about afterwards.
    Unconditional,
}

/// Something worth knowing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// Offline was disabled because online came back; complete when the last job's last disable returned.
    Preempted {
        /// The GPU whose busy edge it was.
        gpu: GpuId,
        /// When that edge rang.
        rang: Instant,
        /// Entry of the last disable.
        entered: Instant,
        /// Return of the last disable: `returned - rang` is the preemption latency.
        returned: Instant,
        /// Jobs that were disabled for it.
        jobs: u32,
    },
    /// A job got its GPUs back.
    Woken {
        /// The job.
        job: JobId,
    },
    /// A disable failed. All of the job is enabled again, then decided about anew.
    DisableFailed {
        /// The order.
        order: Order,
        /// As the shell gave it.
        status: u32,
        /// How many have failed in a row.
        failures: u32,
    },
    /// An enable failed. It is tried again for as long as the job lives.
    EnableFailed {
        /// The order.
        order: Order,
        /// As the shell gave it.
        status: u32,
    },
    /// Disables failed too often: the job's channels are left enabled and only its launch gate is used.
    Unmanaged {
        /// The job.
        job: JobId,
    },
    /// A job was gated for `max_gated` without a turn.
    MaxGated {
        /// The job.
        job: JobId,
        /// Since when.
        since: Instant,
    },
    /// It gets a turn.
    Breathed {
        /// The job.
        job: JobId,
    },
    /// An issue thread is stuck in the driver; launch gates of jobs it was to disable are closed meanwhile.
    IssueStalled {
        /// Its GPU.
        gpu: GpuId,
    },
    /// It says that requests are in flight, and no work of theirs came for `frozen_after`: they no longer count until
    /// it works.
    Doubted {
        /// Whose word it is.
        session: SessionId,
    },
    /// A busy online process makes no progress and no longer counts.
    Lapsed {
        /// The process.
        session: SessionId,
    },
    /// It makes progress and counts again.
    Recovered {
        /// The process.
        session: SessionId,
    },
    /// The same request went on after a wake: the cooldown was too short for this gap.
    CooldownViolated {
        /// Where.
        gpu: GpuId,
        /// The gap.
        gap: Duration,
    },
    /// Memory was reclaimed from a job.
    Reclaimed {
        /// The job.
        job: JobId,
        /// The order, for `explain`.
        reclaim: ReclaimId,
        /// On each of its GPUs.
        handles: Handles,
        /// On each of its GPUs.
        bytes: Bytes,
        /// What its requests compute again.
        tokens: Tokens,
        /// From the demand to the last answer.
        took: Duration,
    },
    /// Memory was restored to a job.
    Restored {
        /// The job.
        job: JobId,
        /// On each of its GPUs.
        bytes: Bytes,
    },
    /// Nothing can be taken from a job for now.
    Unreclaimable {
        /// The job.
        job: JobId,
        /// Where its last reclaim stood.
        phase: Phase,
    },
    /// Online came under pressure.
    Pressure {
        /// The process.
        session: SessionId,
        /// Where.
        gpu: GpuId,
        /// In use.
        used: Bytes,
        /// To be mapped from here on.
        reservation: Bytes,
    },
    /// A demand of online was not met.
    Denied {
        /// The process.
        session: SessionId,
        /// Where.
        gpu: GpuId,
        /// How much it was.
        bytes: Bytes,
    },
    /// A trainer still ran when its lease was over: its channels are disabled.
    LeaseOverrun {
        /// Whose.
        job: JobId,
        /// Where.
        gpu: GpuId,
        /// Which.
        lease: LeaseId,
        /// What it was meant to take.
        granted: Duration,
        /// How long it had run.
        used: Duration,
    },
    /// A trainer has not returned in time too often: for so long no lease is given to it, and it runs by the gate alone.
    LeaseDemoted {
        /// Whose.
        job: JobId,
        /// Where.
        gpu: GpuId,
        /// For how long.
        lasts: Duration,
    },
    /// Online alone needs longer for a token than it promised: nothing is lent until that has changed.
    LeaseTpotTooLow {
        /// Where.
        gpu: GpuId,
        /// What it needs.
        alone: Duration,
        /// What it promised.
        tpot: Duration,
    },
    /// Units of a trainer have never fit.
    LeaseUnitTooLong {
        /// Whose.
        job: JobId,
        /// Where.
        gpu: GpuId,
        /// What one takes.
        unit: Duration,
        /// What would have fit at most.
        fits: Duration,
    },
    /// Gates hold jobs again after an ungated block.
    GatedAgain {
        /// How long they did not.
        lasted: Duration,
        /// Nobody ended it: its time was over.
        expired: bool,
    },
    /// Timeslices were asked for, and the jobs beside this one take turns because of it.
    TurnsInstead {
        /// The job.
        job: JobId,
        /// What it lacks.
        lacks: Lacks,
    },
    /// The operator paused a job.
    Paused {
        /// The job.
        job: JobId,
    },
    /// The operator resumed a job.
    Resumed {
        /// The job.
        job: JobId,
    },
}
