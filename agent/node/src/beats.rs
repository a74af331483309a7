//! Reads the page on which an online process reports its iterations, and makes events for leases of it.
//!
//! The process makes that page and is a tenant, so every word of it may hold anything at any time. The agent tries a
//! reading a few times and then waits for the next ring. It bounds times by its own clock, and counts by what a lease
//! policy keeps. A count that goes back starts anew.
//!
//! [`Follower`] turns the iterations of one device into what [`tidegate_policy::lease`] learns from. A live engine does
//! not report everything. It reports how many requests decode and wait, but not which. So the agent numbers the
//! requests, and assumes that the request that has decoded longest is the one that ended. While online keeps its pace,
//! that request is furthest ahead of its promise, so the error favours online. The agent does not know either how long
//! online waited because of a lease, and counts zero. If an engine does not report how many requests decode, each
//! single iteration has to keep the promise.

use crate::clock::ProcessClock;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use tidegate_abi::beats::{BATCH_KNOWN, BeatPage, BeatWords};
use tidegate_policy::lease::event::{Event, Iteration};

/// Memory that holds such a page.
pub trait BeatMemory: fmt::Debug + Send + Sync {
    /// The page.
    fn page(&self) -> &BeatPage;
}

/// The page of one process, mapped to be read only.
#[derive(Clone, Debug)]
pub struct BeatRef(Arc<dyn BeatMemory>);

impl BeatRef {
    /// The page in `memory`.
    #[must_use]
    pub fn new(memory: impl BeatMemory + 'static) -> Self {
        Self(Arc::new(memory))
    }
}

impl std::ops::Deref for BeatRef {
    type Target = BeatPage;

    fn deref(&self) -> &BeatPage {
        self.0.page()
    }
}

/// Readings of the words of one device that are tried while their writer writes.
const TRIES: usize = 4;
/// Longest iteration that is believed, ns.
const LONGEST_NS: u64 = 60_000_000_000;
/// Iterations that may be missed between two looks; beyond, what was known of requests is forgotten.
const MISSED: u64 = 64;
/// Requests that are followed on one device.
const FOLLOWED: usize = 1_024;

/// The last iteration that ended, as its process says. Times are of the agent's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beat {
    /// Iterations so far.
    pub count: u64,
    /// When it began.
    pub begin_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// Of its shape.
    pub fingerprint: u64,
    /// Requests that decoded in it, if the engine says so.
    pub batch: Option<u32>,
    /// Cached tokens of those.
    pub cached: u64,
    /// Prompt tokens that it read.
    pub prompt: u32,
    /// Prompt tokens that wait.
    pub waiting_tokens: u32,
    /// Requests that wait.
    pub waiting: u32,
}

impl Beat {
    /// What the words of a device say; None: no iteration has ended, or they were being written.
    #[must_use]
    pub fn read(words: &BeatWords, clock: ProcessClock, now: u64) -> Option<Self> {
        let small = |word: u64| u32::try_from(word).unwrap_or(u32::MAX);
        for _ in 0..TRIES {
            let version = words.version.load(Ordering::Acquire);
            if version & 1 != 0 {
                continue;
            }
            let load = |word: &std::sync::atomic::AtomicU64| word.load(Ordering::Relaxed);
            let batch = load(&words.batch);
            let end_ns = clock.here(load(&words.end_ns)).min(now);
            let begin_ns = clock.here(load(&words.begin_ns)).min(end_ns);
            let beat = Self {
                count: load(&words.count),
                begin_ns: begin_ns.max(end_ns.saturating_sub(LONGEST_NS)),
                end_ns,
                fingerprint: load(&words.fingerprint),
                batch: (batch & BATCH_KNOWN != 0).then(|| small(batch & !BATCH_KNOWN)),
                cached: load(&words.cached).min(u64::from(u32::MAX)),
                prompt: small(load(&words.prompt)),
                waiting_tokens: small(load(&words.waiting_tokens)),
                waiting: small(load(&words.waiting)),
            };
            fence(Ordering::Acquire);
            if words.version.load(Ordering::Relaxed) == version {
                return (beat.count != 0 && beat.end_ns != 0).then_some(beat);
            }
        }
        None
    }

