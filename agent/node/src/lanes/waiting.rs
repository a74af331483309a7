//! The queue of enables. [`super::opening`] decides when the next one is issued.

use std::collections::VecDeque;
use tidegate_policy::event::Order;
use tidegate_policy::ids::{GpuId, GpuSet, JobId};

/// The enable under way, and those that wait.
#[derive(Debug, Default)]
pub(super) struct Opening {
    /// Handed on, without an answer.
    pub(super) under_way: Option<Order>,
    /// In the order in which they were given, at most one of a lane, each with the GPUs whose edges stop its job.
    waiting: VecDeque<(Order, GpuSet)>,
}

impl Opening {
    /// One more, behind all.
    pub(super) fn put(&mut self, order: Order, gang: GpuSet) {
        self.waiting.push_back((order, gang));
    }

    /// Takes the one that came first.
    pub(super) fn take_first(&mut self) -> Option<(Order, GpuSet)> {
        self.waiting.pop_front()
    }

    /// Takes the one of a lane, if it waits.
    pub(super) fn take(&mut self, job: JobId, gpu: GpuId) -> Option<Order> {
        let own = |(order, _): &(Order, GpuSet)| order.job == job && order.gpu == gpu;
        let at = self.waiting.iter().position(own)?;
        self.waiting.remove(at).map(|(order, _)| order)
    }
}
