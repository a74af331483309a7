//! The only file that reads a clock. Monotonic nanoseconds, as in the page.

/// `CLOCK_MONOTONIC` now, nanoseconds.
pub fn now_ns() -> u64 {
    let mut at = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `at` is a live timespec of this frame, all the call writes to.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut at) };
    (at.tv_sec.unsigned_abs())
        .wrapping_mul(1_000_000_000)
        .wrapping_add(at.tv_nsec.unsigned_abs())
}
