//! What the control thread sleeps on.
//!
//! One `futex_waitv` takes 128 words: the wake word and 127 doorbells, those of online processes first. Further doorbells
//! have waiter threads, each with 127 of them (with one, on a kernel without the call), which raise the wake word. There are
//! few of these threads, however many processes attach. The control thread looks at every doorbell with each heartbeat, so
//! one that nobody waits on is heard at most 50 ms late.

use crate::doorbell;
use crate::sys::{self, Awake, WAITV_MAX, WaitSet};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;
use tidegate_node::{Bell, Bells};

/// Waiter threads, each with as many doorbells as one call takes.
const WAITERS: usize = 4;
/// Waiter threads on a kernel without the call, each with one doorbell.
const SINGLE_WAITERS: usize = 48;

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

/// A thread that waits on some doorbells, and ends when this is dropped.
#[derive(Debug)]
struct Waiter {
    sessions: Vec<u64>,
    bells_tx: Sender<Vec<Bell>>,
    /// Raised after a list was sent, and at the end.
    changed: Arc<AtomicU32>,
}

impl Waiter {
    /// Has it wait on these, and no others.
    fn take(&mut self, bells: Vec<Bell>) {
        self.sessions = bells.iter().map(|bell| bell.session).collect();
        // A thread that is gone costs latency, not correctness: the heartbeat looks as well.
        let _ = self.bells_tx.send(bells);
        raise(&self.changed);
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        raise(&self.changed);
    }
}

fn raise(word: &AtomicU32) {
    word.fetch_add(1, Ordering::Release);
    sys::futex_wake(word);
}

/// How long a waiter thread sleeps before it looks whether it should end.
const WAITER_TURN: Duration = Duration::from_millis(500);
/// How long it leaves doorbells alone on which the kernel does not let it wait.
const PAUSE: Duration = Duration::from_millis(50);

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

    /// Fits the waiters to the bells: who is gone, or gives way to an online process, is waited on no longer.
    fn fit(&mut self, bells: &Bells) {
        if bells.version() == self.version {
            return;
        }
        self.version = bells.version();
        let (each, most) = if self.waitv {
            (WAITV_MAX - 1, WAITERS)
        } else {
            (1, SINGLE_WAITERS)
        };
        let others = &bells.all()[self.direct(bells).len()..];
        let wanted = &others[..others.len().min(each * most)];
        let waited: BTreeSet<u64> = self
            .waiters
            .iter()
            .flat_map(|waiter| waiter.sessions.iter().copied())
            .collect();
        let mut new = wanted
            .iter()
            .filter(|bell| !waited.contains(&bell.session))
            .cloned()
            .peekable();
        for waiter in &mut self.waiters {
            let kept = wanted
                .iter()
                .filter(|bell| waiter.sessions.contains(&bell.session));
            let mut list: Vec<Bell> = kept.cloned().collect();
            let kept = list.len();
            list.extend(new.by_ref().take(each - kept));
            if kept != waiter.sessions.len() || list.len() != kept {
                waiter.take(list);
            }
        }
        self.waiters.retain(|waiter| !waiter.sessions.is_empty());
        while new.peek().is_some() {
            let list = new.by_ref().take(each).collect();
            match self.start_waiter() {
                Ok(mut waiter) => {
                    waiter.take(list);
                    self.waiters.push(waiter);
                }
                Err(error) => {
                    tracing::warn!(%error, "no waiter thread for doorbells: they are heard at the next heartbeat");
                    return;
                }
            }
        }
    }

    fn start_waiter(&self) -> std::io::Result<Waiter> {
        let (bells_tx, bells_rx) = channel();
        let changed = Arc::new(AtomicU32::new(0));
        let (wake, word, waitv) = (Arc::clone(&self.wake), Arc::clone(&changed), self.waitv);
        let thread = std::thread::Builder::new().name("tg-waiter".to_owned());
        thread.spawn(move || wait_for(&bells_rx, &word, &wake, waitv))?;
        Ok(Waiter {
            sessions: Vec::new(),
            bells_tx,
            changed,
        })
    }

    /// Sleeps until a doorbell rings, the wake word is no longer `raised`, or `deadline_ns`.
    pub fn wait(&mut self, bells: &Bells, raised: u32, deadline_ns: u64) {
        self.fit(bells);
        if self.waitv {
            let direct = self.direct(bells).iter();
            let own = (&*self.wake, raised);
            let bells = direct.map(|bell| (&bell.page, bell.seen));
            if let Err(error) = doorbell::wait(&mut self.set, own, bells, deadline_ns) {
                tracing::error!(%error, "cannot wait on the doorbells");
                self.waitv = false;
                // Every doorbell needs a waiter of the other kind from here on.
                self.waiters.clear();
                self.version = u64::MAX;
            }
        } else {
            let left = deadline_ns.saturating_sub(crate::clock::now_ns());
            let _ = sys::futex_wait(&self.wake, raised, Some(Duration::from_nanos(left)));
        }
    }
}

