//! Calls about the resource manager's objects: which channels the process owns is in [`crate::state::objects`].
//!
//! * [`outbox`]: how a change is left for the agent.
//! * [`request`]: a call of the process on the driver's files, taken apart; [`trace`]: the same, written out;
//!   [`next`]: the call itself.
//! * [`files`]: the application's control files.
//! * [`channels`]: its own channels, disabled and enabled at the agent's word.
//! * [`version`]: the driver's version.

pub mod channels;
pub mod files;
pub mod next;
pub mod outbox;
pub mod request;
pub mod trace;
pub mod version;
