//! What a memory policy is asked.

use super::pool::{Pool, Wants};
use std::fmt::Debug;

/// A time that never comes.
pub const NEVER: u64 = u64::MAX;

/// A memory policy.
pub trait Policy: Debug {
    /// Online is about to submit an iteration. Sets its limit and says how many ns it waits for it.
    fn online_wants(&mut self, wants: Wants, now: u64, pool: &mut Pool) -> u64;

    /// An iteration of online is done, and what its requests gave back is free.
    fn online_done(&mut self, _now: u64, _pool: &mut Pool) {}

    /// Offline is about to submit an iteration. Sets its limit and says how many ns longer it takes.
    fn offline_wants(&mut self, now: u64, pool: &mut Pool) -> u64;

    /// The most that offline can ever have, bytes: as large a cache its engine makes when it starts.
    fn offline_cache(&self, pool: u64) -> u64 {
        pool
    }

    /// When it wants to be asked by itself; [`NEVER`] if not.
    fn next(&self) -> u64 {
        NEVER
    }

    /// That time has come.
    fn due(&mut self, _now: u64, _pool: &mut Pool) {}

    /// Offline has just been stopped, or is about to be let in: memory may move without anybody
    /// noticing. Says how many ns the gate stays shut for it.
    fn gate(&mut self, _opens: bool, _now: u64, _pool: &mut Pool) -> u64 {
        0
    }
}
