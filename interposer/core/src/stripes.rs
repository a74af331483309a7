//! A KV cache as stripes: the units that are reclaimed and restored.
//!
//! An engine's *block* has a part in every layer, at `base + index * stride` of that layer's *region*. Behind the
//! regions is memory in *handles*, pieces of equal size. A block that misses one part is useless in all layers, so
//! handles are grouped into *stripes*: all handles that hold the same blocks. If a handle holds one block of every
//! layer, a stripe is one handle. If it holds many blocks of one layer, a stripe has a handle for each layer.
//!
//! The blocks of a stripe are all blocks that touch one of its handles, so two neighbours share the block that lies
//! across their border. A handle is *fixed* (in no stripe and never reclaimed) in three cases: it holds no block, it
//! holds a protected block (an engine's block 0 is a dummy that padding reads), or its blocks are not one range (the
//! end of one layer and the beginning of the next).

/// One layer's part of the blocks `[first_block, first_block + blocks)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Address of its first block.
    pub base: u64,
    /// From the start of a block to the start of the next.
    pub stride: u64,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Id of its first block.
    pub first_block: u32,
    /// Blocks.
    pub blocks: u32,
}

/// A range of addresses with a handle behind each `handle_bytes` of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backing {
    /// First address, where the first handle begins.
    pub base: u64,
    /// Bytes: a multiple of the handle's.
    pub bytes: u64,
}

/// Why regions cannot be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRegions {
    /// There are none.
    #[error("no region, or one without blocks or bytes")]
    Empty,
    /// The numbers of one do not fit together.
    #[error("region {0}: its stride is less than its block's bytes, or its end is no address")]
    Shape(usize),
    /// One lies outside the backed ranges.
    #[error("region {0} is not inside one range that was allocated in a KV scope")]
    NotBacked(usize),
    /// Other blocks than the first has.
    #[error("region {0} has other block ids than region 0")]
    OtherBlocks(usize),
}

/// A handle: which backing, which handle of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Piece {
    /// Index of the backing.
    pub backing: u32,
    /// Index of the handle in it.
    pub handle: u32,
}

/// Handles that go together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stripe {
    /// First block that is gone with it.
    pub first_block: u32,
    /// Blocks that are gone with it.
    pub blocks: u32,
    /// Its handles, in order.
    pub handles: Vec<Piece>,
}

/// A KV cache, cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stripes {
    /// In order of their blocks.
    pub stripes: Vec<Stripe>,
    /// Handles in no stripe.
    pub fixed: Vec<Piece>,
    /// Block ids are below this.
    pub block_count: u32,
}

/// First and last block.
type Range = (u32, u32);

impl Region {
    fn end(&self) -> Option<u64> {
        let last = u64::from(self.blocks.checked_sub(1)?);
        let start = self.stride.checked_mul(last)?.checked_add(self.base)?;
        start.checked_add(self.block_bytes)
    }

    /// The blocks that touch `[from, to)`.
    fn touching(&self, from: u64, to: u64) -> Option<Range> {
        if to <= self.base || self.end()? <= from {
            return None;
        }
        let last = ((to - 1 - self.base) / self.stride).min(u64::from(self.blocks) - 1);
        let first = match from.checked_sub(self.base) {
            None => 0,
            // In the gap behind a block, the next one is the first.
            Some(into) => into / self.stride + u64::from(into % self.stride >= self.block_bytes),
        };
        let id = |index: u64| u32::try_from(index).ok()?.checked_add(self.first_block);
        (first <= last)
            .then(|| Some((id(first)?, id(last)?)))
            .flatten()
    }
}

/// What is known of one handle.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    range: Option<Range>,
    broken: bool,
}

impl Held {
    fn add(&mut self, (first, last): Range) {
        self.range = Some(match self.range {
            None => (first, last),
            Some((low, high)) => {
                self.broken |= first > high.saturating_add(1) || low > last.saturating_add(1);
                (low.min(first), high.max(last))
            }
        });
    }
}

