//! The status of the node, as operators see it. Each part of it has a file of its own.

mod gpu;
mod job;
mod process;

use super::strangers::Strangers;
use crate::channels::level::Stop;
use crate::channels::obstacle::Obstacle;
use crate::config::Method;
use crate::inbox::User;
use crate::selftest::{self, Held, Outcome, Tried};
use crate::standing::Standing;
use crate::watch::latency;
use crate::wire::{level, method};
use std::cell::OnceCell;
use tidegate_node::Shell;
use tidegate_node::usage::Usage;
use tidegate_policy::fair::WAITS_NS;
use tidegate_policy::ids::{GpuId, GpuSet, JobId};
use tidegate_policy::view::OwnerView;
use tidegate_proto::v1;

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

    fn turn_waits(&self) -> v1::Histogram {
        let waits = self.shell.policy().turn_waits();
        v1::Histogram {
            bounds_ns: WAITS_NS.to_vec(),
            counts: waits.counts.to_vec(),
            sum_ns: waits.sum_ns,
            ..v1::Histogram::default()
        }
    }
}

fn unattached(user: &User) -> v1::Unattached {
    let User {
        pid,
        name,
        standing,
    } = user.clone();
    v1::Unattached {
        pid,
        name,
        has_library: standing != Standing::Without,
        other_namespace: standing == Standing::OtherNamespace,
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
