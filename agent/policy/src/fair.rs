//! Which of several offline jobs runs next. Jobs that share GPUs run one after the other, by weight.
//!
//! Jobs that share a GPU, directly or through other jobs, form a *component*. A job that is alone in its component is
//! never held back here. In any other component each GPU has at most one job at a time, and a gang has all of its GPUs
//! or none. A *turn* is the quantum of the glossary: the time for which a job keeps its GPUs.
//!
//! ```text
//!   a job is active   it wants to run, the gates of all its GPUs are open, nothing else holds it
//!   v += run time x (sum of w of its user's active jobs there) / (W of the user x w)      virtual time
//!   at every step: active jobs by (class, v at the start of an unfinished turn, else v), each takes its GPUs
//!                  if none of them is taken; it keeps them until its turn is over
//!   a turn is over after `turn` of run time, or once its job wants nothing more
//! ```
//!
//! A job that a busy edge stops keeps the rest of its turn. A job that becomes active again is as far behind the others
//! as it was when it stopped being active, and no further: it earns no credit while it wants nothing or while its gates
//! are shut. A job of class `idle` runs only where no other job wants to run.
//!
//! Bound: between two active jobs with the same GPUs, v differs by at most one turn of each. The job with the least v
//! chooses first, so it runs. No running job began its turn ahead of another job that could have had its GPUs. Jobs
//! with other GPUs of the component may meanwhile run on GPUs that a gang cannot use. They owe nothing for that: their
//! v is kept within a turn of the component's least v, by the same amount for all jobs with the same GPUs.
//!
//! If the operator asked for timeslices and every job of a component can have them, its jobs run at once instead
//! ([`at_once`]): they take no turns, and v does not change.
//!
//! A handover takes two orders: the next job is enabled only when every channel of the previous one is known to be
//! disabled. Nothing waits for a job that the agent has given up (`Unmanaged`): all that can be closed is its launch
//! gate.
//!
//! On a node, one component hands over at a time. An edge cannot take back a call that the driver has begun, and
//! without the driver patch the calls of all GPUs wait for one lock. (The shell enables a job on several GPUs one GPU
//! at a time.) A turn that ends during another component's handover goes on, by at most [`STAYS`], and its job pays for
//! that time too.

mod account;
mod at_once;
mod choose;
mod least;
mod slices;
mod users;
mod view;
mod waits;

use crate::config::{Fair as Rules, FairMode};
use crate::effect::Effect;
use crate::ids::{GpuId, GpuSet, JobId, MAX_GPUS, UserId};
use crate::time::{Instant, nanos};
pub use crate::words::terms::{Class, Gives, Lacks, Terms, UserShare};
pub(crate) use account::Claim;
use account::{Account, UNITS};
use core::time::Duration;
use least::{Least, clock};
pub(crate) use slices::Groups;
pub use slices::{LONGEST, RESTS, SETTLES, SHORTEST, USUAL};
use users::Users;
pub use view::ShareView;
pub use waits::{WAITS_NS, Waits};

/// How long a job must have no work before its turn is over: host work between two kernels of a step is shorter.
pub const GRACE: Duration = Duration::from_millis(10);
/// By how much a turn may grow while another component hands over: seven other GPUs at two calls of 0.2 ms and their
/// answers, which is what a call takes where eight GPUs' calls wait for one lock (docs/results/2026-11-27-edges.md).
pub const STAYS: Duration = Duration::from_millis(5);

/// The books of a node.
#[derive(Clone, Debug)]
pub(crate) struct Fair {
    accounts: Vec<Account>,
    users: Users,
    order: Vec<usize>,
    least: Least,
    /// Kept for its room.
    before: Vec<((u8, Class), u128)>,
    /// Of each component by class: goes on as the least v of its active jobs does, and stands still when the least
    /// leaves. What a job is ahead of it is kept while the job is away.
    clocks: Vec<((u8, Class), u128)>,
    sums: Vec<(UserId, GpuId, u64)>,
    /// Until when time is charged.
    at: Instant,
    turns: u64,
    waits: Waits,
    next: Option<Instant>,
}

