//! The state of a trainer's arenas: the ledger of each, and where it is.

use std::collections::BTreeMap;
use tidegate_core::arena::{Address, Arena, BLOCK_BYTES, Block, Holder};

/// An arena, and where it is.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) kv: u32,
    /// The allocation's first address, and the first of the second mappings.
    pub(crate) base: u64,
    pub(crate) second: u64,
    pub(crate) context: usize,
    /// Bytes of first addresses.
    pub(crate) first_bytes: u64,
    pub(crate) books: Arena,
}

/// Those of the process, by number.
#[derive(Debug, Default)]
pub struct Arenas {
    pub(crate) all: BTreeMap<u32, Placed>,
    made: u32,
}

impl Arenas {
    /// Takes one in; its number.
    pub(crate) fn add(&mut self, placed: Placed) -> u32 {
        self.made += 1;
        self.all.insert(self.made, placed);
        self.made
    }

    /// What the job's log said: lost blocks are given to nobody, those that are back may be.
    pub(crate) fn heard(&mut self, lost: &[u32], back: &[u32]) {
        for placed in self.all.values_mut() {
            for block in lost
                .iter()
                .filter_map(|id| placed.block(*id))
                .collect::<Vec<_>>()
            {
                placed.books.lose(block);
            }
            for block in back
                .iter()
                .filter_map(|id| placed.block(*id))
                .collect::<Vec<_>>()
            {
                placed.books.back(block);
            }
        }
    }

    /// A cache is gone, and with it the arena over it.
    pub(crate) fn forget(&mut self, kv: u32) {
        self.all.retain(|_, placed| placed.kv != kv);
    }
}

impl Placed {
    pub(crate) const fn shown(&self, at: Address) -> u64 {
        if at.0 < self.first_bytes {
            self.base + at.0
        } else {
            self.second + (at.0 - self.first_bytes)
        }
    }

    pub(crate) fn own(&self, at: u64) -> Option<Address> {
        let first = at.checked_sub(self.base);
        let first = first.filter(|offset| *offset < self.first_bytes);
        let second = || Some(at.checked_sub(self.second)? + self.first_bytes);
        first.or_else(second).map(Address)
    }

    /// A block's piece of the allocation, which is its number in the cache.
    pub(crate) fn piece(&self, block: Block) -> usize {
        usize::try_from(self.books.first_address(block).0 / BLOCK_BYTES).unwrap_or(usize::MAX)
    }

    pub(crate) fn place(&self, at: Address) -> usize {
        let offset = at.0.saturating_sub(self.first_bytes);
        usize::try_from(offset / BLOCK_BYTES).unwrap_or(usize::MAX)
    }

    fn block(&self, id: u32) -> Option<Block> {
        self.books.block_at(Address(u64::from(id) * BLOCK_BYTES))
    }

    pub(crate) fn ids(&self, at: Address) -> Vec<u32> {
        let id = |block: Block| u32::try_from(self.piece(block)).unwrap_or(u32::MAX);
        let tensor = self.books.blocks_of(at);
        if !tensor.is_empty() {
            return tensor.iter().map(|block| id(*block)).collect();
        }
        let small = self.books.block_at(at);
        let small = small.filter(|block| self.books.holder(*block) == Some(Holder::Small));
        small.map(id).into_iter().collect()
    }
}
