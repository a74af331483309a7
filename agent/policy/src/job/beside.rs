//! A job beside online: what its lease ([`super::lease`]) wants, and what changes it.

use super::lease::Lease;
use super::{Job, LaneState, Mode, Want, Why, World};
use crate::config::Means;
use crate::ids::{GpuId, GpuSet};
use crate::reclaim::Hold;
use crate::time::Instant;

impl Want {
    /// Its channels are to be enabled.
    pub(super) fn is_on(self) -> bool {
        !matches!(self, Self::Gate(_))
    }
}

impl Job {
    /// What is wanted while its gates are shut.
    pub(super) fn want_beside(&self, now: Instant) -> Want {
        match self.lease {
            Lease::Until(end) | Lease::Back(end) if now < end => Want::Lease,
            Lease::Until(_) | Lease::Back(_) | Lease::No => Want::Gate(Why::Gates),
        }
    }

    /// Whether it could run beside online on that GPU: it uses no other, and nothing but the gate holds it.
    pub fn takes_lease(&self, gpu: GpuId, world: &World, now: Instant) -> bool {
        self.gpus == GpuSet::of(gpu)
            && self.ordered.mode == Mode::Managed
            && self.hold != Hold::Frozen
            && self.held_by(world, now).is_none()
            && !self.is_open(world)
    }

    /// No order to it is under way: a lease would hold at once.
    pub fn is_settled(&self) -> bool {
        self.all(LaneState::Disabled) || self.all(LaneState::Enabled)
    }

    /// It may run until then.
    pub fn lease(&mut self, until: Instant) {
        self.lease = Lease::Until(until);
    }

    /// It says that nothing of it runs any more: it is off at `off`, unless it has another lease by then.
    pub fn returned(&mut self, means: Means, off: Instant) {
        self.lease = match (means, self.lease) {
            (Means::Channels, Lease::Until(until)) => Lease::Back(until.min(off)),
            _ => Lease::No,
        };
    }

    /// Leases are over: what stands is withdrawn.
    pub fn lease_off(&mut self) {
        self.lease = Lease::No;
    }

    /// It may run by a lease.
    pub fn is_leased(&self) -> bool {
        matches!(self.lease, Lease::Until(_))
    }

    /// It has just returned from a lease.
    pub fn is_back(&self) -> bool {
        matches!(self.lease, Lease::Back(_))
    }

    /// It may run without one.
    pub fn is_free(&self) -> bool {
        self.ordered.want == Want::Run
    }

    pub(super) fn lease_ends(&self) -> Option<Instant> {
        match self.lease {
            Lease::Until(end) | Lease::Back(end) => Some(end),
            Lease::No => None,
        }
    }
}
