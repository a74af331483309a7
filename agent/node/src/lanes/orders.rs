//! Orders to disable and enable, at every level, and their answers.
//!
//! L1 and L2: prepared calls go to the GPU's issue thread. L3: each process receives the order and answers. L5: the
//! launch gates are the order.

use super::Lanes;
use crate::batch::{Batch, Kick, Via};
use crate::journal::Journal;
use crate::journal::Place;
use crate::kinds::{Level, Method, Switch};
use crate::members::Members;
use crate::page::Watch;
use crate::request::{Context, Notice, Request};
use crate::task::{Issue, Issued, Outcome, Wish};
use std::sync::Arc;
use tidegate_abi::rm::Status;
use tidegate_policy::effect::Look;
use tidegate_policy::event::{Event, Order};
use tidegate_policy::ids::{GpuId, GpuSet, JobId};
use tidegate_policy::time::Instant;

impl Lanes {
    /// Carries out policy's order, or sees to it. `gang`: the GPUs whose busy edges stop the job.
    pub(crate) fn order(
        &mut self,
        order: Order,
        (switch, look, gang): (Switch, Look, GpuSet),
        members: &mut Members,
        journal: &Journal,
        returned_ns: impl FnOnce() -> u64,
        cx: &mut Context<'_>,
    ) {
        // Whoever is given an order replaces what was ordered before, so an older one is never handed on.
        let newest = self.lane(order.job, order.gpu).map(|lane| lane.newest);
        if newest.is_some_and(|newest| order.generation < newest) {
            cx.counters.orders_stale += 1;
            return;
        }
        if self.replaces_waiting(order, switch, cx) {
            return;
        }
        if switch == Switch::Enable && look == Look::First && self.gpus.is_online_busy(order.gpu) {
            return Self::skip(order, cx);
        }
        match cx.settings.level {
            Level::L5 => self.order_launch_gate(order, switch, members, returned_ns, cx),
            Level::L3 => {
                self.order_remote(order, switch, members, journal, cx);
                self.refresh_gates_beside(order.job, members, Level::L3);
            }
            Level::L1 | Level::L2 => {
                let may_wait = switch == Switch::Enable && look == Look::First;
                if !may_wait || !self.has_to_wait(order, gang) {
                    self.hand_on(order, (switch, look, gang), members, cx);
                }
            }
        }
    }

    pub(super) fn hand_on(
        &mut self,
        order: Order,
        (switch, look, gang): (Switch, Look, GpuSet),
        members: &mut Members,
        cx: &mut Context<'_>,
    ) {
        let Some(line) = self.gpus.get(order.gpu) else {
            return;
        };
        let guards = Arc::clone(&line.guards);
        // An enable that online does not stop is not taken back for it either.
        let arms =
            switch == Switch::Enable && look == Look::First && self.gpus.keeps_armed(order.gpu);
        let watch = arms.then(|| self.watch(order, gang)).flatten();
        let Some(lane) = self.lane_mut(order.job, order.gpu) else {
            return;
        };
        lane.order(order.generation, switch);
        lane.strayed &= switch == Switch::Enable;
        let taken = lane.wanted.order(
            order.generation,
            match switch {
                Switch::Disable => Wish::Disable,
                Switch::Enable if watch.is_some() => Wish::EnableArmed,
                Switch::Enable => Wish::Enable,
            },
        );
        lane.taken_back(taken);
        let issue = Issue {
            order,
            switch,
            batches: Arc::clone(&lane.batches),
            wanted: Arc::clone(&lane.wanted),
            guards,
            look,
            watch,
        };
        if self.gpus.issue(order.gpu, issue, cx.now) {
            if let Some(lane) = self.lane_mut(order.job, order.gpu) {
                lane.outstanding += 1;
            }
            if switch == Switch::Enable && look == Look::First {
                self.opens(order);
            }
            self.refresh_gates_beside(order.job, members, cx.settings.level);
        } else {
            cx.step(failed(order, switch, Status::INVALID_STATE.0));
        }
    }

