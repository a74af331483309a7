//! Whose turn is it? Offline jobs that share GPUs run one after the other, by weight.
//!
//! Jobs that share a GPU, directly or through others, form a *component*. Alone in it, a job is never held here.
//! Otherwise at most one job has each GPU at a time, and a gang has all of its GPUs or none.
//!
//! ```text
//!   a job is active   it wants to run, the gates of all its GPUs are open, nothing else holds it
//!   v += run time x (sum of w of its user's active jobs there) / (W of the user x w)      virtual time
//!   at every step: active jobs by (class, v at the start of an unfinished turn, else v), each takes its GPUs
//!                  if none of them is taken; so who chose keeps them until its turn is over
//!   a turn is over after `turn` of run time, or once its job wants nothing more
//! ```
//!
//! What a busy edge cut short keeps its turn. A job that was not active comes back as far behind the others as it was
//! when it left, and no further: time in which it did not run because it wanted nothing, or because its gates were
//! shut, is no credit. The class `idle` runs only where nobody else wants to.
//!
//! Bound: of two active jobs with the same GPUs, v differs by at most one turn of each. The job with the least v
//! chooses first, so it runs, and none that ran began its turn ahead of another that could have had its GPUs. Jobs with
//! other GPUs of the component may meanwhile run on GPUs that a gang cannot use. That is no debt: their v is held
//! within a turn of the component's least, all of those with the same GPUs moved alike.
//!
//! Where the operator asked for timeslices and all of a component can have them, its jobs run at once instead
//! ([`at_once`]): they have no turns, and v stands still.
//!
//! A turn is handed over by two orders: the next job is let go only once every channel of the last is known to be
//! disabled. A job that was given up (`Unmanaged`) is not waited for: its launch gate is all there is to close.
//!
//! One component of the node hands over at a time: an edge cannot take back a call that the driver is in, and without the
//! driver's patch the calls of all GPUs wait for one lock. (Of one job on many GPUs the shell enables one at a time.) A turn
//! whose end comes meanwhile goes on, by [`STAYS`] at most, and its job pays for that as for the rest.

mod account;
mod at_once;
mod slices;
mod users;
mod waits;

use crate::config::{Fair as Rules, FairMode};
use crate::effect::Effect;
use crate::ids::{GpuId, GpuSet, JobId, MAX_GPUS, UserId};
use crate::time::{Instant, nanos};
pub use crate::words::terms::{Class, Gives, Lacks, Terms, UserShare};
pub(crate) use account::Claim;
use account::{Account, UNITS};
use core::time::Duration;
pub(crate) use slices::Groups;
pub use slices::{LONGEST, RESTS, SETTLES, SHORTEST, USUAL};
use users::Users;
pub use waits::{WAITS_NS, Waits};

/// How long a job must have no work before its turn is over: host work between two kernels of a step is shorter.
pub const GRACE: Duration = Duration::from_millis(10);
/// Time that enabling may take before the job pays for it: one whose enables fail must not keep the turn for nothing.
const ENTRY: u64 = 5_000_000;
/// By how much a turn may grow while another component hands over: seven other GPUs at two calls of 0.2 ms and their
/// answers, which is what a call takes where eight GPUs' calls wait for one lock (docs/results/2026-11-27-edges.md).
pub const STAYS: Duration = Duration::from_millis(5);

/// The least v of each group of active jobs, and of each component by class.
#[derive(Clone, Debug, Default)]
struct Least {
    groups: Vec<((u8, Class, GpuSet), u128, u128)>,
    components: Vec<((u8, Class), u128)>,
}

impl Least {
    fn of(&mut self, accounts: &[Account], turn: u64, counts: impl Fn(&Account) -> bool) {
        self.groups.clear();
        self.components.clear();
        for account in accounts.iter().filter(|account| counts(account)) {
            let span = u128::from(turn) * account.rate;
            match self.groups.iter_mut().find(|g| g.0 == account.group()) {
                Some(group) => {
                    group.1 = group.1.min(account.v);
                    group.2 = group.2.min(span);
                }
                None => self.groups.push((account.group(), account.v, span)),
            }
            let key = (account.component, account.class);
            match self.components.iter_mut().find(|c| c.0 == key) {
                Some(component) => component.1 = component.1.min(account.v),
                None => self.components.push((key, account.v)),
            }
        }
    }

