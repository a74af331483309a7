//! A node of three processes: an online and an offline one that behave, and a hostile one.
//!
//! The agent is its control thread as it ships, turned by hand. What stands around it answers here: the
//! prover knows whose an RM client is by the client's number, and the issue thread of the one GPU
//! does what it is ordered and keeps what stands disabled. Whatever the hostile process does, after every
//! turn:
//!
//! * an order names only channels of clients that were proven to be an offline process' own;
//! * the agent has written nothing into the hostile page that is the process' to write;
//! * nobody else lost a page, a channel, a role or an open gate;
//! * what the agent says of the node is bounded and printable;
//!
//! and at the end the online process still takes the GPU back from the offline one.

use crate::files::directory;
use crate::spent;
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::collections::BTreeSet;
use std::mem::offset_of;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tidegate_abi::page::{
    ACTIVITY_BUSY, BYTES, DEVICES, DeviceWords, GATE_OPEN, GATE_STATE, GateWords, Page,
    ProcessWords,
};
use tidegate_agent::channels::issue::Issuer;
use tidegate_agent::channels::journal::{self, Journal};
use tidegate_agent::clock::now_ns;
use tidegate_agent::config::{Config, Level, Loaded, Method, Role, tunables};
use tidegate_agent::control::{About, ControlThread, Machine, MonotonicClock};
use tidegate_agent::grpc::page::shared;
use tidegate_agent::host::notify::Notifier;
use tidegate_agent::host::orders::Orders;
use tidegate_agent::inbox::{
    Ask, Channel, Input, Learnt, Library, Mailbox, Newcomer, NodeInput, Peer, RmChange, Said,
    Stream, Tell, inbox,
};
use tidegate_agent::sys::{SharedPage, SharedWords};
use tidegate_agent::watch::events::EventLog;
use tidegate_node::Parts;
use tidegate_node::batch::Batch;
use tidegate_node::file::{File, SentFile};
use tidegate_node::kinds::{Gpu, Process, Switch, Tenant};
use tidegate_node::message::{Again, Aged, Claim, Owner, Proof};
use tidegate_node::ports::{self, Ports};
use tidegate_node::task::{Carrying, Released, Sliced, Task};
use tidegate_node::text::Text;
use tidegate_proto::v1;
use tokio::sync::{mpsc, oneshot};

/// The sessions.
pub const ONLINE: u64 = 1;
pub const OFFLINE: u64 = 2;
pub const HOSTILE: u64 = 3;
/// The GPU.
pub const UUID: [u8; 16] = [7; 16];
/// Words of a page.
pub const WORDS: usize = BYTES / 8;
const GENERATION: u64 = 5;
/// Bytes in which the agent describes three processes, one of them with all the channels it may have.
const REPORT: usize = 1 << 20;

/// Places of words in a page.
pub const DOORBELL: usize = (offset_of!(Page, process) + offset_of!(ProcessWords, doorbell)) / 8;
pub const MEMORY: usize = offset_of!(Page, memory) / 8;
const AGENT: std::ops::Range<usize> = offset_of!(Page, header) / 8..offset_of!(Page, process) / 8;
const GATES: std::ops::Range<usize> = offset_of!(Page, gates) / 8..MEMORY;

/// The activity word of a place.
pub const fn activity(slot: usize) -> usize {
    (offset_of!(Page, devices) + slot % DEVICES * size_of::<DeviceWords>()) / 8
}

/// The client of a session that it can prove: its number begins with the session's.
pub const fn client_of(session: u64) -> u32 {
    (session as u32) << 28
}

static JOURNAL: LazyLock<Arc<Journal>> = LazyLock::new(|| {
    Arc::new(
        journal::open(&directory("node"))
            .expect("a journal in memory")
            .0,
    )
});

/// Answered by hand.
#[derive(Debug)]
struct Asked {
    claims_tx: Sender<Claim>,
    again_tx: Sender<Again>,
}

impl ports::Prover for Asked {
    fn claim(&self, claim: Claim) {
        let _ = self.claims_tx.send(claim);
    }

    fn again(&self, again: Again) -> bool {
        self.again_tx.send(again).is_ok()
    }
}

