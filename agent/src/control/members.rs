//! Processes come and report their devices and channels.

use super::leaving::Leaves;
use super::session::{CHANNELS, Client, File, Held, Session, TICKETS, Ticket, reading};
use super::{Control, claims::Verdict, gpu_id};
use crate::config::{Level, Role};
use crate::events::Happening;
use crate::inbox::{Channel, Newcomer, RmChange, Said, Tell, Welcome};
use crate::prove::{Claim, Proof};
use crate::rm::ControlFile;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidegate_abi::page;
use tidegate_abi::rm::Status;
use tidegate_policy::event::{Event, Standing};
use tidegate_policy::ids::{Channels, GpuId, GpuSet, SessionId};

impl Control {
    pub(super) fn attach(&mut self, newcomer: Newcomer) {
        let named = newcomer.job.clone();
        let (mut session, file) = Session::new(newcomer);
        let before: Vec<u64> = self
            .sessions
            .values()
            .filter(|other| other.process == session.process)
            .map(|other| other.id)
            .collect();
        for other in before {
            // Its channels stay as they are, and so may be disabled.
            session.was_gated = true;
            self.remove(other, Leaves::ToReturn);
        }
        let id = session.id;
        if session.role == Role::Offline {
            let job = self.job_of(&session, &named);
            session.job = Some(job);
        }
        let welcome = Welcome {
            session: id,
            role: session.role,
            level: self.level,
            method: self.method,
            agent_generation: self.generation,
        };
        session.tell(Tell::Welcome(welcome));
        if let Some(page) = &session.page {
            page.agent.heartbeat_ns.store(self.now, Ordering::Release);
            if session.role != Role::Offline {
                for gate in &page.gates {
                    gate.gate.store(page::GATE_OPEN, Ordering::Release);
                }
            }
        }
        self.tell(Happening {
            kind: "attached",
            session: id,
            pid: session.peer.pid,
            job: self.job_name(session.job),
            text: format!(
                "pid {} {} is {:?} ({})",
                session.peer.pid, session.peer.name, session.role, session.rule
            )
            .to_lowercase(),
            ..Happening::default()
        });
        if let Some(file) = file {
            let _ = self.prover.send(Claim::File { session: id, file });
        }
        let (role, page) = (session.role, session.page.clone());
        self.sessions.insert(id, session);
        match role {
            Role::Online => {
                if let Some(page) = &page {
                    self.waiting.add(id, page);
                }
                self.feed(Event::OnlineAttached {
                    session: SessionId(id),
                });
            }
            Role::Offline => self.announce_offline(id),
            Role::Ignore => {}
        }
    }

