//! Monotonic time as a plain number, so that tests and simulations can invent it.
//!
//! Durations are [`core::time::Duration`]. Arithmetic saturates: a time that a hostile process wrote may be anything,
//! and a decision must be possible nevertheless.

use core::time::Duration;

/// A moment of `CLOCK_MONOTONIC`, or of a simulation, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// Later than every moment that happens.
    pub const NEVER: Self = Self(u64::MAX);

    /// The moment `ns` nanoseconds after the clock's zero.
    #[must_use]
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }

    /// Nanoseconds since the clock's zero.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The moment `span` later.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }

    /// Time passed since `earlier`; zero if that lies ahead.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A span as nanoseconds; five centuries and more are all the same.
#[must_use]
pub fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
