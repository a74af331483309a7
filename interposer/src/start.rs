//! The library's threads. None exists before the process' first CUDA context.
//!
//! The *prober* shares the application's descriptors, because it calls the driver. The *reporter*
//! has a descriptor table of its own and makes no CUDA call. Both block every signal: signals stay
//! with the application's own threads. Neither is ever joined.

use crate::activity::prober;
use crate::agent::report;
use crate::log;
use crate::process::{Process, guarded};
use core::sync::atomic::Ordering::AcqRel;

/// Starts the threads with the first call.
pub fn once(process: &'static Process) {
    if process.started.swap(true, AcqRel) {
        return;
    }
    let quiet = BlockSignals::new();
    spawn("tidegate-prober", move || prober::run(process));
    spawn("tidegate", move || report::run(process));
    drop(quiet);
}

/// Starts the thread that changes mappings.
pub fn spawn_service(body: impl Fn() + Send + 'static) {
    let quiet = BlockSignals::new();
    spawn("tidegate-memory", body);
    drop(quiet);
}

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

fn spawn(name: &str, body: impl Fn() + Send + 'static) {
    let thread = std::thread::Builder::new()
        .name(name.to_owned())
        .stack_size(512 << 10)
        .spawn(move || {
            // A panic is counted and the thread goes on: without it nothing would ever be idle.
            while guarded(&body).is_none() {
                crate::sys::sleep_ns(100_000_000);
            }
        });
    if let Err(error) = thread {
        log::debug(|| format!("no thread {name}: {error}"));
    }
}

/// Blocks every signal in the calling thread, and so in those it starts, while it lives.
struct BlockSignals(libc::sigset_t);

impl BlockSignals {
    fn new() -> Self {
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
