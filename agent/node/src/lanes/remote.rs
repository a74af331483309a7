//! Level L3: orders that processes carry out themselves.

use super::lane::Remote;
use super::orders::failed;
use super::{Lane, Lanes};
use crate::journal::{Journal, Place};
use crate::kinds::{Level, Switch, gpu_id};
use crate::members::Members;
use crate::message::{SetChannels, Tell};
use crate::request::{Context, Request};
use crate::task::Outcome;
use std::sync::Arc;
use tidegate_abi::rm::{MAX_PAIRS, Status};
use tidegate_policy::event::{Event, Order};
use tidegate_policy::ids::{GpuId, JobId};
use tidegate_policy::time::Instant;

/// What a process said of the calls it made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteAnswer {
    pub seq: u64,
    pub status: u32,
    pub entered_ns: u64,
    pub returned_ns: u64,
}

impl Lanes {
    pub(super) fn order_remote(
        &mut self,
        order: Order,
        switch: Switch,
        members: &mut Members,
        journal: &Journal,
        cx: &mut Context<'_>,
    ) {
        let Some(lane) = self.lane_mut(order.job, order.gpu) else {
            return;
        };
        // Answers to the overtaken order no longer count; what it left undone is unknown until this
        // one is done, which names every channel again.
        lane.remote = None;
        lane.order(order.generation, switch);
        lane.outstanding = 1;
        let prepared = Arc::clone(&lane.batches);
        let line = self.gpus.get(order.gpu);
        let Some(device_instance) = line.map(|line| line.gpu.device_instance) else {
            return;
        };
        let mut waiting = Vec::new();
        let mut failed = None;
        let named = prepared.iter().map(|batch| match switch {
            // What is known to be disabled is not disabled again, since firmware counts.
            Switch::Disable => batch.without(|place| journal.is_sure(place)),
            Switch::Enable => batch.clone(),
        });
        let named: Vec<_> = named.filter(|batch| batch.pairs() > 0).collect();
        for (at, batch) in named.iter().enumerate() {
            for &place in &batch.places {
                match switch {
                    Switch::Disable => journal.mark(place, batch.method),
                    Switch::Enable => journal.doubt(place),
                }
            }
            let times = match switch {
                Switch::Disable => 1,
                Switch::Enable => journal.enables(&batch.places),
            };
            for nth in 1..=times {
                let seq = self.take_seq();
                let next = named.get(at + 1);
                let tell = Tell::Set(SetChannels {
                    seq,
                    switch,
                    pairs: (0..batch.pairs())
                        .map(|at| (batch.call.h_client_list[at], batch.call.h_channel_list[at]))
                        .collect(),
                    device_instance,
                    method: batch.method,
                    more: nth < times || next.is_some_and(|next| next.session == batch.session),
                });
                if !members.tell(batch.session, tell) {
                    failed = Some(Status::TIMEOUT.0);
                    break;
                }
                // They run after the last of them.
                let places = if nth == times {
                    batch.places.clone()
                } else {
                    Default::default()
                };
                waiting.push((seq, places));
            }
        }
        let remote = Remote {
            order,
            switch,
            waiting,
            failed,
            entered_ns: cx.now,
            returned_ns: cx.now,
            deadline_ns: cx.now + cx.settings.answer_ns,
        };
        if let Some(lane) = self.lane_mut(order.job, order.gpu) {
            lane.remote = Some(remote);
        }
        self.finish_remote((order.job, order.gpu), members, cx);
    }

    /// A process of `job` has made the calls it was told to.
    pub(crate) fn remote_answered(
        &mut self,
        job: JobId,
        answer: RemoteAnswer,
        members: &mut Members,
        journal: &Journal,
        cx: &mut Context<'_>,
    ) {
        let Some(state) = self.job_mut(job) else {
            return;
        };
        let waits = |lane: &Lane| {
            let waiting = &lane.remote.as_ref()?.waiting;
            waiting.iter().position(|(own, _)| *own == answer.seq)
        };
        let mut lanes = state.lanes.iter_mut().enumerate();
        let found = lanes.find_map(|(index, lane)| {
            let at = waits(lane)?;
            Some((index, at, lane.remote.as_mut()?))
        });
        let Some((index, at, remote)) = found else {
            return;
        };
        let (_, places) = remote.waiting.swap_remove(at);
        // Stamps of another process: no later than now, no earlier than the order.
        remote.entered_ns = answer.entered_ns.clamp(remote.entered_ns, cx.now);
        remote.returned_ns = answer.returned_ns.clamp(remote.entered_ns, cx.now);
        if answer.status != 0 {
            remote.failed = Some(answer.status);
        } else {
            for place in places {
                match remote.switch {
                    Switch::Enable => journal.clear(place),
                    Switch::Disable => journal.confirm(place),
                }
            }
        }
        self.finish_remote((job, gpu_id(index)), members, cx);
    }

