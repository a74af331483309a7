//! What the node did over days, on disk in a file of fixed size, for `tidegate report`.
//!
//! Time is cut into *slices* (a minute, as configured). Of each slice the file holds one [`Slice`] per
//! GPU, per pair of GPUs and per offline job, per GPU whose memory is shared, and those of open gates, each in one record of [`record::SIZE`] bytes with a number
//! and a checksum. The newest record overwrites the oldest ([`Ring`]), so the file never grows. A record
//! that a crash or a reader caught half written fails its checksum and is as if it were not there.
//!
//! [`Cut`] makes slices of the totals that the control thread keeps; `summary` makes a report of slices.
//! Both are pure.

pub mod cut;
pub mod record;
pub mod ring;
pub mod summary;

pub use cut::Cut;
pub use ring::{Ring, read};

use tidegate_node::usage::GAP_BOUNDS_NS;
use tidegate_policy::placement::LEVELS;

/// Counts of gaps in a slice: up to each bound, and above all.
pub const GAPS: usize = GAP_BOUNDS_NS.len() + 1;

/// When a slice was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Its end by the calendar, in milliseconds since 1970.
    pub end_unix_ms: u64,
    /// Its length by the clock that never jumps, ns.
    pub length_ns: u64,
}

/// One GPU in one slice. Times in ns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuSlice {
    /// Index of the GPU.
    pub gpu: u16,
    /// An online process was busy.
    pub busy: u64,
    /// The gate was open.
    pub open: u64,
    /// An offline job's work could be on it.
    pub running: u64,
    /// Busy edges.
    pub edges: u32,
    /// Times the gate opened; 0 also where an older agent wrote this.
    pub openings: u32,
    /// Times offline was taken off it.
    pub preemptions: u32,
    /// Times offline got it back.
    pub wakes: u32,
    /// Times an online engine used nine tenths of its memory.
    pub pressure: u32,
    /// Idle gaps of online that ended, by length ([`GAP_BOUNDS_NS`]).
    pub gaps: [u32; GAPS],
    /// Their sum.
    pub gap_sum: u64,
    /// Sum of their squares, s^2.
    pub gap_squares: f64,
    /// Memory online and offline share, bytes; 0: they do not.
    pub pool: u64,
    /// Of it not used by online nor kept for it: the mean, and the least.
    pub available_mean: u64,
    /// See there.
    pub available_min: u64,
}

/// Two GPUs in one slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PairSlice {
    /// The lower index.
    pub a: u16,
    /// The higher.
    pub b: u16,
    /// Online was busy on both, ns.
    pub both: u64,
    /// Online was busy on at least one, ns.
    pub either: u64,
}

/// One offline job in one slice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobSlice {
    /// Its name, cut to [`record::NAME`] bytes.
    pub name: String,
    /// Whose it is; None: written by an agent that did not say.
    pub uid: Option<u32>,
    /// Bit i: it uses GPU i.
    pub gpus: u64,
    /// It had a process, ns.
    pub attached: u64,
    /// Its work could be on its GPUs, ns.
    pub running: u64,
    /// Launches of its processes.
    pub launches: u64,
    /// Useful units of work, as they count them; 0: they count none.
    pub units: u64,
    /// Units that memory which was taken has it compute again.
    pub lost: u64,
    /// An operator had paused it or drained the node, ns.
    pub paused: u64,
    /// Memory that it held of the pools, bytes x s.
    pub held: u64,
    /// It was attached and could run for all of the slice: its launches then are its standalone rate.
    pub undisturbed: bool,
}

/// The sets of gates that were open in one slice, [`record::SETS`] in each record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenSlice {
    /// Which of the slice's records, from 0. The first is always there.
    pub part: u16,
    /// In the first: time of sets that found no room, ns, to be taken for closed.
    pub uncounted: u64,
    /// Bit i of the first: the gate of GPU i was open, all others closed; for so many ns.
    pub sets: Vec<(u64, u64)>,
}

/// Memory of one GPU in one slice, where online and offline share it, by eighths of the pool that online left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySlice {
    /// Index of the GPU.
    pub gpu: u16,
    /// What is shared, bytes.
    pub pool: u64,
    /// Bytes by which what online leaves fell, gate open or closed.
    pub fallen: u64,
    /// Time in which the gate was open, ns.
    pub open: [u64; LEVELS],
    /// The mean in that time, bytes.
    pub mean: [u64; LEVELS],
}

/// What a slice is about.
#[derive(Clone, Debug, PartialEq)]
pub enum Subject {
    /// One GPU.
    Gpu(GpuSlice),
    /// Two.
    Pair(PairSlice),
    /// A job.
    Job(JobSlice),
    /// Gates that were open together.
    Open(OpenSlice),
    /// Memory of one GPU.
    Memory(MemorySlice),
}

/// One record.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    /// When.
    pub span: Span,
    /// What.
    pub subject: Subject,
}
