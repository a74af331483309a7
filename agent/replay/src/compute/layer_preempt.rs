//! Offline stops at the next layer when a request arrives, and does its iteration again.
//!
//! ConServe (arXiv 2410.01228): checkpoints in the engine's code, so it knows requests and needs no
//! cooldown; the preempted iteration is duplicated (Valve, arXiv 2604.07874, section 2.3).

use super::policy::{Boundary, Command, Event, Policy};

#[derive(Debug)]
pub(crate) struct LayerPreempt;

impl Policy for LayerPreempt {
    fn step(&mut self, event: Event, _now: u64, out: &mut Vec<Command>) {
        match event {
            Event::Start | Event::Ended { in_flight: 0, .. } => {
                out.push(Command::Run { takes: 0 });
            }
            Event::Arrived { in_flight: 1, .. } => out.push(Command::Stop {
                at: Boundary::LayerAndAgain,
                takes: 0,
            }),
            _ => {}
        }
    }
}
