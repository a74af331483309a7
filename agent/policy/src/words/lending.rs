//! What operators see of leases, and what the shell knows about a trainer and a service beyond what policy needs.

use crate::words::ids::{JobId, LeaseId};
use crate::words::lease::{Iteration, Key};
use crate::words::time::Instant;
use core::time::Duration;

/// Leases of one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseView {
    /// Number of leases since the start.
    pub granted: u64,
    /// Of these, leases that the gate ended because they took too long.
    pub overruns: u64,
    /// Units that ran within leases, as trainers reported when they returned.
    pub units: u64,
    /// The part of online's slack that leases use, in thousandths. Late requests lower it.
    pub used_permille: u32,
    /// Number of predictions that were compared with the actual iteration.
    pub predictions: u64,
    /// Recent relative error of predictions, in thousandths of the actual time.
    pub error_permille: u32,
    /// The current lease: its job, its number, and when the gate closes.
    pub standing: Option<(JobId, LeaseId, Instant)>,
    /// What was known when online last announced an iteration.
    pub outlook: Option<Outlook>,
    /// When online last reported an iteration.
    pub reported: Option<Instant>,
    /// How long online recently needed for a token while no trainer ran; zero: too little was observed.
    pub alone: Duration,
    /// That exceeds the promised time, so no lease is granted.
    pub tpot_too_low: bool,
}

/// What is known before an iteration of online.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// When this was known.
    pub at: Instant,
    /// The next iteration.
    pub next: Iteration,
    /// How long it takes, at its tail; `None`: unknown.
    pub predicted: Option<Duration>,
    /// How long a trainer may run before it.
    pub slack: Duration,
}

/// A lease, and its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The job.
    pub job: JobId,
    /// Number of the lease.
    pub lease: LeaseId,
    /// What was known when it was granted.
    pub outlook: Outlook,
    /// The assumed duration of a unit.
    pub unit: Duration,
    /// The largest number of units.
    pub units: u32,
    /// How long they may take.
    pub granted: Duration,
    /// Units that ran, and how long the trainer had the GPU; `None`: the trainer still has it.
    pub ran: Option<(u32, Duration)>,
    /// The gate ended the lease.
    pub overran: bool,
    /// The duration of online's next iteration; `None`: it has not ended, or is unknown.
    pub took: Option<Duration>,
}

/// How long iterations or units of one shape take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShapeView {
    /// The shape.
    pub key: Key,
    /// Recent mean.
    pub mean: Duration,
    /// Recent 95th percentile.
    pub tail: Duration,
    /// How many were observed.
    pub seen: u64,
}

/// A trainer that offers units on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainerView {
    /// The job.
    pub key: Key,
    /// How many units could follow one another.
    pub most: u32,
    /// Duration of a unit as the trainer reports it; zero: it reports nothing.
    pub claimed: Duration,
    /// Duration of a unit that the policy assumes.
    pub unit: Duration,
    /// Number of leases.
    pub leases: u64,
    /// Units that it ran within them, as it reported.
    pub units: u64,
    /// How long it had the GPU for them.
    pub used: Duration,
    /// Until when it gets no lease because it overran too many.
    pub demoted: Option<Instant>,
}

/// What a trainer offers, as far as the shell knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offers {
    /// Its library does not support leases.
    OldLibrary,
    /// It offers nothing, and may not be a trainer.
    Nothing,
    /// It offers nothing, but trains in pieces of about this duration; zero: unknown.
    Pieces(Duration),
    /// It offers units.
    Units,
}

/// The online processes of a GPU, as far as the shell knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// There is none.
    None,
    /// There are several; their number.
    Several(u32),
    /// One, whose library cannot report iterations.
    OldLibrary,
    /// One, which shares no memory with the agent.
    NoPage,
    /// One, which was asked this long ago and has not reported any iteration.
    Silent(Duration),
    /// One, which reports its iterations.
    Reports,
}
