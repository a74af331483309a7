//! What is known about one job among others, and its account.

use super::slices::{Groups, Slices};
use crate::ids::{GpuSet, JobId};
use crate::time::Instant;
use crate::words::terms::{Class, Terms};

/// Virtual time has so many units a nanosecond at weight 1: dividing by a weight of 1,000 x 1,000 keeps twelve bits.
pub(super) const UNITS: u32 = 32;
/// One job in one step, as the node has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub job: JobId,
    pub gpus: GpuSet,
    pub terms: Terms,
    /// It has work, or cannot say.
    pub wants: bool,
    /// All its gates are open and nothing else holds it.
    pub open: bool,
    /// It was let run, and was ordered to.
    pub runs: bool,
    /// Some of it may be enabled.
    pub on: bool,
    /// All of it is.
    pub whole: bool,
    /// What could be given timeslices.
    pub groups: Groups,
}

/// The books of one job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Account {
    pub job: JobId,
    pub gpus: GpuSet,
    pub terms: Terms,
    /// Its user has had all it may, when its turn began.
    pub over: bool,
    /// As of now: of a user that has had all it may it is idle.
    pub class: Class,
    pub component: u8,
    /// Others use its GPUs too.
    pub shares: bool,
    pub work: Work,
    pub state: State,
    /// It may run, and is being enabled for so long.
    pub entering: Option<u64>,
    pub time: Virtual,
    pub turn: Turn,
    pub had: Had,
    /// It runs at once with the others of its component.
    pub sliced: bool,
    pub slices: Slices,
}

/// Whether a job has something to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub wants: bool,
    /// The gates of all its GPUs are.
    pub open: bool,
    pub idle_since: Option<Instant>,
}

/// What a job may as of the last step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct State {
    pub active: bool,
    /// It may run.
    pub may: bool,
    /// Time is charged to it until the next step.
    pub charged: bool,
}

/// How far a job is in virtual time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Virtual {
    /// Units a nanosecond of run time.
    pub rate: u128,
    pub v: u128,
    /// When it was last active: how far ahead of the least of those with the same GPUs, and of the component's clock.
    pub lag: u128,
    pub ahead: u128,
}

/// The turns of a job.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turn {
    /// It has an unfinished one, of which so much is used and was charged.
    pub held: bool,
    pub used: u64,
    pub paid: u128,
    /// That turn goes on beyond its end.
    pub stays: bool,
    /// When it last began one, by count.
    pub last: u64,
    /// How many it began.
    pub count: u64,
    /// How long it has waited for its next, while it could have run.
    pub waited: u64,
}

/// What a job had of its GPUs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Had {
    /// Part of the time that it deserves as things stand, of 2^32.
    pub portion: u64,
    /// Time in which it was active, what it had of that, and what it deserved.
    pub time: u64,
    pub got: u64,
    pub due: u64,
}

impl Account {
    pub fn new(claim: &Claim) -> Self {
        Self {
            job: claim.job,
            gpus: claim.gpus,
            terms: claim.terms,
            over: false,
            class: claim.terms.class,
            component: 0,
            shares: false,
            work: Work {
                wants: true,
                open: false,
                idle_since: None,
            },
            state: State::default(),
            entering: None,
            time: Virtual {
                rate: 1 << UNITS,
                v: 0,
                lag: 0,
                ahead: 0,
            },
            turn: Turn::default(),
            had: Had::default(),
            sliced: false,
            slices: Slices::default(),
        }
    }

    pub fn end_turn(&mut self) {
        (self.turn.held, self.turn.used, self.turn.paid) = (false, 0, 0);
        self.turn.stays = false;
    }

    /// Nobody is in its way.
    pub fn goes_free(&mut self) {
        (
            self.shares,
            self.state.active,
            self.state.may,
            self.state.charged,
        ) = (false, false, true, false);
        (self.sliced, self.entering) = (false, None);
        (self.time.lag, self.time.ahead, self.turn.waited) = (0, 0, 0);
        self.end_turn();
    }

    /// Its turn is not over.
    pub fn in_turn(&self, turn: u64) -> bool {
        self.turn.held && (self.turn.used < turn || self.turn.stays)
    }

    /// Who is behind chooses first; within a turn it is as far as when the turn began.
    pub fn key(&self, turn: u64) -> u128 {
        if self.in_turn(turn) {
            self.time.v.saturating_sub(self.turn.paid)
        } else {
            self.time.v
        }
    }

    /// Jobs with the same are in one race.
    pub fn group(&self) -> (u8, Class, GpuSet) {
        (self.component, self.class, self.gpus)
    }

    /// Those that choose, those that want nothing, those that are shut out.
    pub fn rank(&self) -> u8 {
        match (self.state.active, self.work.open) {
            (true, _) => 0,
            (_, true) => 1,
            _ => 2,
        }
    }
}
