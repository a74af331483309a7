//! The agent of a schedule: the shell that ships, and a world around it that takes drawn times.
//!
//! Every decision, and the order in which it reaches the driver, is `tidegate-node`'s. Made up here is how long
//! messages, doorbells, proofs and calls take, and that a driver answers them.

use super::breaks::Break;
use super::ports::{Heard, NoEvents, Queue, Shared, Stream, Wire};
use super::script::{MS, US};
use super::state::{
    Agent, Ev, In, Issue, SOON, Working, World, client_of, means, pid_of, process_of, uuid,
};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tidegate_abi::class::Engine;
use tidegate_device::{ChannelId, TsgId};
use tidegate_node::batch::{Batch, Kick};
use tidegate_node::file::{File, SentFile};
use tidegate_node::journal::Journal;
use tidegate_node::kinds::{Gpu, Level, Role, Switch};
use tidegate_node::message::{
    Aged, Channel, Claim, Library, Newcomer, Owner, Peer, Proof, RmChange, Said, Tell, Ticket,
    Tunables,
};
use tidegate_node::page::PageRef;
use tidegate_node::ports::{self, Ports};
use tidegate_node::task::{Carrying, Refusal, Release, ReleaseCalls, Released, Task, release};
use tidegate_node::{Input, Parts, Shell};
use tidegate_policy::config::{Config, Cooldown, Means};
use tidegate_policy::effect::Look;

impl World {
    pub fn agent_starts(&mut self) {
        self.epoch += 1;
        let now = self.now;
        let journal = Journal::over(self.journal.clone()).expect("it was begun as one");
        // What an earlier agent may have left disabled is enabled before anything else.
        for marked in journal.marked() {
            if let Some(&(gpu, channel)) = self.handles.get(&(marked.client, marked.channel)) {
                self.device(gpu).enable_at(now + 20 * US, &[channel], 0);
            }
            journal.clear(marked.place);
        }
        let agent = self.new_agent(Arc::new(journal));
        self.agent = Some(agent);
        self.judge.agent(now, true, true);
        for pid in 0..self.processes.len() {
            if self.processes[pid].alive {
                let wait = self.dice.between(MS, 60 * MS);
                self.tell_in(wait, In::Attach(pid));
            }
        }
        self.turn(|shell| shell.begin());
    }

    fn new_agent(&self, journal: Arc<Journal>) -> Agent {
        let mut config = Config::default();
        if self.broken == Break::NoCooldown {
            config.cooldown = Cooldown::Fixed(Duration::ZERO);
        }
        if self.level == Level::L5 {
            config.means = Means::LaunchGate;
        }
        let wire = Wire::default();
        let gpus = usize::from(self.script.gpus);
        let line = |gpu: usize| {
            let named = Gpu {
                device_instance: u32::try_from(gpu).unwrap_or(u32::MAX),
                uuid: uuid(gpu),
            };
            let issuer = Box::new(Queue(gpu, wire.clone())) as Box<dyn ports::Issuer>;
            (named, (self.level != Level::L5).then_some(issuer))
        };
        self.time.set(self.now);
        let shell = Shell::new(Parts {
            tunables: Tunables {
                policy: config,
                rings_per_second: 50_000,
                prove_every_ns: 5_000 * MS,
                stall_ns: 50 * MS,
                answer_ns: 100 * MS,
            },
            level: self.level,
            method: means(self.personality, self.broken).1,
            pool: 0,
            believe_unproven: false,
            gpus: (0..gpus).map(line).collect(),
            unseen: 0,
            generation: journal.next_generation(),
            journal: Arc::clone(&journal),
            adopted: Vec::new(),
            mps: false,
            ports: Ports {
                clock: Box::new(self.time.clone()),
                prover: Box::new(wire.clone()),
                machine: Box::new(wire.clone()),
                events: Box::new(NoEvents),
                recorder: None,
            },
        });
        Agent {
            epoch: self.epoch,
            stopped: false,
            shell,
            wire,
            journal,
            issue: (0..gpus).map(|_| Issue::default()).collect(),
            sessions: 0,
            due: u64::MAX,
            inbox: Vec::new(),
            faked: BTreeSet::new(),
            fakes: self.broken == Break::NoDisableOnRestart && self.epoch > 1,
        }
    }

