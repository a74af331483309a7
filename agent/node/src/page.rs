//! The page that is shared with one process, as the shell uses it.

use crate::clock::ProcessClock;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tidegate_abi::gate::{self, Gate};
use tidegate_abi::page::{self, ACTIVITY_BUSY, DeviceWords, MemoryWords, Page};
use tidegate_policy::event::Reading;
use tidegate_policy::gap::Turns;
use tidegate_policy::ids::{GraphId, Launches};
use tidegate_policy::time::Instant;

/// Memory that holds a page.
pub trait PageMemory: fmt::Debug + Send + Sync {
    /// The page.
    fn page(&self) -> &Page;
    /// Wakes every launch that sleeps on the gate word of device `slot`.
    fn wake_gate(&self, slot: usize);
    /// Wakes who sleeps on the lease word of device `slot`; nobody does in the memory of a test.
    fn wake_lease(&self, _slot: usize) {}
}

/// A page. Its process is a tenant: every word may hold anything at any time.
#[derive(Clone, Debug)]
pub struct PageRef(Arc<Kept<dyn PageMemory>>);

/// A page, and what the agent's threads keep of it where its process cannot write.
#[derive(Debug)]
struct Kept<M: ?Sized> {
    /// Wakes of its doorbell that came without a ring, to any thread.
    vain: AtomicU32,
    /// No thread waits on its doorbell any more.
    unheard: AtomicBool,
    /// The kernel could not wait on it.
    unwaitable: AtomicBool,
    memory: M,
}

impl PageRef {
    /// The page in `memory`.
    #[must_use]
    pub fn new(memory: impl PageMemory + 'static) -> Self {
        Self(Arc::new(Kept {
            vain: AtomicU32::new(0),
            unheard: AtomicBool::new(false),
            unwaitable: AtomicBool::new(false),
            memory,
        }))
    }

    /// A thread that slept while the doorbell was `seen` was woken by it: whoever wakes without a ring is counted.
    pub fn woke(&self, seen: u32) {
        if self.process.doorbell.load(Ordering::Acquire) == seen {
            self.0.vain.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Wakes without a ring so far.
    #[must_use]
    pub fn vain_wakes(&self) -> u32 {
        self.0.vain.load(Ordering::Relaxed)
    }

    /// Nobody is to wait on its doorbell from here on.
    pub fn unhear(&self) {
        self.0.unheard.store(true, Ordering::Relaxed);
    }

    /// The kernel cannot wait on its doorbell. Nobody tries again.
    pub fn cannot_be_waited_on(&self) {
        self.0.unwaitable.store(true, Ordering::Relaxed);
        self.unhear();
    }

    /// Whether that was found.
    #[must_use]
    pub fn is_unwaitable(&self) -> bool {
        self.0.unwaitable.load(Ordering::Relaxed)
    }

    /// Whether threads wait on its doorbell.
    #[must_use]
    pub fn is_heard(&self) -> bool {
        !self.0.unheard.load(Ordering::Relaxed)
    }

    /// Whether both are the same page.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Wakes every thread that sleeps on a gate word.
    pub fn wake_gates(&self) {
        (0..self.gates.len()).for_each(|slot| self.0.memory.wake_gate(slot));
    }

    /// Sets the gate of device `slot`, and wakes what waits on it and may no longer have to.
    pub fn set_gate(&self, slot: usize, gate: Gate) {
        let Some(words) = self.gates.get(slot) else {
            return;
        };
        if gate::set(&words.gate, gate) {
            self.0.memory.wake_gate(slot);
        }
    }

    /// Writes the lease of device `slot`, its number and state last, and wakes who waits for it.
    pub fn set_lease(&self, slot: usize, lease: &LeaseWords) {
        let Some(words) = self.gates.get(slot) else {
            return;
        };
        let store = |word: &AtomicU64, value| word.store(value, Ordering::Relaxed);
        store(&words.lease_until_ns, lease.until_ns);
        store(&words.lease_units, u64::from(lease.units));
        store(&words.lease_tokens, 0);
        let word = lease.number << page::LEASE_NUMBER | lease.state.word();
        words.lease.store(word, Ordering::Release);
        self.0.memory.wake_lease(slot);
    }
}

impl std::ops::Deref for PageRef {
    type Target = Page;

    fn deref(&self) -> &Page {
        self.0.memory.page()
    }
}

/// The words of a lease, as they are written for a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseWords {
    /// Which.
    pub number: u64,
    /// How it stands.
    pub state: LeaseState,
    /// By when it has to be over, by the clock of the process.
    pub until_ns: u64,
    /// Units at most.
    pub units: u32,
}

/// How a lease stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// None is needed.
    None,
    /// Units may begin.
    Given,
    /// No unit may begin any more.
    Withdrawn,
}

