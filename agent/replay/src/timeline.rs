//! What happened on each GPU, drawn by any viewer of the Chrome trace format: <https://ui.perfetto.dev>
//! or `chrome://tracing`.
//!
//! One writer serves a replay (virtual time) and `tidegate trace` (a live node), so that both look
//! alike and may be laid beside each other. Each GPU is a process of the viewer, with these lanes:
//!
//! | lane | slice | means |
//! |---|---|---|
//! | online | `prefill`, `decode` | an iteration of the online engine (replay) |
//! | | `busy` | online work is on the GPU, as sampled (live) |
//! | offline | `running` | offline is on the GPU (replay) |
//! | | a job's name | the job's gate is open (live) |
//! | gate | `open`, `closed` | whether offline may run (live) |
//! | | `closing` | from the online launch to the return of the last disable (live) |
//! | | `switch` | offline is being saved or restored (replay) |
//! | memory | `wait` | online waits for memory (replay) |
//! | node | | marks only, of what is not about one GPU (live) |
//!
//! Marks are called what an agent's events are called (`preempted`, `reclaimed`, `cooldown_violated`
//! ...; `tidegate events` prints the same names); counters have their unit in their name
//! (`cooldown ms`).
//!
//! Invariant of what is written: within a lane events are ordered by time, and of two slices that
//! share any time one lies within the other, the longer one first.

use std::borrow::Cow;
use std::io::Write;
use std::time::Duration;

use serde_json::{Value, json};

use crate::clock::Time;
use crate::record::{Outcome, Span, SpanKind};

/// Where something is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// The online engine's work.
    Online,
    /// The offline engine's work.
    Offline,
    /// When offline may run.
    Gate,
    /// What moves between the two.
    Memory,
    /// The rest.
    Node,
}

/// Every lane, from top to bottom.
pub const LANES: [Lane; 5] = [
    Lane::Online,
    Lane::Offline,
    Lane::Gate,
    Lane::Memory,
    Lane::Node,
];

impl Lane {
    /// As drawn.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Online => "online",
            Self::Offline => "offline",
            Self::Gate => "gate",
            Self::Memory => "memory",
            Self::Node => "node",
        }
    }
}

/// How it is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// A bar of this length.
    Slice(Duration),
    /// A mark.
    Mark,
    /// A step of a curve to this value.
    Counter(f64),
}

/// One thing to draw.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    /// When it begins.
    pub at: Time,
    /// On which GPU.
    pub gpu: u32,
    /// In which lane; a counter is the GPU's own.
    pub lane: Lane,
    /// Its name.
    pub name: Cow<'static, str>,
    /// How.
    pub shape: Shape,
    /// Shown when it is selected.
    pub details: Vec<(&'static str, Value)>,
}

/// What happened, in any order.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    drawn: Vec<Drawn>,
}

impl Timeline {
    /// Adds one thing.
    pub fn push(&mut self, drawn: Drawn) {
        self.drawn.push(drawn);
    }

    /// Adds a bar from `from` to `to`; nothing if it has no length.
    pub fn slice(
        &mut self,
        gpu: u32,
        lane: Lane,
        name: impl Into<Cow<'static, str>>,
        from: Time,
        to: Time,
    ) {
        if from < to {
            self.push(Drawn {
                at: from,
                gpu,
                lane,
                name: name.into(),
                shape: Shape::Slice(to.since(from)),
                details: Vec::new(),
            });
        }
    }

    /// Adds a step of a curve.
    pub fn counter(&mut self, gpu: u32, name: &'static str, at: Time, value: f64) {
        self.push(Drawn {
            at,
            gpu,
            lane: Lane::Node,
            name: name.into(),
            shape: Shape::Counter(value),
            details: Vec::new(),
        });
    }

    /// How many things.
    #[must_use]
    pub fn len(&self) -> usize {
        self.drawn.len()
    }

    /// Whether nothing happened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.drawn.is_empty()
    }

    /// Writes the trace; `about` is shown as its description.
    ///
    /// # Errors
    /// When `out` does.
    pub fn write(&self, out: &mut impl Write, about: &Value) -> std::io::Result<()> {
        let mut ordered: Vec<&Drawn> = self.drawn.iter().collect();
        ordered.sort_by_key(|drawn| (drawn.gpu, drawn.lane, drawn.at, shortness(drawn.shape)));
        write!(
            out,
            "{{\"displayTimeUnit\":\"ms\",\"otherData\":{about},\"traceEvents\":["
        )?;
        let mut comma = "\n";
        let mut put = |event: &Value| {
            let written = write!(out, "{comma}{event}");
            comma = ",\n";
            written
        };
        let mut known = None;
        for drawn in ordered {
            let place = (drawn.gpu, drawn.lane);
            if known != Some(place) {
                if known.is_none_or(|(gpu, _)| gpu != drawn.gpu) {
                    let name = format!("GPU {}", drawn.gpu);
                    put(&meta(drawn, "process_name", &json!({ "name": name })))?;
                    put(&meta(
                        drawn,
                        "process_sort_index",
                        &json!({ "sort_index": drawn.gpu }),
                    ))?;
                }
                let (name, index) = (drawn.lane.name(), thread(drawn.lane));
                put(&meta(drawn, "thread_name", &json!({ "name": name })))?;
                put(&meta(
                    drawn,
                    "thread_sort_index",
                    &json!({ "sort_index": index }),
                ))?;
                known = Some(place);
            }
            put(&event(drawn))?;
        }
        writeln!(out, "\n]}}")
    }
}

