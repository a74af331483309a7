//! Processes attach, leave and return; and the shell ends.
//!
//! Only the end of a process frees what it held. A process that attaches again keeps it.

use super::{End, Shell};
use crate::adoption::STUCK_NS;
use crate::file::Files;
use crate::journal::{Marked, Place};
use crate::kinds::{JobOwner, Level, Process, Role, Switch, gpu_id};
use crate::lanes::{Applied, releasing};
use crate::members::Members;
use crate::message::{Newcomer, SetChannels, Tell};
use crate::request::{Notice, Request, Retire};
use crate::session::{Client, Held, Session};
use crate::shares::Owner;
use crate::task::{Release, Released};
use crate::text::Text;
use std::sync::Arc;
use tidegate_abi::rm::{MAX_PAIRS, Status};
use tidegate_policy::effect::Look;
use tidegate_policy::event::{Event, Order};
use tidegate_policy::ids::{Generation, GpuId, GpuSet, JobId, SessionId};
use tidegate_policy::lease::event::LeaseEvent;

/// How long the end waits for the last enables.
const END_NS: u64 = 2_000_000_000;

/// How long a hand-over waits for the last disables.
const HANDED_NS: u64 = 100_000_000;

/// How a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaves {
    /// Its process ended.
    ForGood,
    /// Its process attached again: what it held stays as it is until the process has said what stands.
    ToReturn,
}

impl Shell {
    /// A process attached.
    pub(crate) fn attach(&mut self, newcomer: Newcomer) {
        let before = self.members.of_process(newcomer.peer.process);
        for &other in &before {
            self.remove(other, Leaves::ToReturn);
            self.settle();
        }
        let job = (newcomer.role == Role::Offline).then(|| {
            let (peer, live) = (&newcomer.peer, || self.members.live_jobs());
            let owner = match &newcomer.joined_by {
                Some(rule) => JobOwner::Rule(rule.clone()),
                None => JobOwner::of(&peer.tenant, peer.uid, &peer.whereabouts.pod_uid),
            };
            let (job, new) = self.lanes.job_named((owner, peer.uid), &newcomer.job, live);
            if new {
                self.history.usage.begin(job);
            }
            job
        });
        self.steer_ahead(job, &newcomer.job);
        let before = !before.is_empty();
        self.with(|members, _, cx| members.attach(newcomer, before, job, cx));
    }

    /// What an operator said of a job by its name holds from its first moment on.
    fn steer_ahead(&mut self, job: Option<JobId>, name: &Text) {
        let said = self.steered.iter().find(|(named, _)| named == name);
        let (Some(job), Some(&(_, paused))) = (job, said) else {
            return;
        };
        if self.policy.job(job).is_none() {
            let job = Some(job);
            self.step(if paused {
                Event::Pause { job }
            } else {
                Event::Resume { job }
            });
        }
    }

    /// A process ended.
    pub(crate) fn bury(&mut self, process: Process) {
        for id in self.members.of_process(process) {
            let job = self.members.get(id).and_then(|session| session.job);
            self.ask(Request::Emit(Notice {
                kind: "exited",
                session: id,
                job,
                text: format!("pid {}", process.pid),
                ..Notice::default()
            }));
            self.settle();
            self.remove(id, Leaves::ForGood);
            self.settle();
        }
    }

    /// Takes a session out of everything.
    fn remove(&mut self, id: u64, leaves: Leaves) {
        self.forget_proofs(id);
        let Some(mut session) = self.members.remove(id) else {
            return;
        };
        self.ask(Request::SharesStale);
        if let Some(job) = session.job.and_then(|job| self.lanes.job_mut(job)) {
            job.launched = job.launched.saturating_add(session.launches());
            job.worked = job.worked.plus(session.totals());
        }
        match session.role {
            Role::Online => {
                self.with(|_, _, cx| Members::end_beats(&mut session, cx));
                self.ask(Request::Guards);
                self.ask(Request::Step(Event::OnlineGone {
                    session: SessionId(id),
                }));
            }
            Role::Offline => {
                let places: Vec<_> = session.managed().collect();
                match leaves {
                    Leaves::ForGood => {
                        let dead = Some(session.take_files());
                        self.retire(Retire {
                            session: id,
                            job: session.job,
                            places,
                            dead,
                        });
                    }
                    Leaves::ToReturn => {
                        let places = places.into_iter().map(|(_, place)| place);
                        self.adoption.adopt(places, self.time.now);
                    }
                }
                if let Some(job) = session.job {
                    for gpu in session.gpus().collect::<GpuSet>().iter() {
                        self.prepare(job, gpu, false);
                    }
                }
                if let Some(event) = self.leases.gone(id) {
                    self.ask(Request::Step(event));
                }
                if let Some(job) = session.job.filter(|_| session.lease.trains) {
                    for gpu in session.lease.offered_on.iter() {
                        // Another process of its job may offer some, too.
                        let offered = self.members.front_offer(job, gpu);
                        self.ask(Request::Step(offered));
                    }
                }
                self.ask(Request::Step(Event::OfflineGone {
                    session: SessionId(id),
                }));
                session
                    .job
                    .into_iter()
                    .for_each(|job| self.ask(Request::Terms(job)));
            }
            Role::Ignore => {}
        }
    }

