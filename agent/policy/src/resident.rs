//! How many of a trainer's frozen layers stay on the GPU beside online's KV cache, and how much is kept free for online
//! meanwhile.
//!
//! A trainer goes through its layers upwards and back, again and again. A layer that does not fit is loaded when the
//! trainer reaches it, and the layer that was used longest ago is dropped. So in each direction the trainer loads the
//! layers that do not stay. At the turning points it loads none, because the layers that it used last are those that it
//! uses next.
//!
//! ```text
//!   reserve   ceil((detect + release) / time per token) x requests x KV bytes of a token, up to a chunk
//!   resident  clamp(floor((free - reserve) / bytes of a layer), 2, layers)
//! ```
//!
//! Both are HARLI's (arXiv 2511.11729, section 4.4), with two corrections. HARLI's reserve is the product without
//! rounding. If a release is shorter than a token, that is less than the tokens that arrive meanwhile, one for each
//! request. And the memory of a cache comes in chunks.

use crate::ids::Bytes;
use crate::time::nanos;
use core::time::Duration;

/// Layers that a trainer needs at least: the one under way, and the one that is being loaded (HARLI, section 4.4).
pub const LEAST_LAYERS: u32 = 2;

/// What online may take while memory is on its way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// From a token that does not fit to the order that takes memory.
    pub detect: Duration,
    /// From there to memory that online can use.
    pub release: Duration,
    /// Online makes a token of each request no faster than this.
    pub per_token: Duration,
    /// Requests at once, at most.
    pub requests: u32,
    /// KV cache of one token of one request.
    pub token: Bytes,
    /// What online's memory comes in.
    pub chunk: Bytes,
}

/// What is kept free, so that no token of online waits for memory.
#[must_use]
pub fn reserve(demand: Demand) -> Bytes {
    let away = nanos(demand.detect).saturating_add(nanos(demand.release));
    let tokens = away.div_ceil(nanos(demand.per_token).max(1));
    let requests = u64::from(demand.requests);
    let wanted = demand.token.times(tokens.saturating_mul(requests));
    wanted.round_up(demand.chunk)
}

/// Layers that stay, of so many of `layer` bytes, where `free` are not online's. Never fewer than [`LEAST_LAYERS`] if
/// there are as many: a trainer that has no room for those waits.
#[must_use]
pub fn resident(free: Bytes, reserve: Bytes, layer: Bytes, layers: u32) -> u32 {
    let room = free.minus(reserve).0.checked_div(layer.0);
    let room = room.map_or(layers, |room| u32::try_from(room).unwrap_or(u32::MAX));
    room.max(LEAST_LAYERS).min(layers)
}

/// Layers that are loaded in a step of so many micro-batches, where so many stay.
#[must_use]
pub fn loads(resident: u32, layers: u32, batches: u32) -> u64 {
    2 * u64::from(layers.saturating_sub(resident)) * u64::from(batches)
}
