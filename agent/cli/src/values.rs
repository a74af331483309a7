//! Values that commands take, from text.

use clap::builder::{PossibleValue, TypedValueParser};
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
