//! A trainer's memory: physical blocks, who holds each, and at which addresses it is mapped.
//!
//! A *block* is 2 MiB of memory, the unit of reclaim and restore. A *chunk* is `2 x layers` blocks. It is held in one
//! of two ways:
//!
//! * as *rows*, by saved keys and values: block `(layer, K or V)` of a chunk lies at the chunk's place in the address
//!   range of that layer. So allocating a chunk is arithmetic, without a driver call;
//! * by *tensors*, each over any free blocks, wherever they lie. If a tensor needs several blocks, they are mapped a
//!   *second* time, side by side. Tensors of at most half a block share blocks ([`small`]). Those, and tensors of one
//!   block, use the first address and need no call.
//!
//! ```text
//!   addresses   [ K of layer 0 | V of layer 0 | K of layer 1 | ...  ][ second mappings ............ ]
//!                 chunk 0 1 2 ...                                       tensor a | tensor b |  ...
//!   blocks          |     |                                             |  |
//!                   +-----|-------- held by rows                        |  |
//!                         +-------- held by tensor a -------------------+  +--- of any chunk
//! ```
//!
//! The first mapping of a block is never undone; ownership is only recorded. So a block that is *lost* (its memory was
//! reclaimed) is lost at up to two addresses, [`Arena::addresses`], and all of them must be quarantined. Its holder
//! keeps it, and nobody else gets it, until it is *back*.
//!
//! Invariants: a block has one holder; a chunk is free as a whole when nobody holds any of its blocks; nothing new is
//! put into a lost block. Calls for the driver are returned as [`Call`]s, in order.

mod block;
mod small;
#[cfg(test)]
mod tests;
mod words;

pub use block::{BLOCK_BYTES, Block, PIECE_BYTES};
use small::Small;
use std::collections::{BTreeMap, BTreeSet};
pub use words::{Address, BadShape, Call, Chunk, Holder, Ledger, NoRoom, NotAllocated, Row, Shape};

/// What is known of a block.
#[derive(Clone, Copy, Debug)]
struct Held {
    holder: Holder,
    /// Place of its second mapping, in blocks from the first of them.
    second: Option<u32>,
    lost: bool,
}

/// What is known of a chunk.
#[derive(Clone, Copy, Debug, Default)]
struct Parts {
    rows: bool,
    /// Blocks that tensors hold.
    held: u32,
    lost: u32,
    /// Blocks that nobody holds and that are not lost.
    usable: u32,
}

/// A tensor of at least half a block.
#[derive(Clone, Debug)]
struct Tensor {
    bytes: u64,
    blocks: Vec<Block>,
}

/// The ledger of one arena.
#[derive(Clone, Debug)]
pub struct Arena {
    shape: Shape,
    blocks: Vec<Held>,
    chunks: Vec<Parts>,
    /// Chunks that rows can be had of: nobody's, nothing lost.
    whole: BTreeSet<Chunk>,
    /// Other chunks with usable blocks, the fullest first.
    broken: BTreeSet<(u32, Chunk)>,
    tensors: BTreeMap<Address, Tensor>,
    small: Small,
    /// Free runs of second mappings: first block of addresses, length.
    runs: BTreeMap<u32, u32>,
    ledger: Ledger,
    usable: u32,
}

impl Arena {
    /// An arena with all of its memory there and nobody in it.
    ///
    /// # Errors
    /// When it would hold nothing, or more than its numbers can say.
    pub fn new(shape: Shape) -> Result<Self, BadShape> {
        if shape.layers == 0 || shape.chunks == 0 {
            return Err(BadShape::Empty);
        }
        let per_chunk = shape.layers.checked_mul(2).ok_or(BadShape::TooLarge)?;
        let blocks = per_chunk
            .checked_mul(shape.chunks)
            .ok_or(BadShape::TooLarge)?;
        if blocks.max(shape.second_blocks) >= 1 << 31 {
            return Err(BadShape::TooLarge);
        }
        let free = Held {
            holder: Holder::Free,
            second: None,
            lost: false,
        };
        let parts = Parts {
            usable: per_chunk,
            ..Parts::default()
        };
        Ok(Self {
            shape,
            blocks: vec![free; blocks as usize],
            chunks: vec![parts; shape.chunks as usize],
            whole: (0..shape.chunks).map(Chunk).collect(),
            broken: BTreeSet::new(),
            tensors: BTreeMap::new(),
            small: Small::default(),
            runs: (shape.second_blocks > 0)
                .then_some((0, shape.second_blocks))
                .into_iter()
                .collect(),
            ledger: Ledger {
                free_blocks: blocks,
                ..Ledger::default()
            },
            usable: blocks,
        })
    }

