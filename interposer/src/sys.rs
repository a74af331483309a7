//! The few system calls of the library for which no wrapper is worth using: futexes, membarrier, ids.

use crate::ending::sleeping;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tidegate_core::word::Fences;

/// Waits on a shared futex while it is `value`, at most `limit_ns`.
pub fn futex_wait(word: &AtomicU32, value: u32, limit_ns: u64) {
    let limit = libc::timespec {
        tv_sec: (limit_ns / 1_000_000_000).cast_signed(),
        tv_nsec: (limit_ns % 1_000_000_000).cast_signed(),
    };
    // SAFETY: the word and the timespec are live for the call; nothing else is passed.
    sleeping(|| unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            value,
            &raw const limit,
        )
    });
}

/// Wakes everyone who waits on a shared futex.
pub fn futex_wake(word: &AtomicU32) {
    // SAFETY: the kernel only takes the word's address as a key.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// The low half of a 64-bit word, which is what a futex on it means.
pub fn low_half(word: &AtomicU64) -> &AtomicU32 {
    // SAFETY: eight aligned bytes hold four aligned ones, alive as long; the machine is
    // little-endian, so the first four are the low half. Both views are atomic.
    unsafe { &*word.as_ptr().cast::<AtomicU32>() }
}

/// Copies what can be read at an address of this process: the bytes before the first that cannot be. 0
/// also where the kernel does not do it for this process.
pub fn copy_own(address: u64, to: &mut [u8]) -> usize {
    let local = libc::iovec {
        iov_base: to.as_mut_ptr().cast(),
        iov_len: to.len(),
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: to.len(),
    };
    // SAFETY: the local vector is live and exclusive; at the other the kernel looks for itself.
    let copied = unsafe {
        libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
    };
    usize::try_from(copied).unwrap_or(0)
}

/// The calling thread's id.
pub fn gettid() -> i32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::gettid() }
}

/// Whether a thread of this process exists.
pub fn thread_exists(tid: i32) -> bool {
    // SAFETY: signal 0 only asks.
    let gone = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, 0) } != 0;
    !(gone && errno() == libc::ESRCH)
}

/// The calling thread's `errno`.
pub fn errno() -> i32 {
    // SAFETY: glibc's errno location is valid for the calling thread.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's `errno`.
pub fn set_errno(value: i32) {
    // SAFETY: as in `errno`.
    unsafe { *libc::__errno_location() = value };
}

/// Runs `f` and leaves `errno` as it found it.
pub fn keeping_errno<T>(f: impl FnOnce() -> T) -> T {
    let before = errno();
    let value = f();
    set_errno(before);
    value
}

/// Sleeps, whatever signals come.
pub fn sleep_ns(ns: u64) {
    sleeping(|| std::thread::sleep(std::time::Duration::from_nanos(ns)));
}

/// Locks a mutex of ours; a panic under it leaves state that is still worth using.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The asymmetric fence of the library: nothing on a launch, `membarrier` in the prober.
#[derive(Clone, Copy, Debug)]
pub struct Membarrier;

const MEMBARRIER_PRIVATE_EXPEDITED: i32 = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;

impl Membarrier {
    /// Registers the process; `false`: refused, and the counts must be atomic adds.
    pub fn register() -> bool {
        // SAFETY: no pointers.
        unsafe {
            libc::syscall(
                libc::SYS_membarrier,
                MEMBARRIER_REGISTER_PRIVATE_EXPEDITED,
                0,
                0,
            ) == 0
        }
    }
}

impl Fences for Membarrier {
    #[inline(always)]
    fn light() {
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
    }
    fn heavy(&self) {
        core::sync::atomic::fence(Ordering::SeqCst);
        // SAFETY: no pointers. Where it is refused the counts are read-modify-writes and need none.
        unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_PRIVATE_EXPEDITED, 0, 0) };
    }
}

/// A word the reporter sleeps behind: raised from any thread without touching a descriptor.
///
/// The reporter's descriptors are in a table of its own, so no other thread may write to one. A
/// signal to that one thread needs none: it is blocked there and read from a `signalfd`. `SIGURG`,
/// because its default is to be ignored.
#[derive(Debug, Default)]
pub struct Bell {
    tid: AtomicI32,
}

impl Bell {
    /// The signal.
    pub const SIGNAL: i32 = libc::SIGURG;

    /// Names the calling thread as the one that listens.
    pub fn listen(&self) {
        self.tid.store(gettid(), Ordering::Release);
    }

    /// Wakes the listener, if there is one.
    pub fn ring(&self) {
        let tid = self.tid.load(Ordering::Acquire);
        if tid != 0 {
            // SAFETY: a directed signal to a thread of this process, which blocks it.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, Self::SIGNAL) };
        }
    }
}

/// Maps zeroed private memory.
pub fn map_private(bytes: usize) -> Option<*mut core::ffi::c_void> {
    // SAFETY: a fresh anonymous mapping; no existing memory is named.
    let at = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    (at != libc::MAP_FAILED).then_some(at)
}

