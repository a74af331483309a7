//! A physical block: its size, and the size of its smallest piece.

/// Bytes of a block: what the driver maps at least (`CU_MEM_ALLOC_GRANULARITY_MINIMUM` of device memory).
pub const BLOCK_BYTES: u64 = 2 << 20;

/// Bytes of the least piece of a block: HARLI section 4.2's.
pub const PIECE_BYTES: u64 = 2 << 10;

/// A physical block: `chunk * 2 * layers + slot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block(pub u32);