impl LeaseState {
    const fn word(self) -> u64 {
        match self {
            Self::None => page::LEASE_NONE,
            Self::Given => page::LEASE_GIVEN,
            Self::Withdrawn => page::LEASE_WITHDRAWN,
        }
    }
}

const _: () = assert!(Turns::NO_GRAPH.0 == page::NO_GRAPH);

/// Activity of one device, from a page or from a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// `generation << 1 | busy`.
    pub word: u64,
    /// Of the last busy edge, by the agent's clock.
    pub busy_since_ns: u64,
    /// When the work before the last idle edge was proven done.
    pub idle_since_ns: u64,
    /// Launches of the period that ended with it.
    pub launches: u64,
    /// The graph last launched in it.
    pub graph: u64,
    /// Iterations in it between which nobody saw the device idle.
    pub turns: u64,
    /// Launches in it up to the end of its first iteration.
    pub first_turn: u64,
    /// Idle time between these iterations was shorter than this.
    pub apart_ns: u64,
}

impl Activity {
    /// The words of one device of a process with that clock, as they stand. The writer may be between two of them: the generation in
    /// the first tells one edge from another, and the rest is only ever used as measures.
    #[must_use]
    pub fn read(words: &DeviceWords, more: &MemoryWords, clock: ProcessClock) -> Self {
        let said = Self {
            word: words.activity.load(Ordering::Acquire),
            busy_since_ns: words.busy_since_ns.load(Ordering::Relaxed),
            idle_since_ns: words.idle_since_ns.load(Ordering::Relaxed),
            launches: words.launches.load(Ordering::Relaxed),
            graph: words.graph.load(Ordering::Relaxed),
            turns: more.turns.load(Ordering::Relaxed),
            first_turn: more.first_turn.load(Ordering::Relaxed),
            apart_ns: more.apart_ns.load(Ordering::Relaxed),
        };
        said.by(clock)
    }

    /// The same by the agent's clock, where a process of that clock said it.
    #[must_use]
    pub fn by(self, clock: ProcessClock) -> Self {
        Self {
            busy_since_ns: clock.here(self.busy_since_ns),
            idle_since_ns: clock.here(self.idle_since_ns),
            ..self
        }
    }

    /// As policy takes it.
    #[must_use]
    pub const fn reading(self) -> Reading {
        Reading {
            generation: self.word >> 1,
            busy: self.word & ACTIVITY_BUSY != 0,
            busy_since: Instant::from_nanos(self.busy_since_ns),
            idle_since: Instant::from_nanos(self.idle_since_ns),
            launches: Launches(self.launches),
            graph: GraphId(self.graph),
            turns: Turns {
                count: self.turns,
                first: Launches(self.first_turn),
                apart: Duration::from_nanos(self.apart_ns),
            },
        }
    }
}

/// The activity words that forbid an enable while one of them is busy: a page and a slot of it.
#[derive(Debug, Default)]
pub struct Guards(pub Vec<(PageRef, usize)>);

impl Guards {
    /// Whether one is busy at this moment.
    #[must_use]
    pub fn any_busy(&self) -> bool {
        self.0.iter().any(|(page, slot)| {
            page.devices[*slot].activity.load(Ordering::Acquire) & ACTIVITY_BUSY != 0
        })
    }
}

/// The activity words of all GPUs of a job: one that is busy is an edge for which all of the job is disabled.
#[derive(Debug, Default)]
pub struct Watch(pub Vec<Arc<Guards>>);

impl Watch {
    /// Whether one is busy at this moment.
    #[must_use]
    pub fn any_busy(&self) -> bool {
        self.0.iter().any(|guards| guards.any_busy())
    }

    /// The pages they are in, with repetitions.
    pub fn pages(&self) -> impl Iterator<Item = &PageRef> {
        let all = self.0.iter().flat_map(|guards| &guards.0);
        all.map(|(page, _)| page)
    }
}