pub struct Node {
    control: ControlThread,
    mailbox: Mailbox,
    claims_rx: Receiver<Claim>,
    again_rx: Receiver<Again>,
    tasks_rx: Receiver<Task>,
    /// The processes' views of their pages, and where they listen.
    pages: [SharedWords; 3],
    tells_rx: Vec<mpsc::Receiver<Tell>>,
    roles: [Role; 3],
    /// The hostile page as it was before the turn.
    before: Vec<u64>,
    disabled: BTreeSet<(u32, u32)>,
    longest_turn: Duration,
    acted: Duration,
    /// Memory that was held when the hostile process had said nothing yet.
    begun: usize,
}

/// A process that attaches: of a user of its own, in one job with the others of that user.
fn newcomer(session: u64, role: Role, tell_tx: mpsc::Sender<Tell>) -> Newcomer {
    Newcomer {
        session,
        peer: Peer {
            process: process(session),
            uid: 1_000 + session as u32,
            name: Text::default(),
            ..Peer::default()
        },
        role,
        rule: "rule 1".to_owned(),
        asked: tidegate_agent::inbox::Asked::default(),
        gives: tidegate_policy::fair::Gives::default(),
        job: Text::name("job"),
        joined_by: None,
        library: Library {
            version: Text::name("1"),
            driver: Text::name("580"),
            membarrier: true,
            takes_memory: true,
            says_work: true,
            knows_leases: true,
        },
        last_agent_generation: 0,
        clock: tidegate_node::clock::ProcessClock::default(),
        page: None,
        control_file: None,
        outbox: Box::new(Stream(tell_tx)),
    }
}

/// The process of a session.
pub fn process(session: u64) -> Process {
    Process {
        pid: 100 + session as i32,
        started: session,
    }
}

impl Node {
    /// A node whose third process is `hostile` and was under an agent before, or not.
    pub fn new(hostile: Role, was_gated: bool) -> Self {
        let (mailbox, inbox) = inbox();
        let (claims_tx, claims_rx) = unbounded();
        let (again_tx, again_rx) = unbounded();
        let (issuer, tasks_rx) = Issuer::bounded(4_096);
        let (events, _) = EventLog::start(Arc::default()).expect("a thread");
        let gpu = Gpu {
            device_instance: 0,
            uuid: UUID,
        };
        let parts = Parts {
            tunables: tunables(&Loaded::from(Config::default()), Level::L1),
            method: Method::default(),
            level: Level::L1,
            pool: 8 << 30,
            believe_unproven: false,
            gpus: vec![(gpu, Some(Box::new(issuer)))],
            unseen: 0,
            generation: GENERATION,
            journal: Arc::clone(&JOURNAL),
            adopted: Vec::new(),
            mps: false,
            ports: Ports {
                clock: Box::new(MonotonicClock),
                prover: Box::new(Asked {
                    claims_tx,
                    again_tx,
                }),
                machine: Box::new(Machine {
                    journal: Arc::clone(&JOURNAL),
                    mailbox: mailbox.clone(),
                }),
                events: Box::new(events),
                recorder: None,
            },
        };
        let notifier = Arc::new(Notifier::default());
        let control = ControlThread::new(
            parts,
            inbox,
            notifier,
            About::default(),
            Orders::default(),
            Learnt::new(),
        );
        let roles = [Role::Online, Role::Offline, hostile];
        let mut pages = Vec::new();
        let mut tells_rx = Vec::new();
        for (at, role) in roles.into_iter().enumerate() {
            let (page, file) = SharedPage::create().expect("a page");
            pages.push(SharedWords::map(file.as_fd(), WORDS).expect("of that size"));
            let (tell_tx, tell_rx) = mpsc::channel(64);
            tells_rx.push(tell_rx);
            let session = at as u64 + 1;
            let mut newcomer = newcomer(session, role, tell_tx);
            newcomer.page = Some(shared(page));
            newcomer.control_file = Some(SentFile(Box::new(())));
            newcomer.last_agent_generation = u64::from(was_gated && session == HOSTILE);
            mailbox.put(NodeInput::Attached(Box::new(newcomer)));
        }
        let [one, two, three]: [_; 3] = pages.try_into().expect("three");
        let mut node = Self {
            control,
            mailbox,
            claims_rx,
            again_rx,
            tasks_rx,
            pages: [one, two, three],
            tells_rx,
            roles,
            before: vec![0; WORDS],
            disabled: BTreeSet::new(),
            longest_turn: Duration::ZERO,
            acted: Duration::ZERO,
            begun: 0,
        };
        node.control.begin();
        for session in [ONLINE, OFFLINE] {
            node.say(
                session,
                Said::Device {
                    slot: 0,
                    uuid: UUID,
                },
            );
        }
        node.say(
            OFFLINE,
            Said::Rm {
                snapshot: true,
                changes: vec![
                    RmChange::ClientUp(client_of(OFFLINE)),
                    RmChange::ChannelUp(Self::own_channel()),
                ],
            },
        );
        node.settle();
        node.longest_turn = Duration::ZERO;
        node.begun = spent::held();
        node
    }