    /// What an order to enable is to be armed with, if it is.
    fn watch(&mut self, order: Order, gang: GpuSet) -> Option<Arc<Watch>> {
        let lane = self.lane(order.job, order.gpu)?;
        if lane.strayed || lane.batches.is_empty() || !gang.contains(order.gpu) {
            return None;
        }
        if let Some((on, watch)) = &lane.watch
            && *on == gang
        {
            return Some(Arc::clone(watch));
        }
        let lines = gang.iter().filter_map(|gpu| self.gpus.get(gpu));
        let guards = lines.map(|line| Arc::clone(&line.guards)).collect();
        let watch = Arc::new(Watch(guards));
        let lane = self.lane_mut(order.job, order.gpu)?;
        lane.watch = Some((gang, Arc::clone(&watch)));
        Some(watch)
    }

    /// Whether the newest order may be armed, or have been.
    pub(crate) fn is_watched(&self, job: JobId, gpu: GpuId) -> bool {
        let lane = self.lane(job, gpu);
        lane.is_some_and(|lane| lane.watch.is_some())
    }

    /// Takes back every armed order: the words that forbid an enable are others from here on, or nobody is here to
    /// order.
    pub(crate) fn disarm_all(&mut self) {
        for lane in self.jobs.iter_mut().flat_map(|job| &mut job.lanes) {
            lane.disarm();
            lane.watch = None;
        }
    }

    /// An issue thread has done what an armed order says. False: a newer order is behind it.
    pub(crate) fn fired(&mut self, order: Order) -> bool {
        let newest = |lane: &&mut super::Lane| lane.newest == order.generation;
        let Some(lane) = self.lane_mut(order.job, order.gpu).filter(newest) else {
            return false;
        };
        lane.applied = super::Applied::Unknown;
        true
    }

    /// Whether nobody has ordered anything since an armed order was acted on. Then policy does not find the edge, and
    /// no further order of the job is armed on a GPU until policy has disabled it there.
    pub(crate) fn has_strayed(&mut self, order: Order) -> bool {
        let lane = self.lane(order.job, order.gpu);
        let strayed = lane.is_some_and(|lane| lane.newest == order.generation);
        if let Some(job) = self.job_mut(order.job).filter(|_| strayed) {
            for lane in &mut job.lanes {
                lane.strayed = true;
            }
        }
        strayed
    }

    /// An issue thread has done, or not done, what it was ordered.
    pub(crate) fn answered(&mut self, issued: Issued, members: &mut Members, cx: &mut Context<'_>) {
        let Issued {
            order,
            switch,
            outcome,
            ..
        } = issued;
        self.gpus.answered(order.gpu, cx.now);
        self.applied(order, switch, outcome, members, cx);
        self.opened(order);
        match (outcome, switch) {
            (Outcome::Done, Switch::Disable) => {
                let entered = if issued.entered_ns == 0 {
                    cx.now
                } else {
                    issued.entered_ns
                };
                cx.step(Event::Disabled {
                    order,
                    entered: Instant::from_nanos(entered),
                    returned: Instant::from_nanos(issued.returned_ns.max(entered)),
                });
            }
            (Outcome::Done, Switch::Enable) => {
                self.took_effect(order, issued.looked_ns, cx);
                cx.step(Event::Enabled { order });
            }
            (Outcome::Withheld, _) => {
                cx.counters.enables_withheld += 1;
                if issued.looked_ns != 0 {
                    // It was held up behind a first batch, which runs until policy's next order.
                    overtaken(order, issued.looked_ns, cx);
                }
                cx.ask(Request::ReadActivity(GpuSet::of(order.gpu)));
                cx.step(Event::EnableSkipped { order });
            }
            (Outcome::Failed(status), _) => cx.step(failed(order, switch, status.0)),
        }
        if switch == Switch::Disable {
            cx.ask(Request::ProveAgain(order.job, order.gpu));
        }
        cx.ask(Request::JobTickets(order.job));
        // At once: the end of the turn, which finds what a stalled GPU keeps back, may be many answers away.
        self.open_next(members, cx);
    }