impl Fair {
    pub fn new(now: Instant) -> Self {
        Self {
            accounts: Vec::new(),
            users: Users::default(),
            order: Vec::new(),
            least: Least::default(),
            before: Vec::new(),
            clocks: Vec::new(),
            sums: Vec::new(),
            at: now,
            turns: 0,
            waits: Waits::default(),
            next: None,
        }
    }

    /// Whether the job at this place of the claims may run.
    pub fn may(&self, place: usize) -> bool {
        self.accounts
            .get(place)
            .is_none_or(|account| account.state.may)
    }

    /// How long jobs waited for the turns that they began.
    pub const fn waits(&self) -> &Waits {
        &self.waits
    }

    /// Whether a job takes turns with others.
    pub fn shares(&self, job: JobId) -> bool {
        let mut own = self.accounts.iter().filter(|account| account.job == job);
        own.any(|account| account.shares)
    }

    /// Whether any job does.
    pub fn any_shares(&self) -> bool {
        self.accounts.iter().any(|account| account.shares)
    }

    /// When time alone changes something.
    pub fn deadline(&self) -> Option<Instant> {
        self.next
    }

    /// Decides from what holds now who may run.
    pub fn settle(&mut self, rules: Rules, claims: &[Claim], now: Instant, out: &mut Vec<Effect>) {
        let turn = nanos(rules.turn);
        if now > self.at {
            self.charge(turn, now);
            self.note_lags(turn);
        }
        self.follow(claims, now);
        self.next = None;
        let contested = rules.mode != FairMode::Together && claims.len() > 1 && self.link();
        if !contested {
            for account in &mut self.accounts {
                account.goes_free();
            }
        }
        let at_once = rules.mode == FairMode::Slices;
        if at_once || at_once::stand(&self.accounts) {
            at_once::arrange(&mut self.accounts, claims, at_once, now, out);
            self.next = at_once::due(&self.accounts, claims)
                .filter(|at| *at > now)
                .min();
        }
        if !contested {
            return;
        }
        self.weigh();
        self.join(turn);
        self.hold_within_reach(turn);
        self.stagger(turn, claims);
        self.choose(turn, claims);
        at_once::run(&mut self.accounts, claims);
        self.apportion();
        self.users.rival(
            self.accounts
                .iter()
                .filter(|a| a.state.active)
                .map(|a| (a.terms, a.component)),
        );
        self.note_lags(turn);
        self.next = self.next.into_iter().chain(self.soonest(turn, now)).min();
    }

    /// The driver refused to give a job its timeslices.
    pub fn refuse(&mut self, job: JobId, status: u32) {
        let mut own = self.accounts.iter_mut();
        if let Some(account) = own.find(|account| account.job == job) {
            account.slices.refused = Some(status);
        }
    }

    /// The operator changed something: what was refused is asked for again.
    pub fn configure(&mut self) {
        at_once::forgive(&mut self.accounts);
    }