    fn finish_remote(
        &mut self,
        (job, gpu): (JobId, GpuId),
        members: &mut Members,
        cx: &mut Context<'_>,
    ) {
        let Some(lane) = self.lane_mut(job, gpu) else {
            return;
        };
        let done = lane.remote.take_if(|remote| remote.waiting.is_empty());
        let Some(Remote {
            order,
            switch,
            failed: status,
            entered_ns,
            returned_ns,
            ..
        }) = done
        else {
            return;
        };
        let outcome = status.map_or(Outcome::Done, |status| Outcome::Failed(Status(status)));
        self.applied(order, switch, outcome, members, cx);
        cx.step(match (status, switch) {
            (Some(status), _) => failed(order, switch, status),
            (None, Switch::Disable) => Event::Disabled {
                order,
                entered: Instant::from_nanos(entered_ns),
                returned: Instant::from_nanos(returned_ns),
            },
            (None, Switch::Enable) => Event::Enabled { order },
        });
        if switch == Switch::Disable {
            cx.ask(Request::ProveAgain(job, gpu));
        }
        cx.ask(Request::JobTickets(job));
    }

    /// When the next order of level L3 counts as failed.
    pub(crate) fn remote_deadline(&self, level: Level) -> Option<u64> {
        if level != Level::L3 {
            return None;
        }
        let lanes = self.jobs.iter().flat_map(|job| &job.lanes);
        lanes
            .filter_map(|lane| lane.remote.as_ref())
            .map(|remote| remote.deadline_ns)
            .min()
    }

    /// Nobody listened for so long.
    pub(crate) fn put_off(&mut self, by_ns: u64) {
        let lanes = self.jobs.iter_mut().flat_map(|job| &mut job.lanes);
        for remote in lanes.filter_map(|lane| lane.remote.as_mut()) {
            remote.deadline_ns += by_ns;
        }
    }

    /// Fails the orders that a process has not answered in time.
    pub(crate) fn give_up_on_remotes(&mut self, members: &mut Members, cx: &mut Context<'_>) {
        if cx.settings.level != Level::L3 {
            return;
        }
        for job in self.job_ids() {
            for gpu in self.gpus.ids() {
                let lane = self.lane_mut(job, gpu);
                let late = lane
                    .and_then(|lane| lane.remote.as_mut())
                    .filter(|remote| cx.now >= remote.deadline_ns);
                if let Some(remote) = late {
                    remote.waiting.clear();
                    remote.failed = Some(Status::TIMEOUT.0);
                    cx.counters.remotes_late += 1;
                    self.finish_remote((job, gpu), members, cx);
                }
            }
        }
    }

    /// Has the process itself enable channels that left the lists. It obeys in order, and nobody else can.
    pub(crate) fn release_remote(
        &mut self,
        session: u64,
        (job, gpu): (Option<JobId>, GpuId),
        places: Vec<Place>,
        (members, journal): (&mut Members, &Journal),
        cx: &mut Context<'_>,
    ) {
        let line = self.gpus.get(gpu);
        let Some(device_instance) = line.map(|line| line.gpu.device_instance) else {
            return;
        };
        for places in places.chunks(MAX_PAIRS) {
            for _ in 0..journal.enables(places) {
                let tell = Tell::Set(SetChannels {
                    seq: self.take_seq(),
                    switch: Switch::Enable,
                    pairs: places.iter().map(|&place| journal.pair(place)).collect(),
                    device_instance,
                    method: cx.settings.method,
                    more: false,
                });
                members.tell(session, tell);
            }
        }
        let lane = job.and_then(|job| self.lane_mut(job, gpu));
        match lane.filter(|lane| lane.outstanding != 0) {
            Some(lane) => lane.retired.extend(places),
            None => cx.ask(Request::Free(places)),
        }
    }
}
