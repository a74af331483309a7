//! A node whose world is played by hand: time stands still unless it is moved, issue threads do what they are told
//! when they are asked to, and the prover finds every client to be its reporter's own.

#![allow(dead_code, reason = "every test file uses its part of it")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate_abi::class::Engine;
use tidegate_abi::page::{ACTIVITY_BUSY, Page};
use tidegate_abi::rm::Status;
use tidegate_node::batch::Batch;
use tidegate_node::beats::BeatRef;
use tidegate_node::clock::ProcessClock;
use tidegate_node::file::{File, SentFile};
use tidegate_node::journal::{Journal, Marked};
use tidegate_node::kinds::{Gpu, Level, Method, Process, Role, Switch, Tenant};
use tidegate_node::message::{
    Again, Aged, Channel, Claim, Library, Newcomer, Owner, Peer, Proof, RmChange, Said, Tell,
    Tunables,
};
use tidegate_node::page::{PageMemory, PageRef};
use tidegate_node::ports::{self, NodeEvent, Ports};
use tidegate_node::task::{Arms, Carrying, Release, Released, Sliced, Taken, Task};
use tidegate_node::text::Text;
use tidegate_node::{Input, Parts, Shell};
use tidegate_policy::config::{Config, Cooldown};
use tidegate_policy::fair::Gives;

/// Tasks that an issue thread's queue holds.
pub const QUEUE: usize = 8;
/// Pages are of memory that only the test and the shell see.
#[derive(Debug)]
struct TestPage(Arc<Page>);

impl PageMemory for TestPage {
    fn page(&self) -> &Page {
        &self.0
    }

    fn wake_gate(&self, _slot: usize) {}
}

#[derive(Clone, Debug)]
pub struct Hand(Arc<AtomicU64>);

impl ports::Clock for Hand {
    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// An edge that comes while the shell is at something else.
#[derive(Debug, Default)]
pub struct Meanwhile {
    /// Claims that the shell has handed on.
    claims: AtomicU64,
    /// The claim at which the edge comes, and the page on which it does.
    edge: Mutex<Option<(u64, Arc<Page>)>>,
    /// Claims handed on when the first disable after the edge was ordered; 0: none was.
    pub ordered_at: AtomicU64,
}

impl Meanwhile {
    /// Claims that the shell has handed on.
    pub fn claims(&self) -> u64 {
        self.claims.load(Ordering::Relaxed)
    }

