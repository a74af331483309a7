//! How the agent in miniature stops what runs: by the method that the self-test finds on this firmware,
//! with the calls of it one after another, so that the agent may die in between.

use super::Break;
use super::agent::In;
use super::script::{MS, US};
use super::world::{Ev, World};
use tidegate_device::{ChannelId, Eviction, TsgId};
use tidegate_policy::effect::Look;
use tidegate_policy::event::{Event, Order};
use tidegate_policy::time::Instant;
use tidegate_vgpu::personality::Personality;

/// A call that moves nothing on or off an engine.
const ROUND_TRIP: u64 = 20 * US;
/// How soon a thread that was stopped makes its next call.
const SOON: u64 = 40 * US;
/// Longest kernel of an offline program, with the turns it takes beside others.
const KERNEL: u64 = 6 * MS + 300 * US;
/// Kernels that it keeps queued on a channel.
const QUEUED: u64 = 2;
/// Online groups of a GPU that take turns beside what runs out.
const ONLINE: u64 = 4;

/// The calls that stop a job's channels on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Disable,
    Restart,
    Preempt,
    /// None: launches wait.
    LaunchGate,
}

impl Method {
    /// By the measurements that the personality plays.
    pub const fn on(personality: Personality, broken: Break) -> Self {
        if matches!(broken, Break::DisableOnly) {
            return Self::Disable;
        }
        match personality {
            Personality::Evicts | Personality::RefusesForeign | Personality::KernelEnd => {
                Self::Disable
            }
            Personality::Restart => Self::Restart,
            Personality::Preempt | Personality::RefusesRestart => Self::Preempt,
            Personality::Deaf => Self::LaunchGate,
        }
    }
}

/// The second half of a disable, and its answer.
#[derive(Clone, Debug)]
pub(super) struct Kick {
    pub epoch: u64,
    pub gpu: usize,
    groups: Vec<TsgId>,
    /// How long it takes.
    drawn: u64,
    answer: Event<'static>,
    ticket: u64,
    /// The agent was stopped between the two.
    held_up: bool,
}

impl World {
    /// Makes the first call of a disable; its answer comes by itself.
    pub fn disable(&mut self, epoch: u64, order: Order, list: &[ChannelId], groups: Vec<TsgId>) {
        let (now, gpu, ticket) = (self.now, order.gpu.index(), order.generation.0);
        let drawn = self.device(gpu).draw_disable();
        let answer = |returned| Event::Disabled {
            order,
            entered: Instant::from_nanos(now),
            returned: Instant::from_nanos(returned),
        };
        let first = match self.method {
            Method::Disable | Method::LaunchGate => {
                let took = if self.personality.eviction() == Eviction::AtKernelEnd {
                    // What runs goes on to the end of its kernel, taking turns with the others.
                    let groups = u64::try_from(list.len()).unwrap_or(0) + ONLINE;
                    drawn + groups * KERNEL
                } else {
                    drawn
                };
                self.device(gpu).disable_at(now + drawn, list, ticket);
                self.judge.disable_call(gpu, list, ticket, now, took);
                let answer = answer(now + drawn);
                return self.at(now + drawn, Ev::Returned(epoch, gpu, answer));
            }
            Method::Restart => {
                self.device(gpu).disable_at(now + ROUND_TRIP, list, ticket);
                drawn
            }
            Method::Preempt => {
                self.device(gpu)
                    .disable_scheduling_at(now + ROUND_TRIP, list, ticket);
                let others = u64::try_from(groups.len()).unwrap_or(0);
                drawn + others * ROUND_TRIP
            }
        };
        let took = ROUND_TRIP + first;
        self.judge.disable_call(gpu, list, ticket, now, took);
        let kick = Kick {
            epoch,
            gpu,
            groups,
            drawn: first,
            answer: answer(now + took),
            ticket,
            held_up: false,
        };
        self.at(now + ROUND_TRIP, Ev::Kick(Box::new(kick)));
    }

    /// Makes what follows it, unless the agent died meanwhile.
    pub fn kick(&mut self, mut kick: Kick) {
        let now = self.now;
        let agent = self
            .agent
            .as_ref()
            .filter(|agent| agent.epoch == kick.epoch);
        match agent {
            None => return,
            Some(agent) if agent.stopped => {
                kick.held_up = true;
                return self.at(now + SOON, Ev::Kick(Box::new(kick)));
            }
            Some(_) => {}
        }
        if kick.held_up {
            let ticket = kick.ticket;
            self.judge
                .disable_call(kick.gpu, &[], ticket, now, kick.drawn);
        }
        let done = now + kick.drawn;
        match self.method {
            Method::Preempt => {
                for group in kick.groups {
                    self.device(kick.gpu).preempt_at(done, group);
                }
            }
            _ => {
                let own = self.restarters[kick.gpu];
                self.device(kick.gpu).restart_at(done, own);
            }
        }
        self.at(done, Ev::Returned(kick.epoch, kick.gpu, kick.answer));
    }

    /// An order where no call stops anything: the gate of the job's launches is the order.
    pub fn order_launches(&mut self, order: Order, disable: bool, look: Look, list: &[ChannelId]) {
        let (now, gpu) = (self.now, order.gpu.index());
        let stamp = Instant::from_nanos(now);
        if !disable && look == Look::First && self.is_online_busy(gpu) {
            return self.tell_in(2 * US, In::Answer(Event::EnableSkipped { order }));
        }
        let ticket = order.generation.0;
        if disable {
            let queued = u64::try_from(list.len()).unwrap_or(0) * QUEUED + ONLINE;
            self.judge
                .disable_call(gpu, list, ticket, now, queued * KERNEL);
        } else {
            self.judge.woke(gpu, ticket, now);
        }
        if let Some(agent) = &mut self.agent {
            if disable {
                agent.passing.remove(&(order.job, gpu));
            } else {
                agent.passing.insert((order.job, gpu));
            }
        }
        for pid in self.pids_of(order.job) {
            if let Some(harvesting) = self.processes[pid].harvesting() {
                if disable {
                    harvesting.held.insert(gpu);
                } else {
                    harvesting.held.remove(&gpu);
                }
            }
            self.offline_feeds(pid);
        }
        let answer = if disable {
            Event::Disabled {
                order,
                entered: stamp,
                returned: stamp,
            }
        } else {
            Event::Enabled { order }
        };
        self.tell_in(2 * US, In::Answer(answer));
    }
}
