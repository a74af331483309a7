//! The agent of a schedule: the shell that ships, in an environment that takes drawn times.
//!
//! `tidegate-node` makes every decision, and chooses the order in which decisions reach the driver. Only three things
//! are simulated: how long messages, doorbells and ownership checks take, and that a driver answers.

use crate::defect::Defect;
use crate::dice::{MS, US};
use crate::ports::{Heard, Machine, Queue, Wire};
use crate::timeline::Who;
use crate::world::{Agent, Ev, Fact, In, Issue, Play, World, pid_of, process_of, uuid};
use std::collections::BTreeSet;
use std::sync::Arc;
use tidegate_node::file::File;
use tidegate_node::journal::{Journal, Marked};
use tidegate_node::kinds::{Gpu, Level};
use tidegate_node::message::{Again, Aged, Claim, Owner, Proof, Tell, Tunables};
use tidegate_node::ports::{self, Ports};
use tidegate_node::task::Released;
use tidegate_node::{Input, Parts, Shell};

impl<P: Play> World<P> {
    pub fn agent_starts(&mut self) {
        self.epoch += 1;
        let journal = Journal::over(self.journal.clone()).expect("it was begun as one");
        self.reconcile(&journal);
        // What is still marked waits for its process.
        let adopted = journal.marked();
        let agent = self.new_agent(Arc::new(journal), adopted);
        self.agent = Some(agent);
        self.learns(Fact::Agent {
            up: true,
            new: true,
        });
        for pid in 0..self.processes.len() {
            if self.processes[pid].alive {
                let wait = self.dice.between(MS, 60 * MS);
                self.tell_in(wait, In::Attach(pid));
            }
        }
        self.turn(|shell| shell.begin());
    }

    /// What an earlier agent may have left disabled is enabled before anything else, but where a process is in the
    /// middle of a change of its mappings.
    fn reconcile(&mut self, journal: &Journal) {
        let asks = !self.is_broken(Defect::ForgottenMover);
        for marked in journal.marked() {
            let moves = marked
                .mover
                .is_some_and(|pid| self.switches.is_running(pid));
            if moves && asks {
                continue;
            }
            self.enable_marked(&marked, journal, self.now + 20 * US);
            journal.clear(marked.place);
        }
    }

    fn enable_marked(&mut self, marked: &Marked, journal: &Journal, at: u64) {
        if let Some(&(gpu, channel)) = self.handles.get(&(marked.client, marked.channel)) {
            for _ in 0..journal.enables(&[marked.place]) {
                self.device(gpu).enable_at(at, &[channel], 0);
            }
        }
    }

