//! The end of the program, while the library's threads exist.
//!
//! These threads are never joined: they sleep for as long as the process lives. When it ends, other libraries release
//! their state while these threads may still call functions that such libraries put in place of the C library's. So a
//! destructor of this library, which runs before those of the libraries behind it, waits until each of its threads
//! sleeps, and from then on no thread continues.
//!
//! A thread inside the driver may stay there: the destructor waits for it no longer than [`LONGEST_NS`].

use core::cell::Cell;
use core::ptr::null;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, PoisonError};

/// How long the end waits for threads that do not sleep.
const LONGEST_NS: i64 = 250_000_000;
const LOOK_NS: i64 = 1_000_000;

/// The process that the rest is of, in the high half: a forked child has none of these threads. Below it whether that
/// ends, and how many of its threads do not sleep.
static THREADS: AtomicU64 = AtomicU64::new(0);
const ENDS: u64 = 1 << 31;
const AWAKE: u64 = ENDS - 1;
const PROCESS: u32 = 32;

thread_local! {
    /// The process whose thread this is; 0: it is none of the library's.
    static OF: Cell<u64> = const { Cell::new(0) };
}

/// What wakes a thread that is not known to sleep.
static WAKE: Mutex<Option<Box<dyn Fn() + Send>>> = Mutex::new(None);

/// The end is to call this: a thread sleeps where it calls what may be a neighbour's before and after.
pub fn woken_by(wake: impl Fn() + Send + 'static) {
    *WAKE.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(wake));
}

fn own_process() -> u64 {
    u64::from(std::process::id())
}

/// A thread of the library begins.
pub fn thread_begins() {
    let process = own_process();
    OF.set(process);
    awake(process);
}

/// Whether the calling thread is the library's, which it says before it waits for anything.
pub fn falls_asleep() -> bool {
    let process = OF.try_with(Cell::get).unwrap_or(0);
    if process != 0 {
        let _ = THREADS.fetch_update(SeqCst, SeqCst, |word| {
            (word >> PROCESS == process && word & AWAKE != 0).then(|| word - 1)
        });
    }
    process != 0
}

/// It has waited. It never comes back from here once the program ends.
fn wakes() {
    let process = OF.try_with(Cell::get).unwrap_or(0);
    if process != 0 {
        awake(process);
    }
}

/// Makes a call in which the thread sleeps.
pub fn sleeping<T>(call: impl FnOnce() -> T) -> T {
    let counted = falls_asleep();
    let value = call();
    if counted {
        wakes();
    }
    value
}

fn awake(process: u64) {
    let one_more = |word: u64| {
        let of_it = if word >> PROCESS == process {
            word
        } else {
            process << PROCESS
        };
        (of_it & ENDS == 0).then(|| of_it + 1)
    };
    while THREADS.fetch_update(SeqCst, SeqCst, one_more).is_err() {
        // SAFETY: waits for a signal. The library's threads block all.
        unsafe { libc::syscall(libc::SYS_pause) };
    }
}

/// Runs with the destructors of this library.
extern "C" fn end() {
    let process = own_process();
    let of_it = |word: u64| (word >> PROCESS == process).then_some(word | ENDS);
    let mut left_ns = LONGEST_NS;
    if THREADS.fetch_update(SeqCst, SeqCst, of_it).is_err() {
        return;
    }
    if let Ok(wake) = WAKE.try_lock()
        && let Some(wake) = &*wake
    {
        wake();
    }
    while THREADS.load(SeqCst) & AWAKE != 0 && left_ns > 0 {
        let look = libc::timespec {
            tv_sec: 0,
            tv_nsec: LOOK_NS,
        };
        // SAFETY: the timespec is live for the call; nothing is written. By number: the symbol may be a neighbour's.
        unsafe {
            libc::syscall(
                libc::SYS_nanosleep,
                &raw const look,
                null::<libc::timespec>(),
            );
        }
        left_ns -= LOOK_NS;
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
