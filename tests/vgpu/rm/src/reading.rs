//! What each thread read off `CLOCK_MONOTONIC` last.
//!
//! A program that reads the clock, looks at something, reads the clock again and enters an ioctl has looked between
//! the last reading but one and the entry. So the device's history can say how long ago that may have been without
//! asking the program.

use std::cell::Cell;

thread_local! {
    /// The last reading but one, and the last.
    static READ: Cell<[u64; 2]> = const { Cell::new([0; 2]) };
}

/// This thread has read `now`.
pub(crate) fn note(now: libc::timespec) {
    let ns = (now.tv_sec as u64) * 1_000_000_000 + now.tv_nsec as u64;
    READ.with(|read| {
        let [_, last] = read.get();
        read.set([last, ns]);
    });
}

/// What this thread read the last time but one; 0: nothing.
pub(crate) fn last_but_one() -> u64 {
    READ.with(|read| read.get()[0])
}
