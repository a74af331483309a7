//! A job beside online: what its lease ([`super::lease`]) wants, and what changes it.

use super::lease::Lease;
use super::{Job, LaneState, Mode, Want, Why, World};
use crate::config::Means;
use crate::ids::{GpuId, GpuSet};
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
            Lease::Parked => Want::Lease,
            Lease::Until(end) if now < end => Want::Lease,
            Lease::Until(_) | Lease::No => Want::Gate(Why::Gates),
        }
    }

    /// Whether it could run beside online on that GPU: it uses no other, and nothing but the gate holds it.
    pub fn takes_lease(&self, gpu: GpuId, world: &World, now: Instant) -> bool {
        self.gpus == GpuSet::of(gpu)
            && self.mode == Mode::Managed
            && self.held_by(world, now).is_none()
            && !self.is_open(world)
    }

    /// Enables its channels, with its launch gate closed: says whether a lease would hold at once.
    pub fn let_in(&mut self, means: Means) -> bool {
        if means == Means::LaunchGate {
            return true;
        }
        let on = self.want == Want::Lease && self.all(LaneState::Enabled);
        if self.lease == Lease::No {
            self.lease = Lease::Parked;
        }
        on
    }

    /// It may run until then.
    pub fn lease(&mut self, until: Instant) {
        self.lease = Lease::Until(until);
    }

    /// Nothing of it runs any more.
    pub fn returned(&mut self, means: Means) {
        self.lease = match means {
            Means::Channels if self.lease != Lease::No => Lease::Parked,
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

    /// It may run without one.
    pub fn is_free(&self) -> bool {
        self.want == Want::Run
    }

    pub(super) fn lease_ends(&self) -> Option<Instant> {
        match self.lease {
            Lease::Until(end) => Some(end),
            Lease::Parked | Lease::No => None,
        }
    }
}