    /// Takes channels of a session out of everything.
    pub(crate) fn retire(&mut self, retire: Retire) {
        let Retire {
            session,
            job,
            places,
            dead,
        } = retire;
        let leaving = self.lanes.leaving(job, places);
        self.adoption.free(leaving.free);
        let mut dead = dead;
        let last = leaving.disabled.len();
        for (nth, (gpu, places)) in leaving.disabled.into_iter().enumerate() {
            if self.settings.level == Level::L3 {
                self.release_remote(session, (job, gpu), places);
            } else {
                // Every GPU's thread holds the files until it is done.
                let files = if nth + 1 == last {
                    dead.take()
                } else {
                    dead.clone()
                };
                self.release(gpu, places, files);
            }
        }
    }

    /// Has the issue thread enable pairs behind every order that still names them.
    pub(super) fn release(&mut self, gpu: GpuId, places: Vec<Place>, dead: Option<Files>) {
        let batches = releasing(&places, &self.adoption.journal, self.settings.method);
        self.adoption.releases += 1;
        if let Err(unsent) = self.lanes.gpus.release(gpu, Release { batches, dead }) {
            if unsent.is_empty() {
                // A thread that has so much to do lets go of what is not armed before it sleeps.
                self.adoption.releases -= 1;
                return;
            }
            let journal = &self.adoption.journal;
            let marked = unsent.into_iter().map(|place| journal.described(place));
            self.ports.machine.release_late(marked.collect());
        }
    }

    /// What left the lists was enabled, or is stuck.
    pub(crate) fn released(&mut self, released: Released) {
        let Released { free, stuck, why } = released;
        self.adoption.releases = self.adoption.releases.saturating_sub(1);
        self.adoption.free(free);
        let Some(&first) = stuck.first() else { return };
        let marked = self.adoption.journal.described(first);
        self.ask(Request::Emit(Notice {
            kind: "channels_stuck",
            text: format!(
                "{} channels stay disabled, the first {:#x} of client {:#x}: {why}; tried again every {} s, or end \
                 their process",
                stuck.len(),
                marked.channel,
                marked.client,
                STUCK_NS / 1_000_000_000,
            ),
            ..Notice::default()
        }));
        self.adoption.keep_stuck(&stuck, self.time.now);
    }

    /// Ends what was adopted to be claimed until `due_ns`.
    pub(crate) fn release_unclaimed(&mut self, due_ns: u64) {
        let (members, lanes, machine) = (&self.members, &self.lanes, &self.ports.machine);
        let is_claimed = |marked: &Marked| {
            members.all().any(|session| {
                session.channels.iter().any(|held| {
                    let own = held.channel.pair() == (marked.client, marked.channel);
                    own && held.place.is_some()
                })
            })
        };
        let due = self.adoption.take_due(
            due_ns,
            self.time.now,
            is_claimed,
            |pid| machine.is_running(pid),
            |instance| lanes.gpus.at(instance),
        );
        let Some(due) = due else { return };
        let alone = self.tell_their_processes(due.elsewhere);
        if !alone.is_empty() {
            self.adoption.releases += 1;
            self.ports.machine.release_late(alone);
        }
        for (gpu, places) in due.here {
            self.release(gpu_id(gpu), places, None);
        }
    }

    /// What a process has on GPUs that cannot be asked here is due, once it is known to be its own.
    pub(crate) fn look_elsewhere(&mut self, id: u64) {
        let Some(session) = self.members.get(id) else {
            return;
        };
        // Before its proof an answer of it would count for nothing.
        let proven =
            |client: u32| matches!(session.rm.clients.get(&client), Some(Client::Own(Some(_))));
        let pairs = || {
            let pairs = session.channels.iter().map(|held| held.channel.pair());
            pairs.filter(|pair| proven(pair.0))
        };
        let gpus = &self.lanes.gpus;
        self.adoption.hurry(
            || pairs().collect(),
            |instance| gpus.at(instance).is_none(),
            self.time.now,
        );
    }

    /// Where the journal before this one is lost, channels that no order will reach may be disabled.
    pub(crate) fn suspect(&mut self, id: u64, client: u32) {
        let Some(session) = self.members.get(id) else {
            return;
        };
        if !session.state.was_gated || !self.adoption.journal.is_instead_of_lost() {
            return;
        }
        let of = |held: &&Held| held.channel.client == client && held.place.is_none();
        for held in session.channels.iter().filter(of) {
            let listed = held.gpu.and_then(|gpu| self.lanes.gpus.get(gpu));
            let known = listed.map(|line| line.gpu.device_instance);
            if let Some(instance) = held.channel.device_instance.or(known) {
                let owner = Owner {
                    tenant: session.peer.tenant.clone(),
                    job: session.job,
                };
                let pair = held.channel.pair();
                self.adoption.suspect(pair, instance, owner, self.time.now);
            }
        }
    }

