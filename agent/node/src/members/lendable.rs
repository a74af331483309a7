//! Which trainer could run beside which engine: what a job's processes offer, and whether the online process of a GPU
//! reports its iterations.

use super::Members;
use crate::kinds::Role;
use crate::request::{Context, Notice};
use crate::session::{Session, Silence};
use std::time::Duration;
use tidegate_policy::event::Event;
use tidegate_policy::ids::{GpuId, JobId};
use tidegate_policy::lease::event::{LeaseEvent, Unit};
use tidegate_policy::lending::{Offers, Service};
use tidegate_policy::no_lease::NoLease;

/// The agent reports an online process that was asked for its iterations, launches, and reports none for this long. A step
/// of an engine is over by then.
const SILENT_NS: u64 = 10_000_000_000;

impl Session {
    /// What it offers, as policy hears it.
    pub(super) fn unit(&self) -> Unit {
        Unit {
            key: self.lease.key(),
            most: self.lease.offered.most,
            claimed_ns: self.lease.offered.unit_ns,
        }
    }

    /// Why no lease can be given beside this online process; `Reports`: one can.
    fn service(&self, now: u64) -> Service {
        if !self.library.knows_leases {
            Service::OldLibrary
        } else if self.link.page.is_none() {
            Service::NoPage
        } else if self.iterations() > 0 {
            Service::Reports
        } else {
            let asked = self.lease.silence.asked_ns;
            let lasts = asked.map_or(0, |asked| now.saturating_sub(asked));
            Service::Silent(Duration::from_nanos(lasts))
        }
    }

    /// Iterations that it reported on all of its devices.
    #[must_use]
    pub fn iterations(&self) -> u64 {
        let followers = self.lease.followers.values();
        followers
            .map(crate::beats::Follower::count)
            .fold(0, u64::saturating_add)
    }

    /// Whether it says how many requests decode.
    #[must_use]
    pub fn says_batch(&self) -> bool {
        let mut followers = self.lease.followers.values();
        followers.any(crate::beats::Follower::knows_batch)
    }

    /// What to report, once, about an online process beside which no lease can be given.
    fn silent(&mut self, now: u64) -> Option<NoLease> {
        if self.lease.silence.told {
            return None;
        }
        let launches = self.launches();
        let why = match self.service(now) {
            Service::OldLibrary => NoLease::OldService,
            Service::NoPage => NoLease::NoPage,
            Service::Silent(lasts) => {
                let Silence {
                    asked_ns, since, ..
                } = &mut self.lease.silence;
                asked_ns.as_ref()?;
                // Who does not work has nothing to report.
                let (begun, before) = *since.get_or_insert((now, launches));
                if launches == before {
                    *since = Some((now, launches));
                }
                if launches == before || now.saturating_sub(begun) < SILENT_NS {
                    return None;
                }
                NoLease::NoBeats(lasts)
            }
            Service::Reports | Service::None | Service::Several(_) => return None,
        };
        self.lease.silence.told = true;
        Some(why)
    }
}

impl Members {
    /// What the processes of a job offer.
    #[must_use]
    pub fn offers(&self, job: JobId) -> Offers {
        let all = || self.of_job(job).filter(|own| own.role == Role::Offline);
        if all().any(|own| own.lease.trains) {
            Offers::Units
        } else if !all().any(|own| own.library.knows_leases) {
            Offers::OldLibrary
        } else if all().any(|own| own.work.training.is_some()) {
            Offers::Pieces(Duration::ZERO)
        } else {
            Offers::Nothing
        }
    }

    /// Who is online on a GPU.
    pub fn online_on(&self, gpu: GpuId) -> impl Iterator<Item = &Session> {
        let online = self.sessions.values().filter(|own| own.is_online());
        online.filter(move |own| own.gpus().any(|used| used == gpu))
    }

    /// Whether a lease can be given beside who is online on a GPU.
    #[must_use]
    pub fn service(&self, gpu: GpuId, now: u64) -> Service {
        let mut online = self.online_on(gpu);
        let Some(first) = online.next() else {
            return Service::None;
        };
        match online.count() {
            0 => first.service(now),
            more => Service::Several(u32::try_from(more + 1).unwrap_or(u32::MAX)),
        }
    }

    /// The process of a job whose units are offered on a GPU: of several, the one whose last lease is the longest ago.
    pub(crate) fn front(&self, job: JobId, gpu: GpuId) -> Option<&Session> {
        let offers =
            |own: &&Session| own.lease.offered.most > 0 && own.lease.offered_on.contains(gpu);
        let offering = self.of_job(job).filter(offers);
        offering.min_by_key(|own| (own.lease.lent_ns, own.id))
    }

    /// What is offered on a GPU for a job.
    pub(crate) fn front_offer(&self, job: JobId, gpu: GpuId) -> Event<'static> {
        let unit = self.front(job, gpu).map(Session::unit).unwrap_or_default();
        Event::Lease(LeaseEvent::Offered { gpu, job, unit })
    }

    /// Tells of who works beside a trainer and does not report its iterations.
    pub(super) fn tell_silent(&mut self, id: u64, cx: &mut Context<'_>) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if let Some(why) = session.silent(cx.now) {
            cx.emit(Notice {
                kind: "no_iterations",
                session: id,
                text: crate::lending::nothing_lent(&why),
                ..Notice::default()
            });
        }
    }
}
