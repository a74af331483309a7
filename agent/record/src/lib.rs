//! A node's decisions, recorded as they were made, and made again from what it was told.
//!
//! `tidegate-agent --record FILE` writes every event that its policy takes and every effect that the
//! policy answers with. The policy is a function of its settings and those events, so replaying them
//! must give the same effects in the same order, to the last field: [`replay`] checks that. A
//! recording from a machine where something went wrong can so be looked at, and changed rules tried
//! on it, anywhere.
//!
//! ```text
//!   tidegate-decisions 4 GPUS STARTED            first line
//!   config FIELD...                              times in ns
//!   event NOW NAME FIELD...                      what the policy was told, and when
//!   effect TEXT                                  what it answered; one line for each
//!   lost COUNT                                   so many lines are missing here
//! ```
//!
//! What is told about memory has lists, and its lines are made and read in [`memory`]; what is told about leases in
//! [`lease`]. Format 3 has settings
//! without an SLO, and format 2 other words for four effects besides ([`former`]); both are read too.

#![forbid(unsafe_code)]

mod former;
mod lease;
mod memory;
mod settings;

use std::fmt;
use std::io::{BufRead, Write};
use std::time::Duration;

use tidegate_policy::config::Config;
use tidegate_policy::effect::Effect;
use tidegate_policy::event::{Event, Order, Reading, Standing};
use tidegate_policy::fair::{Class, Lacks, Terms};
use tidegate_policy::gap::Turns;
use tidegate_policy::ids::{
    Channels, Generation, GpuId, GpuSet, GraphId, JobId, Launches, RequestId, SessionId, UserId,
};
use tidegate_policy::memory::MemoryEvent;
use tidegate_policy::node::Node;
use tidegate_policy::time::Instant;

use settings::{config_fields, config_of};

const MAGIC: &str = "tidegate-decisions 4";
/// Not told to the policy as an event.
const CONFIGURED: &str = "configured";

