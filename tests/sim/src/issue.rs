//! The issue threads of an agent. Their rules are [`tidegate_node::task`]'s; only the time that a thread takes is
//! simulated.

use crate::defect::Defect;
use crate::dice::US;
use crate::world::{Ev, In, Play, SOON, Working, World};
use std::cell::RefCell;
use std::sync::Arc;
use tidegate_abi::rm::Status;
use tidegate_device::{ChannelId, TsgId};
use tidegate_node::Input;
use tidegate_node::batch::{Batch, Kick, Object};
use tidegate_node::kinds::Switch;
use tidegate_node::task::{
    CUDA_US, Issued, Refusal, Release, ReleaseCalls, SliceCalls, Slicing, Taken, Task, release,
};
use tidegate_policy::effect::Look;

impl<P: Play> World<P> {
    /// The channels that a batch names; those that are gone are none.
    pub fn channels_of(&self, batch: &Batch) -> Vec<ChannelId> {
        let entries = batch.entries();
        entries
            .filter_map(|(client, channel, _)| self.handles.get(&(client, channel)))
            .map(|(_, channel)| *channel)
            .collect()
    }

    pub fn enter_next(&mut self, gpu: usize) {
        let Some(agent) = &mut self.agent else { return };
        let (epoch, issue) = (agent.epoch, &mut agent.issue[gpu]);
        let any = !issue.working.is_empty() || !issue.queue.is_empty() || issue.arms.is_armed();
        if !agent.stopped && !issue.busy && any {
            issue.busy = true;
            let wait = self.dice.between(2 * US, 12 * US);
            self.at(self.now + wait, Ev::Enter(epoch, gpu));
        }
    }

    /// A doorbell rang: the threads that wait on it look.
    pub fn wake_armed(&mut self) {
        let Some(agent) = &mut self.agent else { return };
        let epoch = agent.epoch;
        for gpu in 0..agent.issue.len() {
            let wait = self.dice.between(2 * US, 35 * US);
            let Some(agent) = &mut self.agent else { return };
            let issue = &mut agent.issue[gpu];
            if !agent.stopped && !issue.busy && issue.arms.is_armed() {
                issue.busy = true;
                self.at(self.now + wait, Ev::Enter(epoch, gpu));
            }
        }
    }

    /// An issue thread is about to make its next call.
    pub fn enter(&mut self, epoch: u64, gpu: usize) {
        let now = self.now;
        let Some(agent) = self.agent.as_mut().filter(|agent| agent.epoch == epoch) else {
            return;
        };
        agent.issue[gpu].busy = false;
        if agent.stopped {
            return;
        }
        let begun = agent.issue[gpu].working.pop();
        let mut working = match begun {
            Some(working) => working,
            None => match self.next_task(gpu).or_else(|| self.due(gpu)) {
                Some(working) => working,
                None => return,
            },
        };
        let Some(agent) = &mut self.agent else { return };
        let issue = &mut agent.issue[gpu];
        let mut done = Vec::new();
        while let Some(order) = issue.queue.shorter(&working.carrying) {
            match issue.arms.take(order) {
                Taken::Carry(carrying) => {
                    issue.working.push(working);
                    working = Working::on(carrying);
                }
                Taken::Done(issued) => done.push(issued),
            }
        }
        let journal = Arc::clone(&agent.journal);
        let disables = working.switch() == Switch::Disable;
        let faked =
            working.carrying.issued().unasked && self.rules.broken == Some(Defect::FakedFire);
        if faked || disables && agent.fakes && agent.faked.insert(gpu) {
            while working.carrying.call(&journal, now).is_some() {
                working.carrying.answered(Ok(()), (now, now), &journal);
            }
        }
        match working.carrying.call(&journal, now).cloned() {
            Some(batch) => {
                agent.issue[gpu].busy = true;
                self.call(epoch, gpu, working, &batch);
            }
            None => {
                done.push(agent.issue[gpu].arms.done(working.carrying));
                self.enter_next(gpu);
            }
        }
        for issued in done {
            self.has_issued(issued);
        }
    }

    /// An issue thread answers an order, or says what it did without one.
    fn has_issued(&mut self, issued: Issued) {
        let wait = self.dice.between(3 * US, 12 * US);
        self.tell_in(wait, In::Node(Input::Issued(issued)));
    }

    /// What an armed order says, if there is an edge.
    fn due(&mut self, gpu: usize) -> Option<Working> {
        let agent = self.agent.as_mut()?;
        let carrying = agent.issue[gpu].arms.due()?;
        self.play.fired();
        Some(Working::on(carrying))
    }