    /// Tells policy of an offline process and all GPUs it is known to use.
    pub(super) fn announce_offline(&mut self, id: u64) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        let Some(job) = session.job else { return };
        let gpus: GpuSet = session.gpus().collect();
        let standing = if session.was_gated {
            Standing::Unknown
        } else {
            Standing::Enabled
        };
        self.feed(Event::OfflineAttached {
            session: SessionId(id),
            job,
            gpus,
            standing,
        });
    }

    pub(super) fn hear(&mut self, id: u64, said: Said) {
        if !self.sessions.contains_key(&id) {
            return;
        }
        match said {
            Said::Device { slot, uuid } => self.meet_device(id, slot, uuid),
            Said::Rm { snapshot, changes } => self.observe(id, snapshot, changes),
            Said::Schedule {
                ticket,
                client,
                object,
            } => self.ask_to_schedule(
                id,
                Ticket {
                    ticket,
                    client,
                    object,
                },
            ),
            Said::Edge { slot, edge } => {
                let now = self.now;
                let Some(session) = self.sessions.get_mut(&id).filter(|s| s.page.is_none()) else {
                    return;
                };
                let Some(slot) = session.slots.get_mut(slot as usize) else {
                    return;
                };
                slot.seen = edge;
                slot.seen.busy_since_ns = edge.busy_since_ns.min(now);
                if let Some(gpu) = slot.gpu.filter(|_| session.role == Role::Online) {
                    self.feed(Event::Activity {
                        session: SessionId(id),
                        gpu,
                        reading: reading(edge),
                    });
                }
            }
            Said::Channels {
                seq,
                status,
                errno,
                entered_ns,
                returned_ns,
                method,
            } => {
                let status = if errno != 0 {
                    u32::MAX
                } else if method.unwrap_or_default() != self.method {
                    // A library that does not know the method did what stops nothing here.
                    Status::NOT_SUPPORTED.0
                } else {
                    status
                };
                self.remote_answered(id, seq, status, entered_ns, returned_ns);
            }
            Said::Suspect { slot, reason } => {
                let Some(session) = self.sessions.get_mut(&id).filter(|s| s.page.is_none()) else {
                    return;
                };
                let online = session.role == Role::Online;
                let Some(slot) = session.slots.get_mut(slot as usize) else {
                    return;
                };
                slot.suspect = reason;
                if let Some(gpu) = slot.gpu.filter(|_| online) {
                    self.feed(Event::Suspected {
                        session: SessionId(id),
                        gpu,
                        suspect: reason != 0,
                    });
                }
            }
            Said::Note { kind, text } => {
                self.counters.notes += 1;
                self.tell(Happening {
                    kind: "note",
                    session: id,
                    text: format!("{kind}: {text}"),
                    ..Happening::default()
                });
            }
            Said::Memory(said) => self.hear_memory(id, *said),
            Said::Uvm(fd) => {
                let pid = self.sessions.get(&id).map_or(0, |s| s.process.pid);
                let _ = self.prover.send(Claim::Uvm {
                    session: id,
                    pid,
                    fd,
                });
            }
            Said::ControlFile(fd) => {
                let Some(session) = self.sessions.get_mut(&id) else {
                    return;
                };
                let before = match std::mem::replace(&mut session.file, File::None) {
                    File::Control(file) => Some(file),
                    File::Looking(before) => before,
                    File::None => None,
                };
                session.file = File::Looking(before);
                let _ = self.prover.send(Claim::Taken {
                    session: id,
                    pid: session.process.pid,
                    fd,
                });
            }
            Said::GateWait(waiting) => self.tell(Happening {
                kind: if waiting {
                    "launches_wait"
                } else {
                    "launches_pass"
                },
                session: id,
                job: self.job_name(self.sessions.get(&id).and_then(|s| s.job)),
                ..Happening::default()
            }),
        }
    }

    // ------------------------------------------------------------ RM objects

    fn observe(&mut self, id: u64, snapshot: bool, changes: Vec<RmChange>) {
        let mut gone = Vec::new();
        if snapshot && let Some(session) = self.sessions.get(&id) {
            // What stands but is not in the snapshot went while nobody listened.
            let stands = |held: &&Held| {
                !changes.iter().any(|change| {
                    matches!(change, RmChange::ChannelUp(up)
                        if (up.client, up.channel) == (held.channel.client, held.channel.channel))
                })
            };
            gone = session
                .channels
                .iter()
                .filter(stands)
                .map(|held| RmChange::ChannelDown {
                    client: held.channel.client,
                    channel: held.channel.channel,
                })
                .collect();
        }
        let mut touched = GpuSet::EMPTY;
        let mut grown = GpuSet::EMPTY;
        for change in gone.into_iter().chain(changes) {
            match change {
                // Whose it is matters once it owns a channel: NVML's never does, and may be on a file
                // that is closed by now.
                RmChange::ClientUp(_) => {}
                RmChange::ClientDown(client) => {
                    touched = touched.union(self.forget(id, |held| held.channel.client == client));
                    self.disown(id, client);
                }
                RmChange::ChannelUp(channel) => {
                    self.ask_about(id, channel.client);
                    if let Some(gpu) = self.hold(id, channel) {
                        grown = grown.with(gpu);
                    }
                }
                RmChange::ChannelDown { client, channel } => {
                    touched = touched.union(self.forget(id, |held| {
                        (held.channel.client, held.channel.channel) == (client, channel)
                    }));
                }
            }
        }
        self.channels_changed(id, touched.minus(grown), false);
        self.channels_changed(id, grown, true);
    }

    /// The client is no longer the session's.
    pub(super) fn disown(&mut self, id: u64, client: u32) {
        self.claims.release(client, id);
        self.proofs.drop((id, client));
        if let Some(session) = self.sessions.get_mut(&id) {
            session.clients.remove(&client);
        }
    }

    /// Finds out whose `client` is, once.
    fn ask_about(&mut self, id: u64, client: u32) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if session.clients.contains_key(&client) {
            return;
        }
        if session.clients.len() >= CHANNELS {
            session.note = "too many RM clients".to_owned();
            return;
        }
        session.clients.insert(client, Client::Asked);
        if self.about.mps().is_some() {
            self.refuse(id, client, "MPS runs: launches wait instead");
            return;
        }
        match &session.file {
            File::Looking(_) => {}
            File::Control(file) => {
                let claim = Claim::Client {
                    session: id,
                    file: Arc::clone(file),
                    pid: session.process.pid,
                    client,
                };
                let _ = self.prover.send(claim);
            }
            File::None => self.believe(id, client),
        }
    }

    /// Decides about a client whose owner showed no file.
    fn believe(&mut self, id: u64, client: u32) {
        let verdict = self.claims.report(client, id);
        let own = verdict == Verdict::Granted && self.believe_unproven;
        match verdict {
            Verdict::Granted if !own => self.refuse(id, client, "no control file to prove it with"),
            Verdict::Granted => self.grant(id, client, None),
            Verdict::Contested(other) => {
                self.foreign_claim(id, client);
                self.refuse(other, client, "another process reports the same RM client");
                self.refuse(id, client, "another process reports the same RM client");
            }
            Verdict::Foreign | Verdict::TakenFrom(_) => {
                self.foreign_claim(id, client);
                self.refuse(id, client, "the RM client belongs to another process");
            }
        }
    }

    pub(super) fn judge(&mut self, proof: Proof) {
        match proof {
            Proof::File { session: id, file } => {
                let Some(session) = self.sessions.get_mut(&id) else {
                    return;
                };
                let before = match &mut session.file {
                    File::Looking(before) => before.take(),
                    File::Control(_) | File::None => None,
                };
                if file.is_none() {
                    session.note = "what it sent is not the driver's control file".to_owned();
                }
                session.file = file.or(before).map_or(File::None, File::Control);
                // What was proven on another file of it stays so.
                let unproven =
                    |(_, client): &(&u32, &Client)| !matches!(client, Client::Own(Some(_)));
                let open: Vec<u32> = session
                    .clients
                    .iter()
                    .filter(unproven)
                    .map(|(client, _)| *client)
                    .collect();
                for client in open {
                    if let Some(session) = self.sessions.get_mut(&id) {
                        session.clients.remove(&client);
                    }
                    self.ask_about(id, client);
                }
            }
            Proof::Uvm { session: id, file } => {
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.uvm = file;
                }
            }
            Proof::Client {
                session: id,
                client,
                file,
            } => {
                let known = self
                    .sessions
                    .get(&id)
                    .is_some_and(|session| session.clients.contains_key(&client));
                if !known {
                    return;
                }
                match file {
                    Some(file) => {
                        if let Verdict::TakenFrom(other) = self.claims.prove(client, id) {
                            self.foreign_claim(other, client);
                            self.refuse(other, client, "the RM client belongs to another process");
                        }
                        self.grant(id, client, Some(file));
                    }
                    None => {
                        self.foreign_claim(id, client);
                        self.refuse(id, client, "its control file does not know the RM client");
                    }
                }
            }
        }
    }

    fn foreign_claim(&mut self, id: u64, client: u32) {
        self.counters.foreign_claims += 1;
        self.tell(Happening {
            kind: "foreign_claim",
            session: id,
            text: format!("RM client {client:#x} is not shown to be its own"),
            ..Happening::default()
        });
    }

    /// The client is the session's: its channels are managed from here on.
    fn grant(&mut self, id: u64, client: u32, file: Option<Arc<ControlFile>>) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        session.clients.insert(client, Client::Own(file));
        let waiting: Vec<Channel> = session
            .channels
            .iter()
            .filter(|held| held.channel.client == client && held.place.is_none())
            .map(|held| held.channel)
            .collect();
        let grown: GpuSet = waiting
            .into_iter()
            .filter_map(|channel| self.manage(id, channel))
            .collect();
        self.channels_changed(id, grown, true);
    }

    /// The client is not the session's: none of its channels is managed.
    pub(super) fn refuse(&mut self, id: u64, client: u32, why: &str) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        session.clients.insert(client, Client::Foreign);
        why.clone_into(&mut session.note);
        self.gate_launches(id);
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let mut lost = GpuSet::EMPTY;
        let mut places = Vec::new();
        for held in &mut session.channels {
            if held.channel.client == client
                && let Some(place) = held.place.take()
            {
                places.push((held.gpu, place));
                lost = held.gpu.map_or(lost, |gpu| lost.with(gpu));
            }
        }
        let job = session.job;
        self.proofs.drop((id, client));
        self.retire(id, job, places);
        self.channels_changed(id, lost, false);
        self.release_tickets(id);
    }

    /// Some channels of the process cannot be controlled: its launches wait instead.
    fn gate_launches(&mut self, id: u64) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if session.launch_gated || session.role != Role::Offline || self.level == Level::L5 {
            return;
        }
        session.launch_gated = true;
        let gpus: GpuSet = session.gpus().collect();
        if let Some(job) = session.job {
            self.refresh_gates(job);
        }
        self.channels_changed(id, gpus, true);
    }

    /// Adds a channel; the GPU on which it is managed, if it is.
    fn hold(&mut self, id: u64, channel: Channel) -> Option<GpuId> {
        let gpu = self.gpu_of(&channel);
        let session = self.sessions.get_mut(&id)?;
        let same = (channel.client, channel.channel);
        let known = session
            .channels
            .iter_mut()
            .find(|held| (held.channel.client, held.channel.channel) == same);
        if let Some(held) = known {
            // The same channel again, with more known of it.
            held.channel = channel;
            if held.gpu == gpu || held.place.is_some() {
                return None;
            }
            held.gpu = gpu;
        } else if session.channels.len() >= CHANNELS {
            self.counters.channels_refused += 1;
            session.note = format!("more than {CHANNELS} channels: launches wait instead");
            self.gate_launches(id);
            return None;
        } else {
            session.channels.push(Held {
                channel,
                gpu,
                place: None,
            });
        }
        self.manage(id, channel)
    }

    fn gpu_of(&self, channel: &Channel) -> Option<GpuId> {
        let by_uuid = channel
            .uuid
            .and_then(|uuid| self.gpus.iter().position(|state| state.gpu.uuid == uuid));
        let by_instance = || {
            let instance = channel.device_instance?;
            let same = |state: &super::GpuState| state.gpu.device_instance == instance;
            self.gpus.iter().position(same)
        };
        by_uuid.or_else(by_instance).map(gpu_id)
    }

    /// Puts a channel into the lists, if it may be there.
    fn manage(&mut self, id: u64, channel: Channel) -> Option<GpuId> {
        let level = self.level;
        let session = self.sessions.get_mut(&id)?;
        if session.role != Role::Offline || level == Level::L5 {
            return None;
        }
        let own = match session.clients.get(&channel.client) {
            Some(Client::Own(file)) => {
                level != Level::L2 || (file.is_some() && channel.subdevice != 0)
            }
            _ => false,
        };
        if !own {
            return None;
        }
        let held = session.channels.iter_mut().find(|held| {
            (held.channel.client, held.channel.channel) == (channel.client, channel.channel)
        })?;
        let gpu = held.gpu?;
        let Some(place) = self.places.take() else {
            self.counters.channels_refused += 1;
            "the journal is full: launches wait instead".clone_into(&mut session.note);
            self.gate_launches(id);
            return None;
        };
        held.place = Some(place);
        let pid = session.process.pid.cast_unsigned();
        let instance = self.gpus.get(gpu.index())?.gpu.device_instance;
        self.journal
            .describe(place, channel.client, channel.channel, instance);
        if self.node.is_moving(SessionId(id)) {
            self.journal.begin_move(place, pid);
        }
        Some(gpu)
    }

    /// Drops channels; the GPUs they were managed on.
    pub(super) fn forget(&mut self, id: u64, which: impl Fn(&Held) -> bool) -> GpuSet {
        let Some(session) = self.sessions.get_mut(&id) else {
            return GpuSet::EMPTY;
        };
        let mut places = Vec::new();
        session.channels.retain(|held| {
            let goes = which(held);
            if goes && let Some(place) = held.place {
                places.push((held.gpu, place));
            }
            !goes
        });
        let gpus = places.iter().filter_map(|(gpu, _)| *gpu).collect();
        let job = session.job;
        self.retire(id, job, places);
        gpus
    }

    /// Tells policy how many channels a process has on `gpus`, after the calls were prepared anew.
    pub(super) fn channels_changed(&mut self, id: u64, gpus: GpuSet, grown: bool) {
        if gpus.is_empty() {
            return;
        }
        let Some(job) = self.sessions.get(&id).and_then(|session| session.job) else {
            return;
        };
        for gpu in gpus.iter() {
            self.prepare(job, gpu, grown);
        }
        if grown {
            self.announce_offline(id);
        }
        for gpu in gpus.iter() {
            let channels = self.sessions.get(&id).map_or(0, |s| s.gated_on(gpu));
            self.feed(Event::ChannelsChanged {
                session: SessionId(id),
                gpu,
                channels: Channels(u32::try_from(channels).unwrap_or(u32::MAX)),
                grown,
            });
        }
        self.release_tickets(id);
    }

    // ------------------------------------------------------------ scheduling calls

    fn ask_to_schedule(&mut self, id: u64, ticket: Ticket) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if session.tickets.len() >= TICKETS {
            // The library lets it pass by itself after its hold.
            return;
        }
        session.tickets.push(ticket);
        self.release_tickets(id);
    }

    /// Lets every held scheduling call pass whose channels stand as policy wants them.
    pub(super) fn release_tickets(&mut self, id: u64) {
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        if session.tickets.is_empty() {
            return;
        }
        let go: Vec<u64> = session
            .tickets
            .iter()
            .filter(|ticket| self.may_schedule(session, ticket))
            .map(|ticket| ticket.ticket)
            .collect();
        if let Some(session) = self.sessions.get_mut(&id) {
            session
                .tickets
                .retain(|ticket| !go.contains(&ticket.ticket));
            for ticket in go {
                session.tell(Tell::Go { ticket });
            }
        }
    }

    fn may_schedule(&self, session: &Session, ticket: &Ticket) -> bool {
        if session.role != Role::Offline || self.level == Level::L5 {
            return true;
        }
        match session.clients.get(&ticket.client) {
            // It cannot be gated by its channels: its launches wait instead.
            Some(Client::Foreign) => return true,
            Some(Client::Own(_)) => {}
            Some(Client::Asked) | None => return false,
        }
        let mut channels = session
            .channels
            .iter()
            .filter(|held| {
                held.channel.client == ticket.client
                    && (held.channel.tsg == ticket.object || held.channel.channel == ticket.object)
            })
            .peekable();
        channels.peek().is_some()
            && channels.all(|held| {
                let Some(gpu) = held.gpu.filter(|_| held.place.is_some()) else {
                    return true;
                };
                let gang = session
                    .job
                    .and_then(|job| self.jobs.get(usize::try_from(job.0).ok()?))
                    .and_then(|job| job.gangs.get(gpu.index()));
                gang.is_none_or(super::Gang::is_settled)
            })
    }
}
