//! What policy reports, as an event for people and as counters.

use super::Control;
use super::session::Hindrance;
use crate::events::Happening;
use tidegate_policy::effect::Report;
use tidegate_policy::ids::{GpuId, JobId};
use tidegate_policy::reclaim::Phase;

impl Control {
    pub(super) fn emit(&mut self, report: Report) {
        let mut happening = Happening::default();
        let gpu = |gpu: GpuId| Some(u32::from(gpu.0));
        match report {
            Report::Preempted {
                gpu: on,
                rang,
                entered,
                returned,
                jobs: _,
            } => {
                let latency = returned.as_nanos().saturating_sub(rang.as_nanos());
                if let Some(state) = self.gpus.get_mut(on.index()) {
                    state.preempt.record(latency);
                    state
                        .gate
                        .record(entered.as_nanos().saturating_sub(rang.as_nanos()));
                }
                happening.kind = "preempted";
                happening.gpu = gpu(on);
                happening.value_ns = latency;
            }
            Report::Woken { job } => {
                happening.kind = "woken";
                happening.job = self.job_name(Some(job));
                let gangs = self.jobs.get(job.0 as usize).map(|job| &job.gangs);
                let looks = gangs.into_iter().flatten().map(|gang| gang.looked_ns);
                let looked = looks.filter(|&looked| looked != 0).min();
                happening.value_ns = self.since_look(looked.unwrap_or(0));
            }
            Report::DisableFailed {
                order,
                status,
                failures,
            } => {
                self.counters.disables_failed += 1;
                happening.kind = "disable_failed";
                happening.gpu = gpu(order.gpu);
                happening.job = self.job_name(Some(order.job));
                happening.text = format!("status {status:#x}, {failures} in a row");
            }
            Report::EnableFailed { order, status } => {
                self.counters.enables_failed += 1;
                happening.kind = "enable_failed";
                happening.gpu = gpu(order.gpu);
                happening.job = self.job_name(Some(order.job));
                happening.text = format!("status {status:#x}");
            }
            Report::Unmanaged { job } => {
                happening.kind = "unmanaged";
                happening.job = self.job_name(Some(job));
                happening.text = "its channels cannot be controlled; launches wait instead".into();
            }
            Report::MaxGated { job, since } => {
                happening.kind = "max_gated";
                happening.job = self.job_name(Some(job));
                happening.value_ns = self.now.saturating_sub(since.as_nanos());
            }
            Report::Breathed { job } => {
                happening.kind = "breathed";
                happening.job = self.job_name(Some(job));
            }
            Report::IssueStalled { gpu: on } => {
                happening.kind = "issue_stalled";
                happening.gpu = gpu(on);
                happening.text = "the driver does not return from a call".into();
            }
            Report::Lapsed { session } => {
                self.set_lapsed(session, true);
                happening.kind = "lapsed";
                happening.session = session.0;
                happening.text = "busy without progress; its activity no longer counts".into();
            }
            Report::Recovered { session } => {
                self.set_lapsed(session, false);
                happening.kind = "recovered";
                happening.session = session.0;
            }
            Report::CooldownViolated { gpu: on, gap } => {
                happening.kind = "cooldown_violated";
                happening.gpu = gpu(on);
                happening.value_ns = crate::clock::nanos(gap);
            }
            Report::Paused { job } => {
                happening.kind = "paused";
                happening.job = self.job_name(Some(job));
            }
            Report::Resumed { job } => {
                happening.kind = "resumed";
                happening.job = self.job_name(Some(job));
            }
            Report::Reclaimed {
                job,
                reclaim,
                handles,
                bytes,
                tokens,
                took,
            } => {
                self.reclaims.record(crate::clock::nanos(took));
                self.count_lost_blocks(job);
                happening.kind = "reclaimed";
                happening.job = self.job_name(Some(job));
                happening.value_ns = crate::clock::nanos(took);
                happening.text = format!(
                    "reclaim {}: {} handles, {} MiB on each GPU, {} tokens to compute again",
                    reclaim.0,
                    handles.0,
                    bytes.0 >> 20,
                    tokens.0
                );
            }
            Report::Restored { job, bytes } => {
                happening.kind = "restored";
                happening.job = self.job_name(Some(job));
                happening.text = format!("{} MiB on each GPU", bytes.0 >> 20);
            }
            Report::Unreclaimable { job, phase } => {
                happening.kind = "unreclaimable";
                happening.job = self.job_name(Some(job));
                happening.text = match (phase, self.hindrance(job)) {
                    (Phase::Preparing, Some((pid, why))) => format!("process {pid}: {why}"),
                    _ => "its channels were not disabled in time".to_owned(),
                };
            }
            Report::Pressure {
                session,
                gpu: on,
                used,
                reservation,
            } => {
                if let Some(state) = self.gpus.get_mut(on.index()) {
                    state.pressure_events += 1;
                }
                happening.kind = "pressure";
                happening.gpu = gpu(on);
                happening.session = session.0;
                let (used, reservation) = (used.0 >> 20, reservation.0 >> 20);
                happening.text = format!("{used} MiB in use, {reservation} MiB to be mapped");
            }
            Report::Denied {
                session,
                gpu: on,
                bytes,
            } => {
                happening.kind = "denied";
                happening.gpu = gpu(on);
                happening.session = session.0;
                happening.text = format!("{} MiB are not to be had in time", bytes.0 >> 20);
            }
        }
        self.tell(happening);
    }

    /// A process of a job from which nothing can be taken, and why: one that answered before those
    /// whose answers were not waited for.
    fn hindrance(&self, job: JobId) -> Option<(i32, &Hindrance)> {
        let ranks = self.sessions.values().filter(|of| of.job == Some(job));
        ranks
            .filter_map(|rank| Some((rank.peer.pid, &rank.hindrance.as_ref()?.1)))
            .filter(|(_, why)| **why != Hindrance::None)
            .min_by_key(|(pid, why)| (**why == Hindrance::Silent, *pid))
    }

    pub(super) fn tell(&self, happening: Happening) {
        let session = self.sessions.get(&happening.session);
        self.teller.tell(Happening {
            at_ns: self.now,
            pid: happening
                .pid
                .max(session.map_or(0, |session| session.peer.pid)),
            ..happening
        });
    }
}
