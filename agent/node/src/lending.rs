//! What operators see if no lease is given.

use tidegate_policy::no_lease::NoLease;

/// Why no lease is given, and what to do about it.
pub(crate) fn nothing_lent(why: &NoLease) -> String {
    let remedy = why.remedy().map(|remedy| format!("; {remedy}"));
    format!("no lease is given: {why}{}", remedy.unwrap_or_default())
}
