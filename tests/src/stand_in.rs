//! A stand-in for the agent, driven step by step by its test: it greets and attaches the preloaded library of real
//! programs, hears all they say, and says what the test wants said.
//!
//! Channels are switched through the program itself (level L3), so the device's own history judges what became of them.

use crate::{Node, monotonic_ns, wait_for};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate_abi::page::{
    GATE_CLOSED, GATE_HELD, GATE_OPEN, LEASE_GIVEN, LEASE_NONE, LEASE_NUMBER, LEASE_WITHDRAWN,
    LEASED_NUMBER, LEASED_OVER, LEASED_UNITS,
};
use tidegate_agent::grpc::crowd::Crowd;
use tidegate_agent::grpc::peers::{self, Pages, Peer};
use tidegate_agent::host::yard::Yard;
use tidegate_agent::sys::{SharedPage, futex_wake_low};
use tidegate_proto::v1::agent_command::Command;
use tidegate_proto::v1::client_event::Event;
use tidegate_proto::v1::{self, rm_event};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
use tonic::{Request, Response, Status, Streaming};

/// How long a process may take to obey where no test asks for less.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// How a launch gate stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Launches pass.
    Open,
    /// Launches wait.
    Closed,
    /// A reclaim is under way.
    Held,
}

/// One attached process.
#[derive(Debug)]
pub struct Session {
    page: SharedPage,
    command_tx: mpsc::UnboundedSender<Result<v1::AgentCommand, Status>>,
    heard: Vec<Event>,
    ended: bool,
}

impl Session {
    /// The page shared with the process.
    #[must_use]
    pub fn page(&self) -> &tidegate_abi::page::Page {
        &self.page
    }

    /// Whether its stream has ended.
    #[must_use]
    pub const fn ended(&self) -> bool {
        self.ended
    }

    /// Everything the process has said, in order.
    #[must_use]
    pub fn heard(&self) -> &[Event] {
        &self.heard
    }
}

type Sessions = Arc<Mutex<Vec<Session>>>;

#[derive(Clone, Debug)]
struct Runtime {
    sessions: Sessions,
    role: v1::Role,
}

#[tonic::async_trait]
impl v1::runtime_server::Runtime for Runtime {
    type AttachStream = UnboundedReceiverStream<Result<v1::AgentCommand, Status>>;

    async fn attach(
        &self,
        request: Request<Streaming<v1::ClientEvent>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let greeted = request
            .extensions()
            .get::<Peer>()
            .and_then(|peer| peer.greeted.as_ref()?.lock().ok()?.take())
            .ok_or_else(|| Status::internal("not greeted"))?;
        let page = greeted.page.ok_or_else(|| Status::internal("no page"))?;
        let (command_tx, command_rx) = mpsc::unbounded_channel();
        let welcome = v1::Welcome {
            session: greeted.session,
            role: self.role.into(),
            level: v1::ChannelLevel::L3Interposer.into(),
            agent_generation: 1,
            ..v1::Welcome::default()
        };
        let _ = command_tx.send(Ok(command(Command::Welcome(welcome))));
        let index = {
            let mut sessions = self.sessions.lock().expect("not poisoned");
            sessions.push(Session {
                page,
                command_tx: command_tx.clone(),
                heard: Vec::new(),
                ended: false,
            });
            sessions.len() - 1
        };
        let sessions = Arc::clone(&self.sessions);
        let (mut events, cut_tx) = (request.into_inner(), greeted.cut_tx);
        tokio::spawn(async move {
            // The connection stays for as long as the stream is read.
            let _cut_tx = cut_tx;
            while let Some(Ok(message)) = events.next().await {
                let Some(event) = message.event else { continue };
                if let Event::ScheduleRequest(wanted) = &event {
                    let go = v1::ScheduleGo {
                        ticket: wanted.ticket,
                    };
                    let _ = command_tx.send(Ok(command(Command::ScheduleGo(go))));
                }
                sessions.lock().expect("not poisoned")[index]
                    .heard
                    .push(event);
            }
            sessions.lock().expect("not poisoned")[index].ended = true;
        });
        Ok(Response::new(UnboundedReceiverStream::new(command_rx)))
    }
}

