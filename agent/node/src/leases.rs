//! Delivers leases: which process holds the lease of each GPU, and what the words on its page say.
//!
//! Nothing is decided here. A lease goes to the process that offered units on that GPU for its job. The words of a
//! trainer's device are always in one of three states, from its first device on, also before it offers anything. They
//! change only after the gate has changed:
//!
//! ```text
//!   given       units may begin
//!   withdrawn   no unit may begin: a lease was withdrawn or is over, or none was given yet
//!   none        no lease is needed: the job runs because the gate is open, or leases are off
//! ```

use crate::members::Members;
use crate::page::{LeaseState, LeaseWords};
use crate::request::Context;
use crate::session::Session;
use tidegate_policy::event::Event;
use tidegate_policy::ids::{GpuId, JobId, LeaseId};
use tidegate_policy::lease::event::{Event as Learnt, Key, LeaseEvent};
use tidegate_policy::node::Node;
use tidegate_policy::view::JobState;

/// The leases that processes hold.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    /// One for each GPU at most.
    lent: Vec<Lent>,
}

/// A lease that a process holds.
#[derive(Clone, Copy, Debug)]
struct Lent {
    gpu: GpuId,
    lease: LeaseId,
    session: u64,
    slot: usize,
    /// Of the units that were offered.
    key: Key,
    /// When it was told, ns.
    at_ns: u64,
    until_ns: u64,
    units: u32,
}

/// A lease to be told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lending {
    pub job: JobId,
    pub gpu: GpuId,
    pub lease: LeaseId,
    pub units: u32,
    /// By when it has to be over, ns: the gate shuts a grace later.
    pub until_ns: u64,
}

impl Leases {
    /// Tells the trainer of a job.
    pub(crate) fn lend(&mut self, lending: Lending, members: &mut Members, cx: &mut Context<'_>) {
        let place = |session: &Session| {
            let mut slots = session.slots.iter();
            slots.position(|slot| slot.gpu == Some(lending.gpu))
        };
        let front = members.front(lending.job, lending.gpu);
        let found = front.and_then(|own| Some((own.id, place(own)?, own.lease.key())));
        let Some((session, slot, key)) = found else {
            // It took its offer back meanwhile.
            return cx.step(returned(lending.gpu, lending.lease, 0));
        };
        let lent = Lent {
            gpu: lending.gpu,
            lease: lending.lease,
            session,
            slot,
            key,
            at_ns: cx.now,
            until_ns: lending.until_ns,
            units: lending.units,
        };
        self.lent.retain(|known| known.gpu != lent.gpu);
        self.lent.push(lent);
        lent.tell(LeaseState::Given, members);
        if let Some(session) = members.get_mut(lent.session) {
            session.lease.lent_ns = cx.now;
        }
        // Another process of its job may be next.
        cx.step(members.front_offer(lending.job, lending.gpu));
    }

    /// No unit of that lease begins any more.
    pub(crate) fn withdraw(&self, lease: (GpuId, LeaseId), members: &mut Members) {
        let known = self
            .lent
            .iter()
            .find(|lent| (lent.gpu, lent.lease) == lease);
        if let Some(lent) = known {
            lent.tell(LeaseState::Withdrawn, members);
        }
    }

    /// A process says that nothing of it runs any more under a lease.
    pub(crate) fn over(
        &self,
        (session, gpu): (u64, GpuId),
        (lease, units): (LeaseId, u32),
        cx: &mut Context<'_>,
    ) {
        let is = |lent: &&Lent| (lent.session, lent.gpu, lent.lease) == (session, gpu, lease);
        let Some(lent) = self.lent.iter().find(is) else {
            return;
        };
        // No more than it was given, whatever it says.
        let units = units.min(lent.units);
        if units > 0 {
            let ns = cx.now.saturating_sub(lent.at_ns) / u64::from(units);
            let event = Learnt::Unit { key: lent.key, ns };
            cx.step(Event::Lease(LeaseEvent::Seen { gpu, event }));
        }
        cx.step(returned(gpu, lease, units));
    }

    /// A process is gone: nothing of it runs under a lease any more.
    pub(crate) fn gone(&self, session: u64) -> Option<Event<'static>> {
        let lent = self.lent.iter().find(|lent| lent.session == session)?;
        Some(returned(lent.gpu, lent.lease, 0))
    }

    /// After policy's effects were carried out: what stands of leases, and who needs none.
    pub(crate) fn settle(&mut self, policy: &Node, members: &mut Members) {
        self.lent.retain(|lent| {
            let standing = policy.leases(lent.gpu).and_then(|view| view.standing);
            standing.is_some_and(|(_, lease, _)| lease == lent.lease)
        });
        let lent = &self.lent;
        members.each_trainer(|session, job| {
            let state = policy.job(job).map(|view| view.state);
            // What is not managed waits at its launch gate alone, which says whether it may run.
            let free = matches!(
                state,
                Some(
                    JobState::Running
                        | JobState::Breathing
                        | JobState::Unmanaged
                        | JobState::Unknown
                )
            );
            for slot in 0..session.slots.len() {
                let has = |lent: &Lent| (lent.session, lent.slot) == (session.id, slot);
                if session.slots[slot].gpu.is_some() && !lent.iter().any(has) {
                    session.tell_no_lease(slot, free);
                }
            }
        });
    }
}

impl Lent {
    fn tell(&self, state: LeaseState, members: &mut Members) {
        if let Some(session) = members.get_mut(self.session) {
            let lease = LeaseWords {
                number: self.lease.0,
                state,
                until_ns: session.link.clock.there(self.until_ns),
                units: self.units,
            };
            session.tell_lease(self.slot, lease);
        }
    }
}

const fn returned(gpu: GpuId, lease: LeaseId, units: u32) -> Event<'static> {
    Event::Lease(LeaseEvent::Returned { gpu, lease, units })
}
