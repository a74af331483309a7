//! Online alone: offline never runs.

use super::policy::{Command, Event, Policy};

#[derive(Debug)]
pub(crate) struct Standalone;

impl Policy for Standalone {
    fn step(&mut self, _event: Event, _now: u64, _out: &mut Vec<Command>) {}
}
