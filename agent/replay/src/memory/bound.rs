//! What no policy can have: memory moves for nothing, and offline loses nothing by it.
//!
//! Offline begins new requests only in what online leaves it at that moment, but what it holds
//! beyond that stays computable. Nobody can have both, not even with the
//! future known, so this bounds them all and is reached by none.

use super::policy::Policy;
use super::pool::{Pool, Wants};

#[derive(Debug)]
pub(super) struct Bound;

impl Policy for Bound {
    fn online_wants(&mut self, _wants: Wants, _now: u64, pool: &mut Pool) -> u64 {
        pool.limit_online(pool.bytes);
        0
    }

    fn offline_wants(&mut self, _now: u64, pool: &mut Pool) -> u64 {
        let left = pool.bytes - pool.online_used().min(pool.bytes);
        // What it holds may grow in place.
        pool.limit_offline(left.max(pool.offline_used()));
        0
    }
}
