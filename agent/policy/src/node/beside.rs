//! Leases ([`super::lease`]) in the step of a node.

use super::Node;
use super::lease::{Leases, grant, leases, lend, refuse, unready, withdraw};
use crate::effect::{Effect, Report};
use crate::ids::{GpuId, JobId};
use crate::job::Job;
use crate::lease::Leasing;
use crate::lease::event::{Event, LeaseEvent};
use crate::lease::record::Known;
use crate::lending::{Decision, LeaseView, Offers, Outlook, Service, ShapeView, TrainerView};
use crate::no_lease::NoLease;
use crate::time::Instant;
use core::time::Duration;

/// Nothing decodes where online has announced no iteration for so long. Ours.
const IDLE: Duration = Duration::from_secs(1);

impl Node {
    pub(super) fn step_lease(&mut self, event: LeaseEvent, now: Instant, out: &mut Vec<Effect>) {
        let gpu = event.gpu();
        let Some(own) = self.leases.get_mut(gpu.index()) else {
            return;
        };
        match event {
            LeaseEvent::Seen { event, .. } => {
                own.leaser.step(&event, now.as_nanos());
                if let Event::Beat {
                    iteration,
                    took_ns,
                    interval_ns,
                    ..
                } = event
                    && let Some(config) = &self.config.leases
                {
                    let lent = own.standing.is_some();
                    let beat = (&iteration, took_ns, interval_ns);
                    let told = own.account.beat(gpu, beat, lent, config, now);
                    out.extend(told.map(Effect::Emit));
                }
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
                let Some(config) = &self.config.leases else {
                    return;
                };
                let (predicted, slack) = own.leaser.outlook(&next, now.as_nanos());
                let outlook = Outlook {
                    at: now,
                    next,
                    predicted,
                    slack,
                };
                own.account.outlook = Some(outlook);
                match grant(own, gpu, outlook, &self.jobs, &self.world, config) {
                    Ok(given) => {
                        let switch_ns = config.switch_ns;
                        out.push(lend(own, given, switch_ns, gpu, &mut self.jobs));
                    }
                    Err(why) => out.extend(refuse(own, gpu, why, now).map(Effect::Emit)),
                }
            }
            LeaseEvent::Returned { lease, units, .. } => {
                let Some(standing) = own.standing.filter(|standing| standing.lease == lease) else {
                    return;
                };
                own.standing = None;
                own.over(&standing, units, now);
                own.kept(standing.job);
                let grace = self.config.leases.map_or(0, |config| config.grace_ns);
                let off = now.after(Duration::from_nanos(grace));
                if let Some(job) = self.jobs.iter_mut().find(|job| job.id == standing.job) {
                    job.returned(self.config.means, off);
                }
            }
            LeaseEvent::Ends { .. } => {
                let standing = own.standing.map(|standing| standing.job);
                let ends = |job: &&mut Job| Some(job.id) == standing || job.is_back();
                self.jobs.iter_mut().filter(ends).for_each(Job::lease_off);
            }
        }
    }

