//! The device model: channels, TSGs, timeslices, disable and enable, and the driver's locks.
//!
//! It answers one question: given who submitted what and who disabled whom, what runs when? The
//! virtual GPU's device process drives it in wall time, simulations drive it in virtual time; both
//! get the same answer for the same calls, because nothing here reads a clock, draws from a global
//! source of randomness or does IO. Time is a `u64` of nanoseconds, an argument everywhere.
//!
//! * [`Gpu`]: the engines of one GPU, the TSGs that take turns on them, the channels inside.
//! * [`Eviction`]: what it takes for a disable to stop what runs.
//! * [`Latency`]: how long a disable takes to get a channel off the hardware.
//! * [`sharing`]: how fast two kinds of work go beside each other, on shares of the multiprocessors.
//! * [`Locks`]: when an RM call holds the locks it needs, so when it starts and ends.
//!
//! ```
//! use tidegate_device::{Config, EventKind, Gpu, Latency, Work};
//!
//! let mut gpu = Gpu::new(Config { disable: Latency::Fixed(300_000), ..Config::default() });
//! let tsg = gpu.add_tsg(1);
//! let channel = gpu.add_channel(tsg);
//! gpu.set_scheduled(tsg, true);
//! gpu.submit(channel, Work::Run { ns: 1_000_000, tag: 7 });
//!
//! let mut events = Vec::new();
//! gpu.advance(100_000, &mut events);
//! let off = gpu.begin_disable(&[channel], 0);
//! assert_eq!(off, 400_000);
//! gpu.advance(9_000_000, &mut events);
//! gpu.enable_at(9_000_000, &[channel], 0);
//! gpu.advance(10_000_000, &mut events);
//! // 0.4 ms ran before the disable took effect, the remaining 0.6 ms after the enable.
//! let end = events.iter().find(|e| e.kind == EventKind::Finished { channel, tag: 7 });
//! assert_eq!(end.map(|e| e.at), Some(9_600_000));
//! ```
#![forbid(unsafe_code)]

mod eviction;
mod gpu;
mod latency;
mod locks;
pub mod sharing;
mod slots;

pub use eviction::Eviction;
pub use gpu::{ChannelId, Config, Event, EventKind, Gpu, TsgId, Work};
pub use latency::{Latency, Rng};
pub use locks::{ApiLock, GpuLock, Locks, Needs, Patch};
