//! What a probe asks of a worker and what it answers: one line of JSON each.
//!
//! A worker is a throw-away process with a CUDA context of its own. Its work is done on *lanes*, one
//! thread each, so that a probe can see one call block while another goes on. Times are measured in
//! the worker, around the driver's call alone.

use serde::{Deserialize, Serialize};

/// Some operations, one after the other, on one lane.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// Repeated in the answer.
    pub id: u64,
    /// Which lane; made with its first request.
    pub lane: String,
    /// What to do. The first that fails ends the list.
    pub ops: Vec<Op>,
}

/// Answer to a [`Request`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// Of the request.
    pub id: u64,
    /// What was done, in order.
    pub done: Vec<Done>,
    /// What failed, if something did.
    pub error: Option<String>,
}

/// One operation that succeeded.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Done {
    /// Duration of the driver's call.
    pub ns: u64,
    /// By operation: an address, a handle, a count, a status.
    pub value: u64,
}

/// How a wait waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wait {
    /// Polling.
    Spin,
    /// Asleep.
    Block,
}

/// What `Op::Cost` repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// `cuLaunchKernel` of an empty kernel.
    Launch,
    /// `cuGraphLaunch` of a graph of eight empty kernels.
    GraphLaunch,
    /// `cuEventRecord`.
    EventRecord,
    /// `cuEventQuery` of an event that happened.
    EventQuery,
    /// `cuStreamQuery` of an idle stream.
    StreamQuery,
}

