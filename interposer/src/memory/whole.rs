//! Memory behind everything that an engine asked for.
//!
//! An allocation of an elastic scope begins with the quarantine page behind all of it. A registered cache says which of
//! its blocks may be used. The engine uses an allocation that no cache claims like any other memory, so all of it gets
//! memory before the engine continues.

use super::grant::online_patience_ns;
use super::talk;
use crate::activity::hold;
use crate::process::Process;
use crate::real::row::{Class, Row};
use crate::state::memory::backed::{Range, vmm};
use crate::state::memory::vmm::Vmm;
use crate::sys;
use core::ffi::c_int;
use tidegate_core::gate::Role;

/// Whom a reclaim waits for while pieces are backed.
static ROW: Row = Row::new(
    "tg_kv_whole\0",
    0,
    Class::Hold,
    0,
    core::ptr::null_mut(),
    core::ptr::null_mut(),
);

/// What could not be backed: device and bytes.
type Short = (usize, u64);

/// Backs every allocation that no registered cache claims.
pub fn back_unclaimed(process: &'static Process) -> Result<(), c_int> {
    back(process, &|claimed, _| !claimed)
}

/// Backs every piece of the allocations at `bases`, which are a cache's.
pub fn back_cache(process: &'static Process, bases: &[u64]) -> Result<(), c_int> {
    back(process, &|_, range| bases.contains(&range.base))
}

/// Which allocations: whether a cache claims one, and the allocation.
type Wanted<'a> = &'a dyn Fn(bool, &Range) -> bool;

fn back(process: &'static Process, wanted: Wanted<'_>) -> Result<(), c_int> {
    let Some(vmm) = vmm() else {
        return Ok(()); // without it no scope makes anything
    };
    let (device, bytes) = match hold::around(&ROW, || attempt(process, vmm, wanted)) {
        Ok(()) => return Ok(()),
        Err(short) => short,
    };
    let asks = process.role() == Role::Online
        && talk::ask(process, device, bytes, online_patience_ns(bytes));
    if asks && hold::around(&ROW, || attempt(process, vmm, wanted)).is_ok() {
        return Ok(());
    }
    Err(libc::ENOMEM)
}

fn attempt(process: &Process, vmm: &Vmm, wanted: Wanted<'_>) -> Result<(), Short> {
    let state = sys::lock(&process.memory.state);
    let claimed = |base: &u64| state.kvs.values().any(|kv| kv.bases.contains(base));
    let bare = |range: &&Range| range.own_bytes() < range.bytes;
    let found = state.backed.all().filter(bare);
    let found = found.filter(|range| wanted(claimed(&range.base), range));
    let found: Vec<_> = found.map(|range| (range.base, range.context)).collect();
    drop(state);
    for (base, context) in found {
        // Without the lock: this waits for the GPU, which may still write there. A context that is gone took its
        // allocations along.
        let _ = vmm.settle(context);
        let mut state = sys::lock(&process.memory.state);
        let backed = state.backed.back_whole(vmm, base);
        process.memory.changed();
        if backed.is_err() {
            let range = state.backed.find(base);
            let missing = range.map_or((0, 0), |range| {
                (range.device, range.bytes - range.own_bytes())
            });
            return Err(missing);
        }
    }
    Ok(())
}
