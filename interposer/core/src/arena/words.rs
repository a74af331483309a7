//! The data types of the arena: its parts, its calls, and its refusals.

use super::block::{BLOCK_BYTES, Block};

/// A chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chunk(pub u32);

/// Bytes from the arena's first address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

/// Which of a layer's two rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// Keys.
    Key,
    /// Values.
    Value,
}

/// What an arena is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Layers of the model.
    pub layers: u32,
    /// Chunks of `2 x layers` blocks.
    pub chunks: u32,
    /// Blocks of addresses for second mappings. Addresses are cheap: twice the blocks there are leaves
    /// room between tensors that come and go.
    pub second_blocks: u32,
}

/// What the driver has to do, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Map a block a second time.
    Map {
        /// The block.
        block: Block,
        /// Where.
        at: Address,
    },
    /// Undo that.
    Unmap {
        /// Where: what stands there is the block, or the quarantine page while the block is lost.
        at: Address,
    },
}

/// Who holds a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Nobody.
    Free,
    /// A chunk's rows.
    Rows(Chunk),
    /// The tensor at this address.
    Tensor(Address),
    /// Tensors of less than half a block.
    Small,
}

/// Where bytes went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Blocks nobody holds.
    pub free_blocks: u32,
    /// Blocks of rows.
    pub row_blocks: u32,
    /// Blocks of tensors.
    pub tensor_blocks: u32,
    /// Blocks split among small tensors.
    pub small_blocks: u32,
    /// Blocks whose memory was reclaimed, whoever holds them.
    pub lost_blocks: u32,
    /// Bytes that living tensors asked for.
    pub asked_bytes: u64,
    /// Free blocks in chunks that tensors hold a part of: for tensors, but not for rows.
    pub broken_blocks: u32,
}

impl Ledger {
    /// Bytes that tensors hold beyond what they asked for.
    #[must_use]
    pub fn waste_bytes(&self) -> u64 {
        u64::from(self.tensor_blocks + self.small_blocks) * BLOCK_BYTES - self.asked_bytes
    }
}

/// Why an arena cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadShape {
    /// It would hold nothing.
    #[error("an arena needs a layer and a chunk")]
    Empty,
    /// Its numbers do not fit.
    #[error("an arena has fewer than 2^31 blocks, and as many for second mappings")]
    TooLarge,
}

/// Why a tensor gets no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    /// Zero bytes were asked for.
    #[error("a tensor has at least one byte")]
    Empty,
    /// Too few blocks.
    #[error("{needed} blocks are needed and {free} are free")]
    Blocks {
        /// Blocks it needs.
        needed: u64,
        /// Blocks that are free and not lost.
        free: u32,
    },
    /// No run of addresses is long enough.
    #[error("{needed} blocks of addresses are needed in a row and {longest} are there")]
    Addresses {
        /// Blocks it needs in a row.
        needed: u32,
        /// The longest run.
        longest: u32,
    },
}

/// Nothing is held there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nothing that was allocated begins there")]
pub struct NotAllocated;
