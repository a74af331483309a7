//! The state of a job, for other jobs on its GPUs, for a reclaim and for operators.

use super::world::World;
use super::{Breath, Job, Lane, LaneState, LaunchGate, Member, Mode, Want, Why};
use crate::config::Means;
use crate::fair::Claim;
use crate::ids::Channels;
use crate::reclaim::Sight;
use crate::time::Instant;
use crate::view::{JobState, JobView, Reason};

impl Job {
    /// The job as others that use its GPUs see it.
    pub fn claim(&self, world: &World, means: Means, now: Instant) -> Claim {
        Claim {
            job: self.id,
            gpus: self.gpus,
            terms: self.terms,
            wants: !self.members.iter().all(|member| member.idle.is_some()),
            groups: self.groups(world, means, now),
            open: self.held_by(world, now).is_none() && self.is_open(world),
            runs: self.ordered.want.is_on(),
            on: self.ordered.mode != Mode::Unmanaged && !self.all(LaneState::Disabled),
            whole: self
                .lanes
                .iter()
                .all(|lane| matches!(lane.state, LaneState::Enabled | LaneState::Disabling)),
        }
    }

    pub(super) fn note_state(&mut self, now: Instant) {
        let has = |state| self.lanes.iter().any(|lane: &Lane| lane.state == state);
        let state = match (self.ordered.mode, self.ordered.want) {
            (Mode::Unmanaged, _) => JobState::Unmanaged,
            (Mode::Recovering, _) => JobState::Unknown,
            (Mode::Managed, Want::Run | Want::Lease) if !self.all(LaneState::Enabled) => {
                JobState::Enabling
            }
            (Mode::Managed, Want::Lease) => JobState::Leased,
            (Mode::Managed, Want::Run) if matches!(self.breath, Breath::Until(_)) => {
                JobState::Breathing
            }
            (Mode::Managed, Want::Run) => JobState::Running,
            (Mode::Managed, Want::Gate(_)) if has(LaneState::Disabling) => JobState::Disabling,
            (Mode::Managed, Want::Gate(_)) => JobState::Gated,
        };
        if core::mem::replace(&mut self.shown.state, state) != state {
            self.shown.since = now;
        }
    }

    /// The job as a reclaim sees it.
    pub fn sight(&self, means: Means) -> Sight {
        let hidden = self.members.iter().any(Member::is_hidden) || self.lanes.is_empty();
        Sight {
            stopped: self.ordered.mode == Mode::Managed && !hidden && self.all(LaneState::Disabled),
            beyond_control: means != Means::Channels
                || self.ordered.mode != Mode::Managed
                || hidden,
            runs: self.ordered.want == Want::Run && self.all(LaneState::Enabled),
        }
    }

    /// Whether its work may be on its GPUs: until a disable has returned it is.
    pub fn runs(&self) -> bool {
        match self.shown.state {
            JobState::Running | JobState::Breathing | JobState::Leased | JobState::Disabling => {
                true
            }
            JobState::Unmanaged => self.ordered.want == Want::Run,
            JobState::Gated | JobState::Enabling | JobState::Unknown => false,
        }
    }

    pub fn view(&self, world: &World) -> JobView {
        let held = self
            .members
            .iter()
            .flat_map(|member| member.channels.iter());
        JobView {
            job: self.id,
            state: self.shown.state,
            since: self.shown.since,
            reason: match self.ordered.want {
                Want::Run => Reason::None,
                Want::Lease if self.is_leased() => Reason::None,
                Want::Gate(Why::Operator) => Reason::Paused,
                Want::Gate(Why::Memory) => Reason::Reclaim,
                Want::Gate(Why::Turn) => Reason::Turn,
                Want::Gate(_) | Want::Lease => Reason::Gate(self.gpus.minus(world.open)),
            },
            paused: self.paused,
            gpus: self.gpus,
            sessions: u32::try_from(self.members.len()).unwrap_or(u32::MAX),
            channels: Channels(held.fold(0u32, |sum, held| sum.saturating_add(held.1.0))),
            preemptions: self.stop.preemptions,
            launch_gate_closed: matches!(
                self.ordered.launch_gate,
                LaunchGate::Closed | LaunchGate::Held
            ),
        }
    }
}