const fn command(command: Command) -> v1::AgentCommand {
    v1::AgentCommand {
        command: Some(command),
    }
}

/// The stand-in, until it is dropped.
#[derive(Debug)]
pub struct StandIn {
    sessions: Sessions,
    runtime: Option<tokio::runtime::Runtime>,
    ended: Arc<AtomicBool>,
    seq: u64,
}

impl StandIn {
    /// Serves `node`'s run directory and gives every process `role`.
    ///
    /// # Panics
    /// When it cannot.
    #[must_use]
    pub fn start(node: &Node, role: v1::Role) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime can be made");
        let sessions = Sessions::default();
        let service = Runtime {
            sessions: Arc::clone(&sessions),
            role,
        };
        let path = node.run_dir().join(tidegate_proto::HOOK_SOCKET);
        runtime.block_on(async {
            // An earlier one's, which is gone.
            let _ = std::fs::remove_file(&path);
            let listener = tokio::net::UnixListener::bind(path).expect("the directory is writable");
            let (connection_tx, connection_rx) = mpsc::channel(16);
            let (pages, crowd) = (
                Arc::new(Pages::new(1)),
                Arc::new(Crowd::new(64, Yard::start(64))),
            );
            tokio::spawn(peers::accept_greeted(listener, pages, crowd, connection_tx));
            let service = v1::runtime_server::RuntimeServer::new(service);
            let server = tonic::transport::Server::builder().add_service(service);
            tokio::spawn(server.serve_with_incoming(ReceiverStream::new(connection_rx)));
        });
        let ended = Arc::new(AtomicBool::new(false));
        let (beating, stopped) = (Arc::clone(&sessions), Arc::clone(&ended));
        std::thread::spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                for session in beating.lock().expect("not poisoned").iter() {
                    let word = &session.page.agent.heartbeat_ns;
                    word.store(monotonic_ns(), Ordering::Release);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Self {
            sessions,
            runtime: Some(runtime),
            ended,
            seq: 0,
        }
    }

    /// Ends as an agent does that is killed: every stream is cut, and nothing is said.
    pub fn die(&mut self) {
        self.ended.store(true, Ordering::Release);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// Asks session `at` something.
    ///
    /// # Panics
    /// When a handler panicked.
    pub fn with<T>(&self, at: usize, ask: impl FnOnce(&Session) -> T) -> Option<T> {
        self.sessions.lock().expect("not poisoned").get(at).map(ask)
    }

    /// Waits until session `at` has said something that `wanted` takes, from its `from`-th word on.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    pub fn hear<T>(&self, at: usize, what: &str, wanted: impl Fn(&Event) -> Option<T>) -> T {
        wait_for(what, || {
            self.with(at, |session| session.heard.iter().rev().find_map(&wanted))?
        })
    }

    /// Says something to session `at`.
    ///
    /// # Panics
    /// When there is no such session.
    pub fn say(&self, at: usize, what: Command) {
        self.with(at, |session| {
            let _ = session.command_tx.send(Ok(command(what)));
        })
        .expect("the session has attached");
    }

    /// Sets the launch gate of session `at`.
    ///
    /// # Panics
    /// When there is no such session.
    pub fn gate(&self, at: usize, gate: Gate) {
        let state = match gate {
            Gate::Open => GATE_OPEN,
            Gate::Closed => GATE_CLOSED,
            Gate::Held => GATE_HELD,
        };
        self.with(at, |session| {
            for gate in &session.page.gates {
                let next = ((gate.gate.load(Ordering::Relaxed) >> 2) + 1) << 2 | state;
                gate.gate.store(next, Ordering::Release);
                futex_wake_low(&gate.gate);
            }
        })
        .expect("the session has attached");
    }

