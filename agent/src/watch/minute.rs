//! Which events have a line in the log: those that are rare. Preemptions and turns come by the thousand, and a minute of
//! them is one line with their counts. `tidegate events` has every one of them, and so has the log at level `debug`.

use super::kinds::Kind;
use std::collections::BTreeMap;
use std::fmt::Write;
use tidegate_node::ports::NodeEvent;

/// A line with counts covers so much time, ns.
const MINUTE_NS: u64 = 60_000_000_000;
/// Warnings of one kind that a minute has lines for. Further ones are counted.
const WARNINGS: u64 = 3;

/// What becomes of an event in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// A warning.
    Warning,
    /// A line at the default level.
    Info,
    /// A line at level `debug`: the minute's line counts it.
    Detail,
}

/// Events of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// All of them.
    all: u64,
    /// Those that the minute's line counts.
    counted: u64,
    /// The longest of those, ns.
    longest_ns: u64,
}

/// The events of a minute, by kind. The first event begins it.
#[derive(Debug, Default)]
pub struct Minute {
    ends_ns: Option<u64>,
    counts: BTreeMap<&'static str, Count>,
}

impl Minute {
    /// An event came.
    pub fn hear(&mut self, event: &NodeEvent, kind: Option<&Kind>) -> Line {
        let frequent = kind.is_some_and(|kind| kind.frequent);
        let warns = kind.is_some_and(|kind| kind.warns);
        if !frequent && !warns {
            return Line::Info;
        }
        self.ends_ns.get_or_insert(event.at_ns + MINUTE_NS);
        let count = self.counts.entry(event.kind).or_default();
        count.all += 1;
        if warns && count.all <= WARNINGS {
            return Line::Warning;
        }
        count.counted += 1;
        count.longest_ns = count.longest_ns.max(event.value_ns);
        Line::Detail
    }

    /// When the minute ends, if one has begun.
    #[must_use]
    pub const fn ends_ns(&self) -> Option<u64> {
        self.ends_ns
    }

    /// The line of a minute that is over at `now`, if it has anything to count.
    pub fn over(&mut self, now: u64) -> Option<String> {
        self.ends_ns.take_if(|ends| *ends <= now)?;
        let mut line = String::new();
        for (kind, count) in std::mem::take(&mut self.counts) {
            if count.counted == 0 {
                continue;
            }
            let more = if count.all > count.counted {
                " more"
            } else {
                ""
            };
            let before = if line.is_empty() { "" } else { ", " };
            let longest = match count.longest_ns / 1_000 {
                0 => String::new(),
                us => format!(" (longest {us} us)"),
            };
            // Writing to a string never fails.
            let _ = write!(line, "{before}{}{more} {kind}{longest}", count.counted);
        }
        (!line.is_empty()).then_some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::kinds::kind;

    const SECOND: u64 = 1_000_000_000;

    fn event(kind: &'static str, at_ns: u64, value_ns: u64) -> NodeEvent {
        NodeEvent {
            at_ns,
            kind,
            value_ns,
            ..NodeEvent::default()
        }
    }

    /// P-OPERATE-23: five minutes of two jobs that take turns, as an operator measured them: 1,458 turns, 371 preemptions,
    /// and a driver that stalls now and then.
    #[test]
    fn five_minutes_of_two_jobs_are_at_most_twenty_lines() {
        let mut minute = Minute::default();
        let (mut lines, mut all) = (Vec::new(), 0);
        for tick in 0..300_000_u64 {
            let now = 7 * SECOND + tick * 1_000_000;
            lines.extend(minute.over(now));
            let mut hear = |name| {
                all += 1;
                let line = minute.hear(&event(name, now, tick * 1_000), kind(name));
                if line != Line::Detail {
                    lines.push(name.to_owned());
                }
            };
            if tick % 206 == 0 {
                hear("woken");
            }
            if tick % 808 == 0 {
                hear("preempted");
            }
            if tick % 100_000 == 0 {
                hear("issue_stalled");
            }
        }
        lines.extend(minute.over(u64::MAX));
        assert!(lines.len() <= 20, "{lines:?}");
        // Nothing is lost: the lines add up to what came.
        let numbers = lines.iter().flat_map(|line| line.split(", "));
        let sum: u64 = numbers
            .map(|part| {
                let number = part.split(' ').next().unwrap_or_default();
                number.parse().unwrap_or(1)
            })
            .sum();
        assert_eq!(sum, all, "{lines:?}");
    }

    #[test]
    fn a_minute_says_the_longest_and_begins_with_the_first_event_after_it() {
        let mut minute = Minute::default();
        assert_eq!(minute.ends_ns(), None);
        let mut hear = |name, at, value| minute.hear(&event(name, at, value), kind(name));
        assert_eq!(hear("attached", SECOND, 0), Line::Info);
        assert_eq!(hear("preempted", 2 * SECOND, 900_000), Line::Detail);
        assert_eq!(hear("preempted", 3 * SECOND, 1_200_000), Line::Detail);
        let warnings = [(); 5].map(|()| hear("denied", 3 * SECOND, 0));
        assert_eq!(warnings[2..4], [Line::Warning, Line::Detail]);
        assert_eq!(minute.over(61 * SECOND), None, "it is not over");
        let line = minute.over(62 * SECOND).expect("it is over");
        assert_eq!(line, "2 more denied, 2 preempted (longest 1200 us)");
        assert_eq!((minute.over(u64::MAX), minute.ends_ns()), (None, None));
    }
}