    fn charge(&mut self, turn: u64, now: Instant) {
        // Late by more than a turn: the agent was stopped, and processes may have taken their channels back. Who had the
        // turn then is not the one who had the time.
        let late = self.next.map(|due| due.after(Duration::from_nanos(turn)));
        let until = late.map_or(now, |late| now.min(late)).max(self.at);
        let span = nanos(until.since(self.at));
        self.at = now;
        self.least
            .of(&self.accounts, 0, |account| account.state.active);
        for at in 0..self.accounts.len() {
            let account = &mut self.accounts[at];
            if let Some(ns) = &mut account.entering {
                *ns = ns.saturating_add(span);
            }
            if account.state.active && !account.state.may {
                account.turn.waited = account.turn.waited.saturating_add(span);
            }
            if !account.state.charged {
                continue;
            }
            if account.sliced {
                // The GPU divides its time; it is not asked how.
                let part = (u128::from(span) * u128::from(account.had.portion)) >> UNITS;
                let part = u64::try_from(part).unwrap_or(span);
                account.had.got += part;
                self.users
                    .charge(account.terms.user, account.component, part, 1, now);
                continue;
            }
            let paid = u128::from(span) * account.time.rate;
            account.time.v += paid;
            account.had.got += span;
            if account.turn.held {
                account.turn.used = account.turn.used.saturating_add(span);
                account.turn.paid += paid;
            }
            let gpus = u64::from(account.gpus.len());
            self.users
                .charge(account.terms.user, account.component, span, gpus, now);
        }
        core::mem::swap(&mut self.least.components, &mut self.before);
        self.least
            .of(&self.accounts, 0, |account| account.state.active);
        for ((key, from), (_, to)) in self.before.iter().zip(&self.least.components) {
            match self.clocks.iter_mut().find(|clock| clock.0 == *key) {
                Some(clock) => clock.1 += to - from,
                None => self.clocks.push((*key, *to)),
            }
        }
        for account in self.accounts.iter_mut().filter(|a| a.state.active) {
            account.had.time = account.had.time.saturating_add(span);
            let due = (u128::from(span) * u128::from(account.had.portion)) >> UNITS;
            account.had.due = account
                .had
                .due
                .saturating_add(u64::try_from(due).unwrap_or(u64::MAX));
        }
    }

    /// How far each active job is behind, should it leave now.
    fn note_lags(&mut self, turn: u64) {
        self.least
            .of(&self.accounts, turn, |account| account.state.active);
        for account in self.accounts.iter_mut().filter(|a| a.state.active) {
            let least = self
                .least
                .group(account)
                .map_or(account.time.v, |group| group.0);
            account.time.lag = account.time.v - least;
            let clock = clock(&self.clocks, account);
            account.time.ahead = account.time.v.saturating_sub(clock);
        }
    }

    /// The accounts become those of the claims, in their order.
    fn follow(&mut self, claims: &[Claim], now: Instant) {
        let same = self.accounts.len() == claims.len()
            && self
                .accounts
                .iter()
                .zip(claims)
                .all(|(a, c)| a.job == c.job);
        if !same {
            self.accounts
                .retain(|account| claims.iter().any(|c| c.job == account.job));
            for (at, claim) in claims.iter().enumerate() {
                match self.accounts.iter().position(|a| a.job == claim.job) {
                    Some(from) => self.accounts.swap(at, from),
                    None => self.accounts.insert(at, Account::new(claim)),
                }
            }
        }
        for (account, claim) in self.accounts.iter_mut().zip(claims) {
            if account.gpus != claim.gpus || account.terms.user != claim.terms.user {
                account.state.active = false;
            }
            (account.gpus, account.terms) = (claim.gpus, claim.terms);
            account.work.open = claim.open;
            account.work.idle_since = match (claim.wants, account.work.idle_since) {
                (true, _) => None,
                // Without a GPU it has done nothing that might go on.
                (false, None) if account.gpus.is_empty() => Some(Instant::default()),
                (false, since) => Some(since.unwrap_or(now)),
            };
            account.work.wants = account
                .work
                .idle_since
                .is_none_or(|since| now < since.after(GRACE));
            if !account.work.wants {
                account.turn.waited = 0;
                account.end_turn();
            }
            if !account.turn.held {
                account.over = self.users.is_over(claim.terms, now);
            }
            let class = if account.over {
                Class::Idle
            } else {
                claim.terms.class
            };
            if core::mem::replace(&mut account.class, class) != class {
                (account.state.active, account.time.lag, account.time.ahead) = (false, 0, 0);
            }
        }
    }

