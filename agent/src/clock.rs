//! The only file of the agent that reads a clock.
//!
//! Everything but [`unix_ms`] is `CLOCK_MONOTONIC` nanoseconds, the clock of the shared page and of the RM shim, so
//! that a stamp made here compares with one made in another process of the node.

use std::time::Duration;

/// Now.
#[must_use]
pub fn now_ns() -> u64 {
    crate::sys::monotonic_ns()
}

/// The calendar's time in milliseconds since 1970, for what is read days later. Never for a decision.
#[must_use]
pub fn unix_ms() -> u64 {
    crate::sys::realtime_ms()
}

/// `now` as policy counts it.
#[must_use]
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
