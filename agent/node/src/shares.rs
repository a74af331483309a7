//! Divides something limited among tenants: places in the journal.
//!
//! Nobody gets more than is left afterwards. So one tenant alone may have half of everything, two tenants a third each,
//! and a tenant that comes after any number of greedy ones still finds as much as each of those has. Of a tenant's
//! share, one job takes at most half of what is left, because anybody can invent names of jobs. The agent's own user
//! may have everything.

use crate::kinds::Tenant;
use std::collections::BTreeMap;
use tidegate_policy::ids::JobId;

/// For whom something is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Whose allowance it is of.
    pub tenant: Tenant,
    /// For which of its jobs.
    pub job: Option<JobId>,
}

/// What is taken, by owner.
#[derive(Clone, Debug, Default)]
pub struct Shares {
    tenants: BTreeMap<Tenant, usize>,
    jobs: BTreeMap<JobId, usize>,
    /// By the number of what was taken.
    owners: BTreeMap<u32, Owner>,
}

impl Shares {
    /// Whether `owner` may have one more of those of which `left` are free.
    #[must_use]
    pub fn allow(&self, owner: &Owner, left: usize) -> bool {
        if owner.tenant == Tenant::Agent {
            return left != 0;
        }
        let tenant = self.tenants.get(&owner.tenant).copied().unwrap_or(0);
        let job = owner.job.and_then(|job| self.jobs.get(&job).copied());
        tenant < left && job.unwrap_or(0) < left.div_ceil(2)
    }

    /// It has `number` from here on.
    pub fn take(&mut self, number: u32, owner: Owner) {
        *self.tenants.entry(owner.tenant.clone()).or_default() += 1;
        if let Some(job) = owner.job {
            *self.jobs.entry(job).or_default() += 1;
        }
        self.owners.insert(number, owner);
    }

    /// Nobody has `number` any more.
    pub fn give_back(&mut self, number: u32) {
        let Some(Owner { tenant, job }) = self.owners.remove(&number) else {
            return;
        };
        less(&mut self.tenants, &tenant);
        if let Some(job) = job {
            less(&mut self.jobs, &job);
        }
    }
}

fn less<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: usize = 16_384;

    /// What each of `owners` has when all have taken as much as they may, in turns.
    fn greedy(owners: &[Owner]) -> (Shares, Vec<usize>) {
        let (mut shares, mut left, mut have) = (Shares::default(), ALL, vec![0; owners.len()]);
        let mut grown = true;
        while std::mem::take(&mut grown) {
            for (owner, have) in owners.iter().zip(&mut have) {
                if shares.allow(owner, left) {
                    shares.take(u32::try_from(left).expect("few"), owner.clone());
                    (left, *have, grown) = (left - 1, *have + 1, true);
                }
            }
        }
        (shares, have)
    }

    fn owner(uid: u32, job: u32) -> Owner {
        Owner {
            tenant: Tenant::User(uid),
            job: Some(JobId(job)),
        }
    }

    /// P-SECURITY-7: what one tenant takes is bounded and named, and nobody else notices.
    #[test]
    fn who_comes_after_the_greedy_finds_as_much_as_each_of_them_has() {
        for count in [1, 2, 16] {
            let tenants: Vec<Owner> = (0..count)
                .flat_map(|t| [owner(t, 2 * t), owner(t, 2 * t + 1)])
                .collect();
            let (shares, have) = greedy(&tenants);
            let (taken, each) = (have.iter().sum::<usize>(), ALL / (count as usize + 1));
            let left = ALL - taken;
            assert!(
                left + 2 * tenants.len() >= each,
                "{count} greedy tenants leave {left}"
            );
            assert!(shares.allow(&owner(100, 100), left));
            assert!(
                !shares.allow(&owner(0, 101), left),
                "another name makes no difference"
            );
        }
    }

    #[test]
    fn one_job_leaves_room_for_another_of_its_tenant() {
        let (shares, have) = greedy(&[owner(0, 0)]);
        assert_eq!(have[0], ALL.div_ceil(3));
        assert!(shares.allow(&owner(0, 1), ALL - have[0]));
    }

    #[test]
    fn one_job_of_who_runs_the_agent_may_have_all() {
        let (_, have) = greedy(&[Owner {
            tenant: Tenant::Agent,
            job: Some(JobId(0)),
        }]);
        assert_eq!(have, [ALL]);
    }

    #[test]
    fn what_is_given_back_leaves_nothing() {
        let (mut shares, have) = greedy(&[owner(0, 0), owner(1, 1)]);
        assert!(have[0] > 0);
        for number in 0..=u32::try_from(ALL).expect("few") {
            shares.give_back(number);
        }
        assert!(shares.tenants.is_empty() && shares.jobs.is_empty() && shares.owners.is_empty());
    }
}
