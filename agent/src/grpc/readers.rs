//! How often readers are answered: those of each tenant at a steady rate.
//!
//! An answer costs the control thread a question and this process the writing of a long message. A tenant has
//! [`PER_SECOND`] of them, and as many at once after it was quiet. Who asks more often waits, and who would wait for
//! longer than [`LONGEST_NS`] is refused.

use crate::clock::now_ns;
use crate::watch::refusals::Refusals;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate_node::kinds::Tenant;

/// Answers to the readers of one tenant.
const PER_SECOND: u64 = 50;
/// Time between two of them.
const EVERY_NS: u64 = 1_000_000_000 / PER_SECOND;
/// How long somebody may have to wait for an answer.
const LONGEST_NS: u64 = 1_000_000_000;
/// Tenants that are remembered before those that were quiet are forgotten.
const TENANTS: usize = 64;

/// What a refused reader asked for.
const REFUSED: &str = "too many questions on status.sock";

/// When the readers of each tenant are answered.
#[derive(Debug)]
pub struct Readers {
    /// When the next answer of each is due, ns.
    due: Mutex<HashMap<Tenant, u64>>,
    refusals: Arc<Refusals>,
}

impl Readers {
    /// A limiter that nobody has used. It reports tenants that ask too often to `refusals`.
    #[must_use]
    pub fn new(refusals: Arc<Refusals>) -> Self {
        Self {
            due: Mutex::default(),
            refusals,
        }
    }

    /// Waits until a reader of `tenant` may be answered.
    ///
    /// # Errors
    /// When its readers ask far more often than they may: why, for them.
    pub async fn admit(&self, tenant: &Tenant) -> Result<(), &'static str> {
        let wait = {
            let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
            book(&mut due, tenant, now_ns())
        };
        match wait {
            Some(0) => Ok(()),
            Some(ns) => {
                tokio::time::sleep(Duration::from_nanos(ns)).await;
                Ok(())
            }
            None => {
                self.refusals.note(tenant, REFUSED);
                Err(REFUSED)
            }
        }
    }
}

/// How long the next answer to `tenant` has to wait, ns; None: too long, and it gets none.
fn book(due: &mut HashMap<Tenant, u64>, tenant: &Tenant, now: u64) -> Option<u64> {
    let quiet = now.saturating_sub(EVERY_NS * (PER_SECOND - 1));
    if due.len() > TENANTS {
        due.retain(|_, at| *at > quiet);
    }
    let next = due.get(tenant).copied().unwrap_or(0).max(quiet);
    let wait = next.saturating_sub(now);
    if wait > LONGEST_NS {
        return None;
    }
    due.insert(tenant.clone(), next + EVERY_NS);
    Some(wait)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// P-SECURITY-21: readers of status keep nobody from steering.
    #[test]
    fn who_asks_without_end_is_answered_at_the_rate_and_others_do_not_notice() {
        let (mut due, greedy) = (HashMap::new(), Tenant::User(70_000));
        let mut answered = 0;
        for at in 0..100_000 {
            let now = 100 * SECOND + at * SECOND / 10_000;
            answered += u64::from(book(&mut due, &greedy, now).is_some());
            if at % 2_500 == 0 {
                assert_eq!(book(&mut due, &Tenant::User(1), now), Some(0));
            }
        }
        // In ten seconds, with what may be asked at once and what still waits.
        assert!((490..=12 * PER_SECOND).contains(&answered), "{answered}");
    }

    #[test]
    fn tenants_that_are_gone_take_no_room() {
        let mut due = HashMap::new();
        for uid in 0..10_000 {
            let now = 100 * SECOND + u64::from(uid) * SECOND / 10;
            assert_eq!(book(&mut due, &Tenant::User(uid), now), Some(0));
        }
        assert!(due.len() <= TENANTS + 1, "{}", due.len());
    }
}
