//! Calls that may hold the driver's locks while they wait for the GPU.
//!
//! A reclaim changes mappings while every channel is disabled. A thread that is inside one of these
//! calls may hold a lock that changing them needs, and will hold it until a channel runs again. So
//! each leaves a mark while it is inside, and waits before it goes in while the gate word says that
//! a reclaim is under way. Which calls they are, the table says: rows of class `Hold`, copies to the
//! host, what ends contexts and streams, and the synchronisation of a whole context. A launch into a
//! full queue and a copy that starts on the host are the others: the count of launches entered and
//! returned is their mark.
//!
//! Mark, fence, look at the gate; there, gate, fence, look at the marks: whoever comes second sees
//! the other.

use crate::activity::gate;
use crate::hook::table::ROWS;
use crate::process::{self, Process};
use crate::sys::{self, Membarrier};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release, SeqCst};
use core::sync::atomic::{AtomicU64, fence};
use tidegate_core::gate::Role;
use tidegate_core::word::Fences as _;

/// Threads that are told apart inside such calls.
const MARKS: usize = 256;

/// Who is inside: one place a thread, with the row plus one.
#[derive(Debug)]
pub struct Marks {
    places: [AtomicU64; MARKS],
    /// Threads that found no place.
    others: AtomicU64,
}

impl Default for Marks {
    fn default() -> Self {
        Self {
            places: [const { AtomicU64::new(0) }; MARKS],
            others: AtomicU64::new(0),
        }
    }
}

/// A mark that stands.
struct Mark<'a>(&'a AtomicU64, bool);

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        if self.1 {
            self.0.store(0, Release);
        } else {
            self.0.fetch_sub(1, AcqRel);
        }
    }
}

impl Marks {
    fn leave(&self, row: usize) -> Mark<'_> {
        let start = usize::try_from(sys::gettid()).unwrap_or(0);
        for step in 0..MARKS {
            let place = &self.places[(start + step) % MARKS];
            if place
                .compare_exchange(0, row as u64 + 1, SeqCst, Acquire)
                .is_ok()
            {
                return Mark(place, true);
            }
        }
        self.others.fetch_add(1, SeqCst);
        Mark(&self.others, false)
    }

    /// A call that some thread is inside of.
    fn any(&self) -> Option<String> {
        fence(SeqCst);
        let marked = self.places.iter().map(|place| place.load(Acquire));
        let row = marked.filter(|mark| *mark != 0).find_map(|mark| {
            let row = usize::try_from(mark - 1).ok()?;
            ROWS.get(row)
        });
        let name = row.map(|row| String::from_utf8_lossy(row.symbol).into_owned());
        let others = self.others.load(Acquire) != 0;
        name.or_else(|| others.then(|| "more calls than are told apart".to_owned()))
    }
}

/// A call that may hold the driver's locks.
pub fn around<T>(row: usize, call: impl FnOnce() -> T) -> T {
    let Some(process) = process::known().filter(|process| process.role() == Role::Offline) else {
        return call();
    };
    loop {
        let mark = process.memory.marks.leave(row);
        fence(SeqCst);
        if !gate::held(process) {
            let result = call();
            drop(mark);
            return result;
        }
        drop(mark);
        sys::keeping_errno(|| gate::wait_while_held(process));
    }
}

/// The call that a thread of the application is inside of, if one may hold the driver's locks.
pub fn inside(process: &Process) -> Option<String> {
    if let Some(call) = process.memory.marks.any() {
        return Some(call);
    }
    let all = process::slots()?;
    Membarrier.heavy();
    let high = all.high.load(Acquire) as usize;
    let mut slots = all.own.iter().take(high).chain(&all.shared);
    slots
        .any(|slot| {
            let returned = slot.counts.returned.load(Acquire);
            slot.counts.entered.load(Acquire) != returned
        })
        .then(|| "a launch".to_owned())
}
