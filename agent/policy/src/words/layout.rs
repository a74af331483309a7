//! Which handles and which blocks form a stripe.
//!
//! An engine places block `b` of a layer at `base + b * stride`. If blocks are outermost, one handle contains one block
//! or a few, of every layer. If layers are outermost, one handle contains many blocks of one layer, and a block that is
//! missing in one layer is useless in all. So memory is reclaimed by *stripe*: all handles, in every layer, that begin
//! in the same run of blocks. The run is as long as the number of blocks that fit into one handle.
//!
//! ```text
//!   layer 0   |  0  1  2  3 |  4  5  6  7 |      a handle: |  |
//!   layer 1   |  0  1  2  3 |  4  5  6  7 |
//!             +- stripe 0 --+- stripe 1 --+
//! ```
//!
//! Blocks need not divide a handle. A block that lies across two handles is lost with either, so it belongs to both of
//! their stripes. Invariant: every handle is in exactly one stripe, and a block is in every stripe that contains any
//! byte of it.

use crate::words::ids::{BlockId, Bytes, StripeId};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

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

/// One stripe, number by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stripe {
    /// Its handles, by number.
    pub handles: Vec<u32>,
    /// Every block with a byte in one of them, ascending.
    pub blocks: Vec<BlockId>,
}

/// Consecutive numbers: the first, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: u32,
    count: u32,
}

impl Run {
    const fn end(self) -> u32 {
        self.first.saturating_add(self.count)
    }

    fn numbers(self) -> core::ops::Range<u32> {
        self.first..self.end()
    }
}

/// A stripe: where its runs end in [`Inner::runs`] (those of its handles, then those of its blocks),
/// and how many handles it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    handle_runs: u32,
    block_runs: u32,
    handles: u32,
}

/// Consecutive blocks that lie in the same stripes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    blocks: Run,
    first: u32,
    last: u32,
}

/// Every stripe of a job. Kept as runs of consecutive numbers, as a process says them: a cache of a
/// million blocks in one stripe takes no more room than one of a single block. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout(Arc<Inner>);

