//! Headroom that adapts, reclamation at any time, chosen by marginal token cost.
//!
//! What decides is the agent's own code: `tidegate_policy::reserve` says how much online has
//! mapped, `tidegate_policy::select` which stripes offline gives up. What is modelled here is what
//! that takes, handle by handle, from [`Costs`]:
//!
//! ```text
//!   reclaim   offline stopped; unmap, quarantine, release of each handle; the blocks are lost
//!   map       create, map, access of each handle by online, one after the other, in order
//!   restore   while offline is stopped anyway; else one gate per second, charged to offline
//! ```
//!
//! Online waits only for handles without which it could do nothing next; prompts that fit into
//! nothing mapped yet are not granted, and wait for a later iteration while others run.
//! Invariant: what is mapped for online, on its way to it, and backs offline never exceeds the pool.

use std::collections::VecDeque;

use tidegate_policy::config::{Reserving, Sharing};
use tidegate_policy::ids::Bytes;
use tidegate_policy::reserve::Reserve;
use tidegate_policy::time::Instant;

use super::policy::{NEVER, Policy};
use super::pool::{Pool, Wants};
use super::stripes::{Stripes, Taken};
use crate::clock::Time;
use crate::costs::HANDLE_BYTES;
use crate::record::Reclaim;
use crate::spec::{Memory, Spec};

/// Between two gates that are shut only to give memory back to offline.
const RESTORE_INTERVAL: u64 = 1_000_000_000;

/// Where offline can be stopped for a reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stops {
    Anywhere,
    AtLayers,
}

/// Handles being mapped for online, one after the other.
#[derive(Clone, Copy, Debug)]
struct Coming {
    begins: u64,
    handles: u64,
}

#[derive(Debug)]
pub(super) struct Tidegate {
    reserve: Reserve,
    stripes: Stripes,
    stops: Stops,
    pool: u64,
    /// Mapped for online.
    mapped: u64,
    coming: VecDeque<Coming>,
    /// When offline's side of the last reclaim or restore is done.
    settled: u64,
    restored: u64,
    /// Per handle, ns.
    take: u64,
    map: u64,
    back: u64,
    /// Handles that move in one reclaim: the first batch is mapped while the rest is still taken.
    batch: u64,
    /// A gate that is shut and opened for a restore, ns.
    gate: u64,
    disable: u64,
}

impl Tidegate {
    pub fn new(spec: &Spec, offline_stripe: u64) -> Self {
        let costs = &spec.costs;
        let ns = |span: std::time::Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let usual = Reserving {
            max: Bytes(spec.kv_pool_bytes),
            ..Reserving::of_pool(Bytes(spec.kv_pool_bytes))
        };
        let reserving = match spec.memory {
            Memory::TidegateNoMiad => Reserving {
                max: usual.min,
                ..usual
            },
            _ => usual,
        };
        let reserve = Reserve::new(reserving, Instant::default());
        let mapped = reserve.reservation().0.min(spec.kv_pool_bytes);
        Self {
            reserve,
            stripes: Stripes::new(offline_stripe, spec.memory == Memory::TidegateFifo),
            stops: match spec.memory {
                Memory::TidegateLayerBoundary => Stops::AtLayers,
                _ => Stops::Anywhere,
            },
            pool: spec.kv_pool_bytes,
            mapped,
            coming: VecDeque::new(),
            settled: 0,
            restored: 0,
            take: ns(costs.quarantine_handle + costs.release_handle),
            map: ns(costs.create_handle + costs.map_handle).max(1),
            back: ns(costs.quarantine_handle),
            batch: Sharing::default().batch.0 / HANDLE_BYTES,
            gate: ns(costs.disable_save + costs.enable_restore),
            disable: ns(costs.disable_save),
        }
    }

    fn begin(&mut self, pool: &mut Pool) {
        self.stripes.begin(self.pool - self.mapped, pool);
    }

    fn on_its_way(&self) -> u64 {
        let handles: u64 = self.coming.iter().map(|coming| coming.handles).sum();
        handles * HANDLE_BYTES
    }

    fn free(&self) -> u64 {
        self.pool
            .saturating_sub(self.mapped + self.on_its_way() + self.stripes.backed())
    }

    /// Takes in what has been mapped by now.
    fn arrive(&mut self, now: u64) {
        while let Some(coming) = self.coming.front_mut() {
            let done = (now.saturating_sub(coming.begins) / self.map).min(coming.handles);
            self.mapped += done * HANDLE_BYTES;
            coming.handles -= done;
            coming.begins += done * self.map;
            if coming.handles > 0 {
                return;
            }
            self.coming.pop_front();
        }
    }

    /// When `bytes` will be mapped; what is not on its way is not waited for.
    fn mapped_at(&self, bytes: u64, now: u64) -> u64 {
        let mut missing = bytes.saturating_sub(self.mapped).div_ceil(HANDLE_BYTES);
        let mut at = now;
        for coming in &self.coming {
            if missing == 0 {
                break;
            }
            let of_these = missing.min(coming.handles);
            at = coming.begins + of_these * self.map;
            missing -= of_these;
        }
        at.max(now)
    }

