//! The words that processes and threads share.
//!
//! Agent and library have `AtomicU64` in shared memory. Loom has its own atomics. The store-buffer explorer of the
//! library's tests has cells that it schedules and drains itself. A protocol over these words is written once, for all
//! of them.

use core::sync::atomic::{AtomicU64, Ordering};

/// One 64-bit word that threads share.
pub trait Word {
    /// Reads the word.
    fn load(&self, order: Ordering) -> u64;
    /// Writes the word.
    fn store(&self, value: u64, order: Ordering);
    /// Writes `new` if the word is `current`; sequentially consistent, and on x86-64 a full fence.
    ///
    /// # Errors
    /// The value found, when it is not `current`.
    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64>;
    /// Adds with a read-modify-write and returns what was there; sequentially consistent, and on
    /// x86-64 a full fence.
    fn fetch_add(&self, value: u64) -> u64;
}

impl Word for AtomicU64 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        Self::load(self, order)
    }
    #[inline(always)]
    fn store(&self, value: u64, order: Ordering) {
        Self::store(self, value, order);
    }
    #[inline(always)]
    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64> {
        Self::compare_exchange(self, current, new, Ordering::SeqCst, Ordering::SeqCst)
    }
    #[inline(always)]
    fn fetch_add(&self, value: u64) -> u64 {
        Self::fetch_add(self, value, Ordering::SeqCst)
    }
}
