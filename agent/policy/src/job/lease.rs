//! The third reason to run, beside an open gate and a breath: a lease, for units between two iterations of online.
//!
//! ```text
//!    No --let in--> Parked --lease--> Until --returned--> Parked
//!     ^                                 |
//!     +------ overrun, held, gate ------+
//! ```
//!
//! A job that is let in has its channels enabled and its launch gate closed, so that a lease takes no order to the
//! driver: it opens the gate. What is not back in time is disabled as at a busy edge.

use crate::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lease {
    No,
    /// Its launches wait for the next.
    Parked,
    Until(Instant),
}