    /// An enable took effect; online was last looked at `looked_ns`. If it began meanwhile, its disable is on the way
    /// already, and policy will not call this a wake.
    fn took_effect(&mut self, order: Order, looked_ns: u64, cx: &mut Context<'_>) {
        let Some(lane) = self.lane_mut(order.job, order.gpu) else {
            return;
        };
        lane.looked_ns = looked_ns;
        if lane.newest != order.generation && lane.is_ordered_to_disable() {
            overtaken(order, looked_ns, cx);
        }
    }

    /// Notes what an answer says of the channels.
    pub(super) fn applied(
        &mut self,
        order: Order,
        switch: Switch,
        outcome: Outcome,
        members: &mut Members,
        cx: &mut Context<'_>,
    ) {
        let Some(lane) = self.lane_mut(order.job, order.gpu) else {
            return;
        };
        lane.answered(switch, outcome);
        if lane.outstanding == 0 && !lane.retired.is_empty() {
            cx.ask(Request::Free(std::mem::take(&mut lane.retired)));
        }
        self.refresh_gates_beside(order.job, members, cx.settings.level);
    }

    /// When online was last looked at before any enable of a job; 0: it was not.
    pub(crate) fn looked_before(&self, job: JobId) -> u64 {
        let lanes = self.job(job).map(|job| &job.lanes);
        let looks = lanes.into_iter().flatten().map(|lane| lane.looked_ns);
        looks.filter(|&looked| looked != 0).min().unwrap_or(0)
    }
}

/// What a failed order is to policy.
pub(super) const fn failed(order: Order, switch: Switch, status: u32) -> Event<'static> {
    match switch {
        Switch::Disable => Event::DisableFailed { order, status },
        Switch::Enable => Event::EnableFailed { order, status },
    }
}

fn overtaken(order: Order, looked_ns: u64, cx: &mut Context<'_>) {
    cx.counters.wakes_overtaken += 1;
    let value_ns = since(looked_ns, cx.now);
    cx.emit(Notice {
        kind: "wake_overtaken",
        gpu: Some(order.gpu),
        job: Some(order.job),
        value_ns,
        ..Notice::default()
    });
}

/// How long ago online was looked at; 0: it was not.
pub(crate) const fn since(looked_ns: u64, now: u64) -> u64 {
    match looked_ns {
        0 => 0,
        looked => now.saturating_sub(looked),
    }
}

/// Calls that enable pairs which left the lists, one client each.
pub(crate) fn releasing(places: &[Place], journal: &Journal, method: Method) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    for &place in places {
        let (client, channel) = journal.pair(place);
        let same = |batch: &&mut Batch| batch.call.h_client_list[0] == client;
        let pushed = batches
            .last_mut()
            .filter(same)
            .is_some_and(|batch| batch.push(client, channel, place));
        if !pushed {
            let mut batch = Batch::new(Via::Agent);
            batch.push(client, channel, place);
            batches.push(batch);
        }
    }
    if let (Method::Restart, Some(last)) = (method, batches.last_mut()) {
        last.kicks.push(Kick::RestartGraphics { otherwise: None });
    }
    batches
}

/// Which of the places that left the lists may be disabled, by GPU; the others are free at once.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    pub free: Vec<Place>,
    pub disabled: Vec<(GpuId, Vec<Place>)>,
}

impl Lanes {
    /// Sorts places that leave the lists of a job.
    pub(crate) fn leaving(
        &mut self,
        job: Option<JobId>,
        places: Vec<(Option<GpuId>, Place)>,
    ) -> Leaving {
        let mut leaving = Leaving::default();
        for (gpu, place) in places {
            let own = job.zip(gpu);
            let lane = own.and_then(|(job, gpu)| self.lane_mut(job, gpu));
            let lane = lane.map(|lane| {
                // No thread may act on calls that name a pair which is somebody else's by then.
                lane.disarm();
                &*lane
            });
            match (lane, gpu) {
                (Some(lane), Some(gpu)) if lane.may_be_disabled() => {
                    let known = leaving.disabled.iter_mut().find(|(on, _)| *on == gpu);
                    match known {
                        Some((_, places)) => places.push(place),
                        None => leaving.disabled.push((gpu, vec![place])),
                    }
                }
                _ => leaving.free.push(place),
            }
        }
        leaving
    }
}