    /// Bytes of addresses: the first mappings, then the second.
    #[must_use]
    pub const fn address_bytes(&self) -> u64 {
        (self.blocks.len() as u64 + self.shape.second_blocks as u64) * BLOCK_BYTES
    }

    /// Where a block is mapped from the beginning.
    #[must_use]
    pub const fn first_address(&self, block: Block) -> Address {
        let per_chunk = 2 * self.shape.layers;
        let place = (block.0 % per_chunk) as u64 * self.shape.chunks as u64;
        Address((place + (block.0 / per_chunk) as u64) * BLOCK_BYTES)
    }

    /// The block whose first address that is, or lies in.
    #[must_use]
    pub fn block_at(&self, at: Address) -> Option<Block> {
        let place = u32::try_from(at.0 / BLOCK_BYTES).ok()?;
        let per_chunk = 2 * self.shape.layers;
        let block = place % self.shape.chunks * per_chunk + place / self.shape.chunks;
        (u64::from(place) < self.blocks.len() as u64).then_some(Block(block))
    }

    const fn second_address(&self, place: u32) -> Address {
        Address((self.blocks.len() as u64 + place as u64) * BLOCK_BYTES)
    }

    /// Every address that a block is mapped at: all of them are quarantined when its memory is reclaimed.
    pub fn addresses(&self, block: Block) -> impl Iterator<Item = Address> {
        let held = self.blocks.get(block.0 as usize);
        let second = held.and_then(|held| held.second);
        let first = held.map(|_| self.first_address(block));
        first
            .into_iter()
            .chain(second.map(|place| self.second_address(place)))
    }

    /// Who holds a block; None beyond the last.
    #[must_use]
    pub fn holder(&self, block: Block) -> Option<Holder> {
        Some(self.blocks.get(block.0 as usize)?.holder)
    }

    /// The blocks of the tensor that begins at an address, in its order. One in a shared block has none
    /// of its own.
    #[must_use]
    pub fn blocks_of(&self, at: Address) -> &[Block] {
        self.tensors
            .get(&at)
            .map_or(&[], |tensor| tensor.blocks.as_slice())
    }

    /// Where bytes went.
    #[must_use]
    pub const fn ledger(&self) -> Ledger {
        self.ledger
    }

    fn chunk_of(&self, block: Block) -> Chunk {
        Chunk(block.0 / (2 * self.shape.layers))
    }

    fn blocks_in(&self, chunk: Chunk) -> impl Iterator<Item = Block> + use<> {
        let per_chunk = 2 * self.shape.layers;
        (chunk.0 * per_chunk..(chunk.0 + 1) * per_chunk).map(Block)
    }

    /// Changes a chunk and puts it where it can be found.
    fn change(&mut self, chunk: Chunk, with: impl FnOnce(&mut Parts)) {
        let parts = &mut self.chunks[chunk.0 as usize];
        let before = *parts;
        with(parts);
        let after = *parts;
        let broken = |parts: &Parts| !parts.rows && (parts.held > 0 || parts.lost > 0);
        let whole = |parts: &Parts| !parts.rows && parts.held == 0 && parts.lost == 0;
        if broken(&before) {
            self.broken.remove(&(before.usable, chunk));
        }
        if broken(&after) && after.usable > 0 {
            self.broken.insert((after.usable, chunk));
        }
        match (whole(&before), whole(&after)) {
            (false, true) => drop(self.whole.insert(chunk)),
            (true, false) => drop(self.whole.remove(&chunk)),
            _ => {}
        }
        let pinned = |parts: &Parts| {
            if !parts.rows && parts.held > 0 {
                parts.usable
            } else {
                0
            }
        };
        self.ledger.broken_blocks += pinned(&after);
        self.ledger.broken_blocks -= pinned(&before);
        self.usable = self.usable + after.usable - before.usable;
    }

