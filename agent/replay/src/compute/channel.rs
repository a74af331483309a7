//! Channels are disabled at a launch and enabled when online was idle for the cooldown.
//!
//! Valve (arXiv 2604.07874, section 4): twice the longest gap between decode iterations. Here that
//! gap is known from the start. With no cooldown: enabled at every idle edge. It sees what the
//! interposer sees: a busy edge takes [`Costs::edge`] to become an order, and an idle edge is
//! noticed within a prober's round.

use std::time::Duration;

use super::policy::{Boundary, Command, Event, NEVER, Policy, noticed, ns};
use crate::baselines::COOLDOWN_GAPS;
use crate::costs::Costs;

#[derive(Debug)]
pub(crate) struct Channel {
    cooldown: u64,
    probe: u64,
    edge: u64,
    disable: u64,
    enable: u64,
    enabled: bool,
    wake: u64,
}

impl Channel {
    pub fn with_cooldown(costs: &Costs, longest_gap: Duration) -> Self {
        Self {
            cooldown: ns(longest_gap).saturating_mul(u64::from(COOLDOWN_GAPS)),
            probe: ns(costs.probe),
            edge: ns(costs.edge),
            disable: ns(costs.disable_save),
            enable: ns(costs.enable_restore),
            enabled: false,
            wake: NEVER,
        }
    }
}

impl Policy for Channel {
    fn step(&mut self, event: Event, now: u64, out: &mut Vec<Command>) {
        match event {
            Event::Start => self.wake = now,
            Event::Launch { .. } => {
                self.wake = NEVER;
                if core::mem::take(&mut self.enabled) {
                    out.push(Command::Stop {
                        at: Boundary::After(self.edge),
                        takes: self.disable,
                    });
                }
            }
            Event::Done => self.wake = noticed(now, self.probe) + self.cooldown,
            _ => {}
        }
        if now >= self.wake {
            self.wake = NEVER;
            self.enabled = true;
            out.push(Command::Run { takes: self.enable });
        }
    }

    fn next(&self) -> u64 {
        self.wake
    }
}
