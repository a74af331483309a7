//! What offline costs online's users, and how often online may therefore run out of headroom.
//!
//! The operator says by how much means may rise ([`Slo`]). On each GPU, the agent measures what it can see of both
//! sides of that over the last ten minutes:
//!
//! ```text
//!   time to first token       iterations that read prompts      what users wait anyway
//!     preemption              first launch to last disable's      \
//!                             return, if it waited for that        |
//!     stall                   from the iteration that lacks memory  > what offline added
//!                             to the first one that has it         |
//!   time per further token    all iterations                      /
//!     stall                   as above, whatever is read meanwhile
//! ```
//!
//! Both sides count a time once, however many requests share it. So where the waiting time and the work are shared
//! alike, the ratio is that of the means.
//!
//! An allocation stall (`shortage`) is counted until online's engine continues with what it asked for. Until then a
//! prompt is cut short, and the rest of it waits for the iteration that runs. An engine that reads the part of a prompt
//! for which there is memory continues with the prompt. Its first token then waits for as long as the engine stood
//! still, and for the cost of each additional iteration beside its tokens ([`STEP`]). For requests that decode the
//! stall counts in full nevertheless: what would have been read before their first tokens is read between their further
//! ones. If an engine asked for memory when requests arrived, and the memory is there when the engine comes to them,
//! the stall costs nothing. It counts in the mean cost of a stall, so that more stalls are accepted.
//!
//! What is left of the budget is spent on stalls, because they give memory to offline. Each of the two times has an
//! account. A rate of stalls is accepted only if both accounts accept it:
//!
//! ```text
//!   earned   = share x time of online, of ttft less preemptions
//!   left     = earned - stalls - the worst of them
//!   accepted = mean cost of one x window / (earned + GAIN x left)
//! ```
//!
//! A stall is accepted only if the account could pay for another one like the worst in the window, or for one of the
//! mean cost if that is more: where requests are few, one stall can cost more than ten minutes earn.
//!
//! Preemptions are kept to half of what is earned by the time that the gate waits ([`crate::patience`]).
//!
//! So the rate is stable where all that is earned is spent, except for the cost of about one stall. The rate falls at
//! once and rises once a minute. If nothing is left, stalls are accepted once in [`LONGEST`], which keeps the headroom.
//! The same holds at the beginning, before online has worked.
//!
//! Invariant: the accepted time lies between [`SHORTEST`] and [`LONGEST`], and never falls because more was spent.

use crate::config::Slo;
use crate::time::{Instant, nanos};
use crate::view::BudgetView;
use core::time::Duration;

/// Time between two shortages, least and most: faster than a second no headroom follows; more than an
/// hour is as good as never.
pub const SHORTEST: Duration = Duration::from_secs(1);
/// Most.
pub const LONGEST: Duration = Duration::from_secs(3_600);
/// What was spent too much is to be made good within that: so long it is remembered.
pub const WINDOW: Duration = Duration::from_secs(600);
/// The window moves by a tenth.
const SLICES: usize = 10;
/// A fall comes so long after the turn to a rise, at least.
const TURNS: Duration = Duration::from_secs(60);
/// How much faster what is left is spent than it is earned. Of 4, 10 and 20, 4 left offline the most
/// on drawn scenarios, and as many of them kept their bounds.
const GAIN: i128 = 4;
/// What a shortage is taken to cost before one was seen, ns: to map a batch of 256 MiB (0.23 ms for each of
/// 128 handles, kvcached's figures in replay's `costs`), and the 20 ms that a reclaim may take.
const FIRST_COST: u64 = 50_000_000;
/// What a preemption is taken to cost before one was seen, ns: the median on an H200 beside PyTorch, from the edge
/// to the last disable's return (P14, tests/hardware).
const FIRST_PREEMPTION: u64 = 1_080_000;
/// What an iteration costs beside its tokens, ns: an 8B model's weights read once on an H200 (`d0` in replay's `engine`).
const STEP: u64 = 5_000_000;
/// One shortage changes the mean cost by an eighth of the difference; a preemption, from the eighth on.
const COST_MOVES: u64 = 8;

/// Time to first token, and time per further token.
const ACCOUNTS: usize = 2;

/// A tenth of the window: ns.
#[derive(Clone, Copy, Debug, Default)]
struct Slice {
    prompts: u64,
    busy: u64,
    preempted: u64,
    /// What shortages cost, by account.
    short: [u64; ACCOUNTS],
    /// The longest.
    worst: [u64; ACCOUNTS],
    shortages: u64,
    returns: u64,
}