    /// Gives session `at` a lease of all its devices, and opens its gate after that.
    ///
    /// # Panics
    /// When there is no such session.
    pub fn lend(&self, at: usize, lease: &v1::Lease) {
        self.with(at, |session| {
            for words in &session.page.gates {
                words
                    .lease_until_ns
                    .store(lease.until_ns, Ordering::Release);
                words.lease_units.store(lease.units, Ordering::Release);
                words.lease_tokens.store(lease.tokens, Ordering::Release);
                let resident = lease.resident_layers.map_or(0, |layers| layers + 1);
                words.resident_layers.store(resident, Ordering::Release);
            }
        })
        .expect("the session has attached");
        self.lease_word(at, lease.lease, LEASE_GIVEN);
        self.gate(at, Gate::Open);
    }

    /// Says that no unit of session `at` may begin any more under a lease.
    pub fn withdraw(&self, at: usize, lease: u64) {
        self.lease_word(at, lease, LEASE_WITHDRAWN);
    }

    /// Closes the gate of session `at`, and takes its lease away after that.
    pub fn take_back(&self, at: usize, lease: u64) {
        self.gate(at, Gate::Closed);
        self.lease_word(at, lease, LEASE_NONE);
    }

    fn lease_word(&self, at: usize, lease: u64, state: u64) {
        self.with(at, |session| {
            for words in &session.page.gates {
                let word = lease << LEASE_NUMBER | state;
                words.lease.store(word, Ordering::Release);
                futex_wake_low(&words.lease);
            }
        })
        .expect("the session has attached");
    }

    /// Waits until session `at` says that a lease of its first device is over; the units that ran.
    ///
    /// # Panics
    /// When it does not say so.
    #[track_caller]
    #[must_use]
    pub fn over(&self, at: usize, lease: u64) -> u64 {
        wait_for("the end of a lease", || {
            let word = self.with(at, |session| {
                session.page.memory[0].leased.load(Ordering::Acquire)
            })?;
            let over = word & LEASED_OVER != 0 && word >> LEASED_NUMBER == lease;
            over.then_some(word & LEASED_UNITS)
        })
    }

    /// Ends the stream of session `at`.
    ///
    /// # Panics
    /// When there is no such session.
    pub fn cut(&self, at: usize) {
        self.with(at, |session| {
            let _ = session.command_tx.send(Err(Status::unavailable("no more")));
        })
        .expect("the session has attached");
    }

    /// A number for an order.
    pub fn seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    /// The (client, channel) pairs that session `at` has now.
    fn pairs(&self, at: usize) -> Vec<v1::ChannelPair> {
        let mut pairs: Vec<v1::ChannelPair> = Vec::new();
        self.with(at, |session| {
            let changes = session.heard.iter().filter_map(|event| match event {
                Event::Rm(events) => Some(&events.events),
                _ => None,
            });
            for change in changes.flatten().filter_map(|change| change.event.as_ref()) {
                match change {
                    rm_event::Event::ChannelUp(up) => pairs.push(v1::ChannelPair {
                        client: up.client,
                        channel: up.channel,
                    }),
                    rm_event::Event::ChannelDown(down) => {
                        pairs.retain(|p| (p.client, p.channel) != (down.client, down.channel));
                    }
                    rm_event::Event::ClientDown(down) => pairs.retain(|p| p.client != down.client),
                    rm_event::Event::ClientUp(_) => {}
                }
            }
        });
        pairs
    }

    /// Disables or enables every channel of session `at` and waits until it is done.
    ///
    /// # Panics
    /// When it fails.
    #[track_caller]
    pub fn channels(&mut self, at: usize, disable: bool) {
        for pairs in self.pairs(at).chunks(64) {
            let seq = self.seq();
            let set = v1::SetChannels {
                seq,
                disable,
                pairs: pairs.to_vec(),
                device_instance: 0,
                ..v1::SetChannels::default()
            };
            self.say(at, Command::SetChannels(set));
            let result = self.hear(at, "the channels' switch", |event| match event {
                Event::ChannelResult(result) if result.seq == seq => Some(*result),
                _ => None,
            });
            assert_eq!((result.status, result.errno), (0, 0), "{result:?}");
        }
    }