/// One operation. `value` of its [`Done`] is 0 unless said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Takes the device's primary context. `value`: total memory in bytes.
    Context {
        /// Device ordinal.
        ordinal: i32,
        /// How its waits wait.
        wait: Wait,
    },
    /// Destroys the primary context.
    Reset,
    /// Launches `tg_steps` on the lane's stream.
    Steps {
        /// Steps; each adds one to the progress.
        steps: u64,
        /// Length of a step.
        step_ns: u64,
        /// Blocks of 256 threads; one thread of the first counts.
        blocks: u32,
    },
    /// Launches kernels of `ns` each on the lane's stream; each adds one to the progress.
    Count {
        /// How many.
        kernels: u64,
        /// Length of each.
        ns: u64,
    },
    /// Launches `tg_spin_ns` on the lane's stream.
    Spin {
        /// Its length.
        ns: u64,
    },
    /// `cuStreamSynchronize` of the lane's stream.
    WaitStream,
    /// `cuEventRecord` then `cuEventSynchronize` on the lane's stream.
    WaitEvent {
        /// How.
        wait: Wait,
    },
    /// `cuCtxSynchronize`.
    WaitContext,
    /// `cuStreamCreate`. `value`: the stream.
    Stream,
    /// `cuStreamDestroy` of the lane's stream.
    DestroyStream,
    /// Makes a green context and from now on uses a stream of it on this lane. `value`: the number of its
    /// multiprocessors.
    Green {
        /// Multiprocessors to ask for.
        least: u32,
    },
    /// The device's multiprocessors. `value`: their number.
    Multiprocessors,
    /// Runs `tg_sms` on the lane's stream to its end. `value`: the multiprocessors its blocks ran on.
    Sms {
        /// Blocks of 1024 threads.
        blocks: u32,
        /// Time each block stays.
        ns: u64,
        /// Not launched directly but by a graph that was recorded in the primary context.
        graph: bool,
    },
    /// `cuModuleLoadData`.
    Module,
    /// `cuMemAlloc`. `value`: address.
    Alloc {
        /// How much.
        bytes: u64,
    },
    /// `cuMemFree`.
    Free {
        /// Where.
        at: u64,
    },
    /// `cuMemHostAlloc`. `value`: address.
    AllocHost {
        /// How much.
        bytes: u64,
    },
    /// `cuMemFreeHost`.
    FreeHost {
        /// Where.
        at: u64,
    },
    /// `cuMemcpyDtoH`.
    CopyToHost {
        /// From where.
        at: u64,
        /// How much.
        bytes: u64,
    },
    /// `cuMemsetD8`, waited for.
    Fill {
        /// Where.
        at: u64,
        /// How much.
        bytes: u64,
        /// With what.
        byte: u8,
    },
    /// Copies to the host and counts. `value`: bytes that are not zero.
    CountNonZero {
        /// Where.
        at: u64,
        /// How much.
        bytes: u64,
    },
    /// `cuMemAddressReserve`. `value`: address.
    Reserve {
        /// How much.
        bytes: u64,
    },
    /// `cuMemAddressFree`.
    Unreserve {
        /// Where.
        at: u64,
        /// How much.
        bytes: u64,
    },
    /// `cuMemCreate`. `value`: handle.
    Create {
        /// How much.
        bytes: u64,
    },
    /// `cuMemMap`.
    Map {
        /// Where.
        at: u64,
        /// How much.
        bytes: u64,
        /// What.
        handle: u64,
    },
    /// `cuMemSetAccess`.
    Access {
        /// Where.
        at: u64,
        /// How much.
        bytes: u64,
    },
    /// `cuMemUnmap`.
    Unmap {
        /// Where.
        at: u64,
        /// How much.
        bytes: u64,
    },
    /// `cuMemRelease`.
    Release {
        /// What.
        handle: u64,
    },
    /// `cuMemGetInfo`. `value`: free bytes.
    MemoryFree,
    /// Median cost of one call over batches of 200. `value`: picoseconds.
    Cost {
        /// Of what.
        call: Call,
        /// Batches.
        batches: u32,
    },
    /// Disables or enables channels on the worker's own control file, from this lane's thread.
    Channels {
        /// Which.
        disable: bool,
        /// Through what, and which.
        own: Own,
    },
    /// `NVA06C_CTRL_CMD_PREEMPT` of a TSG on the worker's own control file.
    Preempt {
        /// Through what.
        own: Own,
        /// Of which TSG.
        tsg: u32,
    },
    /// `NVA06C_CTRL_CMD_SET_TIMESLICE`.
    Timeslice {
        /// Through what.
        own: Own,
        /// Of which TSG.
        tsg: u32,
        /// To how long, in microseconds.
        us: u64,
    },
    /// `NVA06C_CTRL_CMD_GPFIFO_SCHEDULE`.
    Schedule {
        /// Through what.
        own: Own,
        /// Of which TSG.
        tsg: u32,
        /// On or off its runlist.
        enable: bool,
    },
    /// A control that the agent has no call for, on an object of the worker's own client, through its own
    /// control file. `value`: RM's status.
    Control {
        /// Through what.
        own: Own,
        /// Of which object.
        object: u32,
        /// Which.
        cmd: u32,
        /// Its parameters' bytes; what the driver writes there is not told.
        parameters: Vec<u8>,
    },
    /// Disables or enables channels as [`Op::Channels`], off their runlist only: what is on the hardware
    /// stays there.
    Unlist {
        /// Which.
        disable: bool,
        /// Through what, and which.
        own: Own,
    },
    /// Launches a graph of `tg_steps` kernels, one after the other, on the lane's stream.
    Graph {
        /// How many kernels.
        kernels: u64,
        /// Steps of each; each adds one to the progress.
        steps: u64,
        /// Length of a step.
        step_ns: u64,
        /// Blocks of 256 threads.
        blocks: u32,
    },
    /// Launches short kernels on the lane's stream, each waited for. `ns`: the median of the times from launch
    /// to return, `value`: the longest.
    Latency {
        /// How many.
        kernels: u32,
        /// Length of each.
        ns: u64,
        /// How long the stream is idle before each.
        gap_ns: u64,
    },
    /// Makes further contexts on the device and leaves the first one current. `value`: how many.
    Contexts {
        /// How many.
        more: u32,
    },
    /// Makes the objects on which the calls of [`crate::calls`] are made, on this lane.
    Scene,
    /// Gets a row of [`crate::calls`] ready and puts work before it.
    Prepare {
        /// Its name.
        row: String,
        /// Steps of the work; each adds one to the progress.
        steps: u64,
        /// Length of a step.
        step_ns: u64,
    },
    /// Makes the call of a row.
    Make {
        /// Its name.
        row: String,
    },
    /// Kernel progress so far; answered at once whatever the lanes do. `value`: the counter.
    Progress,
    /// What the worker enables by itself when its input ends.
    Hold {
        /// Through what, and which.
        own: Own,
    },
}

/// Channels of a worker and what its own control calls need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Own {
    /// Descriptor of its control file.
    pub fd: i32,
    /// Its RM client.
    pub client: u32,
    /// A subdevice of that client.
    pub subdevice: u32,
    /// Channels of that client.
    pub channels: Vec<u32>,
}
