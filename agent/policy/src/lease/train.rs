//! What an engine's own process trains between two of its steps: which unit, of how many rows, and whether another sample
//! begins to ride.
//!
//! A *unit* is asked for one at a time, right before it would run. What it takes is learnt from the run, by its kind and
//! its rows.
//!
//! ```text
//!   a sample begins   while the tokens of all that have begun stay within the limit
//!   a prompt waits    no unit
//!   users decode      units as long as their tails fit into what was left at the end of the step; strict: none
//!   no user runs      from the idle age on from which a return is worth a unit's delay, see [`Leaser::from`]
//!   users need blocks the sample whose keys and values are needed last gives its own
//!   rows              the most whose tail fits, and no more than twice what was seen; a fixed window: all of it, or none
//! ```

use super::Leaser;
use super::ride::Ride;
use crate::words::lease::{Event, Key, Kind};

/// Kinds of units.
const KINDS: usize = 5;
/// Rows of a unit while nothing is known of its kind; by kind, the first is none. Those of a layer's backward pass and of
/// the loss are tokens; those of the optimizer are layers; a publication is one. Ours.
const LEAST: [u32; KINDS] = [1, 64, 64, 1, 1];
/// Rows of a unit at most, as [`LEAST`]: what it needs beside grows with them, for the loss with the vocabulary. Ours.
const MOST: [u32; KINDS] = [1, 256, 2_048, 1_024, 1];
/// A number of rows above this is not one.
pub const LARGEST: u32 = 1 << 24;
/// Rows of a unit, of what a unit of its kind had at most.
const GROWTH: u32 = 2;

/// How training is bounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Rules {
    /// Tokens of each piece of a sample, forward and backward; 0: what fits.
    pub chunk: u32,
    /// Tokens of samples that have begun and are not over.
    pub activations: u32,
    /// 1: no unit while a user's request decodes or waits.
    pub strict: u32,
    /// Zero.
    pub reserved: u32,
}

/// What the next step holds, and what could be trained before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Between {
    /// Now, ns.
    pub now_ns: u64,
    /// Cached tokens of the users that decode.
    pub users_cached: u64,
    /// Users that decode.
    pub users: u32,
    /// Users whose prompt waits, or is being read.
    pub prompts: u32,
    /// Tokens of samples that have begun and are not over.
    pub held: u32,
    /// Tokens of the sample that could begin next; 0: there is none.
    pub next: u32,
    /// The kind of the unit that could run next: 1, rows of the loss; 2, rows of a layer backward; 3, layers of an
    /// optimizer's step; 4, a publication; 0: there is none.
    pub kind: u32,
    /// Rows that are left of it.
    pub left: u32,
}

/// What may be trained before the next step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Granted {
    /// In an engine that nobody uses: after so long it is worth asking again, ns; 0: nothing changes by itself.
    pub wait_ns: u64,
    /// 1: the sample begins.
    pub begins: u32,
    /// Rows of the unit; 0: it does not run.
    pub rows: u32,
}

/// A sample whose keys and values are in blocks of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Held {
    /// Tokens whose backward pass of the same job comes first; 0: it is under way.
    pub before: u32,
    /// Its own tokens.
    pub tokens: u32,
}

/// Which sample gives its blocks to a user's request: the one that is needed last, and of several the largest, since each
/// is copied to the host as a whole. Its place, or nothing where none holds any.
#[must_use]
pub fn leaves(held: &[Held]) -> Option<usize> {
    let last = held.iter().enumerate();
    last.max_by_key(|(_, sample)| (sample.before, sample.tokens))
        .map(|(place, _)| place)
}

/// A unit that is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Ran {
    /// What it took, ns.
    pub ns: u64,
    /// As of [`Between`].
    pub kind: u32,
    /// Its rows.
    pub rows: u32,
}

/// What was learnt of units, and what is left of the time between two steps.
#[derive(Clone, Debug, Default)]
pub struct Training {
    rules: Rules,
    /// Rows of a unit at most, by kind.
    seen: [u32; KINDS],
    /// What users' promise leaves before the next step, ns; nothing: it was not asked for since the last step.
    left: Option<f64>,
    idle_since: Option<u64>,
}

/// Its place among the records: units of up to twice the rows share one.
const fn key(kind: usize, rows: u32) -> Key {
    Key {
        fingerprint: rows.next_power_of_two() as u64 | (kind as u64) << 32,
        kind: match kind {
            1 => Kind::Forward,
            2 => Kind::Backward,
            _ => Kind::Optimizer,
        },
    }
}

impl Training {
    /// By these rules from now on.
    pub const fn bound(&mut self, rules: Rules) {
        self.rules = rules;
    }

    /// A step is over: what its users have left is asked for anew.
    pub const fn stepped(&mut self) {
        self.left = None;
    }

