//! What an input costs: processor time of a thread, and memory that is held.
//!
//! Time is the thread's own (`CLOCK_THREAD_CPUTIME_ID`): it does not run while others have the core.
#![expect(
    unsafe_code,
    reason = "an allocator is unsafe by its signature; it counts and passes on"
)]

use nix::time::{ClockId, clock_gettime};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

fn took(bytes: usize) {
    let held = HELD.fetch_add(bytes, Relaxed) + bytes;
    MOST.fetch_max(held, Relaxed);
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that are held now, by all threads.
pub fn held() -> usize {
    HELD.load(Relaxed)
}

/// The most that was held since the last call of [`begin`].
pub fn most() -> usize {
    MOST.load(Relaxed)
}

/// Begins to look for the most; what is held now.
pub fn begin() -> usize {
    let held = held();
    MOST.store(held, Relaxed);
    held
}

/// Processor time that this thread has used.
pub fn time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .expect("every Linux has it")
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_and_given_back_is_counted() {
        const BYTES: usize = 64 << 20;
        let before = begin();
        let room: Vec<u8> = Vec::with_capacity(BYTES);
        assert!(held() - before >= BYTES / 2);
        drop(room);
        assert!(held() < before + BYTES / 2);
        assert!(most() - before >= BYTES / 2);
    }
}
