//! The words of the protocol, and its two fences.
//!
//! The library has `AtomicU64` in shared memory, and `membarrier`. Loom has its own atomics, and a sequentially
//! consistent fence on both sides. The store-buffer explorer has cells that it schedules and drains itself. One
//! implementation of the protocol serves all three.

use core::sync::atomic::{AtomicU8, Ordering};
pub use tidegate_abi::word::Word;

/// One byte that threads share and count with. Both changes acquire and release.
pub trait Tally {
    /// Reads it, acquiring.
    fn load(&self) -> u8;
    /// Adds one; what was there.
    fn raise(&self) -> u8;
    /// Takes one away, but from nothing; what was there.
    fn lower(&self) -> u8;
}

/// The two sides of an asymmetric fence.
///
/// `light` is on every launch and costs no instruction in the form that ships: it only keeps the
/// compiler from moving the load of the activity word above the raise of the count. `heavy` is the
/// prober's and makes every running thread pass a full fence (`membarrier`, private expedited).
pub trait Fences {
    /// The side of the launching thread.
    fn light();
    /// The side of the prober.
    fn heavy(&self);
}

impl Tally for AtomicU8 {
    fn load(&self) -> u8 {
        Self::load(self, Ordering::Acquire)
    }
    fn raise(&self) -> u8 {
        self.fetch_add(1, Ordering::AcqRel)
    }
    fn lower(&self) -> u8 {
        let less = |value: u8| value.checked_sub(1);
        self.fetch_update(Ordering::AcqRel, Ordering::Acquire, less)
            .unwrap_or_else(|found| found)
    }
}
