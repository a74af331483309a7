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
    /// Disable every channel that the job now holds on that GPU. Orders to one GPU are carried out in order. Each is
    /// answered once, by `Disabled` or `DisableFailed`; the answer may be missing if a later order for the same job and
    /// GPU has overtaken it.
    Disable(Order),
    /// Enable every channel that the job now holds on that GPU, after one more look at the activity words of the GPU's
    /// online processes. Answered by `Enabled`, `EnableFailed` or `EnableSkipped`.
    Enable {
        /// The order.
        order: Order,
        /// Whether that look can prevent the enable.
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
    /// Close the job's launch gate on every device, and let calls that may hold the driver's locks wait too: a reclaim
    /// is under way.
    HoldLaunchGate {
        /// The job.
        job: JobId,
    },
    /// Once its launch gate is held, ask a process whether one of its threads is inside a call that may hold the
    /// driver's locks. Answered by `Checked`.
    Check {
        /// The order.
        reclaim: ReclaimId,
        /// Who.
        session: SessionId,
        /// When the answer becomes useless.
        until: Instant,
    },
    /// Let a process reclaim or restore the stripes of [`crate::node::Node::stripes`], in that order. Every channel of
    /// its job is disabled, and stays disabled until the process has answered by `Moved`.
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
    /// Cancel a move: the process stops where it is, and reports how far it came.
    CancelMove {
        /// The order.
        reclaim: ReclaimId,
        /// Who.
        session: SessionId,
    },
    /// Let an online process grow or shrink its elastic cache to this size. Answered by `Mapped`.
    Map {
        /// Who.
        session: SessionId,
        /// Its KV cache.
        kv: KvId,
        /// How much of it is to be mapped.
        bytes: Bytes,
    },
    /// Tell an online process whether its demand is met.
    AnswerAsk {
        /// Who.
        session: SessionId,
        /// The process' number for the demand.
        ask: AskId,
        /// Whether the demand is met.
        granted: Granted,
    },
    /// Give a trainer a lease to run units beside online. Then its launch gate opens, and the channels of the job are
    /// enabled. The trainer begins no unit that it does not expect to end within `granted`, and answers by `Returned`.
    Lease {
        /// Whose trainer.
        job: JobId,
        /// Where.
        gpu: GpuId,
        /// Which.
        lease: LeaseId,
        /// The largest number of units.
        units: u32,
        /// How long they may take, from the moment at which the trainer has the GPU.
        granted: Duration,
        /// When the gate closes, whatever still runs.
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
    /// Set the timeslice of each channel group that computes for the job on that GPU. Answered by `SliceRefused` if the
    /// driver refuses it, and not at all otherwise.
    Timeslice {
        /// Whose.
        job: JobId,
        /// Where.
        gpu: GpuId,
        /// The timeslice; `None`: the value before it was first set.
        slice: Option<Duration>,
    },
    /// Read the activity words of every online process on these GPUs and send them as events.
    ReadActivity {
        /// Which.
        gpus: GpuSet,
    },
    /// Send `Tick` at that time. Replaces the timer of every earlier `WakeAt`.
    WakeAt(Instant),
    /// Report something to operators: as an event, a metric or a log line.
    Emit(Report),
}

/// Whether a demand for memory is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granted {
    /// The memory is available.
    Yes,
    /// It is not available, and will not be in time.
    No,
}

/// Whether an enable is skipped if online turns out to be busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Yes: the order is then answered by `EnableSkipped`.
    First,
    /// No: the channels are enabled whatever online does. Used for channels in an unknown state, which are decided
    /// about afterwards.
    Unconditional,
}

/// Something that operators see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// Offline was disabled because online became busy. It is reported when the last job's last disable has returned.
    Preempted {
        /// The GPU of the busy edge.
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
    /// A disable failed. The whole job is enabled, then policy decides anew.
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
    /// A job has been gated for `max_gated` without running.
    MaxGated {
        /// The job.
        job: JobId,
        /// Since when.
        since: Instant,
    },
    /// A job that has waited long gets an anti-starvation window.
    Breathed {
        /// The job.
        job: JobId,
    },
    /// A driver call of an issue thread does not return. The launch gates of jobs that the thread was to disable are
    /// closed meanwhile.
    IssueStalled {
        /// Its GPU.
        gpu: GpuId,
    },
    /// A process reports requests in flight, but no work of them came for `frozen_after`. They do not count until the
    /// process works again.
    Doubted {
        /// The process.
        session: SessionId,
    },
    /// A busy online process makes no progress and no longer counts.
    Lapsed {
        /// The process.
        session: SessionId,
    },
    /// Such a process makes progress and counts again.
    Recovered {
        /// The process.
        session: SessionId,
    },
    /// A request continued after offline had started in one of its gaps: the cooldown was too short.
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
        /// Tokens that its requests compute again.
        tokens: Tokens,
        /// Time from the demand to the last answer.
        took: Duration,
    },
    /// Memory was restored to a job.
    Restored {
        /// The job.
        job: JobId,
        /// On each of its GPUs.
        bytes: Bytes,
    },
    /// Nothing can be taken from a job at the moment.
    Unreclaimable {
        /// The job.
        job: JobId,
        /// The phase that its last reclaim had reached.
        phase: Phase,
    },
    /// Online came under pressure.
    Pressure {
        /// The process.
        session: SessionId,
        /// Where.
        gpu: GpuId,
        /// Memory in use.
        used: Bytes,
        /// Memory that is to be mapped from now on.
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
    /// A trainer had not returned when its lease was over. Its channels are disabled.
    LeaseOverrun {
        /// Whose.
        job: JobId,
        /// Where.
        gpu: GpuId,
        /// Which.
        lease: LeaseId,
        /// The time that was granted.
        granted: Duration,
        /// How long it had run.
        used: Duration,
    },
    /// A trainer overran too many leases. It gets none for a time, and runs only while the gate is open.
    LeaseDemoted {
        /// Whose.
        job: JobId,
        /// Where.
        gpu: GpuId,
        /// For how long.
        lasts: Duration,
    },
    /// Online alone needs longer for a token than it promised. No lease is granted until that changes.
    LeaseTpotTooLow {
        /// Where.
        gpu: GpuId,
        /// The time that online alone needs.
        alone: Duration,
        /// The time that it promised.
        tpot: Duration,
    },
    /// No unit of a trainer has ever fit.
    LeaseUnitTooLong {
        /// Whose.
        job: JobId,
        /// Where.
        gpu: GpuId,
        /// How long one unit takes.
        unit: Duration,
        /// The longest unit that would have fit.
        fits: Duration,
    },
    /// An ungated block has ended: gates hold jobs again.
    GatedAgain {
        /// How long the block lasted.
        lasted: Duration,
        /// The block ended because its time was over; nobody ended it.
        expired: bool,
    },
    /// The operator asked for timeslices, but because of this job it and the jobs beside it take turns.
    TurnsInstead {
        /// The job.
        job: JobId,
        /// Why it cannot have timeslices.
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
