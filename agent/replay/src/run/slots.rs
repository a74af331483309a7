//! The few events a world can wait for, each in its slot.
//!
//! A world has one next arrival, one next launch, and so on, so a fixed array and a look at all of
//! it beat a heap. Events of one instant leave in the order of their slots: that order is part of
//! what makes a run a function of its seed.

/// What can happen next. The order is that of events of one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Slot {
    /// An online iteration is done.
    OnlineDone,
    /// An offline iteration is done.
    OfflineDone,
    /// Offline reached a boundary, was saved or was restored.
    Switch,
    /// A turn is over.
    Turn,
    /// The next request arrives.
    Arrival,
    /// Online submits its next iteration.
    Launch,
    /// The memory policy is due.
    Memory,
    /// The compute policy is due.
    Compute,
}

const SLOTS: [Slot; 8] = [
    Slot::OnlineDone,
    Slot::OfflineDone,
    Slot::Switch,
    Slot::Turn,
    Slot::Arrival,
    Slot::Launch,
    Slot::Memory,
    Slot::Compute,
];

/// A time that never comes.
pub const NEVER: u64 = u64::MAX;

/// When each slot's event is due.
#[derive(Clone, Debug)]
pub struct Slots([u64; SLOTS.len()]);

impl Slots {
    /// Nothing is due.
    pub const fn new() -> Self {
        Self([NEVER; SLOTS.len()])
    }

    /// Lets the event of `slot` happen at `at`; it replaces what stood there.
    pub fn set(&mut self, slot: Slot, at: u64) {
        self.0[slot as usize] = at;
    }

    /// When the event of `slot` is due.
    pub fn at(&self, slot: Slot) -> u64 {
        self.0[slot as usize]
    }

    /// Takes the next event.
    pub fn pop(&mut self) -> Option<(u64, Slot)> {
        let (mut first, mut at) = (0, self.0[0]);
        for (place, due) in self.0.iter().enumerate().skip(1) {
            if *due < at {
                (first, at) = (place, *due);
            }
        }
        if at == NEVER {
            return None;
        }
        self.0[first] = NEVER;
        Some((at, SLOTS[first]))
    }
}
