//! The attached processes: they attach, report their devices and channels, and leave.

mod claims;
mod leases;
mod lendable;
mod objects;
mod pages;
mod terms;
mod work;

use crate::bells::Bells;
use crate::kinds::{Process, Role, Tenant};
use crate::message::{Claim, Newcomer, Said, Tell, Ticket, Welcome};
use crate::page::{Activity, Guards};
use crate::request::{Context, Notice, Request};
use crate::session::{Client, Control, Session, Slot, TICKETS};
use crate::work::Training;
use claims::Claims;
pub(crate) use objects::Field;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use tidegate_abi::page::GATE_OPEN;
use tidegate_policy::event::{Event, Standing};
use tidegate_policy::fair::Terms;
use tidegate_policy::ids::{GpuId, GpuSet, JobId, SessionId};

/// All attached processes, by session.
#[derive(Debug, Default)]
pub struct Members {
    sessions: BTreeMap<u64, Session>,
    /// The sessions of each job.
    jobs: BTreeSet<(JobId, u64)>,
    /// The user of each tenant's first process, and how many processes it has.
    users: BTreeMap<Tenant, (u32, usize)>,
    claims: Claims,
    bells: Bells,
    /// Some offline process is asked whether it has work.
    asks: bool,
    /// What policy was told of each job that is there, where it is not what policy takes a job for anyway.
    terms: BTreeMap<JobId, Terms>,
    /// Offline processes that offer units or could: whether they need a lease stands in their words.
    trainers: BTreeSet<u64>,
    /// Kept for its room: what one ring says of online's iterations.
    news: Vec<tidegate_policy::lease::event::Event>,
}

impl Members {
    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &Session> {
        self.sessions.values()
    }

