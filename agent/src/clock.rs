//! The only file of the agent that reads a clock.
//!
//! Everything but [`unix_ns`] and [`unix_ms`] is `CLOCK_MONOTONIC` nanoseconds, the clock of the shared page and of the RM
//! shim, so that a stamp made here compares with one made in another process of the node.

use std::time::Duration;

/// Now.
#[must_use]
pub fn now_ns() -> u64 {
    crate::sys::monotonic_ns()
}

/// The calendar's time in nanoseconds since 1970, for what is read days later. Never for a decision of the agent's; what
/// `place tend` remembers has to outlast a boot, and bears a calendar that is set anew.
#[must_use]
pub fn unix_ns() -> u64 {
    crate::sys::realtime_ns()
}

/// The same in milliseconds.
#[must_use]
pub fn unix_ms() -> u64 {
    unix_ns() / 1_000_000
}

/// `now` as policy counts it.
#[must_use]
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
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

/// `2026-01-31T12:34:56.123456Z`, from nanoseconds since 1970: as the log has it.
#[must_use]
pub fn stamp(unix_ns: u64) -> String {
    let seconds = unix_ns / 1_000_000_000;
    let of_day = seconds % 86_400;
    format!(
        "{}T{:02}:{:02}:{:02}.{:06}Z",
        date(seconds),
        of_day / 3_600,
        of_day / 60 % 60,
        of_day % 60,
        unix_ns / 1_000 % 1_000_000
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(951_782_400), "2000-02-29");
        assert_eq!(date(1_795_219_199), "2026-11-20");
        assert_eq!(
            stamp(1_795_219_199_012_345_678),
            "2026-11-20T23:59:59.012345Z"
        );
    }
}
