//! `tidegate doctor`: whether this node can do what Tidegate asks of it, and what to do where it cannot.
//!
//! Two halves that never mix: [`collect`] asks the kernel, the driver, the agent and the files of this
//! node and writes down what they say ([`facts`]); [`judge()`] makes checks of that, without asking
//! anybody. So every outcome can be had in a test, on a machine that has none of the faults.
//!
//! A check is PASS, WARN (it works, but worse than it could), FAIL (it does not work), or SKIP (it
//! cannot be known here, and the evidence says why). Whatever is not a PASS comes with one line that
//! says what to do, where something can be done.
//!
//! Collecting changes nothing: no channel of another process is touched, nothing is made or enabled.
//! While no agent answers, the channel level is tried on throw-away channels of doctor's own, as an
//! agent does at its start. Whoever may hang (the driver, a stopped agent) is given a deadline.

mod check;
pub mod collect;
pub mod facts;
pub mod judge;
mod show;

pub use check::{CHECKS, Check, Group, Outcome, exit_code};
use facts::Facts;
pub(crate) use show::{Arguments, NotStarted, run};

/// All checks of these facts, in the order of [`CHECKS`].
#[must_use]
pub fn judge(facts: &Facts) -> Vec<Check> {
    judge::all(facts)
}
