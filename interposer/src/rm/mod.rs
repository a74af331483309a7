//! Calls about the resource manager's objects. [`crate::state::objects`] says which channels the process owns.
//!
//! * [`outbox`]: leaves a change for the agent.
//! * [`request`]: a call of the process on the driver's files, decoded; [`trace`]: the same, written to a file;
//!   [`next`]: the call itself.
//! * [`files`]: the application's control files.
//! * [`channels`]: its own channels, disabled and enabled on the agent's order.
//! * [`version`]: the driver's version.

pub mod channels;
pub mod files;
pub mod next;
pub mod outbox;
pub mod request;
pub mod trace;
pub mod version;
