//! Many runs at once, with a result that does not depend on how many threads there are.
//!
//! A run is a function of its spec alone, so the only thing that threads could change is the order
//! of what comes out: results are put at the place of their work, and of several errors the one of
//! the earliest work is given.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// One thread per core.
#[must_use]
pub fn cores() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Applies `to_each` to all of `work` on `threads` threads. `done` hears of each result, on
/// whichever thread had it.
///
/// # Errors
/// With the error of the earliest work that failed; work not begun by then is left.
pub fn in_parallel<W: Sync, R: Send, E: Send>(
    threads: NonZeroUsize,
    work: &[W],
    to_each: impl Fn(&W) -> Result<R, E> + Sync,
    done: impl Fn(&W) + Sync,
) -> Result<Vec<R>, E> {
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let results: Vec<Mutex<Option<Result<R, E>>>> = work.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..threads.get().min(work.len()) {
            scope.spawn(|| {
                while !failed.load(Ordering::Relaxed) {
                    // Places are given out in order, so whatever comes before a failure was begun
                    // and is finished.
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let (Some(work), Some(result)) = (work.get(place), results.get(place)) else {
                        return;
                    };
                    let outcome = to_each(work);
                    failed.fetch_or(outcome.is_err(), Ordering::Relaxed);
                    *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
                    done(work);
                }
            });
        }
    });
    results
        .into_iter()
        .filter_map(|result| result.into_inner().unwrap_or_else(PoisonError::into_inner))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(n: usize) -> NonZeroUsize {
        NonZeroUsize::new(n).expect("not zero")
    }

    #[test]
    fn results_come_in_the_order_of_the_work_however_many_threads() {
        let work: Vec<u64> = (0..200).collect();
        let slow_at_first = |n: &u64| -> Result<u64, ()> {
            Ok((0..(200 - n) * 500).fold(*n, |sum, x| sum.wrapping_mul(31).wrapping_add(x)))
        };
        let heard = AtomicUsize::new(0);
        let count = |_: &u64| {
            heard.fetch_add(1, Ordering::Relaxed);
        };
        let one = in_parallel(threads(1), &work, slow_at_first, count);
        assert_eq!(one, in_parallel(threads(7), &work, slow_at_first, count));
        assert_eq!(heard.into_inner(), 400);
    }

    #[test]
    fn of_several_errors_the_earliest_is_given() {
        let work: Vec<u64> = (0..100).collect();
        for n in [1, 5] {
            let fail = |n: &u64| if n % 10 == 7 { Err(*n) } else { Ok(*n) };
            assert_eq!(in_parallel(threads(n), &work, fail, |_| {}), Err(7));
        }
    }
}
