//! A job beside online: what its lease ([`super::lease`]) wants, and which events change that.

use super::lease::Lease;
use super::{Job, LaneState, Mode, Want, Why, World};
use crate::config::Means;
use crate::ids::{GpuId, GpuSet};
use crate::no_lease::NoLease;
use crate::reclaim::Hold;
use crate::time::Instant;
use crate::view::Reason;

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

    /// Why it cannot run beside online on that GPU; `None`: it uses no other, and nothing but the gate holds it.
    pub fn no_lease(&self, gpu: GpuId, world: &World, now: Instant) -> Option<NoLease> {
        if self.gpus != GpuSet::of(gpu) {
            Some(NoLease::SeveralGpus)
        } else if self.ordered.mode != Mode::Managed {
            Some(NoLease::Unmanaged)
        } else if self.hold == Hold::Frozen {
            Some(NoLease::Held(Reason::Reclaim))
        } else if let Some(why) = self.held_by(world, now) {
            Some(NoLease::Held(match why {
                Why::Operator => Reason::Paused,
                Why::Memory => Reason::Reclaim,
                _ => Reason::None,
            }))
        } else if self.is_open(world) {
            Some(NoLease::Open)
        } else {
            None
        }
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
