//! Carries out requests: each goes to the part that it is for.

use super::Shell;
use crate::lanes::said;
use crate::members::Field;
use crate::ports::NodeEvent;
use crate::request::{Context, Notice, Request};
use crate::task::{Issued, Outcome};
use tidegate_policy::event::Event;
use tidegate_policy::ids::{Bytes, Channels, GpuId, GpuSet, JobId, SessionId};
use tidegate_policy::memory::MemoryEvent;

impl Shell {
    /// Carries out one request.
    pub(super) fn carry(&mut self, request: Request) {
        match request {
            Request::Step(event) => {
                self.flow.events.push_back(event);
                self.drain();
            }
            Request::Emit(notice) => self.emit(notice),
            Request::Claim(claim) => self.ports.prover.claim(claim),
            Request::Retire(retire) => self.retire(retire),
            Request::Changed {
                session,
                gpus,
                grown,
            } => self.channels_changed(session, gpus, grown),
            Request::Manage { session, client } => self.manage(session, client),
            Request::Unasked(session, client) => self.proofs.drop((session, client)),
            Request::Announce(session) => self.announce(session),
            Request::Terms(job) => self.say_terms(job),
            Request::Gates(job) => {
                let level = self.settings.level;
                self.lanes.refresh_gates(job, &mut self.members, level);
            }
            Request::Tickets(session) => {
                let level = self.settings.level;
                self.lanes
                    .release_tickets(session, &mut self.members, level);
            }
            Request::JobTickets(job) => {
                let level = self.settings.level;
                self.lanes
                    .release_job_tickets(job, &mut self.members, level);
            }
            Request::LeaseOver {
                session,
                gpu,
                lease,
                units,
            } => {
                let by = (session, gpu);
                self.leases.over(by, (lease, units), &mut context!(self));
            }
            Request::Guards => self.guard(),
            Request::ReadActivity(gpus) => {
                let events = &mut self.flow.events;
                self.members
                    .read_activity(gpus, |event| events.push_back(event));
            }
            Request::ProveAgain(job, gpu) => {
                let (prover, now) = (&*self.ports.prover, self.time.now);
                self.proofs
                    .ask_all((job, gpu), &self.lanes, &self.members, prover, now);
            }
            Request::Doubt(job) => self.doubt(job),
            Request::Free(places) => self.adoption.free(places),
            Request::SharePool(gpu) => self.share_pool(gpu),
            Request::SharesStale => self.memory.shares_stale = true,
        }
    }

    /// Takes a client's channels under control.
    fn manage(&mut self, session: u64, client: u32) {
        let moving = self.policy.is_moving(SessionId(session));
        let mut field = Field {
            gpus: &self.lanes.gpus,
            adoption: &mut self.adoption,
            moving,
        };
        let cx = &mut context!(self);
        let gpus = self.members.manage_client(session, client, &mut field, cx);
        cx.ask(Request::Changed {
            session,
            gpus,
            grown: true,
        });
        self.suspect(session, client);
        self.look_elsewhere(session);
    }

    /// Tells policy of a process, and what its job has among others.
    fn announce(&mut self, session: u64) {
        if let Some(event) = self.members.announcement(session) {
            context!(self).step(event);
        }
        let job = self.members.get(session).and_then(|own| own.job);
        job.into_iter().for_each(|job| self.say_terms(job));
    }

    /// Says anew which words guard each GPU.
    fn guard(&mut self) {
        let ignore = self.settings.ignore_suspects;
        let members = &self.members;
        self.lanes.disarm_all();
        self.lanes.gpus.guard(|gpu| members.guards(gpu, ignore));
    }

    /// The places of a job in the journal may say what is not so.
    fn doubt(&mut self, job: JobId) {
        for batch in self.lanes.batches(job) {
            let places = batch.places.iter();
            places.for_each(|&place| self.adoption.journal.doubt(place));
        }
    }

    /// Tells policy how many channels a process has on `gpus`, after the calls were prepared anew.
    fn channels_changed(&mut self, id: u64, gpus: GpuSet, grown: bool) {
        let Some(job) = self.members.get(id).and_then(|session| session.job) else {
            return;
        };
        self.members.look_at_work(id, &mut context!(self));
        if gpus.is_empty() {
            return;
        }
        for gpu in gpus.iter() {
            self.prepare(job, gpu, grown);
        }
        let mut cx = context!(self);
        if grown {
            cx.ask(Request::Announce(id));
        }
        let (slices, level) = (cx.settings.slices, cx.settings.level);
        for gpu in gpus.iter() {
            let own = self.members.get(id);
            if let Some(own) = own.filter(|_| slices) {
                cx.step(said(own, gpu, level));
            }
            let channels = own.map_or(0, |own| own.gated_on(gpu));
            cx.step(Event::ChannelsChanged {
                session: SessionId(id),
                gpu,
                channels: Channels(u32::try_from(channels).unwrap_or(u32::MAX)),
                grown,
            });
        }
        cx.ask(Request::Tickets(id));
    }

    /// Makes calls of its own for each process of a job, where the driver refused one for several and took those.
    pub(super) fn keep_apart(&mut self, issued: &Issued) {
        let (job, gpu) = (issued.order.job, issued.order.gpu);
        if !issued.apart || issued.outcome != Outcome::Done {
            return;
        }
        if let Some(lane) = self.lanes.lane_mut(job, gpu) {
            lane.apart = true;
            self.prepare(job, gpu, false);
        }
    }

    pub(crate) fn prepare(&mut self, job: JobId, gpu: GpuId, grown: bool) {
        let means = (self.settings.level, self.settings.method);
        self.lanes.prepare((job, gpu), grown, &self.members, means);
        if !grown && self.lanes.is_watched(job, gpu) {
            // The thread is to let go of the calls, and with them of the files of who left.
            self.release(gpu, Vec::new(), None);
        }
    }

    pub(super) fn emit(&mut self, notice: Notice) {
        let session = self.members.get(notice.session);
        let pid = session.map_or(0, |session| session.process().pid);
        if let (Some(session), Some(what)) = (session, notice.refused) {
            self.ports.events.refused(&session.peer.tenant, what);
        }
        let job = notice.job.and_then(|job| self.lanes.job(job));
        self.ports.events.event(NodeEvent {
            at_ns: self.time.now,
            kind: notice.kind,
            gpu: notice.gpu.map(|gpu| u32::from(gpu.0)),
            session: notice.session,
            pid: notice.pid.max(pid),
            tenant: session.map(|session| session.peer.tenant.clone()),
            job: job.map(|job| job.name.clone()),
            text: notice.text,
            value_ns: notice.value_ns,
        });
    }

    fn share_pool(&mut self, gpu: GpuId) {
        let bytes = Bytes(self.settings.pool);
        self.step(MemoryEvent::Pool { gpu, bytes }.into());
    }

    /// Says how much of each GPU is shared out.
    pub(crate) fn share_pools(&mut self) {
        for gpu in self.lanes.gpus.ids() {
            self.share_pool(gpu);
        }
    }
}
