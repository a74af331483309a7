//! An online engine's KV cache that grows and shrinks: which blocks it may use.
//!
//! A block is *usable* when there is memory behind all of it. Usable blocks are *reserved* by the engine, or *ready*:
//! mapped ahead of need, the headroom. To reserve inside the headroom only moves ids from one list to the other. The
//! lowest ids are given first and the highest free stripe is unmapped first, so that used memory stays together.
//!
//! Invariant: no stripe that holds a reserved block is ever unmapped.

use crate::stripes::Stripe;
use std::collections::BTreeSet;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Block {
    /// Parts without memory: stripes that hold it and are not mapped.
    missing: u16,
    reserved: bool,
}

#[derive(Clone, Debug)]
struct Part {
    first: u32,
    blocks: u32,
    bytes: u64,
    mapped: bool,
    reserved: u32,
}

/// Which blocks of an elastic KV cache may be used.
#[derive(Clone, Debug, Default)]
pub struct Elastic {
    blocks: Vec<Block>,
    parts: Vec<Part>,
    ready: BTreeSet<u32>,
    mapped_bytes: u64,
    reserved: u32,
}

impl Elastic {
    /// A cache of these stripes, none of which is mapped. Blocks in none are usable from the start.
    #[must_use]
    pub fn new(stripes: &[Stripe], handle_bytes: u64, block_count: u32, protected: u32) -> Self {
        let mut blocks = vec![Block::default(); block_count as usize];
        let parts = stripes
            .iter()
            .map(|stripe| {
                for id in stripe.first_block..stripe.first_block + stripe.blocks {
                    if let Some(block) = blocks.get_mut(id as usize) {
                        block.missing += 1;
                    }
                }
                Part {
                    first: stripe.first_block,
                    blocks: stripe.blocks,
                    bytes: stripe.handles.len() as u64 * handle_bytes,
                    mapped: false,
                    reserved: 0,
                }
            })
            .collect();
        let ready = (protected..block_count)
            .filter(|id| blocks[*id as usize].missing == 0)
            .collect();
        Self {
            blocks,
            parts,
            ready,
            mapped_bytes: 0,
            reserved: 0,
        }
    }

    /// Bytes of the stripes that are mapped.
    #[must_use]
    pub const fn mapped_bytes(&self) -> u64 {
        self.mapped_bytes
    }

