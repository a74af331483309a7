//! A trainer's arena over a registered cache: tensors of any size at consecutive addresses (`tidegate_core::arena`).
//!
//! The blocks of a tensor are mapped a second time, and [`crate::state::memory::backed`] takes and gives back a block
//! at all of its addresses at once. A tensor of at most one block is only recorded: no driver call, and no lock that is
//! held during one.

use super::answered::answered;
use crate::activity::hold;
use crate::process::Process;
use crate::real::row::{Class, Row};
use crate::state::memory::backed::vmm;
use crate::state::memory::kv::Kv;
use crate::state::memory::placed::Placed;
use crate::state::memory::state::State;
use crate::state::memory::vmm::{Refused, Vmm};
use crate::sys;
use core::ffi::c_int;
use tidegate_core::arena::{Address, Arena, BLOCK_BYTES, Call, NoRoom, Shape};

/// Whom a reclaim waits for while second mappings change.
static ROW: Row = Row::new(
    "tg_arena\0",
    0,
    Class::Hold,
    0,
    core::ptr::null_mut(),
    core::ptr::null_mut(),
);

/// Whether an arena can lie over a cache: its blocks are the pieces of one allocation, one by one.
fn fits(cache: &Kv, pieces: usize) -> bool {
    let one = cache.elastic.is_none() && cache.bases.len() == 1;
    let stripes = &cache.cut.stripes;
    let in_order = stripes.iter().zip(0..).all(|(stripe, at)| {
        let piece = stripe.handles.first();
        (stripe.first_block, stripe.blocks, stripe.handles.len()) == (at, 1, 1)
            && piece.is_some_and(|piece| piece.handle == at)
    });
    one && cache.handle_bytes == BLOCK_BYTES && stripes.len() == pieces && in_order
}

fn open(process: &Process, kv: u32, second_blocks: u32) -> Result<u32, c_int> {
    let vmm = vmm().ok_or(libc::ENOSYS)?;
    let mut state = sys::lock(&process.memory.state);
    let State { backed, kvs, .. } = &mut *state;
    let cache = kvs.get(&kv).ok_or(libc::ENOENT)?;
    let base = *cache.bases.first().ok_or(libc::EINVAL)?;
    let range = backed.find(base).ok_or(libc::EINVAL)?;
    let (pieces, context) = (range.handles.len(), range.context);
    if !fits(cache, pieces) {
        return Err(libc::EINVAL);
    }
    if range.seconds.is_some() {
        return Err(libc::EALREADY);
    }
    // Two rows of half as many chunks: no block is left over but the last of an odd number.
    let shape = Shape {
        layers: 1,
        chunks: u32::try_from(pieces / 2).map_err(|_| libc::EINVAL)?,
        second_blocks,
    };
    let mut books = Arena::new(shape).map_err(|_| libc::EINVAL)?;
    let places = usize::try_from(second_blocks).map_err(|_| libc::EINVAL)?;
    let second = match places {
        0 => 0,
        places => backed
            .open_seconds(vmm, base, places)
            .map_err(|_| libc::ENOMEM)?,
    };
    for (own, at) in cache.backed.iter().zip(0_u64..) {
        let block = books.block_at(Address(at * BLOCK_BYTES));
        if let Some(block) = block.filter(|_| !own) {
            books.lose(block);
        }
    }
    let placed = Placed {
        kv,
        base,
        second,
        context,
        first_bytes: u64::from(shape.chunks) * 2 * BLOCK_BYTES,
        books,
    };
    Ok(sys::lock(&process.memory.arenas).add(placed))
}

const fn errno(no_room: NoRoom) -> c_int {
    match no_room {
        NoRoom::Empty => libc::EINVAL,
        NoRoom::Blocks { .. } | NoRoom::Addresses { .. } => libc::ENOMEM,
    }
}

/// Carries out calls, in order; on failure those before the one that failed are done, and it is said how many.
fn carry_out(
    vmm: &Vmm,
    state: &mut State,
    base: u64,
    calls: &[(usize, Option<usize>)],
) -> Result<(), (usize, Refused)> {
    for (at, (piece, place)) in calls.iter().enumerate() {
        let done = match place {
            Some(place) => state.backed.see(vmm, base, *piece, *place),
            None => state.backed.unsee(vmm, base, *piece),
        };
        done.map_err(|refused| (at, refused))?;
    }
    Ok(())
}

