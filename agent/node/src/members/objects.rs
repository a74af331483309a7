//! RM objects of processes: who owns them, and which of their channels are managed.

use super::Members;
use super::claims::Verdict;
use crate::adoption::Adoption;
use crate::file::File;
use crate::gpus::Gpus;
use crate::journal::Place;
use crate::kinds::{Level, Role};
use crate::message::{Channel, Claim, Proof, RmChange};
use crate::request::{Context, Notice, Request, Retire};
use crate::session::{CHANNELS, Client, Control, Held};
use crate::shares::Owner;
use std::collections::HashSet;
use tidegate_policy::ids::{GpuId, GpuSet, JobId};

/// Why a client of MPS is not managed.
const MPS: &str = "its GPU work goes through MPS: launches wait instead";

/// What managing a channel needs of the rest of the shell.
pub(crate) struct Field<'a> {
    pub gpus: &'a Gpus,
    pub adoption: &'a mut Adoption,
    /// The process may be in the middle of changing its memory's mappings.
    pub moving: bool,
}

impl Members {
    /// What stands but is not in a snapshot: it went while nobody listened.
    pub(crate) fn missing(&self, id: u64, snapshot: &[RmChange]) -> Vec<RmChange> {
        let Some(session) = self.get(id) else {
            return Vec::new();
        };
        let up = |change: &RmChange| match change {
            RmChange::ChannelUp(up) => Some(up.pair()),
            _ => None,
        };
        let there: HashSet<(u32, u32)> = snapshot.iter().filter_map(up).collect();
        let stands = |held: &&Held| !there.contains(&held.channel.pair());
        session
            .channels
            .iter()
            .filter(stands)
            .map(|held| RmChange::ChannelDown {
                client: held.channel.client,
                channel: held.channel.channel,
            })
            .collect()
    }

    /// The client is no longer the session's.
    pub(crate) fn disown(&mut self, id: u64, client: u32) {
        self.claims.release(client, id);
        if let Some(session) = self.get_mut(id) {
            session.rm.clients.remove(&client);
        }
    }

    /// Another process has the client by now.
    pub(crate) fn give_up_claim(&mut self, id: u64, client: u32) {
        self.claims.release(client, id);
    }

    /// Finds out whose `client` is, once.
    pub(crate) fn ask_about(&mut self, id: u64, client: u32, cx: &mut Context<'_>) {
        let Some(session) = self.get_mut(id) else {
            return;
        };
        if session.rm.clients.contains_key(&client) {
            return;
        }
        // Whose claim is still looked at when the client is gone counts, too.
        if session.rm.clients.len().max(session.rm.claims) >= CHANNELS {
            "too many RM clients".clone_into(&mut session.state.note);
            return;
        }
        session.rm.clients.insert(client, Client::Asked);
        match &session.rm.files.control {
            Control::Looking(_) => {}
            Control::Known(file) => {
                let claim = Claim::Client {
                    session: id,
                    file: file.clone(),
                    process: session.process(),
                    client,
                };
                session.rm.claims += 1;
                cx.ask(Request::Claim(claim));
            }
            Control::None if cx.settings.mps => self.refuse(id, client, MPS, cx),
            Control::None => self.believe(id, client, cx),
        }
    }

    /// Decides about a client whose owner showed no file.
    fn believe(&mut self, id: u64, client: u32, cx: &mut Context<'_>) {
        match self.claims.report(client, id) {
            Verdict::Granted if !cx.settings.believe_unproven => {
                self.refuse(
                    id,
                    client,
                    "it sent no control file, so its ownership cannot be checked",
                    cx,
                );
            }
            Verdict::Granted => self.grant(id, client, None, cx),
            Verdict::Contested(other) => {
                foreign_claim(id, client, cx);
                self.refuse(
                    other,
                    client,
                    "another process reports the same RM client",
                    cx,
                );
                self.refuse(id, client, "another process reports the same RM client", cx);
            }
            Verdict::Foreign | Verdict::TakenFrom(_) => {
                foreign_claim(id, client, cx);
                self.refuse(id, client, "the RM client belongs to another process", cx);
            }
        }
    }