    fn claimed(&self) {
        let claims = self.claims.fetch_add(1, Ordering::Relaxed) + 1;
        let mut edge = self.edge.lock().expect("no test panics with it");
        if edge.as_ref().is_some_and(|(at, _)| *at == claims)
            && let Some((_, page)) = edge.take()
        {
            self.ordered_at.store(0, Ordering::Relaxed);
            let word = page.devices[0].activity.load(Ordering::Acquire);
            let next = ((word >> 1) + 1) << 1 | ACTIVITY_BUSY;
            page.devices[0].activity.store(next, Ordering::Release);
            page.process.doorbell.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn ordered(&self, task: &Task) {
        if matches!(task, Task::Issue(issue) if issue.switch.disables()) {
            let (claims, order) = (self.claims.load(Ordering::Relaxed), Ordering::Relaxed);
            let _ = self.ordered_at.compare_exchange(0, claims, order, order);
        }
    }
}

#[derive(Clone, Debug)]
pub struct Queue(SyncSender<Task>, Arc<Meanwhile>);

impl ports::Issuer for Queue {
    fn put(&self, task: Task) -> Result<(), Task> {
        self.1.ordered(&task);
        self.0.try_send(task).map_err(|refused| match refused {
            std::sync::mpsc::TrySendError::Full(task)
            | std::sync::mpsc::TrySendError::Disconnected(task) => task,
        })
    }

    fn keeps_armed(&self) -> bool {
        true
    }
}

/// Questions to the prover.
#[derive(Debug)]
enum Question {
    Claim(Claim),
    Again(Again),
}

#[derive(Debug)]
struct Asked(SyncSender<Question>, Arc<Meanwhile>);

impl ports::Prover for Asked {
    fn claim(&self, claim: Claim) {
        self.1.claimed();
        self.0.try_send(Question::Claim(claim)).expect("room");
    }

    fn again(&self, again: Again) -> bool {
        self.0.try_send(Question::Again(again)).is_ok()
    }
}

#[derive(Debug)]
struct NoMachine;

impl ports::Machine for NoMachine {
    fn release_late(&self, marked: Vec<Marked>) {
        panic!("released late: {marked:?}");
    }

    fn is_running(&self, _pid: u32) -> bool {
        false
    }
}

/// Kinds of the events that were told.
#[derive(Clone, Debug, Default)]
pub struct Told(Arc<Mutex<Vec<&'static str>>>);

impl Told {
    /// All so far.
    pub fn kinds(&self) -> Vec<&'static str> {
        self.0.lock().expect("no test panics with it").clone()
    }
}

impl ports::EventSink for Told {
    fn event(&self, event: NodeEvent) {
        let mut told = self.0.lock().expect("no test panics with it");
        if told.len() < told.capacity() {
            told.push(event.kind);
        }
    }
}

#[derive(Debug)]
struct Listens;

impl ports::Outbox for Listens {
    fn tell(&self, _tell: Tell) -> bool {
        true
    }
}

/// A GPU's issue thread, and its channels.
pub struct Played {
    pub issuer: Queue,
    task_rx: Receiver<Task>,
    /// How often each channel is disabled, as firmware counts.
    pub disabled: BTreeMap<(u32, u32), u32>,
    /// Number and direction of every order, as they came, while they are kept.
    pub orders: Vec<(u64, Switch)>,
    pub keeps_orders: bool,
    /// Calls it made.
    pub calls: u64,
    /// Clients whose channels were disabled at any time.
    pub ever_disabled: BTreeSet<u32>,
    /// Clients that the driver knows nothing of: it refuses a call that names one.
    pub unknown: BTreeSet<u32>,
    /// The driver refuses calls for several clients.
    pub takes_one_client: bool,
    /// A refused call takes effect on the pairs before the one for which it is refused; else on none.
    pub refuses_late: bool,
    /// What it may do without being told.
    pub arms: Arms,
    /// What it has done so, and not said yet.
    unheard: Vec<Input>,
    /// What it has taken and not begun.
    taken: VecDeque<Task>,
    /// It sits in a call that does not return.
    pub stands: bool,
}

pub struct Rig {
    pub shell: Shell,
    now: Arc<AtomicU64>,
    pub gpus: Vec<Played>,
    question_rx: Receiver<Question>,
    journal: Arc<Journal>,
    pages: Vec<Arc<Page>>,
    pub told: Told,
    pub meanwhile: Arc<Meanwhile>,
    /// What is in those that attach.
    pub library: Library,
    /// Those that attach say at once which GPUs they use.
    pub names_devices: bool,
    /// Offline processes have a channel on each GPU that they use.
    pub has_channels: bool,
    /// Those that attach use these GPUs.
    pub uses: Vec<usize>,
    /// The clock of all processes.
    pub clock: ProcessClock,
    /// What the next page for iterations is found to be.
    pub beats: Option<BeatRef>,
}

const fn uuid(gpu: usize) -> [u8; 16] {
    [gpu as u8 + 1; 16]
}

pub const fn client(session: u64) -> u32 {
    0xc1d0_0000 | session as u32
}

impl Rig {
    /// A node of `gpus` GPUs with nobody attached.
    pub fn new(gpus: usize, config: Config) -> Self {
        let now = Arc::new(AtomicU64::new(1_000_000_000));
        let (question_tx, question_rx) = sync_channel(1_024);
        let journal = Arc::new(Journal::private());
        let told = Told(Arc::new(Mutex::new(Vec::with_capacity(4_096))));
        let meanwhile = Arc::new(Meanwhile::default());
        let played: Vec<Played> = (0..gpus)
            .map(|_| {
                let (issuer, task_rx) = sync_channel(QUEUE);
                Played {
                    issuer: Queue(issuer, Arc::clone(&meanwhile)),
                    task_rx,
                    disabled: BTreeMap::new(),
                    orders: Vec::new(),
                    keeps_orders: true,
                    calls: 0,
                    ever_disabled: BTreeSet::new(),
                    unknown: BTreeSet::new(),
                    takes_one_client: false,
                    refuses_late: false,
                    arms: Arms::default(),
                    unheard: Vec::new(),
                    taken: VecDeque::new(),
                    stands: false,
                }
            })
            .collect();
        let line = |(index, gpu): (usize, &Played)| {
            let named = Gpu {
                device_instance: index as u32,
                uuid: uuid(index),
            };
            let issuer: Box<dyn ports::Issuer> = Box::new(gpu.issuer.clone());
            (named, Some(issuer))
        };
        let mut shell = Shell::new(Parts {
            tunables: Tunables {
                policy: config,
                rings_per_second: 1_000_000,
                prove_every_ns: 5_000_000_000,
                stall_ns: 50_000_000,
                answer_ns: 100_000_000,
                users: std::collections::BTreeMap::new(),
            },
            level: Level::L1,
            method: Method::default(),
            pool: 0,
            believe_unproven: false,
            gpus: played.iter().enumerate().map(line).collect(),
            unseen: 0,
            generation: 1,
            journal: Arc::clone(&journal),
            adopted: Vec::new(),
            mps: false,
            ports: Ports {
                clock: Box::new(Hand(Arc::clone(&now))),
                prover: Box::new(Asked(question_tx, Arc::clone(&meanwhile))),
                machine: Box::new(NoMachine),
                events: Box::new(told.clone()),
                recorder: None,
            },
        });
        shell.begin();
        Self {
            shell,
            now,
            gpus: played,
            question_rx,
            journal,
            pages: Vec::new(),
            told,
            meanwhile,
            library: Library::default(),
            names_devices: true,
            has_channels: true,
            uses: (0..gpus).collect(),
            clock: ProcessClock::default(),
            beats: None,
        }
    }

    /// The page of a session, as its process writes it.
    pub fn page(&self, session: u64) -> Arc<Page> {
        Arc::clone(&self.pages[session as usize - 1])
    }

    /// A configuration without waiting times.
    pub fn without_waits() -> Config {
        Config {
            cooldown: Cooldown::Fixed(Duration::ZERO),
            start_hold: Duration::ZERO,
            ..Config::default()
        }
    }

    pub fn pass(&self, ns: u64) {
        self.now.fetch_add(ns, Ordering::Relaxed);
    }

    pub fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// A process that uses the GPUs of [`Self::uses`]; an offline one has a channel on each. Sessions are numbered from 1.
    pub fn attach(&mut self, role: Role, job: &str) -> u64 {
        self.attach_of(1_000, role, job, Gives::default())
    }

    /// The same of a user, with what the rules give it.
    pub fn attach_of(&mut self, uid: u32, role: Role, job: &str, gives: Gives) -> u64 {
        let page = Arc::new(Page::default());
        self.pages.push(Arc::clone(&page));
        let session = self.pages.len() as u64;
        self.shell.take(Input::Attached(Box::new(Newcomer {
            session,
            peer: Peer {
                process: Process {
                    pid: 100 + session as i32,
                    started: session,
                },
                uid,
                name: Text::name("test"),
                tenant: Tenant::User(uid),
                ..Peer::default()
            },
            role,
            rule: "rule 1".to_owned(),
            asked: tidegate_node::message::Asked::default(),
            gives,
            job: Text::name(job),
            joined_by: None,
            library: self.library.clone(),
            last_agent_generation: 0,
            clock: self.clock,
            page: Some(PageRef::new(TestPage(page))),
            control_file: Some(SentFile(Box::new(()))),
            outbox: Box::new(Listens),
        })));
        if self.names_devices {
            self.name_devices(session);
        }
        if role == Role::Offline && self.has_channels {
            let client = client(session);
            let channel = |gpu: usize| Channel {
                client,
                channel: gpu as u32 + 1,
                tsg: gpu as u32 + 1,
                engine: Engine::Graphics,
                device_instance: Some(gpu as u32),
                uuid: Some(uuid(gpu)),
                subdevice: 0,
            };
            let mut changes = vec![RmChange::ClientUp(client)];
            changes.extend(
                self.uses
                    .iter()
                    .map(|gpu| RmChange::ChannelUp(channel(*gpu))),
            );
            let snapshot = true;
            self.say(session, Said::Rm { snapshot, changes });
        }
        self.rest();
        session
    }

    /// A process says which GPUs it uses.
    pub fn name_devices(&mut self, session: u64) {
        for gpu in self.uses.clone() {
            let (slot, uuid) = (gpu as u32, uuid(gpu));
            self.say(session, Said::Device { slot, uuid });
        }
    }

    /// An engine says how many of its requests are in flight, as `tg_requests_in_flight` does, and rings where it must.
    pub fn requests(&self, session: u64, count: u64) {
        let process = &self.pages[session as usize - 1].process;
        let before = process.in_flight.swap(count + 1, Ordering::AcqRel);
        if before == 0 || (before > 1) != (count > 0) {
            process.doorbell.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// The agent's last sign of life, as a process reads it.
    pub fn heartbeat(&self, session: u64) -> u64 {
        let page = &self.pages[session as usize - 1];
        page.agent.heartbeat_ns.load(Ordering::Acquire)
    }

    /// How often the agent asks a process whether it has work.
    pub fn asked(&self, session: u64) -> Duration {
        let page = &self.pages[session as usize - 1];
        Duration::from_nanos(page.agent.work_probe_ns.load(Ordering::Acquire))
    }

    /// A process ends.
    pub fn exit(&mut self, session: u64) {
        self.shell.take(Input::Exited(Process {
            pid: 100 + session as i32,
            started: session,
        }));
        self.rest();
    }

    /// Online becomes busy on GPU 0 when the shell has handed on so many claims more.
    pub fn edge_after(&self, online: u64, claims: u64) {
        let at = self.meanwhile.claims.load(Ordering::Relaxed) + claims;
        let page = Arc::clone(&self.pages[online as usize - 1]);
        let mut edge = self.meanwhile.edge.lock().expect("no test panics with it");
        *edge = Some((at, page));
    }

    pub fn say(&mut self, session: u64, said: Said) {
        self.shell.take(Input::Said(session, said));
    }

    /// An online process becomes busy or idle on a GPU, and rings.
    pub fn edge(&self, session: u64, gpu: usize, busy: bool, launches: u64) {
        let page = &self.pages[session as usize - 1];
        let (words, now) = (&page.devices[gpu], self.clock.there(self.now()));
        let word = words.activity.load(Ordering::Acquire);
        let next = ((word >> 1) + 1) << 1;
        if busy {
            words.busy_since_ns.store(now, Ordering::Relaxed);
        } else {
            words.idle_since_ns.store(now, Ordering::Relaxed);
            words.launches.store(launches, Ordering::Relaxed);
        }
        let state = if busy { ACTIVITY_BUSY } else { 0 };
        words.activity.store(next | state, Ordering::Release);
        page.process.prober_ns.store(now, Ordering::Relaxed);
        page.process.doorbell.fetch_add(1, Ordering::AcqRel);
    }

    /// An online process launches something more on a device that is busy.
    pub fn launch(&self, session: u64, gpu: usize) {
        let words = &self.pages[session as usize - 1].devices[gpu];
        words.total.fetch_add(1, Ordering::Relaxed);
    }

    /// How many of so many milliseconds a channel of each session was enabled, by the issue threads' own list.
    pub fn enabled<const N: usize>(&mut self, sessions: [u64; N], ms: u64) -> [u64; N] {
        let mut on = [0; N];
        for _ in 0..ms {
            self.pass(1_000_000);
            self.probe();
            self.rest();
            for (on, session) in on.iter_mut().zip(sessions) {
                *on += u64::from(!self.gpus[0].disabled.contains_key(&(client(session), 1)));
            }
        }
        on
    }

    /// Whether a session's channel on a GPU is enabled, by the issue thread's own list.
    pub fn is_on(&self, session: u64, gpu: usize) -> bool {
        let channel = (client(session), gpu as u32 + 1);
        !self.gpus[gpu].disabled.contains_key(&channel)
    }

    /// The processes' probers make a round.
    pub fn probe(&self) {
        for page in &self.pages {
            let theirs = self.clock.there(self.now());
            page.process.prober_ns.store(theirs, Ordering::Relaxed);
        }
    }

    /// The issue threads look at what their armed orders watch, and act on it; how many did. The shell hears of it
    /// later.
    pub fn look(&mut self) -> usize {
        let now = self.now();
        let looks = self.gpus.iter_mut();
        looks.map(|gpu| gpu.look(&self.journal, now)).sum()
    }

    /// An online process' word changes without an edge, as no library writes it.
    pub fn forge(&self, session: u64, gpu: usize, busy: bool) {
        let word = &self.pages[session as usize - 1].devices[gpu].activity;
        let state = if busy { ACTIVITY_BUSY } else { 0 };
        let stands = word.load(Ordering::Acquire) & !ACTIVITY_BUSY;
        word.store(stands | state, Ordering::Release);
    }

    /// Turns, and answers, until nobody has anything to say.
    pub fn rest(&mut self) {
        for _ in 0..1_000 {
            self.shell.wake();
            self.shell.rest();
            if !self.answer() {
                return;
            }
        }
        panic!("the shell does not come to rest");
    }

    /// The world does all it was told; whether it was anything.
    pub fn answer(&mut self) -> bool {
        let mut any = false;
        while let Ok(question) = self.question_rx.try_recv() {
            any = true;
            self.shell.take(match question {
                Question::Claim(Claim::File { session, .. } | Claim::Taken { session, .. }) => {
                    let file = Some(File::new(()));
                    Input::Proof(Proof::File { session, file })
                }
                Question::Claim(Claim::Client {
                    session,
                    client,
                    file,
                    ..
                }) => Input::Proof(Proof::Client {
                    session,
                    client,
                    file: Some(file),
                }),
                Question::Claim(Claim::Beats { session, .. }) => {
                    let page = self.beats.take();
                    Input::Proof(Proof::Beats { session, page })
                }
                Question::Claim(Claim::Uvm { session, .. }) => {
                    let file = None;
                    Input::Proof(Proof::Uvm { session, file })
                }
                Question::Again(again) => Input::Aged(Aged {
                    session: again.session,
                    client: again.client,
                    seq: again.seq,
                    owner: Some(Owner::Own),
                }),
            });
        }
        while self.answer_one() {
            any = true;
        }
        any
    }

    /// One GPU's thread does one task; whether there was any.
    pub fn answer_one(&mut self) -> bool {
        let (now, journal) = (self.now(), &self.journal);
        let mut gpus = self.gpus.iter_mut();
        let Some(input) = gpus.find_map(|gpu| gpu.work(journal, now)) else {
            return false;
        };
        self.shell.take(input);
        true
    }
}

impl Played {
    /// Tasks that it was given and has not done.
    pub fn waiting(&mut self) -> usize {
        self.taken.extend(self.task_rx.try_iter());
        self.taken.len()
    }

    /// Does one task, if there is one, and answers it.
    fn work(&mut self, journal: &Journal, now: u64) -> Option<Input> {
        if self.stands {
            return None;
        }
        if let Some(unheard) = self.unheard.pop() {
            return Some(unheard);
        }
        let taken = self.taken.pop_front();
        match taken.or_else(|| self.task_rx.try_recv().ok())? {
            Task::Issue(issue) => {
                if self.keeps_orders {
                    self.orders.push((issue.order.generation.0, issue.switch));
                }
                Some(match self.arms.take(issue) {
                    Taken::Carry(carrying) => self.carry_out(carrying, journal, now),
                    Taken::Done(issued) => Input::Issued(issued),
                })
            }
            Task::Slice(slicing) => {
                let (job, gpu, refused) = (slicing.job, slicing.gpu, None);
                Some(Input::Sliced(Sliced { job, gpu, refused }))
            }
            Task::Release(Release { batches, .. }) => {
                self.arms.released();
                for batch in &batches {
                    for _ in 0..journal.enables(&batch.places) {
                        set(&mut self.disabled, batch, batch.pairs(), Switch::Enable);
                    }
                }
                let places = batches.into_iter().flat_map(|batch| batch.places);
                Some(Input::Released(Released::of(places, Vec::new())))
            }
        }
    }

    fn carry_out(&mut self, mut carrying: Carrying, journal: &Journal, now: u64) -> Input {
        let switch = carrying.switch();
        while let Some(batch) = carrying.call(journal, now) {
            self.calls += 1;
            let first = batch.call.h_client_list[0];
            let bad = batch.entries().position(|(client, ..)| {
                self.unknown.contains(&client) || (self.takes_one_client && client != first)
            });
            let answer = bad.map_or(Ok(()), |_| Err(Status::INVALID_CHANNEL));
            let reached = match bad {
                Some(at) if self.refuses_late => at,
                Some(_) => 0,
                None => batch.pairs(),
            };
            if self.keeps_orders {
                set(&mut self.disabled, batch, reached, switch);
                if switch.disables() {
                    let clients = batch.entries().map(|(client, ..)| client);
                    self.ever_disabled.extend(clients.take(reached));
                }
            }
            carrying.answered(answer, (now, now), journal);
        }
        Input::Issued(self.arms.done(carrying))
    }

    fn look(&mut self, journal: &Journal, now: u64) -> usize {
        let mut acts = 0;
        while let Some(carrying) = self.arms.due() {
            acts += 1;
            let input = self.carry_out(carrying, journal, now);
            self.unheard.push(input);
        }
        acts
    }

    /// Fills its queue, as a driver does that owes thousands of answers.
    pub fn clog(&self) {
        let nothing = || Release {
            batches: Vec::new(),
            dead: None,
        };
        while ports::Issuer::put(&self.issuer, Task::Release(nothing())).is_ok() {}
    }
}

/// Sets the first `pairs` of a batch.
fn set(disabled: &mut BTreeMap<(u32, u32), u32>, batch: &Batch, pairs: usize, switch: Switch) {
    for (client, channel, _) in batch.entries().take(pairs) {
        let pair = (client, channel);
        match switch {
            Switch::Disable => *disabled.entry(pair).or_default() += 1,
            Switch::Enable => {
                // One too many does nothing.
                let left = disabled.remove(&pair).unwrap_or(0).saturating_sub(1);
                if left > 0 {
                    disabled.insert(pair, left);
                }
            }
        }
    }
}
