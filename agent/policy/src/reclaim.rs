//! Takes stripes from one offline job and gives them back: order, undo, and what remains after a crash.
//!
//! ```text
//!              begin              every thread outside        every channel disabled
//!   Idle -----------------> Checking -------------> Disabling -------------> Moving
//!    ^    launches held        |                        |                      |
//!    |                         | inside, overdue,       | overdue, a disable   | every process
//!    |                         | cancelled              | failed, cancelled    | answered or is gone
//!    +-------------------------+------------------------+----------------------+
//! ```
//!
//! A *reclaim* maps the quarantine page over the stripes, releases their handles and appends their blocks to the job's
//! log. A *restore* makes handles and maps them where the page was. The job's own processes do both, each for its rank,
//! and both in this order. Undo is needed only before `Moving`. Nothing has changed then, so undo means to release the
//! launches and let the gate decide. From `Moving` on there is no way back: the answers say what was done, and the rest
//! is as before.
//!
//! Invariants:
//!
//! * Nothing moves while a channel of the job may be enabled, and no channel is enabled before every process has
//!   answered or is gone. A process that is stopped in between keeps its job disabled, but nobody else waits for it.
//! * Blocks are lost before they are back: what was reclaimed is restored only after the engine reported that it
//!   withholds it.
//! * After a crash, the next registration says which stripes have memory. A process knows that about itself, and an
//!   agent that comes back believes the process, not its own records.
//!
//! A job from which nothing can be taken at the moment is *unfit*. There are three cases. A job that gave a reason (a
//! thread is in a call that may hold the driver's locks, or the driver refused) is unfit until it has run again,
//! because until then nothing changes. A job that did not answer in time is unfit until it has answered. A job whose
//! channels were not disabled in time is unfit until they are. A job that began and exceeded the deadline is not unfit:
//! what it moved late helps online too, and the next demand may come before the job runs again. Neither is a job whose
//! move was cancelled.

use crate::ids::{ReclaimId, SessionId, StripeId};
use crate::time::Instant;
pub use crate::words::reclaim::{Answer, Direction, Phase};
use core::time::Duration;

/// What a job must not do for the sake of a reclaim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Hold {
    /// Nothing is held.
    #[default]
    No,
    /// Its launches wait.
    Launches,
    /// And its channels are to be disabled.
    Stopped,
    /// And none may be enabled, whatever happens.
    Frozen,
}

/// Why nothing is taken from a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unfit {
    /// It said that something is in the way: until it has run again.
    Hindered,
    /// Processes have not said whether anything is: until they do.
    Silent,
    /// Its channels were not disabled in time: until they are, or it runs.
    Slow,
}

/// The machine of one job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reclaim {
    pub phase: Phase,
    pub id: ReclaimId,
    pub direction: Option<Direction>,
    /// In the order they are taken.
    pub stripes: Vec<StripeId>,
    pub until: Instant,
    /// Processes are to say by then whether anything is in the way: so early that the rest can still be
    /// done in time.
    pub answer_by: Instant,
    /// Processes whose answer is missing.
    waiting: Vec<SessionId>,
    /// Processes that had not said whether anything is in the way when the reclaim was given up.
    silent: Vec<SessionId>,
    /// Whether the orders of this phase went out.
    pub sent: bool,
    pub overdue: bool,
    pub cancelled: bool,
    unfit: Option<Unfit>,
}

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It waits.
    Waits,
    /// It went on to the next phase.
    Went,
    /// It was given up before anything was changed.
    GivenUp,
    /// Everybody has answered or is gone.
    Over,
}

/// The job as the machine sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight {
    /// Every channel of it is disabled, and known to be.
    pub stopped: bool,
    /// Its disables fail, or its channels are not controlled.
    pub beyond_control: bool,
    /// It runs.
    pub runs: bool,
}

impl Reclaim {
    pub fn hold(&self) -> Hold {
        match self.phase {
            Phase::Idle => Hold::No,
            Phase::Checking => Hold::Launches,
            Phase::Disabling => Hold::Stopped,
            Phase::Moving => Hold::Frozen,
        }
    }

    pub fn is_fit(&self) -> bool {
        self.phase == Phase::Idle && self.unfit.is_none()
    }

    /// Whether there is one that goes on and is not late.
    pub fn ends_in_time(&self) -> bool {
        self.phase != Phase::Idle && !self.overdue
    }

    pub fn begin(
        &mut self,
        id: ReclaimId,
        direction: Direction,
        stripes: Vec<StripeId>,
        sessions: impl Iterator<Item = SessionId>,
        (now, deadline): (Instant, Duration),
    ) {
        self.phase = Phase::Checking;
        (self.id, self.direction) = (id, Some(direction));
        (self.answer_by, self.until) = (now.after(deadline / 2), now.after(deadline));
        self.stripes = stripes;
        self.wait_for(sessions);
        (self.overdue, self.cancelled) = (false, false);
    }

