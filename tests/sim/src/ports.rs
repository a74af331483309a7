//! The shell's ports in a schedule: each call is queued, in order, and [`crate::agent`] answers it in drawn time.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_abi::page::Page;
use tidegate_node::journal::{JournalMemory, Marked};
use tidegate_node::message::{Again, Claim, Tell};
use tidegate_node::page::PageMemory;
use tidegate_node::ports::{self, NodeEvent};
use tidegate_node::task::Task;

/// What the world hears of the shell, in the order in which it says it.
#[derive(Debug)]
pub(crate) enum Heard {
    Task(usize, Box<Task>),
    Claim(Claim),
    Again(Again),
    /// To the process of a session.
    Told(u64, Tell),
    Late(Vec<Marked>),
    /// Launches of this process may no longer have to wait.
    Woken(usize),
    /// People were told of something of this kind.
    Noted(&'static str),
}

/// Where the shell's ports put what they are told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wire(Arc<Mutex<VecDeque<Heard>>>);

impl Wire {
    fn put(&self, heard: Heard) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push_back(heard);
    }

    pub fn take(&self) -> Option<Heard> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.pop_front()
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Time(Arc<AtomicU64>);

impl Time {
    pub fn set(&self, now: u64) {
        self.0.store(now, Ordering::Relaxed);
    }
}

impl ports::Clock for Time {
    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What ports read of the world: it changes under the shell's feet, and the shell is not told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Switches {
    /// Every issue thread's queue is full.
    full: Arc<AtomicBool>,
    /// Orders that a full queue did not take.
    untaken: Arc<AtomicU64>,
    /// A full queue takes orders and forgets them.
    forgets: Arc<AtomicBool>,
    /// Issue threads act on armed orders.
    arms: Arc<AtomicBool>,
    /// Process ids that are running.
    running: Arc<Mutex<BTreeSet<u32>>>,
}

impl Switches {
    /// Those of a world in which issue threads act on armed orders, or do not.
    pub fn with_arms(arms: bool) -> Self {
        let switches = Self::default();
        switches.arms.store(arms, Ordering::Relaxed);
        switches
    }

    pub fn set_full(&self, full: bool, forgets: bool) {
        self.full.store(full, Ordering::Relaxed);
        self.forgets.store(forgets, Ordering::Relaxed);
    }

    /// Orders that failed at once.
    pub fn untaken(&self) -> u64 {
        self.untaken.load(Ordering::Relaxed)
    }

    pub fn set_running(&self, pid: u32, runs: bool) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if runs {
            running.insert(pid);
        } else {
            running.remove(&pid);
        }
    }

    pub fn is_running(&self, pid: u32) -> bool {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.contains(&pid)
    }
}

/// The queue of one GPU's issue thread.
#[derive(Debug)]
pub(crate) struct Queue(pub usize, pub Wire, pub Switches);

impl ports::Issuer for Queue {
    fn put(&self, task: Task) -> Result<(), Task> {
        if !self.2.full.load(Ordering::Relaxed) {
            self.1.put(Heard::Task(self.0, Box::new(task)));
            return Ok(());
        }
        if self.2.forgets.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.2.untaken.fetch_add(1, Ordering::Relaxed);
        Err(task)
    }

    fn keeps_armed(&self) -> bool {
        self.2.arms.load(Ordering::Relaxed)
    }
}

impl ports::Prover for Wire {
    fn claim(&self, claim: Claim) {
        self.put(Heard::Claim(claim));
    }

    fn again(&self, again: Again) -> bool {
        self.put(Heard::Again(again));
        true
    }
}

/// Who runs on the machine, and who enables what nobody claims.
#[derive(Debug)]
pub(crate) struct Machine(pub Wire, pub Switches);

impl ports::Machine for Machine {
    fn release_late(&self, marked: Vec<Marked>) {
        self.0.put(Heard::Late(marked));
    }

    fn is_running(&self, pid: u32) -> bool {
        self.1.is_running(pid)
    }
}

impl ports::EventSink for Wire {
    fn event(&self, event: NodeEvent) {
        self.put(Heard::Noted(event.kind));
    }
}

/// The stream to the process of one session, while it listens.
#[derive(Debug)]
pub(crate) struct Stream {
    pub session: u64,
    pub wire: Wire,
    pub listens: Arc<AtomicBool>,
}

impl ports::Outbox for Stream {
    fn tell(&self, tell: Tell) -> bool {
        let listens = self.listens.load(Ordering::Relaxed);
        if listens {
            self.wire.put(Heard::Told(self.session, tell));
        }
        listens
    }
}

/// The page of a process, by its number.
#[derive(Debug)]
pub(crate) struct Shared(pub usize, pub Arc<Page>, pub Wire);

impl PageMemory for Shared {
    fn page(&self) -> &Page {
        &self.1
    }

    fn wake_gate(&self, _slot: usize) {
        self.2.put(Heard::Woken(self.0));
    }

    fn wake_lease(&self, _slot: usize) {
        self.2.put(Heard::Woken(self.0));
    }
}

/// The journal's words outlive every agent.
#[derive(Clone, Debug)]
pub(crate) struct Words(Arc<[AtomicU64]>);

impl Default for Words {
    fn default() -> Self {
        let words = 0..tidegate_node::journal::WORDS;
        Self(words.map(|_| AtomicU64::new(0)).collect())
    }
}

impl JournalMemory for Words {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}
