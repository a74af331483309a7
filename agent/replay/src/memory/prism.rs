//! One pool through CUDA VMM, first come, first served; nothing is taken back.
//!
//! Prism (arXiv 2505.04021) and its open implementation kvcached. An engine keeps a few pages
//! mapped beside those it uses ([`PRISM_RESERVED_PAGES`]). When the pool is full, online admits
//! less and its requests queue (Valve, arXiv 2604.07874, section 7.2); while they do, what becomes
//! free is online's, which came first.

use super::policy::Policy;
use super::pool::{Pool, Wants};
use crate::baselines::PRISM_RESERVED_PAGES;
use crate::costs::HANDLE_BYTES;
use crate::spec::Spec;

#[derive(Debug)]
pub(super) struct Prism {
    /// Most that each keeps beside what it uses.
    reserve: u64,
    online_mapped: u64,
    /// What online wants in all and could not have.
    claim: u64,
}

impl Prism {
    pub fn new(spec: &Spec) -> Self {
        let columns = 2 * u64::from(spec.online.model.shape.layers);
        let reserve = PRISM_RESERVED_PAGES * columns * HANDLE_BYTES;
        Self {
            reserve,
            online_mapped: reserve.min(spec.kv_pool_bytes),
            claim: 0,
        }
    }

    /// What online holds after giving back what exceeds its reserve.
    fn trim(&mut self, pool: &Pool) {
        let keeps = pool.online_used() + self.reserve;
        self.online_mapped = self.online_mapped.min(keeps);
    }
}

impl Policy for Prism {
    fn online_wants(&mut self, wants: Wants, _now: u64, pool: &mut Pool) -> u64 {
        let wants = wants.all;
        self.trim(pool);
        let free = pool.bytes.saturating_sub(pool.offline_used());
        self.online_mapped = self.online_mapped.max(wants.min(free)).min(free);
        self.claim = if wants > self.online_mapped { wants } else { 0 };
        pool.limit_online(self.online_mapped);
        0
    }

    fn offline_cache(&self, pool: u64) -> u64 {
        pool.saturating_sub(self.reserve)
    }

    fn offline_wants(&mut self, _now: u64, pool: &mut Pool) -> u64 {
        self.trim(pool);
        let left = pool
            .bytes
            .saturating_sub(self.online_mapped.max(self.claim));
        pool.limit_offline(left);
        0
    }
}