    /// After jobs were settled: what became of the leases that stood.
    pub(super) fn settle_leases(&mut self, now: Instant, out: &mut Vec<Effect>) {
        for (place, own) in self.leases.iter_mut().enumerate() {
            let jobs = &self.jobs;
            // Who is gone has had what it used.
            if let Some(standing) = own.standing
                && !jobs.iter().any(|job| job.id == standing.job)
            {
                own.standing = None;
                own.over(&standing, 0, now);
            }
            let shares = &mut own.shares;
            own.offers.retain(|offer| {
                let stays = jobs.iter().any(|job| job.id == offer.job);
                if !stays {
                    shares.remove(u64::from(offer.job.0));
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
                // It goes on by leave of the gate.
                Some(known) if known.is_free() => {}
                None => {}
                Some(_) if now >= standing.until => {
                    let granted = standing.granted;
                    let (used, held) = own.overran(&standing, now);
                    out.push(Effect::Emit(Report::LeaseOverrun {
                        job,
                        gpu,
                        lease,
                        granted,
                        used,
                    }));
                    if let Some(lasts) = held {
                        out.push(Effect::Emit(Report::LeaseDemoted { job, gpu, lasts }));
                    }
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
                    own.account.configure();
                }
            }
            Some(_) => self.leases = leases(&self.config, self.gpus.len()),
            None => self.jobs.iter_mut().for_each(Job::lease_off),
        }
    }

    /// What leases are given by; `None` where they are off.
    #[must_use]
    pub const fn leasing(&self) -> Option<&Leasing> {
        self.config.leases.as_ref()
    }

    /// The leases of one GPU; `None` where they are off.
    #[must_use]
    pub fn leases(&self, gpu: GpuId) -> Option<LeaseView> {
        let own = self.leases.get(gpu.index())?;
        let (alone, tpot_too_low) = own.account.alone();
        Some(LeaseView {
            granted: own.granted,
            overruns: own.overruns,
            units: own.account.units,
            used_permille: (own.leaser.guard() * 1e3) as u32,
            predictions: own.leaser.predictions().0,
            error_permille: (own.leaser.predictions().1 * 1e3) as u32,
            standing: own
                .standing
                .map(|standing| (standing.job, standing.lease, standing.until)),
            outlook: own.account.outlook,
            reported: own.account.reported,
            alone,
            tpot_too_low,
        })
    }

    /// The last leases of one GPU, the oldest first.
    pub fn lease_decisions(&self, gpu: GpuId) -> impl Iterator<Item = &Decision> {
        let own = self.leases.get(gpu.index()).into_iter();
        own.flat_map(|own| own.account.decisions())
    }

    /// Iterations before which units were offered on one GPU and no lease was given: for which reason, and how many.
    pub fn lease_refusals(&self, gpu: GpuId) -> impl Iterator<Item = (&'static str, u64)> {
        let own = self.leases.get(gpu.index()).into_iter();
        let counts = own.flat_map(|own| NoLease::NAMES.into_iter().zip(own.account.refused));
        counts.filter(|(_, count)| *count > 0)
    }

    /// What is known of iterations and units on one GPU, to be kept for a later agent.
    pub fn lease_records(&self, gpu: GpuId) -> impl Iterator<Item = Known> {
        let own = self.leases.get(gpu.index()).into_iter();
        own.flat_map(|own| own.leaser.records().all())
    }

    /// The same for people.
    pub fn lease_shapes(&self, gpu: GpuId) -> impl Iterator<Item = ShapeView> {
        self.lease_records(gpu).map(|known| ShapeView {
            key: known.key,
            mean: Duration::from_nanos(known.mean_ns),
            tail: Duration::from_nanos(known.p95_ns),
            seen: known.seen,
        })
    }

    /// What a job's trainer offers on one GPU, and what it ran there.
    #[must_use]
    pub fn lease_trainer(&self, gpu: GpuId, job: JobId, now: Instant) -> Option<TrainerView> {
        let own = self.leases.get(gpu.index())?;
        let offer = own.offers.iter().find(|offer| offer.job == job)?;
        Some(TrainerView {
            key: offer.unit.key,
            most: offer.unit.most,
            claimed: Duration::from_nanos(offer.unit.claimed_ns),
            unit: Duration::from_nanos(own.leaser.unit_seen(&offer.unit)),
            leases: offer.leases,
            units: offer.units,
            used: offer.used,
            demoted: own.demoted(job, now),
        })
    }

    /// Why a job has no lease on one of its GPUs at this moment; `None`: it has one, or has just had one.
    #[must_use]
    pub fn no_lease(
        &self,
        (gpu, job): (GpuId, JobId),
        (offers, service): (Offers, Service),
        now: Instant,
    ) -> Option<NoLease> {
        let on = self.config.leases.is_some();
        let Some(own) = self.leases.get(gpu.index()).filter(|_| on) else {
            return Some(NoLease::Off);
        };
        let known = self.jobs.iter().find(|known| known.id == job);
        if known.is_some_and(|known| known.is_leased() || known.is_back()) {
            return None;
        }
        match offers {
            Offers::OldLibrary => return Some(NoLease::OldTrainer),
            Offers::Pieces(each) => return Some(own.pieces(each)),
            Offers::Nothing => return Some(NoLease::NoUnits),
            Offers::Units => {}
        }
        let own_fault = known.and_then(|known| known.no_lease(gpu, &self.world, now));
        match own_fault {
            Some(NoLease::Open) | None => {}
            fault => return fault,
        }
        match service {
            Service::Several(count) => return Some(NoLease::Services(count)),
            Service::OldLibrary => return Some(NoLease::OldService),
            Service::NoPage => return Some(NoLease::NoPage),
            Service::Silent(lasts) => return Some(NoLease::NoBeats(lasts)),
            Service::None if own_fault.is_none() => return Some(NoLease::NoService),
            Service::None | Service::Reports => {}
        }
        own_fault.or_else(|| self.not_lent(own, gpu, job, now))
    }

    /// Why a trainer that could run beside online had no lease before the iteration that was announced last.
    fn not_lent(&self, own: &Leases, gpu: GpuId, job: JobId, now: Instant) -> Option<NoLease> {
        let Some(offer) = own.offers.iter().find(|offer| offer.job == job) else {
            return Some(NoLease::NoUnits);
        };
        if let Some(why) = unready(own, offer, gpu, &self.jobs, &self.world, now) {
            return Some(why);
        }
        let last = own.account.outlook.filter(|last| {
            let ended = own.account.reported.is_some_and(|at| at > last.at);
            !ended && now.since(last.at) < IDLE
        });
        let Some(last) = last else {
            return Some(NoLease::Idle);
        };
        if own.account.was_lent(job, last.at) {
            return None;
        }
        let refused = offer.refused.filter(|(at, _)| *at == last.at);
        Some(refused.map_or(NoLease::Turn, |(_, why)| why))
    }
}
