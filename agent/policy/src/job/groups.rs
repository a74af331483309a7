//! The processes of a job beside other jobs: which of them have work, and which channel groups compute for them.

use super::{Job, Member, World};
use crate::config::Means;
use crate::event::Standing;
use crate::fair::{Groups, Lacks, RESTS};
use crate::ids::{GpuId, SessionId};
use crate::time::Instant;

impl Member {
    fn rests(&self, now: Instant) -> bool {
        self.idle.is_some_and(|since| now >= since.after(RESTS))
    }

    fn computes(&self) -> u32 {
        self.groups.iter().map(|held| held.1).sum()
    }
}

impl Job {
    pub fn works(&mut self, session: SessionId, works: bool, now: Instant) {
        let said = self.members.iter_mut().find(|m| m.session == session);
        if let Some(member) = said {
            let since = member.idle.unwrap_or(now);
            member.idle = (!works).then_some(since);
        }
    }

    pub fn set_counts(&mut self, session: SessionId, counts: bool) {
        let said = self.members.iter_mut().find(|m| m.session == session);
        if let Some(member) = said {
            member.counts = counts;
        }
    }

    /// Whether it has a part when memory is divided: one process that counts is enough.
    pub fn counts(&self) -> bool {
        self.members.iter().any(|member| member.counts)
    }

    pub fn groups_changed(
        &mut self,
        session: SessionId,
        gpu: GpuId,
        groups: u32,
        lacks: Option<Lacks>,
    ) {
        let said = self.members.iter_mut().find(|m| m.session == session);
        let Some(member) = said else {
            return;
        };
        let before = match member.groups.iter_mut().find(|held| held.0 == gpu) {
            Some(held) => core::mem::replace(held, (gpu, groups, lacks)).1,
            None => {
                member.groups.push((gpu, groups, lacks));
                0
            }
        };
        if groups > before {
            self.groups_version += 1;
        }
    }

    /// What it has that could be given timeslices.
    pub(super) fn groups(&self, world: &World, means: Means, now: Instant) -> Groups {
        let count = |rests: bool| -> u32 {
            let members = self.members.iter();
            let own = members.filter(|member| rests || !member.rests(now));
            own.map(Member::computes).sum()
        };
        let mut lacks = self.members.iter().flat_map(|member| &member.groups);
        let idle = self.members.iter().filter_map(|member| member.idle);
        let working = count(false);
        Groups {
            count: if working == 0 { count(true) } else { working },
            version: self.groups_version,
            inherited: self
                .members
                .iter()
                .any(|member| member.standing == Standing::Unknown && member.computes() > 0),
            lacks: match means {
                Means::LaunchGate => Some(Lacks::Level),
                Means::Channels => lacks.find_map(|held| held.2),
            },
            rests_at: idle
                .map(|since| since.after(RESTS))
                .filter(|at| *at > now)
                .min(),
            paused: self.paused || world.drained,
        }
    }
}
