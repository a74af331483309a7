//! Shares by timeslices: jobs of one GPU run at once, and the GPU divides its time among their channel groups (TSGs).
//!
//! ```text
//!   a group of job j keeps the GPU for    t  =  base x (W / g) / (least W / g of those beside it)
//!   W   the job's part: its weight among its user's jobs that do not rest, times the user's weight
//!   g   groups that compute of its processes that do not rest
//! ```
//!
//! In one round, job j gets g times t. So W alone decides, whatever number of processes or groups a job has. A job that
//! rests loses nothing, because the GPU passes over a group without work. So weights are divided anew only when a job
//! or a process has rested for [`RESTS`], and the driver is called only when the wanted timeslices have not changed for
//! [`SETTLES`].

use crate::time::{Instant, nanos};
use crate::words::terms::Lacks;
use core::time::Duration;

/// What a group has beside others if weights allow: two groups switch in about 60 us (context save and load, as measured
/// elsewhere on an A100), so that costs one per cent.
pub const USUAL: Duration = Duration::from_millis(5);
/// Least that a group is given where weights lie far apart: switching costs six per cent of it.
pub const SHORTEST: Duration = Duration::from_millis(1);
/// Most that a group is given: the longest that was seen to be set (`GPreempt`, 1,000,000 us).
pub const LONGEST: Duration = Duration::from_secs(1);
/// What is wanted must have stood for so long: a context makes its groups one after the other, and CUDA sets timeslices
/// of its own at the end of that.
pub const SETTLES: Duration = Duration::from_millis(200);
/// A job or process without work for so long takes no part until it has some again.
pub const RESTS: Duration = Duration::from_secs(1);

/// What a job has that could be given timeslices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// Groups that compute, of processes that do not rest; of all where all do.
    pub count: u32,
    /// Rises whenever groups came that were given none yet.
    pub version: u64,
    /// An earlier agent may have given them some.
    pub inherited: bool,
    /// Why they cannot be.
    pub lacks: Option<Lacks>,
    /// When the next of its processes rests.
    pub rests_at: Option<Instant>,
    /// An operator keeps it from running.
    pub paused: bool,
}

/// What stands, as far as is known. The version says for which groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stands {
    /// What the driver gives.
    Driver {
        /// Of the groups, where an earlier agent may have given them some; else 0.
        version: u64,
    },
    /// So long for each group.
    Own {
        /// How long.
        slice: Duration,
        /// Of the groups.
        version: u64,
    },
}

impl Default for Stands {
    fn default() -> Self {
        Self::Driver { version: 0 }
    }
}

impl Stands {
    /// How long each group has; `None`: what the driver gives.
    pub const fn slice(self) -> Option<Duration> {
        match self {
            Self::Driver { .. } => None,
            Self::Own { slice, .. } => Some(slice),
        }
    }
}

/// The timeslices of one job.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slices {
    /// What was ordered last.
    pub given: Stands,
    wanted: Stands,
    since: Instant,
    /// The driver refused.
    pub refused: Option<u32>,
    /// Why its component takes turns, as people were told on its account.
    pub said: Option<Lacks>,
    /// Its part for each of its groups.
    pub unit: u128,
}

impl Slices {
    /// Wants this from here on; whether it is to be ordered.
    pub fn want(&mut self, wanted: Stands, at_once: bool, now: Instant) -> bool {
        if wanted != self.wanted {
            (self.wanted, self.since) = (wanted, now);
        }
        let due = at_once || now >= self.since.after(SETTLES);
        let differs = self.given != wanted;
        if differs && due {
            self.given = wanted;
        }
        differs && due
    }

    /// When what is wanted has stood for long enough.
    pub fn due(&self) -> Option<Instant> {
        (self.given != self.wanted).then(|| self.since.after(SETTLES))
    }
}

/// How long a group of `unit` keeps the GPU beside others, of which these are the least and the most; `None`: they lie
/// further apart than timeslices can.
pub fn slice(unit: u128, (least, most): (u128, u128)) -> Option<Duration> {
    let (least, most) = (least.max(1), most.max(1));
    let fits = u128::from(nanos(LONGEST)) * least / most;
    let base = fits.min(u128::from(nanos(USUAL)));
    if base < u128::from(nanos(SHORTEST)) {
        return None;
    }
    let micros = (base * unit / least + 500) / 1_000;
    Some(Duration::from_micros(u64::try_from(micros).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_lie_as_far_apart_as_weights_and_within_what_can_be_set() {
        for (light, heavy) in [(1, 1), (1, 4), (3, 7), (1, 200), (1, 999), (1, 1_000)] {
            let of = |unit| slice(unit << 32, (light << 32, heavy << 32)).expect("it can be");
            let (short, long) = (of(light), of(heavy));
            assert!(short >= SHORTEST && short <= USUAL, "{short:?}");
            assert!(long <= LONGEST, "{long:?}");
            let ratio = long.as_secs_f64() / short.as_secs_f64();
            let apart = heavy as f64 / light as f64;
            assert!((ratio / apart - 1.0).abs() < 1e-3, "{ratio} for {apart}");
        }
        assert_eq!(slice(1, (1, 1_001)), None);
    }
}
