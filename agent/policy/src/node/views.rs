//! The state of a node, for operators and for the shell.

use super::Node;
use crate::fair::{ShareView, Waits};
use crate::gap::Learner;
use crate::gate::Gate;
use crate::ids::{Bytes, GpuId, GpuSet, JobId, ReclaimId, SessionId, StripeId};
use crate::job::Job;
use crate::ledger::Ledger;
use crate::time::Instant;
use crate::view::{
    BudgetView, ElasticView, GateState, GpuView, JobMemoryView, JobUse, JobView, OwnerView,
    Standing, StripeView, Weighed,
};
use core::time::Duration;

impl Node {
    /// One GPU, `None` if the node has none of that number.
    #[must_use]
    pub fn gpu(&self, gpu: GpuId, now: Instant) -> Option<GpuView> {
        let known = self.gpus.get(gpu.index())?;
        Some(GpuView {
            gpu,
            gate: match known.gate {
                Gate::Open => GateState::Open,
                Gate::Closed => GateState::Closed,
                Gate::Cooling { .. } => GateState::Cooling,
            },
            since: known.since,
            online_busy: self.world.busy.contains(gpu),
            held: self.held(gpu),
            cooldown: self.cooldown(gpu, now),
            gap_cooldown: self.gap(gpu, now),
            longest_gap: known
                .learner
                .as_ref()
                .map_or(Duration::ZERO, |l| l.longest(now)),
            decode_gaps: known.learner.as_ref().map_or(0, Learner::gaps),
            edges: known.counts.edges,
            preemptions: known.counts.preemptions,
            wakes: known.counts.wakes,
            per_unit: known.charges.per_unit(),
            budget: BudgetView {
                allowed: self.config.slo,
                ..known.budget.view()
            },
        })
    }

    /// The GPUs of a job: a busy edge on any of them stops all of it.
    #[must_use]
    pub fn gpus_of(&self, job: JobId) -> GpuSet {
        let known = self.jobs.iter().find(|known| known.id == job);
        known.map_or(GpuSet::EMPTY, Job::gpus)
    }

    /// Every GPU.
    pub fn gpus(&self, now: Instant) -> impl Iterator<Item = GpuView> + '_ {
        self.world
            .all
            .iter()
            .filter_map(move |gpu| self.gpu(gpu, now))
    }

    /// Where online is busy and where gates are open. Cheap: for after every step.
    #[must_use]
    pub fn standing(&self) -> Standing {
        Standing {
            busy: self.world.busy,
            open: self.world.open,
        }
    }

    /// Every job with what it uses. Cheap: for after every step.
    pub fn uses(&self) -> impl Iterator<Item = JobUse> + '_ {
        self.jobs.iter().map(|job| JobUse {
            job: job.id,
            gpus: job.gpus(),
            runs: job.runs(),
            paused: job.paused || self.world.drained,
            held: self.memory.held(job),
        })
    }

    /// One job.
    #[must_use]
    pub fn job(&self, job: JobId) -> Option<JobView> {
        self.jobs
            .iter()
            .find(|known| known.id == job)
            .map(|known| known.view(&self.world))
    }

    /// How a job stands beside others on its GPUs; nothing of interest where it is alone.
    #[must_use]
    pub fn turns(&self, job: JobId, now: Instant) -> ShareView {
        self.fair.view(job, self.config.fair, now)
    }

    /// How long jobs waited for their turns.
    #[must_use]
    pub const fn turn_waits(&self) -> &Waits {
        self.fair.waits()
    }

    /// Whether a job takes turns with others, so that it matters whether it has work.
    #[must_use]
    pub fn shares(&self, job: JobId) -> bool {
        self.fair.shares(job)
    }

    /// Whether any job does.
    #[must_use]
    pub fn any_shares(&self) -> bool {
        self.fair.any_shares()
    }

    /// Every job, in the order they came.
    pub fn jobs(&self) -> impl Iterator<Item = JobView> + '_ {
        self.jobs.iter().map(|job| job.view(&self.world))
    }

    /// The ledger of one GPU's memory.
    #[must_use]
    pub fn ledger(&self, gpu: GpuId) -> Option<&Ledger> {
        self.memory.ledger(gpu)
    }

    /// Whether a process was told to change its memory's mappings, and has not said that it ended.
    #[must_use]
    pub fn is_moving(&self, session: SessionId) -> bool {
        self.memory.is_moving(session)
    }

    /// What an offline process may believe it has of a GPU; `None` where nothing is shared out.
    #[must_use]
    pub fn share(&self, session: SessionId, gpu: GpuId) -> Option<Bytes> {
        let slots = self.config.fair.slots;
        self.memory.share(session, gpu, &self.jobs, slots)
    }

    /// What others give up of a GPU as soon as a process, whose job has no cache there, allocates it.
    #[must_use]
    pub fn yields(&self, session: SessionId, gpu: GpuId, now: Instant) -> Bytes {
        self.memory.yields(session, gpu, &self.jobs, now)
    }

    /// What offline caches give up of a GPU for what an online process allocates there.
    #[must_use]
    pub fn yields_to_online(&self, gpu: GpuId, now: Instant) -> Bytes {
        let offline = (&self.jobs[..], self.config.means);
        self.memory.yields_to_online(gpu, offline, now)
    }

    /// What an [`crate::effect::Effect::Move`] is about, in order; nothing once it is over.
    #[must_use]
    pub fn stripes(&self, reclaim: ReclaimId) -> &[StripeId] {
        self.memory.stripes(reclaim)
    }

    /// Memory of one job; `None` if it registered none.
    #[must_use]
    pub fn job_memory(&self, job: JobId) -> Option<JobMemoryView> {
        self.memory.job(job)
    }

    /// What a job has and deserves of memory beside others; `None` where no other has a cache on its GPUs.
    #[must_use]
    pub fn weighed(&self, job: JobId, now: Instant) -> Option<Weighed> {
        self.memory.weighed(job, &self.jobs, now)
    }

    /// Who has what of one GPU's pool, by id.
    #[must_use]
    pub fn owners(&self, gpu: GpuId) -> Vec<OwnerView> {
        self.memory.owners(gpu)
    }

    /// Every elastic cache.
    pub fn elastics(&self, now: Instant) -> impl Iterator<Item = ElasticView> + '_ {
        self.memory.elastics(now)
    }

    /// The stripe behind a handle of a job's cache.
    #[must_use]
    pub fn stripe_of(&self, job: JobId, handle: u32) -> Option<StripeView> {
        self.memory.stripe_of(job, handle)
    }

    /// Whether no offline job may run.
    #[must_use]
    pub const fn is_drained(&self) -> bool {
        self.world.drained
    }

    /// Until when gates hold no job; `None`: they hold them as ever.
    #[must_use]
    pub fn ungated_until(&self) -> Option<Instant> {
        self.ungated.until()
    }

    /// Until when gates stay shut, since the agent has just come or come back.
    #[must_use]
    pub const fn hold_until(&self) -> Instant {
        self.hold_until
    }

    /// Whether that online process froze while busy and does not count for now.
    #[must_use]
    pub fn lapsed(&self, session: SessionId) -> bool {
        self.find(session)
            .is_ok_and(|place| self.sessions[place].lapsed())
    }
}
