//! Values that commands take, from text.

use clap::builder::{PossibleValue, TypedValueParser};
use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use std::error::Error;
use std::ffi::OsStr;
use std::time::Duration;
use tidegate_driver::device::Device;

/// A value that is read in a way of its own, with words that a shell completes. Other words may be taken too.
pub(super) struct Known<T, E> {
    words: Vec<&'static str>,
    read: fn(&str) -> Result<T, E>,
}

impl<T, E> Clone for Known<T, E> {
    fn clone(&self) -> Self {
        Self {
            words: self.words.clone(),
            read: self.read,
        }
    }
}

/// Of these `words` a shell offers those that fit.
pub(super) fn known<T, E>(
    words: impl IntoIterator<Item = &'static str>,
    read: fn(&str) -> Result<T, E>,
) -> Known<T, E> {
    let words = words.into_iter().collect();
    Known { words, read }
}

impl<T, E> TypedValueParser for Known<T, E>
where
    T: Clone + Send + Sync + 'static,
    E: Into<Box<dyn Error + Send + Sync>> + Send + Sync + 'static,
{
    type Value = T;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        self.read.parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.words.iter().copied().map(PossibleValue::new)))
    }
}

/// Whatever it is.
pub(super) fn any(text: &str) -> Result<String, String> {
    Ok(text.to_owned())
}

pub(super) fn recording(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|s| (0.1..=3_600.0).contains(s));
    seconds.ok_or_else(|| "give a number of seconds from 0.1 to 3600".to_owned())
}

/// A time back from now, in nanoseconds: "90s", "30m", "12h", "7d".
pub(super) fn ago(text: &str) -> Result<u64, String> {
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let seconds = match unit {
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => 0,
    };
    let number = number.parse::<u64>().ok();
    let ns = number.and_then(|number| number.checked_mul(seconds * 1_000_000_000));
    ns.filter(|&ns| ns != 0)
        .ok_or_else(|| "give a number and one of s, m, h, d".to_owned())
}

/// How far back a moment is, in nanoseconds: as [`ago`], or as a clock says it, in this machine's zone or, with a Z, in
/// UTC: "03:00", "2026-11-28 03:00", "2026-11-28T03:00:00Z", "today", "yesterday".
pub(super) fn since(text: &str) -> Result<u64, String> {
    ago(text).or_else(|_| back(text, &Zoned::now()))
}

/// As [`since`], seen from `now`. A time of day is the last one that has passed.
fn back(text: &str, now: &Zoned) -> Result<u64, String> {
    const WANTED: &str = "give a number and one of s, m, h, d, or a time: 03:00, \"2026-11-28 03:00\", today, yesterday \
                          (in this machine's zone; with a Z behind it in UTC)";
    let (clock, zone) = match text.strip_suffix(['Z', 'z']) {
        Some(clock) => (clock, TimeZone::UTC),
        None => (text, now.time_zone().clone()),
    };
    let here = now.with_time_zone(zone.clone());
    let moment = match clock {
        "today" => here.start_of_day(),
        "yesterday" => here.yesterday().and_then(|day| day.start_of_day()),
        _ => {
            // A date with a time parses as a time of day, too.
            if let Ok(stamp) = text.parse::<Timestamp>() {
                Ok(stamp.to_zoned(zone))
            } else if let Ok(datetime) = clock.parse::<DateTime>() {
                datetime.to_zoned(zone)
            } else {
                let time = clock.parse::<Time>();
                let today = time
                    .clone()
                    .and_then(|time| here.date().to_datetime(time).to_zoned(zone.clone()));
                match (today, time) {
                    (Ok(today), Ok(time)) if today > here => here
                        .date()
                        .yesterday()
                        .and_then(|day| day.to_datetime(time).to_zoned(zone)),
                    (today, _) => today,
                }
            }
        }
    };
    let moment = moment.map_err(|_| WANTED.to_owned())?;
    let ns = now.timestamp().as_nanosecond() - moment.timestamp().as_nanosecond();
    match u64::try_from(ns) {
        Ok(0) | Err(_) => Err(format!("{moment} is not in the past")),
        Ok(ns) => Ok(ns),
    }
}

/// A time: "2s", "10min", "1h".
pub(super) fn span(text: &str) -> Result<Duration, String> {
    let time = tidegate_agent::config::duration(text).filter(|time| !time.is_zero());
    time.ok_or_else(|| "give a number and one of ms, s, min, h".to_owned())
}

/// The device a command is about: as given, else what the last agent used, else the machine's own.
pub(super) fn device_of(given: Option<&str>, last: Option<String>) -> anyhow::Result<Device> {
    let device = given.map(str::to_owned).or(last);
    let device = device.unwrap_or_else(|| Device::Real.to_string());
    device
        .parse()
        .map_err(|error| anyhow::anyhow!("device `{device}`: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P-OPERATE-24: times as a clock says them, in the machine's zone or UTC, also on the day that a clock is put back.
    #[test]
    fn a_moment_is_a_time_back_or_what_a_clock_said() {
        // Central European Time, the night in which summer time ended: 03:00 summer time became 02:00.
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("a zone");
        let now = "2026-10-25T07:30:00Z".parse::<Timestamp>();
        let now = now.expect("a moment").to_zoned(zone);
        let hours = |text: &str| back(text, &now).map(|ns| ns as f64 / 3.6e12);
        for (text, wanted) in [
            ("08:00", 0.5),
            ("09:00", 24.5),
            ("00:00", 9.5),
            ("today", 9.5),
            ("yesterday", 33.5),
            ("2026-10-24 22:00", 11.5),
            ("2026-10-20 22:00", 107.5),
            ("2026-10-25", 9.5),
            ("2026-10-24T22:00:00", 11.5),
            ("2026-10-24 22:00Z", 9.5),
            ("2026-10-24T22:00:00Z", 9.5),
            ("2026-10-24T22:00:00+02:00", 11.5),
            ("07:00Z", 0.5),
            ("todayZ", 7.5),
        ] {
            assert_eq!(hours(text), Ok(wanted), "{text}");
        }
        for wrong in [
            "",
            "noon",
            "25:00",
            "2026-13-01 00:00",
            "10x",
            "2027-01-01 00:00",
        ] {
            let why = back(wrong, &now).expect_err(wrong);
            assert!(
                why.contains("03:00") || why.contains("not in the past"),
                "{why}"
            );
        }
        assert_eq!(since("2h"), Ok(7_200_000_000_000));
    }
}
