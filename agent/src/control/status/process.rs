//! How an attached process stands.

use super::View;
use crate::span::time as span;
use crate::wire::role;
use std::sync::atomic::Ordering;
use tidegate_abi::page::ACTIVITY_BUSY;
use tidegate_node::message::Whereabouts;
use tidegate_node::session::Session;
use tidegate_policy::ids::GpuId;
use tidegate_proto::v1;

/// A process that is busy for so long without a launch is marked.
const BUSY_FOR_NOTHING_NS: u64 = 10_000_000_000;

impl View<'_> {
    /// On which GPU an online process has long been busy without a launch. It may wait for its work, or only pretend to
    /// have some: either way offline waits for it.
    fn busy_for_nothing(&self, session: &Session) -> Option<String> {
        let (gpu, since) = session.busy_for_nothing().filter(|_| session.is_online())?;
        let busy = self.shell.now_ns().saturating_sub(since);
        (busy >= BUSY_FOR_NOTHING_NS).then(|| {
            format!(
                "busy on GPU {} for {} without a launch: offline waits for it",
                gpu.0,
                span(busy)
            )
        })
    }

    pub(in crate::control) fn process(&self, session: &Session) -> v1::ProcessStatus {
        let clock = session.link.clock.text().unwrap_or_default();
        let busy = self.busy_for_nothing(session).unwrap_or_default();
        let notes = [
            (true, busy.as_str()),
            (true, session.origin.asked.refused.as_str()),
            (true, session.state.note.as_str()),
            (true, clock.as_str()),
            (session.link.outbox.is_none(), "connection lost"),
            (
                session.state.lapsed,
                "makes no progress, its activity does not count",
            ),
        ];
        let said = notes
            .iter()
            .filter(|(holds, text)| *holds && !text.is_empty());
        let note = said.map(|(_, text)| *text).collect::<Vec<_>>().join("; ");
        let mut status = v1::ProcessStatus {
            session: session.id,
            pid: session.process().pid,
            uid: session.peer.uid,
            name: session.peer.name.clone().into(),
            rule: session.origin.rule.clone(),
            job: session.job.map_or("", |job| self.job_name(job)).to_owned(),
            library_version: session.library.version.clone().into(),
            driver_version: session.library.driver.clone().into(),
            devices: session
                .slots
                .iter()
                .enumerate()
                .filter_map(|(at, slot)| Some(device(session, at, slot.gpu?)))
                .collect(),
            channels: u32::try_from(session.channels.len()).unwrap_or(u32::MAX),
            proven: session.is_proven(),
            lane: if session.link.page.is_some() {
                "page"
            } else {
                "stream"
            }
            .to_owned(),
            counts: if session.library.membarrier {
                "membarrier"
            } else {
                "atomic adds"
            }
            .to_owned(),
            note,
            role_refused: session.origin.asked.refused.clone(),
            whereabouts: Some(whereabouts(&session.peer.whereabouts)),
            ..v1::ProcessStatus::default()
        };
        status.set_role(role(session.role));
        if let Some(asked) = session.origin.asked.role {
            status.set_asked_role(role(asked));
        }
        status
    }
}

fn whereabouts(place: &Whereabouts) -> v1::Whereabouts {
    v1::Whereabouts {
        unit: place.unit.clone().into(),
        container: place.container.clone().into(),
        pod_uid: place.pod_uid.clone().into(),
        namespace: place.namespace.clone().into(),
        pod: place.pod.clone().into(),
        slurm_job: place.slurm_job.clone().into(),
        text: place.text(),
    }
}

fn device(session: &Session, at: usize, gpu: GpuId) -> v1::DeviceStatus {
    let slot = &session.slots[at];
    let page = session.link.page.as_ref();
    let words = page.map(|page| &page.devices[at]);
    let activity = words.map_or(slot.seen.word, |words| {
        words.activity.load(Ordering::Relaxed)
    });
    let mut status = v1::DeviceStatus {
        slot: u32::try_from(at).unwrap_or(u32::MAX),
        gpu: u32::from(gpu.0),
        busy: activity & ACTIVITY_BUSY != 0,
        launches: page.map_or(slot.seen.launches, |page| page.launches(at)),
        suspect: 0,
        memory_bytes: slot.held.0,
        edges: slot.seen.word >> 1,
    };
    let said = i32::try_from(slot.suspect)
        .ok()
        .and_then(|reason| v1::BusyReason::try_from(reason).ok())
        .unwrap_or_default();
    // A frozen process names nothing itself, and what it named before is out of date.
    let frozen = session.state.lapsed && status.busy;
    status.set_suspect(if frozen {
        v1::BusyReason::StoppedProcess
    } else {
        said
    });
    status
}
