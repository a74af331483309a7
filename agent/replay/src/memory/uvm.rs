//! Offline memory is CUDA Unified Virtual Memory, which the driver pages out when online allocates.
//!
//! Valve (arXiv 2604.07874, section 7.2): online allocates ordinary device memory, which an engine
//! keeps once it has it; what online has allocated offline cannot use. Online's growth waits until
//! as much was written out over PCIe, in batches of page faults. What offline holds beyond what is
//! left it has to bring in and write out in every iteration that touches it; of the cached tokens of
//! running requests that is all, so only the excess moves (an LRU driver would move more).

use super::policy::Policy;
use super::pool::{Pool, Wants};
use crate::baselines::UVM_ONLINE_GIVES_BACK;
use crate::costs::HANDLE_BYTES;
use crate::record::Reclaim;
use crate::spec::Spec;
use crate::{clock::Time, costs::Costs};

#[derive(Debug)]
pub(super) struct Uvm {
    online: u64,
    /// Moving one handle's bytes, ns.
    handle: u64,
}

impl Uvm {
    pub fn new(spec: &Spec) -> Self {
        let Costs { fault_group, .. } = spec.costs;
        let transfer = HANDLE_BYTES as f64 / spec.gpu.pcie_bytes_per_s * 1e9;
        Self {
            online: 0,
            handle: transfer as u64 + u64::try_from(fault_group.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

impl Policy for Uvm {
    fn online_wants(&mut self, wants: Wants, now: u64, pool: &mut Pool) -> u64 {
        if UVM_ONLINE_GIVES_BACK {
            self.online = pool.online_used();
        }
        let wants = wants.all.min(pool.bytes);
        let resident = (pool.bytes - self.online).min(pool.offline_used());
        self.online = self.online.max(wants);
        pool.limit_online(self.online);
        let handles = resident.saturating_sub(pool.bytes - self.online) / HANDLE_BYTES;
        if handles == 0 {
            return 0;
        }
        let waits = handles * self.handle;
        pool.reclaims.push(Reclaim {
            asked: Time(now),
            mapped: Time(now + waits),
            handles: u32::try_from(handles).unwrap_or(u32::MAX),
            requests: 0,
            lost_tokens: 0,
            waited: true,
        });
        waits
    }

    fn offline_wants(&mut self, _now: u64, pool: &mut Pool) -> u64 {
        let left = pool.bytes - self.online;
        pool.limit_offline(left.max(pool.offline_used()));
        let excess = pool.offline_used().saturating_sub(left);
        2 * (excess / HANDLE_BYTES) * self.handle
    }
}