    pub fn agent_dies(&mut self) {
        self.agent = None;
        self.epoch += 1;
        let now = self.now;
        self.judge.agent(now, false, false);
        self.check_control();
        for pid in 0..self.processes.len() {
            self.processes[pid].attached = None;
            let wait = self.dice.between(50 * US, 2 * MS);
            if !self.processes[pid].is_online() {
                self.at(now + wait, Ev::Reporter(pid));
            }
        }
    }

    pub fn agent_stops(&mut self) {
        if let Some(agent) = &mut self.agent {
            agent.stopped = true;
            self.judge.agent(self.now, false, false);
            self.check_control();
        }
    }

    pub fn agent_goes_on(&mut self) {
        let now = self.now;
        let Some(agent) = &mut self.agent else { return };
        agent.stopped = false;
        agent.due = u64::MAX;
        let inbox = core::mem::take(&mut agent.inbox);
        self.judge.agent(now, true, false);
        self.turn(Shell::wake);
        for message in inbox {
            self.hear(message);
        }
        for gpu in 0..usize::from(self.script.gpus) {
            self.enter_next(gpu);
        }
        self.check_control();
    }

    /// Whether the agent of that epoch is stopped; None: it is gone.
    pub fn is_stopped(&self, epoch: u64) -> Option<bool> {
        let agent = self.agent.as_ref();
        agent
            .filter(|agent| agent.epoch == epoch)
            .map(|agent| agent.stopped)
    }

    /// A message reaches the control thread of an agent.
    pub fn receive(&mut self, epoch: u64, message: In) {
        match &mut self.agent {
            Some(agent) if agent.epoch == epoch => {
                if agent.stopped {
                    agent.inbox.push(message);
                } else {
                    self.hear(message);
                    self.check_control();
                }
            }
            _ => {}
        }
    }

    fn hear(&mut self, message: In) {
        match message {
            In::Doorbell => self.turn(Shell::wake),
            In::Due(at) => {
                if let Some(agent) = self.agent.as_mut().filter(|agent| agent.due == at) {
                    agent.due = u64::MAX;
                    self.turn(Shell::wake);
                }
            }
            In::Attach(pid) => self.attach(pid),
            In::Objects(pid, waits) => self.objects(pid, waits),
            In::Gone(pid) => self.say(Input::Exited(process_of(pid))),
            In::Node(input) => self.say(input),
        }
    }

    fn say(&mut self, input: Input) {
        self.turn(|shell| shell.take(input));
    }

    /// One turn of the control thread, and what follows from it.
    fn turn(&mut self, begins: impl FnOnce(&mut Shell)) {
        self.time.set(self.now);
        let Some(agent) = &mut self.agent else { return };
        begins(&mut agent.shell);
        agent.shell.rest();
        self.look_at_gates();
        while let Some(heard) = self.agent.as_ref().and_then(|agent| agent.wire.take()) {
            self.answer(heard);
        }
        let Some(agent) = &mut self.agent else { return };
        let due = agent.shell.deadline().max(self.now + 1);
        if due < agent.due {
            agent.due = due;
            let epoch = agent.epoch;
            self.at(due, Ev::Agent(epoch, Box::new(In::Due(due))));
        }
    }

    fn attach(&mut self, pid: usize) {
        let (now, epoch) = (self.now, self.epoch);
        let process = &mut self.processes[pid];
        let Some(agent) = &mut self.agent else { return };
        if !process.alive || process.attached == Some(agent.epoch) {
            return;
        }
        agent.sessions += 1;
        let (session, wire) = (agent.sessions, agent.wire.clone());
        process.new_page(session, now);
        // The gates of a new page are shut, whatever those of the last one were.
        let newcomer = Newcomer {
            session,
            peer: Peer {
                process: process_of(pid),
                uid: 1_000,
                name: String::new(),
            },
            role: if process.is_online() {
                Role::Online
            } else {
                Role::Offline
            },
            rule: String::new(),
            job: process
                .job()
                .map_or_else(String::new, |job| job.to_string()),
            library: Library::default(),
            last_agent_generation: process.obeyed,
            page: Some(PageRef::new(Shared(
                pid,
                Arc::clone(&process.page),
                wire.clone(),
            ))),
            control_file: Some(SentFile(Box::new(()))),
            outbox: Box::new(Stream(wire)),
        };
        process.attached = Some(epoch);
        process.attached_once = true;
        process.obeyed = agent.shell.generation();
        process.reported = BTreeSet::new();
        let devices: Vec<usize> = process.devices.iter().map(|device| device.gpu).collect();
        let online = process.is_online();
        self.say(Input::Attached(Box::new(newcomer)));
        for (at, gpu) in devices.into_iter().enumerate() {
            let slot = u32::try_from(at).unwrap_or(u32::MAX);
            let uuid = uuid(gpu);
            self.say(Input::Said(session, Said::Device { slot, uuid }));
        }
        if online {
            self.processes[pid].reported = (0..self.processes[pid].devices.len()).collect();
            self.wake_prober(pid);
        } else {
            let wait = self.dice.between(50 * US, 500 * US);
            self.tell_in(wait, In::Objects(pid, None));
            self.at(now, Ev::Reporter(pid));
        }
    }

