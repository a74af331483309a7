//! The processes of a job: they attach, report their channels and leave; the job's lanes follow.

use super::{Job, Lane, LaneState, LaunchGate, Member};
use crate::config::Means;
use crate::event::Standing;
use crate::ids::{Channels, Generation, GpuId, GpuSet, SessionId};
use core::time::Duration;

impl Job {
    pub fn attach(&mut self, session: SessionId, gpus: GpuSet, standing: Standing, means: Means) {
        match self
            .members
            .iter_mut()
            .find(|member| member.session == session)
        {
            Some(member) if gpus.minus(member.gpus).is_empty() => return,
            Some(member) => member.gpus = member.gpus.union(gpus),
            None => {
                self.members.push(Member {
                    session,
                    gpus,
                    standing,
                    channels: Vec::new(),
                    idle: None,
                    counts: true,
                    groups: Vec::new(),
                });
                self.ordered.launch_gate = LaunchGate::Unset;
            }
        }
        if means == Means::LaunchGate {
            // The process finds its gates closed, whatever the lane did before it came.
            self.disturb(gpus);
        }
        self.fit_lanes(means);
    }

    pub fn gone(&mut self, session: SessionId, means: Means) {
        self.members.retain(|member| member.session != session);
        self.fit_lanes(means);
    }

    pub fn channels_changed(
        &mut self,
        session: SessionId,
        gpu: GpuId,
        channels: Channels,
        grown: bool,
        means: Means,
    ) {
        let Some(member) = self
            .members
            .iter_mut()
            .find(|member| member.session == session)
        else {
            return;
        };
        match member.channels.iter_mut().find(|held| held.0 == gpu) {
            Some(held) => held.1 = channels,
            None => member.channels.push((gpu, channels)),
        }
        member.gpus = member.gpus.with(gpu);
        let standing = member.standing;
        if means == Means::Channels
            && grown
            && let Some(lane) = self.lanes.iter_mut().find(|lane| lane.gpu == gpu)
        {
            let missed = matches!(lane.state, LaneState::Disabling | LaneState::Disabled);
            if missed || standing == Standing::Unknown {
                lane.state = LaneState::Unknown;
            }
        }
        let before = self.lanes.len();
        self.fit_lanes(means);
        if standing == Standing::Unknown {
            for lane in self.lanes.iter_mut().skip(before) {
                lane.state = LaneState::Unknown;
            }
        }
    }

    /// Orders on these GPUs no longer stand for all the job holds there.
    pub(super) fn disturb(&mut self, gpus: GpuSet) {
        for lane in self.lanes.iter_mut().filter(|lane| gpus.contains(lane.gpu)) {
            lane.state = LaneState::Unknown;
        }
    }

    fn fit_lanes(&mut self, means: Means) {
        self.gpus = self
            .members
            .iter()
            .fold(GpuSet::EMPTY, |all, m| all.union(m.gpus));
        let (wanted, fresh) = match means {
            Means::LaunchGate => (self.gpus, LaneState::Unknown),
            Means::Channels => {
                let held = self
                    .members
                    .iter()
                    .flat_map(|member| member.channels.iter());
                (
                    held.filter(|held| held.1.0 > 0)
                        .map(|held| held.0)
                        .collect(),
                    LaneState::Enabled,
                )
            }
        };
        self.lanes.retain(|lane| wanted.contains(lane.gpu));
        let have: GpuSet = self.lanes.iter().map(|lane| lane.gpu).collect();
        self.lanes.extend(wanted.minus(have).iter().map(|gpu| Lane {
            gpu,
            state: fresh,
            generation: Generation(0),
            retry: Duration::ZERO,
            failures: 0,
        }));
    }
}
