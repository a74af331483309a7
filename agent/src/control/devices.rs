//! The GPUs that processes use: which of the node's each is, and whose activity words forbid an enable on it.

use super::session::{Slot, reading};
use super::{Control, Gang, GpuState, gpu_id};
use crate::config::Role;
use crate::events::Happening;
use crate::issue::Guards;
use crate::rm::{Gpu, uuid_text};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidegate_policy::event::Event;
use tidegate_policy::ids::{GpuSet, SessionId};

impl Control {
    pub(super) fn meet_device(&mut self, id: u64, at: u32, uuid: [u8; 16]) {
        let found = self.gpu_named(uuid);
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Some(slot) = session.slots.get_mut(at as usize) else {
            return;
        };
        let Some(gpu) = found.map(gpu_id) else {
            session.note = "uses a GPU this node does not have".to_owned();
            return;
        };
        self.shares_stale = true;
        // A process that comes back goes on counting where it was; all it launched under another agent,
        // or in an earlier session, is in no books of this one.
        let counted = session.page.as_ref().filter(|_| session.was_gated);
        *slot = Slot {
            gpu: Some(gpu),
            launched_before: counted.map_or(slot.launched_before, |page| {
                page.devices[at as usize].total.load(Ordering::Relaxed)
            }),
            ..*slot
        };
        if let Some(page) = &session.page {
            slot.seen = super::session::read(&page.devices[at as usize]);
        }
        let seen = slot.seen;
        match session.role {
            Role::Online => {
                self.rebuild_guards();
                self.feed(Event::Activity {
                    session: SessionId(id),
                    gpu,
                    reading: reading(seen),
                });
            }
            Role::Offline => {
                let (job, gated) = (session.job, session.launch_gated);
                self.announce_offline(id);
                if gated {
                    self.channels_changed(id, GpuSet::of(gpu), true);
                }
                if let Some(job) = job {
                    self.refresh_gates(job);
                }
            }
            Role::Ignore => {}
        }
    }

    /// The GPU of this UUID, which is new to the node if it was not listed and one may be met.
    fn gpu_named(&mut self, uuid: [u8; 16]) -> Option<usize> {
        let known = self.gpus.iter().position(|state| state.gpu.uuid == uuid);
        if known.is_some() || self.unseen == 0 {
            return known;
        }
        let at = self.gpus.len();
        self.unseen -= 1;
        let number = u32::try_from(at).unwrap_or(u32::MAX);
        let gpu = Gpu {
            minor: number,
            // No driver says it, and nobody is asked by it at the launch gate.
            device_instance: u32::MAX,
            uuid,
        };
        self.gpus.push(GpuState::new(gpu, None));
        for job in &mut self.jobs {
            job.gangs.push(Gang::default());
        }
        self.tell(Happening {
            kind: "gpu_met",
            gpu: Some(number),
            text: format!("{}, which only its processes know", uuid_text(&uuid)),
            ..Happening::default()
        });
        self.share_pool(gpu_id(at), self.pool);
        Some(at)
    }

    /// Makes anew which activity words forbid an enable on each GPU.
    pub(super) fn rebuild_guards(&mut self) {
        for (index, state) in self.gpus.iter_mut().enumerate() {
            let gpu = gpu_id(index);
            let mut guards = Guards::default();
            for session in self.sessions.values() {
                let Some(page) = session
                    .page
                    .as_ref()
                    .filter(|_| session.is_online() && !session.lapsed)
                else {
                    continue;
                };
                for (at, slot) in session.slots.iter().enumerate() {
                    let counts = slot.suspect == 0 || !self.ignore_suspects;
                    if slot.gpu == Some(gpu) && counts {
                        guards.0.push((Arc::clone(page), at));
                    }
                }
            }
            state.guards = Arc::new(guards);
        }
    }
}