/// Puts zeroed private memory in the place of a mapping.
///
/// # Safety
/// Nobody else uses it meanwhile, and all-zero is a valid value of what is in it.
pub unsafe fn map_anew(at: *mut core::ffi::c_void, bytes: usize) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: a mapping of the caller's is replaced by one as large.
    unsafe { libc::mmap(at, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
}

/// Has a forked child find a mapping zeroed: by the kernel, or where that knows no such advice (gVisor) by `wipe`, which
/// `fork` then runs in the child. A child of a bare `clone` finds its parent's there. `false`: neither is to be had.
pub fn wipe_on_fork(
    at: *mut core::ffi::c_void,
    bytes: usize,
    wipe: unsafe extern "C" fn(),
) -> bool {
    // SAFETY: advice on a mapping of the caller's.
    let wiped = unsafe { libc::madvise(at, bytes, libc::MADV_WIPEONFORK) } == 0;
    // SAFETY: a function of this library, which is never unloaded.
    wiped || unsafe { libc::pthread_atfork(None, None, Some(wipe)) } == 0
}

/// Stores a pointer into an empty cell; the one that ends up there.
pub fn publish<T>(cell: &AtomicPtr<T>, value: *mut T) -> *mut T {
    match cell.compare_exchange(
        core::ptr::null_mut(),
        value,
        Ordering::AcqRel,
        Ordering::Acquire,
    ) {
        Ok(_) => value,
        Err(other) => other,
    }
}

#[repr(C)]
struct FutexWaitv {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

const FUTEX_32: u32 = 2;
const SYS_FUTEX_WAITV: libc::c_long = 449;

fn at_the_latest(limit_ns: u64) -> libc::timespec {
    let end = crate::clock::now_ns().saturating_add(limit_ns);
    libc::timespec {
        tv_sec: (end / 1_000_000_000).cast_signed(),
        tv_nsec: (end % 1_000_000_000).cast_signed(),
    }
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// It was woken, or its time was over: ask again.
    Over,
    /// A handler of the application's ran in this thread, and was set to interrupt what waits.
    Interrupted,
}

/// As [`futex_wait`], but ends as a blocking call of the system does when a signal is handled: at once for
/// a handler that was set without `SA_RESTART`, and not at all for others.
///
/// `FUTEX_WAIT` with a limit does not tell the two apart, `futex_waitv` does. Where there is none, before
/// Linux 5.16 or under a filter, the wait goes on whatever is handled.
pub fn futex_wait_interruptible(word: &AtomicU32, value: u32, limit_ns: u64) -> Waited {
    match waits(&[waiter(word, value)], limit_ns) {
        Some(waited) => waited,
        None => {
            futex_wait(word, value, limit_ns);
            Waited::Over
        }
    }
}

/// The same of the low halves of two words, until one of them changes. Where there is no `futex_waitv`, it wakes for the
/// first, and looks for the other every 20 ms.
pub fn futex_wait_either(words: [(&AtomicU64, u64); 2], limit_ns: u64) -> Waited {
    let low = words.map(|(word, value)| (low_half(word), (value & 0xffff_ffff) as u32));
    let list = low.map(|(word, value)| waiter(word, value));
    let Some(waited) = waits(&list, limit_ns) else {
        let (word, value) = low[0];
        futex_wait(word, value, limit_ns.min(20_000_000));
        return Waited::Over;
    };
    waited
}

fn waiter(word: &AtomicU32, value: u32) -> FutexWaitv {
    FutexWaitv {
        value: u64::from(value),
        address: word.as_ptr() as u64,
        flags: FUTEX_32,
        reserved: 0,
    }
}

/// Waits on futexes as a blocking call of the system does; `None`: the system cannot.
fn waits(list: &[FutexWaitv], limit_ns: u64) -> Option<Waited> {
    let end = at_the_latest(limit_ns);
    // SAFETY: the list and the timespec are live for the call, and the words outlive it.
    let result = unsafe {
        libc::syscall(
            SYS_FUTEX_WAITV,
            list.as_ptr(),
            list.len(),
            0,
            &raw const end,
            libc::CLOCK_MONOTONIC,
        )
    };
    if result >= 0 {
        return Some(Waited::Over);
    }
    match errno() {
        libc::EINTR => Some(Waited::Interrupted),
        libc::EAGAIN | libc::ETIMEDOUT => Some(Waited::Over),
        _ => None,
    }
}

/// Waits on several shared futexes at once. Before Linux 5.16, and under a filter, it looks again every 20 ms.
pub fn futex_wait_any(words: &[(&AtomicU32, u32)], limit_ns: u64) {
    let list: Vec<FutexWaitv> = words
        .iter()
        .map(|(word, value)| waiter(word, *value))
        .collect();
    let end = at_the_latest(limit_ns);
    // SAFETY: the list and the timespec are live for the call, and the words outlive it.
    let result = sleeping(|| unsafe {
        libc::syscall(
            SYS_FUTEX_WAITV,
            list.as_ptr(),
            list.len(),
            0,
            &raw const end,
            libc::CLOCK_MONOTONIC,
        )
    });
    // A filter refuses with an errno of its own choice.
    if result < 0 && !matches!(errno(), libc::EAGAIN | libc::EINTR | libc::ETIMEDOUT) {
        sleep_ns(limit_ns.min(20_000_000));
    }
}
