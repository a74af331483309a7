//! The shell's ports in a schedule: what it asks of the world is put on a wire, in order, and answered by
//! [`super::agent`] in drawn time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_abi::page::Page;
use tidegate_node::journal::{JournalMemory, Marked};
use tidegate_node::message::{Again, Claim, Tell};
use tidegate_node::page::PageMemory;
use tidegate_node::ports::{self, NodeEvent};
use tidegate_node::task::Task;

/// What the world hears of the shell, in the order in which it says it.
#[derive(Debug)]
pub(super) enum Heard {
    Task(usize, Box<Task>),
    Claim(Claim),
    Again(Again),
    /// To a process.
    Told(Tell),
    Late(Vec<Marked>),
    /// Launches of this process may no longer have to wait.
    Woken(usize),
}

/// Where the shell's ports put what they are told.
#[derive(Clone, Debug, Default)]
pub(super) struct Wire(Arc<Mutex<VecDeque<Heard>>>);

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
pub(super) struct Time(Arc<AtomicU64>);

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

#[derive(Debug)]
pub(super) struct Queue(pub usize, pub Wire);

impl ports::Issuer for Queue {
    fn put(&self, task: Task) -> Result<(), Task> {
        self.1.put(Heard::Task(self.0, Box::new(task)));
        Ok(())
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

impl ports::Machine for Wire {
    fn release_late(&self, marked: Vec<Marked>) {
        self.put(Heard::Late(marked));
    }

    fn is_running(&self, _pid: u32) -> bool {
        // Nobody changes mappings in these schedules.
        false
    }
}

/// Nobody reads the events.
#[derive(Debug)]
pub(super) struct NoEvents;

impl ports::EventSink for NoEvents {
    fn event(&self, _event: NodeEvent) {}
}

#[derive(Debug)]
pub(super) struct Stream(pub Wire);

impl ports::Outbox for Stream {
    fn tell(&self, tell: Tell) -> bool {
        self.0.put(Heard::Told(tell));
        true
    }
}

/// The page of a process, by its number.
#[derive(Debug)]
pub(super) struct Shared(pub usize, pub Arc<Page>, pub Wire);

impl PageMemory for Shared {
    fn page(&self) -> &Page {
        &self.1
    }

    fn wake_gate(&self, _slot: usize) {
        self.2.put(Heard::Woken(self.0));
    }
}

/// The journal's words outlive every agent.
#[derive(Clone, Debug)]
pub(super) struct Words(Arc<[AtomicU64]>);

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