    /// Bytes of the stripes that hold a reserved block.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        let held = self.parts.iter().filter(|part| part.reserved > 0);
        held.map(|part| part.bytes).sum()
    }

    /// Blocks reserved, and ready to be.
    #[must_use]
    pub fn counts(&self) -> (u32, u32) {
        (
            self.reserved,
            u32::try_from(self.ready.len()).unwrap_or(u32::MAX),
        )
    }

    /// Bytes of stripes that `blocks` blocks more than are ready would need.
    #[must_use]
    pub fn demand(&self, blocks: u32) -> u64 {
        let mut left = blocks;
        let mut bytes = 0;
        for part in self.parts.iter().filter(|part| !part.mapped) {
            if left == 0 {
                break;
            }
            bytes += part.bytes;
            left = left.saturating_sub(part.blocks);
        }
        bytes
    }

    fn touching(&mut self, id: u32) -> impl Iterator<Item = &mut Part> {
        // Stripes are in order of their blocks, and only neighbours share one.
        let from = self
            .parts
            .partition_point(|part| part.first + part.blocks <= id);
        let parts = self.parts[from..].iter_mut();
        parts.take_while(move |part| part.first <= id)
    }

    /// Reserves up to `want` blocks into `ids`; how many.
    pub fn reserve(&mut self, want: u32, ids: &mut [u32]) -> u32 {
        let mut granted = 0;
        for place in ids.iter_mut().take(want as usize) {
            let Some(id) = self.ready.pop_first() else {
                break;
            };
            self.blocks[id as usize].reserved = true;
            self.touching(id).for_each(|part| part.reserved += 1);
            *place = id;
            granted += 1;
        }
        self.reserved += granted;
        granted
    }

    /// Gives blocks back to the headroom; how many of the ids were reserved.
    pub fn release(&mut self, ids: &[u32]) -> u32 {
        let mut released = 0;
        for id in ids {
            let Some(block) = self.blocks.get_mut(*id as usize) else {
                continue;
            };
            if std::mem::take(&mut block.reserved) {
                self.touching(*id).for_each(|part| part.reserved -= 1);
                self.ready.insert(*id);
                released += 1;
            }
        }
        self.reserved -= released;
        released
    }

    /// The stripe to map next so that `target` bytes are not exceeded.
    #[must_use]
    pub fn to_map(&self, target: u64) -> Option<usize> {
        let next = self.parts.iter().position(|part| !part.mapped)?;
        (self.mapped_bytes + self.parts[next].bytes <= target).then_some(next)
    }

    /// The stripe to unmap next while more than `target` bytes are mapped. Its blocks leave the headroom:
    /// nobody can reserve one while it goes.
    #[must_use]
    pub fn begin_unmap(&mut self, target: u64) -> Option<usize> {
        if self.mapped_bytes <= target {
            return None;
        }
        let free = |part: &Part| part.mapped && part.reserved == 0;
        let at = self.parts.iter().rposition(free)?;
        self.unmapped(at);
        Some(at)
    }

    fn ids(&self, stripe: usize) -> core::ops::Range<u32> {
        let part = &self.parts[stripe];
        part.first..part.first + part.blocks
    }

    /// A stripe is mapped.
    pub fn mapped(&mut self, stripe: usize) {
        if std::mem::replace(&mut self.parts[stripe].mapped, true) {
            return;
        }
        self.mapped_bytes += self.parts[stripe].bytes;
        for id in self.ids(stripe) {
            if let Some(block) = self.blocks.get_mut(id as usize) {
                block.missing -= 1;
                if block.missing == 0 {
                    self.ready.insert(id);
                }
            }
        }
    }

    fn unmapped(&mut self, stripe: usize) {
        if !std::mem::replace(&mut self.parts[stripe].mapped, false) {
            return;
        }
        self.mapped_bytes -= self.parts[stripe].bytes;
        for id in self.ids(stripe) {
            if let Some(block) = self.blocks.get_mut(id as usize) {
                block.missing += 1;
                self.ready.remove(&id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stripes::Piece;
    use proptest::prelude::*;

    const HANDLE: u64 = 2 << 20;

    /// Stripes of `blocks` blocks each, of which neighbours share `shared`.
    fn stripes(count: u32, blocks: u32, shared: u32) -> Vec<Stripe> {
        (0..count)
            .map(|at| Stripe {
                first_block: 1 + at * (blocks - shared),
                blocks,
                handles: vec![Piece {
                    backing: 0,
                    handle: at,
                }],
            })
            .collect()
    }

    #[test]
    fn the_engine_gets_blocks_only_where_memory_stands() {
        let mut elastic = Elastic::new(&stripes(4, 3, 1), HANDLE, 10, 1);
        let mut ids = [0; 16];
        assert_eq!(elastic.reserve(5, &mut ids), 0);
        assert_eq!(elastic.to_map(2 * HANDLE - 1), Some(0));
        elastic.mapped(0);
        // The third block of the first stripe lies across the border of the second.
        assert_eq!(elastic.reserve(5, &mut ids), 2);
        assert_eq!(ids[..2], [1, 2]);
        assert_eq!(elastic.to_map(2 * HANDLE - 1), None);
        elastic.mapped(1);
        assert_eq!(elastic.reserve(5, &mut ids), 2);
        assert_eq!(ids[..2], [3, 4]);
        assert_eq!(elastic.begin_unmap(0), None, "both hold reserved blocks");
        assert_eq!(elastic.release(&[3, 4, 4, 77]), 2);
        assert_eq!(elastic.begin_unmap(0), Some(1));
        assert_eq!(elastic.reserve(5, &mut ids), 0);
        assert_eq!(elastic.demand(1), HANDLE);
    }

    proptest! {
        #[test]
        fn no_block_is_reserved_twice_or_without_memory(
            calls in prop::collection::vec((0_u8..4, 0_u32..12), 1..120),
            shared in 0_u32..2,
        ) {
            let stripes = stripes(8, 3, shared);
            let mut elastic = Elastic::new(&stripes, HANDLE, 26, 1);
            let mut mapped = [false; 8];
            let mut held = BTreeSet::new();
            for (call, number) in calls {
                match call {
                    0 => {
                        let mut ids = [0; 12];
                        let got = elastic.reserve(number, &mut ids) as usize;
                        for id in &ids[..got] {
                            prop_assert!(held.insert(*id));
                        }
                    }
                    1 => {
                        let ids: Vec<u32> = held.iter().copied().take(number as usize).collect();
                        prop_assert_eq!(elastic.release(&ids) as usize, ids.len());
                        ids.iter().for_each(|id| { held.remove(id); });
                    }
                    2 => {
                        if let Some(at) = elastic.to_map(u64::from(number) * HANDLE) {
                            elastic.mapped(at);
                            mapped[at] = true;
                        }
                    }
                    _ => {
                        if let Some(at) = elastic.begin_unmap(u64::from(number) * HANDLE) {
                            mapped[at] = false;
                        }
                    }
                }
                for id in &held {
                    let parts = stripes.iter().zip(mapped);
                    let mut around = parts.filter(|(s, _)| (s.first_block..s.first_block + s.blocks).contains(id));
                    prop_assert!(around.all(|(_, mapped)| mapped));
                }
                let count = mapped.iter().filter(|mapped| **mapped).count() as u64;
                prop_assert_eq!(elastic.mapped_bytes(), count * HANDLE);
                prop_assert_eq!(elastic.counts().0 as usize, held.len());
            }
        }
    }
}
