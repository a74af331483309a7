//! Carries out the effects of a step.

use super::Shell;
use crate::kinds::Switch;
use crate::leases::Lending;
use crate::report::{self, Scene};
use crate::request::{Context, Request};
use tidegate_abi::gate::Gate;
use tidegate_policy::effect::{Effect, Look};
use tidegate_policy::event::Order;
use tidegate_policy::ids::JobId;

impl Shell {
    /// Carries out one effect, or hands it to the part that does.
    pub(super) fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Disable(order) => self.order(order, Switch::Disable, Look::Unconditional),
            Effect::Enable { order, look } => self.order(order, Switch::Enable, look),
            Effect::CloseLaunchGate { job } => self.set_launch_gate(job, Gate::Closed),
            Effect::OpenLaunchGate { job } => self.set_launch_gate(job, Gate::Open),
            Effect::HoldLaunchGate { job } => self.set_launch_gate(job, Gate::Held),
            Effect::Check { .. }
            | Effect::Move { .. }
            | Effect::CancelMove { .. }
            | Effect::Map { .. }
            | Effect::AnswerAsk { .. } => {
                let members = &mut self.members;
                self.memory
                    .order(effect, &self.policy, members, &self.adoption);
            }
            Effect::Timeslice { job, gpu, slice } => {
                let members = &mut self.members;
                self.lanes
                    .slice((job, gpu), slice, members, &mut context!(self));
            }
            Effect::Lease {
                job,
                gpu,
                lease,
                units,
                until,
                ..
            } => {
                let grace_ns = self.settings.leases.map_or(0, |own| own.grace_ns);
                let lending = Lending {
                    job,
                    gpu,
                    lease,
                    units,
                    until_ns: until.as_nanos().saturating_sub(grace_ns),
                };
                let members = &mut self.members;
                self.leases.lend(lending, members, &mut context!(self));
            }
            Effect::Withdraw { gpu, lease, .. } => {
                self.leases.withdraw((gpu, lease), &mut self.members);
            }
            Effect::ReadActivity { gpus } => context!(self).ask(Request::ReadActivity(gpus)),
            Effect::WakeAt(at) => self.time.timer = Some(at.as_nanos()),
            Effect::Emit(report) => {
                let scene = Scene {
                    lanes: &mut self.lanes,
                    members: &mut self.members,
                    memory: &mut self.memory,
                    policy: &self.policy,
                };
                report::emit(report, scene, &mut context!(self));
            }
        }
    }

    pub(crate) fn order(&mut self, order: Order, switch: Switch, look: Look) {
        let clock = &*self.ports.clock;
        self.lanes.order(
            order,
            (switch, look, self.policy.gpus_of(order.job)),
            &mut self.members,
            &self.adoption.journal,
            || clock.now_ns(),
            &mut context!(self),
        );
    }

    fn set_launch_gate(&mut self, job: JobId, gate: Gate) {
        self.lanes.set_launch_gate(job, gate);
        context!(self).ask(Request::Gates(job));
    }
}