    /// One.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<&Session> {
        self.sessions.get(&id)
    }

    /// The doorbells to wait on.
    #[must_use]
    pub const fn bells(&self) -> &Bells {
        &self.bells
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Session> {
        self.sessions.get_mut(&id)
    }

    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut Session> {
        self.sessions.values_mut()
    }

    /// Processes of a job.
    pub fn of_job(&self, job: JobId) -> impl Iterator<Item = &Session> {
        let ids = self.jobs.range((job, 0)..=(job, u64::MAX));
        ids.filter_map(|(_, id)| self.sessions.get(id))
    }

    pub(crate) fn each_of_job(&mut self, job: JobId, mut each: impl FnMut(&mut Session)) {
        for (_, id) in self.jobs.range((job, 0)..=(job, u64::MAX)) {
            if let Some(session) = self.sessions.get_mut(id) {
                each(session);
            }
        }
    }

    /// Sessions of a process.
    pub(crate) fn of_process(&self, process: Process) -> Vec<u64> {
        let own = self.all().filter(|session| session.process() == process);
        own.map(|session| session.id).collect()
    }

    /// Jobs with a process.
    #[must_use]
    pub fn live_jobs(&self) -> Vec<JobId> {
        let mut live: Vec<_> = self.jobs.iter().map(|(job, _)| *job).collect();
        live.dedup();
        live
    }

    /// Tells a process something; false when it does not listen.
    pub(crate) fn tell(&mut self, session: u64, tell: Tell) -> bool {
        let session = self.sessions.get_mut(&session);
        session.is_some_and(|session| session.tell(tell))
    }

    /// The process that has a channel, if it has proven so and listens.
    pub(crate) fn owner_of(&self, (client, channel): (u32, u32)) -> Option<u64> {
        let has = |session: &&Session| {
            let proven = matches!(session.rm.clients.get(&client), Some(Client::Own(Some(_))));
            let mut held = session.channels.iter();
            proven
                && session.link.outbox.is_some()
                && held.any(|held| held.channel.pair() == (client, channel))
        };
        self.all().find(has).map(|session| session.id)
    }

    // ------------------------------------------------------------ they come

    /// Takes in a newcomer; `before`: sessions of the same process, which were taken out, their channels left as
    /// they are.
    pub(crate) fn attach(
        &mut self,
        mut newcomer: Newcomer,
        before: bool,
        job: Option<JobId>,
        cx: &mut Context<'_>,
    ) {
        let file = newcomer.control_file.take();
        let mut session = Session::new(newcomer);
        let id = session.id;
        session.job = job;
        // Its channels stay as they are, and so may be disabled.
        session.state.was_gated |= before;
        if file.is_some() {
            session.rm.files.control = Control::Looking(None);
        }
        // Before it is welcome, from when on it looks.
        session.beat(cx.now);
        session.tell(Tell::Welcome(Welcome {
            session: id,
            role: session.role,
            level: cx.settings.level,
            method: cx.settings.method,
            agent_generation: cx.settings.generation,
        }));
        if let Some(page) = &session.link.page
            && session.role != Role::Offline
        {
            for gate in &page.gates {
                gate.gate.store(GATE_OPEN, Ordering::Release);
            }
        }
        let (pid, name) = (session.peer.process.pid, &session.peer.name);
        cx.emit(Notice {
            kind: "attached",
            session: id,
            pid,
            job,
            text: attached(&session),
            ..Notice::default()
        });
        if !session.origin.asked.refused.is_empty() {
            cx.emit(Notice {
                kind: "role_refused",
                session: id,
                pid,
                job,
                text: format!("pid {pid} {name} {}", session.origin.asked.refused),
                ..Notice::default()
            });
        }
        if let Some(file) = file {
            cx.ask(Request::Claim(Claim::File { session: id, file }));
        }
        let role = session.role;
        if let (Role::Online, Some(page)) = (role, &session.link.page) {
            self.bells.add(id, page);
        }
        let user = self.users.entry(session.peer.tenant.clone());
        user.or_insert((session.peer.uid, 0)).1 += 1;
        self.sessions.insert(id, session);
        self.jobs.extend(job.map(|job| (job, id)));
        match role {
            Role::Online => cx.step(Event::OnlineAttached {
                session: SessionId(id),
            }),
            Role::Offline => {
                cx.ask(Request::Announce(id));
                self.look_at_work(id, cx);
            }
            Role::Ignore => {}
        }
    }

    /// What policy is told of an offline process and all GPUs it is known to use.
    pub(crate) fn announcement(&self, id: u64) -> Option<Event<'static>> {
        let session = self.get(id)?;
        Some(Event::OfflineAttached {
            session: SessionId(id),
            job: session.job?,
            gpus: session.gpus().collect(),
            standing: if session.state.was_gated {
                Standing::Unknown
            } else {
                Standing::Enabled
            },
        })
    }

    // ------------------------------------------------------------ they speak

    /// Hears what concerns the process itself; its RM objects, calls and memory are heard elsewhere.
    pub(crate) fn hear(&mut self, id: u64, said: Said, cx: &mut Context<'_>) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        match said {
            Said::Edge { slot, edge } => self.hear_edge(id, slot as usize, edge, cx),
            Said::Suspect { slot, reason } => self.hear_suspect(id, slot as usize, reason, cx),
            Said::Note { kind, text } => {
                cx.counters.notes += 1;
                cx.emit(Notice {
                    kind: "note",
                    session: id,
                    text: format!("{kind}: {text}"),
                    ..Notice::default()
                });
            }
            Said::Uvm(fd) => cx.ask(Request::Claim(Claim::Uvm {
                session: id,
                process: session.process(),
                fd,
            })),
            Said::ControlFile(fd) => take_control_file(session, fd, cx),
            Said::GateWait(waiting) => {
                session.state.waits = waiting.then_some(cx.now);
                cx.emit(Notice {
                    kind: if waiting {
                        "launches_wait"
                    } else {
                        "launches_pass"
                    },
                    session: id,
                    job: session.job,
                    ..Notice::default()
                });
                self.look_at_work(id, cx);
            }
            Said::Training(said) => hear_training(session, *said, cx),
            Said::Progress(units) => {
                if session.link.page.is_none() {
                    session.work.streamed = session.work.streamed.max(units);
                }
            }
            Said::Beats(fd) => self.claim_beats(id, fd, cx),
            Said::Unit(offer) => {
                session.lease.streamed = offer;
                self.hear_offer(id, cx);
            }
            Said::LeaseOver { slot, lease, units } => self.hear_over(id, (slot, lease, units), cx),
            Said::Device { .. }
            | Said::Rm { .. }
            | Said::Schedule(_)
            | Said::Channels { .. }
            | Said::Memory(_) => {}
        }
    }

    /// The place of a device of a process without a page, and its GPU if the process is online.
    fn streamed(&mut self, id: u64, slot: usize) -> Option<(&mut Slot, Option<GpuId>)> {
        let session = self.sessions.get_mut(&id)?;
        if session.link.page.is_some() {
            return None;
        }
        let online = session.is_online();
        let slot = session.slots.get_mut(slot)?;
        let gpu = slot.gpu.filter(|_| online);
        Some((slot, gpu))
    }

    fn hear_edge(&mut self, id: u64, slot: usize, edge: Activity, cx: &mut Context<'_>) {
        let Some(clock) = self.get(id).map(|session| session.link.clock) else {
            return;
        };
        let edge = edge.by(clock);
        let Some((slot, online_on)) = self.streamed(id, slot) else {
            return;
        };
        slot.seen = Activity {
            busy_since_ns: edge.busy_since_ns.min(cx.now),
            ..edge
        };
        if let Some(gpu) = online_on {
            cx.step(Event::Activity {
                session: SessionId(id),
                gpu,
                reading: edge.reading(),
            });
        }
    }

    fn hear_suspect(&mut self, id: u64, slot: usize, reason: u32, cx: &mut Context<'_>) {
        let Some((slot, online_on)) = self.streamed(id, slot) else {
            return;
        };
        slot.suspect = reason;
        if let Some(gpu) = online_on {
            cx.step(Event::Suspected {
                session: SessionId(id),
                gpu,
                suspect: reason != 0,
            });
        }
    }

    /// Place `at` of a process' page is this GPU; None: the node has none of that UUID.
    pub(crate) fn meet_device(
        &mut self,
        id: u64,
        at: usize,
        found: Option<GpuId>,
        cx: &mut Context<'_>,
    ) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Some(slot) = session.slots.get_mut(at) else {
            return;
        };
        let Some(gpu) = found else {
            "uses a GPU this node does not have".clone_into(&mut session.state.note);
            return;
        };
        cx.ask(Request::SharesStale);
        let page = session.link.page.as_ref();
        // A process that comes back goes on counting where it was; all it launched under another agent,
        // or in an earlier session, is in no ledger of this one.
        let counted = page.filter(|_| session.state.was_gated);
        *slot = Slot {
            gpu: Some(gpu),
            launched_before: counted.map_or(slot.launched_before, |page| page.launches(at)),
            seen: page.map_or(slot.seen, |page| {
                Activity::read(&page.devices[at], &page.memory[at], session.link.clock)
            }),
            ..*slot
        };
        let seen = slot.seen;
        match session.role {
            Role::Online => {
                cx.ask(Request::Guards);
                cx.step(Event::Activity {
                    session: SessionId(id),
                    gpu,
                    reading: seen.reading(),
                });
            }
            Role::Offline => {
                cx.ask(Request::Announce(id));
                if session.state.launch_gated {
                    cx.ask(Request::Changed {
                        session: id,
                        gpus: GpuSet::of(gpu),
                        grown: true,
                    });
                }
                if let Some(job) = session.job {
                    cx.ask(Request::Gates(job));
                }
                self.could_train(id, cx);
            }
            Role::Ignore => {}
        }
    }

    // ------------------------------------------------------------ scheduling calls

    /// A scheduling call waits.
    pub(crate) fn ask_to_schedule(&mut self, id: u64, ticket: Ticket, cx: &mut Context<'_>) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if session.calls.tickets.len() >= TICKETS {
            // The library lets it pass by itself after its hold.
            return;
        }
        session.calls.tickets.push(ticket);
        cx.ask(Request::Tickets(id));
    }

    // ------------------------------------------------------------ they go

    /// The connection is lost. The process may be dying or may come back; its page still speaks.
    pub(crate) fn disconnect(&mut self, id: u64, cx: &mut Context<'_>) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        session.link.outbox = None;
        session.calls.tickets.clear();
        cx.emit(Notice {
            kind: "disconnected",
            session: id,
            ..Notice::default()
        });
    }

    /// Takes a session out.
    pub(crate) fn remove(&mut self, id: u64) -> Option<Session> {
        self.bells.remove(id);
        self.trainers.remove(&id);
        self.claims.release_all(id);
        let session = self.sessions.remove(&id)?;
        if let Some(job) = session.job {
            self.jobs.remove(&(job, id));
        }
        if let Some((_, processes)) = self.users.get_mut(&session.peer.tenant) {
            *processes -= 1;
            if *processes == 0 {
                self.users.remove(&session.peer.tenant);
            }
        }
        Some(session)
    }

    /// The activity words that forbid an enable on a GPU.
    pub(crate) fn guards(&self, gpu: GpuId, ignore_suspects: bool) -> Guards {
        let mut guards = Guards::default();
        let counts = |session: &&Session| session.is_online() && !session.state.lapsed;
        for session in self.all().filter(counts) {
            let Some(page) = &session.link.page else {
                continue;
            };
            for (at, slot) in session.slots.iter().enumerate() {
                let counts = slot.suspect == 0 || !ignore_suspects;
                if slot.gpu == Some(gpu) && counts {
                    guards.0.push((page.clone(), at));
                }
            }
        }
        guards
    }

    /// Policy says that an online process makes no progress, or does again.
    pub(crate) fn set_lapsed(&mut self, session: SessionId, lapsed: bool, cx: &mut Context<'_>) {
        if let Some(session) = self.sessions.get_mut(&session.0) {
            session.state.lapsed = lapsed;
            cx.ask(Request::Guards);
        }
    }
}

