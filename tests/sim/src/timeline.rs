//! One schedule on one time line: what its programs did, what policy received and ordered, what the device did, and
//! where a promise was broken.
//!
//! ```text
//!        time ms  who       what
//!         52.310  schedule  process 0 begins a request
//!         52.331  event     Activity { session: 1, gpu: 0, ... }
//!         52.331  effect    Disable { order: ... }
//!         52.702  device    GPU 0, process 1: channel 3 is disabled
//!   >>>   60.118  judge     offline woke on GPU 0 ...
//! ```
//!
//! It is only for readers; nothing is judged by it. A schedule that is not explained writes nothing.

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_node::ports;
use tidegate_policy::config::Config;
use tidegate_policy::effect::Effect;
use tidegate_policy::event::Event;
use tidegate_policy::time::Instant;

/// Who did something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The schedule: its programs, and what goes wrong with them.
    Schedule,
    /// What policy was told.
    Event,
    /// What policy answered.
    Effect,
    /// What the agent told people, and what its issue threads called.
    Agent,
    /// What the device did.
    Device,
    /// A promise was broken.
    Judge,
}

impl Who {
    const fn name(self) -> &'static str {
        match self {
            Self::Schedule => "schedule",
            Self::Event => "event",
            Self::Effect => "effect",
            Self::Agent => "agent",
            Self::Device => "device",
            Self::Judge => "judge",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    at_ns: u64,
    who: Who,
    /// Whom it happened to; empty: the text says so.
    whom: String,
    what: String,
    /// One of many alike, of which the first and the number say enough.
    often: bool,
}

/// The time line; its clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Timeline(Arc<Mutex<Vec<Line>>>);

impl Timeline {
    /// Something happened.
    pub fn put(&self, at_ns: u64, who: Who, what: impl Into<String>) {
        self.push(Line {
            at_ns,
            who,
            whom: String::new(),
            what: what.into(),
            often: false,
        });
    }

    /// Something happened that happens often; in a row, such lines of one `whom` become one.
    pub fn put_often(&self, at_ns: u64, who: Who, whom: impl Into<String>, what: &str) {
        self.push(Line {
            at_ns,
            who,
            whom: whom.into(),
            what: what.to_owned(),
            often: true,
        });
    }

    /// Policy was told something.
    pub fn put_event(&self, now: Instant, event: &Event<'_>) {
        self.put(now.as_nanos(), Who::Event, format!("{event:?}"));
    }

    /// Policy answered something.
    pub fn put_effect(&self, now: Instant, effect: &Effect) {
        self.put(now.as_nanos(), Who::Effect, format!("{effect:?}"));
    }

    fn push(&self, line: Line) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(line);
    }
}

impl ports::Recorder for Timeline {
    fn begin(&mut self, _config: &Config, gpus: u8, now: Instant) {
        let what = format!("a policy of {gpus} GPUs begins");
        self.put(now.as_nanos(), Who::Event, what);
    }

    fn configured(&mut self, _config: &Config, now: Instant, effects: &[Effect]) {
        self.put(now.as_nanos(), Who::Event, "configured anew");
        effects.iter().for_each(|one| self.put_effect(now, one));
    }

    fn stepped(&mut self, event: &Event<'_>, now: Instant, effects: &[Effect]) {
        self.put_event(now, event);
        effects.iter().for_each(|one| self.put_effect(now, one));
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        // Of one moment in the order in which it was written.
        lines.sort_by_key(|line| line.at_ns);
        let zero = lines.first().map_or(0, |line| line.at_ns);
        writeln!(f, "0 ms is CLOCK_MONOTONIC {zero} ns")?;
        writeln!(f, "      time ms  who       what")?;
        let alike = |one: &Line, other: &Line| {
            one.often && other.often && one.who == other.who && one.whom == other.whom
        };
        for run in lines.chunk_by(alike) {
            let [first, .., last] = run else {
                write_line(f, &run[0], zero, "")?;
                continue;
            };
            let more = run.len() - 1;
            let until = millis(last.at_ns - zero);
            let plural = if more == 1 { "" } else { "s" };
            let tail = format!(
                " (and {more} more such line{plural} up to {until} ms: {})",
                last.what
            );
            write_line(f, first, zero, &tail)?;
        }
        Ok(())
    }
}

