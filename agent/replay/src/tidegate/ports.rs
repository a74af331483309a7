//! The shell's ports: what it asks of the world is put on a wire, in order, and the world takes it
//! from there.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_abi::page::Page;
use tidegate_node::journal::Marked;
use tidegate_node::message::{Again, Claim, Tell};
use tidegate_node::page::PageMemory;
use tidegate_node::ports::{self, NodeEvent};
use tidegate_node::task::Task;

/// What the shell asks for.
#[derive(Debug)]
pub(super) enum Heard {
    /// Of the GPU's issue thread.
    Task(Task),
    /// Of the prover.
    Claim(Claim),
    Again(Again),
    /// Of the process of this session.
    Told(u64, Tell),
}

/// What the shell has asked for and nobody has taken yet.
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

/// The instant that the world has reached, ns. It never goes back: the shell believes that of a clock, as the kernel
/// promises it of CLOCK_MONOTONIC.
#[derive(Clone, Debug, Default)]
pub(super) struct Time(Arc<AtomicU64>);

impl Time {
    pub fn set(&self, now: u64) {
        let before = self.0.swap(now, Ordering::Relaxed);
        debug_assert!(before <= now, "from {before} ns back to {now} ns");
    }
}

impl ports::Clock for Time {
    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl ports::Issuer for Wire {
    fn put(&self, task: Task) -> Result<(), Task> {
        self.put(Heard::Task(task));
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

/// A machine whose agent is never replaced, and whose processes never end.
#[derive(Debug)]
pub(super) struct Lasting;

impl ports::Machine for Lasting {
    fn release_late(&self, _marked: Vec<Marked>) {}

    fn is_running(&self, _pid: u32) -> bool {
        true
    }
}

/// Nobody reads the events.
#[derive(Debug)]
pub(super) struct NoEvents;

impl ports::EventSink for NoEvents {
    fn event(&self, _event: NodeEvent) {}
}

/// The stream to the process of a session.
#[derive(Debug)]
pub(super) struct Stream(pub u64, pub Wire);

impl ports::Outbox for Stream {
    fn tell(&self, tell: Tell) -> bool {
        self.1.put(Heard::Told(self.0, tell));
        true
    }
}

/// A page that a process and the shell share.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared(pub Arc<Page>);

impl PageMemory for Shared {
    fn page(&self) -> &Page {
        &self.0
    }

    fn wake_gate(&self, _slot: usize) {}
}
