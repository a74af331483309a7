//! Orders to disable and enable, at every level, and their answers.
//!
//! L1 and L2: prepared calls go to the GPU's issue thread. L3: each process is told, and answers. L5:
//! the gate words are the order, and the answer is immediate.

use super::gang::{self, Applied, Remote};
use super::session::Session;
use super::{Control, Gang, Job, gpu_id};
use crate::channel::{Batch, Kick, Via};
use crate::config::{Level, Method};
use crate::events::Happening;
use crate::gate::{self, Gate};
use crate::inbox::Tell;
use crate::issue::{Files, Issued, Order as Prepared, Outcome, Release, Task};
use crate::journal::Place;
use crate::plain;
use std::sync::Arc;
use tidegate_abi::rm::Status;
use tidegate_policy::effect::Look;
use tidegate_policy::event::{Event, Order};
use tidegate_policy::ids::{Generation, GpuId, JobId, SessionId};
use tidegate_policy::time::Instant;

impl Control {
    /// The job a process names, else its cgroup, else itself. Jobs of different users never mix.
    pub(super) fn job_of(&mut self, session: &Session, named: &str) -> JobId {
        let name = if !named.is_empty() {
            named.to_owned()
        } else if session.peer.cgroup.len() > 1 {
            plain::line(&session.peer.cgroup)
        } else {
            format!("pid {}", session.peer.pid)
        };
        let uid = session.peer.uid;
        let known = self
            .jobs
            .iter()
            .position(|job| job.uid == uid && *job.name == *name);
        let index = known.unwrap_or_else(|| {
            self.jobs.push(Job {
                uid,
                name: Arc::from(name),
                launches: Gate::Closed,
                gangs: self.gpus.iter().map(|_| Gang::default()).collect(),
                launched: 0,
                blocks_lost: 0,
            });
            self.jobs.len() - 1
        });
        JobId(u32::try_from(index).unwrap_or(u32::MAX))
    }

    /// Prepares the calls for a job's channels on `gpu` anew.
    pub(super) fn prepare(&mut self, job: JobId, gpu: GpuId, grown: bool) {
        let (level, method) = (self.level, self.method);
        let sessions = || self.sessions.values().filter(|s| s.job == Some(job));
        let prepared = gang::batches(sessions(), gpu, level, method);
        let proven = gang::proven(sessions(), &prepared);
        if let Some(gang) = self.gang(job, gpu) {
            gang.batches = Arc::new(prepared);
            gang.proven = proven;
            gang.stale |= grown;
        }
    }

    /// Takes channels of a session out of everything. A pair leaves the lists enabled or gone: whoever
    /// has its number by now may not be whom policy gated, and no order would name it again.
    pub(super) fn retire(
        &mut self,
        session: u64,
        job: Option<JobId>,
        places: Vec<(Option<GpuId>, Place)>,
    ) {
        self.retire_with(session, job, places, None);
    }

    /// As [`Self::retire`], of a process that ended with these files.
    pub(super) fn retire_with(
        &mut self,
        session: u64,
        job: Option<JobId>,
        places: Vec<(Option<GpuId>, Place)>,
        dead: Option<Arc<Files>>,
    ) {
        let mut free = Vec::new();
        let mut left: Vec<(GpuId, Vec<Place>)> = Vec::new();
        for (gpu, place) in places {
            let gang = job.zip(gpu).and_then(|(job, gpu)| self.gang(job, gpu));
            match (gang, gpu) {
                (Some(gang), Some(gpu)) if gang.may_be_disabled() => {
                    match left.iter_mut().find(|(on, _)| *on == gpu) {
                        Some((_, places)) => places.push(place),
                        None => left.push((gpu, vec![place])),
                    }
                }
                _ => free.push(place),
            }
        }
        self.give_back(free);
        for (gpu, places) in left {
            if self.level == Level::L3 {
                self.release_remote(session, job, gpu, places);
            } else {
                self.release(gpu, places, dead.clone());
            }
        }
    }

