//! Waiting on and waking futex words that live in memory shared with the device process.

use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

/// Sleeps while `word` is `expected`, at most `limit`. Returns early for any reason: callers loop.
pub fn wait(word: &AtomicU32, expected: u32, limit: Duration) {
    let limit = libc::timespec {
        tv_sec: limit.as_secs().cast_signed(),
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    // SAFETY: FUTEX_WAIT reads the word and the timespec, both alive for the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            expected,
            &raw const limit,
        );
    }
}

/// Wakes everybody who waits on `word`.
pub fn wake(word: &AtomicU32) {
    // SAFETY: FUTEX_WAKE only uses the address as a key.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// The low half of `value` as a futex word.
pub fn low_half(value: &AtomicU64) -> &AtomicU32 {
    // SAFETY: the low half of a little-endian u64 is its first four bytes, aligned and as
    // long-lived; accesses of both sizes to it are atomic on x86-64.
    unsafe { AtomicU32::from_ptr(value.as_ptr().cast()) }
}