#[derive(Debug, Default, PartialEq, Eq)]
struct Inner {
    handle: Bytes,
    cuts: Vec<Cut>,
    runs: Vec<Run>,
    /// Ascending, disjoint.
    segments: Vec<Segment>,
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
        let mut inner = Inner {
            handle,
            ..Inner::default()
        };
        for stripe in stripes {
            let handles = stripe.handles.len() as u64;
            inner.add_runs(stripe.handles);
            let handle_runs = inner.runs.len() as u64;
            inner.add_runs(stripe.blocks.into_iter().map(|block| block.0));
            inner.cut(handle_runs, handles);
        }
        inner.finish()
    }

    /// Stripes of consecutive handles and blocks: for each how many handles, its first block and how
    /// many blocks. Handles are numbered on from one stripe to the next.
    #[must_use]
    pub fn of_runs(stripes: impl IntoIterator<Item = (u32, BlockId, u32)>, handle: Bytes) -> Self {
        let mut inner = Inner {
            handle,
            ..Inner::default()
        };
        let stripes = stripes.into_iter();
        let least = stripes.size_hint().0;
        inner.runs.reserve_exact(2 * least);
        inner.cuts.reserve_exact(least);
        let mut first = 0u32;
        for (handles, block, blocks) in stripes {
            let count = handles;
            inner.runs.push(Run { first, count });
            let handle_runs = inner.runs.len() as u64;
            inner.runs.push(Run {
                first: block.0,
                count: blocks,
            });
            inner.cut(handle_runs, handles.into());
            first = first.saturating_add(handles);
        }
        inner.finish()
    }

    /// Bytes of one handle.
    #[must_use]
    pub fn handle(&self) -> Bytes {
        self.0.handle
    }

    /// How many stripes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.cuts.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.cuts.is_empty()
    }

    /// One stripe, number by number: as long as its handles and blocks are many.
    #[must_use]
    pub fn stripe(&self, stripe: StripeId) -> Option<Stripe> {
        let (handles, blocks) = self.0.runs_of(stripe)?;
        Some(Stripe {
            handles: handles.iter().flat_map(|run| run.numbers()).collect(),
            blocks: blocks
                .iter()
                .flat_map(|run| run.numbers().map(BlockId))
                .collect(),
        })
    }

    /// How many blocks have a byte in the stripe.
    #[must_use]
    pub fn blocks(&self, stripe: StripeId) -> u64 {
        let runs = self.0.runs_of(stripe).map_or(&[][..], |runs| runs.1);
        runs.iter().map(|run| u64::from(run.count)).sum()
    }

    /// First and last block with a byte in the stripe.
    #[must_use]
    pub fn ends(&self, stripe: StripeId) -> Option<(BlockId, BlockId)> {
        let (_, runs) = self.0.runs_of(stripe)?;
        let last = runs.last()?.end().checked_sub(1)?;
        Some((BlockId(runs.first()?.first), BlockId(last)))
    }

    /// How many entries it is kept in: what it costs, whatever it stands for.
    #[must_use]
    pub fn room(&self) -> usize {
        self.0.cuts.len() + self.0.runs.len() + self.0.segments.len()
    }

    /// Handles of the stripe, per rank.
    #[must_use]
    pub fn handles(&self, stripe: StripeId) -> u32 {
        let known = self.0.cuts.get(stripe.0 as usize);
        known.map_or(0, |cut| cut.handles)
    }

    /// What taking the stripe yields on each GPU of the job.
    #[must_use]
    pub fn bytes(&self, stripe: StripeId) -> Bytes {
        self.0.handle.times(self.handles(stripe).into())
    }

    /// The stripes a block lies in, by number.
    pub fn stripes_of(&self, block: BlockId) -> impl Iterator<Item = StripeId> + use<> {
        let segments = &self.0.segments;
        let after = segments.partition_point(|segment| segment.blocks.first <= block.0);
        let known = after.checked_sub(1).and_then(|at| segments.get(at));
        let (first, end) = known
            .filter(|segment| block.0 < segment.blocks.end())
            .map_or((0, 0), |segment| (segment.first, segment.last + 1));
        (first..end).map(StripeId)
    }

    /// The stripe of a handle.
    #[must_use]
    pub fn stripe_of_handle(&self, number: u32) -> Option<StripeId> {
        let stripes = (0u32..).take(self.len()).map(StripeId);
        let has = |stripe: &StripeId| {
            let runs = self.0.runs_of(*stripe);
            runs.is_some_and(|(handles, _)| {
                handles.iter().any(|run| run.numbers().contains(&number))
            })
        };
        stripes.into_iter().find(has)
    }
}

impl Inner {
    /// Appends ascending numbers as runs; a number that does not follow the one before begins a run.
    fn add_runs(&mut self, numbers: impl IntoIterator<Item = u32>) {
        let begin = self.runs.len();
        for number in numbers {
            match self.runs.get_mut(begin..).and_then(<[Run]>::last_mut) {
                Some(run) if run.end() == number => run.count += 1,
                _ => self.runs.push(Run {
                    first: number,
                    count: 1,
                }),
            }
        }
    }

    fn cut(&mut self, handle_runs: u64, handles: u64) {
        self.cuts.push(Cut {
            handle_runs: narrow(handle_runs),
            block_runs: narrow(self.runs.len() as u64),
            handles: narrow(handles),
        });
    }

    /// The runs of a stripe's handles and of its blocks.
    fn runs_of(&self, stripe: StripeId) -> Option<(&[Run], &[Run])> {
        let at = stripe.0 as usize;
        let cut = self.cuts.get(at)?;
        let begin = at
            .checked_sub(1)
            .map_or(0, |before| self.cuts[before].block_runs);
        let (middle, end) = (cut.handle_runs as usize, cut.block_runs as usize);
        Some((
            self.runs.get(begin as usize..middle)?,
            self.runs.get(middle..end)?,
        ))
    }

