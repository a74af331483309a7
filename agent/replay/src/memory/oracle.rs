//! What a policy gets that knows the future and pays what everybody pays.
//!
//! It knows when online will use how much memory, from its run alone, and obeys what a real policy
//! obeys: online finds mapped what it needs at each launch and never waits; a handle is taken and
//! given in whole stripes and in the time that [`Costs`](crate::costs::Costs) says; a request that
//! loses a block computes it again, and stripes are chosen by the agent's own rule. What is not
//! mapped by a launch has to be on its way early enough, one handle after the other.
//!
//! ```text
//!   lends     during an idle time, what is not needed at the end of it
//!   keeps(h)  back what online will need before it has been idle for h more; from who holds no
//!             block there ahead of time, from the others when it must
//! ```
//!
//! How far to look ahead is a trade that the future alone does not settle: memory lent for a moment
//! is lost again with the tokens in it. So a replay is run with each of [`HORIZONS`] and the best
//! in hindsight counts; each of them is a policy within the bounds, so their best is no more than
//! the true limit, and at most [`Memory::Bound`](crate::spec::Memory::Bound) away from it.

use std::collections::VecDeque;

use super::policy::{NEVER, Policy};
use super::pool::{Pool, Wants, whole};
use super::stripes::{Stripes, Taken};
use crate::costs::HANDLE_BYTES;
use crate::plan::{Alone, Demand};
use crate::spec::Spec;

/// How far the oracle looks ahead, in ns of online's idle time; `None` lends.
pub const HORIZONS: [Option<u64>; 6] = [
    None,
    Some(0),
    Some(1_000_000_000),
    Some(4_000_000_000),
    Some(16_000_000_000),
    Some(NEVER),
];
/// Idle times shorter than this are not looked at: nothing can move in them.
const SHORT: u64 = 10_000_000;
/// Between two moves of memory that offline's running time pays for.
const INTERVAL: u64 = 1_000_000_000;

#[derive(Debug)]
pub(super) struct Oracle {
    steps: Vec<Step>,
    /// The first step that is not over.
    at: usize,
    horizon: Option<u64>,
    pool: u64,
    stripes: Stripes,
    /// When offline's side of the last move is done.
    settled: u64,
    looked: u64,
    due: u64,
    /// Owed by offline's next iteration, ns.
    owed: u64,
    batch: u64,
    take: u64,
    map: u64,
    back: u64,
    gate: u64,
}

/// A launch of online.
#[derive(Clone, Copy, Debug)]
struct Step {
    at: u64,
    bytes: u64,
    /// What has to be mapped by then so that later launches find theirs.
    lead: u64,
    /// Most that is needed within the horizon.
    need: u64,
}

impl Oracle {
    pub fn new(spec: &Spec, alone: Option<&Alone>, horizon: Option<u64>, stripe: u64) -> Self {
        let costs = &spec.costs;
        let ns = |span: std::time::Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let map = ns(costs.create_handle + costs.map_handle).max(1);
        let demand = alone.map_or(&[][..], |alone| &alone.demand);
        Self {
            steps: steps(demand, horizon.unwrap_or(0), map),
            at: 0,
            horizon,
            pool: spec.kv_pool_bytes,
            stripes: Stripes::new(stripe),
            settled: 0,
            looked: 0,
            due: NEVER,
            owed: 0,
            batch: tidegate_policy::config::Sharing::default().batch.0,
            take: ns(costs.quarantine_handle + costs.release_handle),
            map,
            back: ns(costs.quarantine_handle),
            gate: ns(costs.disable_save + costs.enable_restore),
        }
    }

    fn step(&mut self, now: u64) -> Option<Step> {
        while self.steps.get(self.at).is_some_and(|step| step.at < now) {
            self.at += 1;
        }
        self.steps.get(self.at).copied()
    }

    /// What is kept from offline now.
    fn keeps(&mut self, now: u64) -> u64 {
        let Some(step) = self.step(now) else { return 0 };
        let left = step.at - now;
        let keeps = if self.horizon.is_none() && left > SHORT {
            step.lead.saturating_sub(left / self.map * HANDLE_BYTES)
        } else {
            step.need.max(step.lead)
        };
        keeps.min(self.pool)
    }

    /// Takes what offline has beyond `kept`.
    fn take(&mut self, kept: u64, pool: &mut Pool) -> Taken {
        let excess = (self.stripes.backed() + kept).saturating_sub(self.pool);
        self.stripes.take(excess, pool)
    }

