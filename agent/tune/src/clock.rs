//! The only file of the crate that reads a clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970, as OpenAI's objects say times and as a day of a quota begins.
#[must_use]
pub fn unix_seconds() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "this is clock.rs")]
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
