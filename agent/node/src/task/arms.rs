//! What a GPU's issue thread does at an edge without waiting for an order.
//!
//! An enable may be armed. It then comes with activity words ([`Watch`]): once one of them is busy, policy is certain
//! to order all of the job disabled. The thread waits on the doorbells of those processes. When one rings, the thread
//! reads the words again, because any edge may have rung. If one is busy, the thread disables what it has enabled, by
//! the same rules as an order (it marks the journal before the call), and reports that. The shell receives the same
//! edge and orders the same. That order finds the work done, and is answered with the time at which it happened. So
//! nothing is decided here that policy does not decide too.
//!
//! [`Wanted`](super::Wanted) says whether the order is still armed.

use super::{Carrying, Issue, Issued, Outcome};
use crate::kinds::Switch;
use crate::page::PageRef;
use std::sync::Arc;

/// The armed orders of one GPU's thread, one of a job.
#[derive(Debug, Default)]
pub struct Arms(Vec<Arm>);

#[derive(Debug)]
struct Arm {
    /// The order that enabled.
    issue: Issue,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Armed,
    /// Its calls are under way.
    Firing,
    Fired(Issued),
}

/// What becomes of an order that a thread takes from its queue.
#[derive(Debug)]
pub enum Taken {
    /// Its calls are to be made.
    Carry(Carrying),
    /// They were, before it came.
    Done(Issued),
}

impl Arms {
    /// The thread takes an order.
    pub fn take(&mut self, issue: Issue) -> Taken {
        let own = |arm: &Arm| arm.issue.order.job == issue.order.job;
        let arm = self.0.iter().position(own).map(|at| self.0.swap_remove(at));
        if let Some(Arm {
            issue: armed,
            state: State::Fired(fired),
        }) = arm
            && issue.switch == Switch::Disable
            && fired.outcome == Outcome::Done
            // Channels that came since are in other calls.
            && Arc::ptr_eq(&armed.batches, &issue.batches)
        {
            return Taken::Done(Issued {
                order: issue.order,
                unasked: false,
                ..fired
            });
        }
        Taken::Carry(Carrying::new(issue))
    }

    /// All calls of an order are made; its answer.
    pub fn done(&mut self, carrying: Carrying) -> Issued {
        let issued = carrying.issued();
        let issue = carrying.into_issue();
        let enabled = issued.switch == Switch::Enable && issued.outcome == Outcome::Done;
        if issued.unasked {
            let own = |arm: &&mut Arm| arm.issue.order == issued.order;
            if let Some(arm) = self.0.iter_mut().find(own) {
                arm.state = State::Fired(issued);
            }
        } else if enabled && issue.watch.is_some() {
            let state = State::Armed;
            self.0.push(Arm { issue, state });
        }
        issued
    }

    /// Pairs left the lists: what was done before says nothing of who has their numbers now, and their processes' files
    /// are held no longer.
    pub fn released(&mut self) {
        self.0.retain(|arm| arm.is_armed() && arm.stands());
    }

    /// With nothing else to do: what is to be disabled for an edge, with the word taken that says so.
    pub fn due(&mut self) -> Option<Carrying> {
        self.0.retain(Arm::stands);
        let mut armed = self.0.iter_mut().filter(|arm| arm.is_armed());
        let arm =
            armed.find(|arm| arm.is_due() && arm.issue.wanted.fire(arm.issue.order.generation))?;
        arm.state = State::Firing;
        Some(Carrying::unasked(arm.issue.clone()))
    }

    /// Whether there is anything to wait for but tasks.
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.0.iter().any(|arm| arm.is_armed() && arm.stands())
    }

    /// Orders that are held, armed or not.
    #[must_use]
    pub fn held(&self) -> usize {
        self.0.len()
    }

    /// The pages whose doorbells are to be waited on, with repetitions. Read the doorbell before [`Self::due`], and
    /// sleep while it is what it was then.
    pub fn bells(&self) -> impl Iterator<Item = &PageRef> {
        let armed = self.0.iter().filter(|arm| arm.is_armed());
        armed
            .filter_map(|arm| arm.issue.watch.as_deref())
            .flat_map(|watch| watch.pages())
    }
}

impl Arm {
    fn is_armed(&self) -> bool {
        matches!(self.state, State::Armed)
    }

    /// Whether the shell has not taken it back.
    fn stands(&self) -> bool {
        !self.is_armed() || self.issue.wanted.is_armed(self.issue.order.generation)
    }

    fn is_due(&self) -> bool {
        let watch = self.issue.watch.as_deref();
        watch.is_some_and(crate::page::Watch::any_busy)
    }
}