    /// One more process of a tenant, without a page: offline, in a job named after its number.
    pub fn attach(&mut self, session: u64, tenant: &Tenant, uid: u32) {
        let (tell_tx, tell_rx) = mpsc::channel(64);
        self.tells_rx.push(tell_rx);
        let mut newcomer = newcomer(session, Role::Offline, tell_tx);
        newcomer.peer.uid = uid;
        newcomer.peer.tenant = tenant.clone();
        newcomer.job = Text::name(&format!("job {session}"));
        self.mailbox.put(NodeInput::Attached(Box::new(newcomer)));
        self.say(
            session,
            Said::Device {
                slot: 0,
                uuid: UUID,
            },
        );
    }

    /// Processor time of the longest turn since.
    pub const fn longest_turn(&self) -> Duration {
        self.longest_turn
    }

    /// Memory that is held beyond what was at the beginning.
    pub fn stays(&self) -> usize {
        spent::held().saturating_sub(self.begun)
    }

    /// The one channel of the offline process that behaves.
    fn own_channel() -> Channel {
        Channel {
            client: client_of(OFFLINE),
            channel: 1,
            tsg: 1,
            engine: tidegate_abi::class::Engine::Graphics,
            device_instance: Some(0),
            uuid: Some(UUID),
            subdevice: 0,
        }
    }

    /// The hostile process writes a word of its page.
    pub fn write(&self, word: usize, value: u64) {
        self.pages[2][word % WORDS].store(value, Release);
    }

    /// The hostile process rings.
    pub fn ring(&self) {
        self.pages[2][DOORBELL].fetch_add(1, AcqRel);
    }

    /// Where questions are put.
    pub fn mailbox(&self) -> Mailbox {
        self.mailbox.clone()
    }

    /// A process says something.
    pub fn say(&self, session: u64, said: Said) {
        self.mailbox.put(NodeInput::Said(session, said));
    }

    /// Any other input about the hostile process.
    pub fn input(&self, input: NodeInput) {
        self.mailbox.put(input);
    }

    /// The agent takes turns until it has heard everything; who stands around it waits for [`Self::settle`].
    pub fn turn(&mut self) {
        let begun = spent::time();
        self.control.turn();
        while self.control.has_input() {
            self.control.turn();
        }
        self.acted += spent::time() - begun;
    }

    /// Processor time of all turns so far.
    pub const fn acted(&self) -> Duration {
        self.acted
    }

    /// The agent takes turns until nobody has anything more to say.
    pub fn settle(&mut self) {
        for round in 0.. {
            // A message may be divided into 256 inputs.
            assert!(round < 1_024, "the agent does not come to rest");
            for (before, word) in self.before.iter_mut().zip(&self.pages[2][..]) {
                *before = word.load(Acquire);
            }
            let begun = spent::time();
            self.control.turn();
            let took = spent::time() - begun;
            self.acted += took;
            self.longest_turn = self.longest_turn.max(took);
            self.look_at_pages();
            // A turn that another program interrupted leaves messages for the next.
            if !self.answer() && !self.control.has_input() {
                break;
            }
        }
        for tells_rx in &mut self.tells_rx {
            while tells_rx.try_recv().is_ok() {}
        }
    }