    /// A process says which RM objects it has, and that a scheduling call waits.
    fn objects(&mut self, pid: usize, waits: Option<(usize, TsgId)>) {
        let process = &self.processes[pid];
        if !process.alive || process.attached != Some(self.epoch) {
            return;
        }
        let (session, client) = (process.session, client_of(pid));
        let mut changes = vec![RmChange::ClientUp(client)];
        for device in &process.devices {
            for (tsg, channel) in &device.channels {
                let place = (device.gpu, *tsg, *channel);
                changes.push(RmChange::ChannelUp(self.channel(client, place)));
            }
        }
        let snapshot = true;
        self.say(Input::Said(session, Said::Rm { snapshot, changes }));
        if let Some((gpu, tsg)) = waits {
            self.tickets.push((gpu, tsg));
            let ticket = Ticket {
                ticket: u64::try_from(self.tickets.len()).unwrap_or(u64::MAX),
                client,
                object: self.handle_of_tsg(client, gpu, tsg),
            };
            self.say(Input::Said(session, Said::Schedule(ticket)));
        }
        let devices = self.processes[pid].devices.len();
        if self.proven.contains(&(self.epoch, pid)) || self.level == Level::L5 {
            self.processes[pid].reported = (0..devices).collect();
        }
    }

    fn handle_of_tsg(&self, client: u32, gpu: usize, tsg: TsgId) -> u32 {
        let of = |known: &(&(u32, u32), &TsgId)| known.0.0 == client && *known.1 == tsg;
        let on = |handle: u32| handle >> 16 == u32::try_from(gpu).unwrap_or(0);
        let mut all = self.groups.iter().filter(of).map(|known| known.0.1);
        all.find(|handle| on(*handle)).unwrap_or(0)
    }

    fn channel(&self, client: u32, (gpu, tsg, channel): (usize, TsgId, ChannelId)) -> Channel {
        let of = |known: &(&(u32, u32), &(usize, ChannelId))| {
            known.0.0 == client && *known.1 == (gpu, channel)
        };
        let handle = self.handles.iter().find(of).map_or(0, |known| known.0.1);
        Channel {
            client,
            channel: handle,
            tsg: self.handle_of_tsg(client, gpu, tsg),
            engine: Engine::Graphics,
            device_instance: u32::try_from(gpu).ok(),
            uuid: Some(uuid(gpu)),
            subdevice: 0,
        }
    }

    /// The channels that a batch names; those that are gone are none.
    pub fn channels_of(&self, batch: &Batch) -> Vec<ChannelId> {
        let entries = batch.entries();
        entries
            .filter_map(|(client, channel, _)| self.handles.get(&(client, channel)))
            .map(|(_, channel)| *channel)
            .collect()
    }

    // ------------------------------------------------------------ the world answers

