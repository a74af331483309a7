//! The resource manager (RM): its ioctls, and what is asked of it by them.
//!
//! ```text
//!  enumerate    which driver, which GPUs          throw_away   a channel without work
//!      \                                          /   modes     MIG, vGPU, confidential computing
//!       +--------> subdevice  a GPU, by a client of its own <----+
//!                      |
//!                      v
//!  channels -----> control_file  clients, controls, allocations; who owns a client
//!                      |            asking       the size that the driver takes
//!                      v
//!                    ioctl       one call, its parameters, its errors
//! ```
//!
//! Three facts of the driver shape this room. RM answers in the struct's `status` while `ioctl` itself
//! returns 0. A call is only accepted for a client that was created on the same open file, and root does
//! not change that; [`ControlFile::owns`] turns this into a proof of ownership, by a control that the
//! driver never answers from its cache. Two calls on one client serialise even for different GPUs, so
//! there is one [`Subdevice`], with its own file and client, per GPU.

mod asking;
mod channels;
mod control_file;
mod enumerate;
mod figures;
mod gpu;
mod ioctl;
mod modes;
mod subdevice;
mod throw_away;

pub use control_file::{ControlFile, Owner};
pub use enumerate::{Driver, Hidden, enumerate};
pub use figures::Memory;
pub use gpu::Gpu;
pub use ioctl::RmError;
pub use subdevice::Subdevice;
pub use throw_away::ThrowAway;
