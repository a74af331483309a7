//! The end of allocations, and of the caches that used them.

use crate::outbox::say;
use crate::process::Process;
use crate::state::memory::backed::vmm;
use crate::state::memory::kv::Kv;
use crate::state::memory::state::State;
use crate::sys;
use tidegate_proto::v1::{self, client_event::Event};

/// Caches on allocations that are gone.
pub fn forget_caches(process: &Process, state: &mut State, bases: &[u64]) {
    let gone = |kv: &Kv| kv.bases.iter().any(|base| bases.contains(base));
    let ids: Vec<u32> = state
        .kvs
        .values()
        .filter(|kv| gone(kv))
        .map(|kv| kv.id)
        .collect();
    for kv in ids {
        if let Some(cache) = state.kvs.remove(&kv) {
            cache.forget(process.memory.log());
            sys::lock(&process.memory.growth.elastic).remove(&kv);
            sys::lock(&process.memory.arenas).forget(kv);
        }
        say(process, Event::KvGone(v1::KvGone { kv }));
    }
}

/// After a context is gone, and with it what was allocated in it.
pub fn context_gone(process: &Process, context: usize) {
    if let Some(vmm) = vmm() {
        let mut state = sys::lock(&process.memory.state);
        let bases = state.backed.context_gone(vmm, context);
        forget_caches(process, &mut state, &bases);
        process.memory.changed();
    }
}