/// A shortage of memory that is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Short {
    /// From when the engine came to what it lacked until it went on with it.
    pub whole: Duration,
    /// Of that, how long it did not go on even with a part of it.
    pub still: Duration,
    /// Iterations that read a part.
    pub parts: u32,
}

impl Short {
    /// One that an engine waited for and read nothing meanwhile.
    #[must_use]
    pub const fn still(span: Duration) -> Self {
        Self {
            whole: span,
            still: span,
            parts: 0,
        }
    }

    /// The longer of two.
    #[must_use]
    pub fn longer(self, other: Self) -> Self {
        if other.whole > self.whole {
            other
        } else {
            self
        }
    }

    /// What it costs a first token, and further ones, ns.
    fn costs(self) -> [u64; ACCOUNTS] {
        let (whole, still) = (nanos(self.whole), nanos(self.still));
        let parts = STEP.saturating_mul(u64::from(self.parts));
        [still.saturating_add(parts).min(whole), whole]
    }
}

/// A busy period of online that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worked {
    /// How long it was.
    pub span: Duration,
    /// It only decoded.
    pub decoded: bool,
}

/// The books of one GPU.
#[derive(Clone, Debug)]
pub struct Budget {
    started: Instant,
    slices: [Slice; SLICES],
    /// Number of the newest slice, from the start.
    newest: u64,
    /// Mean cost of a shortage, ns.
    cost: [u64; ACCOUNTS],
    /// Of a preemption, and of how many that is.
    preemption: u64,
    preemptions: u64,
    /// How long one takes, from what rang to the last disable's return, ns: mean.
    takes: u64,
    /// When online last ended a busy period.
    worked: Instant,
    /// What is accepted, and the slice in which it last fell.
    every: Duration,
    fell: u64,
    /// Whether it has risen since, and when it began to.
    rises: bool,
    turned: Instant,
}

