//! What a job sees of its node in one step, and what the step tells the node.

use crate::ids::{GpuId, GpuSet};
use crate::time::Instant;

/// The node as one job sees it in one step.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct World {
    /// Every GPU of the node.
    pub all: GpuSet,
    /// Gates that are open.
    pub open: GpuSet,
    /// Online is busy there.
    pub busy: GpuSet,
    /// Gates that a busy edge shut in this step, open or cooling before.
    pub shut: GpuSet,
    /// Issue threads that hang in a call.
    pub stalled: GpuSet,
    /// Gates that are open or have cooled for about as long as they ever do.
    pub breathable: GpuSet,
    /// No job may run.
    pub drained: bool,
    /// Gates hold no job.
    pub ungated: bool,
}

/// What a job's turn means for the GPUs' books.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Online on this GPU stopped the job while it ran. `Some` with `turn_over`: a breath ended.
    pub preempted: Option<GpuId>,
    /// The preemption had no edge: a breath ended by time.
    pub turn_over: bool,
    /// Its last disable returned: the GPU that stopped it, entry and return.
    pub stopped: Option<(GpuId, Instant, Instant)>,
    /// The preemption it was stopped for will never be complete.
    pub dropped: Option<GpuId>,
    /// All of it runs again.
    pub woken: bool,
}