    /// Holds the gate of session `at` and asks whether nobody is inside a call that may hold locks.
    ///
    /// # Panics
    /// When it does not answer.
    #[track_caller]
    pub fn check(&mut self, at: usize, limit: Duration) -> v1::Checked {
        self.gate(at, Gate::Held);
        let seq = self.seq();
        let deadline_ns = after(limit);
        self.say(at, Command::Check(v1::Check { seq, deadline_ns }));
        // That it is late may be said before what came of it.
        let answers = self.answers(at, "Checked", |event| match event {
            Event::Checked(said) if said.seq == seq => Some((said.clone(), said.result())),
            _ => None,
        });
        answers.last().expect("an answer for good").clone()
    }

    /// Takes stripes of session `at`, whose gate is held and whose channels are disabled; every answer.
    ///
    /// # Panics
    /// When it does not answer for good.
    #[track_caller]
    pub fn reclaim(&mut self, at: usize, kv: u32, stripes: &[u32]) -> Vec<v1::Reclaimed> {
        let seq = self.order_reclaim(at, kv, stripes, PATIENCE);
        self.reclaimed(at, seq)
    }

    /// Orders stripes of session `at` to be taken; the order's number.
    pub fn order_reclaim(&mut self, at: usize, kv: u32, stripes: &[u32], limit: Duration) -> u64 {
        let seq = self.seq();
        let order = v1::Reclaim {
            seq,
            kv,
            stripes: stripes.to_vec(),
            deadline_ns: after(limit),
        };
        self.say(at, Command::Reclaim(order));
        seq
    }

    /// Every answer to a reclaim that was ordered.
    ///
    /// # Panics
    /// When it is not answered for good.
    #[track_caller]
    #[must_use]
    pub fn reclaimed(&self, at: usize, seq: u64) -> Vec<v1::Reclaimed> {
        self.answers(at, "Reclaimed", |event| match event {
            Event::Reclaimed(done) if done.seq == seq => Some((done.clone(), done.result())),
            _ => None,
        })
    }

    /// Backs stripes of session `at` again; every answer.
    ///
    /// # Panics
    /// When it does not answer for good.
    #[track_caller]
    pub fn restore(&mut self, at: usize, kv: u32, stripes: &[u32]) -> Vec<v1::Restored> {
        let seq = self.seq();
        let order = v1::Restore {
            seq,
            kv,
            stripes: stripes.to_vec(),
            deadline_ns: after(PATIENCE),
        };
        self.say(at, Command::Restore(order));
        self.answers(at, "Restored", |event| match event {
            Event::Restored(done) if done.seq == seq => Some((done.clone(), done.result())),
            _ => None,
        })
    }

    /// All answers to an order, the last of which is not that it is late.
    #[track_caller]
    fn answers<T>(
        &self,
        at: usize,
        what: &str,
        of: impl Fn(&Event) -> Option<(T, v1::MemoryResult)>,
    ) -> Vec<T> {
        wait_for(what, || {
            self.with(at, |session| {
                let answers: Vec<_> = session.heard.iter().filter_map(&of).collect();
                let last = answers.last()?.1;
                (last != v1::MemoryResult::Late)
                    .then(|| answers.into_iter().map(|(answer, _)| answer).collect())
            })?
        })
    }

    /// Waits for the registration of the first cache of session `at`.
    ///
    /// # Panics
    /// When there is none.
    #[track_caller]
    pub fn cache(&self, at: usize) -> v1::KvRegistered {
        self.hear(at, "a KV cache", |event| match event {
            Event::KvRegistered(kv) => Some(kv.clone()),
            _ => None,
        })
    }

    /// Opens the gate of session `at` once it has said which device it uses.
    #[track_caller]
    pub fn let_run(&self, at: usize) {
        self.hear(at, "a device", |event| match event {
            Event::DeviceSeen(seen) => Some(seen.slot),
            _ => None,
        });
        self.gate(at, Gate::Open);
    }
}

/// `CLOCK_MONOTONIC` nanoseconds in `limit`.
fn after(limit: Duration) -> u64 {
    monotonic_ns() + u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.die();
    }
}
