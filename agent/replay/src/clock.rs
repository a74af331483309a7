//! Virtual time: nanoseconds since the start of a replay, as a number that is passed around.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// An instant of a replay, in nanoseconds since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The start of the replay.
    pub const ZERO: Self = Self(0);

    /// How long after `earlier` this is; nothing if it is before.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Seconds since the start.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        Duration::from_nanos(self.0).as_secs_f64()
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    /// Saturates: a replay ends long before the 584 years that fit.
    fn add(self, by: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

impl Sub<Duration> for Time {
    type Output = Self;

    fn sub(self, by: Duration) -> Self {
        Self(
            self.0
                .saturating_sub(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

impl From<Duration> for Time {
    fn from(since_start: Duration) -> Self {
        Self::ZERO + since_start
    }
}

impl fmt::Display for Time {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:.6} s", self.as_secs_f64())
    }
}
