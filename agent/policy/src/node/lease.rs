//! Leases in the node's step: which trainer runs how much between two iterations of online, and what ends it.
//!
//! [`crate::lease::Leaser`] says how much, [`crate::lease::share`] whose turn it is, and [`crate::job`] how a job runs
//! beside online. The gate stays under all of it: while it is open no lease is needed, and what is not back when its
//! lease is over is disabled.

use super::Node;
use crate::config::Means;
use crate::effect::{Effect, Report};
use crate::ids::{GpuId, JobId, LeaseId};
use crate::job::{Job, World};
use crate::lease::event::{Event, Iteration, LeaseEvent, Unit};
use crate::lease::share::{JOBS, Shares};
use crate::lease::{Leaser, Leasing};
use crate::time::{Instant, nanos};
use crate::view::LeaseView;
use core::time::Duration;

/// The leases of one GPU.
#[derive(Clone, Debug)]
pub(super) struct Leases {
    leaser: Leaser,
    shares: Shares,
    /// What each trainer could run next.
    offers: Vec<(JobId, Unit)>,
    standing: Option<Standing>,
    granted: u64,
    overruns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Standing {
    lease: LeaseId,
    job: JobId,
    fingerprint: u64,
    granted: Duration,
    unit: Duration,
    /// It has the GPU.
    begins: Instant,
    until: Instant,
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

    fn offered(&mut self, job: JobId, weight: u32, unit: Unit) {
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
    fn over(&mut self, standing: &Standing, units: u32, now: Instant) -> Duration {
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

impl Node {
    pub(super) fn step_lease(&mut self, event: LeaseEvent, now: Instant, out: &mut Vec<Effect>) {
        let gpu = event.gpu();
        let Some(own) = self.leases.get_mut(gpu.index()) else {
            return;
        };
        match event {
            LeaseEvent::Seen { event, .. } => {
                own.leaser.step(&event, now.as_nanos());
                if matches!(event, Event::Arrived { .. }) {
                    withdraw(own, gpu, &mut self.jobs, &self.config, now, out);
                }
            }
            LeaseEvent::Offered { job, unit, .. } => {
                if let Some(known) = self.jobs.iter().find(|known| known.id == job) {
                    own.offered(job, known.terms.weight, unit);
                }
            }
            LeaseEvent::Next { next, .. } => {
                let means = self.config.means;
                let switch = self.config.leases.map_or(0, |config| config.switch_ns);
                if let Some(standing) =
                    grant(own, gpu, next, &mut self.jobs, &self.world, means, now)
                {
                    out.push(lend(own, standing, switch, gpu, &mut self.jobs, now));
                }
            }
            LeaseEvent::Returned { lease, units, .. } => {
                let Some(standing) = own.standing.filter(|standing| standing.lease == lease) else {
                    return;
                };
                own.standing = None;
                own.over(&standing, units, now);
                if let Some(job) = self.jobs.iter_mut().find(|job| job.id == standing.job) {
                    job.returned(self.config.means);
                }
            }
        }
    }

    /// After jobs were settled: what became of the leases that stood.
    pub(super) fn settle_leases(&mut self, now: Instant, out: &mut Vec<Effect>) {
        for (place, own) in self.leases.iter_mut().enumerate() {
            let jobs = &self.jobs;
            let shares = &mut own.shares;
            own.offers.retain(|offer| {
                let stays = jobs.iter().any(|job| job.id == offer.0);
                if !stays {
                    shares.remove(u64::from(offer.0.0));
                }
                stays
            });
            let Some(standing) = own.standing else {
                continue;
            };
            let job = jobs.iter().find(|job| job.id == standing.job);
            if job.is_some_and(Job::is_leased) {
                continue;
            }
            own.standing = None;
            let gpu = GpuId(u8::try_from(place).unwrap_or(u8::MAX));
            let (job, lease) = (standing.job, standing.lease);
            match jobs.iter().find(|known| known.id == job) {
                // It goes on by leave of the gate, or there is nobody to tell.
                Some(known) if known.is_free() => {}
                None => {}
                Some(_) if now >= standing.until => {
                    own.overruns += 1;
                    let granted = standing.granted;
                    let units = nanos(granted) / nanos(standing.unit).max(1);
                    let units = u32::try_from(units).unwrap_or(u32::MAX).max(1);
                    let used = own.over(&standing, units, now);
                    out.push(Effect::Emit(Report::LeaseOverrun {
                        job,
                        gpu,
                        lease,
                        granted,
                        used,
                    }));
                }
                Some(_) => out.push(Effect::Withdraw { job, gpu, lease }),
            }
        }
        if self.config.leases.is_none() {
            self.leases.clear();
        }
    }

    /// Goes on with other leases, or without.
    pub(super) fn configure_leases(&mut self) {
        match self.config.leases {
            Some(config) if !self.leases.is_empty() => {
                for own in &mut self.leases {
                    own.leaser.configure(config);
                }
            }
            Some(_) => self.leases = leases(&self.config, self.gpus.len()),
            None => self.jobs.iter_mut().for_each(Job::lease_off),
        }
    }

    /// The leases of one GPU; `None` where they are off.
    #[must_use]
    pub fn leases(&self, gpu: GpuId) -> Option<LeaseView> {
        let own = self.leases.get(gpu.index())?;
        Some(LeaseView {
            granted: own.granted,
            overruns: own.overruns,
            used_permille: (own.leaser.guard() * 1e3) as u32,
            standing: own
                .standing
                .map(|standing| (standing.job, standing.lease, standing.until)),
        })
    }
}

/// A request came: no unit begins any more, and the one that runs may end.
fn withdraw(
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
fn grant(
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

fn lend(
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
