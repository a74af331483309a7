//! The kernel's clocks.

use nix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC` in nanoseconds.
#[must_use]
pub fn monotonic_ns() -> u64 {
    clock_ns(ClockId::CLOCK_MONOTONIC)
}

/// `CLOCK_REALTIME` in nanoseconds.
#[must_use]
pub fn realtime_ns() -> u64 {
    clock_ns(ClockId::CLOCK_REALTIME)
}

fn clock_ns(clock: ClockId) -> u64 {
    // Both clocks always exist on Linux.
    clock_gettime(clock).map_or(0, |at| {
        at.tv_sec().cast_unsigned() * 1_000_000_000 + at.tv_nsec().cast_unsigned()
    })
}
