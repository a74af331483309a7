//! Online has a time slice of a second, offline one of a microsecond: the hardware switches to
//! online at every launch, and back in every gap.
//!
//! GPreempt (USENIX ATC 2025); the driver offers no cooldown, so it may run offline once per online
//! iteration (Valve, arXiv 2604.07874, sections 2.3 and 7.2). A switch takes
//! [`Costs::timeslice_switch`] each way.

use super::policy::{Boundary, Command, Event, Policy, ns};
use crate::costs::Costs;

#[derive(Debug)]
pub(crate) struct GPreempt {
    switch: u64,
}

impl GPreempt {
    pub fn new(costs: &Costs) -> Self {
        Self {
            switch: ns(costs.timeslice_switch),
        }
    }
}

impl Policy for GPreempt {
    fn step(&mut self, event: Event, _now: u64, out: &mut Vec<Command>) {
        match event {
            Event::Start | Event::Done => out.push(Command::Run { takes: self.switch }),
            Event::Launch { .. } => out.push(Command::Stop {
                at: Boundary::After(0),
                takes: self.switch,
            }),
            _ => {}
        }
    }
}
