//! One job on one GPU: policy's orders and their answers.

use crate::batch::Batch;
use crate::journal::Place;
use crate::kinds::Switch;
use crate::page::Watch;
use crate::task::{Outcome, TakenBack, Wanted};
use std::sync::Arc;
use tidegate_policy::event::Order;
use tidegate_policy::ids::{Generation, GpuSet};

/// A session's RM client.
pub type Proven = (u64, u32);

/// One job on one GPU.
#[derive(Debug, Default)]
pub struct Lane {
    /// Prepared calls.
    pub(crate) batches: Arc<Vec<Batch>>,
    /// The clients they name whose proof can be made again.
    pub(crate) proven: Vec<Proven>,
    /// What is wanted, for the issue thread.
    pub(crate) wanted: Arc<Wanted>,
    /// What its armed orders watch, on which GPUs, until one of the words is another.
    pub(crate) watch: Option<(GpuSet, Arc<Watch>)>,
    /// It was disabled for an edge that policy did not find: no order is armed until policy has disabled it.
    pub(crate) strayed: bool,
    /// The newest order's number.
    pub(crate) newest: Generation,
    /// Orders without an answer.
    pub(crate) outstanding: u32,
    /// What the newest order asked for; None: there was none.
    pub(crate) ordered: Option<Switch>,
    /// When the words of online processes were read for the last enable; 0: they were not.
    pub(crate) looked_ns: u64,
    /// At level L5: launches may pass.
    pub(crate) launches_pass: bool,
    /// What the last answer said.
    pub(crate) applied: Applied,
    /// A call for several processes was refused, and taken for each of them: from then on each has calls of its own.
    pub(crate) apart: bool,
    /// The channels changed after the newest order was given.
    pub(crate) stale: bool,
    /// At level L3: places of channels that are gone, until no answer can touch them any more.
    pub(crate) retired: Vec<Place>,
    /// At level L3: the newest order and the answers it still waits for.
    pub(crate) remote: Option<Remote>,
}

/// What is known of the channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Applied {
    /// They run.
    #[default]
    Enabled,
    /// They do not.
    Disabled,
    /// An order failed.
    Unknown,
}

impl Lane {
    pub(crate) fn is_ordered_to_disable(&self) -> bool {
        self.ordered == Some(Switch::Disable)
    }

    /// Whether what policy wants is what stands, for every channel there is.
    pub(crate) fn is_settled(&self) -> bool {
        self.outstanding == 0
            && (!self.is_ordered_to_disable() || (!self.stale && self.applied == Applied::Disabled))
    }

    /// Whether launches that are gated beside channels must wait.
    pub(crate) fn holds_launches(&self) -> bool {
        self.is_ordered_to_disable() || self.may_be_disabled()
    }

    /// Whether a channel that leaves the lists now may be disabled, or will be by an order under way.
    pub(crate) fn may_be_disabled(&self) -> bool {
        self.outstanding != 0 || self.applied != Applied::Enabled
    }

    /// The newest order.
    pub(crate) fn order(&mut self, generation: Generation, switch: Switch) {
        self.ordered = Some(switch);
        self.newest = generation;
        self.stale = false;
    }

    /// Takes back the order that is armed.
    pub(crate) fn disarm(&mut self) {
        let taken = self.wanted.disarm();
        self.taken_back(taken);
    }

    /// Notes what came of an armed order that was taken back.
    pub(crate) fn taken_back(&mut self, taken: TakenBack) {
        if taken == TakenBack::TooLate {
            self.applied = Applied::Unknown;
        }
    }

    /// Notes what an answer says of the channels.
    pub(crate) fn answered(&mut self, switch: Switch, outcome: Outcome) {
        self.outstanding = self.outstanding.saturating_sub(1);
        match (outcome, switch) {
            (Outcome::Done, Switch::Disable) => self.applied = Applied::Disabled,
            (Outcome::Done, Switch::Enable) => self.applied = Applied::Enabled,
            (Outcome::Withheld, _) => {}
            (Outcome::Failed(_), _) => self.applied = Applied::Unknown,
        }
    }

    /// Channels managed here.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.batches.iter().map(Batch::pairs).sum()
    }

    /// What the last answer said.
    #[must_use]
    pub const fn applied(&self) -> Applied {
        self.applied
    }
}

/// An order that processes carry out themselves.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(super) order: Order,
    pub(super) switch: Switch,
    /// Calls without an answer: sequence number and places.
    pub(super) waiting: Vec<(u64, Vec<Place>)>,
    /// First failure.
    pub(super) failed: Option<u32>,
    /// Entry of the last call.
    pub(super) entered_ns: u64,
    /// Return of the last call.
    pub(super) returned_ns: u64,
    /// When it counts as failed.
    pub(super) deadline_ns: u64,
}
