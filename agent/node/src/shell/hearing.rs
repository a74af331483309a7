//! Receives messages of processes, and the results of their ownership checks.

use super::Shell;
use crate::gpus::Met;
use crate::lanes::RemoteAnswer;
use crate::members::Field;
use crate::memory::{MemorySaid, note_move};
use crate::message::{RmChange, Said};
use crate::proofs::Next;
use crate::request::{Context, Notice, Request};
use crate::session::Held;
use std::sync::Arc;
use tidegate_abi::rm::Status;
use tidegate_abi::uuid::Uuid;
use tidegate_policy::event::Event;
use tidegate_policy::ids::{GpuSet, SessionId};

/// Items of a long message that are taken before the doorbells are read again.
const SLICE: usize = 16;

impl Shell {
    /// An attached process said something.
    pub(super) fn hear(&mut self, id: u64, said: Said) {
        let Some(session) = self.members.get(id) else {
            return;
        };
        match said {
            Said::Device { slot, uuid } => {
                let members = &self.members;
                let is_used = |gpu| members.all().any(|own| own.gpus().any(|used| used == gpu));
                let found = self.lanes.meet(uuid, &session.peer.tenant, is_used);
                if let Some((gpu, Met::Instead | Met::New)) = found {
                    context!(self).emit(Notice {
                        kind: "gpu_met",
                        gpu: Some(gpu),
                        text: format!("{}, which only its processes know", Uuid(uuid)),
                        ..Notice::default()
                    });
                    context!(self).ask(Request::SharePool(gpu));
                    self.settle();
                }
                let (at, gpu) = (slot as usize, found.map(|(gpu, _)| gpu));
                self.members.meet_device(id, at, gpu, &mut context!(self));
            }
            Said::Rm { snapshot, changes } => self.observe(id, snapshot, changes),
            Said::Schedule(ticket) => {
                self.members
                    .ask_to_schedule(id, ticket, &mut context!(self));
            }
            Said::Channels {
                seq,
                status,
                errno,
                entered_ns,
                returned_ns,
                method,
            } => {
                let (job, clock) = (session.job, session.link.clock);
                let status = if errno != 0 {
                    u32::MAX
                } else if method.unwrap_or_default() != self.settings.method {
                    // A library that does not know the method did what stops nothing here.
                    Status::NOT_SUPPORTED.0
                } else {
                    status
                };
                if let Some(places) = self.adoption.told_by(seq) {
                    return self.enabled_by_its_process(id, places, Status(status));
                }
                let Some(job) = job else { return };
                let answer = RemoteAnswer {
                    seq,
                    status,
                    entered_ns: clock.here(entered_ns),
                    returned_ns: clock.here(returned_ns),
                };
                let journal = Arc::clone(&self.adoption.journal);
                let members = &mut self.members;
                self.lanes
                    .remote_answered(job, answer, members, &journal, &mut context!(self));
            }
            Said::Memory(said) => self.hear_memory(id, &said),
            other => self.members.hear(id, other, &mut context!(self)),
        }
    }

    fn hear_memory(&mut self, id: u64, said: &MemorySaid) {
        let events = self
            .memory
            .hear(id, said, &mut self.members, &mut context!(self));
        self.settle();
        for (nth, event) in events.into_iter().enumerate() {
            if nth % SLICE == SLICE - 1 {
                self.look_up();
            }
            self.step(event);
        }
        if matches!(said, MemorySaid::Requests { .. }) {
            self.step(Event::Tick);
        }
        if matches!(said, MemorySaid::Moved { .. }) {
            let session = SessionId(id);
            let moving = self.policy.is_moving(session);
            note_move(session, moving, &self.members, &self.adoption);
        }
    }

    /// Hears of a process' RM objects.
    fn observe(&mut self, id: u64, snapshot: bool, changes: Vec<RmChange>) {
        let gone = if snapshot {
            self.members.missing(id, &changes)
        } else {
            Vec::new()
        };
        let (mut touched, mut grown) = (GpuSet::EMPTY, GpuSet::EMPTY);
        for (nth, change) in gone.into_iter().chain(changes).enumerate() {
            if nth % SLICE == SLICE - 1 {
                self.look_up();
            }
            match change {
                // Whose it is matters once it owns a channel: NVML's never does, and may be on a file
                // that is closed by now.
                RmChange::ClientUp(_) => {}
                RmChange::ClientDown(client) => {
                    touched = touched.union(self.forget_client(id, client));
                }
                RmChange::ChannelUp(channel) => {
                    self.members
                        .ask_about(id, channel.client, &mut context!(self));
                    self.settle();
                    let moving = self.policy.is_moving(SessionId(id));
                    let mut field = Field {
                        gpus: &self.lanes.gpus,
                        adoption: &mut self.adoption,
                        moving,
                    };
                    let managed = self
                        .members
                        .hold(id, channel, &mut field, &mut context!(self));
                    grown = managed.map_or(grown, |gpu| grown.with(gpu));
                }
                RmChange::ChannelDown { client, channel } => {
                    let own = |held: &Held| held.channel.pair() == (client, channel);
                    let gpus = self.members.forget(id, own, &mut context!(self));
                    touched = touched.union(gpus);
                }
            }
            self.settle();
        }
        self.look_elsewhere(id);
        for (gpus, grown) in [(touched.minus(grown), false), (grown, true)] {
            context!(self).ask(Request::Changed {
                session: id,
                gpus,
                grown,
            });
        }
    }

    fn forget_client(&mut self, id: u64, client: u32) -> GpuSet {
        let own = |held: &Held| held.channel.client == client;
        let gpus = self.members.forget(id, own, &mut context!(self));
        self.settle();
        self.members.disown(id, client);
        self.proofs.drop((id, client));
        gpus
    }

    /// What follows from a proof that was made again.
    pub(super) fn aged(&mut self, (id, client): (u64, u32), next: Next) {
        match next {
            Next::Nothing => {}
            Next::Ask => {
                let prover = &*self.ports.prover;
                self.proofs
                    .ask_again((id, client), &self.members, prover, self.time.now);
            }
            Next::Forget => {
                let gpus = self.forget_client(id, client);
                context!(self).ask(Request::Changed {
                    session: id,
                    gpus,
                    grown: false,
                });
            }
            Next::Refuse => {
                self.counters.proofs_lapsed += 1;
                let mut cx = context!(self);
                cx.emit(Notice {
                    kind: "proof_lapsed",
                    session: id,
                    job: self.members.get(id).and_then(|session| session.job),
                    text: format!("RM client {client:#x} is another process' by now"),
                    ..Notice::default()
                });
                self.members.give_up_claim(id, client);
                let why = "an RM client it proved is another process' by now";
                self.members.refuse(id, client, why, &mut cx);
            }
        }
    }
}