impl Timeline {
    /// Who ran.
    #[must_use]
    pub fn spans(spans: &[Span]) -> Self {
        let mut timeline = Self::default();
        for span in spans {
            let (lane, name) = match span.kind {
                SpanKind::OnlinePrefill => (Lane::Online, "prefill"),
                SpanKind::OnlineDecode => (Lane::Online, "decode"),
                SpanKind::Offline => (Lane::Offline, "running"),
                SpanKind::Switch => (Lane::Gate, "switch"),
                SpanKind::Memory => (Lane::Memory, "wait"),
            };
            timeline.slice(0, lane, name, span.from, span.to);
        }
        timeline
    }

    /// What a replay kept: who ran, when offline was stopped, and what memory moved.
    #[must_use]
    pub fn of(outcome: &Outcome) -> Self {
        let mut timeline = Self::spans(&outcome.timeline);
        for preemption in &outcome.preemptions {
            let latency = micros(Time::from(preemption.latency()).0);
            timeline.push(Drawn {
                at: preemption.off,
                gpu: 0,
                lane: Lane::Gate,
                name: "preempted".into(),
                shape: Shape::Mark,
                details: vec![("latency_us", json!(latency))],
            });
        }
        for reclaim in &outcome.reclaims {
            timeline.push(Drawn {
                at: reclaim.asked,
                gpu: 0,
                lane: Lane::Memory,
                name: "reclaimed".into(),
                shape: Shape::Mark,
                details: vec![
                    (
                        "took_us",
                        json!(micros(reclaim.mapped.since(reclaim.asked).as_nanos() as u64)),
                    ),
                    ("handles", json!(reclaim.handles)),
                    ("requests", json!(reclaim.requests)),
                    ("lost_tokens", json!(reclaim.lost_tokens)),
                    ("online_waited", json!(reclaim.waited)),
                ],
            });
        }
        timeline
    }
}

/// Viewers take a process id of 0 for the kernel's.
const fn process(gpu: u32) -> u32 {
    gpu + 1
}

const fn thread(lane: Lane) -> u32 {
    lane as u32 + 1
}

/// Longer slices first, so that what lies within follows.
fn shortness(shape: Shape) -> std::cmp::Reverse<Duration> {
    std::cmp::Reverse(match shape {
        Shape::Slice(length) => length,
        Shape::Mark | Shape::Counter(_) => Duration::ZERO,
    })
}

/// Microseconds; exact to the nanosecond within eleven days of the start.
fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn meta(drawn: &Drawn, what: &str, args: &Value) -> Value {
    json!({
        "ph": "M", "name": what, "args": args,
        "pid": process(drawn.gpu), "tid": thread(drawn.lane),
    })
}

fn event(drawn: &Drawn) -> Value {
    let details: serde_json::Map<String, Value> = drawn
        .details
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone()))
        .collect();
    let mut event = json!({
        "name": drawn.name, "cat": drawn.lane.name(), "ts": micros(drawn.at.0),
        "pid": process(drawn.gpu), "tid": thread(drawn.lane), "args": details,
    });
    match drawn.shape {
        Shape::Slice(length) => {
            event["ph"] = "X".into();
            event["dur"] = micros(Time::from(length).0).into();
        }
        Shape::Mark => {
            event["ph"] = "i".into();
            event["s"] = "t".into();
        }
        Shape::Counter(value) => {
            event["ph"] = "C".into();
            event["args"] = json!({ "value": value });
        }
    }
    event
}

