//! How an issue thread's calls stop running work: by the method that the self-test finds on this firmware. The calls
//! are made one after another, so that the agent may die in between.

use crate::dice::{MS, US};
use crate::world::{Ev, Fact, Following, Play, SOON, Working, World};
use tidegate_device::{Eviction, TsgId};
use tidegate_node::batch::{Batch, Kick};
use tidegate_node::kinds::{Method, Switch};

/// A call that moves nothing on or off an engine.
const ROUND_TRIP: u64 = 20 * US;
/// Longest kernel of an offline program, with the turns it takes beside others.
pub(crate) const KERNEL: u64 = 6 * MS + 300 * US;
/// Online groups of a GPU that take turns beside what runs out.
pub(crate) const ONLINE: u64 = 4;

impl<P: Play> World<P> {
    /// Makes the call of a batch; what follows it, and its answer, come by themselves.
    pub fn call(&mut self, epoch: u64, gpu: usize, mut working: Working, batch: &Batch) {
        let (now, ticket) = (self.now, working.ticket());
        if now < self.refuses_until {
            working.refused = true;
            let refused = Ev::Returned(epoch, gpu, Box::new((working, now)));
            return self.at(now + ROUND_TRIP, refused);
        }
        let list = self.channels_of(batch);
        let switch = working.switch();
        if switch == Switch::Enable {
            let mut done = now + self.dice.between(5 * US, 20 * US);
            self.device(gpu).enable_at(done, &list, ticket);
            self.learns(Fact::EnableCall {
                gpu,
                list: &list,
                order: ticket,
            });
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
        let follows = !matches!(batch.method, Method::Disable | Method::PreemptFirst);
        if !follows {
            let took = if self.rules.personality.eviction() == Eviction::AtKernelEnd {
                // What runs goes on to the end of its kernel, taking turns with the others.
                let groups = u64::try_from(list.len()).unwrap_or(0) + ONLINE;
                drawn + groups * KERNEL
            } else {
                drawn
            };
            let led = self.lead(gpu, batch);
            self.device(gpu)
                .disable_at(now + led + drawn, &list, ticket);
            self.learns(Fact::DisableCall {
                gpu,
                list: &list,
                order: ticket,
                drawn: led + took,
            });
            let done = Ev::Returned(epoch, gpu, Box::new((working, now)));
            return self.at(now + led + drawn, done);
        }
        if batch.method == Method::Preempt {
            self.device(gpu)
                .disable_scheduling_at(now + ROUND_TRIP, &list, ticket);
        } else {
            self.device(gpu).disable_at(now + ROUND_TRIP, &list, ticket);
        }
        let others = u64::try_from(kicks.len()).unwrap_or(0);
        let rest = drawn + others * ROUND_TRIP;
        self.learns(Fact::DisableCall {
            gpu,
            list: &list,
            order: ticket,
            drawn: ROUND_TRIP + rest,
        });
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

    /// Makes what comes before a call that disables; how long it takes.
    fn lead(&mut self, gpu: usize, batch: &Batch) -> u64 {
        let mut led = 0;
        for group in &batch.leads {
            led += self.device(gpu).draw_disable();
            if let Some(tsg) = self.tsg_of(group.client, group.handle) {
                let at = self.now + led;
                self.device(gpu).preempt_at(at, tsg);
            }
        }
        led
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
            let (order, drawn) = (following.ticket, following.drawn);
            self.learns(Fact::DisableCall {
                gpu,
                list: &[],
                order,
                drawn,
            });
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

    pub(crate) fn tsg_of(&self, client: u32, handle: u32) -> Option<TsgId> {
        self.groups.get(&(client, handle)).copied()
    }
}
