//! What the agent learns about a change of the objects.

use crate::process::Process;
use crate::state::objects::{Rm, Up};
use core::sync::atomic::Ordering::Acquire;
use tidegate_core::rm::Record;

/// Puts what changed into the outbox.
pub fn say(process: &Process, rm: &mut Rm, records: Vec<Record>) {
    if records.is_empty() {
        return;
    }
    // Without an agent nobody empties the box, and the next one gets a snapshot.
    if process.link.attached.load(Acquire) {
        rm.outbox.extend(records.into_iter().map(Up::Record));
        process.bell.ring();
    }
}

/// Forgets a client whose file is closed, with which the driver freed it.
pub fn drop_client(process: &Process, rm: &mut Rm, client: u32) {
    let mut records = Vec::new();
    rm.files.remove(&client);
    drop(rm.graph.lift(client, client, &mut records));
    say(process, rm, records);
}
