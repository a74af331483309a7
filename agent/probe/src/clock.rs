//! The only file of the probes that reads a clock or sleeps.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use tidegate_agent::clock::{date, nanos, now_ns};

/// Seconds since 1970, for the head of a result.
#[must_use]
pub fn unix_seconds() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "this is clock.rs")]
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Waits: probes let hardware do something, or nothing, for a stated time.
pub fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// Asks until something is so; `None` when it is not before `limit` is over.
pub fn until<T>(limit: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let end = now_ns().saturating_add(nanos(limit));
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if now_ns() >= end {
            return None;
        }
        pause(Duration::from_millis(1));
    }
}
