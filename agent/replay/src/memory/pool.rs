//! The pool of two engines, in bytes of whole handles.

use crate::batch::Batch;
use crate::costs::HANDLE_BYTES;
use crate::record::Reclaim;

/// The pool and the two who share it.
#[derive(Debug)]
pub struct Pool {
    /// Bytes for both.
    pub bytes: u64,
    /// Online.
    pub online: Batch,
    /// Bytes of a block of online.
    pub online_block: u64,
    /// Offline.
    pub offline: Batch,
    /// Bytes of a block of offline.
    pub offline_block: u64,
    /// Offline is not on the GPU, and is not being let onto it.
    pub gated: bool,
    /// How long what offline runs takes to its next layer.
    pub offline_layer_left: u64,
    /// Offline's process is down until then.
    pub offline_down_until: u64,
    /// Memory that went from offline to online.
    pub reclaims: Vec<Reclaim>,
    /// Times offline was killed.
    pub kills: u64,
    /// Tokens offline has to compute again because of that.
    pub lost_tokens: u64,
    /// Offline iterations that were under way and are void.
    pub offline_void: bool,
}

impl Pool {
    /// Bytes online uses, in whole handles.
    #[must_use]
    pub fn online_used(&self) -> u64 {
        whole(u64::from(self.online.store.used) * self.online_block)
    }

    /// Bytes offline uses, in whole handles.
    #[must_use]
    pub fn offline_used(&self) -> u64 {
        whole(u64::from(self.offline.store.used) * self.offline_block)
    }

    /// Lets online hold up to `bytes`.
    pub fn limit_online(&mut self, bytes: u64) {
        self.online.store.limit = count(bytes, self.online_block);
    }

    /// Online reads the part of a prompt that it has blocks for, where all of it would have room in `bytes`.
    pub fn online_reads_parts(&mut self, bytes: u64) {
        self.online.reach = count(bytes, self.online_block);
    }

    /// Lets offline hold up to `bytes`.
    pub fn limit_offline(&mut self, bytes: u64) {
        self.offline.store.limit = count(bytes, self.offline_block);
    }

    /// Offline's engine starts with a cache of so many bytes.
    pub fn cache_offline(&mut self, bytes: u64) {
        self.offline.store.cache = count(bytes, self.offline_block);
    }

    /// Offline's process ends; another is ready at `until`.
    pub fn kill_offline(&mut self, until: u64) {
        self.lost_tokens += self.offline.kill();
        self.kills += 1;
        self.offline_down_until = until;
        self.offline_void = true;
    }
}

/// Bytes that are taken and given as one, with blocks outermost: a handle, or a whole block where
/// that has several.
#[must_use]
pub const fn stripe_of(block: u64) -> u64 {
    if block.is_multiple_of(HANDLE_BYTES) {
        block
    } else {
        HANDLE_BYTES
    }
}

/// What online would hold after its next iteration, in bytes of whole handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wants {
    /// With every prompt that it could begin.
    pub all: u64,
    /// With what it can do nothing without.
    pub least: u64,
}

/// `bytes` in whole handles.
#[must_use]
pub const fn whole(bytes: u64) -> u64 {
    bytes.next_multiple_of(HANDLE_BYTES)
}

fn count(bytes: u64, block: u64) -> u32 {
    u32::try_from(bytes / block.max(1)).unwrap_or(u32::MAX)
}
