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

/// Why a thread sleeps no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awake {
    /// Somebody woke who sleeps on the word of this number, changed or not.
    Woken(usize),
    /// A word was another, the time is over, or a signal came.
    Otherwise,
}

/// Sleeps while `word` is `expected`, at most for `limit`. Wakes spuriously.
///
/// # Errors
/// `EFAULT` when the memory of the word is gone.
pub fn futex_wait(word: &AtomicU32, expected: u32, limit: Option<Duration>) -> io::Result<Awake> {
    let limit = limit.map(timespec);
    let limit = limit
        .as_ref()
        .map_or(std::ptr::null(), std::ptr::from_ref::<libc::timespec>);
    // SAFETY: the kernel only reads `word`, and `limit` is null or a timespec that outlives the call.
    awake(unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            expected,
            limit,
        )
    })
}

/// What a wait answered.
fn awake(answer: libc::c_long) -> io::Result<Awake> {
    if let Ok(word) = usize::try_from(answer) {
        return Ok(Awake::Woken(word));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::ETIMEDOUT | libc::EINTR) => Ok(Awake::Otherwise),
        _ => Err(error),
    }
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
    /// `ENOSYS` before Linux 5.16; `EFAULT` for a word whose memory is gone: see [`Self::gone`].
    pub fn wait(&self, deadline_ns: u64) -> io::Result<Awake> {
        waitv(&self.0, deadline_ns)
    }

    /// The numbers of the words whose memory is gone at this moment, each tried by itself.
    pub fn gone(&self) -> impl Iterator<Item = usize> {
        let gone = |word: &[Waiter]| {
            let error = waitv(word, 0).err();
            error.and_then(|error| error.raw_os_error()) == Some(libc::EFAULT)
        };
        let all = self.0.chunks(1).enumerate();
        all.filter_map(move |(number, word)| gone(word).then_some(number))
    }
}

fn waitv(words: &[Waiter], deadline_ns: u64) -> io::Result<Awake> {
    let deadline = timespec(Duration::from_nanos(deadline_ns));
    // SAFETY: the array and the timespec outlive the call; the addresses are only read by the
    // kernel, which answers EFAULT for one that is not mapped.
    awake(unsafe {
        libc::syscall(
            libc::SYS_futex_waitv,
            words.as_ptr(),
            words.len(),
            0,
            &raw const deadline,
            libc::CLOCK_MONOTONIC,
        )
    })
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
    use std::sync::atomic::Ordering;

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

    #[test]
    fn a_word_whose_memory_is_gone_is_named_and_one_that_is_woken_too() {
        use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};
        let bytes = core::num::NonZeroUsize::new(4096).expect("not 0");
        // SAFETY: fresh memory at an address that the kernel chooses, all zero.
        let (at, lost) = unsafe {
            let at = mmap_anonymous(None, bytes, ProtFlags::all(), MapFlags::MAP_PRIVATE);
            let at = at.expect("there is memory");
            (at, at.cast::<AtomicU32>().as_ref())
        };
        let word = AtomicU32::new(5);
        let mut set = WaitSet::new();
        for word in [&word, lost, &word] {
            set.push(word, word.load(Ordering::Relaxed));
        }
        assert_eq!(set.gone().count(), 0);
        assert_eq!(set.wait(1).expect("all is there"), Awake::Otherwise);
        // SAFETY: nobody reads it any more but the kernel, which says that it is gone.
        unsafe { munmap(at, 4096) }.expect("it was mapped");
        let error = set.wait(u64::MAX).expect_err("a word is gone");
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
        assert_eq!(set.gone().collect::<Vec<_>>(), [1]);
        let (idle, ended) = (AtomicU32::new(0), std::sync::atomic::AtomicBool::new(false));
        let awake = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    futex_wake(&word);
                }
            });
            set.clear();
            set.push(&idle, 0);
            set.push(&word, 5);
            let awake = set.wait(u64::MAX);
            ended.store(true, Ordering::Relaxed);
            awake
        });
        assert_eq!(awake.expect("both are"), Awake::Woken(1));
    }
}
