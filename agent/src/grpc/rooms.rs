//! Bytes that the agent keeps for strangers: of messages that were begun or wait for the control thread, of reports on
//! hooks, of answers that nobody has taken yet.
//!
//! A tenant has a share of them, and all strangers together have [`SHARES`] shares. Who needs a [`Room`] takes it before it
//! believes a length, and drops it with the bytes. The agent's own user outside of containers has no limit.

use crate::watch::refusals::Refusals;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_node::kinds::Tenant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Tenants' shares that all strangers together have.
const SHARES: usize = 4;
/// Bytes are counted in these.
const UNIT: usize = 1_024;

/// What one tenant is refused, or waits for.
const LATER: &str = "too many bytes in messages: they are read later";

/// A semaphore for each tenant.
#[derive(Debug)]
pub struct Each {
    permits: usize,
    tenants: Mutex<HashMap<Tenant, Arc<Semaphore>>>,
}

impl Each {
    /// With so many permits for each.
    #[must_use]
    pub fn new(permits: usize) -> Self {
        Self {
            permits,
            tenants: Mutex::default(),
        }
    }

    /// That of a tenant.
    pub fn of(&self, tenant: &Tenant) -> Arc<Semaphore> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = tenants.get(tenant) {
            return Arc::clone(known);
        }
        // Whoever has or wants a permit holds the semaphore.
        tenants.retain(|_, semaphore| Arc::strong_count(semaphore) > 1);
        let made = Arc::new(Semaphore::new(self.permits));
        tenants.insert(tenant.clone(), Arc::clone(&made));
        made
    }
}

/// The bytes of all.
#[derive(Debug)]
pub struct Rooms {
    each: Each,
    all: Arc<Semaphore>,
    refusals: Arc<Refusals>,
}

/// Bytes that may be kept until it is dropped.
#[derive(Debug, Default)]
pub struct Room {
    _own: Option<OwnedSemaphorePermit>,
    _all: Option<OwnedSemaphorePermit>,
}

impl Rooms {
    /// With `share` bytes for each tenant.
    #[must_use]
    pub fn new(share: usize, refusals: Arc<Refusals>) -> Self {
        let units = (share / UNIT).max(1);
        Self {
            each: Each::new(units),
            all: Arc::new(Semaphore::new(SHARES * units)),
            refusals,
        }
    }

    /// In units; more than there can ever be are as many as there are.
    fn units(&self, bytes: usize) -> u32 {
        let units = bytes.div_ceil(UNIT).min(self.each.permits);
        u32::try_from(units).unwrap_or(u32::MAX)
    }

    /// Room for `bytes` of `tenant`, if it is there now.
    #[must_use]
    pub fn take(&self, tenant: &Tenant, bytes: usize) -> Option<Room> {
        if *tenant == Tenant::Agent {
            return Some(Room::default());
        }
        let units = self.units(bytes);
        let own = self.each.of(tenant).try_acquire_many_owned(units).ok()?;
        let all = Arc::clone(&self.all).try_acquire_many_owned(units).ok()?;
        Some(Room {
            _own: Some(own),
            _all: Some(all),
        })
    }

    /// As [`Self::take`], and says to status who is refused `what`.
    #[must_use]
    pub fn take_or_refuse(
        &self,
        tenant: &Tenant,
        bytes: usize,
        what: &'static str,
    ) -> Option<Room> {
        let room = self.take(tenant, bytes);
        if room.is_none() {
            self.refuse(tenant, what);
        }
        room
    }

    /// Room for `bytes` of `tenant`, when it is there.
    pub async fn wait(self: Arc<Self>, tenant: Tenant, bytes: usize) -> Room {
        if let Some(room) = self.take_or_refuse(&tenant, bytes, LATER) {
            return room;
        }
        let units = self.units(bytes);
        // Neither is ever closed.
        let own = self.each.of(&tenant).acquire_many_owned(units).await;
        let all = Arc::clone(&self.all).acquire_many_owned(units).await;
        Room {
            _own: own.ok(),
            _all: all.ok(),
        }
    }

    /// `tenant` asked for `what`, which is more than it may have.
    pub fn refuse(&self, tenant: &Tenant, what: &'static str) {
        self.refusals.note(tenant, what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn fill(rooms: &Rooms, tenant: &Tenant) -> Vec<Room> {
        std::iter::from_fn(|| rooms.take(tenant, MIB))
            .take(100)
            .collect()
    }

    /// P-SECURITY-13: what stays of what a tenant sends and asks is at most its share.
    #[test]
    fn a_tenant_has_its_share_and_all_strangers_together_have_four() {
        let rooms = Rooms::new(8 * MIB, Arc::default());
        let tenants: Vec<Tenant> = (0..6).map(|uid| Tenant::User(70_000 + uid)).collect();
        let mut taken: Vec<Vec<Room>> = tenants.iter().map(|of| fill(&rooms, of)).collect();
        let counts: Vec<usize> = taken.iter().map(Vec::len).collect();
        assert_eq!(counts, [8, 8, 8, 8, 0, 0]);
        assert_eq!(fill(&rooms, &Tenant::Agent).len(), 100);
        taken[0].clear();
        assert_eq!(
            fill(&rooms, &tenants[4]).len(),
            8,
            "who gives back leaves room"
        );
    }

    #[tokio::test]
    async fn who_waits_has_room_when_others_of_its_tenant_gave_theirs_back() {
        let rooms = Arc::new(Rooms::new(2 * MIB, Arc::default()));
        let tenant = Tenant::User(70_000);
        let taken = fill(&rooms, &tenant);
        let waits = tokio::spawn(Arc::clone(&rooms).wait(tenant.clone(), 100 * MIB));
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        drop(taken);
        let all = waits.await.expect("it does not panic");
        assert!(rooms.take(&tenant, 1).is_none());
        drop(all);
        assert!(rooms.take(&tenant, 1).is_some());
        assert!(rooms.refusals.rows()[0].what.contains("bytes"));
    }
}
