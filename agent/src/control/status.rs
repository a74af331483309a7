//! How the node stands, for people.

use super::strangers::Strangers;
use crate::channels::level::Stop;
use crate::channels::obstacle::Obstacle;
use crate::config::Method;
use crate::inbox::User;
use crate::selftest::{self, Held, Outcome, Tried};
use crate::span::time as span;
use crate::watch::latency;
use crate::wire::{level, method, role};
use std::cell::OnceCell;
use std::sync::atomic::Ordering;
use tidegate_abi::page::ACTIVITY_BUSY;
use tidegate_abi::uuid::Uuid;
use tidegate_node::Shell;
use tidegate_node::kinds::gpu_id;
use tidegate_node::lanes::{Applied, Lane};
use tidegate_node::message::Whereabouts;
use tidegate_node::report::why_turns;
use tidegate_node::session::Session;
use tidegate_node::usage::Usage;
use tidegate_policy::fair::{ShareView, WAITS_NS};
use tidegate_policy::ids::{GpuId, GpuSet, JobId};
use tidegate_policy::time::Instant;
use tidegate_policy::view::{BudgetView, GateState, JobState, JobView, OwnerView, Reason};
use tidegate_proto::v1;

/// Launches that wait for so long at an open gate are not just about to pass.
const HELD_UP_NS: u64 = 1_000_000_000;

/// A process that is busy for so long without a launch is marked.
const BUSY_FOR_NOTHING_NS: u64 = 10_000_000_000;

/// What does not change while an agent lives.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Version of the loaded driver.
    pub driver_version: String,
    /// Where its layouts are known from; empty: it says no version.
    pub driver_layout: &'static str,
    /// What is odd about it.
    pub driver_note: String,
    /// What became of an earlier agent's journal; empty: it was read.
    pub journal_note: String,
    /// Why not a better level.
    pub level_note: String,
    /// How the level stops what runs; None: it touches no channel.
    pub stop: Option<Stop>,
    /// Why not a better method.
    pub stop_note: String,
    /// Scheduling class in force.
    pub scheduling: String,
    /// What the self-test found.
    pub self_test: selftest::Report,
    /// What rules the channel levels out; MPS comes and goes.
    pub obstacles: Vec<Obstacle>,
    /// Processes that use a GPU and are not attached.
    pub strangers: Strangers,
}

impl About {
    /// What is odd about the driver and about what was found here at the start.
    fn notes(&self) -> String {
        let notes = [self.driver_note.as_str(), self.journal_note.as_str()];
        let said: Vec<_> = notes.into_iter().filter(|note| !note.is_empty()).collect();
        said.join("; ")
    }

    /// The process of MPS, if it runs.
    #[must_use]
    pub fn mps(&self) -> Option<i32> {
        self.obstacles.iter().find_map(|obstacle| match obstacle {
            Obstacle::Mps(pid) => Some(*pid),
            _ => None,
        })
    }
}

/// The node at one moment, for those who ask.
pub(super) struct View<'a> {
    pub shell: &'a Shell,
    pub about: &'a About,
    /// The GPUs of online processes, found once however many jobs are asked about; None: there is no such process.
    online: OnceCell<Option<GpuSet>>,
}

impl<'a> View<'a> {
    pub(super) const fn new(shell: &'a Shell, about: &'a About) -> Self {
        Self {
            shell,
            about,
            online: OnceCell::new(),
        }
    }

