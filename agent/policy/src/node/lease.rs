//! Leases in the node's step: which trainer runs how much between two iterations of online, and what ends it.
//!
//! [`crate::lease::Leaser`] says how much, [`crate::lease::share`] whose turn it is, and [`crate::job`] how a job runs
//! beside online. The gate stays under all of it: while it is open no lease is needed, and what is not back when its
//! lease is over is disabled.

use crate::config::Means;
use crate::effect::Effect;
use crate::ids::{GpuId, JobId, LeaseId};
use crate::job::{Job, World};
use crate::lease::event::{Event, Iteration, Unit};
use crate::lease::share::{JOBS, Shares};
use crate::lease::{Leaser, Leasing};
use crate::time::{Instant, nanos};
use core::time::Duration;

/// The leases of one GPU.
#[derive(Clone, Debug)]
pub(super) struct Leases {
    pub(super) leaser: Leaser,
    pub(super) shares: Shares,
    /// What each trainer could run next.
    pub(super) offers: Vec<(JobId, Unit)>,
    pub(super) standing: Option<Standing>,
    pub(super) granted: u64,
    pub(super) overruns: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    pub(super) lease: LeaseId,
    pub(super) job: JobId,
    fingerprint: u64,
    pub(super) granted: Duration,
    pub(super) unit: Duration,
    /// It has the GPU.
    begins: Instant,
    pub(super) until: Instant,
    withdrawn: bool,
}

impl Leases {
    fn new(config: Leasing, turn: Duration) -> Self {
        Self {
            leaser: Leaser::new(config),
            shares: Shares::new(nanos(turn)),
            offers: Vec::with_capacity(JOBS),
            standing: None,
            granted: 0,
            overruns: 0,
        }
    }

    pub(super) fn offered(&mut self, job: JobId, weight: u32, unit: Unit) {
        let known = self.offers.iter_mut().find(|offer| offer.0 == job);
        match known {
            Some(offer) => offer.1 = unit,
            // Jobs beyond those that can take turns wait for the gate.
            None if !self.shares.set(u64::from(job.0), weight) => return,
            None => self.offers.push((job, unit)),
        }
        self.shares.set(u64::from(job.0), weight);
    }

    /// A lease is over that took so long: what was late, and by how much, is learnt.
    pub(super) fn over(&mut self, standing: &Standing, units: u32, now: Instant) -> Duration {
        let used = now.since(standing.begins);
        self.shares.took(u64::from(standing.job.0), nanos(used));
        let event = Event::Lease {
            fingerprint: standing.fingerprint,
            units,
            granted_ns: nanos(standing.granted),
            used_ns: nanos(used),
        };
        self.leaser.step(&event, now.as_nanos());
        used
    }
}

/// The leases of every GPU, none where they are off.
pub(super) fn leases(config: &crate::config::Config, gpus: usize) -> Vec<Leases> {
    let leases = config.leases.map(|own| Leases::new(own, config.fair.turn));
    leases.map_or_else(Vec::new, |own| vec![own; gpus])
}

/// A request came: no unit begins any more, and the one that runs may end.
pub(super) fn withdraw(
    own: &mut Leases,
    gpu: GpuId,
    jobs: &mut [Job],
    config: &crate::config::Config,
    now: Instant,
    out: &mut Vec<Effect>,
) {
    let Some(standing) = own.standing.as_mut().filter(|standing| !standing.withdrawn) else {
        return;
    };
    standing.withdrawn = true;
    let grace = Duration::from_nanos(config.leases.map_or(0, |config| config.grace_ns));
    standing.until = standing.until.min(now.after(standing.unit + grace));
    let (job, lease) = (standing.job, standing.lease);
    if let Some(known) = jobs.iter_mut().find(|known| known.id == job)
        && known.is_leased()
    {
        known.lease(standing.until);
    }
    out.push(Effect::Withdraw { job, gpu, lease });
}

/// Whose units fit before `next`, and how many.
pub(super) fn grant(
    own: &mut Leases,
    gpu: GpuId,
    next: Iteration,
    jobs: &mut [Job],
    world: &World,
    means: Means,
    now: Instant,
) -> Option<(JobId, Unit, u64, crate::lease::event::Grant)> {
    if own.standing.is_some() {
        return None;
    }
    let offers = &own.offers;
    let ready = |id: u64| {
        let offer = offers.iter().find(|offer| u64::from(offer.0.0) == id);
        offer.is_some_and(|offer| {
            let job = jobs.iter().find(|job| job.id == offer.0);
            offer.1.most > 0 && job.is_some_and(|job| job.takes_lease(gpu, world, now))
        })
    };
    let id = own.shares.next(ready)?;
    let (job, unit) = *offers.iter().find(|offer| u64::from(offer.0.0) == id)?;
    if own.leaser.slack(&next, now.as_nanos()) == 0 {
        return None;
    }
    let known = jobs.iter_mut().find(|known| known.id == job)?;
    if !known.let_in(means) {
        return None;
    }
    let grant = own.leaser.serial(&next, &unit, now.as_nanos());
    (grant.units > 0).then_some((job, unit, next.fingerprint, grant))
}

pub(super) fn lend(
    own: &mut Leases,
    (job, unit, fingerprint, grant): (JobId, Unit, u64, crate::lease::event::Grant),
    switch_ns: u64,
    gpu: GpuId,
    jobs: &mut [Job],
    now: Instant,
) -> Effect {
    own.granted += 1;
    let lease = LeaseId(own.granted);
    let begins = now.after(Duration::from_nanos(switch_ns));
    let granted = Duration::from_nanos(grant.granted_ns);
    let until = begins.after(Duration::from_nanos(grant.until_ns));
    own.standing = Some(Standing {
        lease,
        job,
        fingerprint,
        granted,
        unit: Duration::from_nanos(own.leaser.unit(&unit)),
        begins,
        until,
        withdrawn: false,
    });
    if let Some(known) = jobs.iter_mut().find(|known| known.id == job) {
        known.lease(until);
    }
    Effect::Lease {
        job,
        gpu,
        lease,
        units: grant.units,
        granted,
        until,
    }
}