    /// Finds out, in O(n log n) for n runs, which stripes each block lies in.
    fn finish(mut self) -> Layout {
        // Where the blocks of stripes begin, and where they end: most caches list both in order.
        let [mut begins, mut ends] = [(); 2].map(|()| Vec::with_capacity(self.cuts.len()));
        for stripe in (0u32..).take(self.cuts.len()) {
            let (_, blocks) = self.runs_of(StripeId(stripe)).unwrap_or_default();
            for run in blocks.iter().filter(|run| run.count > 0) {
                begins.push(edge(run.first, stripe));
                ends.push(edge(run.end(), stripe));
            }
        }
        begins.sort_unstable();
        ends.sort_unstable();
        let mut begins = begins.into_iter().peekable();
        let mut open: BTreeMap<u32, u32> = BTreeMap::new();
        let mut from = 0;
        // No run is empty, so the last edge is an end.
        for end in ends {
            while let Some(begin) = begins.next_if(|begin| *begin >> 32 < end >> 32) {
                self.border(&open, &mut from, begin);
                *open.entry(narrow(begin & u64::from(u32::MAX))).or_default() += 1;
            }
            self.border(&open, &mut from, end);
            let stripe = narrow(end & u64::from(u32::MAX));
            if let Entry::Occupied(mut runs) = open.entry(stripe) {
                *runs.get_mut() -= 1;
                if *runs.get() == 0 {
                    runs.remove();
                }
            }
        }
        self.segments.shrink_to_fit();
        Layout(Arc::new(self))
    }

    /// The blocks from `from` up to that of `edge` lie in the stripes that are open.
    fn border(&mut self, open: &BTreeMap<u32, u32>, from: &mut u32, edge: u64) {
        let block = narrow(edge >> 32);
        let first = core::mem::replace(from, block);
        let stripes = open.first_key_value().zip(open.last_key_value());
        let Some(((&least, _), (&most, _))) = stripes.filter(|_| first < block) else {
            return;
        };
        let blocks = Run {
            first,
            count: block - first,
        };
        match self.segments.last_mut() {
            Some(known)
                if known.blocks.end() == first && (known.first, known.last) == (least, most) =>
            {
                known.blocks.count += blocks.count;
            }
            _ => self.segments.push(Segment {
                blocks,
                first: least,
                last: most,
            }),
        }
    }
}

/// A border of blocks, and the stripe that it is of: ascending by block, then by stripe.
fn edge(block: u32, stripe: u32) -> u64 {
    u64::from(block) << 32 | u64::from(stripe)
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
            whole.stripe(StripeId(3)).map(|s| s.blocks),
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
        fn a_block_lies_between_the_first_and_the_last_stripe_that_lists_it(
            lists in prop::collection::vec(prop::collection::btree_set(0u32..24, 0..6), 1..8),
        ) {
            let stripes = lists.iter().map(|blocks| Stripe {
                handles: vec![0],
                blocks: blocks.iter().copied().map(BlockId).collect(),
            });
            let layout = Layout::of_stripes(stripes.collect(), Bytes(1));
            for block in 0..25 {
                let holds = |stripe: &usize| lists[*stripe].contains(&block);
                let first = (0..lists.len()).find(holds);
                let last = (0..lists.len()).rfind(holds);
                let expected = first.zip(last).map_or(0..0, |(first, last)| first..last + 1);
                let found = layout.stripes_of(BlockId(block)).map(|stripe| stripe.0 as usize);
                prop_assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
            }
            for (nth, blocks) in (0u32..).zip(&lists) {
                let stripe = layout.stripe(StripeId(nth)).unwrap_or_default();
                let listed: Vec<u32> = stripe.blocks.iter().map(|block| block.0).collect();
                prop_assert_eq!(&listed, &blocks.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(layout.blocks(StripeId(nth)), blocks.len() as u64);
            }
        }

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
