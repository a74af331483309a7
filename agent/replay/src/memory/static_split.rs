//! A fixed share each: HARLI's static mode ([`ONLINE_SHARE`]).

use super::policy::Policy;
use super::pool::{Pool, Wants};
use crate::baselines::ONLINE_SHARE;
use crate::spec::Spec;

#[derive(Debug)]
pub(super) struct StaticSplit {
    online: u64,
}

impl StaticSplit {
    pub fn new(spec: &Spec) -> Self {
        let online = spec.kv_pool_bytes as f64 * ONLINE_SHARE;
        Self {
            online: online as u64,
        }
    }
}

impl Policy for StaticSplit {
    fn online_wants(&mut self, _wants: Wants, _now: u64, pool: &mut Pool) -> u64 {
        pool.limit_online(self.online);
        0
    }

    fn offline_cache(&self, pool: u64) -> u64 {
        pool.saturating_sub(self.online)
    }

    fn offline_wants(&mut self, _now: u64, pool: &mut Pool) -> u64 {
        pool.limit_offline(pool.bytes - self.online);
        0
    }
}