fn write_line(f: &mut fmt::Formatter<'_>, line: &Line, zero: u64, tail: &str) -> fmt::Result {
    let mark = if line.who == Who::Judge { ">>>" } else { "" };
    let what = match line.who {
        Who::Event | Who::Effect => plain(&line.what, zero),
        _ => channels(&line.what),
    };
    let (at, who) = (millis(line.at_ns - zero), line.who.name());
    let colon = if line.whom.is_empty() { "" } else { ": " };
    let whom = &line.whom;
    writeln!(f, "{mark:3} {at:>9}  {who:<8}  {whom}{colon}{what}{tail}")
}

/// What `{:?}` says of channels, shorter: channel 3, or 3.1 where it is the second in the place of one that is gone.
fn channels(text: &str) -> String {
    const BEGIN: &str = "ChannelId(Key { index: ";
    let mut parts = text.split(BEGIN);
    let mut short = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let ended = part.split_once(" })");
        match ended.and_then(|(key, after)| Some((key.split_once(", generation: ")?, after))) {
            Some(((index, "0"), after)) => short += &format!("channel {index}{after}"),
            Some(((index, again), after)) => short += &format!("channel {index}.{again}{after}"),
            None => short += &format!("{BEGIN}{part}"),
        }
    }
    short
}

fn millis(ns: u64) -> String {
    format!("{}.{:03}", ns / 1_000_000, ns / 1_000 % 1_000)
}

/// What `{:?}` says of an event or effect, without the names of the types of its numbers: `GpuId(0)` is 0, and
/// `Instant(52331000)` is the time since the beginning, 52.331 ms.
fn plain(debug: &str, zero: u64) -> String {
    let mut text = String::new();
    let mut rest = debug;
    while let Some(open) = rest.find('(') {
        let (before, inside) = (&rest[..open], &rest[open + 1..]);
        let digits = inside.find(|c: char| !c.is_ascii_digit()).unwrap_or(0);
        let (number, after) = inside.split_at(digits);
        let named = before.rfind(|c: char| !c.is_ascii_alphanumeric());
        let (head, name) = before.split_at(named.map_or(0, |at| at + 1));
        match (number.parse::<u64>(), after.strip_prefix(')')) {
            (Ok(value), Some(after)) if name != "Some" => {
                text.push_str(head);
                let _ = match (name, value.checked_sub(zero)) {
                    ("Instant", _) if value == u64::MAX => write!(text, "never"),
                    ("Instant", Some(since)) => write!(text, "{} ms", millis(since)),
                    _ => write!(text, "{value}"),
                };
                rest = after;
            }
            _ => {
                text.push_str(&rest[..=open]);
                rest = inside;
            }
        }
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P-EQUIPMENT-14: a broken promise stands at its time.
    #[test]
    fn a_violation_stands_at_its_time_and_many_alike_are_one_line() {
        let timeline = Timeline::default();
        for at in 1..=3 {
            timeline.put_often(at * 1_000_000, Who::Device, "GPU 0", "a kernel ends");
        }
        timeline.put(9_000_000, Who::Schedule, "the agent is killed");
        timeline.put(2_500_000, Who::Judge, "offline woke");
        let text = timeline.to_string();
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "        0.000  device    GPU 0: a kernel ends (and 1 more such line up to 1.000 ms: a kernel ends)",
                ">>>     1.500  judge     offline woke",
                "        2.000  device    GPU 0: a kernel ends",
                "        8.000  schedule  the agent is killed",
            ]
        );
    }

    #[test]
    fn channels_are_named_in_short() {
        let list = "[ChannelId(Key { index: 3, generation: 0 }), ChannelId(Key { index: 4, generation: 2 })] of GPU 0";
        assert_eq!(channels(list), "[channel 3, channel 4.2] of GPU 0");
        assert_eq!(
            channels("ChannelId(Key { index: 3"),
            "ChannelId(Key { index: 3"
        );
    }

    #[test]
    fn numbers_stand_without_their_types() {
        let debug =
            "Gone { session: SessionId(3), at: Instant(5200000), job: Some(JobId(1)), n: Some(2) }";
        assert_eq!(
            plain(debug, 200_000),
            "Gone { session: 3, at: 5.000 ms, job: Some(1), n: Some(2) }"
        );
    }
}
