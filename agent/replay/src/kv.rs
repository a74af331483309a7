//! Blocks of KV cache: who holds which, and which are backed by memory.
//!
//! A *block* is 16 tokens of every layer. A *stripe* is the least that memory can be taken or given
//! in: all handles that back one range of blocks in every layer. With the block outermost (one
//! block's layers side by side) and a block of a handle's size or more that is one block; with the
//! layer outermost it is as many blocks as one handle holds of one layer.
//!
//! Free blocks leave in the order in which they came, as in vLLM's queue, so requests interleave on
//! stripes as they arrived and ended. Invariant: a block is free, held by one sequence, or withheld
//! (its stripe is not backed); the counts always add up.

use std::collections::VecDeque;

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
    per_stripe: u32,
    /// Sequence that holds it, [`FREE`] or [`WITHHELD`].
    holder: Vec<u32>,
    free: VecDeque<u32>,
    backed: Vec<bool>,
    backed_stripes: u32,
    /// Held blocks of each stripe.
    held: Vec<u32>,
    /// When each block was last taken: the number of that taking.
    taken: Vec<u64>,
    takings: u64,
}

impl Blocks {
    /// As many whole stripes as fit into `blocks`, at least one, all backed.
    #[must_use]
    pub fn new(blocks: u32, per_stripe: u32) -> Self {
        let per_stripe = per_stripe.max(1);
        let stripes = (blocks / per_stripe).max(1);
        Self {
            per_stripe,
            holder: vec![FREE; (stripes * per_stripe) as usize],
            free: (0..stripes * per_stripe).collect(),
            backed: vec![true; stripes as usize],
            backed_stripes: stripes,
            held: vec![0; stripes as usize],
            taken: vec![0; (stripes * per_stripe) as usize],
            takings: 0,
        }
    }

    /// Blocks that can be taken.
    #[must_use]
    pub fn available(&self) -> u32 {
        u32::try_from(self.free.len()).unwrap_or(u32::MAX)
    }

    /// Stripes, backed or not.
    #[must_use]
    pub fn stripes(&self) -> u32 {
        u32::try_from(self.backed.len()).unwrap_or(u32::MAX)
    }

    /// Stripes that are backed.
    #[must_use]
    pub fn backed_stripes(&self) -> u32 {
        self.backed_stripes
    }

    /// Blocks of one stripe.
    #[must_use]
    pub fn per_stripe(&self) -> u32 {
        self.per_stripe
    }

    /// Whether that stripe is backed.
    #[must_use]
    pub fn is_backed(&self, stripe: u32) -> bool {
        self.backed.get(stripe as usize).copied().unwrap_or(false)
    }

    /// Held blocks of that stripe.
    #[must_use]
    pub fn held(&self, stripe: u32) -> u32 {
        self.held.get(stripe as usize).copied().unwrap_or(0)
    }

    /// The stripe of a block.
    #[must_use]
    pub fn stripe_of(&self, block: u32) -> u32 {
        block / self.per_stripe
    }

    /// Sequences that hold blocks of that stripe, one for each block.
    pub fn holders(&self, stripe: u32) -> impl Iterator<Item = u32> + '_ {
        let from = (stripe * self.per_stripe) as usize;
        let blocks = self.holder.iter().skip(from).take(self.per_stripe as usize);
        blocks.copied().filter(|holder| *holder < WITHHELD)
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

    /// Gives `sequence` a free block.
    pub fn take(&mut self, sequence: u32) -> Option<u32> {
        let block = self.free.pop_front()?;
        self.holder[block as usize] = sequence;
        self.takings += 1;
        self.taken[block as usize] = self.takings;
        self.held[(block / self.per_stripe) as usize] += 1;
        Some(block)
    }

    /// Takes `block` back from who holds it.
    pub fn give(&mut self, block: u32) {
        let stripe = (block / self.per_stripe) as usize;
        self.held[stripe] -= 1;
        if self.backed[stripe] {
            self.holder[block as usize] = FREE;
            self.free.push_back(block);
        } else {
            self.holder[block as usize] = WITHHELD;
        }
    }

    /// Takes the memory behind these stripes. Who holds blocks of them has lost them and must give
    /// them back.
    pub fn withhold(&mut self, stripes: &[u32]) {
        for stripe in stripes {
            if core::mem::take(&mut self.backed[*stripe as usize]) {
                self.backed_stripes -= 1;
            }
        }
        let (backed, per_stripe) = (&self.backed, self.per_stripe);
        let holder = &mut self.holder;
        self.free.retain(|block| {
            let stays = backed[(block / per_stripe) as usize];
            if !stays {
                holder[*block as usize] = WITHHELD;
            }
            stays
        });
    }

    /// Backs up to `count` stripes that are not, lowest first; says how many.
    pub fn restore(&mut self, count: u32) -> u32 {
        let mut restored = 0;
        for stripe in 0..self.backed.len() {
            if restored == count {
                break;
            }
            // A stripe whose lost blocks are still held comes back when they were given up.
            if self.backed[stripe] || self.held[stripe] > 0 {
                continue;
            }
            self.backed[stripe] = true;
            restored += 1;
            let from = u32::try_from(stripe).unwrap_or(u32::MAX) * self.per_stripe;
            for block in from..from + self.per_stripe {
                self.holder[block as usize] = FREE;
                self.free.push_back(block);
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
            per_stripe in 1u32..5,
            steps in prop::collection::vec((0u8..4, any::<u32>()), 0..200),
        ) {
            let mut blocks = Blocks::new(24, per_stripe);
            let mut held: Vec<u32> = Vec::new();
            for (what, which) in steps {
                let stripe = which % blocks.stripes();
                match what {
                    0 => {
                        let there = blocks.available();
                        let got = blocks.take(which % 7);
                        prop_assert_eq!(got.is_some(), there > 0);
                        if let Some(block) = got {
                            prop_assert!(blocks.is_backed(blocks.stripe_of(block)));
                            prop_assert!(!held.contains(&block));
                            held.push(block);
                        }
                    }
                    1 if !held.is_empty() => {
                        let block = held.swap_remove(which as usize % held.len());
                        blocks.give(block);
                    }
                    2 => blocks.withhold(&[stripe]),
                    3 => { blocks.restore(which % 3); }
                    _ => {}
                }
                let live = |block: &&u32| blocks.is_backed(blocks.stripe_of(**block));
                let backed_held = held.iter().filter(live).count() as u32;
                prop_assert_eq!(
                    blocks.available() + backed_held,
                    blocks.backed_stripes() * blocks.per_stripe()
                );
                let sums = (0..blocks.stripes()).map(|s| blocks.held(s)).sum::<u32>();
                prop_assert_eq!(sums as usize, held.len());
            }
        }
    }
}