    fn wait_for(&mut self, sessions: impl Iterator<Item = SessionId>) {
        self.waiting.clear();
        self.waiting.extend(sessions);
        self.sent = false;
    }

    pub fn waiting(&self) -> &[SessionId] {
        &self.waiting
    }

    /// An answer to the orders of this phase. Says whether it was waited for.
    pub fn answered(&mut self, session: SessionId, phase: Phase, answer: Answer) -> bool {
        if self.phase != phase || !self.waiting.contains(&session) {
            if phase == Phase::Checking && self.silent.contains(&session) {
                self.is_heard(session, answer);
            }
            return false;
        }
        match (phase, answer) {
            (Phase::Moving, Answer::Late) => self.overdue = true,
            (Phase::Checking, Answer::Refused | Answer::Late | Answer::Missed) => {
                self.waiting.clear();
                self.cancelled = true;
                self.unfit = Some(Unfit::Hindered);
            }
            (_, answer) => {
                self.waiting.retain(|known| *known != session);
                let missed = answer == Answer::Missed && !(self.cancelled || self.overdue);
                if answer == Answer::Refused || missed {
                    self.unfit = Some(Unfit::Hindered);
                }
            }
        }
        true
    }

    /// The answer of a process that was silent when it was asked.
    fn is_heard(&mut self, session: SessionId, answer: Answer) {
        self.silent.retain(|known| *known != session);
        match answer {
            Answer::Refused | Answer::Late => {
                self.silent.clear();
                self.unfit = Some(Unfit::Hindered);
            }
            // Nothing was in its way, or it came too late to look: it may be asked again.
            Answer::Done | Answer::Missed if self.silent.is_empty() => {
                self.unfit = self.unfit.filter(|unfit| *unfit != Unfit::Silent);
            }
            Answer::Done | Answer::Missed => {}
        }
    }

    pub fn gone(&mut self, session: SessionId) {
        self.waiting.retain(|known| *known != session);
        if self.silent.contains(&session) {
            self.is_heard(session, Answer::Missed);
        }
    }

    /// Nobody needs it any more.
    pub fn cancel(&mut self) {
        self.cancelled = self.phase != Phase::Idle;
    }

    /// Looks whether what made it unfit is over.
    pub fn look(&mut self, sight: Sight, now: Instant) {
        let over = match self.unfit {
            // One that says no at once is asked no more often than one that looks.
            Some(Unfit::Hindered) => sight.runs && now >= self.answer_by,
            Some(Unfit::Slow) => sight.runs || sight.stopped,
            Some(Unfit::Silent) | None => false,
        };
        if over && self.phase == Phase::Idle {
            self.unfit = None;
        }
    }

    pub fn advance(
        &mut self,
        sight: Sight,
        ranks: impl Iterator<Item = SessionId>,
        now: Instant,
    ) -> Turn {
        let late = now >= self.until;
        match self.phase {
            Phase::Idle => Turn::Waits,
            Phase::Checking | Phase::Disabling if self.cancelled || sight.beyond_control => {
                self.end(Turn::GivenUp)
            }
            Phase::Checking | Phase::Disabling if late => {
                self.silent.clone_from(&self.waiting);
                self.unfit = Some(if self.silent.is_empty() {
                    Unfit::Slow
                } else {
                    Unfit::Silent
                });
                self.end(Turn::GivenUp)
            }
            Phase::Checking if self.waiting.is_empty() => {
                self.phase = Phase::Disabling;
                Turn::Went
            }
            Phase::Disabling if sight.stopped => {
                self.phase = Phase::Moving;
                self.wait_for(ranks);
                Turn::Went
            }
            Phase::Moving if self.waiting.is_empty() => self.end(Turn::Over),
            Phase::Moving => {
                self.overdue = self.overdue || late;
                Turn::Waits
            }
            Phase::Checking | Phase::Disabling => Turn::Waits,
        }
    }

    fn end(&mut self, turn: Turn) -> Turn {
        self.phase = Phase::Idle;
        self.waiting.clear();
        turn
    }

    /// There is nothing to move after all.
    pub fn give_up(&mut self) {
        self.end(Turn::GivenUp);
    }

    /// When time alone changes something.
    pub fn deadline(&self) -> Option<Instant> {
        let over = (self.phase != Phase::Idle && !self.overdue).then_some(self.until);
        let fit = (self.unfit == Some(Unfit::Hindered)).then_some(self.answer_by);
        over.or(fit)
    }
}
