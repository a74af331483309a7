//! Enables, one call at a time on the whole node.
//!
//! The driver makes such calls one after the other, whichever GPUs they name. If all GPUs of a node were enabled at
//! once, an edge would wait for every one of these calls. So the next enable is issued only when the previous one is
//! answered. An enable that waits here costs an edge nothing: the disable replaces it, neither call is made, and the
//! driver is free for the calls that are needed. An enable never delays a disable.
//!
//! Two enables do not wait here: one that nothing may stop ([`Look::Unconditional`]), and one behind a stalled thread,
//! whose call may never return.

use super::{Applied, Lanes};
use crate::kinds::Switch;
use crate::members::Members;
use crate::request::{Context, Request};
use crate::task::Wish;
use tidegate_policy::effect::Look;
use tidegate_policy::event::{Event, Order};
use tidegate_policy::ids::GpuSet;
use tidegate_policy::time::Instant;

impl Lanes {
    /// Whether an enable waits here, since another is under way.
    pub(super) fn has_to_wait(&mut self, order: Order, gang: GpuSet) -> bool {
        if self.opening.under_way.is_none() {
            return false;
        }
        let Some(lane) = self.lane_mut(order.job, order.gpu) else {
            return false;
        };
        // Whether the channels are still those of the order before stays as it is.
        lane.newest = order.generation;
        lane.ordered = Some(Switch::Enable);
        lane.outstanding += 1;
        self.opening.put(order, gang);
        true
    }

    /// An enable was handed on.
    pub(super) fn opens(&mut self, order: Order) {
        if self.opening.under_way.is_none() && !self.gpus.is_stalled(order.gpu) {
            self.opening.under_way = Some(order);
        }
    }

    /// An order replaces the enable of its lane that waits, if one does. Whether it is done with that: it disables, and
    /// all channels are disabled since the order before. A call for them would only come before those that are needed.
    pub(super) fn replaces_waiting(
        &mut self,
        order: Order,
        switch: Switch,
        cx: &mut Context<'_>,
    ) -> bool {
        let Some(waited) = self.opening.take(order.job, order.gpu) else {
            return false;
        };
        self.waits_no_more(waited);
        cx.counters.enables_withheld += 1;
        cx.step(Event::EnableSkipped { order: waited });
        let Some(lane) = self.lane_mut(order.job, order.gpu) else {
            return false;
        };
        let stands = lane.outstanding == 0 && !lane.stale && lane.applied == Applied::Disabled;
        if switch != Switch::Disable || !stands {
            return false;
        }
        lane.order(order.generation, Switch::Disable);
        let taken = lane.wanted.order(order.generation, Wish::Disable);
        lane.taken_back(taken);
        let now = Instant::from_nanos(cx.now);
        cx.step(Event::Disabled {
            order,
            entered: now,
            returned: now,
        });
        cx.ask(Request::JobTickets(order.job));
        true
    }

    /// Processes may have enabled their channels by themselves.
    pub(crate) fn doubt(&mut self) {
        for lane in self.jobs.iter_mut().flat_map(|job| &mut job.lanes) {
            if lane.applied == Applied::Disabled {
                lane.applied = Applied::Unknown;
            }
        }
    }

    fn waits_no_more(&mut self, order: Order) {
        if let Some(lane) = self.lane_mut(order.job, order.gpu) {
            lane.outstanding = lane.outstanding.saturating_sub(1);
        }
    }

    /// An order was answered.
    pub(super) fn opened(&mut self, order: Order) {
        if self.opening.under_way == Some(order) {
            self.opening.under_way = None;
        }
    }

    /// Hands the next enable on, if none is under way on a GPU whose thread answers.
    pub(crate) fn open_next(&mut self, members: &mut Members, cx: &mut Context<'_>) {
        if let Some(order) = self.opening.under_way
            && self.gpus.is_stalled(order.gpu)
        {
            self.opening.under_way = None;
        }
        while self.opening.under_way.is_none()
            && let Some((order, gang)) = self.opening.take_first()
        {
            self.waits_no_more(order);
            if self.gpus.is_online_busy(order.gpu) {
                Self::skip(order, cx);
            } else {
                self.hand_on(order, (Switch::Enable, Look::First, gang), members, cx);
            }
        }
    }
}