    /// Finds the components; says whether any has two jobs. A job alone in its own may always run.
    fn link(&mut self) -> bool {
        let mut joined = [GpuSet::EMPTY; MAX_GPUS];
        for account in &self.accounts {
            for gpu in account.gpus.iter() {
                joined[gpu.index()] = joined[gpu.index()].union(account.gpus);
            }
        }
        let mut grew = true;
        while grew {
            grew = false;
            for gpu in 0..MAX_GPUS {
                let all = joined[gpu]
                    .iter()
                    .fold(joined[gpu], |all, g| all.union(joined[g.index()]));
                grew |= core::mem::replace(&mut joined[gpu], all) != all;
            }
        }
        let mut jobs = [0u32; MAX_GPUS];
        for account in &mut self.accounts {
            let first = account.gpus.iter().next();
            let Some(of) = first.and_then(|gpu| joined[gpu.index()].iter().next()) else {
                continue;
            };
            if core::mem::replace(&mut account.component, of.0) != of.0 {
                account.state.active = false;
            }
            jobs[of.index()] += 1;
        }
        let mut contested = false;
        for account in &mut self.accounts {
            let others = !account.gpus.is_empty() && jobs[usize::from(account.component)] > 1;
            contested |= others;
            if !others {
                account.goes_free();
            }
            account.shares = others;
        }
        contested
    }

    /// What a nanosecond costs each job: the weight of a user is divided among its jobs that want the same GPUs.
    fn weigh(&mut self) {
        self.sums.clear();
        for account in self.accounts.iter().filter(|a| a.work.wants && a.work.open) {
            for gpu in account.gpus.iter() {
                let (user, weight) = (account.terms.user, u64::from(account.terms.weight));
                match self
                    .sums
                    .iter_mut()
                    .find(|sum| (sum.0, sum.1) == (user, gpu))
                {
                    Some(sum) => sum.2 += weight,
                    None => self.sums.push((user, gpu, weight)),
                }
            }
        }
        let sums = &self.sums;
        for account in &mut self.accounts {
            let terms = account.terms;
            let of_user = |gpu| {
                let found = sums.iter().find(|sum| (sum.0, sum.1) == (terms.user, gpu));
                found.map_or(0, |sum| sum.2)
            };
            let most = account.gpus.iter().map(of_user).max().unwrap_or(0);
            let sum = u128::from(most.max(u64::from(terms.weight)));
            let weight = u128::from(terms.user_weight.max(1)) * u128::from(terms.weight.max(1));
            account.time.rate = (sum << UNITS) / weight;
        }
    }

    /// Who became active takes its place among those that were.
    fn join(&mut self, turn: u64) {
        let stays = |a: &Account| a.state.active && a.shares && a.work.wants && a.work.open;
        self.least.of(&self.accounts, turn, stays);
        for account in &mut self.accounts {
            let active = account.shares && account.work.wants && account.work.open;
            let joins = active && !account.state.active;
            account.state.active = active;
            if !joins {
                continue;
            }
            let span = u128::from(turn) * account.time.rate;
            let away = clock(&self.clocks, account) + account.time.ahead;
            account.time.v = match (self.least.group(account), self.least.component(account)) {
                (Some((least, _)), _) => least + account.time.lag.min(span),
                (None, Some(least)) => away.clamp(least.saturating_sub(span), least + span),
                (None, None) => away,
            };
            account.turn.paid = account.turn.paid.min(account.time.v);
        }
    }

    /// What ran on GPUs that others of the component could not use is no debt.
    fn hold_within_reach(&mut self, turn: u64) {
        self.least
            .of(&self.accounts, turn, |account| account.state.active);
        for account in self.accounts.iter_mut().filter(|a| a.state.active) {
            let (Some((least, span)), Some(all)) =
                (self.least.group(account), self.least.component(account))
            else {
                continue;
            };
            account.time.v -= least.saturating_sub(all + span);
        }
    }

    /// What each deserves among those that want its GPUs.
    fn apportion(&mut self) {
        let weight = |a: &Account| (1u128 << (2 * UNITS)) / a.time.rate.max(1);
        for at in 0..self.accounts.len() {
            let own = self.accounts[at];
            let rivals = self.accounts.iter().filter(|a| {
                a.state.active && a.class == own.class && !a.gpus.intersection(own.gpus).is_empty()
            });
            let sum: u128 = rivals.map(weight).sum();
            let portion = (weight(&own) << UNITS).checked_div(sum).unwrap_or(0);
            self.accounts[at].had.portion = u64::try_from(portion).unwrap_or(0);
        }
    }
}