    /// What may be trained.
    pub fn grant(&mut self, ask: &Between, ride: &mut Ride) -> Granted {
        let begins = ask.next > 0 && ask.held.saturating_add(ask.next) <= self.rules.activations;
        let (rows, wait_ns) = self.unit(ask, ride);
        Granted {
            wait_ns,
            begins: u32::from(begins),
            rows,
        }
    }

    /// Rows of the unit, or how long to wait.
    fn unit(&mut self, ask: &Between, ride: &mut Ride) -> (u32, u64) {
        let users = ask.users > 0 || ask.prompts > 0;
        let since = *self.idle_since.get_or_insert(ask.now_ns);
        if users {
            self.idle_since = None;
        }
        let kind = ask.kind as usize;
        if kind == 0 || kind >= KINDS || ask.left == 0 {
            return (0, 0);
        }
        if !users {
            self.left = None;
            let age = ask.now_ns.saturating_sub(since);
            return self.idle(ask, kind, age, ride.leaser());
        }
        if ask.prompts > 0 || self.rules.strict != 0 {
            return (0, 0);
        }
        let left = *self
            .left
            .get_or_insert_with(|| ride.left(ask.users, ask.users_cached, ask.now_ns));
        if left <= 0.0 {
            return (0, 0);
        }
        (self.rows(ride.leaser(), kind, ask.left, left), 0)
    }

    /// Nobody waits, but somebody may come in the midst of a unit: half of it on average.
    fn idle(&self, ask: &Between, kind: usize, age: u64, leaser: &mut Leaser) -> (u32, u64) {
        let most = leaser.may_delay(false) as f64 * 2.0;
        let rows = self.rows(leaser, kind, ask.left, most);
        // The least there is, whatever it takes: where nothing runs nothing better is learnt either.
        let rows = if rows == 0 {
            self.least(kind).min(ask.left)
        } else {
            rows
        };
        leaser.config.gate_ns = self.took(leaser, kind, rows) / 2;
        match leaser.from(false) {
            Some(from) if age >= from => (rows, 0),
            Some(from) => (0, from - age),
            None => (0, 0),
        }
    }

    const fn least(&self, kind: usize) -> u32 {
        if self.fixed(kind) {
            self.rules.chunk
        } else {
            LEAST[kind]
        }
    }

    /// Whether its rows are tokens, and the window is fixed.
    const fn fixed(&self, kind: usize) -> bool {
        self.rules.chunk > 0 && kind <= 2
    }

    /// The most rows whose tail is within `most_ns`. What was never seen is allowed where it is the least there is.
    fn rows(&self, leaser: &Leaser, kind: usize, left: u32, most_ns: f64) -> u32 {
        let least = self.least(kind);
        let mut found = 0;
        let mut rows = least;
        loop {
            let now = rows.min(left);
            let ns = self.took(leaser, kind, now);
            if ns as f64 > most_ns || (ns == 0 && now > least) {
                break;
            }
            found = now;
            let larger = rows.saturating_mul(2);
            let seen = self.seen[kind].saturating_mul(GROWTH);
            if self.fixed(kind) || now == left || larger > seen || larger > MOST[kind] {
                break;
            }
            rows = larger;
        }
        found
    }

    /// What a unit takes at its tail, ns; of one that was not seen, in proportion to the next smaller one; 0: nothing is
    /// known.
    fn took(&self, leaser: &Leaser, kind: usize, rows: u32) -> u64 {
        let mut place = rows.next_power_of_two();
        let mut times = 1;
        let least = self.least(kind).next_power_of_two().min(place);
        loop {
            let record = leaser.records.peek(key(kind, place));
            let ns = record.map_or(0, |took| took.p95 as u64);
            if ns > 0 || place <= least {
                return ns.saturating_mul(times);
            }
            place /= 2;
            times *= 2;
        }
    }

    /// A unit is over.
    pub fn ran(&mut self, ran: &Ran, ride: &mut Ride) {
        let kind = ran.kind as usize;
        if kind == 0 || kind >= KINDS || ran.rows == 0 {
            return;
        }
        self.seen[kind] = self.seen[kind].max(ran.rows);
        let place = ran.rows.next_power_of_two();
        // Far fewer rows than the place is of say too little of it.
        if u64::from(ran.rows) * 4 >= u64::from(place) * 3 || ran.rows <= self.least(kind) {
            let event = Event::Unit {
                key: key(kind, ran.rows),
                ns: ran.ns,
            };
            ride.leaser().step(&event, 0);
        }
        if let Some(left) = &mut self.left {
            *left -= ran.ns as f64;
            ride.spent(ran.ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_that_is_needed_last_leaves_and_of_several_the_largest() {
        let held = |before, tokens| Held { before, tokens };
        assert_eq!(leaves(&[]), None);
        assert_eq!(leaves(&[held(0, 900)]), Some(0));
        assert_eq!(leaves(&[held(0, 900), held(900, 10), held(0, 50)]), Some(1));
        assert_eq!(leaves(&[held(70, 10), held(70, 30), held(70, 20)]), Some(1));
    }
}