/// Checks a written trace as a viewer would read it: it parses, every event has the fields of its
/// kind, lanes are named before they are used, events are ordered, and slices nest. For tests.
///
/// # Errors
/// With the first event that is wrong.
pub fn check(written: &[u8]) -> Result<usize, String> {
    let trace: Value = serde_json::from_slice(written).map_err(|error| error.to_string())?;
    let events = trace["traceEvents"].as_array().ok_or("no traceEvents")?;
    let mut named = std::collections::BTreeSet::new();
    let mut lanes = std::collections::BTreeMap::<_, (f64, Vec<f64>)>::new();
    let mut drawn = 0;
    for event in events {
        let wrong = |what: &str| format!("{what}: {event}");
        let place = (event["pid"].as_u64(), event["tid"].as_u64());
        if place.0.is_none() || place.1.is_none() || !event["name"].is_string() {
            return Err(wrong("without pid, tid or name"));
        }
        if event["ph"] == "M" {
            named.extend((event["name"] == "thread_name").then_some(place));
            continue;
        }
        drawn += 1;
        if !named.contains(&place) {
            return Err(wrong("in a lane without a name"));
        }
        let at = event["ts"].as_f64().ok_or_else(|| wrong("without ts"))?;
        let (last, open) = lanes.entry(place).or_default();
        if at < *last {
            return Err(wrong("before the event above it"));
        }
        *last = at;
        match event["ph"].as_str() {
            Some("X") => {
                let length = event["dur"].as_f64().ok_or_else(|| wrong("without dur"))?;
                // Half a nanosecond: microseconds as f64 do not add up exactly.
                open.retain(|end| at + 0.000_5 < *end);
                if open.last().is_some_and(|end| at + length > end + 0.000_5) {
                    return Err(wrong("reaches out of the slice around it"));
                }
                open.push(at + length);
            }
            Some("i") if event["s"] == "t" => {}
            Some("C") if event["args"]["value"].is_number() => {}
            _ => return Err(wrong("of an unknown kind")),
        }
    }
    Ok(drawn)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::{Preemption, Span};

    fn written(timeline: &Timeline) -> Vec<u8> {
        let mut out = Vec::new();
        let about = json!({ "of": "a \"test\"" });
        timeline.write(&mut out, &about).expect("in memory");
        out
    }

    /// P-OPERATE-11: a timeline tells what happened.
    #[test]
    fn a_slice_that_crosses_another_is_noticed() {
        let mut timeline = Timeline::default();
        timeline.slice(0, Lane::Gate, "open", Time(0), Time(10_000));
        timeline.slice(0, Lane::Gate, "within", Time(10), Time(10_000));
        assert_eq!(check(&written(&timeline)), Ok(2));
        timeline.slice(0, Lane::Online, "elsewhere", Time(5_000), Time(20_000));
        assert_eq!(check(&written(&timeline)), Ok(3));
        timeline.slice(0, Lane::Gate, "closed", Time(9_000), Time(20_000));
        let told = check(&written(&timeline)).expect_err("crosses");
        assert!(
            told.contains("reaches out") && told.contains("closed"),
            "{told}"
        );
    }

    /// P-OPERATE-11: a timeline tells what happened.
    #[test]
    fn nothing_is_a_trace_too() {
        assert_eq!(check(&written(&Timeline::default())), Ok(0));
    }

    /// P-OPERATE-11: a timeline tells what happened.
    #[test]
    fn a_replay_is_drawn_whole() {
        let span = |kind, from, to| Span {
            kind,
            from: Time(from),
            to: Time(to),
        };
        let outcome = Outcome {
            timeline: vec![
                span(SpanKind::OnlineDecode, 0, 5_000),
                span(SpanKind::Switch, 5_000, 5_300),
                span(SpanKind::Offline, 5_300, 9_000),
                span(SpanKind::Memory, 9_000, 9_000),
            ],
            preemptions: vec![Preemption {
                wanted: Time(8_700),
                off: Time(9_000),
            }],
            ..Outcome::default()
        };
        let written = written(&Timeline::of(&outcome));
        assert_eq!(check(&written), Ok(4), "an empty span is not drawn");
        let text = String::from_utf8(written).expect("JSON is text");
        assert!(text.contains("\"latency_us\":0.3"), "{text}");
    }

    proptest! {
        /// P-OPERATE-11: a timeline tells what happened.
        #[test]
        fn what_is_pushed_in_any_order_is_written_in_order_and_nested(
            widths in prop::collection::vec((0u64..5_000_000, 0u64..3, 0u32..3, 0usize..5), 0..80),
            backwards: bool,
        ) {
            let mut drawn = Vec::new();
            let mut at = 1_000_000_000_000_000;
            for (width, inner, gpu, lane) in widths {
                let lane = LANES[lane];
                let mut timeline = Timeline::default();
                timeline.slice(gpu, lane, "outer", Time(at), Time(at + width));
                timeline.slice(gpu, lane, "inner", Time(at + width * inner / 4), Time(at + width * 3 / 4));
                timeline.counter(gpu, "curve", Time(at), width as f64);
                timeline.push(Drawn {
                    at: Time(at + width / 2),
                    gpu,
                    lane,
                    name: "mark".into(),
                    shape: Shape::Mark,
                    details: vec![("why", json!(width))],
                });
                at += width;
                drawn.extend(timeline.drawn);
            }
            let count = drawn.len();
            if backwards {
                drawn.reverse();
            }
            prop_assert_eq!(check(&written(&Timeline { drawn })), Ok(count));
        }
    }
}
