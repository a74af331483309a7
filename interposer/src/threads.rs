//! How the library's threads start: with every signal blocked, and never joined. Signals stay with the
//! application's own threads.

use crate::process::guarded;
use crate::{log, sys};
use core::ffi::c_int;

/// Starts a thread that keeps something open for the life of the process; whether it started.
pub fn spawn_keeper(body: impl FnOnce() + Send + 'static) -> bool {
    let quiet = BlockSignals::new();
    let thread = std::thread::Builder::new()
        .name("tidegate-job".to_owned())
        .stack_size(128 << 10)
        .spawn(move || {
            guarded(body);
        });
    drop(quiet);
    thread.is_ok()
}

/// Starts a thread of the library; the caller blocks signals.
pub fn spawn(name: &str, body: impl Fn() + Send + 'static) {
    let thread = std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(512 << 10)
        .spawn(move || {
            // A panic is counted and the thread goes on: without it nothing would ever be idle.
            while guarded(&body).is_none() {
                sys::sleep_ns(100_000_000);
            }
        });
    if let Err(error) = thread {
        log::debug(|| format!("no thread {name}: {error}"));
    }
}

/// Blocks every signal in the calling thread, and so in those it starts, while it lives.
#[derive(Debug)]
pub struct BlockSignals(libc::sigset_t);

impl BlockSignals {
    /// Blocks them.
    pub fn new() -> Self {
        // SAFETY: both sets are live for the calls; zeroed is a valid set before it is filled.
        unsafe {
            let mut all: libc::sigset_t = core::mem::zeroed();
            let mut before: libc::sigset_t = core::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for BlockSignals {
    fn drop(&mut self) {
        // SAFETY: the set was filled in by `new`.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, core::ptr::null_mut())
        };
    }
}

/// Leaves the application's table for an own, empty one; `false`: the kernel refuses, or a filter.
pub fn own_descriptor_table() -> bool {
    const CLOSE_RANGE_UNSHARE: u32 = 2;
    let first = if log::enabled() { 3 } else { 0 };
    // SAFETY: no pointers. The thread's table becomes its own; no descriptor of it is in use yet.
    let unshared = unsafe {
        libc::syscall(libc::SYS_close_range, first, u32::MAX, CLOSE_RANGE_UNSHARE) == 0
            || libc::unshare(libc::CLONE_FILES) == 0 && close_from(first)
    };
    if !unshared {
        return false;
    }
    // SAFETY: a constant C string and descriptors of this table; 0 to 2 stay open for ever, so that
    // nothing written to standard error by a panic can reach a socket.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        for standard in 0..=if log::enabled() { 1 } else { 2 } {
            if null != standard {
                libc::dup2(null, standard);
            }
        }
        if null > 2 {
            libc::close(null);
        }
    }
    true
}

/// Closes what `close_range` would, one by one.
fn close_from(first: c_int) -> bool {
    let Ok(entries) = std::fs::read_dir("/proc/thread-self/fd") else {
        return false;
    };
    let open: Vec<c_int> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for fd in open.into_iter().filter(|fd| *fd >= first) {
        // SAFETY: a number of this thread's own table, used by nothing of ours; the directory's own
        // descriptor is among them and closed already, which is an error nobody minds.
        unsafe { libc::close(fd) };
    }
    true
}
