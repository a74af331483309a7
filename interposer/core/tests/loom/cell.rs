//! The protocol's words and fences as loom has them; membarrier is a sequentially consistent fence on
//! both sides.
//!
//! Loom leaves schedules out that it takes for equal, and is wrong where a thread loads and then swaps:
//! of a log whose reader is too slow it misses every schedule in which that shows. So each access here
//! is also one of a word that all threads share ([`point`]), which makes every order of them count. That
//! word orders nothing.

use loom::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use tidegate_core::word::{Fences, Tally, Word};

loom::lazy_static! {
    static ref POINT: AtomicU64 = AtomicU64::new(0);
}

/// Where another thread may come in between.
fn point() {
    POINT.fetch_add(1, Ordering::Relaxed);
}

#[derive(Debug, Default)]
pub struct Cell(AtomicU64);

impl Cell {
    pub fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }
}

impl Word for Cell {
    fn load(&self, order: Ordering) -> u64 {
        point();
        self.0.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        point();
        self.0.store(value, order);
    }
    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64> {
        point();
        self.0
            .compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst)
    }
    fn fetch_add(&self, value: u64) -> u64 {
        point();
        // Loom takes a sequentially consistent access for acquire and release only; the trait asks
        // for a full fence, which a locked instruction is.
        fence(Ordering::SeqCst);
        let before = self.0.fetch_add(value, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        before
    }
}

/// A word that orders nothing.
#[derive(Debug, Default)]
pub struct Unordered(AtomicU64);

impl Word for Unordered {
    fn load(&self, _: Ordering) -> u64 {
        point();
        self.0.load(Ordering::Relaxed)
    }
    fn store(&self, value: u64, _: Ordering) {
        point();
        self.0.store(value, Ordering::Relaxed);
    }
    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64> {
        point();
        self.0
            .compare_exchange(current, new, Ordering::Relaxed, Ordering::Relaxed)
    }
    fn fetch_add(&self, value: u64) -> u64 {
        point();
        self.0.fetch_add(value, Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub struct Count(AtomicU8);

impl Tally for Count {
    fn load(&self) -> u8 {
        point();
        self.0.load(Ordering::Acquire)
    }
    fn raise(&self) -> u8 {
        point();
        self.0.fetch_add(1, Ordering::AcqRel)
    }
    fn lower(&self) -> u8 {
        point();
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |value| {
                value.checked_sub(1)
            })
            .unwrap_or_else(|found| found)
    }
}

/// Both sides of the asymmetric fence.
pub struct Fenced;

impl Fences for Fenced {
    fn light() {
        fence(Ordering::SeqCst);
    }
    fn heavy(&self) {
        fence(Ordering::SeqCst);
    }
}
