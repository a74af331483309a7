//! How many events of each tenant are kept: what a tenant has its processes do must not push out what matters to others,
//! nor fill the log.
//!
//! A tenant has [`PER_SECOND`] of them, and [`BURST`] at once after it was quiet; those that ask for attention are
//! counted apart, so that no flood of others hides them. What is beyond that is counted for [`WINDOW_NS`] at a time,
//! and one event tells of the count when the time is over.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_node::kinds::Tenant;

/// Events of a tenant, of either sort.
const PER_SECOND: u64 = 50;
/// Those that may come at once.
const BURST: u64 = 512;
const EVERY_NS: u64 = 1_000_000_000 / PER_SECOND;
/// For how long those beyond it are counted together.
pub const WINDOW_NS: u64 = 1_000_000_000;
/// Tenants that are remembered before those that were quiet are forgotten.
const TENANTS: usize = 64;

/// Events beyond the rate, while they are counted.
#[derive(Clone, Debug)]
pub struct More {
    /// When the first was.
    pub at_ns: u64,
    /// Whose.
    pub tenant: Tenant,
    /// How many, complete [`WINDOW_NS`] after the first.
    pub count: Arc<AtomicU64>,
}

/// What becomes of an event.
#[derive(Debug)]
pub enum Verdict {
    /// It is kept.
    Kept,
    /// It is counted with others.
    Counted,
    /// It is the first that is counted.
    Begun(More),
}

#[derive(Debug, Default)]
struct Row {
    /// When all that was kept is paid for, ns.
    due_ns: u64,
    more: Option<More>,
}

/// The accounts of all tenants, of events that ask for attention and of others.
#[derive(Debug, Default)]
pub struct Rates(HashMap<(Tenant, bool), Row>);

impl Rates {
    /// An event of `tenant` came.
    pub fn hear(&mut self, tenant: &Tenant, warns: bool, now: u64) -> Verdict {
        if *tenant == Tenant::Agent {
            return Verdict::Kept;
        }
        let counts = |more: &More| now < more.at_ns + WINDOW_NS;
        if self.0.len() > TENANTS {
            let owes = |row: &mut Row| row.due_ns > now || row.more.as_ref().is_some_and(counts);
            self.0.retain(|_, row| owes(row));
        }
        let row = self.0.entry((tenant.clone(), warns)).or_default();
        if let Some(more) = row.more.as_ref().filter(|more| counts(more)) {
            more.count.fetch_add(1, Ordering::Relaxed);
            return Verdict::Counted;
        }
        row.more = None;
        row.due_ns = row.due_ns.max(now) + EVERY_NS;
        if row.due_ns <= now + BURST * EVERY_NS {
            return Verdict::Kept;
        }
        row.due_ns -= EVERY_NS;
        let more = More {
            at_ns: now,
            tenant: tenant.clone(),
            count: Arc::new(AtomicU64::new(1)),
        };
        row.more = Some(more.clone());
        Verdict::Begun(more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// P-SECURITY-22: what a tenant says or makes does not multiply in the log.
    #[test]
    fn of_a_flood_a_burst_is_kept_and_the_rest_is_counted_once_a_second() {
        let (mut rates, tenant) = (Rates::default(), Tenant::User(70_000));
        let (mut kept, mut told) = (0, Vec::new());
        for at in 0..160_000 {
            let now = SECOND + at * SECOND / 16_000;
            match rates.hear(&tenant, false, now) {
                Verdict::Kept => kept += 1,
                Verdict::Counted => {}
                Verdict::Begun(more) => told.push(more),
            }
            if at % 16_000 == 0 {
                let other = rates.hear(&Tenant::User(1), false, now);
                assert!(matches!(other, Verdict::Kept), "nobody else notices");
                let warning = rates.hear(&tenant, true, now);
                assert!(matches!(warning, Verdict::Kept), "no flood hides it");
            }
        }
        assert!((BURST..BURST + 11 * PER_SECOND).contains(&kept), "{kept}");
        assert!(told.len() <= 10, "{}", told.len());
        let counted: u64 = told
            .iter()
            .map(|more| more.count.load(Ordering::Relaxed))
            .sum();
        assert_eq!(kept + counted, 160_000, "none is forgotten");
    }

    #[test]
    fn what_operators_run_is_not_counted_and_who_was_quiet_is_forgotten() {
        let mut rates = Rates::default();
        for at in 0..10_000 {
            let verdict = rates.hear(&Tenant::Agent, false, at);
            assert!(matches!(verdict, Verdict::Kept));
            let tenant = Tenant::User(u32::try_from(at).expect("few"));
            let _ = rates.hear(&tenant, false, at * SECOND);
        }
        assert!(rates.0.len() <= TENANTS + 1, "{}", rates.0.len());
    }
}
