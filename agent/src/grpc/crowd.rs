//! How many connections there may be: of each tenant, and of all strangers together.
//!
//! Every socket counts for itself. What one tenant keeps open is no reason to turn another away until all strangers
//! together hold what the socket may have of the agent's descriptors and memory; the rest stays for the agent itself, whose
//! user outside of containers is no stranger. Root in a container is one.

use crate::host::yard::Yard;
use crate::watch::refusals::Refusals;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_node::kinds::Tenant;

/// Connections of one tenant on `status.sock` and on `control.sock`: people and exporters, not tenants' processes.
const WATCHERS: usize = 64;
/// Connections of all strangers on each of them.
const ALL_WATCHERS: usize = 4 * WATCHERS;

/// Counts the connections to one socket.
#[derive(Debug)]
pub struct Crowd {
    /// Of one tenant.
    limit: AtomicUsize,
    /// Of all strangers.
    most: usize,
    /// Whether [`Self::limit`] holds for the agent's own user, who is no stranger.
    limits_own: bool,
    here: Mutex<HashMap<Tenant, usize>>,
    /// Where what strangers pass is looked at and closed.
    pub yard: Yard,
    refusals: Arc<Refusals>,
    /// What a refused one asked for.
    what: &'static str,
}

/// One counted connection.
#[derive(Debug)]
pub struct Seat {
    crowd: Arc<Crowd>,
    tenant: Tenant,
}

impl Crowd {
    /// At most `limit` connections of a tenant, the agent's own user apart.
    #[must_use]
    pub fn new(limit: usize, yard: Yard) -> Self {
        Self {
            yard,
            limit: AtomicUsize::new(limit),
            most: usize::MAX,
            limits_own: false,
            here: Mutex::default(),
            refusals: Arc::default(),
            what: "too many connections",
        }
    }

    /// Of `hook.sock`: `most` of all strangers ([`crate::host::means`]), and `limit` of a tenant.
    #[must_use]
    pub fn at_hook(limit: usize, most: usize, refusals: Arc<Refusals>, yard: Yard) -> Self {
        Self {
            most,
            refusals,
            what: "too many connections to hook.sock",
            ..Self::new(limit, yard)
        }
    }

    /// Of `control.sock`.
    #[must_use]
    pub fn at_control(refusals: Arc<Refusals>, yard: Yard) -> Self {
        Self {
            most: ALL_WATCHERS,
            refusals,
            what: "too many connections to control.sock",
            ..Self::new(WATCHERS, yard)
        }
    }

    /// Of `status.sock`, where the agent's own user has no more than others.
    #[must_use]
    pub fn at_status(refusals: Arc<Refusals>, yard: Yard) -> Self {
        Self {
            limits_own: true,
            what: "too many connections to status.sock",
            ..Self::at_control(refusals, yard)
        }
    }

    /// At most `limit` of a tenant from here on; who is in stays in.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// One of `tenant` asked for `what`, which is more than it may have.
    pub fn refuse(&self, tenant: &Tenant, what: &'static str) {
        self.refusals.note(tenant, what);
    }

    /// Counts a connection of `tenant` until the seat is dropped.
    ///
    /// # Errors
    /// When it has too many, or all strangers together have.
    pub fn enter(self: &Arc<Self>, tenant: &Tenant) -> io::Result<Seat> {
        let entered = {
            let mut here = self.here.lock().unwrap_or_else(PoisonError::into_inner);
            let allowed = self.allows(&here, tenant);
            if allowed {
                *here.entry(tenant.clone()).or_default() += 1;
            }
            allowed
        };
        if entered {
            return Ok(Seat {
                crowd: Arc::clone(self),
                tenant: tenant.clone(),
            });
        }
        self.refusals.note(tenant, self.what);
        Err(io::Error::other(format!("{tenant}: {}", self.what)))
    }

    fn allows(&self, here: &HashMap<Tenant, usize>, tenant: &Tenant) -> bool {
        let (own, limit) = (*tenant == Tenant::Agent, self.limit.load(Ordering::Relaxed));
        let held = here.get(tenant).copied().unwrap_or(0);
        if own {
            return !self.limits_own || held < limit;
        }
        let strangers = here.iter().filter(|(tenant, _)| **tenant != Tenant::Agent);
        let all: usize = strangers.map(|(_, held)| held).sum();
        held < limit.min((self.most / 2).max(1)) && all < self.most
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut here = self
            .crowd
            .here
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = here.get_mut(&self.tenant) {
            *held -= 1;
            if *held == 0 {
                here.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(crowd: &Arc<Crowd>, tenant: &Tenant) -> Vec<Seat> {
        std::iter::from_fn(|| crowd.enter(tenant).ok())
            .take(1_000)
            .collect()
    }

    fn container(id: &str) -> Tenant {
        Tenant::Container(id.into())
    }

    /// P-SECURITY-7: what one tenant takes is bounded and named, and nobody else notices.
    #[test]
    fn a_container_at_its_limit_leaves_room_for_others_of_its_users() {
        let crowd = Arc::new(Crowd::at_control(Arc::default(), Yard::start(64)));
        let greedy = fill(&crowd, &container("a"));
        assert_eq!(greedy.len(), 64);
        assert_eq!(fill(&crowd, &container("b")).len(), 64);
        drop(greedy);
        assert_eq!(fill(&crowd, &container("a")).len(), 64, "it may come back");
    }

    #[test]
    fn all_strangers_together_leave_room_for_the_agents_own_user() {
        let (control, status) = (
            Crowd::at_control(Arc::default(), Yard::start(64)),
            Crowd::at_status(Arc::default(), Yard::start(64)),
        );
        for (crowd, own) in [(control, 1_000), (status, 64)] {
            let crowd = Arc::new(crowd);
            let strangers = (1..100).map(|uid| Tenant::User(uid + 70_000));
            let seats: Vec<Seat> = strangers.flat_map(|tenant| fill(&crowd, &tenant)).collect();
            assert_eq!(seats.len(), 256);
            assert_eq!(fill(&crowd, &Tenant::Agent).len(), own);
        }
    }

    #[test]
    fn where_few_descriptors_are_to_be_had_nobody_gets_more_than_half() {
        let crowd = Arc::new(Crowd {
            most: 102,
            ..Crowd::new(1_024, Yard::start(64))
        });
        let greedy = fill(&crowd, &Tenant::User(70_000));
        assert_eq!(greedy.len(), 51);
        crowd.set_limit(10);
        assert_eq!(fill(&crowd, &Tenant::User(70_001)).len(), 10);
    }
}
