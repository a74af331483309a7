//! What other threads leave for the agent.

use crate::process::Process;
use crate::sys;
use tidegate_proto::v1::client_event::Event;

/// Leaves something for the agent.
pub fn say(process: &Process, event: Event) {
    sys::lock(&process.memory.outbox).push(event);
    process.bell.ring();
}
