//! What online does by itself: what some policies know of the future.

use std::time::Duration;

use crate::record::Outcome;

/// A stretch of time without online work on the GPU, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// When the GPU fell idle.
    pub from: u64,
    /// When online used it again.
    pub to: u64,
    /// Arrival of the oldest request in flight at its end: `to` itself after a pause.
    pub oldest: u64,
}

/// What online uses at a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// When, in ns.
    pub at: u64,
    /// Bytes of whole handles.
    pub bytes: u64,
    /// How long online had been idle in all, in ns.
    pub idle: u64,
}

/// What online does by itself.
#[derive(Clone, Debug, Default)]
pub struct Alone {
    /// The run.
    pub outcome: Outcome,
    /// Every idle time before the last token, decode gaps included.
    pub stretches: Vec<Stretch>,
    /// What it uses at each launch.
    pub demand: Vec<Demand>,
    /// The longest decode gap.
    pub longest_gap: Duration,
    /// Most KV cache in use, bytes.
    pub kv_peak_bytes: u64,
}