    /// Has the issue thread enable pairs behind every order that still names them.
    pub(super) fn release(&mut self, gpu: GpuId, places: Vec<Place>, dead: Option<Arc<Files>>) {
        let mut batches: Vec<Batch> = Vec::new();
        for place in places {
            let (client, channel) = self.journal.pair(place);
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
        if let (Method::Restart, Some(last)) = (self.method, batches.last_mut()) {
            last.kicks.push(Kick::RestartGraphics { otherwise: None });
        }
        let issuer = self
            .gpus
            .get(gpu.index())
            .and_then(|gpu| gpu.issuer.as_ref());
        self.releases += 1;
        let release = Task::Release(Release { batches, dead });
        let unsent = match issuer {
            Some(issuer) => match issuer.try_send(release) {
                Err(refused) => refused.into_inner(),
                Ok(()) => return,
            },
            None => release,
        };
        if let Task::Release(Release { batches, .. }) = unsent {
            // The driver owes thousands of answers, or this level asks nothing of it here: a thread of
            // its own may wait.
            let places = batches.iter().flat_map(|batch| &batch.places);
            let marked = places.map(|&place| self.journal.described(place)).collect();
            let (journal, mailbox) = (Arc::clone(&self.journal), self.mailbox.clone());
            crate::reconcile::start_late(journal, marked, mailbox);
        }
    }

    /// Has the process itself enable them. It obeys in order, and nobody else can.
    fn release_remote(&mut self, session: u64, job: Option<JobId>, gpu: GpuId, places: Vec<Place>) {
        let Some(instance) = self.gpus.get(gpu.index()).map(|s| s.gpu.device_instance) else {
            return;
        };
        let method = self.method;
        for places in places.chunks(tidegate_abi::rm::MAX_PAIRS) {
            let seq = self.next_seq;
            self.next_seq += 1;
            let pairs = places
                .iter()
                .map(|&place| self.journal.pair(place))
                .collect();
            if let Some(session) = self.sessions.get_mut(&session) {
                session.tell(Tell::Set {
                    seq,
                    disable: false,
                    pairs,
                    device_instance: instance,
                    method,
                    more: false,
                });
            }
        }
        let gang = job.and_then(|job| self.gang(job, gpu));
        match gang.filter(|gang| gang.outstanding != 0) {
            Some(gang) => gang.retired.extend(places),
            None => self.give_back(places),
        }
    }

    pub(super) fn order(&mut self, order: Order, disable: bool, look: Look) {
        // Whoever is given an order replaces what was ordered before, so an older one is never handed on.
        let newest = self.gang(order.job, order.gpu).map(|gang| gang.newest);
        if newest.is_some_and(|newest| order.generation < newest) {
            self.counters.orders_stale += 1;
            return;
        }
        if self.level == Level::L5 {
            self.order_launch_gate(order, disable, look);
            return;
        }
        if !disable && look == Look::First && self.is_online_busy(order.gpu) {
            self.read_activity(tidegate_policy::ids::GpuSet::of(order.gpu));
            self.events.push_back(Event::EnableSkipped { order });
            return;
        }
        if self.level == Level::L3 {
            self.order_remote(order, disable);
            self.refresh_gates_beside(order.job);
            return;
        }
        let Some(guards) = self
            .gpus
            .get(order.gpu.index())
            .map(|gpu| Arc::clone(&gpu.guards))
        else {
            return;
        };
        let Some(gang) = self.gang(order.job, order.gpu) else {
            return;
        };
        gang.disable = disable;
        gang.newest = order.generation;
        gang.stale = false;
        gang.wanted.set(order.generation.0, disable);
        let prepared = Prepared {
            command: order.generation.0,
            job: order.job.0,
            disable,
            batches: Arc::clone(&gang.batches),
            wanted: Arc::clone(&gang.wanted),
            guards,
            unconditional: look == Look::Unconditional,
        };
        let now = self.now;
        let sent = self.gpus.get_mut(order.gpu.index()).is_some_and(|gpu| {
            let sent = gpu
                .issuer
                .as_ref()
                .is_some_and(|issuer| issuer.try_send(Task::Order(prepared)).is_ok());
            if sent {
                if gpu.pending == 0 {
                    gpu.pending_since = now;
                }
                gpu.pending += 1;
            }
            sent
        });
        if sent {
            if let Some(gang) = self.gang(order.job, order.gpu) {
                gang.outstanding += 1;
            }
            self.refresh_gates_beside(order.job);
        } else {
            self.fail(order, disable, Status::INVALID_STATE.0);
        }
    }

    /// Whether an online process that counts is busy on `gpu` at this moment.
    fn is_online_busy(&self, gpu: GpuId) -> bool {
        self.gpus
            .get(gpu.index())
            .is_some_and(|state| state.guards.any_busy())
    }

    pub(super) fn answered(&mut self, issued: Issued) {
        let order = Order {
            gpu: gpu_id(issued.gpu as usize),
            job: JobId(issued.job),
            generation: Generation(issued.command),
        };
        if let Some(gpu) = self.gpus.get_mut(order.gpu.index()) {
            gpu.pending = gpu.pending.saturating_sub(1);
            gpu.pending_since = self.now;
            gpu.stalled = false;
        }
        self.applied(order, issued.disable, issued.outcome);
        match issued.outcome {
            Outcome::Done if issued.disable => {
                let entered = if issued.entered_ns == 0 {
                    self.now
                } else {
                    issued.entered_ns
                };
                self.feed(Event::Disabled {
                    order,
                    entered: Instant::from_nanos(entered),
                    returned: Instant::from_nanos(issued.returned_ns.max(entered)),
                });
            }
            Outcome::Done => {
                self.took_effect(order, issued.looked_ns);
                self.feed(Event::Enabled { order });
            }
            Outcome::Withheld => {
                self.counters.enables_withheld += 1;
                if issued.looked_ns != 0 {
                    // It was held up behind a first batch, which runs until policy's next order.
                    self.overtaken(order, issued.looked_ns);
                }
                self.read_activity(tidegate_policy::ids::GpuSet::of(order.gpu));
                self.feed(Event::EnableSkipped { order });
            }
            Outcome::Failed(status) => self.fail(order, issued.disable, status.0),
        }
        if issued.disable {
            self.prove_again(order.job, order.gpu);
        }
        self.release_job_tickets(order.job);
    }

    /// An enable took effect; online was last looked at `looked_ns`. If it began meanwhile, its disable is on the way
    /// already, and policy will not call this a wake.
    fn took_effect(&mut self, order: Order, looked_ns: u64) {
        let Some(gang) = self.gang(order.job, order.gpu) else {
            return;
        };
        gang.looked_ns = looked_ns;
        if gang.newest != order.generation && gang.disable {
            self.overtaken(order, looked_ns);
        }
    }

    fn overtaken(&mut self, order: Order, looked_ns: u64) {
        self.counters.wakes_overtaken += 1;
        let happening = Happening {
            kind: "wake_overtaken",
            gpu: Some(u32::from(order.gpu.0)),
            job: self.job_name(Some(order.job)),
            value_ns: self.since_look(looked_ns),
            ..Happening::default()
        };
        self.tell(happening);
    }

    /// How long ago online was looked at; 0: it was not.
    pub(super) fn since_look(&self, looked_ns: u64) -> u64 {
        match looked_ns {
            0 => 0,
            looked => self.now.saturating_sub(looked),
        }
    }

    /// Notes what an answer says of the channels.
    fn applied(&mut self, order: Order, disable: bool, outcome: Outcome) {
        let Some(gang) = self.gang(order.job, order.gpu) else {
            return;
        };
        gang.answered(disable, outcome);
        let retired = if gang.outstanding == 0 {
            std::mem::take(&mut gang.retired)
        } else {
            Vec::new()
        };
        self.give_back(retired);
        self.refresh_gates_beside(order.job);
    }

    /// After an order or its answer: gates of launches that stand for channels.
    fn refresh_gates_beside(&mut self, job: JobId) {
        let mut sessions = self.sessions.values();
        if sessions.any(|session| session.launch_gated && session.job == Some(job)) {
            self.refresh_gates(job);
        }
    }

    fn fail(&mut self, order: Order, disable: bool, status: u32) {
        self.feed(if disable {
            Event::DisableFailed { order, status }
        } else {
            Event::EnableFailed { order, status }
        });
    }

    pub(super) fn release_job_tickets(&mut self, job: JobId) {
        let waiting: Vec<u64> = self
            .sessions
            .values()
            .filter(|session| session.job == Some(job) && !session.tickets.is_empty())
            .map(|session| session.id)
            .collect();
        for id in waiting {
            self.release_tickets(id);
        }
    }

    // ------------------------------------------------------------ L5, and launch gates beside channels

    fn order_launch_gate(&mut self, order: Order, disable: bool, look: Look) {
        if !disable && look == Look::First && self.is_online_busy(order.gpu) {
            self.read_activity(tidegate_policy::ids::GpuSet::of(order.gpu));
            self.events.push_back(Event::EnableSkipped { order });
            return;
        }
        let entered = Instant::from_nanos(self.now);
        if let Some(gang) = self.gang(order.job, order.gpu) {
            gang.launches_pass = !disable;
            gang.disable = disable;
            gang.newest = order.generation;
            gang.applied = if disable {
                Applied::Disabled
            } else {
                Applied::Enabled
            };
        }
        self.refresh_gates(order.job);
        self.events.push_back(if disable {
            Event::Disabled {
                order,
                entered,
                returned: Instant::from_nanos(crate::clock::now_ns()),
            }
        } else {
            Event::Enabled { order }
        });
    }

    /// Holds the launches of a job on every device, or no longer.
    pub(super) fn set_launch_gate(&mut self, job: JobId, gate: Gate) {
        if let Some(state) = self.job(job) {
            state.launches = gate;
            self.refresh_gates(job);
        }
    }

    /// Writes the gate words of a job's processes as they should stand.
    pub(super) fn refresh_gates(&mut self, job: JobId) {
        let Some(state) = self.jobs.get(job.0 as usize) else {
            return;
        };
        let by_launches = self.level == Level::L5;
        let closed = |launch_gated: bool, gpu: Option<GpuId>| {
            let gang = gpu.and_then(|gpu| state.gangs.get(gpu.index()));
            if by_launches {
                gang.is_none_or(|gang| !gang.launches_pass)
            } else {
                let held = || gang.is_none_or(Gang::holds_launches);
                state.launches != Gate::Open || (launch_gated && held())
            }
        };
        let word = |launch_gated: bool, gpu: Option<GpuId>| match closed(launch_gated, gpu) {
            true if state.launches == Gate::Held => Gate::Held,
            true => Gate::Closed,
            false => Gate::Open,
        };
        for session in self.sessions.values_mut().filter(|s| s.job == Some(job)) {
            let gated = session.launch_gated;
            if let Some(page) = &session.page {
                for (slot, words) in session.slots.iter().zip(&page.gates) {
                    gate::set(words, word(gated, slot.gpu));
                }
            } else {
                session.tell_gates(|gpu| closed(gated, Some(gpu)));
            }
        }
    }

    // ------------------------------------------------------------ L3

    fn order_remote(&mut self, order: Order, disable: bool) {
        let Some(gang) = self.gang(order.job, order.gpu) else {
            return;
        };
        let overtaken = gang.remote.take();
        gang.disable = disable;
        gang.newest = order.generation;
        gang.stale = false;
        gang.outstanding = 1;
        let prepared = Arc::clone(&gang.batches);
        // Answers to the overtaken order no longer count; what it left undone is unknown until this
        // one is done, which names every channel again.
        drop(overtaken);
        let Some(instance) = self
            .gpus
            .get(order.gpu.index())
            .map(|state| state.gpu.device_instance)
        else {
            return;
        };
        let mut waiting = Vec::new();
        let mut failed = None;
        for (at, batch) in prepared.iter().enumerate() {
            if disable {
                for &place in &batch.places {
                    self.journal.mark(place, batch.method);
                }
            }
            let seq = self.next_seq;
            self.next_seq += 1;
            let tell = Tell::Set {
                seq,
                disable,
                pairs: (0..batch.pairs())
                    .map(|at| (batch.call.h_client_list[at], batch.call.h_channel_list[at]))
                    .collect(),
                device_instance: instance,
                method: batch.method,
                more: prepared
                    .get(at + 1)
                    .is_some_and(|next| next.session == batch.session),
            };
            let told = self
                .sessions
                .get_mut(&batch.session)
                .is_some_and(|session| session.tell(tell));
            if told {
                waiting.push((seq, batch.places.clone()));
            } else {
                failed = Some(Status::TIMEOUT.0);
            }
        }
        let remote = Remote {
            order,
            disable,
            waiting,
            failed,
            entered_ns: self.now,
            returned_ns: self.now,
            deadline_ns: self.now + self.answer_ns,
        };
        if let Some(gang) = self.gang(order.job, order.gpu) {
            gang.remote = Some(remote);
        }
        self.finish_remote(order.job, order.gpu);
    }

    pub(super) fn remote_answered(
        &mut self,
        id: u64,
        seq: u64,
        status: u32,
        entered_ns: u64,
        returned_ns: u64,
    ) {
        let Some(job) = self.sessions.get(&id).and_then(|session| session.job) else {
            return;
        };
        let now = self.now;
        let mut found = None;
        let Some(state) = self.job(job) else { return };
        for (index, gang) in state.gangs.iter_mut().enumerate() {
            let Some(remote) = &mut gang.remote else {
                continue;
            };
            let Some(at) = remote.waiting.iter().position(|(own, _)| *own == seq) else {
                continue;
            };
            let (_, places) = remote.waiting.swap_remove(at);
            // Stamps of another process: no later than now, no earlier than the order.
            remote.entered_ns = entered_ns.clamp(remote.entered_ns, now);
            remote.returned_ns = returned_ns.clamp(remote.entered_ns, now);
            if status != 0 {
                remote.failed = Some(status);
            }
            let cleared = if status == 0 && !remote.disable {
                places
            } else {
                Vec::new()
            };
            found = Some((gpu_id(index), cleared));
        }
        if let Some((gpu, cleared)) = found {
            for place in cleared {
                self.journal.clear(place);
            }
            self.finish_remote(job, gpu);
        }
    }

    fn finish_remote(&mut self, job: JobId, gpu: GpuId) {
        let Some(gang) = self.gang(job, gpu) else {
            return;
        };
        let Some(remote) = gang.remote.take_if(|remote| remote.waiting.is_empty()) else {
            return;
        };
        let Remote {
            order,
            disable,
            failed,
            entered_ns,
            returned_ns,
            ..
        } = remote;
        let outcome = failed.map_or(Outcome::Done, |status| Outcome::Failed(Status(status)));
        self.applied(order, disable, outcome);
        match (failed, disable) {
            (Some(status), _) => self.fail(order, disable, status),
            (None, true) => self.feed(Event::Disabled {
                order,
                entered: Instant::from_nanos(entered_ns),
                returned: Instant::from_nanos(returned_ns),
            }),
            (None, false) => self.feed(Event::Enabled { order }),
        }
        if disable {
            self.prove_again(job, gpu);
        }
        self.release_job_tickets(job);
    }

    /// When the next order of level L3 counts as failed.
    pub(super) fn remote_deadline(&self) -> Option<u64> {
        if self.level != Level::L3 {
            return None;
        }
        let gangs = self.jobs.iter().flat_map(|job| &job.gangs);
        gangs
            .filter_map(|gang| gang.remote.as_ref())
            .map(|remote| remote.deadline_ns)
            .min()
    }

    pub(super) fn give_up_on_remotes(&mut self) {
        if self.level != Level::L3 {
            return;
        }
        let now = self.now;
        let mut late = Vec::new();
        for (job, state) in self.jobs.iter_mut().enumerate() {
            for (gpu, gang) in state.gangs.iter_mut().enumerate() {
                if let Some(remote) = gang.remote.as_mut().filter(|r| now >= r.deadline_ns) {
                    remote.waiting.clear();
                    remote.failed = Some(Status::TIMEOUT.0);
                    late.push((JobId(u32::try_from(job).unwrap_or(u32::MAX)), gpu_id(gpu)));
                }
            }
        }
        for (job, gpu) in late {
            self.counters.remotes_late += 1;
            self.finish_remote(job, gpu);
        }
    }

    // ------------------------------------------------------------ the end

    /// All but jobs that are changing their memory's mappings: they enable themselves when they have ended that.
    pub(super) fn enable_everything(&mut self) {
        self.release_unclaimed(u64::MAX);
        let jobs = u32::try_from(self.jobs.len()).unwrap_or(0);
        for job in (0..jobs).map(JobId) {
            let mut sessions = self.sessions.values();
            let moves = |id| self.node.is_moving(SessionId(id));
            if sessions.any(|session| session.job == Some(job) && moves(session.id)) {
                continue;
            }
            self.open_all_gates(job);
            for gpu in (0..self.gpus.len()).map(gpu_id) {
                let Some(gang) = self.gang(job, gpu) else {
                    continue;
                };
                let touched = gang.applied != Applied::Enabled || gang.outstanding != 0;
                let order = Order {
                    gpu,
                    job,
                    generation: Generation(gang.newest.0 + 1),
                };
                if touched && self.level != Level::L5 {
                    self.order(order, false, Look::Unconditional);
                }
            }
        }
    }

    fn open_all_gates(&mut self, job: JobId) {
        if let Some(state) = self.job(job) {
            state.launches = Gate::Open;
            for gang in &mut state.gangs {
                gang.launches_pass = true;
            }
            self.refresh_gates(job);
        }
    }

    pub(super) fn nothing_outstanding(&self) -> bool {
        let mut gangs = self.jobs.iter().flat_map(|job| &job.gangs);
        self.releases == 0 && gangs.all(|gang| gang.outstanding == 0)
    }
}