    fn new_agent(&self, journal: Arc<Journal>, adopted: Vec<Marked>) -> Agent {
        let wire = Wire::default();
        let gpus = usize::from(self.rules.gpus);
        let level = self.rules.level;
        let line = |gpu: usize| {
            let named = Gpu {
                device_instance: u32::try_from(gpu).unwrap_or(u32::MAX),
                uuid: uuid(gpu),
            };
            let queue = Queue(gpu, wire.clone(), self.switches.clone());
            let issuer = Box::new(queue) as Box<dyn ports::Issuer>;
            (named, (level != Level::L5).then_some(issuer))
        };
        self.time.set(self.now);
        let shell = Shell::new(Parts {
            tunables: Tunables {
                policy: self.rules.config,
                rings_per_second: 50_000,
                prove_every_ns: 5_000 * MS,
                stall_ns: 50 * MS,
                answer_ns: 100 * MS,
                users: std::collections::BTreeMap::new(),
            },
            level,
            method: self.rules.method,
            pool: self.rules.pool,
            believe_unproven: false,
            gpus: (0..gpus).map(line).collect(),
            unseen: 0,
            generation: journal.next_generation(),
            journal: Arc::clone(&journal),
            adopted,
            mps: false,
            ports: Ports {
                clock: Box::new(self.time.clone()),
                prover: Box::new(wire.clone()),
                machine: Box::new(Machine(wire.clone(), self.switches.clone())),
                events: Box::new(wire.clone()),
                recorder: self
                    .timeline
                    .clone()
                    .map(|timeline| Box::new(timeline) as Box<dyn ports::Recorder>),
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
            fakes: self.is_broken(Defect::FakedDisables) && self.epoch > 1,
        }
    }

    fn agent_dies(&mut self) {
        self.agent = None;
        self.epoch += 1;
        let now = self.now;
        self.learns(Fact::Agent {
            up: false,
            new: false,
        });
        P::settled(self);
        for pid in 0..self.processes.len() {
            if self.processes[pid].attached.take().is_some() && self.processes[pid].alive {
                P::detached(self, pid);
            }
            let wait = self.dice.between(50 * US, 2 * MS);
            if !self.processes[pid].is_online() {
                self.at(now + wait, Ev::Reporter(pid));
            }
        }
    }

    /// SIGKILL; another starts after `ns`. One that is stopped is left alone.
    pub fn agent_is_killed(&mut self, ns: u64) {
        if self.agent.as_ref().is_some_and(|agent| !agent.stopped) {
            self.agent_dies();
            self.pending += 1;
            self.at(self.now + ns, Ev::AgentStarts);
        }
    }

    /// SIGSTOP for `ns`.
    pub fn agent_is_stopped(&mut self, ns: u64) {
        if self.agent.as_ref().is_some_and(|agent| !agent.stopped) {
            self.agent_stops();
            self.pending += 1;
            self.at(self.now + ns, Ev::AgentGoesOn(self.epoch));
        }
    }

    fn agent_stops(&mut self) {
        if let Some(agent) = &mut self.agent {
            agent.stopped = true;
            self.learns(Fact::Agent {
                up: false,
                new: false,
            });
            P::settled(self);
        }
    }

    pub fn agent_goes_on(&mut self) {
        let Some(agent) = &mut self.agent else { return };
        agent.stopped = false;
        agent.due = u64::MAX;
        let inbox = core::mem::take(&mut agent.inbox);
        self.learns(Fact::Agent {
            up: true,
            new: false,
        });
        self.turn(Shell::wake);
        for message in inbox {
            self.hear(message);
        }
        for gpu in 0..usize::from(self.rules.gpus) {
            self.enter_next(gpu);
        }
        P::settled(self);
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
                    P::settled(self);
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

    pub fn say(&mut self, input: Input) {
        self.turn(|shell| shell.take(input));
    }

    /// One turn of the control thread, and what follows from it.
    fn turn(&mut self, begins: impl FnOnce(&mut Shell)) {
        self.time.set(self.now);
        let Some(agent) = &mut self.agent else { return };
        begins(&mut agent.shell);
        agent.shell.rest();
        P::turned(self);
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

    // ------------------------------------------------------------ the world answers

    fn answer(&mut self, heard: Heard) {
        match heard {
            Heard::Task(gpu, task) => {
                if let Some(agent) = &mut self.agent {
                    agent.issue[gpu].queue.put(*task);
                }
                self.enter_next(gpu);
            }
            Heard::Claim(claim) => self.prove(claim),
            Heard::Again(again) => self.prove_again(&again),
            Heard::Told(_, Tell::Go { ticket }) => {
                let at = usize::try_from(ticket).unwrap_or(0).wrapping_sub(1);
                if let Some(&(gpu, tsg)) = self.tickets.get(at) {
                    self.device(gpu).set_scheduled(tsg, true);
                }
            }
            Heard::Told(session, Tell::Memory(order)) => {
                if let Some(pid) = self.of_session(session) {
                    P::told(self, pid, *order);
                }
            }
            Heard::Told(session, Tell::BeatsWanted) => {
                if let Some(pid) = self.of_session(session) {
                    P::asked_for_beats(self, pid);
                }
            }
            Heard::Told(..) => {}
            Heard::Late(marked) => {
                let journal = self.agent.as_ref().map(|agent| Arc::clone(&agent.journal));
                for (marked, journal) in marked.iter().zip(journal.iter().cycle()) {
                    self.enable_marked(marked, journal, self.now + MS);
                }
                let places = marked.into_iter().map(|marked| marked.place);
                let released = Released::of(places, Vec::new());
                self.tell_in(MS, In::Node(Input::Released(released)));
            }
            Heard::Woken(pid) => P::passes(self, pid),
            Heard::Noted(kind) => {
                self.tells(Who::Agent, || format!("reports the event {kind}"));
                self.play.noted(kind);
            }
        }
    }

    fn prove(&mut self, claim: Claim) {
        let proof = match claim {
            Claim::File { session, .. } | Claim::Taken { session, .. } => {
                let file = Some(File::new(()));
                Proof::File { session, file }
            }
            Claim::Beats { session, .. } => {
                let page = P::beats(self);
                Proof::Beats { session, page }
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

    fn prove_again(&mut self, again: &Again) {
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

    /// That agent was told all of a process' channels, and whose they are.
    pub fn reported(&mut self, epoch: u64, pid: usize) {
        self.proven.insert((epoch, pid));
        let process = &mut self.processes[pid];
        if process.attached == Some(epoch) {
            process.reported = (0..process.devices.len()).collect();
            P::settled(self);
        }
    }

    pub fn lives(&self, client: u32) -> bool {
        let process = self.processes.get(pid_of(client));
        process.is_some_and(|process| process.alive)
    }
}
