//! The tests' clock: deadlines, never durations that decide a verdict.
#![expect(
    clippy::disallowed_methods,
    reason = "the one file of the tests that reads a clock"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a test waits for something that must happen before it fails.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// `CLOCK_MONOTONIC` in nanoseconds, comparable with the shared page and the device's history.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid timespec to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Asks `look` until it answers, and panics with `what` when [`DEADLINE`] passes first.
///
/// # Panics
/// When the deadline passes.
#[track_caller]
pub fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    wait_until(DEADLINE, look).unwrap_or_else(|| panic!("waited {DEADLINE:?} for {what}"))
}

/// Asks `look` until it answers or `limit` passes.
pub fn wait_until<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if Instant::now() >= end {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// How long the machine stood still: a thread that only sleeps adds up by how much later than it asked
/// it was woken. A promise of a time is judged with that added to it.
#[derive(Debug)]
pub struct Stalls {
    late_ns: Arc<AtomicU64>,
    enough: Arc<AtomicBool>,
}

impl Stalls {
    const NAP: Duration = Duration::from_millis(5);
    /// What a busy machine is late by at every turn is no standstill.
    const USUAL: Duration = Duration::from_millis(20);

    /// Begins to watch.
    #[must_use]
    pub fn watch() -> Self {
        let (late_ns, enough) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (sum, end) = (Arc::clone(&late_ns), Arc::clone(&enough));
        std::thread::spawn(move || {
            let mut last = monotonic_ns();
            while !end.load(Ordering::Relaxed) {
                std::thread::sleep(Self::NAP);
                let now = monotonic_ns();
                let late = Duration::from_nanos(now - last).saturating_sub(Self::NAP);
                if late > Self::USUAL {
                    sum.fetch_add(
                        u64::try_from(late.as_nanos()).unwrap_or(u64::MAX),
                        Ordering::Relaxed,
                    );
                }
                last = now;
            }
        });
        Self { late_ns, enough }
    }

    /// So far, in nanoseconds.
    #[must_use]
    pub fn ns(&self) -> u64 {
        // The watcher may not have been woken since the last one.
        std::thread::sleep(Self::NAP);
        self.late_ns.load(Ordering::Relaxed)
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
    }
}

/// The longest time that a processor of the machine did nothing at all for us: a thread on each, ahead of everything,
/// that sleeps for a millisecond and looks by how much later it runs. What no priority helps against is the host's.
#[derive(Debug)]
pub struct Standstill {
    longest_ns: Arc<AtomicU64>,
    enough: Arc<AtomicBool>,
}

impl Standstill {
    const NAP: Duration = Duration::from_millis(1);

    /// Begins to watch. None: no thread may go ahead of others here.
    #[must_use]
    pub fn watch() -> Option<Self> {
        let watch = Self {
            longest_ns: Arc::default(),
            enough: Arc::default(),
        };
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let watchers: Vec<_> = (0..processors).map(|cpu| watch.on(cpu)).collect();
        let ahead = watchers.into_iter().all(|ahead| ahead.recv() == Ok(true));
        ahead.then_some(watch)
    }

    /// Says whether it went ahead.
    fn on(&self, cpu: usize) -> std::sync::mpsc::Receiver<bool> {
        let (longest, enough) = (Arc::clone(&self.longest_ns), Arc::clone(&self.enough));
        let (ahead_tx, ahead_rx) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let ahead = nail(cpu) && first();
            let _ = ahead_tx.send(ahead);
            while ahead && !enough.load(Ordering::Relaxed) {
                let from = monotonic_ns();
                std::thread::sleep(Self::NAP);
                let late = Duration::from_nanos(monotonic_ns() - from).saturating_sub(Self::NAP);
                let late = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
                longest.fetch_max(late, Ordering::Relaxed);
            }
        });
        ahead_rx
    }

    /// So far, in nanoseconds.
    #[must_use]
    pub fn longest_ns(&self) -> u64 {
        self.longest_ns.load(Ordering::Relaxed)
    }
}

impl Drop for Standstill {
    fn drop(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
    }
}

/// Keeps the calling thread on one processor.
fn nail(cpu: usize) -> bool {
    // SAFETY: a set of processors is plain bits, and none is in one of zeroes; the call reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) == 0
    }
}

/// Puts the calling thread ahead of all others.
fn first() -> bool {
    // SAFETY: plain system calls; the parameters live.
    unsafe {
        let sched_priority = libc::sched_get_priority_max(libc::SCHED_FIFO);
        let highest = libc::sched_param { sched_priority };
        libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const highest) == 0
    }
}