/// Raises the wake word whenever a doorbell is not what it was, until nobody sends bells any more.
fn wait_for(bells_rx: &Receiver<Vec<Bell>>, changed: &AtomicU32, wake: &AtomicU32, waitv: bool) {
    let (mut bells, mut set) = (Vec::new(), WaitSet::new());
    loop {
        let sent = changed.load(Ordering::Acquire);
        loop {
            match bells_rx.try_recv() {
                Ok(list) => bells = list,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        sleep_on(&bells, (changed, sent), waitv.then_some(&mut set));
        let mut rang = false;
        for bell in &mut bells {
            let now = bell.page.process.doorbell.load(Ordering::Acquire);
            rang |= now != bell.seen;
            bell.seen = now;
        }
        if rang {
            raise(wake);
        }
    }
}

/// Sleeps until a doorbell or the word `changed` differs, at most for a turn.
fn sleep_on(bells: &[Bell], own: (&AtomicU32, u32), set: Option<&mut WaitSet>) {
    match (set, bells) {
        (Some(set), _) => {
            let until = crate::clock::now_ns() + crate::clock::nanos(WAITER_TURN);
            let bells = bells.iter().map(|bell| (&bell.page, bell.seen));
            if doorbell::wait(set, own, bells, until).is_err() {
                std::thread::sleep(PAUSE);
            }
        }
        (None, [bell, ..]) if bell.page.is_heard() => {
            let (word, seen) = bell.word();
            match sys::futex_wait(word, seen, Some(WAITER_TURN)) {
                Ok(Awake::Woken(_)) => bell.page.woke(seen),
                Ok(Awake::Otherwise) => {}
                Err(_) => bell.page.cannot_be_waited_on(),
            }
        }
        (None, _) => {
            let (changed, sent) = own;
            let _ = sys::futex_wait(changed, sent, Some(WAITER_TURN));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_abi::page::Page;
    use tidegate_node::page::{PageMemory, PageRef};

    #[derive(Debug)]
    struct Memory(Page);

    impl PageMemory for Memory {
        fn page(&self) -> &Page {
            &self.0
        }

        fn wake_gate(&self, _slot: usize) {}
    }

    fn pages(count: u64, bells: &mut Bells) -> Vec<PageRef> {
        let pages: Vec<PageRef> = (0..count)
            .map(|_| PageRef::new(Memory(Page::default())))
            .collect();
        for (session, page) in (1..).zip(&pages) {
            bells.add_offline(session, page);
        }
        for at in 0..pages.len() {
            bells.look(at);
        }
        pages
    }

    /// P-SECURITY-11: however many processes attach, few threads wait on their doorbells.
    #[test]
    fn a_thousand_doorbells_take_a_few_threads_and_each_of_the_first_hundreds_is_heard() {
        let wake = Arc::new(AtomicU32::new(0));
        let mut waiting = Waiting::new(Arc::clone(&wake));
        let mut bells = Bells::default();
        let pages = pages(1_000, &mut bells);
        waiting.fit(&bells);
        let single = !waiting.waitv;
        let (each, most) = if single {
            (1, SINGLE_WAITERS)
        } else {
            (WAITV_MAX - 1, WAITERS)
        };
        assert_eq!(waiting.waiters.len(), most);
        let beyond = waiting.direct(&bells).len() + each * most;
        for at in [0, beyond / 2, beyond - 1] {
            let raised = wake.load(Ordering::Acquire);
            raise(&pages[at].process.doorbell);
            let limit = crate::clock::now_ns() + 20_000_000_000;
            waiting.wait(&bells, raised, limit);
            assert!(crate::clock::now_ns() < limit, "bell {at} was not heard");
            bells.look(at);
        }
        // Online processes come first, whoever was here before.
        let online = PageRef::new(Memory(Page::default()));
        bells.add(5_000, &online);
        for session in 1..=800 {
            bells.remove(session);
        }
        bells.look(0);
        waiting.fit(&bells);
        let waited: usize = waiting.waiters.iter().map(|of| of.sessions.len()).sum();
        assert_eq!(
            waited,
            (201 - waiting.direct(&bells).len()).min(each * most)
        );
        for session in 801..=1_000 {
            bells.remove(session);
        }
        waiting.fit(&bells);
        let left = usize::from(single);
        assert_eq!(waiting.waiters.len(), left, "a thread without a bell ends");
    }
}