    pub(super) fn job_name(&self, job: JobId) -> &'a str {
        self.shell.lanes().job(job).map_or("", |job| &job.name)
    }

    /// GPUs without their latencies and the owners of their memory, and all jobs, of those that are over what
    /// they used.
    pub(super) fn totals(&self) -> v1::GetStatusResponse {
        let usage = self.shell.usage().at(self.shell.now_ns());
        let live: Vec<JobId> = self.shell.policy().jobs().map(|view| view.job).collect();
        let ids = self.shell.lanes().job_ids();
        let over = ids
            .filter(|job| !live.contains(job))
            .map(|job| v1::JobStatus {
                gpus: usage
                    .job(job)
                    .gpus
                    .iter()
                    .map(|gpu| u32::from(gpu.0))
                    .collect(),
                ..self.job_usage(job, &usage)
            });
        let mut standing = self.standing(&usage);
        standing.jobs.extend(over);
        standing
    }

    /// What a job used so far, by its number.
    fn job_usage(&self, job: JobId, usage: &Usage) -> v1::JobStatus {
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
    pub(super) fn trainer(&self, job: JobId) -> Option<v1::TrainerStatus> {
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

    /// GPUs without their latencies and the owners of their memory, and the jobs there are.
    fn standing(&self, usage: &Usage) -> v1::GetStatusResponse {
        v1::GetStatusResponse {
            agent_generation: self.shell.generation(),
            gpus: (0..self.shell.lanes().gpus.lines().len())
                .map(|at| self.gpu(at, usage))
                .collect(),
            jobs: self
                .shell
                .policy()
                .jobs()
                .map(|view| self.job_status(view, usage))
                .collect(),
            open_sets: latency::open_sets(usage),
            open_uncounted_ns: usage.open_sets().unknown(),
            ..v1::GetStatusResponse::default()
        }
    }

    fn counters(&self) -> Vec<v1::Counter> {
        let rows = self.shell.counters().rows();
        let counter = |(name, value, help): (&str, u64, &str)| v1::Counter {
            name: name.to_owned(),
            help: help.to_owned(),
            value,
        };
        rows.into_iter().map(counter).collect()
    }

    pub(super) fn report(&self) -> v1::GetStatusResponse {
        let usage = self.shell.usage().at(self.shell.now_ns());
        let standing = self.standing(&usage);
        let v1::GetStatusResponse { mut gpus, jobs, .. } = standing;
        for (gpu, line) in gpus.iter_mut().zip(self.shell.lanes().gpus.lines()) {
            gpu.preempt_latency = Some(latency::summary(&line.preempt));
            gpu.gate_latency = Some(latency::summary(&line.gate));
            if let (Some(memory), Ok(index)) = (&mut gpu.memory, u8::try_from(gpu.index)) {
                let owners = self.shell.policy().owners(GpuId(index));
                memory.owners = owners.iter().map(owner).collect();
            }
        }
        v1::GetStatusResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            agent_generation: self.shell.generation(),
            pid: i32::try_from(std::process::id()).unwrap_or(0),
            uptime_ns: self.shell.now_ns() - self.shell.started_ns(),
            driver_version: self.about.driver_version.clone(),
            driver_layout: self.about.driver_layout.to_owned(),
            driver_note: self.about.notes(),
            level: level(self.shell.level()).into(),
            level_note: self.about.level_note.clone(),
            method: stop_method(self.about.stop).into(),
            method_note: self.about.stop_note.clone(),
            method_at_kernel_end: self.about.stop.is_some_and(|stop| stop.at_kernel_end),
            scheduling: self.about.scheduling.clone(),
            gpus,
            jobs,
            open_sets: standing.open_sets,
            open_uncounted_ns: standing.open_uncounted_ns,
            processes: self
                .shell
                .members()
                .all()
                .map(|s| self.process(s))
                .collect(),
            counters: self.counters(),
            self_test: Some(self_test(&self.about.self_test)),
            obstacles: self.about.obstacles.iter().map(obstacle).collect(),
            unattached: self.about.strangers.all().iter().map(unattached).collect(),
            reclaim_latency: Some(latency::summary(&self.shell.memory().reclaims)),
            drained: self.shell.policy().is_drained(),
            ungated_ns: self.ungated_ns(),
            turn_wait: Some(self.turn_waits()),
            // What the control thread does not know.
            ..v1::GetStatusResponse::default()
        }
    }

    /// How long gates hold no job, at most.
    fn ungated_ns(&self) -> u64 {
        let until = self.shell.policy().ungated_until();
        until.map_or(0, |until| {
            until.as_nanos().saturating_sub(self.shell.now_ns())
        })
    }

    fn gpu(&self, at: usize, usage: &Usage) -> v1::GpuStatus {
        let id = gpu_id(at);
        let (lanes, count) = (self.shell.lanes(), self.shell.lanes().gpus.lines().len());
        let line = &lanes.gpus.lines()[at];
        let here = || lanes.jobs.iter().filter_map(|job| job.lanes.get(at));
        let disabled = |lane: &&Lane| lane.applied() == Applied::Disabled;
        let disabled: usize = here().filter(disabled).map(Lane::channels).sum();
        let channels: usize = here().map(Lane::channels).sum();
        let small = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let mut status = v1::GpuStatus {
            index: small(at),
            uuid: Uuid(line.gpu.uuid).to_string(),
            channels: small(channels),
            channels_disabled: small(disabled),
            usage: latency::usage(usage, at, count),
            pressure_events: line.pressure_events,
            disabled_ns: self.longest_disabled(id),
            stop: self.stop_times(line.gpu.uuid),
            ..v1::GpuStatus::default()
        };
        status.memory = self.gpu_memory(id);
        if let Some(view) = self
            .shell
            .policy()
            .gpu(id, Instant::from_nanos(self.shell.now_ns()))
        {
            status.set_gate(match view.gate {
                GateState::Open => v1::GateState::Open,
                GateState::Closed => v1::GateState::Closed,
                GateState::Cooling => v1::GateState::Cooling,
            });
            status.online_busy = view.online_busy;
            status.state_ns = self.shell.now_ns().saturating_sub(view.since.as_nanos());
            status.cooldown_ns = crate::clock::nanos(view.cooldown);
            status.longest_gap_ns = crate::clock::nanos(view.longest_gap);
            status.decode_gaps = view.decode_gaps;
            status.preemptions = view.preemptions;
            status.wakes = view.wakes;
            let per = view.per_unit;
            #[expect(clippy::cast_precision_loss, reason = "counts, for people")]
            let mean = if per.units == 0 {
                0.0
            } else {
                per.preemptions as f64 / per.units as f64
            };
            status.preemptions_per_unit = Some(v1::PreemptionsPerUnit {
                unit: per.unit.name().to_owned(),
                units: per.units,
                mean,
                max: per.max,
                preemptions: per.preemptions,
                untouched: per.untouched,
                once: per.once,
            });
            status.budget = Some(budget(&view.budget));
        }
        status
    }

    /// How long the self-test's stops of a GPU took, by the method in force.
    fn stop_times(&self, uuid: [u8; 16]) -> Option<v1::StopTimes> {
        let times = self
            .about
            .self_test
            .times_of(uuid, self.about.stop?.method)?;
        Some(v1::StopTimes {
            off_gpu_us: times.off_gpu.map(|spread| spread.median_us),
            call_us: times.call.map(|spread| spread.median_us),
            off_gpu_longest_us: times.off_gpu.map(|spread| spread.longest_us),
            call_longest_us: times.call.map(|spread| spread.longest_us),
            stops: times.stops,
        })
    }

    /// How long the job that waits longest for `gpu` has been disabled.
    fn longest_disabled(&self, gpu: GpuId) -> u64 {
        let gated = self
            .shell
            .policy()
            .jobs()
            .filter(|job| job.state == JobState::Gated && job.gpus.contains(gpu));
        let since = gated.map(|job| job.since.as_nanos()).min();
        since.map_or(0, |since| self.shell.now_ns().saturating_sub(since))
    }

    fn gpu_memory(&self, gpu: GpuId) -> Option<v1::GpuMemory> {
        let ledger = self.shell.policy().ledger(gpu)?;
        let totals = ledger.totals();
        let now = Instant::from_nanos(self.shell.now_ns());
        let caches = self
            .shell
            .policy()
            .elastics(now)
            .filter(|cache| cache.gpu == gpu);
        (!ledger.pool().is_zero()).then(|| v1::GpuMemory {
            pool_bytes: ledger.pool().0,
            free_bytes: totals.free.0,
            in_flight_bytes: totals.in_flight.0,
            headroom_bytes: totals.headroom.0,
            online_bytes: totals.online.0,
            offline_bytes: totals.offline.0,
            quarantined_bytes: totals.quarantined.0,
            caches: caches
                .map(|cache| v1::ElasticCache {
                    session: cache.session.0,
                    kv: cache.kv.0,
                    used_bytes: cache.used.0,
                    mapped_bytes: cache.mapped.0,
                    reservation_bytes: cache.reservation.0,
                    headroom_bytes: cache.headroom.0,
                    pressure_events: cache.events,
                    pressure_per_minute: cache.rate_per_minute,
                    pressure_target_per_minute: cache.target_per_minute.unwrap_or(0.0),
                })
                .collect(),
            owners: Vec::new(),
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
    pub(super) fn share(&self, job: JobId) -> Option<v1::JobShare> {
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

    fn turn_waits(&self) -> v1::Histogram {
        let waits = self.shell.policy().turn_waits();
        v1::Histogram {
            bounds_ns: WAITS_NS.to_vec(),
            counts: waits.counts.to_vec(),
            sum_ns: waits.sum_ns,
            ..v1::Histogram::default()
        }
    }

    /// Channels of a job that may be disabled and that no order reaches.
    fn stuck(&self, job: JobId) -> usize {
        let members = self.shell.members().of_job(job);
        members.map(|session| self.shell.stuck(session)).sum()
    }

    /// Why a job is as it is.
    pub(super) fn job_reason(&self, view: &JobView) -> String {
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
    pub(super) fn holder(&self, gpu: GpuId) -> Option<&Session> {
        let now = Instant::from_nanos(self.shell.now_ns());
        let view = self.shell.policy().gpu(gpu, now)?;
        let holder = view.held.filter(|_| !view.online_busy)?;
        self.shell.members().get(holder.0)
    }

    /// Why a job that may run does not: launches of its wait although its gate has long been open. None: it runs.
    pub(super) fn held_up(&self, view: &JobView) -> Option<String> {
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

    pub(super) fn job_status(&self, view: JobView, usage: &Usage) -> v1::JobStatus {
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

    pub(super) fn process(&self, session: &Session) -> v1::ProcessStatus {
        let clock = session.clock.text().unwrap_or_default();
        let busy = self.busy_for_nothing(session).unwrap_or_default();
        let notes = [
            (true, busy.as_str()),
            (true, session.asked.refused.as_str()),
            (true, session.note.as_str()),
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
            rule: session.rule.clone(),
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
            role_refused: session.asked.refused.clone(),
            whereabouts: Some(whereabouts(&session.peer.whereabouts)),
            ..v1::ProcessStatus::default()
        };
        status.set_role(role(session.role));
        if let Some(asked) = session.asked.role {
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

fn unattached(user: &User) -> v1::Unattached {
    let User {
        pid,
        name,
        has_library,
    } = user.clone();
    v1::Unattached {
        pid,
        name,
        has_library,
    }
}

fn obstacle(found: &Obstacle) -> v1::Obstacle {
    v1::Obstacle {
        kind: found.kind().to_owned(),
        gpu: found
            .gpu()
            .and_then(|gpu| i32::try_from(gpu).ok())
            .unwrap_or(-1),
        text: found.to_string(),
    }
}

const fn owner(view: &OwnerView) -> v1::MemoryOwner {
    let OwnerView {
        session,
        account,
        excess,
        handles,
    } = view;
    v1::MemoryOwner {
        session: session.0,
        in_flight_bytes: account.in_flight.0,
        headroom_bytes: account.headroom.0,
        online_bytes: account.online.0,
        offline_bytes: account.offline.0,
        quarantined_bytes: account.quarantined.0,
        excess_bytes: excess.0,
        handles: handles.held.0,
        handles_quarantined: handles.quarantined.0,
        handles_in_flight: handles.in_flight.0,
        handles_taken: handles.taken.0,
    }
}

fn stop_method(stop: Option<Stop>) -> v1::StopMethod {
    stop.map_or(v1::StopMethod::Unspecified, |stop| method(stop.method))
}

fn self_test(report: &selftest::Report) -> v1::SelfTest {
    let row = |tried: &Tried| {
        let (outcome, text) = match &tried.outcome {
            Outcome::Proven(_) => ("proven", String::new()),
            Outcome::CallsOnly(_) => ("calls only", String::new()),
            Outcome::NotTried(why) => ("not tried", why.clone()),
            Outcome::Failed(why) => ("failed", why.clone()),
        };
        let by = |(by, held): &(Method, Held)| v1::MethodTest {
            method: method(*by).into(),
            outcome: held.name().to_owned(),
            text: match held {
                Held::NotTried(why) | Held::Failed(why) => why.clone(),
                Held::Stops | Held::AtKernelEnd => String::new(),
            },
        };
        v1::LevelTest {
            level: level(tried.level).into(),
            outcome: outcome.to_owned(),
            text,
            method: stop_method(tried.outcome.stop().ok()).into(),
            methods: tried.methods.iter().map(by).collect(),
        }
    };
    v1::SelfTest {
        summary: report.summary.clone(),
        levels: report.levels.iter().map(row).collect(),
    }
}

fn budget(view: &BudgetView) -> v1::Budget {
    use crate::clock::nanos;
    v1::Budget {
        prompts_ns: nanos(view.prompts),
        busy_ns: nanos(view.busy),
        preempted_ns: nanos(view.preempted),
        short_ns: nanos(view.short),
        short_tpot_ns: nanos(view.short_tpot),
        shortages: view.shortages,
        ttft_allowed: view.allowed.map_or(0, |slo| slo.ttft),
        tpot_allowed: view.allowed.map_or(0, |slo| slo.tpot),
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
