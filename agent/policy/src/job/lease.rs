//! The third reason to run, beside an open gate and an anti-starvation window: a lease, for units between two
//! iterations of online.
//!
//! ```text
//!          +-------- lease ---------+
//!          v                        |
//!    No --lease--> Until --returned--> Back --grace is over--> No
//!     ^              |
//!     +-- overrun, held, gate
//! ```
//!
//! Only the trainer itself reports that it has returned. Some of its work may still be on the device, and a program
//! need not ask the library before it launches. So after the return the job keeps its channels for at most one grace
//! period, with its launch gate closed. If the next lease comes within that time, no order to the driver is needed.

use crate::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lease {
    No,
    Until(Instant),
    /// It says that nothing of it runs. It is disabled then.
    Back(Instant),
}
