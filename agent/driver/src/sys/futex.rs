//! Sleeping on words that other processes write, and waking who sleeps on them.

use std::ffi::c_int;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// Wakes every waiter on a shared futex.
pub fn futex_wake(word: &AtomicU32) {
    // SAFETY: FUTEX_WAKE reads nothing but the address of `word`, which is valid.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, c_int::MAX) };
}

/// Wakes every waiter on the low half of a word of 64 bits.
pub fn futex_wake_low(word: &AtomicU64) {
    // SAFETY: as `futex_wake`; on a little-endian machine the low half lies at the word's address.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, c_int::MAX) };
}

/// Sleeps while `word` is `expected`, at most for `limit`. Wakes spuriously.
pub fn futex_wait(word: &AtomicU32, expected: u32, limit: Option<Duration>) {
    let limit = limit.map(timespec);
    let limit = limit
        .as_ref()
        .map_or(std::ptr::null(), std::ptr::from_ref::<libc::timespec>);
    // SAFETY: the kernel only reads `word`, and `limit` is null or a timespec that outlives the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            expected,
            limit,
        )
    };
}

/// Words one `futex_waitv` takes.
pub const WAITV_MAX: usize = 128;

/// The set of futex words one thread sleeps on, kept between calls so that a wait allocates nothing.
#[derive(Debug, Default)]
pub struct WaitSet(Vec<Waiter>);

/// `struct futex_waitv` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Waiter {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

/// `FUTEX2_SIZE_U32`, without the private flag: the words are shared between processes.
const FUTEX_32: u32 = 2;

impl WaitSet {
    /// A set that holds `WAITV_MAX` words without growing.
    #[must_use]
    pub fn new() -> Self {
        Self(Vec::with_capacity(WAITV_MAX))
    }

    /// Empties the set.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds a word that is waited on while it holds `expected`; false when the set is full.
    pub fn push(&mut self, word: &AtomicU32, expected: u32) -> bool {
        if self.0.len() == WAITV_MAX {
            return false;
        }
        self.0.push(Waiter {
            value: u64::from(expected),
            address: word.as_ptr() as u64,
            flags: FUTEX_32,
            reserved: 0,
        });
        true
    }

    /// Sleeps until one of the words is woken or differs, or `deadline_ns` (monotonic) passed.
    /// Wakes spuriously. A word whose memory is gone makes the call fail at once, not crash.
    ///
    /// # Errors
    /// `ENOSYS` before Linux 5.16; `EFAULT` for a word whose memory is gone.
    pub fn wait(&self, deadline_ns: u64) -> io::Result<()> {
        let deadline = timespec(Duration::from_nanos(deadline_ns));
        // SAFETY: the array and the timespec outlive the call; the addresses are only read by the
        // kernel, which answers EFAULT for one that is not mapped.
        let woken = unsafe {
            libc::syscall(
                libc::SYS_futex_waitv,
                self.0.as_ptr(),
                self.0.len(),
                0,
                &raw const deadline,
                libc::CLOCK_MONOTONIC,
            )
        };
        if woken >= 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            error
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EAGAIN | libc::ETIMEDOUT | libc::EINTR)
                ) =>
            {
                Ok(())
            }
            error => Err(error),
        }
    }
}

/// Whether this kernel has `futex_waitv`.
#[must_use]
pub fn has_futex_waitv() -> bool {
    let word = AtomicU32::new(0);
    let mut set = WaitSet::new();
    set.push(&word, 1);
    set.wait(0).is_ok()
}

#[cfg(test)]
mod tests {
    use super::super::clock::monotonic_ns;
    use super::*;

    #[test]
    fn a_wait_returns_at_once_when_a_word_has_changed_and_at_its_deadline_otherwise() {
        let word = AtomicU32::new(5);
        let mut set = WaitSet::new();
        assert!(set.push(&word, 4));
        set.wait(monotonic_ns() + 60_000_000_000)
            .expect("futex_waitv exists here");
        set.clear();
        set.push(&word, 5);
        let before = monotonic_ns();
        set.wait(before + 2_000_000)
            .expect("futex_waitv exists here");
        assert!(monotonic_ns() >= before + 2_000_000);
    }
}