    /// Takes what the prover found.
    pub(crate) fn judge(&mut self, proof: Proof, cx: &mut Context<'_>) {
        match proof {
            Proof::File { session: id, file } => self.judge_file(id, file, cx),
            Proof::Uvm { session: id, file } => {
                if let Some(session) = self.get_mut(id) {
                    session.rm.files.uvm = file;
                }
            }
            Proof::Beats { session: id, page } => self.judge_beats(id, page, cx),
            Proof::Mps {
                session: id,
                client,
            } => {
                let Some(session) = self.get_mut(id) else {
                    return;
                };
                session.rm.claims = session.rm.claims.saturating_sub(1);
                if session.rm.clients.contains_key(&client) {
                    self.refuse(id, client, MPS, cx);
                }
            }
            Proof::Client {
                session: id,
                client,
                file,
            } => {
                let Some(session) = self.get_mut(id) else {
                    return;
                };
                session.rm.claims = session.rm.claims.saturating_sub(1);
                if !session.rm.clients.contains_key(&client) {
                    return;
                }
                if file.is_some() {
                    if let Verdict::TakenFrom(other) = self.claims.prove(client, id) {
                        foreign_claim(other, client, cx);
                        self.refuse(
                            other,
                            client,
                            "the RM client belongs to another process",
                            cx,
                        );
                    }
                    self.grant(id, client, file, cx);
                } else {
                    foreign_claim(id, client, cx);
                    self.refuse(
                        id,
                        client,
                        "its control file does not know the RM client",
                        cx,
                    );
                }
            }
        }
    }

    fn judge_file(&mut self, id: u64, file: Option<File>, cx: &mut Context<'_>) {
        let Some(session) = self.get_mut(id) else {
            return;
        };
        let before = match &mut session.rm.files.control {
            Control::Looking(before) => before.take(),
            Control::Known(_) | Control::None => None,
        };
        if file.is_none() {
            "what it sent is not the driver's control file".clone_into(&mut session.state.note);
        }
        session.rm.files.control = file.or(before).map_or(Control::None, Control::Known);
        // What was proven on another file of it stays so.
        let unproven = |(_, client): &(&u32, &Client)| !matches!(client, Client::Own(Some(_)));
        let open: Vec<u32> = session
            .rm
            .clients
            .iter()
            .filter(unproven)
            .map(|(client, _)| *client)
            .collect();
        for client in open {
            if let Some(session) = self.get_mut(id) {
                session.rm.clients.remove(&client);
            }
            self.ask_about(id, client, cx);
        }
        self.look_at_work(id, cx);
    }

    /// The client is the session's: its channels are managed from here on.
    fn grant(&mut self, id: u64, client: u32, file: Option<File>, cx: &mut Context<'_>) {
        let Some(session) = self.get_mut(id) else {
            return;
        };
        session.rm.clients.insert(client, Client::Own(file));
        cx.ask(Request::Manage {
            session: id,
            client,
        });
    }

