//! The resource manager's objects: which channels the process owns, and calls about them.
//!
//! * [`objects`]: what stands, and what the agent has not been told; [`outbox`]: how it is left there.
//! * [`ioctl`]: the process' calls on the driver's files, watched; [`request`]: one of them, taken apart;
//!   [`trace`]: the same, written out; [`next`]: the call itself.
//! * [`files`]: the application's control files.
//! * [`channels`]: its own channels, disabled and enabled at the agent's word.
//! * [`version`]: the driver's version.

pub mod channels;
pub mod files;
pub mod ioctl;
pub mod next;
pub mod objects;
pub mod outbox;
pub mod request;
pub mod trace;
pub mod version;
