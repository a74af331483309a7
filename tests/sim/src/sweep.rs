//! Runs many schedules, each with its own seed, on all cores.

use std::sync::atomic::{AtomicU64, Ordering};

/// Runs the `count` seeds from `first` on, on `threads` threads; what each came to, in order of seed.
///
/// # Panics
/// When a schedule does: a verdict over the rest would be a lie.
pub fn seeds<R: Send>(
    first: u64,
    count: u64,
    threads: usize,
    run: impl Fn(u64) -> R + Sync,
) -> Vec<(u64, R)> {
    let next = AtomicU64::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let nth = next.fetch_add(1, Ordering::Relaxed);
            if nth >= count {
                return done;
            }
            let seed = first.wrapping_add(nth);
            done.push((nth, (seed, run(seed))));
        }
    };
    let mut all: Vec<(u64, (u64, R))> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("a schedule panicked"))
            .collect()
    });
    all.sort_by_key(|(nth, _)| *nth);
    all.into_iter().map(|(_, result)| result).collect()
}

/// As [`seeds`], of schedules that are judged: `add` gets the figures of each; what broke a promise, with its seed.
pub fn judged<F: Send>(
    first: u64,
    count: u64,
    threads: usize,
    run: impl Fn(u64) -> (Vec<String>, F) + Sync,
    mut add: impl FnMut(&F),
) -> Vec<(u64, String)> {
    let mut broken = Vec::new();
    for (seed, (violations, figures)) in seeds(first, count, threads, run) {
        add(&figures);
        broken.extend(violations.into_iter().map(|what| (seed, what)));
    }
    broken
}