/// Cuts `regions`, which lie inside `backings`, of which each handle has `handle_bytes`. Blocks below
/// `protected` are never in a stripe.
///
/// # Errors
/// When the regions make no sense.
pub fn cut(
    regions: &[Region],
    backings: &[Backing],
    handle_bytes: u64,
    protected: u32,
) -> Result<Stripes, BadRegions> {
    let first = regions.first().ok_or(BadRegions::Empty)?;
    let block_count = first
        .first_block
        .checked_add(first.blocks)
        .ok_or(BadRegions::Shape(0))?;
    let mut handles: Vec<Vec<Held>> = backings
        .iter()
        .map(|backing| {
            let count = usize::try_from(backing.bytes / handle_bytes.max(1)).unwrap_or(0);
            vec![Held::default(); count]
        })
        .collect();
    // The region whose handles hold most blocks sets where stripes begin: one that holds fewer would
    // cut blocks off that the others lose as well.
    let mut anchor: Option<(u32, Vec<u32>)> = None;
    for (index, region) in regions.iter().enumerate() {
        if region.blocks == 0 || region.block_bytes == 0 || handle_bytes == 0 {
            return Err(BadRegions::Empty);
        }
        if region.stride < region.block_bytes {
            return Err(BadRegions::Shape(index));
        }
        if (region.first_block, region.blocks) != (first.first_block, first.blocks) {
            return Err(BadRegions::OtherBlocks(index));
        }
        let end = region.end().ok_or(BadRegions::Shape(index))?;
        let around =
            |backing: &Backing| backing.base <= region.base && end - backing.base <= backing.bytes;
        let at = backings.iter().position(around);
        let at = at.ok_or(BadRegions::NotBacked(index))?;
        let base = backings[at].base;
        let mut starts = Vec::new();
        let mut widest = 0;
        let from = (region.base - base) / handle_bytes;
        let to = (end - base).div_ceil(handle_bytes);
        for handle in from..to {
            let start = base + handle * handle_bytes;
            let Some(range) = region.touching(start, start + handle_bytes) else {
                continue;
            };
            if let Some(held) = usize::try_from(handle)
                .ok()
                .and_then(|handle| handles[at].get_mut(handle))
            {
                held.add(range);
            }
            widest = widest.max(range.1 - range.0 + 1);
            starts.push(range.0);
        }
        if anchor.as_ref().is_none_or(|(known, _)| widest > *known) {
            anchor = Some((widest, starts));
        }
    }
    let mut starts = anchor.map(|(_, starts)| starts).unwrap_or_default();
    starts.sort_unstable();
    starts.dedup();
    Ok(assign(&handles, &starts, protected, block_count))
}

