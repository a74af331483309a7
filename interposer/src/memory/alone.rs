//! An elastic cache to which no agent gives memory: the library maps what the engine asks for.
//!
//! The agent decides which process of a GPU gets memory. If there is no agent, or if its rules do not make this process
//! online, nobody decides, and the engine would wait for ever. The library waits for a stopped agent no longer than
//! [`crate::state::memory::heard::PATIENCE_NS`]. It describes the memory that it maps to the agent
//! (`KvRegistered.backed`).

use super::service::serve;
use crate::process::Process;
use crate::state::memory::order::{Order, What};
use crate::{clock, sys};
use core::sync::atomic::Ordering::{AcqRel, Acquire};
use tidegate_core::gate::Role;

/// Whether no agent gives this process memory.
fn is_alone(process: &Process) -> bool {
    if !process.link.attached.load(Acquire) || process.role() != Role::Online {
        return true;
    }
    let heartbeat = process.page().agent.heartbeat_ns.load(Acquire);
    sys::lock(&process.memory.growth.heard).is_silent(heartbeat, clock::now_ns())
}

/// Has so many bytes of a cache be mapped, if no agent does so; whether that is so.
pub fn map(process: &'static Process, kv: u32, target: u64) -> bool {
    if !is_alone(process) {
        return false;
    }
    let memory = &process.memory;
    let order = Order {
        seq: 0,
        deadline_ns: u64::MAX,
        // Void as soon as an agent comes, which is told what stands by then.
        session: memory.inbox.session.load(Acquire),
        what: What::MapAlone(kv, target),
    };
    let mut orders = sys::lock(&memory.inbox.orders);
    orders.retain(|old| !matches!(old.what, What::MapAlone(other, _) if other == kv));
    orders.push_back(order);
    drop(orders);
    serve(process);
    memory.inbox.ordered.fetch_add(1, AcqRel);
    sys::futex_wake(&memory.inbox.ordered);
    true
}
