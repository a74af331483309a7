//! Which handles and which blocks go together: stripes.
//!
//! An engine places block `b` of a layer at `base + b * stride`. Where blocks are outermost, one
//! handle holds a block or a few, of every layer. Where layers are outermost, one handle holds many
//! blocks of one layer, and a block that is missing in one layer is useless in all of them. So what
//! is reclaimed as one is a *stripe*: all handles, in every layer, that begin in the same run of
//! blocks. The run is as long as the blocks that fit in one handle.
//!
//! ```text
//!   layer 0   |  0  1  2  3 |  4  5  6  7 |      a handle: |  |
//!   layer 1   |  0  1  2  3 |  4  5  6  7 |
//!             +- stripe 0 --+- stripe 1 --+
//! ```
//!
//! Blocks need not divide a handle. A block that lies across two handles is lost with either, so it
//! belongs to both their stripes. Invariant: every handle is in exactly one stripe, and a block is
//! in every stripe that holds any byte of it.

use crate::ids::{BlockId, Bytes, StripeId};

/// Consecutive blocks of one layer, placed evenly. Its first byte begins a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Number of its first handle; the next ones follow.
    pub first_handle: u32,
    /// From the region's first byte to the first block's.
    pub offset: Bytes,
    /// From one block's first byte to the next one's. Zero is read as `block`.
    pub stride: Bytes,
    /// Bytes of one block.
    pub block: Bytes,
    /// Number of its first block.
    pub first_block: BlockId,
    /// How many blocks.
    pub blocks: u32,
}

impl Region {
    fn step(&self) -> u64 {
        if self.stride.is_zero() {
            self.block.0.max(1)
        } else {
            self.stride.0
        }
    }

    /// Handles it lies on.
    #[must_use]
    pub fn handles(&self, handle: Bytes) -> u32 {
        let last = u64::from(self.blocks.saturating_sub(1));
        let end = Bytes(self.step())
            .times(last)
            .plus(self.block)
            .plus(self.offset);
        match self.blocks {
            0 => 0,
            _ => narrow(end.0.div_ceil(handle.0.max(1))),
        }
    }

    /// First and last block, counted from the region's first, with a byte in that handle of it.
    fn blocks_in(&self, nth: u32, handle: Bytes) -> Option<(u32, u32)> {
        let begin = u64::from(nth).saturating_mul(handle.0);
        let end = begin.saturating_add(handle.0);
        let (offset, step) = (self.offset.0, self.step());
        // The last block that begins before `end`, the first that ends after `begin`.
        let last = end.checked_sub(offset.saturating_add(1))? / step;
        let first = match begin.checked_sub(offset.saturating_add(self.block.0)) {
            Some(gap) => gap / step + 1,
            None => 0,
        };
        let last = last.min(u64::from(self.blocks.checked_sub(1)?));
        (first <= last).then(|| (narrow(first), narrow(last)))
    }
}

/// One stripe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stripe {
    /// Its handles, by number.
    pub handles: Vec<u32>,
    /// Every block with a byte in one of them, ascending.
    pub blocks: Vec<BlockId>,
}

/// Every stripe of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    handle: Bytes,
    stripes: Vec<Stripe>,
    /// By block number: its first and last stripe; `None` where no region has the block.
    of_block: Vec<Option<(u32, u32)>>,
}

/// Blocks a job may have; a job that claims more is read as having this many.
pub const MAX_BLOCKS: u32 = 1 << 22;

impl Layout {
    /// The stripes of regions that are backed by handles of `handle` bytes each.
    #[must_use]
    pub fn new(regions: &[Region], handle: Bytes) -> Self {
        let run = regions
            .iter()
            .filter(|region| region.blocks > 0)
            .map(|region| handle.0 / region.step())
            .max()
            .map_or(1, |run| narrow(run).max(1));
        let mut stripes: Vec<Stripe> = Vec::new();
        for region in regions {
            for nth in 0..region.handles(handle).min(MAX_BLOCKS) {
                let Some((first, last)) = region.blocks_in(nth, handle) else {
                    continue;
                };
                let number = |block: u32| region.first_block.0.saturating_add(block);
                let at = (number(first).min(MAX_BLOCKS) / run) as usize;
                if stripes.len() <= at {
                    stripes.resize_with(at + 1, Stripe::default);
                }
                stripes[at]
                    .handles
                    .push(region.first_handle.saturating_add(nth));
                let blocks = number(first)..=number(last).min(MAX_BLOCKS - 1);
                stripes[at].blocks.extend(blocks.map(BlockId));
            }
        }
        stripes.retain(|stripe| !stripe.handles.is_empty());
        for stripe in &mut stripes {
            stripe.blocks.sort_unstable();
            stripe.blocks.dedup();
        }
        Self::of_stripes(stripes, handle)
    }

    /// Stripes as they are given; `blocks` ascending in each.
    #[must_use]
    pub fn of_stripes(stripes: Vec<Stripe>, handle: Bytes) -> Self {
        let mut of_block: Vec<Option<(u32, u32)>> = Vec::new();
        for (id, stripe) in (0u32..).zip(&stripes) {
            for block in &stripe.blocks {
                let at = block.0.min(MAX_BLOCKS) as usize;
                if of_block.len() <= at {
                    of_block.resize(at + 1, None);
                }
                let known = of_block[at].get_or_insert((id, id));
                *known = (known.0.min(id), known.1.max(id));
            }
        }
        Self {
            handle,
            stripes,
            of_block,
        }
    }

