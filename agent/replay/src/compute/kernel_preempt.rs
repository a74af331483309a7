//! Offline launches wait while online is active; what is in flight ends first.
//!
//! TGS (NSDI 2023) and XSched level 1 and 2 (OSDI 2025): the switch is at kernel boundaries, and
//! with CUDA graphs a decode iteration is one launch, so the boundary is the iteration's end (Valve,
//! arXiv 2604.07874, sections 2.3 and 7.2). There is no context to save, so switching is free.

use super::policy::{Boundary, Command, Event, Policy};
use crate::baselines::KERNELS_IN_FLIGHT;

#[derive(Debug)]
pub(crate) struct KernelPreempt;

impl Policy for KernelPreempt {
    fn step(&mut self, event: Event, _now: u64, out: &mut Vec<Command>) {
        match event {
            Event::Start | Event::Done => out.push(Command::Run { takes: 0 }),
            Event::Launch { .. } => out.push(Command::Stop {
                at: Boundary::Kernels(KERNELS_IN_FLIGHT),
                takes: 0,
            }),
            _ => {}
        }
    }
}
