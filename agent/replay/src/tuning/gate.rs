//! The agent's gate and nothing else: the compute policy of the other world, unchanged.
//!
//! It is told of launches and of their ends, and its orders are carried out as that world does: a
//! trainer let in runs after its restore, one told to go is off after its save, and online waits.

use crate::compute::{self, Boundary, Command, Event};
use crate::plan::Alone;
use crate::policies::make_compute;
use crate::spec::Spec;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Off,
    Starting { at: u64 },
    On { since: u64 },
    Stopping { at: u64 },
}

/// The gate.
#[derive(Debug)]
pub struct Gate {
    compute: Box<dyn compute::Policy>,
    commands: Vec<Command>,
    state: State,
    /// The trainer ran so long, ns.
    pub ran_ns: u64,
    /// When, ns.
    pub ran: Vec<(u64, u64)>,
}

impl Gate {
    /// The compute policy of `spec`.
    #[must_use]
    pub fn new(spec: &Spec, alone: &Alone) -> Self {
        Self {
            compute: make_compute(spec, Some(alone)),
            commands: Vec::new(),
            state: State::Off,
            ran_ns: 0,
            ran: Vec::new(),
        }
    }

    pub(crate) fn start(&mut self) {
        self.tell(Event::Start, 0);
    }

    fn tell(&mut self, event: Event, now: u64) {
        let mut commands = core::mem::take(&mut self.commands);
        self.compute.step(event, now, &mut commands);
        for command in commands.drain(..) {
            match command {
                Command::Run { takes } => match self.state {
                    State::Off => self.state = State::Starting { at: now + takes },
                    State::Stopping { at } => {
                        self.state = State::Starting { at: at + takes };
                    }
                    State::Starting { .. } | State::On { .. } => {}
                },
                Command::Stop { at, takes } => {
                    let from = match at {
                        Boundary::After(ns) => now + ns,
                        _ => now,
                    };
                    match self.state {
                        State::On { since } => {
                            self.ran_ns += from - since;
                            self.ran.push((since, from));
                            self.state = State::Stopping { at: from + takes };
                        }
                        State::Starting { .. } => {
                            self.state = State::Stopping { at: now + takes };
                        }
                        State::Off | State::Stopping { .. } => {}
                    }
                }
                Command::Share { .. } | Command::Hold { .. } | Command::Retry => {}
            }
        }
        self.commands = commands;
    }

    fn due(&self) -> u64 {
        match self.state {
            State::Starting { at } | State::Stopping { at } => at,
            State::Off | State::On { .. } => u64::MAX,
        }
    }

    /// All that is due up to `to`.
    fn advance(&mut self, to: u64) {
        loop {
            let (switch, policy) = (self.due(), self.compute.next());
            let now = switch.min(policy);
            if now > to {
                return;
            }
            if switch <= policy {
                match self.state {
                    State::Starting { .. } => {
                        self.state = State::On { since: now };
                        self.tell(Event::Running, now);
                    }
                    State::Stopping { .. } => {
                        self.state = State::Off;
                        self.tell(Event::Stopped, now);
                    }
                    State::Off | State::On { .. } => {}
                }
            } else {
                self.tell(Event::Due, now);
            }
        }
    }

    /// Online is away from one moment to the other: when it has the GPU.
    pub(crate) fn idle(&mut self, from: u64, launch: u64, prompt: bool, decodes: u32) -> u64 {
        if from > 0 {
            self.advance(from);
            self.tell(Event::Done, from);
        }
        self.advance(launch.saturating_sub(1));
        self.tell(Event::Launch { prompt, decodes }, launch);
        let mut now = launch;
        while self.state != State::Off {
            let next = self.due().min(self.compute.next());
            if next == u64::MAX {
                break;
            }
            now = now.max(next);
            self.advance(now);
        }
        now
    }

    pub(crate) fn end(&mut self, now: u64) {
        if let State::On { since } = self.state {
            self.ran_ns += now.saturating_sub(since);
            self.ran.push((since, now));
        }
    }
}
