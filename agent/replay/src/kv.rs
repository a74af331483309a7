//! Blocks of KV cache: who holds which, and which are backed by memory.
//!
//! A *block* is 16 tokens of every layer. A *stripe* is the least that memory can be taken or given
//! in: all handles that back one range of blocks in every layer. Blocks are outermost here (one
//! block's layers side by side), so a stripe is one handle, or a whole block where that has several.
//! Blocks need not divide a handle: one that lies across two is lost with either.
//!
//! Free blocks leave in the order in which they came, as in vLLM's queue, so requests interleave on
//! stripes as they arrived and ended. Invariant: a block is free, held by one sequence, or withheld
//! (a stripe of it is not backed); the counts always add up.

use std::collections::VecDeque;

use crate::bits::Bits;

/// Tokens of a block.
pub const BLOCK_TOKENS: u32 = 16;

/// Blocks that hold `tokens`.
#[must_use]
pub const fn blocks_of(tokens: u32) -> u32 {
    tokens.div_ceil(BLOCK_TOKENS)
}

const FREE: u32 = u32::MAX;
const WITHHELD: u32 = u32::MAX - 1;

/// One engine's blocks, each with its number.
#[derive(Clone, Debug)]
pub struct Blocks {
    block: u64,
    stripe: u64,
    /// Sequence that holds it, [`FREE`] or [`WITHHELD`].
    holder: Vec<u32>,
    /// Free blocks, each with the number it had in `queued` when it came. Where that has changed
    /// since, the block was withheld meanwhile and the entry is void.
    free: VecDeque<(u32, u32)>,
    queued: Vec<u32>,
    available: u32,
    stripes: u32,
    withheld: Bits,
    backed_stripes: u32,
    /// Backed stripes that nobody holds a block of.
    unheld: Bits,
    /// Held blocks with a byte in each stripe.
    held: Vec<u32>,
    /// When each block was last taken: the number of that taking.
    taken: Vec<u64>,
    takings: u64,
}

impl Blocks {
    /// As many blocks of `block` bytes as fit into `bytes`, over stripes of `stripe`, all backed.
    #[must_use]
    pub fn new(bytes: u64, block: u64, stripe: u64) -> Self {
        let (block, stripe) = (block.max(1), stripe.max(1));
        let blocks = u32::try_from(bytes / block).map_or(WITHHELD - 1, |blocks| blocks);
        let stripes = (u64::from(blocks) * block).div_ceil(stripe) as usize;
        let mut unheld = Bits::new(stripes);
        for stripe in 0..stripes {
            unheld.insert(stripe);
        }
        let count = u32::try_from(stripes).unwrap_or(u32::MAX);
        Self {
            block,
            stripe,
            holder: vec![FREE; blocks as usize],
            free: (0..blocks).map(|block| (block, 0)).collect(),
            queued: vec![0; blocks as usize],
            available: blocks,
            stripes: count,
            withheld: Bits::new(stripes),
            backed_stripes: count,
            unheld,
            held: vec![0; stripes],
            taken: vec![0; blocks as usize],
            takings: 0,
        }
    }

    /// Blocks that can be taken.
    #[must_use]
    pub fn available(&self) -> u32 {
        self.available
    }

    /// Stripes, backed or not.
    #[must_use]
    pub fn stripes(&self) -> u32 {
        self.stripes
    }

    /// Stripes that are backed.
    #[must_use]
    pub fn backed_stripes(&self) -> u32 {
        self.backed_stripes
    }

    /// Whether that stripe is backed.
    #[must_use]
    pub fn is_backed(&self, stripe: u32) -> bool {
        stripe < self.stripes && !self.withheld.has(stripe as usize)
    }

    /// Held blocks with a byte in that stripe.
    #[must_use]
    pub fn held(&self, stripe: u32) -> u32 {
        self.held.get(stripe as usize).copied().unwrap_or(0)
    }

