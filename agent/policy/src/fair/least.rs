//! Which job is furthest behind: the least v of each group and of each component.

use super::account::Account;
use crate::ids::GpuSet;
use crate::words::terms::Class;

/// The least v of each group of active jobs, and of each component by class.
#[derive(Clone, Debug, Default)]
pub(super) struct Least {
    groups: Vec<((u8, Class, GpuSet), u128, u128)>,
    pub(super) components: Vec<((u8, Class), u128)>,
}

impl Least {
    pub(super) fn of(
        &mut self,
        accounts: &[Account],
        turn: u64,
        counts: impl Fn(&Account) -> bool,
    ) {
        self.groups.clear();
        self.components.clear();
        for account in accounts.iter().filter(|account| counts(account)) {
            let span = u128::from(turn) * account.time.rate;
            match self.groups.iter_mut().find(|g| g.0 == account.group()) {
                Some(group) => {
                    group.1 = group.1.min(account.time.v);
                    group.2 = group.2.min(span);
                }
                None => self.groups.push((account.group(), account.time.v, span)),
            }
            let key = (account.component, account.class);
            match self.components.iter_mut().find(|c| c.0 == key) {
                Some(component) => component.1 = component.1.min(account.time.v),
                None => self.components.push((key, account.time.v)),
            }
        }
    }

    pub(super) fn group(&self, account: &Account) -> Option<(u128, u128)> {
        let found = self.groups.iter().find(|g| g.0 == account.group());
        found.map(|group| (group.1, group.2))
    }

    pub(super) fn component(&self, account: &Account) -> Option<u128> {
        let key = (account.component, account.class);
        let found = self.components.iter().find(|c| c.0 == key);
        found.map(|component| component.1)
    }
}

pub(super) fn clock(clocks: &[((u8, Class), u128)], account: &Account) -> u128 {
    let key = (account.component, account.class);
    let found = clocks.iter().find(|clock| clock.0 == key);
    found.map_or(0, |clock| clock.1)
}
