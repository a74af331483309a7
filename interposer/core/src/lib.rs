//! What the preloaded library decides, as steps: no exports, threads, system calls or clock.
//!
//! * [`activity`]: how a launch says that its device is busy, at the price of a few plain
//!   instructions, and how the prober takes that back.
//! * [`capture`]: how the prober and a begin-capture call keep out of each other's way.
//! * [`gate`]: whether a launch of an offline process may pass.
//! * [`lease`]: whether a trainer may begin a unit, and what it says of its lease.
//! * [`beat`]: what an online process says of an iteration that has ended.
//! * [`hold`]: how calls that may hold the driver's locks and changes of mappings keep out of each other's way.
//! * [`rm`]: which channels a process owns, from the resource manager's ioctls it makes.
//! * [`landing`]: what an offline process does when its agent is gone.
//! * [`stripes`], [`joblog`], [`elastic`]: KV memory: what goes together, how an engine learns of it,
//!   and what an online one may use.
//! * [`arena`]: a trainer's memory: which blocks a tensor lies over, and at which addresses each is seen.
//! * [`witness`]: what says that a thread's own stream is done where the thread does not.
//! * [`suspect`]: why a device counts as busy although nothing is launched.
//!
//! The same code runs in the library, under loom, in the exhaustive store-buffer explorer of this
//! crate's tests, and in virtual time; that is why it is generic over its words ([`word`]) and why
//! time is an argument.
#![forbid(unsafe_code)]

pub mod activity;
pub mod arena;
pub mod beat;
pub mod capture;
pub mod elastic;
pub mod gate;
pub mod hold;
pub mod joblog;
pub mod landing;
pub mod lease;
pub mod rm;
pub mod stripes;
pub mod suspect;
pub mod witness;
pub mod word;
