//! The launch gates of a job's processes: the only means at level L5, and in addition to channels at other levels.

use super::{Applied, Lane, Lanes};
use crate::kinds::{Level, Switch};
use crate::members::Members;
use crate::request::{Context, Request};
use tidegate_abi::gate::Gate;
use tidegate_policy::event::{Event, Order};
use tidegate_policy::ids::{GpuId, JobId};
use tidegate_policy::time::Instant;

impl Lanes {
    /// An order at level L5: the gate words are the order, and the answer is immediate. `returned_ns`: the time
    /// after they were written.
    pub(crate) fn order_launch_gate(
        &mut self,
        order: Order,
        switch: Switch,
        members: &mut Members,
        returned_ns: impl FnOnce() -> u64,
        cx: &mut Context<'_>,
    ) {
        let entered = Instant::from_nanos(cx.now);
        if let Some(lane) = self.lane_mut(order.job, order.gpu) {
            lane.launches_pass = switch == Switch::Enable;
            lane.ordered = Some(switch);
            lane.newest = order.generation;
            lane.applied = match switch {
                Switch::Disable => Applied::Disabled,
                Switch::Enable => Applied::Enabled,
            };
        }
        self.refresh_gates(order.job, members, cx.settings.level);
        cx.step(match switch {
            Switch::Disable => Event::Disabled {
                order,
                entered,
                returned: Instant::from_nanos(returned_ns()),
            },
            Switch::Enable => Event::Enabled { order },
        });
    }

    /// Sets what policy does with the launches of a job on every device.
    pub(crate) fn set_launch_gate(&mut self, job: JobId, gate: Gate) {
        if let Some(state) = self.job_mut(job) {
            state.launches = gate;
        }
    }

    /// Lets launches of a job pass everywhere: the agent is ending.
    pub(crate) fn open_all_gates(&mut self, job: JobId) {
        if let Some(state) = self.job_mut(job) {
            state.launches = Gate::Open;
            for lane in &mut state.lanes {
                lane.launches_pass = true;
            }
        }
    }

    /// Writes the gate words of a job's processes as they should stand.
    pub(crate) fn refresh_gates(&self, job: JobId, members: &mut Members, level: Level) {
        let Some(state) = self.job(job) else {
            return;
        };
        let closed = |launch_gated: bool, gpu: Option<GpuId>| {
            let lane = gpu.and_then(|gpu| state.lanes.get(gpu.index()));
            if level == Level::L5 {
                lane.is_none_or(|lane| !lane.launches_pass)
            } else {
                let held = || lane.is_none_or(Lane::holds_launches);
                state.launches != Gate::Open || (launch_gated && held())
            }
        };
        let word = |launch_gated: bool, gpu: Option<GpuId>| match closed(launch_gated, gpu) {
            true if state.launches == Gate::Held => Gate::Held,
            true => Gate::Closed,
            false => Gate::Open,
        };
        members.each_of_job(job, |session| {
            let gated = session.state.launch_gated;
            if let Some(page) = &session.link.page {
                for (at, slot) in session.slots.iter().enumerate() {
                    page.set_gate(at, word(gated, slot.gpu));
                }
            } else {
                session.tell_gates(|gpu| closed(gated, Some(gpu)));
            }
        });
    }

    /// After an order or its answer: gates of launches that stand for channels.
    pub(crate) fn refresh_gates_beside(&self, job: JobId, members: &mut Members, level: Level) {
        if members
            .of_job(job)
            .any(|session| session.state.launch_gated)
        {
            self.refresh_gates(job, members, level);
        }
    }

    /// Gives an enable up because online is busy.
    pub(crate) fn skip(order: Order, cx: &mut Context<'_>) {
        cx.ask(Request::ReadActivity(tidegate_policy::ids::GpuSet::of(
            order.gpu,
        )));
        cx.step(Event::EnableSkipped { order });
    }
}