    /// The next order from a thread's queue; what left the lists is enabled on the way.
    fn next_task(&mut self, gpu: usize) -> Option<Working> {
        let (stale, looks) = (
            self.is_broken(Defect::StaleOrder),
            !self.is_broken(Defect::NoLook),
        );
        loop {
            let agent = self.agent.as_mut()?;
            let issue = &mut agent.issue[gpu];
            match issue.queue.take()? {
                Task::Issue(mut order) => {
                    if !looks {
                        order.look = Look::Unconditional;
                    }
                    if stale {
                        let older = issue.older.replace(order.clone());
                        let again = order.switch == Switch::Enable && self.dice.percent(30);
                        if let Some(older) = older.filter(|_| again) {
                            issue.queue.put(Task::Issue(older));
                        }
                    }
                    match issue.arms.take(order) {
                        Taken::Carry(carrying) => return Some(Working::on(carrying)),
                        Taken::Done(issued) => self.has_issued(issued),
                    }
                }
                Task::Release(left) => {
                    issue.arms.released();
                    self.release(gpu, left);
                }
                Task::Slice(slicing) => self.slice(gpu, slicing),
            }
        }
    }

    /// Sets timeslices, of which the driver refuses one now and then.
    fn slice(&mut self, gpu: usize, mut slicing: Slicing) {
        let refuses = self.dice.percent(3);
        let mut usual = CUDA_US;
        let sliced = loop {
            let calls = Timeslices {
                world: self,
                gpu,
                refuses,
                set: RefCell::default(),
            };
            let sliced = slicing.step(&calls, &mut usual);
            for (tsg, us) in calls.set.into_inner() {
                self.device(gpu).set_timeslice(tsg, us * US);
            }
            if let Some(sliced) = sliced {
                break sliced;
            }
        };
        let wait = self.dice.between(5 * US, 200 * US);
        self.tell_in(wait, In::Node(Input::Sliced(sliced)));
    }

    fn release(&mut self, gpu: usize, left: Release) {
        let Some(agent) = &self.agent else { return };
        let journal = Arc::clone(&agent.journal);
        let calls = Calls {
            world: self,
            enabled: RefCell::default(),
            thrown: RefCell::default(),
        };
        let released = release(left, &journal, &calls);
        let (enabled, thrown) = (calls.enabled.into_inner(), calls.thrown.into_inner());
        for channel in thrown {
            self.device(gpu).discard_queued(channel);
        }
        let done = self.now + self.dice.between(5 * US, 20 * US);
        self.device(gpu).enable_at(done, &enabled, 0);
        self.at(done, Ev::Released(self.epoch, Box::new(released)));
    }

    /// A call came back.
    pub fn call_returned(
        &mut self,
        epoch: u64,
        gpu: usize,
        (mut working, entered): (Working, u64),
    ) {
        let Some(stopped) = self.is_stopped(epoch) else {
            return;
        };
        if stopped {
            let again = Ev::Returned(epoch, gpu, Box::new((working, entered)));
            return self.at(self.now + SOON, again);
        }
        let (now, hides) = (self.now, self.is_broken(Defect::HiddenRefusal));
        if let Some(agent) = &mut self.agent {
            let journal = Arc::clone(&agent.journal);
            let answer = if working.refused && !hides {
                Err(Status::TIMEOUT)
            } else {
                Ok(())
            };
            working.refused = false;
            working.carrying.answered(answer, (entered, now), &journal);
            agent.issue[gpu].working.push(working);
            agent.issue[gpu].busy = false;
            self.enter_next(gpu);
        }
    }
}

/// The driver's calls for timeslices on one GPU.
struct Timeslices<'a, P: Play> {
    world: &'a World<P>,
    gpu: usize,
    refuses: bool,
    set: RefCell<Vec<(TsgId, u64)>>,
}

impl<P: Play> Timeslices<'_, P> {
    fn tsg(&self, group: &Object) -> Result<TsgId, Status> {
        let known = self.world.tsg_of(group.client, group.handle);
        known.ok_or(Status::OBJECT_NOT_FOUND)
    }
}

impl<P: Play> SliceCalls for Timeslices<'_, P> {
    fn timeslice(&self, group: &Object) -> Result<u64, Status> {
        let tsg = self.tsg(group)?;
        let had = self
            .world
            .gpus
            .get(self.gpu)
            .map_or(0, |gpu| gpu.timeslice(tsg));
        Ok(had / US)
    }

    fn set_timeslice(&self, group: &Object, us: u64) -> Result<(), Status> {
        if self.refuses {
            return Err(Status::NOT_SUPPORTED);
        }
        let tsg = self.tsg(group)?;
        self.set.borrow_mut().push((tsg, us));
        Ok(())
    }
}

/// The driver's calls for channels that left the lists.
struct Calls<'a, P: Play> {
    world: &'a World<P>,
    enabled: RefCell<Vec<ChannelId>>,
    thrown: RefCell<Vec<ChannelId>>,
}

impl<P: Play> ReleaseCalls for Calls<'_, P> {
    fn exists(&self, client: u32) -> bool {
        self.world.lives(client)
    }

    fn throw_away(&self, batch: &Batch) {
        self.thrown
            .borrow_mut()
            .extend(self.world.channels_of(batch));
    }

    fn enable(&self, batch: &Batch) -> Result<(), Refusal> {
        self.enabled
            .borrow_mut()
            .extend(self.world.channels_of(batch));
        Ok(())
    }

    fn kick(&self, _kick: &Kick) {}
}
