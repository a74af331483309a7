//! Tenants that asked for more of the agent than one of them may have: who, for what, how often.
//!
//! Each is named in status, and in an event: once, and again for as long as it goes on, at most every minute.

use crate::inbox::{Input, Mailbox};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use tidegate_node::kinds::Tenant;
use tidegate_proto::v1;

/// Lines that are kept. Who was refused longest ago gives way.
const KEPT: usize = 64;
/// The shortest time between two events about one tenant.
const SAID_EVERY_NS: u64 = 60_000_000_000;

/// Who was refused something.
#[derive(Debug, Default)]
pub struct Refusals {
    mailbox: Option<Mailbox>,
    rows: Mutex<Rows>,
}

/// By who, and what they asked for.
type Rows = BTreeMap<(Tenant, &'static str), Row>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Row {
    times: u64,
    last_ns: u64,
    /// When an event last named it; None: none has.
    said_ns: Option<u64>,
}

impl Refusals {
    /// None yet. Events go to `mailbox`.
    #[must_use]
    pub fn telling(mailbox: Mailbox) -> Self {
        Self {
            mailbox: Some(mailbox),
            rows: Mutex::default(),
        }
    }

    /// `tenant` asked for `what`, which is more than it may have.
    pub fn note(&self, tenant: &Tenant, what: &'static str) {
        let line = {
            let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
            note(&mut rows, tenant, what, crate::clock::now_ns())
        };
        if let (Some(line), Some(mailbox)) = (line, &self.mailbox) {
            mailbox.offer(Input::Audit("refused", line));
        }
    }

    /// For status, the latest first.
    #[must_use]
    pub fn rows(&self) -> Vec<v1::Refusal> {
        let now = crate::clock::now_ns();
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let row = |((tenant, what), row): (&(Tenant, &'static str), &Row)| v1::Refusal {
            who: tenant.to_string(),
            what: (*what).to_owned(),
            times: row.times,
            ago_ns: now.saturating_sub(row.last_ns),
        };
        let mut all: Vec<v1::Refusal> = rows.iter().map(row).collect();
        all.sort_by_key(|row| row.ago_ns);
        all
    }
}

/// Counts one; the line to tell of it, if it is to be told.
fn note(rows: &mut Rows, tenant: &Tenant, what: &'static str, now: u64) -> Option<String> {
    let key = (tenant.clone(), what);
    if !rows.contains_key(&key) && rows.len() >= KEPT {
        let oldest = rows.iter().min_by_key(|(_, row)| row.last_ns);
        let oldest = oldest.map(|(key, _)| key.clone())?;
        rows.remove(&oldest);
    }
    let row = rows.entry(key).or_default();
    row.times += 1;
    row.last_ns = now;
    let due = row
        .said_ns
        .is_none_or(|said| now.saturating_sub(said) >= SAID_EVERY_NS);
    due.then(|| {
        row.said_ns = Some(now);
        format!("{tenant}: {what}, {} times", row.times)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = SAID_EVERY_NS;

    fn told(rows: &mut Rows, uid: u32, now: u64) -> bool {
        note(rows, &Tenant::User(uid), "too much", now).is_some()
    }

    #[test]
    fn one_line_a_minute_tells_of_a_flood() {
        let mut rows = BTreeMap::new();
        let lines = (0..10_000).filter(|at| told(&mut rows, 7, at * MINUTE / 4_000));
        assert_eq!(lines.count(), 3);
        assert_eq!(rows[&(Tenant::User(7), "too much")].times, 10_000);
    }

    #[test]
    fn many_tenants_take_no_more_room_than_a_few() {
        let mut rows = BTreeMap::new();
        for uid in 0..10_000 {
            assert!(told(&mut rows, uid, u64::from(uid)));
        }
        assert_eq!(rows.len(), KEPT);
        assert!(
            rows.contains_key(&(Tenant::User(9_999), "too much")),
            "the latest stay"
        );
    }
}