    /// Allocates a free chunk for rows: no driver call.
    pub fn allocate_rows(&mut self) -> Option<Chunk> {
        let chunk = *self.whole.first()?;
        self.change(chunk, |parts| {
            parts.rows = true;
            parts.usable = 0;
        });
        for block in self.blocks_in(chunk) {
            self.blocks[block.0 as usize].holder = Holder::Rows(chunk);
            self.ledger.free_blocks -= 1;
            self.ledger.row_blocks += 1;
        }
        Some(chunk)
    }

    /// Frees the rows of a chunk.
    ///
    /// # Errors
    /// When the chunk holds none.
    pub fn free_rows(&mut self, chunk: Chunk) -> Result<(), NotAllocated> {
        if !self
            .chunks
            .get(chunk.0 as usize)
            .is_some_and(|parts| parts.rows)
        {
            return Err(NotAllocated);
        }
        for block in self.blocks_in(chunk) {
            self.blocks[block.0 as usize].holder = Holder::Free;
            self.ledger.free_blocks += 1;
            self.ledger.row_blocks -= 1;
        }
        let per_chunk = 2 * self.shape.layers;
        self.change(chunk, |parts| {
            parts.rows = false;
            parts.usable = per_chunk - parts.lost;
        });
        Ok(())
    }

    /// The block of a chunk that holds a layer's keys or values; None beyond the last layer.
    #[must_use]
    pub const fn row(&self, chunk: Chunk, layer: u32, row: Row) -> Option<Block> {
        if layer >= self.shape.layers || chunk.0 >= self.shape.chunks {
            return None;
        }
        Some(Block(
            chunk.0 * 2 * self.shape.layers + 2 * layer + row as u32,
        ))
    }

    /// Allocates memory for a tensor of `bytes`; what the driver has to do is added to `calls`. A caller whose
    /// call fails undoes those before it and frees the tensor, without the calls of that.
    ///
    /// # Errors
    /// When there is not enough; nothing is allocated then.
    pub fn allocate(&mut self, bytes: u64, calls: &mut Vec<Call>) -> Result<Address, NoRoom> {
        if bytes == 0 {
            return Err(NoRoom::Empty);
        }
        if let Some(bytes) = u32::try_from(bytes)
            .ok()
            .filter(|_| bytes <= BLOCK_BYTES / 2)
        {
            return self.allocate_small(bytes);
        }
        let needed = bytes.div_ceil(BLOCK_BYTES);
        let count = u32::try_from(needed)
            .ok()
            .filter(|count| *count <= self.usable);
        let count = count.ok_or(NoRoom::Blocks {
            needed,
            free: self.usable,
        })?;
        let place = if count > 1 {
            Some(self.allocate_run(count)?)
        } else {
            None
        };
        let blocks = self.choose(count);
        let at = match (place, blocks.first()) {
            (Some(place), _) => self.second_address(place),
            (None, Some(block)) => self.first_address(*block),
            (None, None) => return Err(NoRoom::Empty),
        };
        for (index, block) in (0..).zip(&blocks) {
            self.hold(*block, Holder::Tensor(at));
            if let Some(place) = place {
                self.blocks[block.0 as usize].second = Some(place + index);
                calls.push(Call::Map {
                    block: *block,
                    at: self.second_address(place + index),
                });
            }
        }
        self.ledger.tensor_blocks += count;
        self.ledger.asked_bytes += bytes;
        self.tensors.insert(at, Tensor { bytes, blocks });
        Ok(at)
    }

    fn allocate_small(&mut self, bytes: u32) -> Result<Address, NoRoom> {
        let piece = self.small.allocate(bytes).or_else(|| {
            let block = *self.choose(1).first()?;
            self.hold(block, Holder::Small);
            self.ledger.small_blocks += 1;
            self.small.add(block);
            self.small.allocate(bytes)
        });
        let (block, offset) = piece.ok_or(NoRoom::Blocks { needed: 1, free: 0 })?;
        self.ledger.asked_bytes += u64::from(bytes);
        Ok(Address(self.first_address(block).0 + offset))
    }

