//! Offline has the least memory that online left free over the past hour, for good.
//!
//! Valve (arXiv 2604.07874, section 7.2). An online burst above that kills the offline job at once;
//! it starts again after [`RESTART`].

use super::policy::Policy;
use super::pool::{Pool, Wants, whole};
use crate::baselines::RESTART;
use crate::spec::Spec;

#[derive(Debug)]
pub(super) struct StaticMem {
    offline: u64,
    restart: u64,
}

impl StaticMem {
    pub fn new(spec: &Spec, peak: u64) -> Self {
        Self {
            offline: spec.kv_pool_bytes.saturating_sub(whole(peak)),
            restart: u64::try_from(RESTART.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

impl Policy for StaticMem {
    fn online_wants(&mut self, wants: Wants, now: u64, pool: &mut Pool) -> u64 {
        let up = now >= pool.offline_down_until;
        if up && wants.all > pool.bytes - self.offline {
            pool.kill_offline(now.saturating_add(self.restart));
        }
        let up = now >= pool.offline_down_until;
        pool.limit_online(pool.bytes - if up { self.offline } else { 0 });
        0
    }

    fn offline_cache(&self, _pool: u64) -> u64 {
        self.offline
    }

    fn offline_wants(&mut self, _now: u64, pool: &mut Pool) -> u64 {
        pool.limit_offline(self.offline);
        0
    }
}