    /// Bytes of one handle.
    #[must_use]
    pub const fn handle(&self) -> Bytes {
        self.handle
    }

    /// How many stripes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.stripes.len()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.stripes.is_empty()
    }

    /// One stripe.
    #[must_use]
    pub fn stripe(&self, stripe: StripeId) -> Option<&Stripe> {
        self.stripes.get(stripe.0 as usize)
    }

    /// Handles of the stripe, per rank.
    #[must_use]
    pub fn handles(&self, stripe: StripeId) -> u32 {
        let known = self.stripe(stripe);
        known.map_or(0, |stripe| narrow(stripe.handles.len() as u64))
    }

    /// What taking the stripe yields on each GPU of the job.
    #[must_use]
    pub fn bytes(&self, stripe: StripeId) -> Bytes {
        self.handle.times(self.handles(stripe).into())
    }

    /// The stripes a block lies in, by number.
    pub fn stripes_of(&self, block: BlockId) -> impl Iterator<Item = StripeId> + use<> {
        let known = self.of_block.get(block.0 as usize).copied().flatten();
        let (first, end) = known.map_or((0, 0), |(first, last)| (first, last + 1));
        (first..end).map(StripeId)
    }

    /// The stripe of a handle.
    #[must_use]
    pub fn stripe_of_handle(&self, number: u32) -> Option<StripeId> {
        let has = |stripe: &Stripe| stripe.handles.contains(&number);
        (0u32..)
            .zip(&self.stripes)
            .find(|known| has(known.1))
            .map(|known| StripeId(known.0))
    }
}

fn narrow(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn region(first_handle: u32, stride: u64, block: u64, blocks: u32) -> Region {
        Region {
            first_handle,
            offset: Bytes::ZERO,
            stride: Bytes(stride),
            block: Bytes(block),
            first_block: BlockId(0),
            blocks,
        }
    }

    #[test]
    fn layers_outermost_make_stripes_of_one_handle_per_layer() {
        const KIB: u64 = 1 << 10;
        // Llama 3 8B: 64 KiB of keys and values per block and layer, 32 layers.
        let regions: Vec<Region> = (0..32)
            .map(|l| region(l * 4, 64 * KIB, 64 * KIB, 128))
            .collect();
        let layout = Layout::new(&regions, Bytes::mib(2));
        assert_eq!(layout.len(), 4);
        assert_eq!(layout.bytes(StripeId(1)), Bytes::mib(64));
        let stripe = layout.stripe(StripeId(1)).expect("it is there");
        assert_eq!(stripe.blocks, (32..64).map(BlockId).collect::<Vec<_>>());
        assert_eq!(
            stripe.handles,
            (0..32).map(|l| l * 4 + 1).collect::<Vec<_>>()
        );
    }

    #[test]
    fn blocks_outermost_make_stripes_of_one_handle() {
        let whole = Layout::new(&[region(0, 2 << 20, 2 << 20, 8)], Bytes::mib(2));
        assert_eq!(whole.len(), 8);
        assert_eq!(
            whole.stripe(StripeId(3)).map(|s| s.blocks.clone()),
            Some(vec![BlockId(3)])
        );
        // Qwen 2.5 7B: 896 KiB per block, so a handle holds parts of three or four.
        let parts = Layout::new(&[region(0, 896 << 10, 896 << 10, 64)], Bytes::mib(2));
        assert_eq!(parts.len(), 28);
        for id in 0..28 {
            let blocks = parts.stripe(StripeId(id)).map_or(0, |s| s.blocks.len());
            assert!((3..=4).contains(&blocks), "{blocks} blocks on handle {id}");
        }
    }

    proptest! {
        #[test]
        fn a_block_is_in_every_stripe_that_holds_a_byte_of_it_and_a_handle_in_one(
            shapes in prop::collection::vec((0u64..40, 1u64..40, 0u64..20, 0u32..20), 1..4),
            handle in 1u64..64,
            first in 0u32..3,
        ) {
            let mut next = 0;
            let regions: Vec<Region> = shapes.iter().map(|&(offset, block, gap, blocks)| {
                let region = Region {
                    first_handle: next,
                    offset: Bytes(offset),
                    stride: Bytes(block + gap),
                    block: Bytes(block),
                    first_block: BlockId(first),
                    blocks,
                };
                next += region.handles(Bytes(handle));
                region
            }).collect();
            let layout = Layout::new(&regions, Bytes(handle));
            for region in &regions {
                for nth in 0..region.handles(Bytes(handle)) {
                    let number = region.first_handle + nth;
                    let (begin, end) = (u64::from(nth) * handle, u64::from(nth + 1) * handle);
                    let holders = (0..layout.len() as u32).map(StripeId)
                        .filter(|s| layout.stripe(*s).is_some_and(|s| s.handles.contains(&number)))
                        .collect::<Vec<_>>();
                    let touching: Vec<BlockId> = (0..region.blocks).filter(|b| {
                        let at = region.offset.0 + u64::from(*b) * region.stride.0;
                        at < end && at + region.block.0 > begin
                    }).map(|b| BlockId(first + b)).collect();
                    prop_assert_eq!(holders.len(), usize::from(!touching.is_empty()));
                    prop_assert_eq!(layout.stripe_of_handle(number), holders.first().copied());
                    for block in touching {
                        prop_assert!(layout.stripe(holders[0]).is_some_and(|s| s.blocks.contains(&block)));
                        prop_assert!(layout.stripes_of(block).any(|s| s == holders[0]));
                    }
                }
            }
        }
    }
}
