//! Leases in the node's step: which trainer runs how much between two iterations of online, and what ends it.
//!
//! [`crate::lease::Leaser`] says how much, [`crate::lease::share`] which trainer, and [`crate::job`] how a job runs
//! beside online. The gate remains the last resort: while it is open no lease is needed, and a trainer that has not
//! returned when its lease is over is disabled.

mod account;

use crate::effect::{Effect, Report};
use crate::ids::{GpuId, JobId, LeaseId};
use crate::job::{Job, World};
use crate::lease::event::{Event, Grant, Key, Unit};
use crate::lease::share::{JOBS, Shares};
use crate::lease::{Leaser, Leasing};
use crate::lending::{Decision, Outlook};
use crate::no_lease::NoLease;
use crate::time::{Instant, nanos};
use account::{Account, Misses};
use core::time::Duration;

/// The leases of one GPU.
#[derive(Clone, Debug)]
pub(super) struct Leases {
    pub(super) leaser: Leaser,
    pub(super) shares: Shares,
    /// What each trainer could run next.
    pub(super) offers: Vec<Offer>,
    pub(super) standing: Option<Standing>,
    /// Of each trainer that did not return in time of late.
    strikes: Vec<Strikes>,
    pub(super) granted: u64,
    pub(super) overruns: u64,
    pub(super) account: Account,
}

/// What a trainer could run next, and what it ran.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    pub(super) job: JobId,
    pub(super) unit: Unit,
    /// Leases that it had, units that it ran within them by its own account, and how long it had the GPU.
    pub(super) leases: u64,
    pub(super) units: u64,
    pub(super) used: Duration,
    /// Why it had none before the iteration that was announced last, where it was asked.
    pub(super) refused: Option<(Instant, NoLease)>,
    misses: Misses,
}

/// What is known of a trainer that did not return in time.
#[derive(Clone, Copy, Debug)]
struct Strikes {
    job: JobId,
    /// Overruns, less what clean leases took back.
    count: u32,
    clean: u32,
    /// Times it was demoted since it had none.
    demotions: u32,
    /// Until then it is held to the gate.
    demoted: Option<Instant>,
}

