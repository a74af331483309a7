//! Records the decisions of a node, and makes them again from the recording.
//!
//! `tidegate-agent --record FILE` writes every event that the policy takes and every effect that it
//! answers with. The policy is a function of its settings and those events, so replaying them
//! must give the same effects in the same order, to the last field: [`replay`] checks that. A
//! recording from a machine on which something went wrong can therefore be inspected on any other machine, and changed
//! rules can be tried on it.
//!
//! ```text
//!   tidegate-decisions 4 GPUS STARTED            first line
//!   config FIELD...                              times in ns
//!   event NOW NAME FIELD...                      what the policy was told, and when
//!   effect TEXT                                  what it answered; one line for each
//!   lost COUNT                                   so many lines are missing here
//! ```
//!
//! The tables of [`gate`], [`lease`] and [`memory`] have a row for each event; [`fields`] says how each type stands in a
//! line. [`again`] reads a recording. It also reads format 3, whose settings lack an SLO, and format 2, which in addition
//! has other words for four effects ([`former`]).

#![forbid(unsafe_code)]

mod again;
mod fields;
mod former;
mod gate;
mod lease;
mod memory;
mod settings;

use std::fmt;
use std::io::Write;

use tidegate_policy::config::Config;
use tidegate_policy::effect::Effect;
use tidegate_policy::event::Event;
use tidegate_policy::time::Instant;

pub use again::{Replayed, replay, replay_with};
use settings::config_fields;

const MAGIC: &str = "tidegate-decisions 4";
/// The most numbers that a line of an event without lists has.
const MOST: usize = 11;
/// Not told to the policy as an event.
const CONFIGURED: &str = "configured";

/// Why a recording cannot be replayed, or what differed.
#[derive(Debug, thiserror::Error)]
pub enum DecisionsError {
    /// It cannot be read.
    #[error("cannot read the recording")]
    Read(#[from] std::io::Error),
    /// A line that does not belong to a recording.
    #[error("line {line}: not a recording of this version: {text:?}")]
    Format {
        /// From 1.
        line: usize,
        /// The line.
        text: String,
    },
    /// Lines are missing.
    #[error(
        "line {line}: {count} lines were not written: the disk was too slow; nothing after this can be replayed"
    )]
    Lost {
        /// From 1.
        line: usize,
        /// How many.
        count: u64,
    },
    /// The policy decided otherwise.
    #[error("line {line}: recorded {recorded:?}, replayed {replayed:?}")]
    Differs {
        /// From 1.
        line: usize,
        /// What the node did.
        recorded: Option<String>,
        /// What the policy says.
        replayed: Option<String>,
    },
}

/// One entry of a recording.
#[derive(Debug)]
pub enum Entry<'a> {
    /// What the policy was told.
    Event(&'a Event<'a>),
    /// Other settings are in force from here on.
    Configured,
    /// What the policy answered.
    Effect(&'a Effect),
}

/// Writes what begins a recording.
///
/// # Errors
/// When it cannot be written.
pub fn write_start(
    out: &mut impl Write,
    config: &Config,
    gpus: u8,
    now: Instant,
) -> std::io::Result<()> {
    writeln!(out, "{MAGIC} {gpus} {}", now.as_nanos())?;
    write!(out, "config")?;
    for field in config_fields(config) {
        write!(out, " {field}")?;
    }
    writeln!(out)
}

/// Writes one event.
///
/// # Errors
/// When it cannot be written.
pub fn write_event(out: &mut impl Write, event: &EventLine) -> std::io::Result<()> {
    writeln!(out, "{event}")
}

/// One event as its line, without the line end. An event of the gate is kept as numbers and allocates nothing. An event
/// about memory contains lists, and is formatted at once.
#[derive(Clone, Debug)]
pub struct EventLine(Line);

#[derive(Clone, Debug)]
enum Line {
    Numbers {
        now: Instant,
        name: &'static str,
        fields: [u64; MOST],
        count: usize,
    },
    Text(String),
}

impl EventLine {
    /// The line of an event that the policy takes at `now`.
    #[must_use]
    pub fn of(event: &Event<'_>, now: Instant) -> Self {
        if let Event::Memory(event) = event {
            return Self(Line::Text(memory::line(event, now)));
        }
        let (mut fields, mut count) = ([0; MOST], 0);
        let mut put = |field| {
            if let Some(place) = fields.get_mut(count) {
                (*place, count) = (field, count + 1);
            }
        };
        let name = match event {
            Event::Lease(event) => lease::write(event, &mut put),
            event => gate::write(event, &mut put),
        };
        let name = name.unwrap_or_default();
        Self(Line::Numbers {
            now,
            name,
            fields,
            count,
        })
    }
}

impl fmt::Display for EventLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Line::Text(text) => f.write_str(text),
            Line::Numbers {
                now,
                name,
                fields,
                count,
            } => {
                write!(f, "event {} {name}", now.as_nanos())?;
                fields[..*count]
                    .iter()
                    .try_for_each(|field| write!(f, " {field}"))
            }
        }
    }
}

/// Writes that the node went on with other settings.
///
/// # Errors
/// When it cannot be written.
pub fn write_configured(
    out: &mut impl Write,
    config: &Config,
    now: Instant,
) -> std::io::Result<()> {
    write!(out, "event {} {CONFIGURED}", now.as_nanos())?;
    for field in config_fields(config) {
        write!(out, " {field}")?;
    }
    writeln!(out)
}

/// Writes one effect.
///
/// # Errors
/// When it cannot be written.
pub fn write_effect(out: &mut impl Write, effect: &Effect) -> std::io::Result<()> {
    writeln!(out, "effect {effect:?}")
}

/// Writes that `count` lines are missing.
///
/// # Errors
/// When it cannot be written.
pub fn write_lost(out: &mut impl Write, count: u64) -> std::io::Result<()> {
    writeln!(out, "lost {count}")
}

#[cfg(test)]
mod tests;