    fn iteration(&self) -> Iteration {
        Iteration {
            fingerprint: self.fingerprint,
            batch: self.batch.unwrap_or(1),
            cached: self.cached,
            prompt: self.prompt,
        }
    }
}

/// A request that decodes.
#[derive(Clone, Copy, Debug)]
struct Joined {
    request: u64,
    /// Its first token, ns.
    at_ns: u64,
    /// Iterations before it.
    steps: u64,
    ttft_ns: u64,
}

/// What is known of online on one device of one process.
#[derive(Debug, Default)]
pub struct Follower {
    last: Option<Beat>,
    /// Of the last iteration that read no prompt.
    decode: u64,
    /// In the order of their first tokens.
    joined: VecDeque<Joined>,
    /// Those without one: which, and when they came.
    waiting: VecDeque<(u64, u64)>,
    /// The next request's number: unlike that of any other process.
    next: u64,
    steps: u64,
}

impl Follower {
    /// Of a device of `session`.
    #[must_use]
    pub fn new(session: u64) -> Self {
        Self {
            next: session << 32,
            ..Self::default()
        }
    }

    /// The count of the last iteration heard.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.last.map_or(0, |beat| beat.count)
    }

    /// Whether its engine says how many requests decode.
    #[must_use]
    pub fn knows_batch(&self) -> bool {
        self.last.is_some_and(|beat| beat.batch.is_some())
    }

    /// How many requests its engine says are in flight.
    pub fn in_flight(&mut self, flight: u64, now: u64, out: &mut Vec<Event>) {
        let known = (self.joined.len() + self.waiting.len()) as u64;
        let room = (FOLLOWED as u64).min(flight).saturating_sub(known);
        for _ in 0..room {
            self.arrived(now, out);
        }
    }

    /// An iteration ended; what comes next, unless nothing does. `flight`: requests in flight, where the engine says so.
    pub fn hear(
        &mut self,
        beat: Beat,
        flight: Option<u64>,
        now: u64,
        out: &mut Vec<Event>,
    ) -> Option<Iteration> {
        let before = self.last.replace(beat);
        let missed = before.and_then(|before| beat.count.checked_sub(before.count + 1));
        if before.is_some() && missed.is_none_or(|missed| missed > MISSED) {
            self.end(now, out);
        }
        let missed = missed.filter(|missed| *missed <= MISSED);
        if beat.prompt == 0 {
            self.decode = beat.fingerprint;
        }
        match beat.batch {
            Some(batch) => self.told(beat, before, (batch, flight), missed, now, out),
            None => self.untold(beat, before, missed, now, out),
        }
        if self.joined.is_empty() && self.waiting.is_empty() && beat.waiting_tokens == 0 {
            return None;
        }
        let decode = u32::try_from(self.joined.len()).unwrap_or(u32::MAX);
        // Who came and is not in the engine's list yet is read next, too.
        let waits = self.waiting.len() > beat.waiting as usize;
        Some(Iteration {
            fingerprint: self.decode,
            batch: decode,
            cached: beat.cached.saturating_add(u64::from(decode)),
            prompt: beat.waiting_tokens.max(u32::from(waits)),
        })
    }

    /// It is gone, or nothing is known of it any more.
    pub fn end(&mut self, now: u64, out: &mut Vec<Event>) {
        while self.first(now, out) {}
        while self.leave(now, out) {}
    }

    fn told(
        &mut self,
        beat: Beat,
        before: Option<Beat>,
        (batch, flight): (u32, Option<u64>),
        missed: Option<u64>,
        now: u64,
        out: &mut Vec<Event>,
    ) {
        let decoded = (batch as usize).min(FOLLOWED);
        self.in_flight(
            flight.unwrap_or(u64::from(batch) + u64::from(beat.waiting)),
            now,
            out,
        );
        // Who decoded before and did not in this one has had its last token.
        while self.joined.len() > decoded && self.leave(beat.begin_ns, out) {}
        self.beat(beat, before, missed, out);
        // Those whose first token nobody saw have one more by now; to count them from here on is to online's side.
        while self.joined.len() < decoded {
            if self.waiting.is_empty() {
                self.arrived(now, out);
            }
            self.first(now, out);
        }
        if beat.prompt > 0 && beat.waiting_tokens == 0 {
            while self.waiting.len() > beat.waiting as usize && self.first(now, out) {}
        }
        if let Some(flight) = flight {
            let decode = usize::try_from(flight).unwrap_or(usize::MAX);
            let decode = decode.saturating_sub(self.waiting.len());
            while self.joined.len() > decode && self.leave(beat.end_ns, out) {}
            // Who is in flight no longer and never decoded was given up.
            while self.joined.is_empty() && flight == 0 && self.first(now, out) {
                self.leave(now, out);
            }
        }
    }

    /// Its engine says nothing of requests: every iteration is a request of one token, which has to keep the pace.
    fn untold(
        &mut self,
        beat: Beat,
        before: Option<Beat>,
        missed: Option<u64>,
        now: u64,
        out: &mut Vec<Event>,
    ) {
        self.beat(beat, before, missed, out);
        while self.leave(beat.end_ns, out) {}
        self.arrived(now, out);
        self.first(now, out);
    }

    fn beat(
        &mut self,
        beat: Beat,
        before: Option<Beat>,
        missed: Option<u64>,
        out: &mut Vec<Event>,
    ) {
        let took_ns = beat.end_ns - beat.begin_ns;
        let idle = self.joined.is_empty() && self.waiting.is_empty();
        let gap = before.filter(|_| !idle && missed.is_some());
        // Of those that nobody saw only that they were is known.
        let unseen = missed.unwrap_or(0);
        let interval_ns = gap.map_or(took_ns, |before| {
            beat.end_ns.saturating_sub(before.end_ns) / (unseen + 1)
        });
        if let (Some(before), Some(0)) = (before, missed) {
            out.push(Event::Returned {
                idle_ns: beat.begin_ns.saturating_sub(before.end_ns),
                gap: gap.is_some(),
                delayed_ns: 0,
            });
        }
        let event = |took_ns| Event::Beat {
            iteration: beat.iteration(),
            took_ns,
            interval_ns,
            delayed_ns: 0,
        };
        out.extend((0..unseen).map(|_| event(0)));
        out.push(event(took_ns));
        self.steps += unseen + 1;
    }

    fn arrived(&mut self, now: u64, out: &mut Vec<Event>) {
        let request = self.next;
        self.next += 1;
        self.waiting.push_back((request, now));
        out.push(Event::Arrived { request });
    }

    /// The oldest that waits has its first token.
    fn first(&mut self, now: u64, out: &mut Vec<Event>) -> bool {
        let Some((request, came)) = self.waiting.pop_front() else {
            return false;
        };
        let ttft_ns = now.saturating_sub(came);
        self.joined.push_back(Joined {
            request,
            at_ns: now,
            steps: self.steps,
            ttft_ns,
        });
        out.push(Event::First { request, ttft_ns });
        true
    }

    /// The one that decodes longest has its last token.
    fn leave(&mut self, at: u64, out: &mut Vec<Event>) -> bool {
        let Some(joined) = self.joined.pop_front() else {
            return false;
        };
        let tokens = self.steps - joined.steps;
        let took = at.saturating_sub(joined.at_ns);
        out.push(Event::Ended {
            request: joined.request,
            ttft_ns: joined.ttft_ns,
            tpot_ns: took.checked_div(tokens).unwrap_or(0),
        });
        true
    }
}

#[cfg(test)]
mod tests;
