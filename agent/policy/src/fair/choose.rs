//! Who has which GPU in this step, and until when.

use super::account::{Account, Claim};
use super::{Fair, GRACE, STAYS};
use crate::ids::{GpuId, GpuSet, MAX_GPUS};
use crate::time::{Instant, nanos};
use core::time::Duration;

/// Time that enabling may take before the job pays for it: one whose enables fail must not keep the turn for nothing.
const ENTRY: u64 = 5_000_000;

impl Fair {
    /// Which turns go on beyond their end, because another component hands over.
    pub(super) fn stagger(&mut self, turn: u64, claims: &[Claim]) {
        let half_done = |(a, claim): (&Account, &Claim)| {
            // Who gives way is on yet, who has the turn next waits for that, or is being enabled.
            let half = if a.may {
                !claim.whole
            } else {
                claim.on || a.held
            };
            (a.active && !a.sliced && half).then_some(a.component)
        };
        let accounts = &self.accounts;
        let under_way = accounts.iter().zip(claims).find_map(half_done);
        let over = accounts.iter().filter(|a| self.gives_way(a, turn));
        let latest = || over.max_by_key(|a| a.used).map(|a| a.component);
        let hands_over = under_way.or_else(latest);
        let most = turn.saturating_add(nanos(STAYS));
        for at in 0..self.accounts.len() {
            let account = &self.accounts[at];
            let waits = hands_over.is_some_and(|other| other != account.component);
            let stays = waits && account.used < most && self.gives_way(account, turn);
            self.accounts[at].stays = stays;
        }
    }

    /// Its turn is over and another's comes. Who is still the furthest behind begins its next, and hands nothing over.
    fn gives_way(&self, own: &Account, turn: u64) -> bool {
        let goes_first = |a: &Account| {
            let rival = a.active && !a.may && a.component == own.component;
            rival && (a.class, a.v) <= (own.class, own.v)
        };
        let over = own.active && own.may && own.held && own.used >= turn;
        over && self.accounts.iter().any(goes_first)
    }

    /// Those that choose take their GPUs, who is behind first. Then those that want nothing, so that they lose no time
    /// once they do, then those that are shut out, of which one may breathe.
    pub(super) fn choose(&mut self, turn: u64, claims: &[Claim]) {
        let accounts = &mut self.accounts;
        let mut order = core::mem::take(&mut self.order);
        order.clear();
        order.extend((0..accounts.len()).filter(|&at| accounts[at].shares && !accounts[at].sliced));
        order.sort_unstable_by_key(|&at| {
            let a = &accounts[at];
            let goes_on = if a.held {
                a.in_turn(turn)
            } else {
                claims[at].runs
            };
            (a.rank(), a.class, a.key(turn), !goes_on, a.last, at)
        });
        let mut on = [0u32; MAX_GPUS];
        for claim in claims.iter().filter(|claim| claim.on) {
            claim.gpus.iter().for_each(|gpu| on[gpu.index()] += 1);
        }
        let mut taken = GpuSet::EMPTY;
        for &at in &order {
            let account = &mut accounts[at];
            let chosen = account.gpus.intersection(taken).is_empty();
            if chosen {
                taken = taken.union(account.gpus);
            }
            if account.active && chosen && !account.in_turn(turn) {
                self.turns += 1;
                account.end_turn();
                (account.held, account.last) = (true, self.turns);
                account.turns += 1;
                self.waits.add(core::mem::take(&mut account.waited));
            } else if account.active && !chosen {
                account.end_turn();
            }
            let beside = |gpu: GpuId| on[gpu.index()] > u32::from(claims[at].on);
            let goes_on = account.may && claims[at].runs;
            account.may = chosen && (goes_on || !account.gpus.iter().any(beside));
            account.enters = account.active && account.may && !claims[at].whole;
            if !account.enters {
                account.entering = 0;
            }
            // Until its disable has returned, a job that is to give way runs.
            let runs = claims[at].whole && (account.may || claims[at].on);
            let pays = runs || account.enters && account.entering >= ENTRY;
            account.charged = account.active && pays;
        }
        self.order = order;
    }

    pub(super) fn soonest(&self, turn: u64, now: Instant) -> Option<Instant> {
        let waits = |runs: &Account| {
            // Who is idle only because of its user may not be any more by the end of the turn.
            let rival = |a: &Account| {
                a.active && !a.may && a.component == runs.component && a.terms.class <= runs.class
            };
            self.accounts.iter().any(rival)
        };
        let turns = self
            .accounts
            .iter()
            .filter(|a| a.active && a.may && a.held && waits(a));
        let longest = |a: &Account| if a.stays { nanos(STAYS) } else { 0 };
        let ends = turns.map(|a| {
            let end = turn.saturating_add(longest(a));
            now.after(Duration::from_nanos(end.saturating_sub(a.used)))
        });
        let graces = self.accounts.iter().filter(|a| a.shares && a.wants);
        let graces = graces.filter_map(|a| a.idle_since.map(|since| since.after(GRACE)));
        let enter = self
            .accounts
            .iter()
            .filter(|a| a.enters && a.entering < ENTRY);
        let enter = enter.map(|a| now.after(Duration::from_nanos(ENTRY - a.entering)));
        // Who gives way pays until its disable has returned, but not for an agent that is stopped before that.
        let leaves = self.accounts.iter().filter(|a| a.charged && !a.may);
        let leaves = leaves.map(|_| now.after(Duration::from_nanos(turn)));
        let all = ends.chain(graces).chain(enter).chain(leaves);
        all.filter(|at| *at > now).min()
    }
}
