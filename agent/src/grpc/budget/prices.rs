//! Prices of what messages list, in thousandths of one that lists nothing.
//!
//! Measured on the agent's threads, not written by hand: `TIDEGATE_REGENERATE=1 cargo test -p tidegate-fuzz --test prices`
//! writes this file, and the same test without that variable compares it with what it measures.

/// Of a change to a process' RM objects.
pub const CHANGE: u64 = 25;

/// Of a request with blocks or one that is forgotten, and of a kind of stripes or a stripe that is described by itself.
pub const RUN: u64 = 27;

/// Of a block that a request holds, beside its bytes.
pub const BLOCK: u64 = 3;

/// Of a cache that comes or goes, beside what it lists.
pub const CACHED: u64 = 150;

/// Of a stripe of a cache, or one that was moved.
pub const STRIPE: u64 = 2;

/// All of them, by name.
pub const ALL: [(&str, u64); 5] = [
    ("CHANGE", CHANGE),
    ("RUN", RUN),
    ("BLOCK", BLOCK),
    ("CACHED", CACHED),
    ("STRIPE", STRIPE),
];
