//! Tensors of at most half a block, in blocks that a buddy system splits.
//!
//! A piece is a power of two times 2 KiB. A piece that is freed joins its other half when that is free. A block without
//! an allocated piece is reported and removed.

use super::block::{BLOCK_BYTES, Block, PIECE_BYTES};
use std::collections::{BTreeMap, BTreeSet};

/// Pieces of the least size in a block.
const LEAVES: usize = (BLOCK_BYTES / PIECE_BYTES) as usize;
/// Sizes there are: of 2 KiB, 4 KiB ... 2 MiB.
const ORDERS: usize = LEAVES.ilog2() as usize + 1;
/// Words that hold a bit for each piece of each order.
const WORDS: usize = 2 * LEAVES / 64;

/// One block's pieces.
#[derive(Clone, Debug)]
struct Split {
    /// Of order `o`, piece `i`: bit `LEAVES >> o | i`, as the nodes of a heap are numbered.
    free: [u64; WORDS],
    /// Bytes asked for the allocated piece that begins at a leaf; 0 where none does.
    asked: [u32; LEAVES],
    /// Pieces of each order that are free.
    counts: [u16; ORDERS],
    /// Nothing new is put here: the block's content is gone.
    withheld: bool,
    allocated: u32,
}

impl Split {
    fn whole() -> Self {
        let mut split = Self {
            free: [0; WORDS],
            asked: [0; LEAVES],
            counts: [0; ORDERS],
            withheld: false,
            allocated: 0,
        };
        split.set(ORDERS - 1, 0);
        split
    }

    const fn bit(order: usize, piece: usize) -> (usize, u64) {
        let node = (LEAVES >> order) | piece;
        (node / 64, 1 << (node % 64))
    }

    fn set(&mut self, order: usize, piece: usize) {
        let (word, bit) = Self::bit(order, piece);
        self.free[word] |= bit;
        self.counts[order] += 1;
    }

    /// Makes a free piece not free; whether it was.
    fn clear(&mut self, order: usize, piece: usize) -> bool {
        let (word, bit) = Self::bit(order, piece);
        let was = self.free[word] & bit != 0;
        self.free[word] &= !bit;
        self.counts[order] -= u16::from(was);
        was
    }

    /// The first free piece of an order.
    fn first(&self, order: usize) -> Option<usize> {
        let (from, count) = (LEAVES >> order, LEAVES >> order);
        if count >= 64 {
            let words = from / 64..(from + count) / 64;
            let word = words.clone().find(|word| self.free[*word] != 0)?;
            Some((word - words.start) * 64 + self.free[word].trailing_zeros() as usize)
        } else {
            let word = (self.free[0] >> from) & ((1 << count) - 1);
            (word != 0).then(|| word.trailing_zeros() as usize)
        }
    }
}

/// All blocks that hold small tensors.
#[derive(Clone, Debug, Default)]
pub(super) struct Small {
    splits: BTreeMap<Block, Box<Split>>,
    /// Blocks with a free piece of each order that something may be put into.
    open: [BTreeSet<Block>; ORDERS],
}

/// The order of the least piece that holds so many bytes.
fn order_of(bytes: u32) -> usize {
    let leaves = u64::from(bytes).div_ceil(PIECE_BYTES).max(1);
    leaves.next_power_of_two().ilog2() as usize
}

impl Small {
    /// A piece for `bytes`, at most a block's: its block and where in it. None if a block has to be added.
    pub(super) fn allocate(&mut self, bytes: u32) -> Option<(Block, u64)> {
        let wanted = order_of(bytes);
        let (order, block) =
            (wanted..ORDERS).find_map(|o| Some((o, *self.open.get(o)?.first()?)))?;
        let split = self.splits.get_mut(&block)?;
        let mut piece = split.first(order)?;
        let before = split.counts;
        split.clear(order, piece);
        for half in (wanted..order).rev() {
            piece *= 2;
            split.set(half, piece + 1);
        }
        let leaf = piece << wanted;
        split.asked[leaf] = bytes.max(1);
        split.allocated += 1;
        let after = split.counts;
        self.reopen(block, &before, &after);
        Some((block, leaf as u64 * PIECE_BYTES))
    }

    /// Another block to split.
    pub(super) fn add(&mut self, block: Block) {
        let split = Box::new(Split::whole());
        self.reopen(block, &[0; ORDERS], &split.counts);
        self.splits.insert(block, split);
    }

    /// Frees a piece: the bytes that were asked for it, and whether its block is now empty and has
    /// left.
    pub(super) fn free(&mut self, block: Block, offset: u64) -> Option<(u32, bool)> {
        let split = self.splits.get_mut(&block)?;
        let leaf = usize::try_from(offset / PIECE_BYTES).ok()?;
        let asked = *split
            .asked
            .get(leaf)
            .filter(|_| offset.is_multiple_of(PIECE_BYTES))?;
        if asked == 0 {
            return None;
        }
        split.asked[leaf] = 0;
        split.allocated -= 1;
        let before = split.counts;
        let mut order = order_of(asked);
        let mut piece = leaf >> order;
        while order + 1 < ORDERS && split.clear(order, piece ^ 1) {
            piece >>= 1;
            order += 1;
        }
        split.set(order, piece);
        let (after, withheld) = (split.counts, split.withheld);
        let empty = split.allocated == 0;
        if empty {
            self.splits.remove(&block);
        }
        if !withheld {
            self.reopen(block, &before, if empty { &[0; ORDERS] } else { &after });
        }
        Some((asked, empty))
    }

    /// Puts nothing new into a block, or again.
    pub(super) fn withhold(&mut self, block: Block, withheld: bool) {
        let Some(split) = self.splits.get_mut(&block) else {
            return;
        };
        if std::mem::replace(&mut split.withheld, withheld) == withheld {
            return;
        }
        let (counts, none) = (split.counts, [0; ORDERS]);
        let (before, after) = if withheld {
            (&counts, &none)
        } else {
            (&none, &counts)
        };
        self.reopen(block, before, after);
    }

    fn reopen(&mut self, block: Block, before: &[u16; ORDERS], after: &[u16; ORDERS]) {
        for ((open, before), after) in self.open.iter_mut().zip(before).zip(after) {
            match (*before > 0, *after > 0) {
                (false, true) => drop(open.insert(block)),
                (true, false) => drop(open.remove(&block)),
                _ => {}
            }
        }
    }
}
