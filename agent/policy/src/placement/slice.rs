//! What a node recorded about itself in one sample (`slice`), as far as placement needs it.
//!
//! All values only grow by addition, and nothing is allocated after the start, so the agent's control thread can keep
//! them. Counts are whole numbers: samples in another order, or divided otherwise, have the same sum.

use crate::ids::{Bytes, GpuId, GpuSet};

/// Sets of open gates that are told apart: all of those of eight GPUs.
pub const MAX_SETS: usize = 256;
/// Levels of memory that are told apart, each an eighth of the pool.
pub const LEVELS: usize = 8;

/// For how long exactly which gates were open.
///
/// The time in which a set of GPUs could run together is the sum over its supersets ([`OpenSets::together`]): exact for
/// any number of GPUs, where a score of pairs is not. A set beyond the first [`MAX_SETS`] has no row: its time is
/// *dropped*, and counts as closed. So what is said of open time is never too much.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpenSets {
    /// By set, each once, in order.
    rows: Vec<(GpuSet, u64)>,
    unknown: u64,
}

impl Default for OpenSets {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenSets {
    /// Nothing seen; room for all rows there will be.
    #[must_use]
    pub fn new() -> Self {
        Self {
            rows: Vec::with_capacity(MAX_SETS),
            unknown: 0,
        }
    }

    /// Exactly the gates of `open` were open for `ns`. Time with all of them closed needs no row.
    pub fn add(&mut self, open: GpuSet, ns: u64) {
        if open == GpuSet::EMPTY || ns == 0 {
            return;
        }
        match self.rows.binary_search_by_key(&open, |row| row.0) {
            Ok(at) => self.rows[at].1 = self.rows[at].1.saturating_add(ns),
            Err(at) if self.rows.len() < MAX_SETS => self.rows.insert(at, (open, ns)),
            Err(_) => self.add_unknown(ns),
        }
    }

    /// Some gates were open for `ns`, and nobody knows which.
    pub fn add_unknown(&mut self, ns: u64) {
        self.unknown = self.unknown.saturating_add(ns);
    }

    /// The sets, each with its time in ns, in order.
    #[must_use]
    pub fn rows(&self) -> &[(GpuSet, u64)] {
        &self.rows
    }

    /// Time with gates open of which nobody knows which, ns.
    #[must_use]
    pub const fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Time in which every gate of `gpus` was open, ns: at least that, if any was dropped. Of no GPU: none.
    #[must_use]
    pub fn together(&self, gpus: GpuSet) -> u64 {
        if gpus == GpuSet::EMPTY {
            return 0;
        }
        let over = self
            .rows
            .iter()
            .filter(|row| gpus.minus(row.0) == GpuSet::EMPTY);
        over.fold(0, |sum, row| sum.saturating_add(row.1))
    }

    /// What was seen since `earlier`, an older state of the same totals. Rows never go, so each has its row here.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut slice = Self::new();
        for &(open, ns) in &self.rows {
            let before = earlier.rows.binary_search_by_key(&open, |row| row.0);
            let before = before.map_or(0, |at| earlier.rows[at].1);
            slice.add(open, ns.saturating_sub(before));
        }
        slice.add_unknown(self.unknown.saturating_sub(earlier.unknown));
        slice
    }

    /// Only the `most` sets that lasted longest; the others are dropped. What a record has room for.
    #[must_use]
    pub fn longest(&self, most: usize) -> Self {
        let mut rows = self.rows.clone();
        rows.sort_by_key(|&(open, ns)| (core::cmp::Reverse(ns), open));
        let mut kept = Self::new();
        kept.add_unknown(self.unknown);
        for (place, (open, ns)) in rows.into_iter().enumerate() {
            if place < most {
                kept.add(open, ns);
            } else {
                kept.add_unknown(ns);
            }
        }
        kept
    }
}

/// Time at one level of memory, and how much there was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level {
    /// So long, ns.
    pub ns: u64,
    /// Sum of bytes times ns: over [`Level::ns`] it is the mean.
    pub byte_ns: u128,
}

impl Level {
    /// So long at this mean.
    #[must_use]
    pub fn of(ns: u64, mean: Bytes) -> Self {
        Self {
            ns,
            byte_ns: u128::from(ns) * u128::from(mean.0),
        }
    }

    /// The mean; none without time.
    #[must_use]
    pub fn mean(&self) -> Bytes {
        let mean = self.byte_ns.checked_div(u128::from(self.ns)).unwrap_or(0);
        Bytes(u64::try_from(mean).unwrap_or(u64::MAX))
    }
}

/// Memory of one GPU that offline may have while its gate is open: the pool without what online uses or keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Available {
    /// What both share. Zero: they share nothing.
    pub pool: Bytes,
    /// Open time by level: the first up to an eighth of the pool, and so on. A mean lies within its level.
    pub levels: [Level; LEVELS],
    /// By how much it fell, all falls together, with the gate open or closed: what offline had there is lost.
    pub fallen: Bytes,
}

impl Available {
    /// Nothing seen of a pool of this size.
    #[must_use]
    pub fn of(pool: Bytes) -> Self {
        Self {
            pool,
            ..Self::default()
        }
    }

    /// The level of `available` bytes.
    #[must_use]
    pub fn level(pool: Bytes, available: Bytes) -> usize {
        let eighths = u128::from(available.0) * LEVELS as u128;
        let level = eighths.checked_div(u128::from(pool.0)).unwrap_or(0);
        usize::try_from(level).map_or(LEVELS - 1, |level| level.min(LEVELS - 1))
    }

    /// The gate was open for `ns`, and offline might have had `available`; of more than the pool, the pool.
    pub fn add(&mut self, available: Bytes, ns: u64) {
        let available = available.min(self.pool);
        let level = &mut self.levels[Self::level(self.pool, available)];
        level.ns = level.ns.saturating_add(ns);
        level.byte_ns += u128::from(ns) * u128::from(available.0);
    }

    /// What there is went from `before` to `after`; only a fall counts.
    pub fn moved(&mut self, before: Bytes, after: Bytes) {
        self.fallen = self.fallen.plus(before.minus(after));
    }

    /// What was seen since `earlier`, an older state of the same totals.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            pool: self.pool,
            levels: core::array::from_fn(|at| Level {
                ns: self.levels[at].ns.saturating_sub(earlier.levels[at].ns),
                byte_ns: self.levels[at]
                    .byte_ns
                    .saturating_sub(earlier.levels[at].byte_ns),
            }),
            fallen: self.fallen.minus(earlier.fallen),
        }
    }
}

/// One GPU in one slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuSlice {
    /// Which.
    pub gpu: GpuId,
    /// Times its gate opened.
    pub openings: u32,
    /// Its memory; `None`: it is not shared.
    pub available: Option<Available>,
}

/// One node in one slice. Slices are told apart and put in order by their number, never by a clock.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slice {
    /// Grows over the life of the history.
    pub number: u64,
    /// Its length, ns.
    pub length_ns: u64,
    /// Which gates were open.
    pub open: OpenSets,
    /// Its GPUs, in any order; each once.
    pub gpus: Vec<GpuSlice>,
}

impl Slice {
    /// What it says of `gpu`.
    #[must_use]
    pub fn gpu(&self, gpu: GpuId) -> Option<&GpuSlice> {
        self.gpus.iter().find(|own| own.gpu == gpu)
    }
}