fn take(process: &Process, id: u32, bytes: u64) -> Result<u64, c_int> {
    if bytes <= BLOCK_BYTES {
        let mut arenas = sys::lock(&process.memory.arenas);
        let placed = arenas.all.get_mut(&id).ok_or(libc::ENOENT)?;
        let at = placed
            .books
            .allocate(bytes, &mut Vec::new())
            .map_err(errno)?;
        return Ok(placed.shown(at));
    }
    let vmm = vmm().ok_or(libc::ENOSYS)?;
    hold::around(&ROW, || {
        // Held for as long as mappings change, so that no other change of them is in between.
        let mut state = sys::lock(&process.memory.state);
        let mut arenas = sys::lock(&process.memory.arenas);
        let placed = arenas.all.get_mut(&id).ok_or(libc::ENOENT)?;
        let mut calls = Vec::new();
        let at = placed.books.allocate(bytes, &mut calls).map_err(errno)?;
        let (shown, base) = (placed.shown(at), placed.base);
        let calls: Vec<_> = calls
            .iter()
            .filter_map(|call| match call {
                Call::Map { block, at } => Some((placed.piece(*block), Some(placed.place(*at)))),
                Call::Unmap { .. } => None,
            })
            .collect();
        drop(arenas);
        let Err((done, refused)) = carry_out(vmm, &mut state, base, &calls) else {
            return Ok(shown);
        };
        for (piece, _) in &calls[..done] {
            // What the driver does not take back stays mapped, and is mapped anew with the next tensor there.
            let _ = state.backed.unsee(vmm, base, *piece);
        }
        let mut arenas = sys::lock(&process.memory.arenas);
        if let Some(placed) = arenas.all.get_mut(&id) {
            let freed = placed.books.free(at, &mut Vec::new());
            debug_assert!(freed.is_ok(), "it was allocated above");
        }
        Err(if refused.is_out_of_memory() {
            libc::ENOMEM
        } else {
            libc::EIO
        })
    })
}

fn give(process: &Process, id: u32, at: u64) -> Result<(), c_int> {
    let mut arenas = sys::lock(&process.memory.arenas);
    let placed = arenas.all.get_mut(&id).ok_or(libc::ENOENT)?;
    let own = placed.own(at).ok_or(libc::EINVAL)?;
    let pieces: Vec<_> = match placed.books.blocks_of(own) {
        [] | [_] => {
            let freed = placed.books.free(own, &mut Vec::new());
            return freed.map_err(|_| libc::EINVAL);
        }
        blocks => blocks
            .iter()
            .map(|block| (placed.piece(*block), None))
            .collect(),
    };
    let (base, context) = (placed.base, placed.context);
    drop(arenas);
    let vmm = vmm().ok_or(libc::ENOSYS)?;
    hold::around(&ROW, || {
        // Without the lock: this waits for the GPU, which may still read there.
        vmm.settle(context).map_err(|_| libc::EIO)?;
        let mut state = sys::lock(&process.memory.state);
        carry_out(vmm, &mut state, base, &pieces).map_err(|_| libc::EIO)?;
        // Only now may somebody else be given the addresses.
        let mut arenas = sys::lock(&process.memory.arenas);
        let placed = arenas.all.get_mut(&id).ok_or(libc::ENOENT)?;
        let freed = placed.books.free(own, &mut Vec::new());
        freed.map_err(|_| libc::EINVAL)
    })
}

/// `tg_arena_open`.
///
/// # Safety
/// `arena` is the caller's place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_arena_open(kv: u32, second_blocks: u32, arena: *mut u32) -> c_int {
    answered(|process| {
        if arena.is_null() {
            return Err(libc::EINVAL);
        }
        let id = open(process, kv, second_blocks)?;
        // SAFETY: this function's contract.
        unsafe { arena.write(id) };
        Ok(())
    })
}

/// `tg_arena_take`.
///
/// # Safety
/// `at` is the caller's place for an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_arena_take(arena: u32, bytes: u64, at: *mut u64) -> c_int {
    answered(|process| {
        if at.is_null() {
            return Err(libc::EINVAL);
        }
        let taken = take(process, arena, bytes)?;
        // SAFETY: this function's contract.
        unsafe { at.write(taken) };
        Ok(())
    })
}

/// `tg_arena_give`.
#[unsafe(no_mangle)]
pub extern "C" fn tg_arena_give(arena: u32, at: u64) -> c_int {
    answered(|process| give(process, arena, at))
}

/// `tg_arena_blocks`.
///
/// # Safety
/// `ids` has room for `*count` ids; both are the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tg_arena_blocks(
    arena: u32,
    at: u64,
    ids: *mut u32,
    count: *mut usize,
) -> c_int {
    answered(|process| {
        if count.is_null() {
            return Err(libc::EINVAL);
        }
        let arenas = sys::lock(&process.memory.arenas);
        let placed = arenas.all.get(&arena).ok_or(libc::ENOENT)?;
        let found = placed
            .own(at)
            .map(|own| placed.ids(own))
            .unwrap_or_default();
        drop(arenas);
        if found.is_empty() {
            return Err(libc::EINVAL);
        }
        // SAFETY: not null, and the caller's.
        let room = unsafe { count.replace(found.len()) };
        if found.len() > room || ids.is_null() {
            return Err(libc::ENOSPC);
        }
        // SAFETY: this function's contract.
        unsafe { core::ptr::copy_nonoverlapping(found.as_ptr(), ids, found.len()) };
        Ok(())
    })
}