    fn restore(&mut self, most: u64, now: u64, pool: &mut Pool) -> u64 {
        let used = pool.online_used();
        let kept = self.keeps(now).max(used) + self.stripes.backed();
        let free = self.pool.saturating_sub(kept);
        self.stripes.restore(free.min(most), pool)
    }

    /// When to take what the end of this idle time needs.
    fn plan(&mut self, now: u64) {
        self.due = NEVER;
        if let Some(step) = self.step(now).filter(|_| self.horizon.is_none()) {
            let excess = (self.stripes.backed() + step.lead).saturating_sub(self.pool);
            if excess > 0 {
                let handles = |bytes: u64| bytes.div_ceil(HANDLE_BYTES);
                let takes = handles(excess) * self.take + handles(step.lead) * self.map + self.gate;
                self.due = step.at.saturating_sub(takes).max(now + 1);
            }
        }
    }
}

/// `need` and `lead` of each launch.
fn steps(demand: &[Demand], horizon: u64, map: u64) -> Vec<Step> {
    let mut steps: Vec<Step> = demand
        .iter()
        .map(|demand| Step {
            at: demand.at,
            bytes: demand.bytes,
            lead: demand.bytes,
            need: demand.bytes,
        })
        .collect();
    for place in (1..steps.len()).rev() {
        let next = steps[place];
        let mapped = (next.at - steps[place - 1].at) / map * HANDLE_BYTES;
        let lead = &mut steps[place - 1].lead;
        *lead = (*lead).max(next.lead.saturating_sub(mapped));
    }
    // The greatest demand of a window that slides from the last launch to the first.
    let mut greatest: VecDeque<usize> = VecDeque::new();
    for place in (0..demand.len()).rev() {
        let until = demand[place].idle.saturating_add(horizon);
        while greatest
            .back()
            .is_some_and(|known| demand[*known].bytes <= demand[place].bytes)
        {
            greatest.pop_back();
        }
        greatest.push_back(place);
        while greatest
            .front()
            .is_some_and(|known| demand[*known].idle > until)
        {
            greatest.pop_front();
        }
        if let Some(first) = greatest.front() {
            steps[place].need = demand[*first].bytes;
        }
    }
    steps
}

impl Policy for Oracle {
    fn online_wants(&mut self, wants: Wants, now: u64, pool: &mut Pool) -> u64 {
        self.stripes.begin(self.pool, pool);
        let step = self.step(now);
        let known = step.filter(|step| step.at == now);
        let kept = known.map_or(wants.all, |step| step.bytes.max(step.lead));
        self.due = NEVER;
        self.take(kept.max(wants.least).min(self.pool), pool);
        pool.limit_online(self.pool.saturating_sub(self.stripes.backed()));
        0
    }

    fn online_done(&mut self, now: u64, pool: &mut Pool) {
        self.stripes.begin(self.pool, pool);
        if pool.gated && self.settled <= now {
            let handles = self.restore(self.batch, now, pool);
            self.settled = now + handles * (self.back + self.map);
        }
    }

    fn offline_wants(&mut self, now: u64, pool: &mut Pool) -> u64 {
        self.stripes.begin(self.pool, pool);
        let owed = core::mem::take(&mut self.owed);
        if now < self.looked + INTERVAL {
            return owed;
        }
        self.looked = now;
        let kept = self.keeps(now);
        let excess = (self.stripes.backed() + kept).saturating_sub(self.pool);
        self.stripes.take_unheld(excess, pool);
        let given = match self.restore(u64::MAX, now, pool) {
            0 => 0,
            handles => self.gate + handles * self.back,
        };
        self.plan(now);
        owed + given
    }

    fn next(&self) -> u64 {
        self.due
    }

    fn due(&mut self, now: u64, pool: &mut Pool) {
        if now < self.due || pool.gated {
            return;
        }
        self.due = NEVER;
        if let Some(step) = self.step(now) {
            let taken = self.take(whole(step.lead).min(self.pool), pool);
            if taken.handles > 0 {
                self.owed += self.gate + taken.handles * self.take;
            }
        }
    }

    fn gate(&mut self, opens: bool, now: u64, pool: &mut Pool) -> u64 {
        if !opens {
            return 0;
        }
        self.stripes.begin(self.pool, pool);
        self.plan(now);
        self.settled.saturating_sub(now)
    }
}
