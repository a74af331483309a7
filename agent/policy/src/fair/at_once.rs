//! Which components run at once by timeslices, which timeslice each job gets, and why other components take turns.

use super::account::{Account, Claim};
use super::slices::{RESTS, Stands, slice};
use crate::effect::{Effect, Report};
use crate::time::Instant;
use crate::words::terms::{Class, Lacks};

/// Finds the components that can run at once, if they are to, and orders the timeslices that are lacking. Claims are in
/// the order of the accounts.
pub(super) fn arrange(
    accounts: &mut [Account],
    claims: &[Claim],
    wanted: bool,
    now: Instant,
    out: &mut Vec<Effect>,
) {
    for at in 0..accounts.len() {
        let own = &accounts[at];
        let sliced = wanted && own.shares && why_not(accounts, claims, own.component).is_none();
        accounts[at].sliced = sliced;
    }
    if wanted {
        divide(accounts, claims, now);
        look_at_weights(accounts);
        tell(accounts, claims, out);
    }
    for at in 0..accounts.len() {
        let stands = stands(accounts, at, claims[at], wanted);
        let account = &mut accounts[at];
        if account.slices.want(stands, !wanted, now) {
            let (job, slice) = (account.job, stands.slice());
            let orders = account.gpus.iter();
            out.extend(orders.map(|gpu| Effect::Timeslice { job, gpu, slice }));
        }
    }
}

/// The job that keeps a component from running at once, and how.
pub(super) fn why_not(
    accounts: &[Account],
    claims: &[Claim],
    component: u8,
) -> Option<(usize, Lacks)> {
    let own = || {
        let all = accounts.iter().zip(claims).enumerate();
        all.filter(|(_, (account, _))| account.shares && account.component == component)
    };
    let gang = own().find(|(_, (account, _))| account.gpus.len() > 1);
    if let Some((at, _)) = gang {
        return Some((at, Lacks::Gang));
    }
    own().find_map(|(at, (account, claim))| {
        let refused = account.slices.refused.map(Lacks::Refused);
        Some((at, refused.or(claim.groups.lacks)?))
    })
}

fn rests(account: &Account, claim: &Claim, now: Instant) -> bool {
    claim.groups.paused
        || account
            .work
            .idle_since
            .is_some_and(|since| now >= since.after(RESTS))
}

/// What each group is worth: the weight of a user is divided among its jobs of the same class that do not rest.
fn divide(accounts: &mut [Account], claims: &[Claim], now: Instant) {
    for at in 0..accounts.len() {
        let own = &accounts[at];
        if !own.sliced {
            continue;
        }
        let terms = own.terms;
        let beside = accounts.iter().zip(claims).enumerate();
        let beside = beside.filter(|(other, (account, claim))| {
            let same = account.sliced
                && account.component == own.component
                && account.class == own.class
                && account.terms.user == terms.user;
            *other == at || (same && !rests(account, claim, now))
        });
        let sum: u128 = beside
            .map(|(_, (account, _))| u128::from(account.terms.weight.max(1)))
            .sum();
        let weight = u128::from(terms.user_weight.max(1)) * u128::from(terms.weight.max(1));
        let groups = u128::from(claims[at].groups.count.max(1));
        accounts[at].slices.unit = (weight << 64) / (sum * groups);
    }
}

/// The least and the most that a group of those beside a job is worth; `None`: nobody is beside it.
fn beside(accounts: &[Account], at: usize) -> Option<(u128, u128)> {
    let own = &accounts[at];
    let same = |other: &&Account| {
        other.sliced && other.component == own.component && other.class == own.class
    };
    let units = || accounts.iter().filter(same).map(|other| other.slices.unit);
    let several = units().nth(1).is_some();
    units().min().zip(units().max()).filter(|_| several)
}

/// Components whose weights lie too far apart take turns.
fn look_at_weights(accounts: &mut [Account]) {
    for at in 0..accounts.len() {
        let own = &accounts[at];
        let far =
            own.sliced && beside(accounts, at).is_some_and(|range| slice(range.0, range).is_none());
        if far {
            let component = own.component;
            let all = accounts
                .iter_mut()
                .filter(|other| other.component == component);
            all.for_each(|other| other.sliced = false);
        }
    }
}

/// Tells people once why a component takes turns.
fn tell(accounts: &mut [Account], claims: &[Claim], out: &mut Vec<Effect>) {
    for at in 0..accounts.len() {
        let own = &accounts[at];
        let why = if own.shares && !own.sliced {
            let lacks = why_not(accounts, claims, own.component).unwrap_or((at, Lacks::Weights));
            (lacks.0 == at).then_some(lacks.1)
        } else {
            None
        };
        let job = own.job;
        if core::mem::replace(&mut accounts[at].slices.said, why) != why
            && let Some(lacks) = why
        {
            out.push(Effect::Emit(Report::TurnsInstead { job, lacks }));
        }
    }
}

fn stands(accounts: &[Account], at: usize, claim: Claim, wanted: bool) -> Stands {
    let (own, groups) = (&accounts[at], claim.groups);
    let range = beside(accounts, at).filter(|_| wanted && own.sliced && groups.count > 0);
    let slice = range.and_then(|range| slice(own.slices.unit, range));
    let version = groups.version;
    match (slice, own.slices.given) {
        (Some(slice), _) => Stands::Own { slice, version },
        (None, Stands::Driver { version }) if !wanted => Stands::Driver { version },
        (None, _) if wanted && groups.inherited => Stands::Driver { version },
        (None, _) => Stands::default(),
    }
}

/// All of a component run but those of a class that gives way to another that wants to.
pub(super) fn run(accounts: &mut [Account], claims: &[Claim]) {
    for at in 0..accounts.len() {
        let own = &accounts[at];
        if !own.sliced {
            continue;
        }
        let active = accounts
            .iter()
            .filter(|a| a.sliced && a.state.active && a.component == own.component);
        let first = active.map(|a| a.class).min().unwrap_or(Class::Idle);
        let may = own.class <= first;
        let account = &mut accounts[at];
        account.end_turn();
        (account.state.may, account.entering, account.turn.waited) = (may, None, 0);
        account.state.charged = account.state.active && may && claims[at].whole;
    }
}

/// When time alone changes what is given.
pub(super) fn due<'a>(
    accounts: &'a [Account],
    claims: &'a [Claim],
) -> impl Iterator<Item = Instant> + 'a {
    accounts.iter().zip(claims).flat_map(|(account, claim)| {
        let rests = account.work.idle_since.map(|since| since.after(RESTS));
        let rests = [rests, claim.groups.rests_at].into_iter().flatten();
        let rests = rests.filter(|_| account.sliced);
        rests.chain(account.slices.due())
    })
}

/// The driver may take it from here on, as the operator sees it.
pub(super) fn forgive(accounts: &mut [Account]) {
    for account in accounts {
        (account.slices.refused, account.slices.said) = (None, None);
    }
}

/// Whether timeslices were asked for as of the last step, or are to be put back.
pub(super) fn stand(accounts: &[Account]) -> bool {
    let stands = |a: &Account| a.sliced || a.slices.given.slice().is_some();
    accounts.iter().any(stands)
}
