//! Leases ([`super::lease`]) in the step of a node.

use super::Node;
use super::lease::{grant, leases, lend, withdraw};
use crate::effect::{Effect, Report};
use crate::ids::GpuId;
use crate::job::Job;
use crate::lease::event::{Event, LeaseEvent};
use crate::time::Instant;
use crate::view::LeaseView;
use core::time::Duration;

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
                let switch = self.config.leases.map_or(0, |config| config.switch_ns);
                if let Some(standing) = grant(own, gpu, next, &self.jobs, &self.world, now) {
                    out.push(lend(own, standing, switch, gpu, &mut self.jobs, now));
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
            predictions: own.leaser.predictions().0,
            error_permille: (own.leaser.predictions().1 * 1e3) as u32,
            standing: own
                .standing
                .map(|standing| (standing.job, standing.lease, standing.until)),
        })
    }
}