/// Why a recording cannot be replayed, or what differed.
#[derive(Debug, thiserror::Error)]
pub enum DecisionsError {
    /// It cannot be read.
    #[error("cannot read the recording")]
    Read(#[from] std::io::Error),
    /// A line that is none of a recording.
    #[error("line {line}: not a recording of this version: {text:?}")]
    Format {
        /// From 1.
        line: usize,
        /// What stands there.
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

/// What a recording has, in order.
#[derive(Debug)]
pub enum Entry<'a> {
    /// What the policy was told.
    Event(&'a Event<'a>),
    /// It goes on with other settings.
    Configured,
    /// What it answered.
    Effect(&'a Effect),
}

/// What was replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Events taken.
    pub events: u64,
    /// Effects compared.
    pub effects: u64,
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

/// One event as its line, without the end. To make one of the gate allocates nothing: it holds the numbers. One of
/// memory, which carries lists, is written out at once.
#[derive(Clone, Debug)]
pub struct EventLine(Line);

#[derive(Clone, Debug)]
enum Line {
    Numbers {
        now: Instant,
        name: &'static str,
        fields: [u64; lease::FIELDS],
        count: usize,
    },
    Text(String),
}

impl EventLine {
    /// What the policy was told at `now`.
    #[must_use]
    pub fn of(event: &Event<'_>, now: Instant) -> Self {
        if let Event::Memory(event) = event {
            return Self(Line::Text(memory::line(event, now)));
        }
        let (name, fields, count) = match event {
            Event::Lease(event) => lease::fields(event),
            event => event_fields(event),
        };
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

/// Feeds a recording to a node of its own and compares what it answers with what was recorded.
///
/// # Errors
/// When the recording is not one, has holes, or differs.
pub fn replay(recording: impl BufRead) -> Result<Replayed, DecisionsError> {
    replay_with(recording, |_, _| {})
}

/// As [`replay`], and shows each entry on the way.
///
/// # Errors
/// As [`replay`]; what comes before has been shown.
pub fn replay_with(
    recording: impl BufRead,
    mut show: impl FnMut(Instant, Entry<'_>),
) -> Result<Replayed, DecisionsError> {
    let mut node: Option<Node> = None;
    let mut start = None;
    let mut is_former = false;
    let mut expected = std::collections::VecDeque::new();
    let mut effects = Vec::new();
    let mut replayed = Replayed::default();
    let mut last = 0;
    for (index, text) in recording.lines().enumerate() {
        let (line, text) = (index + 1, text?);
        last = line;
        let bad = || DecisionsError::Format {
            line,
            text: text.chars().take(120).collect(),
        };
        let (kind, rest) = text.split_once(' ').ok_or_else(bad)?;
        match (kind, &mut node) {
            ("tidegate-decisions", None) => {
                let (version, rest) = rest.split_once(' ').ok_or_else(bad)?;
                is_former = match version {
                    "3" | "4" => false,
                    "2" => true,
                    _ => return Err(bad()),
                };
                start = Some(
                    numbers(rest)
                        .filter(|fields| fields.len() == 2)
                        .ok_or_else(bad)?,
                );
            }
            ("config", None) => {
                let start = start.take().ok_or_else(bad)?;
                let config = numbers(rest).and_then(|f| config_of(&f)).ok_or_else(bad)?;
                let gpus = u8::try_from(start[0]).map_err(|_| bad())?;
                node = Some(Node::new(config, gpus, Instant::from_nanos(start[1])));
            }
            ("event", Some(node)) => {
                differs(line, None, expected.pop_front())?;
                let mut words = rest.splitn(3, ' ');
                let now = words.next().and_then(|now| now.parse().ok());
                let name = words.next().ok_or_else(bad)?;
                let fields = numbers(words.next().unwrap_or_default()).ok_or_else(bad)?;
                let now = Instant::from_nanos(now.ok_or_else(bad)?);
                effects.clear();
                if name == CONFIGURED {
                    let config = config_of(&fields).ok_or_else(bad)?;
                    show(now, Entry::Configured);
                    node.configure(config, now, &mut effects);
                } else if let Some(name) = name.strip_prefix(memory::PREFIX) {
                    let step = |event: MemoryEvent<'_>| {
                        let event = event.into();
                        show(now, Entry::Event(&event));
                        node.step(event, now, &mut effects);
                    };
                    let name = if is_former {
                        former::memory_event(name)
                    } else {
                        name
                    };
                    memory::read(name, &fields, step).ok_or_else(bad)?;
                } else {
                    let event = lease::read(name, &fields).map(Event::Lease);
                    let event = event.or_else(|| event_of(name, &fields)).ok_or_else(bad)?;
                    show(now, Entry::Event(&event));
                    node.step(event, now, &mut effects);
                }
                for effect in &effects {
                    show(now, Entry::Effect(effect));
                }
                expected.extend(effects.iter().map(|effect| format!("{effect:?}")));
                replayed.events += 1;
            }
            ("effect", Some(_)) => {
                let recorded = if is_former {
                    former::effect(rest)
                } else {
                    rest.to_owned()
                };
                differs(line, Some(recorded), expected.pop_front())?;
                replayed.effects += 1;
            }
            ("lost", _) => {
                let count = rest.parse().map_err(|_| bad())?;
                return Err(DecisionsError::Lost { line, count });
            }
            _ => return Err(bad()),
        }
    }
    // A recording that was cut off may lack the effects of its last event.
    if node.is_none() {
        return Err(DecisionsError::Format {
            line: last + 1,
            text: String::new(),
        });
    }
    Ok(replayed)
}

fn differs(
    line: usize,
    recorded: Option<String>,
    replayed: Option<String>,
) -> Result<(), DecisionsError> {
    if recorded == replayed {
        return Ok(());
    }
    Err(DecisionsError::Differs {
        line,
        recorded,
        replayed,
    })
}

fn numbers(text: &str) -> Option<Vec<u64>> {
    text.split_whitespace()
        .map(|word| word.parse().ok())
        .collect()
}

fn terms_fields(job: JobId, terms: &Terms) -> [u64; 6] {
    [
        u64::from(job.0),
        u64::from(terms.user.0),
        u64::from(terms.user_weight),
        u64::from(terms.weight),
        u64::from(terms.class == Class::Idle),
        u64::from(terms.most),
    ]
}

/// What follows in the line of a library that counts turns; nothing in that of another.
const fn turns_of(fields: &[u64]) -> Option<Turns> {
    match *fields {
        [] => Some(Turns {
            count: 0,
            first: Launches(0),
            apart: Duration::ZERO,
        }),
        [count, first, apart, ..] => Some(Turns {
            count,
            first: Launches(first),
            apart: Duration::from_nanos(apart),
        }),
        _ => None,
    }
}

/// Name and fields of an event, and how many.
fn event_fields(event: &Event<'_>) -> (&'static str, [u64; lease::FIELDS], usize) {
    let order = |order: &Order| {
        [
            u64::from(order.gpu.0),
            u64::from(order.job.0),
            order.generation.0,
        ]
    };
    let job = |job: &Option<JobId>| job.map_or(0, |job| 1 + u64::from(job.0));
    if let Event::Activity {
        session,
        gpu,
        reading,
    } = event
    {
        let fields = [
            session.0,
            u64::from(gpu.0),
            reading.generation,
            u64::from(reading.busy),
            reading.busy_since.as_nanos(),
            reading.idle_since.as_nanos(),
            reading.launches.0,
            reading.graph.0,
            reading.turns.count,
            reading.turns.first.0,
            tidegate_policy::time::nanos(reading.turns.apart),
        ];
        // As before libraries counted turns, where one did not.
        let known = reading.turns != Turns::default();
        return ("activity", fields, if known { fields.len() } else { 8 });
    }
    let (name, fields): (_, &[u64]) = match event {
        Event::OnlineAttached { session } => ("online_attached", &[session.0]),
        Event::OnlineGone { session } => ("online_gone", &[session.0]),
        Event::Progress { session, at } => ("progress", &[session.0, at.as_nanos()]),
        Event::Suspected {
            session,
            gpu,
            suspect,
        } => (
            "suspected",
            &[session.0, u64::from(gpu.0), u64::from(*suspect)],
        ),
        Event::RequestStarted { session, request } => ("request_started", &[session.0, request.0]),
        Event::RequestEnded { session, request } => ("request_ended", &[session.0, request.0]),
        Event::OfflineAttached {
            session,
            job,
            gpus,
            standing,
        } => (
            "offline_attached",
            &[
                session.0,
                u64::from(job.0),
                gpus.iter().fold(0, |mask, gpu| mask | 1 << gpu.0),
                u64::from(*standing == Standing::Unknown),
            ],
        ),
        Event::OfflineGone { session } => ("offline_gone", &[session.0]),
        Event::Works { session, works } => ("works", &[session.0, u64::from(*works)]),
        Event::Groups {
            session,
            gpu,
            groups,
            lacks,
        } => (
            "groups",
            &[
                session.0,
                u64::from(gpu.0),
                u64::from(*groups),
                lacks.map_or(0, lacks_field),
            ],
        ),
        Event::SliceRefused { job, status } => {
            ("slice_refused", &[u64::from(job.0), u64::from(*status)])
        }
        Event::Terms { job, terms } => ("terms", &terms_fields(*job, terms)),
        Event::ChannelsChanged {
            session,
            gpu,
            channels,
            grown,
        } => (
            "channels_changed",
            &[
                session.0,
                u64::from(gpu.0),
                u64::from(channels.0),
                u64::from(*grown),
            ],
        ),
        Event::Disabled {
            order: of,
            entered,
            returned,
        } => {
            let [gpu, job, generation] = order(of);
            (
                "disabled",
                &[
                    gpu,
                    job,
                    generation,
                    entered.as_nanos(),
                    returned.as_nanos(),
                ],
            )
        }
        Event::DisableFailed { order: of, status } => {
            let [gpu, job, generation] = order(of);
            (
                "disable_failed",
                &[gpu, job, generation, u64::from(*status)],
            )
        }
        Event::Enabled { order: of } => ("enabled", &order(of)),
        Event::EnableFailed { order: of, status } => {
            let [gpu, job, generation] = order(of);
            ("enable_failed", &[gpu, job, generation, u64::from(*status)])
        }
        Event::EnableSkipped { order: of } => ("enable_skipped", &order(of)),
        Event::IssueStalled { gpu } => ("issue_stalled", &[u64::from(gpu.0)]),
        Event::Pause { job: of } => ("pause", &[job(of)]),
        Event::Resume { job: of } => ("resume", &[job(of)]),
        Event::Reissue { job: of } => ("reissue", &[job(of)]),
        Event::Drain { drained } => ("drain", &[u64::from(*drained)]),
        Event::Absent { lasted } => ("absent", &[tidegate_policy::time::nanos(*lasted)]),
        Event::Ungate { until } => ("ungate", &[until.as_nanos()]),
        Event::Tick => ("tick", &[]),
        // They have lines of their own: see above, `memory` and `lease`.
        Event::Activity { .. } => ("activity", &[]),
        Event::Memory(_) => ("memory", &[]),
        Event::Lease(_) => ("lease", &[]),
    };
    let mut all = [0; lease::FIELDS];
    all[..fields.len()].copy_from_slice(fields);
    (name, all, fields.len())
}

const fn lacks_field(lacks: Lacks) -> u64 {
    match lacks {
        Lacks::Gang => 1,
        Lacks::Level => 2,
        Lacks::File => 3,
        Lacks::Weights => 4,
        Lacks::Refused(status) => 5 + status as u64,
    }
}

fn lacks_of(field: u64) -> Option<Lacks> {
    Some(match field {
        1 => Lacks::Gang,
        2 => Lacks::Level,
        3 => Lacks::File,
        4 => Lacks::Weights,
        status => Lacks::Refused(u32::try_from(status.checked_sub(5)?).ok()?),
    })
}

fn event_of(name: &str, fields: &[u64]) -> Option<Event<'static>> {
    let session = |at: usize| fields.get(at).copied().map(SessionId);
    let gpu = |at: usize| Some(GpuId(u8::try_from(*fields.get(at)?).ok()?));
    let narrow = |at: usize| u32::try_from(*fields.get(at)?).ok();
    let flag = |at: usize| Some(*fields.get(at)? != 0);
    let time = |at: usize| fields.get(at).copied().map(Instant::from_nanos);
    let order = || {
        Some(Order {
            gpu: gpu(0)?,
            job: JobId(narrow(1)?),
            generation: Generation(*fields.get(2)?),
        })
    };
    let job = || {
        let named = fields.first()?.checked_sub(1);
        named.map_or(Some(None), |job| {
            Some(Some(JobId(u32::try_from(job).ok()?)))
        })
    };
    Some(match name {
        "online_attached" => Event::OnlineAttached {
            session: session(0)?,
        },
        "online_gone" => Event::OnlineGone {
            session: session(0)?,
        },
        "activity" => Event::Activity {
            session: session(0)?,
            gpu: gpu(1)?,
            reading: Reading {
                generation: *fields.get(2)?,
                busy: flag(3)?,
                busy_since: time(4)?,
                idle_since: time(5)?,
                launches: Launches(*fields.get(6)?),
                graph: GraphId(*fields.get(7)?),
                turns: turns_of(fields.get(8..).unwrap_or_default())?,
            },
        },
        "progress" => Event::Progress {
            session: session(0)?,
            at: time(1)?,
        },
        "suspected" => Event::Suspected {
            session: session(0)?,
            gpu: gpu(1)?,
            suspect: flag(2)?,
        },
        "request_started" => Event::RequestStarted {
            session: session(0)?,
            request: RequestId(*fields.get(1)?),
        },
        "request_ended" => Event::RequestEnded {
            session: session(0)?,
            request: RequestId(*fields.get(1)?),
        },
        "offline_attached" => {
            let mask = *fields.get(2)?;
            Event::OfflineAttached {
                session: session(0)?,
                job: JobId(narrow(1)?),
                gpus: (0..64u8)
                    .filter(|gpu| mask >> gpu & 1 == 1)
                    .map(GpuId)
                    .collect::<GpuSet>(),
                standing: if flag(3)? {
                    Standing::Unknown
                } else {
                    Standing::Enabled
                },
            }
        }
        "offline_gone" => Event::OfflineGone {
            session: session(0)?,
        },
        "groups" => Event::Groups {
            session: session(0)?,
            gpu: gpu(1)?,
            groups: narrow(2)?,
            lacks: match *fields.get(3)? {
                0 => None,
                field => Some(lacks_of(field)?),
            },
        },
        "slice_refused" => Event::SliceRefused {
            job: JobId(narrow(0)?),
            status: narrow(1)?,
        },
        "works" => Event::Works {
            session: session(0)?,
            works: flag(1)?,
        },
        "terms" => Event::Terms {
            job: JobId(narrow(0)?),
            terms: Terms {
                user: UserId(narrow(1)?),
                user_weight: narrow(2)?,
                weight: narrow(3)?,
                class: if flag(4)? { Class::Idle } else { Class::Normal },
                most: narrow(5)?,
            },
        },
        "channels_changed" => Event::ChannelsChanged {
            session: session(0)?,
            gpu: gpu(1)?,
            channels: Channels(narrow(2)?),
            grown: flag(3)?,
        },
        "disabled" => Event::Disabled {
            order: order()?,
            entered: time(3)?,
            returned: time(4)?,
        },
        "disable_failed" => Event::DisableFailed {
            order: order()?,
            status: narrow(3)?,
        },
        "enabled" => Event::Enabled { order: order()? },
        "enable_failed" => Event::EnableFailed {
            order: order()?,
            status: narrow(3)?,
        },
        "enable_skipped" => Event::EnableSkipped { order: order()? },
        "issue_stalled" => Event::IssueStalled { gpu: gpu(0)? },
        "pause" => Event::Pause { job: job()? },
        "resume" => Event::Resume { job: job()? },
        "drain" => Event::Drain { drained: flag(0)? },
        "ungate" => Event::Ungate { until: time(0)? },
        "reissue" => Event::Reissue { job: job()? },
        "absent" => Event::Absent {
            lasted: time(0)?.since(Instant::default()),
        },
        "tick" => Event::Tick,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
