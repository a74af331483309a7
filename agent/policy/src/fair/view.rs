//! The state of a job beside others, for operators.

use super::Fair;
use super::account::Account;
use crate::config::{Fair as Rules, FairMode};
use crate::ids::JobId;
use crate::time::{Instant, nanos};
use crate::words::terms::Lacks;
use core::time::Duration;

impl Fair {
    /// For people.
    pub fn view(&self, job: JobId, rules: Rules, now: Instant) -> ShareView {
        let Some(own) = self.accounts.iter().find(|account| account.job == job) else {
            return ShareView::default();
        };
        let since = if own.state.charged {
            nanos(now.since(self.at))
        } else {
            0
        };
        let part = |of: u64| {
            if own.had.time == 0 {
                0.0
            } else {
                of as f64 / own.had.time as f64
            }
        };
        let left = nanos(rules.turn).saturating_sub(own.turn.used.saturating_add(since));
        let before =
            |a: &&Account| a.state.may && a.job != job && !a.gpus.intersection(own.gpus).is_empty();
        ShareView {
            shares: own.shares,
            wants: own.work.wants,
            left: (own.turn.held && own.state.may && own.shares)
                .then(|| Duration::from_nanos(left)),
            deserved: part(own.had.due),
            got: part(own.had.got.min(own.had.time)),
            turns: own.turn.count,
            behind: self
                .accounts
                .iter()
                .find(before)
                .filter(|_| !own.state.may)
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
    /// If timeslices are configured but its component takes turns: the job that cannot have timeslices, and why.
    pub lacks: Option<(JobId, Lacks)>,
}
