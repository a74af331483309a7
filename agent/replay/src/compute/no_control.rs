//! Nobody decides: both run whenever they have work, and the GPU slices its time between them.

use super::policy::{Command, Event, Policy, ns};
use crate::baselines::TIMESLICE;
use crate::costs::Costs;

#[derive(Debug)]
pub(crate) struct NoControl {
    switch: u64,
}

impl NoControl {
    pub fn new(costs: &Costs) -> Self {
        Self {
            switch: ns(costs.timeslice_switch),
        }
    }
}

impl Policy for NoControl {
    fn step(&mut self, event: Event, _now: u64, out: &mut Vec<Command>) {
        if event == Event::Start {
            out.push(Command::Share {
                slice: ns(TIMESLICE),
                switch: self.switch,
            });
        }
    }
}
