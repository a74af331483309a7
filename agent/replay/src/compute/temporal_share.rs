//! One offline iteration for every so many online iterations, and all the time in which online has
//! no request.
//!
//! Temporal sharing as FlexLLM's evaluation has it (arXiv 2402.18789: 64 and 128 iterations).
//! Nothing is interrupted: the unit is the iteration.

use super::policy::{Boundary, Command, Event, Policy};

#[derive(Debug)]
pub(crate) struct TemporalShare {
    every: u32,
    since: u32,
    turn: bool,
    in_flight: u32,
}

impl TemporalShare {
    pub fn new(every: u32) -> Self {
        Self {
            every: every.max(1),
            since: 0,
            turn: false,
            in_flight: 0,
        }
    }
}

const STOP: Command = Command::Stop {
    at: Boundary::Iteration,
    takes: 0,
};

impl Policy for TemporalShare {
    fn step(&mut self, event: Event, _now: u64, out: &mut Vec<Command>) {
        match event {
            Event::Start => out.push(Command::Run { takes: 0 }),
            Event::Arrived { in_flight, .. } => {
                self.in_flight = in_flight;
                if in_flight == 1 {
                    self.since = 0;
                    out.push(STOP);
                }
            }
            Event::Ended { in_flight, .. } => {
                self.in_flight = in_flight;
                if in_flight == 0 {
                    out.push(Command::Run { takes: 0 });
                }
            }
            Event::Done if self.in_flight > 0 => {
                self.since += 1;
                if self.since >= self.every {
                    self.since = 0;
                    self.turn = true;
                    out.push(Command::Run { takes: 0 });
                }
            }
            Event::Running if core::mem::take(&mut self.turn) => out.push(STOP),
            _ => {}
        }
    }
}