    fn group(&self, account: &Account) -> Option<(u128, u128)> {
        let found = self.groups.iter().find(|g| g.0 == account.group());
        found.map(|group| (group.1, group.2))
    }

    fn component(&self, account: &Account) -> Option<u128> {
        let key = (account.component, account.class);
        let found = self.components.iter().find(|c| c.0 == key);
        found.map(|component| component.1)
    }
}

fn clock(clocks: &[((u8, Class), u128)], account: &Account) -> u128 {
    let key = (account.component, account.class);
    let found = clocks.iter().find(|clock| clock.0 == key);
    found.map_or(0, |clock| clock.1)
}

/// What a job of several on its GPUs has, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ShareView {
    /// It shares a GPU with another job.
    pub shares: bool,
    /// It wants to run, as far as is known.
    pub wants: bool,
    /// It has the turn, which lasts so much longer at most.
    pub left: Option<Duration>,
    /// Part of the time of its GPUs that it deserves beside the jobs that want them now.
    pub deserved: f64,
    /// Part that it got of the time in which it could run.
    pub got: f64,
    /// Turns it began.
    pub turns: u64,
    /// It waits for this job to have had its turn.
    pub behind: Option<JobId>,
    /// It runs at once with the others, by timeslices.
    pub sliced: bool,
    /// What each of its groups was given, where it is not what the driver gives.
    pub slice: Option<Duration>,
    /// Timeslices were asked for: the job for whose sake its component takes turns, and why.
    pub lacks: Option<(JobId, Lacks)>,
}

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
        self.accounts.get(place).is_none_or(|account| account.may)
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
                .filter(|a| a.active)
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
        self.least.of(&self.accounts, 0, |account| account.active);
        for at in 0..self.accounts.len() {
            let account = &mut self.accounts[at];
            if account.enters {
                account.entering = account.entering.saturating_add(span);
            }
            if account.active && !account.may {
                account.waited = account.waited.saturating_add(span);
            }
            if !account.charged {
                continue;
            }
            if account.sliced {
                // The GPU divides its time; it is not asked how.
                let part = (u128::from(span) * u128::from(account.portion)) >> UNITS;
                let part = u64::try_from(part).unwrap_or(span);
                account.got += part;
                self.users
                    .charge(account.terms.user, account.component, part, 1, now);
                continue;
            }
            let paid = u128::from(span) * account.rate;
            account.v += paid;
            account.got += span;
            if account.held {
                account.used = account.used.saturating_add(span);
                account.paid += paid;
            }
            let gpus = u64::from(account.gpus.len());
            self.users
                .charge(account.terms.user, account.component, span, gpus, now);
        }
        core::mem::swap(&mut self.least.components, &mut self.before);
        self.least.of(&self.accounts, 0, |account| account.active);
        for ((key, from), (_, to)) in self.before.iter().zip(&self.least.components) {
            match self.clocks.iter_mut().find(|clock| clock.0 == *key) {
                Some(clock) => clock.1 += to - from,
                None => self.clocks.push((*key, *to)),
            }
        }
        for account in self.accounts.iter_mut().filter(|a| a.active) {
            account.time = account.time.saturating_add(span);
            let due = (u128::from(span) * u128::from(account.portion)) >> UNITS;
            account.due = account
                .due
                .saturating_add(u64::try_from(due).unwrap_or(u64::MAX));
        }
    }

    /// How far each active job is behind, should it leave now.
    fn note_lags(&mut self, turn: u64) {
        self.least
            .of(&self.accounts, turn, |account| account.active);
        for account in self.accounts.iter_mut().filter(|a| a.active) {
            let least = self.least.group(account).map_or(account.v, |group| group.0);
            account.lag = account.v - least;
            let clock = clock(&self.clocks, account);
            account.ahead = account.v.saturating_sub(clock);
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
                account.active = false;
            }
            (account.gpus, account.terms) = (claim.gpus, claim.terms);
            account.open = claim.open;
            account.idle_since = match (claim.wants, account.idle_since) {
                (true, _) => None,
                // Without a GPU it has done nothing that might go on.
                (false, None) if account.gpus.is_empty() => Some(Instant::default()),
                (false, since) => Some(since.unwrap_or(now)),
            };
            account.wants = account
                .idle_since
                .is_none_or(|since| now < since.after(GRACE));
            if !account.wants {
                account.waited = 0;
                account.end_turn();
            }
            if !account.held {
                account.over = self.users.is_over(claim.terms, now);
            }
            let class = if account.over {
                Class::Idle
            } else {
                claim.terms.class
            };
            if core::mem::replace(&mut account.class, class) != class {
                (account.active, account.lag, account.ahead) = (false, 0, 0);
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
                account.active = false;
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
        for account in self.accounts.iter().filter(|a| a.wants && a.open) {
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
            account.rate = (sum << UNITS) / weight;
        }
    }

    /// Who became active takes its place among those that were.
    fn join(&mut self, turn: u64) {
        let stays = |a: &Account| a.active && a.shares && a.wants && a.open;
        self.least.of(&self.accounts, turn, stays);
        for account in &mut self.accounts {
            let active = account.shares && account.wants && account.open;
            let joins = active && !account.active;
            account.active = active;
            if !joins {
                continue;
            }
            let span = u128::from(turn) * account.rate;
            let away = clock(&self.clocks, account) + account.ahead;
            account.v = match (self.least.group(account), self.least.component(account)) {
                (Some((least, _)), _) => least + account.lag.min(span),
                (None, Some(least)) => away.clamp(least.saturating_sub(span), least + span),
                (None, None) => away,
            };
            account.paid = account.paid.min(account.v);
        }
    }

    /// What ran on GPUs that others of the component could not use is no debt.
    fn hold_within_reach(&mut self, turn: u64) {
        self.least
            .of(&self.accounts, turn, |account| account.active);
        for account in self.accounts.iter_mut().filter(|a| a.active) {
            let (Some((least, span)), Some(all)) =
                (self.least.group(account), self.least.component(account))
            else {
                continue;
            };
            account.v -= least.saturating_sub(all + span);
        }
    }

    /// Which turns go on beyond their end, because another component hands over.
    fn stagger(&mut self, turn: u64, claims: &[Claim]) {
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
    fn choose(&mut self, turn: u64, claims: &[Claim]) {
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

    /// What each deserves among those that want its GPUs.
    fn apportion(&mut self) {
        let weight = |a: &Account| (1u128 << (2 * UNITS)) / a.rate.max(1);
        for at in 0..self.accounts.len() {
            let own = self.accounts[at];
            let rivals = self.accounts.iter().filter(|a| {
                a.active && a.class == own.class && !a.gpus.intersection(own.gpus).is_empty()
            });
            let sum: u128 = rivals.map(weight).sum();
            let portion = (weight(&own) << UNITS).checked_div(sum).unwrap_or(0);
            self.accounts[at].portion = u64::try_from(portion).unwrap_or(0);
        }
    }

    fn soonest(&self, turn: u64, now: Instant) -> Option<Instant> {
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

    /// For people.
    pub fn view(&self, job: JobId, rules: Rules, now: Instant) -> ShareView {
        let Some(own) = self.accounts.iter().find(|account| account.job == job) else {
            return ShareView::default();
        };
        let since = if own.charged {
            nanos(now.since(self.at))
        } else {
            0
        };
        let part = |of: u64| {
            if own.time == 0 {
                0.0
            } else {
                of as f64 / own.time as f64
            }
        };
        let left = nanos(rules.turn).saturating_sub(own.used.saturating_add(since));
        let before =
            |a: &&Account| a.may && a.job != job && !a.gpus.intersection(own.gpus).is_empty();
        ShareView {
            shares: own.shares,
            wants: own.wants,
            left: (own.held && own.may && own.shares).then(|| Duration::from_nanos(left)),
            deserved: part(own.due),
            got: part(own.got.min(own.time)),
            turns: own.turns,
            behind: self
                .accounts
                .iter()
                .find(before)
                .filter(|_| !own.may)
                .map(|a| a.job),
            sliced: own.sliced,
            slice: own.slices.given.slice(),
            lacks: self
                .accounts
                .iter()
                .filter(|a| own.shares && a.component == own.component)
                .find_map(|a| Some((a.job, a.slices.said?)))
                .filter(|_| rules.mode == FairMode::Slices),
        }
    }
}
