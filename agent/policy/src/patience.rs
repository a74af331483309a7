//! How long must online be idle before its users may be made to wait for offline at its return?
//!
//! A gap between two iterations is told from a pause by its length ([`crate::gap`]). That says when offline
//! may run without being stopped for every token. It does not say what the preemption at the end of the
//! pause costs: online's next launch waits for it, and so does somebody's first token. Where an operator
//! says how much of that he accepts ([`Slo`]), half of it is for preemptions, the rest for memory:
//!
//! ```text
//!   allowed = share of ttft x time of prompts / returns / 2      per return, over the budget's window
//!   wait    = the first idle age at which  cost x P(online stays away for so long) <= allowed
//! ```
//!
//! Where more than that was spent in the window less is allowed, and nothing where twice as much was: what long prompts
//! earned is not for the returns of short ones.
//!
//! The cost is the mean of what launches waited for preemptions: an engine that says when requests come waits for
//! none, and then the wait is zero. To know that, no preemption is needed: what such an engine would have waited is what
//! one takes beyond the time from its word to its launch, whenever it finds the GPU free. The chance is that of a
//! [`Forecast`] of this GPU, which also counts what was spent, so that the mean is kept to when traffic changes.
//!
//! Half, because the books count a delay once, and requests that come while a late prompt is read are late too: of the
//! 24 scenarios of seed 7, with a switch of 1.1 ms, 23 kept their bounds with a half, 22 with 60 %, 20 with 75 and with
//! 95 % (seed 24 was looked at afterwards only).
//!
//! Invariant: the wait is at most [`LONGEST`], so that offline runs where online is idle.

use crate::budget::Budget;
use crate::config::Slo;
use crate::forecast::{Forecast, LEAST};
use crate::time::{Instant, nanos};
use core::time::Duration;

/// The wait while little is known of when online will be back. An assumption: no source says better.
pub const UNKNOWN: Duration = Duration::from_secs(1);
/// The longest: beyond every age that a forecast tells apart (2^37 ns).
pub const LONGEST: Duration = Duration::from_secs(137);

/// One GPU's.
#[derive(Clone, Debug, Default)]
pub struct Patience {
    forecast: Forecast,
    /// Start of the idle time that is under way, or was last; with requests in flight, the end of the last.
    since: Instant,
    /// Shorter ones are gaps between two iterations.
    gap: Duration,
    wait: Duration,
    /// Requests are in flight: it is a gap, however long.
    held: bool,
}

/// Online, idle.
#[derive(Clone, Copy, Debug)]
pub struct Idle {
    /// It was busy until now.
    pub begins: bool,
    /// Requests are in flight.
    pub held: bool,
    /// Shorter idle times are gaps between two iterations.
    pub gap: Duration,
}

impl Patience {
    /// How long online has to be idle.
    #[must_use]
    pub const fn wait(&self) -> Duration {
        self.wait
    }

    /// Online is idle.
    pub fn idles(&mut self, idle: Idle, slo: Slo, budget: &mut Budget, now: Instant) {
        if idle.held && !idle.begins {
            // A request, while the gate waited.
            self.returned(slo, budget, now, now);
        }
        let ended = core::mem::replace(&mut self.held, idle.held);
        if !idle.held && (idle.begins || ended) {
            self.since = now;
            self.gap = idle.gap;
            let (cost, allowed) = (budget.preemption(), budget.of_a_return(slo, now));
            self.wait = match self.forecast.from(nanos(cost), nanos(allowed)) {
                Some(age) => Duration::from_nanos(age).min(LONGEST),
                None if self.forecast.seen() < LEAST => UNKNOWN,
                None => LONGEST,
            };
        }
    }

    /// Online is back: it launched, or said that a request came.
    pub fn returned(&mut self, slo: Slo, budget: &mut Budget, rang: Instant, now: Instant) {
        let idle = rang.since(self.since);
        if !self.held && idle >= self.gap {
            budget.returned(now);
            let allowed = budget.of_a_return(slo, now);
            self.forecast.ended(nanos(idle), nanos(allowed), 0);
        }
    }

    /// The return was delayed by so much.
    pub fn delayed(&mut self, waited: Duration) {
        self.forecast.delayed(nanos(waited));
    }
}