    fn answer(&mut self, heard: Heard) {
        match heard {
            Heard::Task(gpu, task) => {
                if let Some(agent) = &mut self.agent {
                    agent.issue[gpu].queue.push_back(*task);
                }
                self.enter_next(gpu);
            }
            Heard::Claim(claim) => {
                let proof = match claim {
                    Claim::File { session, .. } | Claim::Taken { session, .. } => {
                        let file = Some(File::new(()));
                        Proof::File { session, file }
                    }
                    Claim::Uvm { session, .. } => {
                        let file = None;
                        Proof::Uvm { session, file }
                    }
                    Claim::Client {
                        session,
                        client,
                        file,
                        ..
                    } => {
                        let file = self.lives(client).then_some(file);
                        Proof::Client {
                            session,
                            client,
                            file,
                        }
                    }
                };
                let wait = self.dice.between(20 * US, 300 * US);
                let pid = match &proof {
                    Proof::Client { client, .. } => Some(pid_of(*client)),
                    _ => None,
                };
                self.tell_in(wait, In::Node(Input::Proof(proof)));
                if let Some(pid) = pid {
                    let epoch = self.epoch;
                    self.at(self.now + wait, Ev::Reported(epoch, pid));
                }
            }
            Heard::Again(again) => {
                let owner = if self.lives(again.client) {
                    Owner::Own
                } else {
                    Owner::Nobody
                };
                let wait = self.dice.between(20 * US, 300 * US);
                let aged = Aged {
                    session: again.session,
                    client: again.client,
                    seq: again.seq,
                    owner: Some(owner),
                };
                self.tell_in(wait, In::Node(Input::Aged(aged)));
            }
            Heard::Told(Tell::Go { ticket }) => {
                let at = usize::try_from(ticket).unwrap_or(0).wrapping_sub(1);
                if let Some(&(gpu, tsg)) = self.tickets.get(at) {
                    self.device(gpu).set_scheduled(tsg, true);
                }
            }
            Heard::Told(_) => {}
            Heard::Late(marked) => {
                let places = marked.into_iter().map(|marked| marked.place);
                let released = Released::of(places, Vec::new());
                self.tell_in(MS, In::Node(Input::Released(released)));
            }
            Heard::Woken(pid) => self.offline_feeds(pid),
        }
    }

    fn lives(&self, client: u32) -> bool {
        let process = self.processes.get(pid_of(client));
        process.is_some_and(|process| process.alive)
    }

    // ------------------------------------------------------------ issue threads

    fn enter_next(&mut self, gpu: usize) {
        let Some(agent) = &mut self.agent else { return };
        let (epoch, issue) = (agent.epoch, &mut agent.issue[gpu]);
        let any = issue.working.is_some() || !issue.queue.is_empty();
        if !agent.stopped && !issue.busy && any {
            issue.busy = true;
            let wait = self.dice.between(2 * US, 12 * US);
            self.at(self.now + wait, Ev::Enter(epoch, gpu));
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
        let issue = &mut agent.issue[gpu];
        let mut working = match issue.working.take() {
            Some(working) => working,
            None => match self.next_task(gpu) {
                Some(working) => working,
                None => return,
            },
        };
        let Some(agent) = &mut self.agent else { return };
        let journal = Arc::clone(&agent.journal);
        let disables = working.switch() == Switch::Disable;
        if disables && agent.fakes && agent.faked.insert(gpu) {
            while working.0.call(&journal, now).is_some() {
                working.0.answered(Ok(()), (now, now), &journal);
            }
        }
        match working.0.call(&journal, now).cloned() {
            Some(batch) => {
                agent.issue[gpu].busy = true;
                self.call(epoch, gpu, working, &batch);
            }
            None => {
                let issued = working.0.issued();
                let wait = self.dice.between(3 * US, 12 * US);
                self.tell_in(wait, In::Node(Input::Issued(issued)));
                self.enter_next(gpu);
            }
        }
    }

    /// The next order from a thread's queue; what left the lists is enabled on the way.
    fn next_task(&mut self, gpu: usize) -> Option<Working> {
        loop {
            let agent = self.agent.as_mut()?;
            let issue = &mut agent.issue[gpu];
            match issue.queue.pop_front()? {
                Task::Issue(mut order) => {
                    if self.broken == Break::NoLook {
                        order.look = Look::Unconditional;
                    }
                    if self.broken == Break::StaleOrder {
                        let older = issue.older.replace(order.clone());
                        let again = order.switch == Switch::Enable && self.dice.percent(30);
                        issue.queue.extend(older.filter(|_| again).map(Task::Issue));
                    }
                    return Some(Working(Carrying::new(order)));
                }
                Task::Release(left) => self.release(gpu, left),
            }
        }
    }

    fn release(&mut self, gpu: usize, left: Release) {
        let calls = Calls {
            world: self,
            enabled: RefCell::default(),
            thrown: RefCell::default(),
        };
        let released = release(left, &calls);
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
        let now = self.now;
        if let Some(agent) = &mut self.agent {
            let journal = Arc::clone(&agent.journal);
            working.0.answered(Ok(()), (entered, now), &journal);
            agent.issue[gpu].working = Some(working);
            agent.issue[gpu].busy = false;
            self.enter_next(gpu);
        }
    }
}

/// The driver's calls for channels that left the lists.
struct Calls<'a> {
    world: &'a World,
    enabled: RefCell<Vec<ChannelId>>,
    thrown: RefCell<Vec<ChannelId>>,
}

impl ReleaseCalls for Calls<'_> {
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
