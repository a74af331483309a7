//! The GPU's issue thread: it makes one call after the other, by the agent's own rules
//! ([`tidegate_node::task`]). What is modelled is how long a call takes.

use std::collections::VecDeque;

use tidegate_node::journal::Journal;
use tidegate_node::kinds::Switch;
use tidegate_node::task::{Carrying, Issue, Issued};

use crate::costs::{Costs, ns};

/// A call under way.
#[derive(Debug)]
struct Call {
    carrying: Carrying,
    entered: u64,
    ends: u64,
}

/// The thread.
#[derive(Debug)]
pub(super) struct Thread {
    disable: u64,
    enable: u64,
    waiting: VecDeque<Issue>,
    call: Option<Call>,
}

impl Thread {
    pub fn new(costs: &Costs) -> Self {
        Self {
            disable: ns(costs.disable_save),
            enable: ns(costs.enable_restore),
            waiting: VecDeque::new(),
            call: None,
        }
    }

    pub fn put(&mut self, issue: Issue) {
        self.waiting.push_back(issue);
    }

    /// When its call returns.
    pub fn ends(&self) -> Option<u64> {
        self.call.as_ref().map(|call| call.ends)
    }

    /// Its call has returned: what is known of the order now. What of it is left to be done waits.
    pub fn returned(&mut self, now: u64, journal: &Journal) -> Option<Turn> {
        let mut call = self.call.take_if(|call| now >= call.ends)?;
        call.carrying.answered(Ok(()), (call.entered, now), journal);
        Some(self.go_on(call.carrying, now, journal))
    }

    /// Begins its next call, if it is in none.
    pub fn begin(&mut self, now: u64, journal: &Journal) -> Option<Turn> {
        if self.call.is_some() {
            return None;
        }
        let issue = self.waiting.pop_front()?;
        Some(self.go_on(Carrying::new(issue), now, journal))
    }

    fn go_on(&mut self, mut carrying: Carrying, now: u64, journal: &Journal) -> Turn {
        if carrying.call(journal, now).is_none() {
            return Turn::Over(carrying.issued());
        }
        let switch = carrying.switch();
        let takes = match switch {
            Switch::Disable => self.disable,
            Switch::Enable => self.enable,
        };
        self.call = Some(Call {
            carrying,
            entered: now,
            ends: now + takes,
        });
        Turn::Entered(switch, takes)
    }

    /// Its call returns then, and not when it would have.
    pub fn ends_at(&mut self, ends: u64) {
        if let Some(call) = &mut self.call {
            call.ends = ends;
        }
    }
}

/// What the thread did.
#[derive(Clone, Copy, Debug)]
pub(super) enum Turn {
    /// It entered a call, which takes so many ns.
    Entered(Switch, u64),
    /// It is done with an order.
    Over(Issued),
}
