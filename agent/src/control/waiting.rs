//! What the control thread sleeps on.
//!
//! One `futex_waitv` takes 128 words: 127 doorbells and the wake word. Processes beyond that, and all
//! of them on a kernel without the call, get a waiter thread each, which sleeps on one doorbell and
//! raises the wake word.

use crate::sys::{self, WAITV_MAX, WaitSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tidegate_node::page::PageRef;
use tidegate_node::{Bell, Bells};

/// Doorbells and the wake word.
#[derive(Debug)]
pub struct Waiting {
    wake: Arc<AtomicU32>,
    waiters: Vec<Waiter>,
    /// Of the bells when the waiters were last fitted to them.
    version: u64,
    set: WaitSet,
    waitv: bool,
}

/// A thread that waits on one doorbell, and ends when the word is raised.
#[derive(Debug)]
struct Waiter {
    session: u64,
    end: Arc<AtomicBool>,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
    }
}

/// How long a waiter thread sleeps before it looks whether it should end.
const WAITER_TURN: Duration = Duration::from_millis(500);

impl Waiting {
    /// Waits on nothing but `wake` yet.
    #[must_use]
    pub fn new(wake: Arc<AtomicU32>) -> Self {
        Self {
            wake,
            waiters: Vec::new(),
            version: 0,
            set: WaitSet::new(),
            waitv: sys::has_futex_waitv(),
        }
    }

    /// Doorbells that the thread waits on itself: the others have waiters.
    fn direct<'a>(&self, bells: &'a Bells) -> &'a [Bell] {
        let most = if self.waitv { WAITV_MAX - 1 } else { 0 };
        &bells.all()[..bells.all().len().min(most)]
    }

    /// Gives a waiter to every bell that has none and needs one, and ends those of bells that are gone.
    fn fit(&mut self, bells: &Bells) {
        if bells.version() == self.version {
            return;
        }
        self.version = bells.version();
        let others = &bells.all()[self.direct(bells).len()..];
        self.waiters
            .retain(|waiter| others.iter().any(|bell| bell.session == waiter.session));
        for bell in others {
            let same = |waiter: &Waiter| waiter.session == bell.session;
            if !self.waiters.iter().any(same) {
                let waiter = self.start_waiter(bell);
                self.waiters.push(waiter);
            }
        }
    }

    /// A thread that cannot be made costs latency, not correctness: the heartbeat looks as well.
    fn start_waiter(&self, bell: &Bell) -> Waiter {
        let end = Arc::new(AtomicBool::new(false));
        let (wake, ended) = (Arc::clone(&self.wake), Arc::clone(&end));
        let (page, seen) = (bell.page.clone(), bell.seen);
        let thread = std::thread::Builder::new().name("tg-waiter".to_owned());
        if let Err(error) = thread.spawn(move || wait_for(&page, seen, &wake, &ended)) {
            tracing::warn!(%error, "no waiter thread for a doorbell");
        }
        Waiter {
            session: bell.session,
            end,
        }
    }

    /// Sleeps until a doorbell rings, the wake word is no longer `raised`, or `deadline_ns`.
    pub fn wait(&mut self, bells: &Bells, raised: u32, deadline_ns: u64) {
        self.fit(bells);
        if self.waitv {
            self.set.clear();
            self.set.push(&self.wake, raised);
            for bell in self.direct(bells) {
                self.set.push(&bell.page.process.doorbell, bell.seen);
            }
            if let Err(error) = self.set.wait(deadline_ns) {
                tracing::error!(%error, "cannot wait on the doorbells");
                self.waitv = false;
                // Every doorbell needs a waiter from here on.
                self.version = u64::MAX;
            }
        } else {
            let left = deadline_ns.saturating_sub(crate::clock::now_ns());
            sys::futex_wait(&self.wake, raised, Some(Duration::from_nanos(left)));
        }
    }
}

/// Raises the wake word whenever a doorbell is not what it was.
fn wait_for(page: &PageRef, mut seen: u32, wake: &AtomicU32, ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        sys::futex_wait(&page.process.doorbell, seen, Some(WAITER_TURN));
        let bell = page.process.doorbell.load(Ordering::Acquire);
        if bell != seen {
            seen = bell;
            wake.fetch_add(1, Ordering::Release);
            sys::futex_wake(wake);
        }
    }
}