fn assign(handles: &[Vec<Held>], starts: &[u32], protected: u32, block_count: u32) -> Stripes {
    let mut of_start: Vec<Option<(Range, Vec<Piece>)>> = vec![None; starts.len()];
    let mut fixed = Vec::new();
    for (backing, handles) in handles.iter().enumerate() {
        for (handle, held) in handles.iter().enumerate() {
            let piece = Piece {
                backing: u32::try_from(backing).unwrap_or(u32::MAX),
                handle: u32::try_from(handle).unwrap_or(u32::MAX),
            };
            let range = held
                .range
                .filter(|range| !held.broken && range.0 >= protected);
            let at = range.map(|range| starts.partition_point(|start| *start <= range.0));
            match (range, at) {
                (Some((first, last)), Some(at)) => {
                    let slot = &mut of_start[at.saturating_sub(1)];
                    let (known, pieces) = slot.get_or_insert_with(|| ((first, last), Vec::new()));
                    *known = (known.0.min(first), known.1.max(last));
                    pieces.push(piece);
                }
                _ => fixed.push(piece),
            }
        }
    }
    Stripes {
        stripes: of_start
            .into_iter()
            .flatten()
            .map(|((first, last), handles)| Stripe {
                first_block: first,
                blocks: last - first + 1,
                handles,
            })
            .collect(),
        fixed,
        block_count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    const MIB: u64 = 1 << 20;

    fn layers(count: u64, apart: u64, stride: u64, block_bytes: u64, blocks: u32) -> Vec<Region> {
        (0..count)
            .map(|layer| Region {
                base: 1 << 40 | (layer * apart),
                stride,
                block_bytes,
                first_block: 0,
                blocks,
            })
            .collect()
    }

    fn whole(bytes: u64) -> Vec<Backing> {
        let base = 1 << 40;
        vec![Backing { base, bytes }]
    }

    #[test]
    fn a_block_of_two_mebibytes_over_all_layers_is_a_stripe_of_one_handle() {
        // Llama-3-8B, 16 tokens, bf16: 64 KiB in each of 32 layers, block outermost.
        let regions = layers(32, 64 << 10, 2 * MIB, 64 << 10, 100);
        let cut = cut(&regions, &whole(200 * MIB), 2 * MIB, 1).expect("it can be cut");
        assert_eq!(cut.stripes.len(), 99);
        assert!(
            cut.stripes
                .iter()
                .all(|s| s.blocks == 1 && s.handles.len() == 1)
        );
        assert_eq!(cut.fixed.len(), 1, "the handle of block 0");
    }

    #[test]
    fn the_same_model_layer_outermost_has_stripes_of_32_handles_and_32_blocks() {
        let regions = layers(32, 64 * MIB, 64 << 10, 64 << 10, 1024);
        let cut = cut(&regions, &whole(32 * 64 * MIB), 2 * MIB, 1).expect("it can be cut");
        assert_eq!(cut.stripes.len(), 31);
        assert!(
            cut.stripes
                .iter()
                .all(|s| s.blocks == 32 && s.handles.len() == 32)
        );
        assert_eq!(cut.fixed.len(), 32, "a handle of each layer holds block 0");
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let region = layers(1, 0, 64, 64, 8)[0];
        let inside = whole(2 * MIB);
        let try_cut = |region| cut(&[region], &inside, 2 * MIB, 1);
        assert_eq!(cut(&[], &inside, 2 * MIB, 1), Err(BadRegions::Empty));
        assert_eq!(
            try_cut(Region {
                block_bytes: 65,
                ..region
            }),
            Err(BadRegions::Shape(0))
        );
        assert_eq!(
            try_cut(Region {
                stride: u64::MAX / 2,
                ..region
            }),
            Err(BadRegions::Shape(0))
        );
        assert_eq!(
            try_cut(Region { base: 64, ..region }),
            Err(BadRegions::NotBacked(0))
        );
    }

    /// The blocks that touch a handle, asked one by one.
    fn touched(
        regions: &[Region],
        backings: &[Backing],
        handle_bytes: u64,
        piece: Piece,
    ) -> BTreeSet<u32> {
        let from = backings[piece.backing as usize].base + u64::from(piece.handle) * handle_bytes;
        let to = from + handle_bytes;
        regions
            .iter()
            .flat_map(|region| (0..region.blocks).map(move |index| (region, index)))
            .filter(|(region, index)| {
                let start = region.base + u64::from(*index) * region.stride;
                start < to && start + region.block_bytes > from
            })
            .map(|(region, index)| region.first_block + index)
            .collect()
    }

    proptest! {
        #[test]
        fn a_stripe_loses_exactly_the_blocks_that_touch_its_handles(
            blocks in 1_u32..60,
            first_block in 0_u32..3,
            protected in 0_u32..3,
            handle_bytes in prop_oneof![Just(64_u64), Just(100), Just(256)],
            shapes in prop::collection::vec((1_u64..150, 0_u64..40, 0_u64..300), 1..5),
            interleaved in any::<bool>(),
        ) {
            let mut regions = Vec::new();
            let mut backings = Vec::new();
            let mut base = 1_u64 << 30;
            let all: u64 = shapes.iter().map(|(bytes, gap, _)| bytes + gap).sum();
            let mut inside = 0;
            for (block_bytes, gap, offset) in shapes {
                let stride = if interleaved { all } else { block_bytes + gap };
                let region = Region {
                    base: base + if interleaved { inside } else { offset },
                    stride,
                    block_bytes,
                    first_block,
                    blocks,
                };
                inside += block_bytes + gap;
                regions.push(region);
                if !interleaved {
                    let end = region.end().expect("small numbers");
                    let bytes = (end - base).next_multiple_of(handle_bytes);
                    backings.push(Backing { base, bytes });
                    base += bytes + handle_bytes;
                }
            }
            if interleaved {
                let bytes = (all * u64::from(blocks)).next_multiple_of(handle_bytes);
                backings.push(Backing { base, bytes });
            }
            let cut = cut(&regions, &backings, handle_bytes, protected).expect("it can be cut");
            let mut seen = BTreeMap::new();
            for stripe in &cut.stripes {
                let mut lost = BTreeSet::new();
                for piece in &stripe.handles {
                    prop_assert_eq!(seen.insert(*piece, ()), None);
                    lost.extend(touched(&regions, &backings, handle_bytes, *piece));
                }
                prop_assert!(lost.iter().all(|block| *block >= protected));
                let said: BTreeSet<u32> =
                    (stripe.first_block..stripe.first_block + stripe.blocks).collect();
                // What lies between two blocks of a stripe may be said lost although it is not.
                prop_assert!(lost.is_subset(&said));
                prop_assert_eq!(lost.first(), said.first());
                prop_assert_eq!(lost.last(), said.last());
                if regions.len() == 1 || interleaved {
                    prop_assert_eq!(&lost, &said);
                }
            }
            for piece in &cut.fixed {
                prop_assert_eq!(seen.insert(*piece, ()), None);
            }
            let handles: u64 = backings.iter().map(|b| b.bytes / handle_bytes).sum();
            prop_assert_eq!(seen.len() as u64, handles);
        }
    }
}
