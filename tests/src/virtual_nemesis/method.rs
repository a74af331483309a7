//! How an issue thread's calls stop what runs: by the method that the self-test finds on this firmware, with the
//! calls of it one after another, so that the agent may die in between.

use super::process::Process;
use super::script::{MS, US};
use super::state::{Ev, Following, SOON, Working, World};
use tidegate_device::{ChannelId, Eviction, TsgId};
use tidegate_node::batch::{Batch, Kick};
use tidegate_node::kinds::{Level, Method, Switch};

/// A call that moves nothing on or off an engine.
const ROUND_TRIP: u64 = 20 * US;
/// Longest kernel of an offline program, with the turns it takes beside others.
const KERNEL: u64 = 6 * MS + 300 * US;
/// Kernels that it keeps queued on a channel.
const QUEUED: u64 = 2;
/// Online groups of a GPU that take turns beside what runs out.
const ONLINE: u64 = 4;

impl World {
    /// Makes the call of a batch; what follows it, and its answer, come by themselves.
    pub fn call(&mut self, epoch: u64, gpu: usize, working: Working, batch: &Batch) {
        let (now, ticket) = (self.now, working.ticket());
        let list = self.channels_of(batch);
        let switch = working.switch();
        if switch == Switch::Enable {
            let mut done = now + self.dice.between(5 * US, 20 * US);
            self.device(gpu).enable_at(done, &list, ticket);
            self.judge.enable_call(gpu, &list, ticket, now);
            let follows = batch.kicks.iter().any(Kick::follows_enable);
            if follows {
                done += ROUND_TRIP;
                let own = self.restarters[gpu];
                self.device(gpu).restart_at(done, own);
            }
            return self.at(done, Ev::Returned(epoch, gpu, Box::new((working, now))));
        }
        let drawn = self.device(gpu).draw_disable();
        let kicks: Vec<Kick> = batch.kicks.clone();
        let follows = !matches!(batch.method, Method::Disable);
        if !follows {
            let took = if self.personality.eviction() == Eviction::AtKernelEnd {
                // What runs goes on to the end of its kernel, taking turns with the others.
                let groups = u64::try_from(list.len()).unwrap_or(0) + ONLINE;
                drawn + groups * KERNEL
            } else {
                drawn
            };
            self.device(gpu).disable_at(now + drawn, &list, ticket);
            self.judge.disable_call(gpu, &list, ticket, now, took);
            let done = Ev::Returned(epoch, gpu, Box::new((working, now)));
            return self.at(now + drawn, done);
        }
        if batch.method == Method::Preempt {
            self.device(gpu)
                .disable_scheduling_at(now + ROUND_TRIP, &list, ticket);
        } else {
            self.device(gpu).disable_at(now + ROUND_TRIP, &list, ticket);
        }
        let others = u64::try_from(kicks.len()).unwrap_or(0);
        let rest = drawn + others * ROUND_TRIP;
        self.judge
            .disable_call(gpu, &list, ticket, now, ROUND_TRIP + rest);
        let following = Following {
            epoch,
            gpu,
            working,
            entered: now,
            kicks,
            drawn: rest,
            ticket,
            held_up: false,
        };
        self.at(now + ROUND_TRIP, Ev::Kick(Box::new(following)));
    }

    /// Makes what follows it, unless the agent died meanwhile.
    pub fn kick(&mut self, mut following: Following) {
        let now = self.now;
        let Some(stopped) = self.is_stopped(following.epoch) else {
            return;
        };
        if stopped {
            following.held_up = true;
            return self.at(now + SOON, Ev::Kick(Box::new(following)));
        }
        let gpu = following.gpu;
        if following.held_up {
            let (ticket, drawn) = (following.ticket, following.drawn);
            self.judge.disable_call(gpu, &[], ticket, now, drawn);
        }
        let done = now + following.drawn;
        for kick in &following.kicks {
            match kick {
                Kick::Preempt(group) => {
                    if let Some(tsg) = self.tsg_of(group.client, group.handle) {
                        self.device(gpu).preempt_at(done, tsg);
                    }
                }
                Kick::Restart(_) | Kick::RestartGraphics { .. } => {
                    let own = self.restarters[gpu];
                    self.device(gpu).restart_at(done, own);
                }
            }
        }
        let Following {
            epoch,
            working,
            entered,
            ..
        } = following;
        self.at(done, Ev::Returned(epoch, gpu, Box::new((working, entered))));
    }

    /// What the judge is told of launch gates, where they are all there is: it looks at the pages.
    pub fn look_at_gates(&mut self) {
        if self.level != Level::L5 {
            return;
        }
        let now = self.now;
        for pid in 0..self.processes.len() {
            let process = &self.processes[pid];
            if process.is_online() || !process.alive || process.attached.is_none() {
                continue;
            }
            for at in 0..process.devices.len() {
                let device = &self.processes[pid].devices[at];
                let (gpu, open) = (device.gpu, self.processes[pid].is_open(at));
                let key = (pid, gpu);
                if self.open_gates.contains(&key) == open {
                    continue;
                }
                let list: Vec<ChannelId> = device.channels.iter().map(|held| held.1).collect();
                if open {
                    self.open_gates.insert(key);
                    self.judge.woke(gpu, now, now);
                } else {
                    self.open_gates.remove(&key);
                    let queued = self.offline_channels(gpu) * QUEUED + ONLINE;
                    self.judge
                        .disable_call(gpu, &list, now, now, queued * KERNEL);
                }
            }
        }
    }

    /// Channels on a GPU whose queued work runs out in turns, whosever gate was shut.
    fn offline_channels(&self, gpu: usize) -> u64 {
        let offline = |process: &&Process| process.alive && !process.is_online();
        let devices = self.processes.iter().filter(offline);
        let on = devices.flat_map(|process| &process.devices);
        let channels = on.filter(|device| device.gpu == gpu);
        let count: usize = channels.map(|device| device.channels.len()).sum();
        u64::try_from(count).unwrap_or(0)
    }

    fn tsg_of(&self, client: u32, handle: u32) -> Option<TsgId> {
        self.groups.get(&(client, handle)).copied()
    }
}