    /// Answers what the agent asked of those around it; whether there was anything.
    fn answer(&mut self) -> bool {
        let mut any = false;
        while let Ok(claim) = self.claims_rx.try_recv() {
            any = true;
            let file = || File::new(());
            self.mailbox.put(NodeInput::Proof(match claim {
                Claim::File { session, .. } | Claim::Taken { session, .. } => Proof::File {
                    session,
                    file: Some(file()),
                },
                Claim::Client {
                    session, client, ..
                } => Proof::Client {
                    session,
                    client,
                    file: owns(session, client).then(file),
                },
                Claim::Uvm { session, .. } => Proof::Uvm {
                    session,
                    file: None,
                },
                Claim::Beats { session, .. } => Proof::Beats {
                    session,
                    page: None,
                },
            }));
        }
        while let Ok(again) = self.again_rx.try_recv() {
            any = true;
            let owner = if owns(again.session, again.client) {
                Owner::Own
            } else {
                Owner::Foreign
            };
            self.mailbox.put(NodeInput::Aged(Aged {
                session: again.session,
                client: again.client,
                seq: again.seq,
                owner: Some(owner),
            }));
        }
        while let Ok(task) = self.tasks_rx.try_recv() {
            any = true;
            match task {
                Task::Issue(issue) => {
                    let mut carrying = Carrying::new(issue);
                    let switch = carrying.switch();
                    while let Some(batch) = carrying.call(&JOURNAL, now_ns()).cloned() {
                        self.carry_out(&batch, switch);
                        let now = now_ns();
                        carrying.answered(Ok(()), (now, now), &JOURNAL);
                    }
                    self.mailbox.put(NodeInput::Issued(carrying.issued()));
                }
                Task::Slice(slicing) => {
                    let refused = None;
                    let (job, gpu) = (slicing.job, slicing.gpu);
                    let sliced = Sliced { job, gpu, refused };
                    self.mailbox.put(NodeInput::Sliced(sliced));
                }
                Task::Release(release) => {
                    let mut places = Vec::new();
                    for batch in release.batches {
                        self.carry_out(&batch, Switch::Enable);
                        places.extend(batch.places);
                    }
                    let released = Released::of(places.into_iter(), Vec::new());
                    self.mailbox.put(NodeInput::Released(released));
                }
            }
        }
        any
    }

    fn carry_out(&mut self, batch: &Batch, switch: Switch) {
        for (client, channel, _) in batch.entries() {
            let pair = (client, channel);
            let session = u64::from(client >> 28);
            let offline =
                (1..=3).contains(&session) && self.roles[session as usize - 1] == Role::Offline;
            assert!(offline, "an order names a channel of {session}: {pair:x?}");
            match switch {
                Switch::Disable => self.disabled.insert(pair),
                Switch::Enable => self.disabled.remove(&pair),
            };
        }
    }

    fn look_at_pages(&self) {
        for (at, word) in self.pages[2].iter().enumerate() {
            assert!(
                AGENT.contains(&at) || GATES.contains(&at) || word.load(Acquire) == self.before[at],
                "the agent wrote word {at} of a page, which is the process'"
            );
        }
        for gate in GATES.step_by(size_of::<GateWords>() / 8) {
            let state = |page: usize| self.pages[page][gate].load(Acquire) & GATE_STATE;
            assert_eq!(state(0), GATE_OPEN, "a gate of the online process");
            assert!(state(1) < 3, "a gate of the offline process");
        }
    }

    fn report(&mut self) -> v1::GetStatusResponse {
        let (answer_tx, mut answer_rx) = oneshot::channel();
        self.mailbox.put(Input::Ask(Ask::Report(answer_tx)));
        self.settle();
        *answer_rx.try_recv().expect("the agent answers")
    }

    /// What must be true whatever the hostile process did.
    pub fn judge(mut self) {
        let report = self.report();
        let bytes = prost::Message::encoded_len(&report);
        assert!(bytes < REPORT, "{bytes} bytes of status");
        let text = |text: &str| !text.chars().any(char::is_control);
        for process in &report.processes {
            assert!(process.channels <= 1_024, "{process:?}");
            for said in [&process.note, &process.job, &process.name] {
                assert!(text(said), "{said:?} would reach a terminal");
            }
            if ![ONLINE, OFFLINE].contains(&process.session) {
                continue;
            }
            assert_eq!(process.lane, "page", "{process:?}");
            assert_eq!(process.note, "", "{process:?}");
            let channels = u32::from(process.session == OFFLINE);
            assert_eq!(process.channels, channels, "{process:?}");
            assert_eq!(process.proven, channels == 1, "{process:?}");
        }
        for session in [ONLINE, OFFLINE] {
            let there = report.processes.iter().any(|p| p.session == session);
            assert!(there, "process {session} is gone");
        }
        // Busy: the offline process loses the GPU, and the hostile one cannot keep it.
        let word = &self.pages[0][activity(0)];
        word.store(
            ((word.load(Acquire) >> 1) + 1) << 1 | ACTIVITY_BUSY,
            Release,
        );
        self.pages[0][DOORBELL].fetch_add(1, AcqRel);
        self.settle();
        let own = Self::own_channel();
        assert!(
            self.disabled.contains(&(own.client, own.channel)),
            "offline runs beside a busy online process"
        );
    }
}

fn owns(session: u64, client: u32) -> bool {
    u64::from(client >> 28) == session
}
