//! What the control thread sleeps on.
//!
//! One `futex_waitv` takes 128 words: 127 doorbells and the wake word. Processes beyond that, and all
//! of them on a kernel without the call, get a waiter thread each, which sleeps on one doorbell and
//! raises the wake word.

use crate::sys::{self, SharedPage, WAITV_MAX, WaitSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Doorbells and the wake word.
#[derive(Debug)]
pub struct Waiting {
    wake: Arc<AtomicU32>,
    bells: Vec<Bell>,
    set: WaitSet,
    waitv: bool,
}

#[derive(Debug)]
struct Bell {
    session: u64,
    page: Arc<SharedPage>,
    seen: u32,
    /// Set: a thread waits on it, and ends when this is raised.
    waiter: Option<Arc<AtomicBool>>,
}

/// How long a waiter thread sleeps before it looks whether it should end.
const WAITER_TURN: Duration = Duration::from_millis(500);

impl Waiting {
    /// Waits on nothing but `wake` yet.
    #[must_use]
    pub fn new(wake: Arc<AtomicU32>) -> Self {
        Self {
            wake,
            bells: Vec::with_capacity(1_024),
            set: WaitSet::new(),
            waitv: sys::has_futex_waitv(),
        }
    }

    /// Waits on a process' doorbell too. Its current value counts as not yet seen.
    pub fn add(&mut self, session: u64, page: &Arc<SharedPage>) {
        let seen = page
            .process
            .doorbell
            .load(Ordering::Acquire)
            .wrapping_sub(1);
        let direct = self
            .bells
            .iter()
            .filter(|bell| bell.waiter.is_none())
            .count();
        let waiter = if self.waitv && direct < WAITV_MAX - 1 {
            None
        } else {
            self.start_waiter(page)
        };
        self.bells.push(Bell {
            session,
            page: Arc::clone(page),
            seen,
            waiter,
        });
    }

    /// A thread that cannot be made costs latency, not correctness: the heartbeat looks as well.
    fn start_waiter(&self, page: &Arc<SharedPage>) -> Option<Arc<AtomicBool>> {
        let end = Arc::new(AtomicBool::new(false));
        let (wake, page, ended) = (Arc::clone(&self.wake), Arc::clone(page), Arc::clone(&end));
        let thread = std::thread::Builder::new().name("tg-waiter".to_owned());
        // Read here: an edge between this and the thread's first sleep wakes it at once.
        let mut seen = page.process.doorbell.load(Ordering::Acquire);
        let run = move || {
            while !ended.load(Ordering::Relaxed) {
                sys::futex_wait(&page.process.doorbell, seen, Some(WAITER_TURN));
                let bell = page.process.doorbell.load(Ordering::Acquire);
                if bell != seen {
                    seen = bell;
                    wake.fetch_add(1, Ordering::Release);
                    sys::futex_wake(&wake);
                }
            }
        };
        match thread.spawn(run) {
            Ok(_) => Some(end),
            Err(error) => {
                tracing::warn!(%error, "no waiter thread for a doorbell");
                Some(end)
            }
        }
    }

    /// Waits on it no longer.
    pub fn remove(&mut self, session: u64) {
        self.bells.retain(|bell| {
            let stays = bell.session != session;
            if let Some(waiter) = bell.waiter.as_ref().filter(|_| !stays) {
                waiter.store(true, Ordering::Relaxed);
            }
            stays
        });
    }

    /// The session of bell number `at`, and whether it rang since the last look.
    pub fn look(&mut self, at: usize) -> Option<(u64, bool)> {
        let bell = self.bells.get_mut(at)?;
        let rung = bell.page.process.doorbell.load(Ordering::Acquire);
        let changed = rung != bell.seen;
        bell.seen = rung;
        Some((bell.session, changed))
    }

    /// Sleeps until a doorbell rings, the wake word is no longer `raised`, or `deadline_ns`.
    pub fn wait(&mut self, raised: u32, deadline_ns: u64) {
        if self.waitv {
            self.set.clear();
            self.set.push(&self.wake, raised);
            for bell in self.bells.iter().filter(|bell| bell.waiter.is_none()) {
                self.set.push(&bell.page.process.doorbell, bell.seen);
            }
            if let Err(error) = self.set.wait(deadline_ns) {
                tracing::error!(%error, "cannot wait on the doorbells");
                self.waitv = false;
            }
        } else {
            let left = deadline_ns.saturating_sub(crate::clock::now_ns());
            sys::futex_wait(&self.wake, raised, Some(Duration::from_nanos(left)));
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        for waiter in self.bells.iter().filter_map(|bell| bell.waiter.as_ref()) {
            waiter.store(true, Ordering::Relaxed);
        }
    }
}
