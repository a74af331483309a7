//! The tests' clock: deadlines, never durations that decide a verdict.
#![expect(
    clippy::disallowed_methods,
    reason = "the one file of the tests that reads a clock"
)]

use std::time::{Duration, Instant};

/// How long a test waits for something that must happen before it fails.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// `CLOCK_MONOTONIC` in nanoseconds, comparable with the shared page and the device's history.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid timespec to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Asks `look` until it answers, and panics with `what` when [`DEADLINE`] passes first.
///
/// # Panics
/// When the deadline passes.
#[track_caller]
pub fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    wait_until(DEADLINE, look).unwrap_or_else(|| panic!("waited {DEADLINE:?} for {what}"))
}

/// Asks `look` until it answers or `limit` passes.
pub fn wait_until<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if Instant::now() >= end {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
