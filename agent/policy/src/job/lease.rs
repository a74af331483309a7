//! The third reason to run, beside an open gate and a breath: a lease, for units between two iterations of online.
//!
//! ```text
//!          +-------- lease ---------+
//!          v                        |
//!    No --lease--> Until --returned--> Back --grace is over--> No
//!     ^              |
//!     +-- overrun, held, gate
//! ```
//!
//! That a trainer returned is its own word: work of it may be left on the device, and a program need not ask the library
//! before it launches. So a job that returned keeps its channels for a grace at most, with its launch gate closed. Only a
//! lease that comes sooner takes no order to the driver.

use crate::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lease {
    No,
    Until(Instant),
    /// It says that nothing of it runs. It is disabled then.
    Back(Instant),
}
