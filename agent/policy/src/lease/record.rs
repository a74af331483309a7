//! How long units and iterations took, by their shape.
//!
//! This is LLMStation's record cache (section 4): a record serves a shape that was seen before, a prediction any other.
//! Here a record is a moving mean and a moving 95th percentile, because a promise is about the tail. The cache is
//! bounded: of the few records that share a place, the one that was unused for longest is replaced.
//!
//! Invariants: there are never more than [`RECORDS`]; nothing is allocated after the start; a hit reads one set of
//! [`WAYS`].

pub use crate::words::lease::{Key, Kind};

/// Records in all.
pub const RECORDS: usize = SETS * WAYS;
const SETS: usize = 64;
/// Records that share a place.
pub const WAYS: usize = 8;

/// Weight of a new value in the moving mean: half of it is from the last 14 values.
const WEIGHT: f64 = 0.05;
/// The quantile kept beside the mean.
const QUANTILE: f64 = 0.95;

/// What it took, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Took {
    /// Moving mean.
    pub mean: f64,
    /// Moving 95th percentile, never below the mean.
    pub p95: f64,
    /// Times it was seen.
    pub seen: u64,
}

/// A record, to be kept for a later cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// What it is of.
    pub key: Key,
    /// Moving mean, ns.
    pub mean_ns: u64,
    /// Mean distance from it, ns.
    pub spread_ns: u64,
    /// Moving 95th percentile, ns.
    pub p95_ns: u64,
    /// Times it was seen.
    pub seen: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    key: Key,
    mean: f64,
    /// Mean distance from the mean: the quantile moves in parts of it.
    spread: f64,
    p95: f64,
    seen: u64,
    used: u64,
}

impl Entry {
    fn add(&mut self, ns: f64) {
        self.seen += 1;
        if self.seen == 1 {
            (self.mean, self.p95) = (ns, ns);
            return;
        }
        // A plain mean until the moving one would be as slow.
        let weight = WEIGHT.max(1.0 / self.seen as f64);
        self.spread += weight * ((ns - self.mean).abs() - self.spread);
        self.mean += weight * (ns - self.mean);
        let step = self.spread.max(self.mean * 1e-3) * weight.max(2.0 * WEIGHT);
        if ns > self.p95 {
            self.p95 += step * QUANTILE;
        } else {
            self.p95 -= step * (1.0 - QUANTILE);
        }
    }

    fn took(&self) -> Took {
        Took {
            mean: self.mean,
            p95: self.p95.max(self.mean),
            seen: self.seen,
        }
    }
}

/// The cache.
#[derive(Clone, Debug)]
pub struct Records {
    entries: Box<[[Entry; WAYS]; SETS]>,
    clock: u64,
}

impl Default for Records {
    fn default() -> Self {
        Self {
            entries: Box::new([[Entry::default(); WAYS]; SETS]),
            clock: 0,
        }
    }
}

fn place(key: Key) -> usize {
    // The finaliser of splitmix64: neighbours in the key are strangers in the cache.
    let mut z = key.fingerprint ^ ((key.kind as u64) << 61);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) % SETS as u64) as usize
}

impl Records {
    /// It took `ns`; ignored unless that is above zero and finite.
    pub fn add(&mut self, key: Key, ns: f64) {
        if !(ns > 0.0 && ns.is_finite()) {
            return;
        }
        self.clock += 1;
        let set = &mut self.entries[place(key)];
        let known = set
            .iter()
            .position(|entry| entry.seen > 0 && entry.key == key);
        let at = known.unwrap_or_else(|| {
            let oldest = (0..WAYS).min_by_key(|at| set[*at].used).unwrap_or(0);
            set[oldest] = Entry {
                key,
                ..Entry::default()
            };
            oldest
        });
        set[at].used = self.clock;
        set[at].add(ns);
    }

    /// What it took before; nothing if it was never seen, or not for long.
    pub fn get(&mut self, key: Key) -> Option<Took> {
        self.clock += 1;
        let clock = self.clock;
        let set = &mut self.entries[place(key)];
        let entry = set
            .iter_mut()
            .find(|entry| entry.seen > 0 && entry.key == key)?;
        entry.used = clock;
        Some(entry.took())
    }

    /// What it took before, as [`Self::get`] says, for whoever only looks.
    #[must_use]
    pub fn peek(&self, key: Key) -> Option<Took> {
        let set = &self.entries[place(key)];
        let entry = set
            .iter()
            .find(|entry| entry.seen > 0 && entry.key == key)?;
        Some(entry.took())
    }

    /// Goes on from what an earlier cache knew, of a shape of which nothing was seen since. What is seen from here on
    /// soon outweighs it: it counts as `seen` times at most.
    pub fn restore(&mut self, known: &Known, seen: u64) {
        let sound = known.mean_ns > 0 && known.seen > 0;
        if !sound || self.peek(known.key).is_some() {
            return;
        }
        self.add(known.key, known.mean_ns as f64);
        let mut set = self.entries[place(known.key)].iter_mut();
        if let Some(entry) = set.find(|entry| entry.key == known.key) {
            entry.spread = known.spread_ns.min(known.mean_ns) as f64;
            entry.p95 = known.p95_ns.max(known.mean_ns) as f64;
            entry.seen = known.seen.min(seen);
        }
    }

    /// All of it.
    pub fn all(&self) -> impl Iterator<Item = Known> {
        let held = self.entries.iter().flatten().filter(|own| own.seen > 0);
        held.map(|own| Known {
            key: own.key,
            mean_ns: own.mean as u64,
            spread_ns: own.spread as u64,
            p95_ns: own.took().p95 as u64,
            seen: own.seen,
        })
    }

    /// Records held.
    #[must_use]
    pub fn len(&self) -> usize {
        let all = self.entries.iter().flatten();
        all.filter(|entry| entry.seen > 0).count()
    }

    /// Whether none is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