    /// Backed stripes that nobody holds a block of, the lowest first.
    pub fn unheld(&self) -> impl Iterator<Item = u32> + '_ {
        self.unheld.rising().map(|stripe| stripe as u32)
    }

    /// The same, the highest first.
    pub fn unheld_from_the_top(&self) -> impl Iterator<Item = u32> + '_ {
        self.unheld.falling().map(|stripe| stripe as u32)
    }

    /// The stripes that hold a byte of a block.
    #[must_use]
    pub fn stripes_of(&self, block: u32) -> std::ops::RangeInclusive<usize> {
        let from = u64::from(block) * self.block;
        (from / self.stripe) as usize..=((from + self.block - 1) / self.stripe) as usize
    }

    /// The blocks with a byte in a stripe.
    #[must_use]
    pub fn blocks_in(&self, stripe: u32) -> std::ops::Range<u32> {
        let from = u64::from(stripe) * self.stripe;
        let blocks = self.holder.len() as u64;
        let end = (from + self.stripe).div_ceil(self.block).min(blocks);
        let narrow = |block: u64| u32::try_from(block).unwrap_or(u32::MAX);
        narrow((from / self.block).min(blocks))..narrow(end)
    }

    /// Sequences that hold blocks of that stripe, one for each block.
    pub fn holders(&self, stripe: u32) -> impl Iterator<Item = u32> + '_ {
        self.blocks_in(stripe)
            .map(|block| self.holder[block as usize])
            .filter(|holder| *holder < WITHHELD)
    }

    /// Held blocks, each after the sequence that holds it, in the order in which they were taken.
    #[must_use]
    pub fn in_order_taken(&self) -> Vec<(u32, u32)> {
        let mut held: Vec<(u64, u32, u32)> = (0u32..)
            .zip(self.holder.iter().zip(&self.taken))
            .filter(|(_, (holder, _))| **holder < WITHHELD)
            .map(|(block, (holder, taken))| (*taken, *holder, block))
            .collect();
        held.sort_unstable();
        let held = held.into_iter().map(|(_, holder, block)| (holder, block));
        held.collect()
    }

    fn whole(&self, block: u32) -> bool {
        self.stripes_of(block)
            .all(|stripe| !self.withheld.has(stripe))
    }

    fn free(&mut self, block: u32) {
        let queued = &mut self.queued[block as usize];
        *queued = queued.wrapping_add(1);
        self.holder[block as usize] = FREE;
        self.free.push_back((block, *queued));
        self.available += 1;
        if self.free.len() > 2 * self.holder.len() {
            let (queued, holder) = (&self.queued, &self.holder);
            self.free.retain(|(block, number)| {
                holder[*block as usize] == FREE && queued[*block as usize] == *number
            });
        }
    }

    /// Gives `sequence` a free block.
    pub fn take(&mut self, sequence: u32) -> Option<u32> {
        let block = loop {
            let (block, number) = self.free.pop_front()?;
            if self.holder[block as usize] == FREE && self.queued[block as usize] == number {
                break block;
            }
        };
        self.available -= 1;
        self.holder[block as usize] = sequence;
        self.takings += 1;
        self.taken[block as usize] = self.takings;
        for stripe in self.stripes_of(block) {
            self.held[stripe] += 1;
            self.unheld.remove(stripe);
        }
        Some(block)
    }

    /// Takes `block` back from who holds it.
    pub fn give(&mut self, block: u32) {
        for stripe in self.stripes_of(block) {
            self.held[stripe] -= 1;
            if self.held[stripe] == 0 && !self.withheld.has(stripe) {
                self.unheld.insert(stripe);
            }
        }
        if self.whole(block) {
            self.free(block);
        } else {
            self.holder[block as usize] = WITHHELD;
        }
    }

    /// Takes the memory behind these stripes. Who holds blocks of them has lost them and must give
    /// them back.
    pub fn withhold(&mut self, stripes: &[u32]) {
        for stripe in stripes {
            if self.withheld.insert(*stripe as usize) {
                self.backed_stripes -= 1;
            }
            self.unheld.remove(*stripe as usize);
            for block in self.blocks_in(*stripe) {
                let holder = &mut self.holder[block as usize];
                if *holder == FREE {
                    *holder = WITHHELD;
                    self.available -= 1;
                }
            }
        }
    }

    /// Backs up to `count` stripes that are not, lowest first; says how many.
    pub fn restore(&mut self, count: u32) -> u32 {
        let lowest = self.withheld.rising().take(count as usize);
        let lowest: Vec<u32> = lowest.map(|stripe| stripe as u32).collect();
        self.restore_these(&lowest)
    }

    /// Backs these stripes; says how many were not.
    pub fn restore_these(&mut self, stripes: &[u32]) -> u32 {
        let mut restored = 0;
        for stripe in stripes {
            if !self.withheld.remove(*stripe as usize) {
                continue;
            }
            restored += 1;
            if self.held(*stripe) == 0 {
                self.unheld.insert(*stripe as usize);
            }
            for block in self.blocks_in(*stripe) {
                if self.holder[block as usize] == WITHHELD && self.whole(block) {
                    self.free(block);
                }
            }
        }
        self.backed_stripes += restored;
        restored
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_block_is_free_held_or_withheld_and_the_counts_add_up(
            block in 1u64..9,
            stripe in 1u64..9,
            steps in prop::collection::vec((0u8..4, any::<u32>()), 0..200),
        ) {
            let mut blocks = Blocks::new(97, block, stripe);
            let mut held: Vec<u32> = Vec::new();
            for (what, which) in steps {
                let stripe = which % blocks.stripes();
                match what {
                    0 => {
                        let there = blocks.available();
                        let got = blocks.take(which % 7);
                        prop_assert_eq!(got.is_some(), there > 0);
                        if let Some(block) = got {
                            prop_assert!(whole(&blocks, block) && !held.contains(&block));
                            held.push(block);
                        }
                    }
                    1 if !held.is_empty() => {
                        let block = held.swap_remove(which as usize % held.len());
                        blocks.give(block);
                    }
                    2 => {
                        blocks.withhold(&[stripe]);
                        let lost: Vec<u32> = held.iter().copied()
                            .filter(|block| !whole(&blocks, *block)).collect();
                        held.retain(|block| whole(&blocks, *block));
                        for block in lost {
                            blocks.give(block);
                        }
                    }
                    3 => { blocks.restore(which % 3); }
                    _ => {}
                }
                let all = 97 / block as u32;
                let usable = (0..all).filter(|block| whole(&blocks, *block)).count();
                prop_assert_eq!(blocks.available() as usize + held.len(), usable);
                for stripe in 0..blocks.stripes() {
                    let here = blocks.blocks_in(stripe);
                    let of_held = held.iter().filter(|block| here.contains(block)).count();
                    prop_assert_eq!(blocks.held(stripe) as usize, of_held);
                    prop_assert_eq!(blocks.holders(stripe).count(), of_held);
                }
                let nobodys = |stripe: &u32| blocks.is_backed(*stripe) && blocks.held(*stripe) == 0;
                let nobodys: Vec<u32> = (0..blocks.stripes()).filter(nobodys).collect();
                prop_assert!(blocks.unheld().eq(nobodys.iter().copied()));
                prop_assert!(blocks.unheld_from_the_top().eq(nobodys.into_iter().rev()));
            }
        }
    }

    fn whole(blocks: &Blocks, block: u32) -> bool {
        let mut stripes = blocks.stripes_of(block);
        stripes.all(|stripe| blocks.is_backed(stripe as u32))
    }
}
