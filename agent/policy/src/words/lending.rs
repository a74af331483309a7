//! What operators see of leases, and what the shell knows about a trainer and a service beyond what policy needs.

use crate::words::ids::{JobId, LeaseId};
use crate::words::lease::{Iteration, Key};
use crate::words::time::Instant;
use core::time::Duration;

/// Leases of one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseView {
    /// Given since the start.
    pub granted: u64,
    /// Of those, ended by the gate because they took too long.
    pub overruns: u64,
    /// Units that ran within leases, by what trainers said when they returned.
    pub units: u64,
    /// Part of online's slack that is used, in thousandths: what was late lowers it.
    pub used_permille: u32,
    /// Predictions of an iteration that can be compared with what it took.
    pub predictions: u64,
    /// By how much they are off of late, in thousandths of what it took.
    pub error_permille: u32,
    /// The one that stands: whose, which, and when the gate shuts.
    pub standing: Option<(JobId, LeaseId, Instant)>,
    /// What was known when online last said what comes next.
    pub outlook: Option<Outlook>,
    /// When online last reported an iteration.
    pub reported: Option<Instant>,
    /// What online needs for a token while no trainer runs, of late; zero before enough was seen.
    pub alone: Duration,
    /// That is more than it promised: nothing is lent.
    pub tpot_too_low: bool,
}

/// What is known before an iteration of online.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// When.
    pub at: Instant,
    /// What comes next.
    pub next: Iteration,
    /// What that takes, at its tail; `None` while it is not known.
    pub predicted: Option<Duration>,
    /// What a trainer may take before it.
    pub slack: Duration,
}

/// A lease, and what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whose.
    pub job: JobId,
    /// Which.
    pub lease: LeaseId,
    /// What was known.
    pub outlook: Outlook,
    /// What a unit was taken to need.
    pub unit: Duration,
    /// So many units at most.
    pub units: u32,
    /// What they may take.
    pub granted: Duration,
    /// Units that ran, and how long the trainer had the GPU; `None`: it still has.
    pub ran: Option<(u32, Duration)>,
    /// The gate ended it.
    pub overran: bool,
    /// What online's iteration after it took; `None`: it is not over, or not known.
    pub took: Option<Duration>,
}

/// What iterations or units of one shape take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShapeView {
    /// What.
    pub key: Key,
    /// On average, of late.
    pub mean: Duration,
    /// At the 95th percentile, of late.
    pub tail: Duration,
    /// Times it was seen.
    pub seen: u64,
}

/// A trainer that offers units on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainerView {
    /// Of the units that it offers.
    pub key: Key,
    /// So many follow one another.
    pub most: u32,
    /// What one takes by its own account; zero: it says nothing.
    pub claimed: Duration,
    /// What one is taken to need.
    pub unit: Duration,
    /// Leases that it had.
    pub leases: u64,
    /// Units that it ran within them, as it said.
    pub units: u64,
    /// How long it had the GPU for them.
    pub used: Duration,
    /// Until when it gets none because it kept running past them.
    pub demoted: Option<Instant>,
}

/// What a trainer offers, as the shell knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offers {
    /// Its library has no words for it.
    OldLibrary,
    /// Nothing, and it is not known that it trains.
    Nothing,
    /// Nothing, and it trains in pieces of about that long; zero: not known.
    Pieces(Duration),
    /// Units.
    Units,
}

/// Who is online on a GPU, as the shell knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Nobody.
    None,
    /// So many processes.
    Several(u32),
    /// One whose library has no words for iterations.
    OldLibrary,
    /// One that shares no memory with the agent.
    NoPage,
    /// One that was asked so long ago and has reported none.
    Silent(Duration),
    /// One that reports its iterations.
    Reports,
}
