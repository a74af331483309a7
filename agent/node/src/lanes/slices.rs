//! Timeslices: which channel groups the processes of a job have, and which timeslices the driver is asked for.

use super::Lanes;
use crate::batch::Object;
use crate::kinds::{Level, Role};
use crate::members::Members;
use crate::request::Context;
use crate::session::{Client, Held, Session};
use crate::task::{Group, Sliced, Slicing};
use std::collections::BTreeSet;
use std::time::Duration;
use tidegate_policy::event::Event;
use tidegate_policy::fair::Lacks;
use tidegate_policy::ids::{GpuId, JobId, SessionId};

/// The managed groups of a process on a GPU that compute or may, by client and handle.
fn groups(session: &Session, gpu: GpuId) -> BTreeSet<(u32, u32)> {
    let computes = |held: &&Held| {
        held.channel.engine.may_compute() && held.gpu == Some(gpu) && held.place.is_some()
    };
    let held = session.channels.iter().filter(computes);
    held.map(|held| (held.channel.client, held.channel.tsg))
        .collect()
}

/// What policy is told of a process where jobs are to share by timeslices.
pub(crate) fn said(session: &Session, gpu: GpuId, level: Level) -> Event<'static> {
    let own = groups(session, gpu);
    let is_reached = |client| matches!(session.rm.clients.get(client), Some(Client::Own(Some(_))));
    let lacks = if !matches!(level, Level::L1 | Level::L2) {
        Some(Lacks::Level)
    } else if session.state.launch_gated || !own.iter().all(|(client, _)| is_reached(client)) {
        Some(Lacks::File)
    } else {
        None
    };
    Event::Groups {
        session: SessionId(session.id),
        gpu,
        groups: u32::try_from(own.len()).unwrap_or(u32::MAX),
        lacks,
    }
}

/// The same of all offline processes.
pub(crate) fn all_said(members: &Members, level: Level) -> Vec<Event<'static>> {
    let offline = members
        .all()
        .filter(|session| session.role == Role::Offline);
    let each = offline.flat_map(|session| {
        let gpus: BTreeSet<u8> = session.gpus().map(|gpu| gpu.0).collect();
        gpus.into_iter()
            .map(move |gpu| said(session, GpuId(gpu), level))
    });
    each.collect()
}

impl Lanes {
    /// Has the issue thread give the groups of a job that compute so long each, or what they had.
    pub(crate) fn slice(
        &mut self,
        (job, gpu): (JobId, GpuId),
        slice: Option<Duration>,
        members: &mut Members,
        cx: &mut Context<'_>,
    ) {
        let mut all = Vec::new();
        members.each_of_job(job, |session| {
            session.forget_slices();
            for own @ (client, handle) in groups(session, gpu) {
                let Some(Client::Own(Some(file))) = session.rm.clients.get(&client) else {
                    continue;
                };
                let object = Object {
                    file: file.clone(),
                    client,
                    handle,
                };
                all.push(Group {
                    object,
                    before: session.calls.slices.entry(own).or_default().clone(),
                    inherited: session.state.was_gated,
                });
            }
        });
        if all.is_empty() {
            return;
        }
        let slicing = Slicing {
            job,
            gpu,
            slice,
            groups: all,
            refused: None,
        };
        if self.gpus.slice(gpu, slicing) {
            self.slicing += 1;
        } else if slice.is_some() {
            let status = tidegate_abi::rm::Status::INVALID_STATE.0;
            cx.step(Event::SliceRefused { job, status });
        }
    }

    /// The issue thread has set them.
    pub(crate) fn sliced(&mut self, sliced: Sliced, cx: &mut Context<'_>) {
        self.slicing = self.slicing.saturating_sub(1);
        if let Some(status) = sliced.refused {
            cx.counters.slices_refused += 1;
            let (job, status) = (sliced.job, status.0);
            cx.step(Event::SliceRefused { job, status });
        }
    }

    /// Puts back what every group of a job had.
    pub(crate) fn unslice(&mut self, job: JobId, members: &mut Members, cx: &mut Context<'_>) {
        let any = members
            .of_job(job)
            .any(|session| !session.calls.slices.is_empty());
        if !any {
            return;
        }
        for gpu in self.gpus.ids() {
            self.slice((job, gpu), None, members, cx);
        }
    }
}
