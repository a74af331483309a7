//! The event queue of a virtual-time run.
//!
//! Invariant: events leave in order of time, and events of one instant in the order in which they
//! were scheduled. The second half is what makes a run a function of its seed: a plain heap gives
//! ties back in an order that depends on everything scheduled before.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::clock::Time;

/// Events not yet due, and the instant the run has reached.
#[derive(Debug)]
pub struct EventQueue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    scheduled: u64,
    now: Time,
}

#[derive(Debug)]
struct Entry<E> {
    at: Time,
    number: u64,
    event: E,
}

impl<E> EventQueue<E> {
    /// An empty queue at the start of time.
    #[must_use]
    pub fn new() -> Self {
        Self {
            heap: BinaryHeap::new(),
            scheduled: 0,
            now: Time::ZERO,
        }
    }

    /// Lets `event` happen at `at`, or at once if that has passed.
    pub fn schedule(&mut self, at: Time, event: E) {
        let entry = Entry {
            at: at.max(self.now),
            number: self.scheduled,
            event,
        };
        self.scheduled += 1;
        self.heap.push(Reverse(entry));
    }

    /// Takes the next event and moves to its instant.
    pub fn pop(&mut self) -> Option<(Time, E)> {
        let Reverse(entry) = self.heap.pop()?;
        self.now = entry.at;
        Some((entry.at, entry.event))
    }

    /// The instant of the last event taken.
    #[must_use]
    pub fn now(&self) -> Time {
        self.now
    }

    /// Events not yet due.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether nothing is left to happen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn events_leave_by_time_and_ties_as_scheduled(times in prop::collection::vec(0u64..50, 0..200)) {
            let mut queue = EventQueue::new();
            for (number, at) in times.iter().enumerate() {
                queue.schedule(Time(*at), number);
            }
            let mut last = None;
            let mut seen = 0;
            while let Some((at, number)) = queue.pop() {
                prop_assert_eq!(at, Time(times[number]));
                prop_assert!(last < Some((at, number)), "{:?} then {:?}", last, (at, number));
                last = Some((at, number));
                seen += 1;
            }
            prop_assert_eq!(seen, times.len());
        }
    }

    #[test]
    fn time_never_runs_backwards() {
        let mut queue = EventQueue::new();
        queue.schedule(Time(10), 'a');
        assert_eq!(queue.pop(), Some((Time(10), 'a')));
        queue.schedule(Time(3), 'b');
        assert_eq!(queue.pop(), Some((Time(10), 'b')));
        assert_eq!(queue.now(), Time(10));
    }
}