impl Budget {
    /// Nothing earned, nothing spent.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            started: now,
            slices: [Slice::default(); SLICES],
            newest: 0,
            cost: [FIRST_COST; ACCOUNTS],
            preemption: FIRST_PREEMPTION,
            preemptions: 0,
            takes: FIRST_PREEMPTION,
            worked: now,
            every: LONGEST,
            fell: 0,
            rises: true,
            turned: now,
        }
    }

    /// The slice of `now`; those that are over the window old are gone.
    fn slice(&mut self, now: Instant) -> &mut Slice {
        let length = nanos(WINDOW) / SLICES as u64;
        let number = nanos(now.since(self.started)) / length;
        let oldest = number.saturating_sub(SLICES as u64 - 1);
        for gone in self.newest.saturating_add(1).max(oldest)..=number {
            self.slices[(gone % SLICES as u64) as usize] = Slice::default();
        }
        self.newest = self.newest.max(number);
        &mut self.slices[(self.newest % SLICES as u64) as usize]
    }

    /// Online ended a busy period.
    pub fn worked(&mut self, worked: Worked, now: Instant) {
        self.worked = now;
        let span = nanos(worked.span);
        let slice = self.slice(now);
        slice.busy = slice.busy.saturating_add(span);
        if !worked.decoded {
            slice.prompts = slice.prompts.saturating_add(span);
        }
    }

    /// Offline took so long to go, and online waited so long for it.
    pub fn preempted(&mut self, took: Duration, waited: Duration, now: Instant) {
        self.takes = self.takes - self.takes / COST_MOVES + nanos(took) / COST_MOVES;
        let cost = nanos(waited);
        self.costs(cost);
        let slice = self.slice(now);
        slice.preempted = slice.preempted.saturating_add(cost);
    }

    /// Online launched so long after it said that a request came, and found offline gone already: what a preemption takes
    /// beyond that is what this one would have cost.
    pub fn came(&mut self, lead: Duration) {
        self.costs(self.takes.saturating_sub(nanos(lead)));
    }

    /// A preemption cost so much, or would have: the mean of the first eight, the first in place of what was assumed,
    /// and an eighth of the difference from then on.
    fn costs(&mut self, cost: u64) {
        self.preemptions += 1;
        let moves = self.preemptions.min(COST_MOVES);
        self.preemption = self.preemption - self.preemption / moves + cost / moves;
    }

    /// Online came back after more than a gap.
    pub fn returned(&mut self, now: Instant) {
        self.slice(now).returns += 1;
    }

    /// Mean cost of a preemption, seen or not: what the next is taken to cost.
    #[must_use]
    pub const fn preemption(&self) -> Duration {
        Duration::from_nanos(self.preemption)
    }

    /// By how much preemptions may delay the mean return of online: half of what the operator accepts for the time to
    /// first token; less where more than that was spent in the window, and nothing where twice as much was. Of an engine
    /// whose iterations are all alike nobody knows which read prompts: all count.
    #[must_use]
    pub fn of_a_return(&mut self, slo: Slo, now: Instant) -> Duration {
        self.slice(now);
        let sum = self.sum();
        let base = if sum.prompts > 0 {
            sum.prompts
        } else {
            sum.busy
        };
        let earned = u128::from(base) * u128::from(slo.ttft) / 20_000;
        let spent = u128::from(sum.preempted);
        let left = (earned * 2).saturating_sub(spent).min(earned);
        let each = left / u128::from(sum.returns.max(1));
        Duration::from_nanos(u64::try_from(each).unwrap_or(u64::MAX))
    }

    /// Online waited so long for memory.
    pub fn fell_short(&mut self, short: Short, now: Instant) {
        let costs = short.costs();
        for (mean, cost) in self.cost.iter_mut().zip(costs) {
            *mean = *mean - *mean / COST_MOVES + cost / COST_MOVES;
        }
        let slice = self.slice(now);
        for (account, cost) in costs.into_iter().enumerate() {
            slice.short[account] = slice.short[account].saturating_add(cost);
            slice.worst[account] = slice.worst[account].max(cost);
        }
        slice.shortages += 1;
    }

    fn sum(&self) -> Slice {
        let mut sum = Slice::default();
        for slice in &self.slices {
            sum.prompts = sum.prompts.saturating_add(slice.prompts);
            sum.busy = sum.busy.saturating_add(slice.busy);
            sum.preempted = sum.preempted.saturating_add(slice.preempted);
            for account in 0..ACCOUNTS {
                sum.short[account] = sum.short[account].saturating_add(slice.short[account]);
                sum.worst[account] = sum.worst[account].max(slice.worst[account]);
            }
            sum.shortages += slice.shortages;
            sum.returns += slice.returns;
        }
        sum
    }

    /// How long it is to be on average between two shortages; `idle`, once online has done nothing for a whole
    /// window and a shortage can delay nobody. It rises at once. It falls once in a slice, and a minute after it began
    /// to rise at the earliest, so that no minute sees more than two turns.
    pub fn every(&mut self, slo: Slo, idle: Duration, now: Instant) -> Duration {
        let accepts = self.accepts(slo, now);
        if now.since(self.worked) >= WINDOW {
            return idle;
        }
        if accepts > self.every {
            if !core::mem::replace(&mut self.rises, true) {
                self.turned = now;
            }
            self.every = accepts;
        } else if accepts < self.every && self.fell < self.newest && now.since(self.turned) >= TURNS
        {
            (self.every, self.fell, self.rises) = (accepts, self.newest, false);
        }
        self.every
    }

    /// What the books of this moment allow.
    #[must_use]
    pub fn accepts(&mut self, slo: Slo, now: Instant) -> Duration {
        self.slice(now);
        let sum = self.sum();
        let share = |of: u64, basis: u32| i128::from(of) * i128::from(basis) / 10_000;
        let earned = [
            share(sum.prompts, slo.ttft) - i128::from(sum.preempted),
            share(sum.busy, slo.tpot),
        ];
        let slice = WINDOW / SLICES as u32;
        let window = i128::from(nanos(now.since(self.started).clamp(slice, WINDOW)));
        let accepts = |account: usize| {
            let (earned, cost) = (earned[account], self.cost[account]);
            let kept = i128::from(cost.max(sum.worst[account]));
            let spends = earned + GAIN * (earned - i128::from(sum.short[account]) - kept);
            if spends <= 0 {
                return LONGEST;
            }
            let every = i128::from(cost) * window / spends;
            Duration::from_nanos(u64::try_from(every).unwrap_or(u64::MAX))
        };
        accepts(0).max(accepts(1)).clamp(SHORTEST, LONGEST)
    }

    /// For people.
    #[must_use]
    pub fn view(&self) -> BudgetView {
        let sum = self.sum();
        BudgetView {
            prompts: Duration::from_nanos(sum.prompts),
            busy: Duration::from_nanos(sum.busy),
            preempted: Duration::from_nanos(sum.preempted),
            short: Duration::from_nanos(sum.short[0]),
            short_tpot: Duration::from_nanos(sum.short[1]),
            shortages: sum.shortages,
            allowed: None,
        }
    }
}
