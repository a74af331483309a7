//! How a job stands, what it has used, and why it runs or not.

use super::View;
use crate::span::time as span;
use tidegate_node::report::why_turns;
use tidegate_node::session::Session;
use tidegate_node::usage::Usage;
use tidegate_policy::fair::ShareView;
use tidegate_policy::ids::{GpuId, GpuSet, JobId};
use tidegate_policy::time::Instant;
use tidegate_policy::view::{JobState, JobView, Reason};
use tidegate_proto::v1;

/// Launches that wait for so long at an open gate are not just about to pass.
const HELD_UP_NS: u64 = 1_000_000_000;

impl View<'_> {
    /// What a job used so far, by its number.
    pub(super) fn job_usage(&self, job: JobId, usage: &Usage) -> v1::JobStatus {
        v1::JobStatus {
            name: self.job_name(job).to_owned(),
            number: job.0,
            uid: self.shell.lanes().job(job).map(|own| own.uid),
            launches: self.shell.launches(job),
            attached_ns: usage.job(job).attached,
            running_ns: usage.job(job).running,
            paused_ns: usage.job(job).paused,
            held_byte_seconds: usage.job(job).held_byte_seconds(),
            units: self.shell.worked(job).useful,
            ..v1::JobStatus::default()
        }
    }

    /// What a job's training has done, if it trains.
    pub(in crate::control) fn trainer(&self, job: JobId) -> Option<v1::TrainerStatus> {
        let session = self.shell.trainer(job)?;
        let said = session.work.training.as_deref()?;
        let totals = self.shell.worked(job);
        Some(v1::TrainerStatus {
            said: Some(v1::Training {
                step: said.step,
                steps: said.steps,
                begun: said.begun,
                tokens: said.tokens,
                units: said.units,
                units_redone: said.units_redone,
                reclaims: said.reclaims,
                layers: said.layers,
                resident_layers: said.resident_layers,
                loss: said.loss,
                adapter: said.adapter.to_string(),
                served: said.served.to_string(),
            }),
            pid: session.process().pid,
            tokens_per_s: session.work.tokens_per_s(self.shell.now_ns()),
            steps: totals.steps,
            tokens: totals.tokens,
            units_redone: totals.units_redone,
        })
    }

    fn job_memory(&self, job: JobId) -> Option<v1::JobMemory> {
        let policy = self.shell.policy();
        let view = policy.job_memory(job)?;
        let now = Instant::from_nanos(self.shell.now_ns());
        let weighed = policy.weighed(job, now);
        Some(v1::JobMemory {
            stripes: view.stripes,
            stripes_taken: view.taken,
            reclaimable: view.fit,
            reclaims: view.reclaims,
            blocks_invalidated: view.blocks_lost,
            tokens_lost: view.tokens.0,
            has_bytes: weighed.map(|weighed| weighed.has.0),
            deserves_bytes: weighed.map(|weighed| weighed.deserves.0),
        })
    }

    fn beside_others(&self, job: JobId) -> ShareView {
        let now = Instant::from_nanos(self.shell.now_ns());
        self.shell.policy().turns(job, now)
    }

    /// How a job stands beside others that take turns with it.
    pub(in crate::control) fn share(&self, job: JobId) -> Option<v1::JobShare> {
        let share = self.beside_others(job);
        share.shares.then(|| v1::JobShare {
            deserved: share.deserved,
            got: share.got,
            wants: share.wants,
            left_ns: crate::clock::nanos(share.left.unwrap_or_default()),
            at_once: share.sliced,
            timeslice_ns: crate::clock::nanos(share.slice.unwrap_or_default()),
            turns_because: share.lacks.map_or_else(String::new, |(of, lacks)| {
                let name = self.shell.lanes().job(of).map(|of| of.name.to_string());
                format!("{}: {}", name.unwrap_or_default(), why_turns(lacks))
            }),
        })
    }

    /// Channels of a job that may be disabled and that no order reaches.
    fn stuck(&self, job: JobId) -> usize {
        let members = self.shell.members().of_job(job);
        members.map(|session| self.shell.stuck(session)).sum()
    }

    /// Why a job is as it is.
    pub(in crate::control) fn job_reason(&self, view: &JobView) -> String {
        let stuck = self.stuck(view.job);
        if stuck > 0 {
            return format!(
                "{stuck} of its channels may be disabled, on a GPU that the agent cannot use or by an earlier agent"
            );
        }
        if self.shell.policy().is_drained() && !view.paused && view.reason == Reason::Paused {
            return "the node is drained".to_owned();
        }
        if view.reason == Reason::None && self.ungated_ns() > 0 {
            return "an operator lets it run beside online".to_owned();
        }
        if view.reason == Reason::None && view.state == JobState::Running {
            return self.why_it_may_run(view);
        }
        if view.reason == Reason::Turn {
            return self.whose_turn(view);
        }
        if let Reason::Gate(gpus) = view.reason
            && gpus.iter().all(|gpu| self.holder(gpu).is_some())
        {
            return format!("online has requests in flight on GPU {}", list(gpus));
        }
        reason(view)
    }

    /// Who has the GPUs of a job that waits for its turn, and for how long at most.
    fn whose_turn(&self, view: &JobView) -> String {
        let own = self.beside_others(view.job);
        let Some(other) = own.behind else {
            return "waits for its turn: the job before it is being stopped".to_owned();
        };
        let name = self.job_name(other);
        if !own.wants {
            return format!("has no work: {name} runs");
        }
        match self.beside_others(other).left {
            Some(left) => format!(
                "waits for its turn: {name} runs, {} ms left",
                left.as_millis()
            ),
            None => format!("waits for its turn: {name} runs"),
        }
    }

    /// Who keeps the gate of an idle GPU shut, for requests of its are in flight.
    pub(in crate::control) fn holder(&self, gpu: GpuId) -> Option<&Session> {
        let now = Instant::from_nanos(self.shell.now_ns());
        let view = self.shell.policy().gpu(gpu, now)?;
        let holder = view.held.filter(|_| !view.online_busy)?;
        self.shell.members().get(holder.0)
    }

    /// Why a job that may run does not: launches of its wait although its gate has long been open. None: it runs.
    pub(in crate::control) fn held_up(&self, view: &JobView) -> Option<String> {
        if view.state != JobState::Running || view.launch_gate_closed {
            return None;
        }
        let now = self.shell.now_ns();
        let ranks = self.shell.members().of_job(view.job);
        let (waited, pid) = ranks
            .filter_map(|rank| {
                let since = rank.state.waits?.max(view.since.as_nanos());
                Some((now.saturating_sub(since), rank.process().pid))
            })
            .max()?;
        (waited >= HELD_UP_NS).then(|| {
            format!(
                "launches of process {pid} have waited for {}, although its gate is open: its library takes the agent for \
                 lost, or the process is stopped",
                span(waited)
            )
        })
    }

    /// Why nothing stops a job: online is idle, or there is none that could be busy.
    fn why_it_may_run(&self, view: &JobView) -> String {
        let online = *self.online.get_or_init(|| {
            let online = self.shell.members().all().filter(|own| own.is_online());
            let gpus = online.map(|own| own.gpus().collect::<GpuSet>());
            gpus.reduce(GpuSet::union)
        });
        match online {
            None => "no online process is attached",
            Some(gpus) if !gpus.intersection(view.gpus).is_empty() => "online is idle",
            Some(_) => "no online process uses its GPUs",
        }
        .to_owned()
    }

    pub(in crate::control) fn job_status(&self, view: JobView, usage: &Usage) -> v1::JobStatus {
        let ranks = self.shell.members().of_job(view.job);
        let sessions = ranks.map(|session| session.id).collect();
        let held_up = self.held_up(&view);
        let mut status = v1::JobStatus {
            reason: held_up.clone().unwrap_or_else(|| self.job_reason(&view)),
            gpus: view.gpus.iter().map(|gpu| u32::from(gpu.0)).collect(),
            sessions,
            state_ns: self.shell.now_ns().saturating_sub(view.since.as_nanos()),
            preemptions: view.preemptions,
            memory: self.job_memory(view.job),
            share: self.share(view.job),
            turns: self.beside_others(view.job).turns,
            channels: view.channels.0,
            trainer: self.trainer(view.job),
            no_lease: self.no_lease(&view),
            ..self.job_usage(view.job, usage)
        };
        let stuck = self.stuck(view.job);
        status.set_state(match view.state {
            JobState::Running | JobState::Unmanaged if stuck > 0 => v1::JobState::Unknown,
            _ if view.paused || self.shell.policy().is_drained() => v1::JobState::Paused,
            _ if held_up.is_some() => v1::JobState::Unknown,
            JobState::Leased => v1::JobState::Leased,
            JobState::Running | JobState::Breathing | JobState::Enabling => v1::JobState::Running,
            JobState::Disabling | JobState::Gated => v1::JobState::Gated,
            JobState::Unknown => v1::JobState::Unknown,
            JobState::Unmanaged => v1::JobState::Unmanaged,
        });
        status
    }
}

fn list(gpus: GpuSet) -> String {
    let list: Vec<_> = gpus.iter().map(|gpu| gpu.0.to_string()).collect();
    list.join(", ")
}

fn reason(view: &JobView) -> String {
    match (view.state, view.reason) {
        (_, Reason::Paused) => "paused by the operator".to_owned(),
        (_, Reason::Turn) => "waits for its turn".to_owned(),
        (_, Reason::Reclaim) => "memory is taken from it or given back".to_owned(),
        (JobState::Unmanaged, _) => "its channels cannot be controlled; launches wait".to_owned(),
        (JobState::Unknown, _) => "a disable failed; enabling everything first".to_owned(),
        (_, Reason::Gate(gpus)) => {
            format!("online is or was just busy on GPU {}", list(gpus))
        }
        (JobState::Leased, Reason::None) => "a lease beside online".to_owned(),
        (JobState::Breathing, Reason::None) => "one turn after a long gate".to_owned(),
        (_, Reason::None) => "online is idle".to_owned(),
    }
}
