//! How the library's threads start: with every signal blocked, and never joined ([`crate::ending`]). The application's
//! own threads get the signals.

use crate::process::guarded;
use crate::{ending, log, sys};
use core::ffi::{c_int, c_void};
use std::sync::Arc;

/// Starts a thread that keeps something open for the life of the process; whether it started.
pub fn spawn_keeper(body: impl FnOnce() + Send + 'static) -> bool {
    let quiet = BlockSignals::new();
    let thread = std::thread::Builder::new()
        .name("tidegate-job".to_owned())
        .stack_size(128 << 10)
        .spawn(move || {
            ending::thread_begins();
            guarded(body);
            ending::falls_asleep();
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
            ending::thread_begins();
            // A panic is counted and the thread goes on: without it nothing would ever be idle.
            while guarded(&body).is_none() {
                sys::sleep_ns(100_000_000);
            }
            ending::falls_asleep();
        });
    if let Err(error) = thread {
        log::debug(|| format!("no thread {name}: {error}"));
    }
}

/// Starts a thread of the library in a descriptor table of its own, which holds none of the application's files; the
/// caller blocks signals.
pub fn spawn_apart(name: &'static str, body: impl Fn() + Send + Sync + 'static) {
    let body = Arc::new(body);
    spawn(name, move || {
        if own_descriptor_table() {
            return body();
        }
        let body = Arc::clone(&body);
        let in_copy = move || {
            leave_files();
            body();
        };
        // In the application's table it could close our sockets and have us write into its files.
        if !in_copied_table(|| spawn(name, in_copy)) {
            log::line(
                "this process does not attach to an agent: the kernel gives a thread no descriptor table of its own",
            );
        }
    });
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

/// The first descriptor that a thread with a table of its own closes.
fn first() -> c_int {
    if log::enabled() { 3 } else { 0 }
}

/// Leaves the application's table for an own, empty one; `false`: the kernel refuses, or a filter.
pub fn own_descriptor_table() -> bool {
    const CLOSE_RANGE_UNSHARE: u32 = 2;
    // SAFETY: no pointers. The thread's table becomes its own; no descriptor of it is in use yet.
    unsafe {
        if libc::syscall(
            libc::SYS_close_range,
            first(),
            u32::MAX,
            CLOSE_RANGE_UNSHARE,
        ) == 0
        {
            open_standard();
            return true;
        }
        if libc::unshare(libc::CLONE_FILES) != 0 {
            return false;
        }
    }
    leave_files();
    true
}

/// Closes the application's files in a table that is the calling thread's own.
fn leave_files() {
    close_from(first());
    open_standard();
}

/// Opens 0 to 2 for ever, so that nothing written to standard error by a panic can reach a socket.
fn open_standard() {
    // SAFETY: a constant C string and descriptors of this thread's own table.
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
}

/// Runs `f` in a kernel thread that has a copy of the descriptor table, and waits for its end. `false`: there is no such
/// thread.
///
/// Container runtimes that know no `close_range` and allow `unshare` to no one allow `clone`. The kernel thread borrows
/// the calling thread's identity, which sleeps meanwhile as after `vfork`. What `f` is for is to start a thread of the
/// C library, which has an identity of its own and shares the copy.
fn in_copied_table(f: impl FnOnce()) -> bool {
    extern "C" fn run<F: FnOnce()>(f: *mut c_void) -> c_int {
        // SAFETY: what `in_copied_table` passes, which sleeps until this function has returned.
        let f = unsafe { &mut *f.cast::<Option<F>>() };
        if let Some(f) = f.take() {
            guarded(f);
        }
        0
    }
    fn entry<F: FnOnce()>(_: &Option<F>) -> extern "C" fn(*mut c_void) -> c_int {
        run::<F>
    }
    const STACK: usize = 256 << 10;
    const FLAGS: c_int = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_VFORK;
    let Some(stack) = sys::map_private(STACK) else {
        return false;
    };
    let mut f = Some(f);
    // SAFETY: the stack is `STACK` bytes of the thread's own and `f` is live: with `CLONE_VFORK` the call returns when the
    // thread has ended. It leaves by `exit` of the one thread.
    unsafe {
        let top = stack.byte_add(STACK);
        let thread = libc::clone(entry(&f), top, FLAGS, (&raw mut f).cast());
        libc::munmap(stack, STACK);
        thread > 0
    }
}

/// Closes what `close_range` would, one by one.
fn close_from(first: c_int) {
    let open: Vec<c_int> = match std::fs::read_dir("/proc/thread-self/fd") {
        Ok(entries) => entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|fd| *fd >= first)
            .collect(),
        Err(_) => (first..most_descriptors()).collect(),
    };
    for fd in open {
        // SAFETY: a number of this thread's own table, used by nothing of ours; one that is closed already, such as the
        // directory's, is an error nobody minds.
        unsafe { libc::close(fd) };
    }
}

/// No descriptor is as high, as far as anybody says.
fn most_descriptors() -> c_int {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is live.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    c_int::try_from(limit.rlim_cur.min(1 << 20)).unwrap_or(1024)
}
