//! The only file of the probes that reads a clock or sleeps.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use tidegate_agent::clock::{nanos, now_ns};

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

/// A date as `2026-01-31`, from seconds since 1970 (days to civil date, proleptic Gregorian).
#[must_use]
pub fn date(unix_seconds: u64) -> String {
    let days = i64::try_from(unix_seconds / 86_400).unwrap_or(0) + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(951_782_400), "2000-02-29");
        assert_eq!(date(1_795_219_199), "2026-11-20");
    }
}
