//! Makes the decisions of a recording again, and compares them with what was recorded.

use crate::settings::config_of;
use crate::{CONFIGURED, DecisionsError, Entry, former, gate, lease, memory};
use std::collections::VecDeque;
use std::io::BufRead;
use tidegate_policy::effect::Effect;
use tidegate_policy::event::Event;
use tidegate_policy::memory::MemoryEvent;
use tidegate_policy::node::Node;
use tidegate_policy::time::Instant;

/// What was replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Events taken.
    pub events: u64,
    /// Effects compared.
    pub effects: u64,
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
    let mut again = Again::default();
    let mut last = 0;
    for (index, text) in recording.lines().enumerate() {
        last = index + 1;
        again.line(last, &text?, &mut show)?;
    }
    // A recording that was cut off may lack the effects of its last event.
    if again.node.is_none() {
        return Err(bad(last + 1, ""));
    }
    Ok(again.replayed)
}

fn bad(line: usize, text: &str) -> DecisionsError {
    DecisionsError::Format {
        line,
        text: text.chars().take(120).collect(),
    }
}

/// What was read so far.
#[derive(Default)]
struct Again {
    /// Number of GPUs and start, of the first line.
    start: Option<(u8, Instant)>,
    node: Option<Node>,
    /// It is of format 2.
    is_former: bool,
    effects: Vec<Effect>,
    /// Effects of the last event that were not compared yet.
    expected: VecDeque<String>,
    replayed: Replayed,
}

impl Again {
    fn line(
        &mut self,
        line: usize,
        text: &str,
        show: &mut impl FnMut(Instant, Entry<'_>),
    ) -> Result<(), DecisionsError> {
        let bad = || bad(line, text);
        let (kind, rest) = text.split_once(' ').ok_or_else(bad)?;
        match (kind, self.node.is_some()) {
            ("tidegate-decisions", false) => self.begins(rest).ok_or_else(bad),
            ("config", false) => self.configured(rest).ok_or_else(bad),
            ("event", true) => {
                self.compare(line, None)?;
                self.event(rest, show).ok_or_else(bad)
            }
            ("effect", true) => {
                let recorded = if self.is_former {
                    former::effect(rest)
                } else {
                    rest.to_owned()
                };
                self.compare(line, Some(recorded))?;
                self.replayed.effects += 1;
                Ok(())
            }
            ("lost", _) => {
                let count = rest.parse().map_err(|_| bad())?;
                Err(DecisionsError::Lost { line, count })
            }
            _ => Err(bad()),
        }
    }

    fn begins(&mut self, rest: &str) -> Option<()> {
        let (version, rest) = rest.split_once(' ')?;
        self.is_former = match version {
            "3" | "4" => false,
            "2" => true,
            _ => return None,
        };
        let [gpus, now] = numbers(rest)?.try_into().ok()?;
        self.start = Some((u8::try_from(gpus).ok()?, Instant::from_nanos(now)));
        Some(())
    }

    fn configured(&mut self, rest: &str) -> Option<()> {
        let (gpus, now) = self.start.take()?;
        self.node = Some(Node::new(config_of(&numbers(rest)?)?, gpus, now));
        Some(())
    }

    fn event(&mut self, rest: &str, show: &mut impl FnMut(Instant, Entry<'_>)) -> Option<()> {
        let Self { node, effects, .. } = self;
        let node = node.as_mut()?;
        let mut words = rest.splitn(3, ' ');
        let now = Instant::from_nanos(words.next()?.parse().ok()?);
        let name = words.next()?;
        let fields = numbers(words.next().unwrap_or_default())?;
        effects.clear();
        if name == CONFIGURED {
            let config = config_of(&fields)?;
            show(now, Entry::Configured);
            node.configure(config, now, effects);
        } else if let Some(name) = name.strip_prefix(memory::PREFIX) {
            let step = |event: MemoryEvent<'_>| {
                let event = event.into();
                show(now, Entry::Event(&event));
                node.step(event, now, effects);
            };
            let name = if self.is_former {
                former::memory_event(name)
            } else {
                name
            };
            memory::read(name, &fields, step)?;
        } else {
            let event = lease::read(name, &fields).map(Event::Lease);
            let event = event.or_else(|| gate::read(name, &fields))?;
            show(now, Entry::Event(&event));
            node.step(event, now, effects);
        }
        for effect in &self.effects {
            show(now, Entry::Effect(effect));
        }
        let expected = self.effects.iter().map(|effect| format!("{effect:?}"));
        self.expected.extend(expected);
        self.replayed.events += 1;
        Some(())
    }

    /// Whether the next effect that the policy answers with is the recorded one; `None`: there is no further one.
    fn compare(&mut self, line: usize, recorded: Option<String>) -> Result<(), DecisionsError> {
        let replayed = self.expected.pop_front();
        if recorded == replayed {
            return Ok(());
        }
        Err(DecisionsError::Differs {
            line,
            recorded,
            replayed,
        })
    }
}

fn numbers(text: &str) -> Option<Vec<u64>> {
    text.split_whitespace()
        .map(|word| word.parse().ok())
        .collect()
}
