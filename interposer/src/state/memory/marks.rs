//! Which threads are inside calls that may hold the driver's locks.

use crate::real::row::Row;
use crate::sys;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release, SeqCst};
use core::sync::atomic::{AtomicPtr, AtomicU64, fence};

/// Threads that are told apart inside such calls.
const MARKS: usize = 256;

/// Who is inside: one entry a thread, with the row.
#[derive(Debug)]
pub struct Marks {
    entries: [AtomicPtr<Row>; MARKS],
    /// Threads that found no entry.
    others: AtomicU64,
}

impl Default for Marks {
    fn default() -> Self {
        Self {
            entries: [const { AtomicPtr::new(core::ptr::null_mut()) }; MARKS],
            others: AtomicU64::new(0),
        }
    }
}

/// A mark that stands.
#[derive(Debug)]
pub enum Mark<'a> {
    /// In an entry of its own.
    Told(&'a AtomicPtr<Row>),
    /// Among those that found none.
    Counted(&'a AtomicU64),
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        match self {
            Self::Told(entry) => entry.store(core::ptr::null_mut(), Release),
            Self::Counted(others) => {
                others.fetch_sub(1, AcqRel);
            }
        }
    }
}

impl Marks {
    /// Marks the calling thread as inside a call of `row`.
    pub fn leave(&self, row: &'static Row) -> Mark<'_> {
        let mark = core::ptr::from_ref(row).cast_mut();
        let start = usize::try_from(sys::gettid()).unwrap_or(0);
        for step in 0..MARKS {
            let entry = &self.entries[(start + step) % MARKS];
            if entry
                .compare_exchange(core::ptr::null_mut(), mark, SeqCst, Acquire)
                .is_ok()
            {
                return Mark::Told(entry);
            }
        }
        self.others.fetch_add(1, SeqCst);
        Mark::Counted(&self.others)
    }

    /// A call that some thread is inside of.
    pub fn any(&self) -> Option<String> {
        fence(SeqCst);
        // SAFETY: null or a row of the table, which is static.
        let marked = |entry: &AtomicPtr<Row>| unsafe { entry.load(Acquire).as_ref() };
        let row = self.entries.iter().find_map(marked);
        let name = row.map(|row| String::from_utf8_lossy(row.symbol).into_owned());
        let others = self.others.load(Acquire) != 0;
        name.or_else(|| others.then(|| "more calls than are told apart".to_owned()))
    }
}