    /// The client is not the session's: none of its channels is managed.
    pub(crate) fn refuse(&mut self, id: u64, client: u32, why: &str, cx: &mut Context<'_>) {
        let Some(session) = self.get_mut(id) else {
            return;
        };
        session.rm.clients.insert(client, Client::Foreign);
        why.clone_into(&mut session.state.note);
        self.gate_launches(id, cx);
        let Some(session) = self.get_mut(id) else {
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
        cx.ask(Request::Unasked(id, client));
        retire(id, job, places, cx);
        cx.ask(Request::Changed {
            session: id,
            gpus: lost,
            grown: false,
        });
        cx.ask(Request::Tickets(id));
    }

    /// Some channels of the process cannot be controlled: its launches wait instead.
    fn gate_launches(&mut self, id: u64, cx: &mut Context<'_>) {
        let Some(session) = self.get_mut(id) else {
            return;
        };
        let offline = session.role == Role::Offline;
        if session.state.launch_gated || !offline || cx.settings.level == Level::L5 {
            return;
        }
        session.state.launch_gated = true;
        let gpus: GpuSet = session.gpus().collect();
        if let Some(job) = session.job {
            cx.ask(Request::Gates(job));
        }
        cx.ask(Request::Changed {
            session: id,
            gpus,
            grown: true,
        });
    }

    /// Adds a channel; the GPU on which it is managed, if it is.
    pub(crate) fn hold(
        &mut self,
        id: u64,
        channel: Channel,
        field: &mut Field<'_>,
        cx: &mut Context<'_>,
    ) -> Option<GpuId> {
        let gpu = field.gpus.of_channel(channel.uuid, channel.device_instance);
        let session = self.get_mut(id)?;
        let known = session
            .channels
            .iter_mut()
            .find(|held| held.channel.pair() == channel.pair());
        if let Some(held) = known {
            // The same channel again, with more known of it.
            held.channel = channel;
            if held.gpu == gpu || held.place.is_some() {
                return None;
            }
            held.gpu = gpu;
        } else if session.channels.len() >= CHANNELS {
            cx.counters.channels_refused += 1;
            session.state.note = format!("more than {CHANNELS} channels: launches wait instead");
            self.gate_launches(id, cx);
            return None;
        } else {
            session.channels.push(Held {
                channel,
                gpu,
                place: None,
            });
        }
        self.manage(id, channel, field, cx)
    }

    /// Manages the channels of a client that is the session's own by now; where.
    pub(crate) fn manage_client(
        &mut self,
        id: u64,
        client: u32,
        field: &mut Field<'_>,
        cx: &mut Context<'_>,
    ) -> GpuSet {
        let Some(session) = self.get(id) else {
            return GpuSet::EMPTY;
        };
        let waiting: Vec<Channel> = session
            .channels
            .iter()
            .filter(|held| held.channel.client == client && held.place.is_none())
            .map(|held| held.channel)
            .collect();
        waiting
            .into_iter()
            .filter_map(|channel| self.manage(id, channel, field, cx))
            .collect()
    }

    /// Puts a channel into the lists, if it may be there.
    fn manage(
        &mut self,
        id: u64,
        channel: Channel,
        field: &mut Field<'_>,
        cx: &mut Context<'_>,
    ) -> Option<GpuId> {
        let level = cx.settings.level;
        let session = self.get_mut(id)?;
        if session.role != Role::Offline || level == Level::L5 {
            return None;
        }
        let own = match session.rm.clients.get(&channel.client) {
            Some(Client::Own(file)) => {
                level != Level::L2 || (file.is_some() && channel.subdevice != 0)
            }
            _ => false,
        };
        if !own {
            return None;
        }
        let pid = session.process().pid.cast_unsigned();
        let owner = Owner {
            tenant: session.peer.tenant.clone(),
            job: session.job,
        };
        let was_gated = session.state.was_gated;
        let mut held = session.channels.iter_mut();
        let held = held.find(|held| held.channel.pair() == channel.pair())?;
        let gpu = held.gpu?;
        let instance = field.gpus.get(gpu)?.gpu.device_instance;
        let adoption = &mut field.adoption;
        let Some(place) = adoption.place(channel.pair(), instance, owner, was_gated) else {
            cx.counters.channels_refused += 1;
            "its job or tenant has its share of the journal: launches wait instead"
                .clone_into(&mut session.state.note);
            self.gate_launches(id, cx);
            return None;
        };
        held.place = Some(place);
        if field.moving {
            adoption.journal.begin_move(place, pid);
        }
        Some(gpu)
    }

    /// Drops channels; the GPUs they were managed on.
    pub(crate) fn forget(
        &mut self,
        id: u64,
        which: impl Fn(&Held) -> bool,
        cx: &mut Context<'_>,
    ) -> GpuSet {
        let Some(session) = self.get_mut(id) else {
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
        retire(id, job, places, cx);
        gpus
    }
}

/// Channels of a living process leave the lists.
fn retire(
    session: u64,
    job: Option<JobId>,
    places: Vec<(Option<GpuId>, Place)>,
    cx: &mut Context<'_>,
) {
    cx.ask(Request::Retire(Retire {
        session,
        job,
        places,
        dead: None,
    }));
}

fn foreign_claim(id: u64, client: u32, cx: &mut Context<'_>) {
    cx.counters.foreign_claims += 1;
    cx.emit(Notice {
        kind: "foreign_claim",
        session: id,
        text: format!("RM client {client:#x} is not shown to be its own"),
        ..Notice::default()
    });
}