    /// Brings what is mapped for online to `bytes`; `needs` of them now.
    fn grow(&mut self, bytes: u64, needs: u64, now: u64, pool: &mut Pool) {
        let bytes = bytes.min(self.pool);
        let missing = bytes.saturating_sub(self.mapped + self.on_its_way());
        let handles = missing.div_ceil(HANDLE_BYTES);
        if handles == 0 {
            return;
        }
        let begins = self
            .coming
            .back()
            .map_or(now, |last| (last.begins + last.handles * self.map).max(now));
        let free = self.free() / HANDLE_BYTES;
        let at_once = handles.min(free);
        if at_once > 0 {
            self.coming.push_back(Coming {
                begins,
                handles: at_once,
            });
        }
        let taken = self.reclaim((handles - at_once) * HANDLE_BYTES, now, pool);
        let handles = (handles - at_once).min(taken.handles);
        if handles > 0 {
            let ready = self.settled - taken.handles.saturating_sub(self.batch) * self.take;
            let begins = (begins + at_once * self.map).max(ready);
            self.coming.push_back(Coming { begins, handles });
        }
        if taken.handles > 0 {
            pool.reclaims.push(Reclaim {
                asked: Time(now),
                mapped: Time(self.mapped_at(bytes, now)),
                handles: u32::try_from(taken.handles).unwrap_or(u32::MAX),
                requests: taken.requests,
                lost_tokens: taken.tokens,
                waited: needs > self.mapped,
            });
        }
    }

    /// Takes stripes of at least `bytes` from offline.
    fn reclaim(&mut self, bytes: u64, now: u64, pool: &mut Pool) -> Taken {
        let taken = self.stripes.take(bytes, pool);
        if taken.handles == 0 {
            return taken;
        }
        let stopped = match self.stops {
            Stops::Anywhere if pool.gated => 0,
            Stops::Anywhere => self.disable,
            Stops::AtLayers => self.disable + pool.offline_layer_left,
        };
        self.settled = self.settled.max(now + stopped) + taken.handles * self.take;
        taken
    }

    /// Gives up to `most` handles of what is free back to offline; says how many.
    fn restore(&mut self, most: u64, pool: &mut Pool) -> u64 {
        let bytes = self.free().min(most.saturating_mul(HANDLE_BYTES));
        self.stripes.restore(bytes, pool)
    }

    /// Online uses, or is about to use, so many bytes.
    fn settle(&mut self, uses: u64, now: u64, pool: &mut Pool) {
        self.arrive(now);
        let before = self.reserve.reservation().0;
        let change = self.reserve.settle(Bytes(uses), Instant::from_nanos(now));
        let wanted = self.reserve.reservation().0;
        if wanted > before || uses > self.mapped + self.on_its_way() {
            self.grow(wanted.max(uses), uses, now, pool);
        } else if change.is_some() {
            self.shrink(wanted);
        }
    }

    fn shrink(&mut self, bytes: u64) {
        let mut excess = (self.mapped + self.on_its_way()).saturating_sub(bytes) / HANDLE_BYTES;
        while let Some(last) = self.coming.back_mut().filter(|_| excess > 0) {
            let cut = last.handles.min(excess);
            last.handles -= cut;
            excess -= cut;
            if last.handles > 0 {
                break;
            }
            self.coming.pop_back();
        }
        self.mapped -= (excess * HANDLE_BYTES).min(self.mapped);
    }
}

impl Policy for Tidegate {
    fn online_wants(&mut self, wants: Wants, now: u64, pool: &mut Pool) -> u64 {
        self.begin(pool);
        self.settle(wants.all, now, pool);
        // What is not mapped yet is not granted: prompts beyond it wait for a later iteration.
        pool.limit_online(self.mapped.max(wants.least));
        self.mapped_at(wants.least, now) - now
    }

    fn online_done(&mut self, now: u64, pool: &mut Pool) {
        self.begin(pool);
        let used = pool.online_used();
        self.settle(used, now, pool);
        if pool.gated && self.settled <= now {
            // In the shadow of the closed gate.
            let handles = self.restore(self.batch, pool);
            self.settled = now + handles * (self.back + self.map);
        }
    }

    fn offline_wants(&mut self, now: u64, pool: &mut Pool) -> u64 {
        self.begin(pool);
        if now < self.restored + RESTORE_INTERVAL || self.free() < self.stripes.bytes() {
            return 0;
        }
        self.restored = now;
        match self.restore(u64::MAX, pool) {
            0 => 0,
            handles => self.gate + handles * self.back,
        }
    }

    fn next(&self) -> u64 {
        self.reserve.due().map_or(NEVER, Instant::as_nanos)
    }

    fn due(&mut self, now: u64, pool: &mut Pool) {
        let used = pool.online_used();
        self.settle(used, now, pool);
    }

    fn gate(&mut self, opens: bool, now: u64, _pool: &mut Pool) -> u64 {
        if opens {
            self.settled.saturating_sub(now)
        } else {
            0
        }
    }
}
