//! Processes go, and may come back.
//!
//! A lost connection is not a death: the page goes on telling edges, the channels go on being gated,
//! and the process attaches again as a new session, which takes the place of the old one. Only the end
//! of the process gives back what it held. Channels of one that attached anew, or was handed over by an
//! earlier agent, are *adopted*: they stay as they are until it has said again what it has.

use super::{Control, gpu_id};
use crate::config::Role;
use crate::events::Happening;
use crate::inbox::Process;
use crate::journal::{HANDING_OVER_NS, Marked, Place};
use std::sync::Arc;
use tidegate_policy::event::Event;
use tidegate_policy::ids::{GpuSet, SessionId};

/// How long processes that were handed over, or attached anew, may take to say what they have: within
/// the second that their own soft landing waits.
pub(super) const ADOPTION_NS: u64 = HANDING_OVER_NS * 8 / 10;

/// How soon a channel that could not be enabled is tried again. A GPU that does not answer is reset by its driver
/// within seconds or by nobody.
pub(super) const STUCK_NS: u64 = 5_000_000_000;

/// A channel that may be disabled and is in no list until its process has said again what it has: it was
/// handed over by an earlier agent, or the process attached anew.
#[derive(Clone, Copy, Debug)]
pub(super) struct Adopted {
    pub marked: Marked,
    /// When it is enabled unless it was claimed.
    pub due_ns: u64,
}

/// How a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaves {
    /// Its process ended.
    ForGood,
    /// Its process attached again: what it held stays as it is until the process has said what stands.
    ToReturn,
}

