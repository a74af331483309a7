//! The resource manager's objects: which channels the process owns, and calls about them.
//!
//! * [`ioctl`]: the process' calls on the driver's files, watched; [`trace`]: the same, written out.
//! * [`files`]: the application's control files.
//! * [`channels`]: its own channels, disabled and enabled at the agent's word.
//! * [`version`]: the driver's version.

pub mod channels;
pub mod files;
pub mod ioctl;
pub mod trace;
pub mod version;
