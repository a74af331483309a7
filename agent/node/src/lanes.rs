//! The channels of one offline job on one GPU: the prepared calls, and the state of orders.
//!
//! Policy decides what a job-GPU slot (`lane`) has to do; its state machine is policy's `job`. This part knows which
//! calls an order needs, which of them have no answer yet, and what the last answer said about the channels.

mod batches;
mod gates;
mod lane;
mod opening;
mod orders;
mod remote;
mod slices;
mod tickets;
mod waiting;

use crate::batch::Batch;
use crate::gpus::{Gpus, Met};
use crate::kinds::{JobOwner, Tenant};
use crate::text::Text;
use crate::work::Totals;
use tidegate_abi::gate::Gate;
use tidegate_policy::ids::{GpuId, JobId};

pub use lane::{Applied, Lane, Proven};
pub(crate) use orders::{releasing, since};
pub(crate) use remote::RemoteAnswer;
pub(crate) use slices::{all_said, said};

/// An offline job: the processes of one owner that are gated as one.
#[derive(Debug)]
pub struct Job {
    /// Whose it is.
    pub owner: JobOwner,
    /// The user of its first process.
    pub uid: u32,
    /// As people call it.
    pub name: Text,
    /// What policy does with its launches, on every device.
    pub(crate) launches: Gate,
    /// By GPU.
    pub lanes: Vec<Lane>,
    /// Launches of its processes that are gone.
    pub launched: u64,
    /// What they said of their work.
    pub worked: Totals,
    /// Blocks that reclaims invalidated, as counted so far.
    pub(crate) blocks_lost: u64,
}

impl Job {
    /// Whether nobody owes it an answer.
    fn is_quiet(&self) -> bool {
        let quiet = |lane: &Lane| lane.outstanding == 0 && lane.retired.is_empty();
        self.lanes.iter().all(quiet)
    }
}

/// Jobs that are kept, over or not, before numbers are given again.
const JOBS: usize = 256;

/// All jobs on all GPUs.
#[derive(Debug)]
pub struct Lanes {
    /// The GPUs, by index.
    pub gpus: Gpus,
    /// The jobs, by number.
    pub jobs: Vec<Job>,
    /// Where to look first for a job that is over, whose number is given to another.
    next_over: usize,
    next_seq: u64,
    /// Enables, one of which is under way.
    opening: waiting::Opening,
    /// Timeslices that are being set.
    slicing: u32,
}

impl Lanes {
    /// Of these GPUs.
    pub(crate) fn new(gpus: Gpus) -> Self {
        Self {
            gpus,
            jobs: Vec::new(),
            next_over: 0,
            next_seq: 1,
            opening: waiting::Opening::default(),
            slicing: 0,
        }
    }

    /// The job of that owner and name, and whether it begins to be with this. The number of one that is over is given to
    /// another when there are many: names are free to invent, and Slurm makes one for every job. Numbers are given
    /// again in turn, so that what a job used can be read for long after its end.
    pub(crate) fn job_named(
        &mut self,
        (owner, uid): (JobOwner, u32),
        name: &Text,
        live: impl FnOnce() -> Vec<JobId>,
    ) -> (JobId, bool) {
        let id = |index| JobId(u32::try_from(index).unwrap_or(u32::MAX));
        let same = |job: &Job| job.owner == owner && job.name == *name;
        if let Some(index) = self.jobs.iter().position(same) {
            return (id(index), false);
        }
        let job = Job {
            owner,
            uid,
            name: name.clone(),
            launches: Gate::Closed,
            lanes: self.gpus.lines().iter().map(|_| Lane::default()).collect(),
            launched: 0,
            worked: Totals::default(),
            blocks_lost: 0,
        };
        let mut over = None;
        if self.jobs.len() >= JOBS {
            let live = live();
            let is_over = |&index: &usize| {
                let quiet = self.jobs.get(index).is_some_and(Job::is_quiet);
                quiet && !live.contains(&id(index))
            };
            let first = self.next_over % self.jobs.len();
            over = (first..self.jobs.len()).chain(0..first).find(is_over);
            self.next_over = over.map_or(0, |index| index + 1);
        }
        let index = over.unwrap_or(self.jobs.len());
        match self.jobs.get_mut(index) {
            Some(over) => *over = job,
            None => self.jobs.push(job),
        }
        (id(index), true)
    }

    /// A job.
    #[must_use]
    pub fn job(&self, job: JobId) -> Option<&Job> {
        self.jobs.get(usize::try_from(job.0).ok()?)
    }

    pub(crate) fn job_mut(&mut self, job: JobId) -> Option<&mut Job> {
        self.jobs.get_mut(usize::try_from(job.0).ok()?)
    }

    /// The calls prepared for a job, on every GPU.
    pub(crate) fn batches(&self, job: JobId) -> impl Iterator<Item = &Batch> {
        let lanes = self.job(job).into_iter().flat_map(|job| &job.lanes);
        lanes.flat_map(|lane| lane.batches.iter())
    }

    pub(crate) fn lane(&self, job: JobId, gpu: GpuId) -> Option<&Lane> {
        self.job(job)?.lanes.get(gpu.index())
    }

    pub(crate) fn lane_mut(&mut self, job: JobId, gpu: GpuId) -> Option<&mut Lane> {
        self.job_mut(job)?.lanes.get_mut(gpu.index())
    }

    /// All jobs.
    pub fn job_ids(&self) -> impl Iterator<Item = JobId> + use<> {
        (0..u32::try_from(self.jobs.len()).unwrap_or(0)).map(JobId)
    }

    /// The GPU of this UUID, as `tenant` names it, and whether the node knew it.
    pub(crate) fn meet(
        &mut self,
        uuid: [u8; 16],
        tenant: &Tenant,
        is_used: impl Fn(GpuId) -> bool,
    ) -> Option<(GpuId, Met)> {
        let (gpu, met) = self.gpus.named(uuid, tenant, is_used)?;
        if met == Met::New {
            for job in &mut self.jobs {
                job.lanes.push(Lane::default());
            }
        }
        Some((gpu, met))
    }

    /// Whether no order and no timeslice waits for its answer.
    pub(crate) fn is_quiet(&self) -> bool {
        let mut lanes = self.jobs.iter().flat_map(|job| &job.lanes);
        self.slicing == 0 && lanes.all(|lane| lane.outstanding == 0)
    }

    pub(crate) fn take_seq(&mut self) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        seq
    }
}