    /// Frees a tensor.
    ///
    /// # Errors
    /// When none begins there.
    pub fn free(&mut self, at: Address, calls: &mut Vec<Call>) -> Result<(), NotAllocated> {
        if let Some(tensor) = self.tensors.remove(&at) {
            self.ledger.asked_bytes -= tensor.bytes;
            self.ledger.tensor_blocks -= u32::try_from(tensor.blocks.len()).unwrap_or(0);
            let first = self.blocks[tensor.blocks[0].0 as usize].second;
            for block in &tensor.blocks {
                if let Some(place) = self.blocks[block.0 as usize].second.take() {
                    calls.push(Call::Unmap {
                        at: self.second_address(place),
                    });
                }
                self.let_go(*block);
            }
            if let Some(place) = first {
                self.free_run(place, u32::try_from(tensor.blocks.len()).unwrap_or(0));
            }
            return Ok(());
        }
        let block = self.block_at(at).ok_or(NotAllocated)?;
        let offset = at.0 % BLOCK_BYTES;
        let (asked, empty) = self.small.free(block, offset).ok_or(NotAllocated)?;
        self.ledger.asked_bytes -= u64::from(asked);
        if empty {
            self.ledger.small_blocks -= 1;
            self.let_go(block);
        }
        Ok(())
    }

    /// Free blocks for one tensor, `count` of which there are: from the fullest chunk that has room for
    /// all, else from the fullest there are, and from whole chunks last.
    fn choose(&self, count: u32) -> Vec<Block> {
        let fits = self.broken.range((count, Chunk(0))..).next();
        let chunks = fits
            .into_iter()
            .chain(&self.broken)
            .map(|(_, chunk)| chunk)
            .chain(&self.whole);
        let mut chosen = Vec::with_capacity(count as usize);
        let usable = |block: &Block| {
            let held = &self.blocks[block.0 as usize];
            held.holder == Holder::Free && !held.lost
        };
        for chunk in chunks {
            let left = count as usize - chosen.len();
            if left == 0 {
                break;
            }
            chosen.extend(self.blocks_in(*chunk).filter(usable).take(left));
        }
        chosen
    }

    fn hold(&mut self, block: Block, holder: Holder) {
        self.blocks[block.0 as usize].holder = holder;
        self.ledger.free_blocks -= 1;
        self.change(self.chunk_of(block), |parts| {
            parts.held += 1;
            parts.usable -= 1;
        });
    }

    fn let_go(&mut self, block: Block) {
        let held = &mut self.blocks[block.0 as usize];
        held.holder = Holder::Free;
        let usable = u32::from(!held.lost);
        self.ledger.free_blocks += 1;
        self.change(self.chunk_of(block), |parts| {
            parts.held -= 1;
            parts.usable += usable;
        });
    }

    /// The first run of addresses that is long enough.
    fn allocate_run(&mut self, needed: u32) -> Result<u32, NoRoom> {
        let found = self.runs.iter().find(|(_, length)| **length >= needed);
        let Some((&place, &length)) = found else {
            let longest = self.runs.values().copied().max().unwrap_or(0);
            return Err(NoRoom::Addresses { needed, longest });
        };
        self.runs.remove(&place);
        if length > needed {
            self.runs.insert(place + needed, length - needed);
        }
        Ok(place)
    }

    fn free_run(&mut self, place: u32, length: u32) {
        let (mut place, mut length) = (place, length);
        if let Some(next) = self.runs.remove(&(place + length)) {
            length += next;
        }
        if let Some((&before, &run)) = self.runs.range(..place).next_back()
            && before + run == place
        {
            self.runs.remove(&before);
            (place, length) = (before, run + length);
        }
        self.runs.insert(place, length);
    }

    /// The memory under a block was reclaimed: who holds it, and has to make it again. None if it was lost
    /// before, or there is no such block.
    pub fn lose(&mut self, block: Block) -> Option<Holder> {
        let held = self.blocks.get_mut(block.0 as usize)?;
        if std::mem::replace(&mut held.lost, true) {
            return None;
        }
        let holder = held.holder;
        self.small.withhold(block, true);
        self.ledger.lost_blocks += 1;
        let free = u32::from(holder == Holder::Free);
        self.change(self.chunk_of(block), |parts| {
            parts.lost += 1;
            parts.usable -= free;
        });
        Some(holder)
    }

    /// There is memory under a block again, at all its addresses, with any content; false if it was not
    /// lost.
    pub fn back(&mut self, block: Block) -> bool {
        let Some(held) = self.blocks.get_mut(block.0 as usize) else {
            return false;
        };
        if !std::mem::replace(&mut held.lost, false) {
            return false;
        }
        let free = u32::from(held.holder == Holder::Free);
        self.small.withhold(block, false);
        self.ledger.lost_blocks -= 1;
        self.change(self.chunk_of(block), |parts| {
            parts.lost -= 1;
            parts.usable += free;
        });
        true
    }
}
