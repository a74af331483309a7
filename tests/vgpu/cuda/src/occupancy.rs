//! Occupancy: how many blocks fit on a multiprocessor, by threads and shared memory.

use tidegate_abi::cuda::{CUfunction, CUlaunchConfig, CUresult};

use crate::objects::function;
use crate::objects::sms::PROCESSORS;
use crate::result::{CudaResult, store};

const THREADS: u64 = 2048;
const BLOCKS: u64 = 32;
const SHARED: u64 = 233_472;
const SHARED_PER_BLOCK: u64 = 232_448;
/// Shared memory that the system takes per block.
const SHARED_RESERVED: u64 = 1024;

/// Blocks of `threads` with `shared` bytes each on one multiprocessor.
fn fit(threads: u64, shared: u64) -> u64 {
    if threads == 0 || threads > 1024 || shared > SHARED_PER_BLOCK {
        return 0;
    }
    let by_threads = THREADS / threads.next_multiple_of(32);
    by_threads
        .min(BLOCKS)
        .min(SHARED / (shared + SHARED_RESERVED))
}

/// `cuOccupancyMaxActiveBlocksPerMultiprocessor`.
pub fn max_blocks(out: *mut i32, function: CUfunction, threads: i32, shared: usize) -> CudaResult {
    function::named(function)?;
    let threads = u64::try_from(threads).map_err(|_| CUresult::INVALID_VALUE)?;
    // SAFETY: `out` is the caller's place for the count.
    unsafe { store(out, fit(threads, shared as u64) as i32) }
}

/// `cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags`.
pub fn max_blocks_with_flags(
    out: *mut i32,
    function: CUfunction,
    threads: i32,
    shared: usize,
    _flags: u32,
) -> CudaResult {
    max_blocks(out, function, threads, shared)
}

/// `CUoccupancyB2DSize`.
pub type SharedOfBlock = Option<unsafe extern "C" fn(i32) -> usize>;

/// `cuOccupancyMaxPotentialBlockSize`.
pub fn best_block(
    grid: *mut i32,
    block: *mut i32,
    function: CUfunction,
    shared_of: SharedOfBlock,
    shared: usize,
    limit: i32,
) -> CudaResult {
    function::named(function)?;
    let limit = if limit <= 0 { 1024 } else { limit.min(1024) };
    // SAFETY: the application's function, to be called with a block size.
    let shared = |threads| shared_of.map_or(shared, |f| unsafe { f(threads) }) as u64;
    let sizes = (1..=32)
        .rev()
        .map(|warps| warps * 32)
        .filter(|threads| *threads <= limit);
    let threads_busy = |threads: &i32| fit(*threads as u64, shared(*threads)) * *threads as u64;
    let best = sizes.rev().max_by_key(threads_busy).unwrap_or(limit);
    let blocks = fit(best as u64, shared(best)).max(1) as i32;
    // SAFETY: both are the caller's places.
    unsafe {
        store(grid, blocks * PROCESSORS)?;
        store(block, best)
    }
}

/// `cuOccupancyMaxPotentialBlockSizeWithFlags`.
pub fn best_block_with_flags(
    grid: *mut i32,
    block: *mut i32,
    function: CUfunction,
    shared_of: SharedOfBlock,
    shared: usize,
    limit: i32,
    _flags: u32,
) -> CudaResult {
    best_block(grid, block, function, shared_of, shared, limit)
}

/// `cuOccupancyAvailableDynamicSMemPerBlock`.
pub fn available_shared(
    out: *mut usize,
    function: CUfunction,
    blocks: i32,
    _threads: i32,
) -> CudaResult {
    function::named(function)?;
    let blocks = u64::try_from(blocks).ok().filter(|blocks| *blocks > 0);
    let each = SHARED / blocks.ok_or(CUresult::INVALID_VALUE)?;
    let bytes = each.saturating_sub(SHARED_RESERVED).min(SHARED_PER_BLOCK);
    // SAFETY: `out` is the caller's place for the size.
    unsafe { store(out, bytes as usize) }
}

/// `cuOccupancyMaxPotentialClusterSize`.
pub fn cluster_size(
    out: *mut i32,
    function: CUfunction,
    _config: *const CUlaunchConfig,
) -> CudaResult {
    function::named(function)?;
    // SAFETY: `out` is the caller's place for the size.
    unsafe { store(out, 8) }
}

/// `cuOccupancyMaxActiveClusters`.
pub fn clusters(out: *mut i32, function: CUfunction, _config: *const CUlaunchConfig) -> CudaResult {
    function::named(function)?;
    // SAFETY: `out` is the caller's place for the count.
    unsafe { store(out, PROCESSORS / 8) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_blocks_and_shared_memory_each_limit() {
        assert_eq!(fit(1024, 0), 2);
        assert_eq!(fit(33, 0), 32);
        assert_eq!(fit(256, 100 << 10), 2);
        assert_eq!(fit(1025, 0), 0);
    }
}
