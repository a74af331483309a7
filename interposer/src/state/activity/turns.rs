//! Iterations that follow each other so closely that the prober sees no idle time between them.
//!
//! An iteration (`turn`) ends where a call returns that waits for the GPU, if a graph was launched since the iteration
//! before. In this way an engine reads the tokens of a decode step before the next step, or while it runs. The thread
//! that waits need not be the one that launches. Each round of the prober reads how many iterations ended since its
//! last round. The idle time between two of them was shorter than the time between the rounds; otherwise one of the two
//! rounds would have seen it. Rounds further apart than [`MOST_APART`] times the prober's period say nothing.

use super::slots::{self, Slot};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use tidegate_abi::page::{MemoryWords, NO_GRAPH};

/// Rounds that are this many periods apart still count: the sleep between them is rounded up, and what they ask takes time.
const MOST_APART: u64 = 2;
/// Set in a slot's graph that a turn has counted. No address of a program's has it.
pub const COUNTED: u64 = 1 << 63;
/// Slots of other threads that are looked through for a graph.
const OTHERS: usize = 64;

/// Turns of one device, since the process uses it.
#[repr(align(64))]
#[derive(Debug, Default)]
pub struct Turns {
    /// How many ended.
    ended: AtomicU64,
    /// Launches of the busy period up to its first turn; 0: none ended. [`NO_GRAPH`]: what it began with was read
    /// before a graph was launched.
    first: AtomicU64,
    /// Launches before the busy period.
    before: AtomicU64,
}

/// Marks the slot's graph as counted. Says whether it was not. Loses against a launch, which stores.
fn take(slot: &Slot) -> bool {
    let graph = slot.graph.load(Relaxed);
    graph != 0
        && graph & COUNTED == 0
        && (slot.graph)
            .compare_exchange(graph, graph | COUNTED, Relaxed, Relaxed)
            .is_ok()
}

/// Whether a graph was launched to `device` since the turn before: by the thread with the slot `own`, which waited,
/// since who launches graphs itself is who reads what they compute; else by any other.
pub fn is_due(device: usize, own: Option<&Slot>) -> bool {
    if let Some(slot) = own.filter(|slot| slot.graph.load(Relaxed) != 0) {
        return take(slot);
    }
    slots::all().is_some_and(|all| {
        let high = (all.high.load(Acquire) as usize).min(OTHERS);
        let mut own = all.own.iter().take(high);
        own.any(|slot| slot.device.load(Relaxed) as usize == device && take(slot))
    })
}

impl Turns {
    /// A call that waits for the GPU returned, with a turn or not; `launches` of the process so far, where they are known.
    pub fn returned(&self, turn: bool, launches: impl FnOnce() -> Option<u64>) {
        if self.first.load(Relaxed) == 0
            && let Some(launches) = launches()
        {
            let since = launches.wrapping_sub(self.before.load(Relaxed));
            if turn {
                self.first.store(since.max(1), Relaxed);
            } else if since != 0 {
                self.first.store(NO_GRAPH, Relaxed);
            }
        }
        if turn {
            self.ended.fetch_add(1, Release);
        }
    }
}

/// What the prober remembers of one device's turns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rounds {
    /// When the last round began that was sure of its answer; 0: none in this busy period.
    last: u64,
    /// Turns that had ended by then.
    ended: u64,
    /// Of this busy period, those that count.
    counted: u64,
    apart: u64,
}

impl Rounds {
    /// A round from `begun` to `over` is sure that the device is busy, or just became idle.
    pub fn sure(&mut self, turns: &Turns, begun: u64, over: u64, period: u64) {
        let ended = turns.ended.load(Acquire);
        let new = ended.wrapping_sub(self.ended);
        let apart = over.saturating_sub(self.last);
        if self.last != 0 && new > 0 && apart <= period.saturating_mul(MOST_APART) {
            self.counted += new;
            self.apart = self.apart.max(apart);
        }
        self.last = begun;
        self.ended = ended;
    }

    /// Writes what goes with an idle edge, before it is rung.
    pub fn show(&self, turns: &Turns, words: &MemoryWords) {
        words.turns.store(self.counted, Relaxed);
        words.apart_ns.store(self.apart, Relaxed);
        let first = turns.first.load(Relaxed);
        words.first_turn.store(first, Relaxed);
    }

    /// The busy period is over, with so many launches of the process so far.
    pub fn over(&mut self, turns: &Turns, launches: u64) {
        turns.before.store(launches, Relaxed);
        turns.first.store(0, Relaxed);
        *self = Self {
            ended: self.ended,
            ..Self::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: u64 = 500_000;

    #[test]
    fn only_turns_between_rounds_that_are_close_count() {
        let (turns, mut rounds) = (Turns::default(), Rounds::default());
        let mut at = 1_000_000;
        let mut round = |rounds: &mut Rounds, after: u64, ended: u64| {
            turns.ended.fetch_add(ended, Release);
            at += after;
            rounds.sure(&turns, at, at + 20_000, PERIOD);
        };
        round(&mut rounds, 0, 1);
        assert_eq!(rounds.counted, 0, "before the first round there is none");
        round(&mut rounds, 600_000, 2);
        round(&mut rounds, 5_000_000, 10);
        assert_eq!(
            (rounds.counted, rounds.apart),
            (2, 620_000),
            "a round that came late saw nothing of ten turns"
        );
        round(&mut rounds, 700_000, 0);
        assert_eq!(rounds.apart, 620_000, "no turn lies between these");
        let words = MemoryWords::default();
        rounds.show(&turns, &words);
        assert_eq!(words.turns.load(Relaxed), 2);
        rounds.over(&turns, 7);
        round(&mut rounds, 100_000, 5);
        assert_eq!(rounds.counted, 0, "idle time lay between these rounds");
        round(&mut rounds, 100_000, 1);
        assert_eq!((rounds.counted, rounds.apart), (1, 120_000));
    }
}