/// Overruns after which a trainer is held to the gate. Ours: who is late once has had a bad moment.
const STRIKES: u32 = 4;
/// Leases in time that take one back. Ours: more than one overrun in so many, and a trainer is demoted in the long run.
const CLEAN: u32 = 10;
/// How long the first time, and twice as long each further time, up to this. Ours.
const DEMOTED: Duration = Duration::from_secs(1);
const DEMOTED_MOST: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    pub(super) lease: LeaseId,
    pub(super) job: JobId,
    fingerprint: u64,
    pub(super) granted: Duration,
    pub(super) unit: Duration,
    key: Key,
    units: u32,
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
            strikes: Vec::with_capacity(JOBS),
            granted: 0,
            overruns: 0,
            account: Account::default(),
        }
    }

    pub(super) fn offered(&mut self, job: JobId, weight: u32, unit: Unit) {
        let known = self.offers.iter_mut().find(|offer| offer.job == job);
        match known {
            Some(offer) => offer.unit = unit,
            // Jobs beyond those that can take turns wait for the gate.
            None if !self.shares.set(u64::from(job.0), weight) => return,
            None => self.offers.push(Offer {
                job,
                unit,
                leases: 0,
                units: 0,
                used: Duration::ZERO,
                refused: None,
                misses: Misses::default(),
            }),
        }
        self.shares.set(u64::from(job.0), weight);
    }

    /// A lease is over after so many units: what was late, and by how much, is learnt.
    pub(super) fn over(&mut self, standing: &Standing, units: u32, now: Instant) {
        let used = self.used(standing, units, now);
        self.account.over(standing.lease, (units, used), false);
        if let Some(offer) = self.offer_of(standing.job) {
            offer.units = offer.units.saturating_add(u64::from(units));
        }
    }

    fn used(&mut self, standing: &Standing, units: u32, now: Instant) -> Duration {
        let used = now.since(standing.begins);
        if let Some(offer) = self.offer_of(standing.job) {
            offer.used += used;
        }
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

    /// A lease overran. Its trainer may be gone for what it knew of its units: they took that much by the agent's clock,
    /// whatever it says. Says for how long it is held to the gate from now on, if it is.
    pub(super) fn overran(
        &mut self,
        standing: &Standing,
        now: Instant,
    ) -> (Duration, Option<Duration>) {
        self.overruns += 1;
        let used = self.used(standing, standing.units, now);
        self.account.over(standing.lease, (0, used), true);
        let ns = nanos(used) / u64::from(standing.units.max(1));
        let key = standing.key;
        self.leaser.step(&Event::Unit { key, ns }, now.as_nanos());
        let strikes = self.strikes_of(standing.job);
        strikes.count += 1;
        strikes.clean = 0;
        if strikes.count < STRIKES {
            return (used, None);
        }
        let lasts = DEMOTED.saturating_mul(1 << strikes.demotions.min(16));
        let lasts = lasts.min(DEMOTED_MOST);
        strikes.demotions += 1;
        strikes.demoted = Some(now.after(lasts));
        // One more when it is back, and it is held for longer.
        strikes.count = STRIKES - 1;
        (used, Some(lasts))
    }

    /// A trainer returned in time.
    pub(super) fn kept(&mut self, job: JobId) {
        let Some(place) = self.strikes.iter().position(|known| known.job == job) else {
            return;
        };
        let strikes = &mut self.strikes[place];
        strikes.clean += 1;
        if strikes.clean < CLEAN {
            return;
        }
        strikes.clean = 0;
        strikes.count = strikes.count.saturating_sub(1);
        if strikes.count == 0 {
            self.strikes.swap_remove(place);
        }
    }

    /// Why a trainer that offers nothing and trains in pieces of that length has no lease.
    pub(super) fn pieces(&self, each: Duration) -> NoLease {
        let slack = self.account.outlook.map(|known| known.slack);
        let fits = slack.unwrap_or_default();
        if each.is_zero() || each > fits {
            NoLease::MicroBatches(each, fits)
        } else {
            NoLease::NoUnits
        }
    }

    fn offer_of(&mut self, job: JobId) -> Option<&mut Offer> {
        self.offers.iter_mut().find(|offer| offer.job == job)
    }

    fn strikes_of(&mut self, job: JobId) -> &mut Strikes {
        let known = self.strikes.iter().position(|known| known.job == job);
        let place = known.unwrap_or_else(|| {
            if self.strikes.len() == JOBS {
                self.strikes.remove(0);
            }
            self.strikes.push(Strikes {
                job,
                count: 0,
                clean: 0,
                demotions: 0,
                demoted: None,
            });
            self.strikes.len() - 1
        });
        &mut self.strikes[place]
    }

    /// Until when a trainer is held to the gate because it kept running past its leases.
    pub(super) fn demoted(&self, job: JobId, now: Instant) -> Option<Instant> {
        let strikes = self.strikes.iter().find(|known| known.job == job)?;
        strikes.demoted.filter(|until| now < *until)
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

/// A lease to be given.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    job: JobId,
    unit: Unit,
    outlook: Outlook,
    grant: Grant,
}

/// Whose units fit before `next`, and how many; else why none do.
pub(super) fn grant(
    own: &mut Leases,
    gpu: GpuId,
    outlook: Outlook,
    jobs: &[Job],
    world: &World,
    config: &Leasing,
) -> Result<Given, (Option<JobId>, NoLease)> {
    let now = outlook.at;
    if own.standing.is_some() {
        return Err((None, NoLease::Turn));
    }
    let unready = |offer: &Offer| unready(own, offer, gpu, jobs, world, now);
    let mut shares = own.shares.clone();
    let ready = |id: u64| {
        let mut offers = own.offers.iter();
        offers.any(|offer| u64::from(offer.job.0) == id && unready(offer).is_none())
    };
    let Some(id) = shares.next(ready) else {
        let first = own.offers.first();
        return Err((None, first.and_then(unready).unwrap_or(NoLease::NoUnits)));
    };
    own.shares = shares;
    let offer = own.offers.iter().find(|offer| u64::from(offer.job.0) == id);
    let Some(Offer { job, unit, .. }) = offer.copied() else {
        return Err((None, NoLease::NoUnits));
    };
    // It is its turn, also where it has to wait for a moment.
    if !jobs
        .iter()
        .any(|known| known.id == job && known.is_settled())
    {
        return Err((Some(job), NoLease::Settling));
    }
    if let Some(low) = own.account.too_low(config) {
        return Err((Some(job), low));
    }
    let grant = own.leaser.serial(&outlook.next, &unit, now.as_nanos());
    if grant.units == 0 {
        let why = own.leaser.refusal(&outlook.next, &unit, now.as_nanos());
        return Err((Some(job), why.unwrap_or(NoLease::NoSlack)));
    }
    Ok(Given {
        job,
        unit,
        outlook,
        grant,
    })
}

/// Why a trainer cannot have a lease, whatever fits.
pub(super) fn unready(
    own: &Leases,
    offer: &Offer,
    gpu: GpuId,
    jobs: &[Job],
    world: &World,
    now: Instant,
) -> Option<NoLease> {
    if offer.unit.most == 0 {
        return Some(NoLease::NoUnits);
    }
    if let Some(until) = own.demoted(offer.job, now) {
        return Some(NoLease::Demoted(until.since(now)));
    }
    let known = jobs.iter().find(|known| known.id == offer.job);
    known.map_or(Some(NoLease::NoUnits), |known| {
        known.no_lease(gpu, world, now)
    })
}

/// No lease was given before the iteration that was announced: why is kept, and told where it never changes.
pub(super) fn refuse(
    own: &mut Leases,
    gpu: GpuId,
    (job, why): (Option<JobId>, NoLease),
    now: Instant,
) -> Option<Report> {
    // A lease that stands goes on.
    if own.offers.is_empty() || own.standing.is_some() {
        return None;
    }
    own.account.refuse(&why);
    let job = job?;
    let offer = own.offer_of(job)?;
    offer.refused = Some((now, why));
    let NoLease::UnitTooLong(unit, fits) = why else {
        return None;
    };
    let fits = offer.misses.missed(offer.unit.key.kind, fits)?;
    Some(Report::LeaseUnitTooLong {
        job,
        gpu,
        unit,
        fits,
    })
}

pub(super) fn lend(
    own: &mut Leases,
    given: Given,
    switch_ns: u64,
    gpu: GpuId,
    jobs: &mut [Job],
) -> Effect {
    let Given {
        job,
        unit,
        outlook,
        grant,
    } = given;
    own.granted += 1;
    let lease = LeaseId(own.granted);
    let begins = outlook.at.after(Duration::from_nanos(switch_ns));
    let granted = Duration::from_nanos(grant.granted_ns);
    let until = begins.after(Duration::from_nanos(grant.until_ns));
    let unit_ns = own.leaser.unit(&unit);
    let takes = Duration::from_nanos(unit_ns);
    own.standing = Some(Standing {
        lease,
        job,
        fingerprint: outlook.next.fingerprint,
        granted,
        unit: takes,
        key: unit.key,
        units: grant.units.min(most_in(&grant, unit_ns)),
        begins,
        until,
        withdrawn: false,
    });
    if let Some(offer) = own.offer_of(job) {
        offer.leases += 1;
        offer.misses.fit(unit.key.kind);
    }
    own.account.lent(Decision {
        job,
        lease,
        outlook,
        unit: takes,
        units: grant.units,
        granted,
        ran: None,
        overran: false,
        took: None,
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

/// Units that were meant to run in the time that was granted.
fn most_in(grant: &Grant, unit_ns: u64) -> u32 {
    let units = grant.granted_ns / unit_ns.max(1);
    u32::try_from(units).unwrap_or(u32::MAX).max(1)
}
