//! Which job gets which GPU in this step, and until when.

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
            let half = if a.state.may {
                !claim.whole
            } else {
                claim.on || a.turn.held
            };
            (a.state.active && !a.sliced && half).then_some(a.component)
        };
        let accounts = &self.accounts;
        let under_way = accounts.iter().zip(claims).find_map(half_done);
        let over = accounts.iter().filter(|a| self.gives_way(a, turn));
        let latest = || over.max_by_key(|a| a.turn.used).map(|a| a.component);
        let hands_over = under_way.or_else(latest);
        let most = turn.saturating_add(nanos(STAYS));
        for at in 0..self.accounts.len() {
            let account = &self.accounts[at];
            let waits = hands_over.is_some_and(|other| other != account.component);
            let stays = waits && account.turn.used < most && self.gives_way(account, turn);
            self.accounts[at].turn.stays = stays;
        }
    }

    /// Its turn is over and another's comes. Who is still the furthest behind begins its next, and hands nothing over.
    fn gives_way(&self, own: &Account, turn: u64) -> bool {
        let goes_first = |a: &Account| {
            let rival = a.state.active && !a.state.may && a.component == own.component;
            rival && (a.class, a.time.v) <= (own.class, own.time.v)
        };
        let over = own.state.active && own.state.may && own.turn.held && own.turn.used >= turn;
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
            let goes_on = if a.turn.held {
                a.in_turn(turn)
            } else {
                claims[at].runs
            };
            (a.rank(), a.class, a.key(turn), !goes_on, a.turn.last, at)
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
            if account.state.active && chosen && !account.in_turn(turn) {
                self.turns += 1;
                account.end_turn();
                (account.turn.held, account.turn.last) = (true, self.turns);
                account.turn.count += 1;
                self.waits.add(core::mem::take(&mut account.turn.waited));
            } else if account.state.active && !chosen {
                account.end_turn();
            }
            let beside = |gpu: GpuId| on[gpu.index()] > u32::from(claims[at].on);
            let goes_on = account.state.may && claims[at].runs;
            account.state.may = chosen && (goes_on || !account.gpus.iter().any(beside));
            let enters = account.state.active && account.state.may && !claims[at].whole;
            account.entering = enters.then(|| account.entering.unwrap_or(0));
            // Until its disable has returned, a job that is to give way runs.
            let runs = claims[at].whole && (account.state.may || claims[at].on);
            let pays = runs || account.entering.is_some_and(|ns| ns >= ENTRY);
            account.state.charged = account.state.active && pays;
        }
        self.order = order;
    }

    pub(super) fn soonest(&self, turn: u64, now: Instant) -> Option<Instant> {
        let waits = |runs: &Account| {
            // Who is idle only because of its user may not be any more by the end of the turn.
            let rival = |a: &Account| {
                a.state.active
                    && !a.state.may
                    && a.component == runs.component
                    && a.terms.class <= runs.class
            };
            self.accounts.iter().any(rival)
        };
        let turns = self
            .accounts
            .iter()
            .filter(|a| a.state.active && a.state.may && a.turn.held && waits(a));
        let longest = |a: &Account| if a.turn.stays { nanos(STAYS) } else { 0 };
        let ends = turns.map(|a| {
            let end = turn.saturating_add(longest(a));
            now.after(Duration::from_nanos(end.saturating_sub(a.turn.used)))
        });
        let graces = self.accounts.iter().filter(|a| a.shares && a.work.wants);
        let graces = graces.filter_map(|a| a.work.idle_since.map(|since| since.after(GRACE)));
        let enter = self.accounts.iter().filter_map(|a| a.entering);
        let enter = enter.filter(|ns| *ns < ENTRY);
        let enter = enter.map(|ns| now.after(Duration::from_nanos(ENTRY - ns)));
        // Who gives way pays until its disable has returned, but not for an agent that is stopped before that.
        let leaves = self
            .accounts
            .iter()
            .filter(|a| a.state.charged && !a.state.may);
        let leaves = leaves.map(|_| now.after(Duration::from_nanos(turn)));
        let all = ends.chain(graces).chain(enter).chain(leaves);
        all.filter(|at| *at > now).min()
    }
}
