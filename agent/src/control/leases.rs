//! What is known of leases: on each GPU for status, and the whole of it for `tidegate explain lease`.

use super::status::View;
use crate::clock::nanos;
use crate::inbox::Learnt;
use std::time::Duration;
use tidegate_abi::uuid::Uuid;
use tidegate_policy::ids::{GpuId, JobId};
use tidegate_policy::lease::event::{Kind, Leasing};
use tidegate_policy::lending::{Decision, Offers, Outlook};
use tidegate_policy::no_lease::NoLease;
use tidegate_policy::time::Instant;
use tidegate_policy::view::JobView;
use tidegate_proto::v1;

/// Shapes that are shown of each GPU.
const SHAPES: usize = 32;

impl View<'_> {
    fn now(&self) -> Instant {
        Instant::from_nanos(self.shell.now_ns())
    }

    fn ago(&self, at: Instant) -> u64 {
        nanos(self.now().since(at))
    }

    /// How leases stand on a GPU, where they are on.
    pub(super) fn lease_status(&self, gpu: GpuId) -> Option<v1::LeaseStatus> {
        let policy = self.shell.policy();
        let Leasing { promise, .. } = policy.leasing()?;
        let view = policy.leases(gpu)?;
        let outlook = view.outlook;
        let standing = view.standing.map(|(job, ..)| self.job_name(job).to_owned());
        Some(v1::LeaseStatus {
            ttft_ns: promise.ttft_ns().unwrap_or_default(),
            tpot_ns: promise.tpot_ns().unwrap_or_default(),
            granted: view.granted,
            overruns: view.overruns,
            units: view.units,
            slack_ns: outlook.map(|known| nanos(known.slack)),
            predicted_ns: outlook.and_then(|known| known.predicted).map(nanos),
            predictions: view.predictions,
            prediction_error: f64::from(view.error_permille) / 1e3,
            slack_used: f64::from(view.used_permille) / 1e3,
            alone_ns: nanos(view.alone),
            tpot_too_low: view.tpot_too_low,
            job: standing.unwrap_or_default(),
            reported_ago_ns: view.reported.map(|at| self.ago(at)),
        })
    }

    /// How long a piece of a job's training takes, by what it counts while it may run; zero: not known.
    fn piece(&self, job: JobId) -> Duration {
        let said = self.shell.trainer(job);
        let said = said.and_then(|own| own.work.training.as_deref());
        let pieces = said.map_or(0, |said| {
            said.units.max(said.step.saturating_sub(said.begun))
        });
        let running = self.shell.usage().at(self.shell.now_ns()).job(job).running;
        running
            .checked_div(pieces)
            .map_or(Duration::ZERO, Duration::from_nanos)
    }

    fn why_no_lease(&self, gpu: GpuId, job: JobId) -> Option<NoLease> {
        let members = self.shell.members();
        let offers = match members.offers(job) {
            Offers::Pieces(_) => Offers::Pieces(self.piece(job)),
            offers => offers,
        };
        let facts = (offers, members.service(gpu, self.shell.now_ns()));
        self.shell.policy().no_lease((gpu, job), facts, self.now())
    }

    /// Why a job that trains has no lease, where leases are on.
    pub(super) fn no_lease(&self, view: &JobView) -> Option<v1::NoLease> {
        self.shell.policy().leasing()?;
        let trains = self.shell.trainer(view.job).is_some()
            || self.shell.members().offers(view.job) == Offers::Units;
        let gpu = view.gpus.iter().next().filter(|_| trains)?;
        self.why_no_lease(gpu, view.job).as_ref().map(said)
    }

    /// What is known of leases for one job by name, or for all that train. None: there is no such job.
    pub(super) fn leases(&self, job: Option<&str>) -> Option<Vec<v1::GpuLeases>> {
        let policy = self.shell.policy();
        let trains = |view: &JobView| {
            self.shell.trainer(view.job).is_some()
                || self.shell.members().offers(view.job) == Offers::Units
        };
        let asked = |view: &JobView| match job {
            Some(job) => self.job_name(view.job) == job,
            None => trains(view),
        };
        let jobs: Vec<JobView> = policy.jobs().filter(asked).collect();
        if job.is_some() && jobs.is_empty() {
            return None;
        }
        let here = |gpu: GpuId| jobs.iter().filter(move |view| view.gpus.contains(gpu));
        let gpus = 0..self.shell.lanes().gpus.lines().len();
        let gpus = gpus.filter_map(|at| u8::try_from(at).ok().map(GpuId));
        let shown = gpus.filter(|gpu| {
            here(*gpu).next().is_some() || (job.is_none() && policy.leasing().is_some())
        });
        Some(
            shown
                .map(|gpu| self.gpu_leases(gpu, here(gpu).map(|view| view.job)))
                .collect(),
        )
    }

    /// What is known of iterations and units, to be kept for a later agent.
    pub(super) fn learnt(&self) -> Learnt {
        let lines = self.shell.lanes().gpus.lines().iter().enumerate();
        let known = lines.filter_map(|(at, line)| {
            let gpu = GpuId(u8::try_from(at).ok()?);
            let known = self.shell.policy().lease_records(gpu).collect();
            Some((Uuid(line.gpu.uuid).to_string(), known))
        });
        known.collect()
    }

    fn gpu_leases(&self, gpu: GpuId, jobs: impl Iterator<Item = JobId>) -> v1::GpuLeases {
        let policy = self.shell.policy();
        let (margin, grace_ns) = policy.leasing().map_or((0.0, 0), |own| {
            (f64::from(own.margin_permille) / 1e3, own.grace_ns)
        });
        let online = self.shell.members().online_on(gpu);
        let mut iterations: Vec<_> = policy
            .lease_shapes(gpu)
            .filter(|shape| shape.key.kind == Kind::Iteration)
            .map(|shape| v1::LeaseShape {
                fingerprint: shape.key.fingerprint,
                mean_ns: nanos(shape.mean),
                tail_ns: nanos(shape.tail),
                seen: shape.seen,
            })
            .collect();
        iterations.sort_by_key(|shape| (std::cmp::Reverse(shape.seen), shape.fingerprint));
        iterations.truncate(SHAPES);
        v1::GpuLeases {
            gpu: u32::from(gpu.0),
            status: self.lease_status(gpu),
            margin,
            grace_ns,
            online: online
                .map(|session| v1::LeaseService {
                    pid: session.process().pid,
                    name: session.peer.name.clone().into(),
                    iterations: session.iterations(),
                    says_batch: session.says_batch(),
                })
                .collect(),
            iterations,
            trainers: jobs.map(|job| self.lease_trainer(gpu, job)).collect(),
            decisions: policy
                .lease_decisions(gpu)
                .map(|decision| self.decision(decision))
                .collect(),
            refused: policy
                .lease_refusals(gpu)
                .map(|(kind, count)| (kind.to_owned(), count))
                .collect(),
        }
    }

    fn lease_trainer(&self, gpu: GpuId, job: JobId) -> v1::LeaseTrainer {
        let mut trainer = v1::LeaseTrainer {
            job: self.job_name(job).to_owned(),
            no_lease: self.why_no_lease(gpu, job).as_ref().map(said),
            ..v1::LeaseTrainer::default()
        };
        let Some(view) = self.shell.policy().lease_trainer(gpu, job, self.now()) else {
            return trainer;
        };
        if view.most > 0 {
            match view.key.kind {
                Kind::Backward => "backward",
                _ => "forward",
            }
            .clone_into(&mut trainer.kind);
        }
        let left = |until: Instant| nanos(until.since(self.now()));
        v1::LeaseTrainer {
            most: view.most,
            claimed_ns: nanos(view.claimed),
            unit_ns: nanos(view.unit),
            leases: view.leases,
            units: view.units,
            used_ns: nanos(view.used),
            demoted_ns: view.demoted.map_or(0, left),
            ..trainer
        }
    }

    fn decision(&self, decision: &Decision) -> v1::LeaseDecision {
        let Outlook {
            at,
            next,
            predicted,
            slack,
        } = decision.outlook;
        v1::LeaseDecision {
            job: self.job_name(decision.job).to_owned(),
            lease: decision.lease.0,
            ago_ns: self.ago(at),
            fingerprint: next.fingerprint,
            batch: next.batch,
            predicted_ns: nanos(predicted.unwrap_or_default()),
            took_ns: decision.took.map(nanos),
            slack_ns: nanos(slack),
            unit_ns: nanos(decision.unit),
            units: decision.units,
            granted_ns: nanos(decision.granted),
            ran: decision.ran.map(|(units, _)| units),
            used_ns: decision.ran.map(|(_, used): (u32, Duration)| nanos(used)),
            overran: decision.overran,
        }
    }
}

fn said(why: &NoLease) -> v1::NoLease {
    v1::NoLease {
        kind: why.name().to_owned(),
        text: why.to_string(),
        remedy: why.remedy().unwrap_or_default(),
    }
}
