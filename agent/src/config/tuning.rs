//! Times and counts an operator may tune: each with its unit, its default, what it trades, and the range
//! in which the rest of the design still holds.

use super::{ConfigError, Row};
use std::time::Duration;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// See each field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// `gate.frozen_after`: activity of an online process whose prober has made no progress for this long
    /// no longer closes gates. Shorter wakes offline beside a process that is only slow; longer lets a
    /// stopped one hold the GPU.
    pub frozen_after: Duration,
    /// `gate.cooldown_min`: shortest learnt cooldown. Below the time that a disable and an enable take
    /// (about 1 ms) a wake costs more than it gives.
    pub cooldown_min: Duration,
    /// `gate.cooldown_max`: longest learnt cooldown, and the one in force until enough gaps were seen.
    pub cooldown_max: Duration,
    /// `gate.cooldown_window`: how long a decode gap counts. Longer is safer against rare long gaps and
    /// slower to harvest again after one.
    pub cooldown_window: Duration,
    /// `gate.start_hold`: how long a new agent keeps gates shut until online processes have attached.
    pub start_hold: Duration,
    /// `gate.probe_interval`: how often an online process that is busy asks whether its work is done.
    /// Shorter sees the end of a burst sooner and costs the process more.
    pub probe_interval: Duration,
    /// `channel.stall_after`: a driver call without an answer for this long is reported, and launches
    /// wait meanwhile.
    pub stall_after: Duration,
    /// `channel.answer_within`: how long a process may take at level L3 to disable its channels before
    /// that counts as failed.
    pub answer_within: Duration,
    /// `channel.schedule_hold`: how long a gated process' new channels wait to be put into the lists
    /// before they run ungated.
    pub schedule_hold: Duration,
    /// `channel.disable_retries`: failed disables in a row after which a job's launches are gated
    /// instead.
    pub disable_retries: u32,
    /// `limits.keep_alive`: how often an attached process is asked whether it listens, and how long it
    /// may take to say so. One that does not is cut off, and keeps what its page and channels say.
    pub keep_alive: Duration,
    /// `limits.messages_per_second`: what one process may say. Above it its stream is read slower.
    pub messages_per_second: u32,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            frozen_after: Duration::from_secs(5),
            cooldown_min: ms(2),
            cooldown_max: ms(200),
            cooldown_window: Duration::from_secs(60),
            start_hold: ms(500),
            probe_interval: Duration::from_micros(500),
            stall_after: ms(50),
            answer_within: ms(100),
            schedule_hold: Duration::from_secs(2),
            disable_retries: 3,
            keep_alive: ms(500),
            messages_per_second: 4_096,
        }
    }
}

/// A time: its path, the shortest and the longest it may be, and where it is kept.
struct Time(
    &'static str,
    Duration,
    Duration,
    fn(&mut Tuning) -> &mut Duration,
);

const HOUR: Duration = Duration::from_secs(3_600);

const TIMES: [Time; 10] = [
    // A prober's round takes up to a millisecond, and its process may be kept from running.
    Time("gate.frozen_after", ms(200), HOUR, |t| &mut t.frozen_after),
    Time("gate.cooldown_min", Duration::ZERO, ms(10_000), |t| {
        &mut t.cooldown_min
    }),
    Time("gate.cooldown_max", ms(1), ms(60_000), |t| {
        &mut t.cooldown_max
    }),
    Time("gate.cooldown_window", ms(1_000), HOUR, |t| {
        &mut t.cooldown_window
    }),
    Time("gate.start_hold", Duration::ZERO, ms(60_000), |t| {
        &mut t.start_hold
    }),
    // What the library can keep.
    Time(
        "gate.probe_interval",
        Duration::from_micros(200),
        ms(1),
        |t| &mut t.probe_interval,
    ),
    Time("channel.stall_after", ms(5), ms(10_000), |t| {
        &mut t.stall_after
    }),
    Time("channel.answer_within", ms(5), ms(10_000), |t| {
        &mut t.answer_within
    }),
    // A program sits in the driver meanwhile.
    Time("channel.schedule_hold", ms(10), ms(10_000), |t| {
        &mut t.schedule_hold
    }),
    // A busy machine may keep a process from answering for longer than this without anything wrong.
    Time("limits.keep_alive", ms(100), ms(60_000), |t| {
        &mut t.keep_alive
    }),
];

/// A count above 0: its path, and where it is kept.
struct Count(&'static str, fn(&mut Tuning) -> &mut u32);

const COUNTS: [Count; 2] = [
    Count("channel.disable_retries", |t| &mut t.disable_retries),
    Count("limits.messages_per_second", |t| &mut t.messages_per_second),
];

/// Every path here.
pub(super) fn paths() -> impl Iterator<Item = &'static str> {
    let times = TIMES.iter().map(|time| time.0);
    times.chain(COUNTS.iter().map(|count| count.0))
}

/// Takes a row; false when it is of another part.
pub(super) fn apply(tuning: &mut Tuning, row: &Row) -> Result<bool, ConfigError> {
    if let Some(Time(_, shortest, longest, at)) = TIMES.iter().find(|time| time.0 == row.key) {
        let time = row.duration()?;
        if time < *shortest || time > *longest {
            return Err(row.wrong(format!(
                "{time:?} is out of range: {shortest:?} to {longest:?}"
            )));
        }
        *at(tuning) = time;
        return Ok(true);
    }
    if let Some(Count(_, at)) = COUNTS.iter().find(|count| count.0 == row.key) {
        *at(tuning) = row.count()?;
        return Ok(true);
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;
    use std::path::Path;

    fn load(name: &str, value: &str) -> Result<Config, ConfigError> {
        let row = (name.to_owned(), value.to_owned());
        Config::load(Path::new("/nonexistent/agent.toml"), true, [row])
    }

    #[test]
    fn a_time_outside_its_range_is_refused_with_the_range() {
        let error = load("TIDEGATE_GATE__PROBE_INTERVAL", "5ms").expect_err("too long");
        let text = error.to_string();
        assert!(text.contains("5ms is out of range: 200µs to 1ms"), "{text}");
        let config = load("TIDEGATE_GATE__FROZEN_AFTER", "1s").expect("in range");
        assert_eq!(config.tuning.frozen_after, Duration::from_secs(1));
    }

    #[test]
    fn every_default_is_in_its_range() {
        let mut tuning = Tuning::default();
        for Time(path, shortest, longest, at) in TIMES {
            let time = *at(&mut tuning);
            assert!((shortest..=longest).contains(&time), "{path}");
        }
    }

    #[test]
    fn a_shortest_cooldown_above_the_longest_is_refused() {
        let error = load("TIDEGATE_GATE__COOLDOWN_MIN", "300ms").expect_err("above 200 ms");
        assert!(error.to_string().contains("gate.cooldown_min"), "{error}");
    }
}