impl Control {
    /// The connection is lost. The process may be dying or may come back; its page still speaks.
    pub(super) fn disconnect(&mut self, id: u64) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        session.outbox = None;
        session.tickets.clear();
        self.tell(Happening {
            kind: "disconnected",
            session: id,
            ..Happening::default()
        });
    }

    /// A process ended.
    pub(super) fn bury(&mut self, process: Process) {
        let ended: Vec<u64> = self
            .sessions
            .values()
            .filter(|session| session.process == process)
            .map(|session| session.id)
            .collect();
        for id in ended {
            let job = self.sessions.get(&id).and_then(|session| session.job);
            self.tell(Happening {
                kind: "exited",
                session: id,
                job: self.job_name(job),
                text: format!("pid {}", process.pid),
                ..Happening::default()
            });
            self.remove(id, Leaves::ForGood);
        }
    }

    /// A client that rings beyond all measure loses its page, and with it its say.
    pub(super) fn drop_page(&mut self, id: u64) {
        self.counters.pages_dropped += 1;
        self.waiting.remove(id);
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        session.page = None;
        session.role = Role::Ignore;
        "rang beyond the allowed rate: its page was dropped".clone_into(&mut session.note);
        self.tell(Happening {
            kind: "page_dropped",
            session: id,
            text: "rang beyond the allowed rate".to_owned(),
            ..Happening::default()
        });
        self.rebuild_guards();
        self.feed(Event::OnlineGone {
            session: SessionId(id),
        });
    }

    /// Takes a session out of everything.
    pub(super) fn remove(&mut self, id: u64, leaves: Leaves) {
        self.waiting.remove(id);
        self.claims.release_all(id);
        self.proofs.drop_all(id);
        let Some(mut session) = self.sessions.remove(&id) else {
            return;
        };
        self.shares_stale = true;
        if let Some(job) = session.job.and_then(|job| self.job(job)) {
            job.launched = job.launched.saturating_add(session.launches());
        }
        match session.role {
            Role::Online => {
                self.rebuild_guards();
                self.feed(Event::OnlineGone {
                    session: SessionId(id),
                });
            }
            Role::Offline => {
                let managed = session.channels.iter();
                let places: Vec<_> = managed
                    .filter_map(|held| Some((held.gpu, held.place?)))
                    .collect();
                match leaves {
                    Leaves::ForGood => {
                        let files = Arc::new(session.take_files());
                        self.retire_with(id, session.job, places, Some(files));
                    }
                    Leaves::ToReturn => {
                        let due_ns = self.now + ADOPTION_NS;
                        let left = places.into_iter().map(|(_, place)| Adopted {
                            marked: self.journal.described(place),
                            due_ns,
                        });
                        self.adopted.extend(left);
                    }
                }
                if let Some(job) = session.job {
                    for gpu in session.gpus().collect::<GpuSet>().iter() {
                        self.prepare(job, gpu, false);
                    }
                }
                self.feed(Event::OfflineGone {
                    session: SessionId(id),
                });
            }
            Role::Ignore => {}
        }
    }

    /// Ends what was adopted to be claimed until `due_ns`: what a process claimed is policy's, the rest
    /// is enabled, but where the process is in the middle of changing its memory's mappings.
    pub(super) fn release_unclaimed(&mut self, due_ns: u64) {
        if self.adopted.iter().all(|adopted| adopted.due_ns > due_ns) {
            return;
        }
        let adopted = std::mem::take(&mut self.adopted);
        let (due, later): (Vec<_>, Vec<_>) = adopted
            .into_iter()
            .partition(|adopted| adopted.due_ns <= due_ns);
        self.adopted = later;
        let is_claimed = |marked: &Marked| {
            self.sessions.values().any(|session| {
                session.channels.iter().any(|held| {
                    let own = (held.channel.client, held.channel.channel);
                    held.place.is_some() && own == (marked.client, marked.channel)
                })
            })
        };
        let due = due.into_iter().map(|adopted| adopted.marked);
        let (claimed, unclaimed): (Vec<_>, Vec<_>) = due.partition(is_claimed);
        self.give_back(claimed.into_iter().map(|marked| marked.place).collect());
        let (moving, unclaimed): (Vec<_>, Vec<_>) =
            unclaimed.into_iter().partition(Marked::is_moving);
        let due_ns = self.now + ADOPTION_NS;
        let again = moving.into_iter();
        self.adopted
            .extend(again.map(|marked| Adopted { marked, due_ns }));
        let here = |marked: &Marked| {
            let instance = marked.device_instance;
            let mut gpus = self.gpus.iter();
            gpus.any(|state| state.gpu.device_instance == instance)
        };
        let (unclaimed, elsewhere): (Vec<_>, Vec<_>) = unclaimed.into_iter().partition(here);
        if !elsewhere.is_empty() {
            // On a GPU that was not listed when the agent started: the driver is asked anew.
            self.releases += 1;
            let (journal, mailbox) = (Arc::clone(&self.journal), self.mailbox.clone());
            crate::reconcile::start_late(journal, elsewhere, mailbox);
        }
        for index in 0..self.gpus.len() {
            let instance = self.gpus[index].gpu.device_instance;
            let here = unclaimed
                .iter()
                .filter(|marked| marked.device_instance == instance);
            let places: Vec<_> = here.map(|marked| marked.place).collect();
            if !places.is_empty() {
                self.release(gpu_id(index), places, None);
            }
        }
    }

    /// Keeps channels that could not be enabled: they stay in the journal, and are tried again.
    pub(super) fn keep_stuck(&mut self, places: &[Place], why: &str) {
        let Some(&first) = places.first() else { return };
        let marked = self.journal.described(first);
        self.tell(Happening {
            kind: "channels_stuck",
            text: format!(
                "{} channels stay disabled, the first {:#x} of client {:#x}: {why}; tried again every {} s, or end \
                 their process",
                places.len(),
                marked.channel,
                marked.client,
                STUCK_NS / 1_000_000_000,
            ),
            ..Happening::default()
        });
        let due_ns = self.now + STUCK_NS;
        for &place in places {
            let marked = self.journal.described(place);
            self.adopted.push(Adopted { marked, due_ns });
        }
    }
}
