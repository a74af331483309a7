//! The decisions of the preloaded library, as steps: no exports, threads, system calls or clock.
//!
//! * [`activity`]: how a launch reports that its device is busy, for a few plain instructions, and how the prober takes
//!   that back.
//! * [`capture`]: how the prober and a begin-capture call avoid each other.
//! * [`gate`]: whether a launch of an offline process may pass.
//! * [`lease`]: whether a trainer may begin a unit, and what it reports of its lease.
//! * [`beat`]: what an online process reports of an iteration that has ended.
//! * [`hold`]: how calls that may hold the driver's locks, and changes of mappings, avoid each other.
//! * [`rm`]: which channels a process owns, from its calls to the resource manager.
//! * [`landing`]: what an offline process does when its agent is gone.
//! * [`stripes`], [`joblog`], [`elastic`]: KV memory: what belongs together, how an engine learns of losses, and which
//!   blocks an online engine may use.
//! * [`arena`]: a trainer's memory: over which blocks a tensor lies, and at which addresses each is mapped.
//! * [`witness`]: what shows that a thread's own stream is done if the thread itself does not ask.
//! * [`suspect`]: why a device counts as busy although nothing is launched.
//!
//! The same code runs in the library, under loom, in the exhaustive store-buffer explorer of this crate's tests, and in
//! virtual time. For that it is generic over its words ([`word`]), and time is an argument.
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