    /// Has each channel enabled by its own process, which reaches a GPU that cannot be asked here; those that no process
    /// is known to have.
    fn tell_their_processes(&mut self, marked: Vec<Marked>) -> Vec<Marked> {
        let mut alone = Vec::new();
        let mut held: Vec<((u64, u32), Vec<Place>)> = Vec::new();
        for marked in marked {
            let Some(owner) = self.members.owner_of((marked.client, marked.channel)) else {
                alone.push(marked);
                continue;
            };
            let key = (owner, marked.device_instance);
            match held.iter_mut().find(|(known, _)| *known == key) {
                Some((_, places)) => places.push(marked.place),
                None => held.push((key, vec![marked.place])),
            }
        }
        let journal = Arc::clone(&self.adoption.journal);
        for ((owner, device_instance), places) in held {
            for places in places.chunks(MAX_PAIRS) {
                let mut last = 0;
                for _ in 0..journal.enables(places) {
                    last = self.lanes.take_seq();
                    let tell = Tell::Set(SetChannels {
                        seq: last,
                        switch: Switch::Enable,
                        pairs: places.iter().map(|&place| journal.pair(place)).collect(),
                        device_instance,
                        method: self.settings.method,
                        more: false,
                    });
                    self.members.tell(owner, tell);
                }
                self.adoption.told(last, places.to_vec(), self.time.now);
            }
        }
        alone
    }

    /// A process has done, or could not do, what it was told by [`Self::tell_their_processes`].
    pub(super) fn enabled_by_its_process(&mut self, id: u64, places: Vec<Place>, status: Status) {
        let count = places.len();
        if status.is_ok() {
            return self.adoption.settle(places);
        }
        self.ask(Request::Emit(Notice {
            kind: "channels_stuck",
            session: id,
            text: format!(
                "{count} channels stay disabled on a GPU that the agent cannot use, and their process cannot enable them \
                 ({}); tried again every {} s, or end the process",
                status.name(),
                STUCK_NS / 1_000_000_000,
            ),
            ..Notice::default()
        }));
    }

    // ------------------------------------------------------------ the end

    /// Enables everything, then ends.
    pub(crate) fn begin_end(&mut self) {
        if self.end == End::No {
            // First: policy orders nothing more, whatever it is answered meanwhile.
            self.end = End::By(self.time.now + END_NS);
            self.enable_everything();
            self.settle();
            self.members.end_leases();
        }
    }

    /// All but jobs that are changing their memory's mappings: they enable themselves when they have ended that.
    fn enable_everything(&mut self) {
        self.release_unclaimed(u64::MAX);
        for job in self.lanes.job_ids() {
            let is_moving = |session: &Session| self.is_moving(SessionId(session.id));
            if self.members.of_job(job).any(is_moving) {
                continue;
            }
            self.lanes.open_all_gates(job);
            self.ask(Request::Gates(job));
            self.settle();
            for gpu in self.lanes.gpus.ids() {
                self.enable_lane(job, gpu);
            }
            self.with(|members, lanes, cx| lanes.unslice(job, members, cx));
            self.settle();
        }
    }

    fn enable_lane(&mut self, job: JobId, gpu: GpuId) {
        let Some(lane) = self.lanes.lane_mut(job, gpu) else {
            return;
        };
        lane.disarm();
        let touched = lane.applied != Applied::Enabled || lane.outstanding != 0;
        let order = Order {
            gpu,
            job,
            generation: Generation(lane.newest.0 + 1),
        };
        if touched && self.settings.level != Level::L5 {
            self.order(order, Switch::Enable, Look::Unconditional);
            self.settle();
        }
    }

    /// Leaves everything as it is for a successor, says so, and ends. Nobody would end a lease meanwhile, so none is left.
    pub(crate) fn hand_over(&mut self) {
        for gpu in self.lanes.gpus.ids() {
            self.step(Event::Lease(LeaseEvent::Ends { gpu }));
        }
        self.settle();
        let waits = self.settings.leases.is_some() && !self.lanes.is_quiet();
        self.lanes.disarm_all();
        self.adoption.journal.set_handing_over(self.time.now);
        self.members.hand_over(self.time.now);
        self.end = if waits {
            End::By(self.time.now + HANDED_NS)
        } else {
            End::Now
        };
    }

    /// Whether the shell has ended: nothing it does matters any more.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        match self.end {
            End::No => false,
            End::Now => true,
            End::By(limit) => {
                let quiet = self.adoption.releases == 0 && self.lanes.is_quiet();
                quiet || self.time.now >= limit
            }
        }
    }
}
