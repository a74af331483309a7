//! An event behind what a thread launched into its own default stream.
//!
//! Only the thread itself can query its own default stream. A thread that has ended, or that waits for its next work,
//! never does, and its device would count as busy for ever. So the thread records an event behind each launch into that
//! stream, and any thread can query the event.
//!
//! ```text
//! the thread                              another thread
//!   counts the launch, launches             reads how many it launched
//!   records the event                       is the event behind as many? no: in doubt
//!   says how many it is behind              asks it: done? as many are seen done
//! ```
//!
//! If the event is recorded again meanwhile, it is behind more launches, and is done later.

use crate::word::Word;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The event of a thread; all zero: there is none yet. The thread writes it.
#[derive(Debug, Default)]
pub struct Witness<W> {
    event: W,
    context: W,
    /// Launches that it is behind.
    covers: W,
}

/// An event, and its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The driver's handle.
    pub handle: u64,
    /// That of its context.
    pub context: u64,
}

impl<W: Word> Witness<W> {
    /// The event that there is.
    pub fn event(&self) -> Option<Event> {
        let handle = self.event.load(Relaxed);
        let context = self.context.load(Relaxed);
        (handle != 0).then_some(Event { handle, context })
    }

    /// Another takes its place.
    pub fn set(&self, event: Event) {
        self.covers.store(0, Release);
        self.context.store(event.context, Relaxed);
        self.event.store(event.handle, Relaxed);
    }

    /// The event was recorded behind so many launches; 0: behind none of the next thread's.
    pub fn covers(&self, launched: u64) {
        self.covers.store(launched, Release);
    }

    /// The event, if it is behind so many launches.
    pub fn of(&self, launched: u64) -> Option<Event> {
        let covers = self.covers.load(Acquire);
        self.event().filter(|_| covers >= launched)
    }
}