/// Who a process is, what it became, and where it runs.
fn attached(session: &Session) -> String {
    let (pid, name) = (session.peer.process.pid, &session.peer.name);
    let role = format!("{:?}", session.role).to_lowercase();
    let mut text = format!("pid {pid} {name} is {role} ({})", session.origin.rule);
    let place = session.peer.whereabouts.text();
    if !place.is_empty() {
        text.push_str(", in ");
        text.push_str(&place);
    }
    text
}

/// A process said on which file its channels are: that is looked up.
fn take_control_file(session: &mut Session, fd: i32, cx: &mut Context<'_>) {
    let before = match std::mem::replace(&mut session.rm.files.control, Control::None) {
        Control::Known(file) => Some(file),
        Control::Looking(before) => before,
        Control::None => None,
    };
    session.rm.files.control = Control::Looking(before);
    cx.ask(Request::Claim(Claim::Taken {
        session: session.id,
        process: session.process(),
        fd,
    }));
}

fn hear_training(session: &mut Session, said: Training, cx: &mut Context<'_>) {
    let (session_id, job) = (session.id, session.job);
    let returned = session.state.was_gated;
    for told in session.work.hear(said, returned, cx.now) {
        cx.emit(Notice {
            kind: told.kind,
            session: session_id,
            job,
            text: told.text,
            ..Notice::default()
        });
    }
}
