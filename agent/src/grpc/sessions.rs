//! The Runtime service: one stream per connection of a preloaded library.
//!
//! It turns messages into [`NodeInput`]s and [`Tell`]s into messages, decides the role, and knows nothing
//! of channels or gates. What comes in is hostile until shown otherwise ([`heard`]).

use crate::clock::now_ns;
use crate::config::{AgentLoss, Config, Loaded, OnAgentLoss};
use crate::grpc::budget::{Budget, Purse};
use crate::grpc::heard::{self, Hello, HookReport, Read, memory};
use crate::grpc::incoming::Carried;
use crate::grpc::peers::{Greeted, Peer};
use crate::grpc::rooms::{Room, Rooms};
use crate::host::reaper::Reaper;
use crate::host::yard::Yard;
use crate::identity::rules::{decide, refused};
use crate::identity::{self, names};
use crate::identity::{Credentials, Subject};
use crate::inbox::{
    Asked, Input, Mailbox, Newcomer, NodeInput, Peer as NodePeer, SetChannels, Stream, Tell,
};

use crate::wire::{level, method, role};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_node::clock::{ProcessClock, Stamp};
use tidegate_node::file::SentFile;
use tidegate_node::kinds::{Process, Tenant};
use tidegate_node::page::LeaseState;
use tidegate_node::text::Text;
use tidegate_policy::fair::Gives;
use tidegate_proto::v1;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::StreamExt;
use tonic::{Request, Response, Status, Streaming};

/// Messages on their way to one process.
const OUTBOX: usize = 1_024;

/// What it understands of memory, as `Welcome.memory` counts it: stripes by their kinds.
const MEMORY: u32 = 1;

/// Hook reports of the attached processes, for status.
#[derive(Debug)]
pub struct HookReports {
    rooms: Arc<Rooms>,
    kept: Mutex<HashMap<u64, (HookReport, Room)>>,
}

/// Bytes of all reports that are kept: they have to fit into one answer.
const REPORTS: usize = 16 << 20;
/// The refusal that status shows for a tenant whose hook report is not kept.
const UNKEPT: &str = "too many bytes in reports on hooks: they are not kept";

impl HookReports {
    /// None yet. Each takes its room of `rooms`.
    #[must_use]
    pub fn new(rooms: Arc<Rooms>) -> Self {
        Self {
            rooms,
            kept: Mutex::default(),
        }
    }

    fn put(&self, session: u64, tenant: &Tenant, report: HookReport) {
        let mut kept = self.lock();
        kept.remove(&session);
        let all: usize = kept.values().map(|(report, _)| report.bytes()).sum();
        if all + report.bytes() > REPORTS {
            return self.rooms.refuse(tenant, UNKEPT);
        }
        if let Some(room) = self.rooms.take_or_refuse(tenant, report.bytes(), UNKEPT) {
            kept.insert(session, (report, room));
        }
    }

    fn remove(&self, session: u64) {
        self.lock().remove(&session);
    }

    /// The last report of a session.
    #[must_use]
    pub fn get(&self, session: u64) -> Option<HookReport> {
        self.lock().get(&session).map(|(report, _)| report.clone())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, (HookReport, Room)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What closes the connection of each attached process. A process has one: the older one goes when it attaches again.
#[derive(Debug, Default)]
struct Attached(Mutex<HashMap<Process, (u64, oneshot::Sender<()>)>>);

impl Attached {
    /// `process` attached as `session`.
    fn enter(&self, process: Process, session: u64, cut_tx: oneshot::Sender<()>) {
        let older = self.lock().insert(process, (session, cut_tx));
        if let Some((older, cut_tx)) = older {
            tracing::debug!(
                older,
                session,
                pid = process.pid,
                "a process attached again"
            );
            let _ = cut_tx.send(());
        }
    }

    /// `session` has ended: its connection is closed when its last word was read.
    fn leave(&self, process: Process, session: u64) {
        let mut all = self.lock();
        if all
            .get(&process)
            .is_some_and(|(known, _)| *known == session)
        {
            all.remove(&process);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Process, (u64, oneshot::Sender<()>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The Runtime service.
#[derive(Debug)]
pub struct Sessions {
    in_force: watch::Receiver<Arc<Loaded>>,
    mailbox: Mailbox,
    reaper: Arc<Reaper>,
    hooks: Arc<HookReports>,
    budget: Arc<Budget>,
    yard: Yard,
    attached: Arc<Attached>,
}

impl Sessions {
    /// A service that decides by what is in force when a process attaches.
    #[must_use]
    pub fn new(
        in_force: watch::Receiver<Arc<Loaded>>,
        mailbox: Mailbox,
        reaper: Arc<Reaper>,
        hooks: Arc<HookReports>,
        budget: Arc<Budget>,
        yard: Yard,
    ) -> Self {
        Self {
            in_force,
            mailbox,
            reaper,
            hooks,
            budget,
            yard,
            attached: Arc::default(),
        }
    }

    fn newcomer(
        config: &Config,
        peer: &Peer,
        greeted: Greeted,
        hello: Hello,
        clock: ProcessClock,
        tell_tx: mpsc::Sender<Tell>,
    ) -> Newcomer {
        let subject = Subject::of(&peer.credentials, &config.identity);
        let decision = decide(&config.identity, &subject, hello.wishes);
        let asked = Asked {
            role: hello.wishes,
            refused: refused(
                hello.wishes,
                &hello.unknown_role,
                peer.credentials.uid,
                &decision,
            ),
        };
        // A page of another major means other words: the client does not use it either.
        let page = greeted
            .page
            .filter(|_| hello.page_version >> 16 == tidegate_abi::page::MAJOR);
        Newcomer {
            session: greeted.session,
            peer: NodePeer {
                process: peer.credentials.process(),
                uid: peer.credentials.uid,
                name: peer.credentials.name.clone(),
                tenant: peer.credentials.tenant.clone(),
                whereabouts: names::of(
                    &peer.credentials.place,
                    &subject.labels,
                    &config.identity.pod_logs,
                ),
            },
            role: decision.role,
            rule: decision.rule,
            asked,
            gives: Gives {
                weight: decision.gives.weight.min(hello.weight.unwrap_or(u32::MAX)),
                ..decision.gives
            },
            job: job_name(&peer.credentials, hello.job),
            joined_by: decision.joined_by,
            library: hello.library,
            last_agent_generation: hello.last_agent_generation,
            clock,
            page: page.map(crate::grpc::page::shared),
            control_file: greeted.control_file.map(|file| SentFile(Box::new(file))),
            outbox: Box::new(Stream(tell_tx)),
        }
    }
}

/// The clock of a process that said hello at `heard_ns`. None: nobody tells how far it is from ours.
fn clock(peer: &Peer, greeted: &Greeted, hello: &Hello, heard_ns: u64) -> Option<ProcessClock> {
    let stamp = hello.clock_ns.map(|theirs_ns| Stamp {
        theirs_ns,
        from_ns: greeted.greeted_ns,
        to_ns: heard_ns,
    });
    ProcessClock::found(identity::clock::ahead_ns(peer.credentials.pid), stamp)
}

/// The job a process names, else its cgroup, else itself.
fn job_name(peer: &Credentials, named: Text) -> Text {
    if !named.is_empty() {
        named
    } else if peer.cgroup.to_compare().len() > 1 {
        peer.cgroup.name()
    } else {
        Text::name(&format!("pid {}", peer.pid))
    }
}

/// What the connection was greeted with.
fn take_greeted(peer: &Peer) -> Result<Greeted, Status> {
    let greeted = peer.greeted.as_ref().and_then(|greeted| {
        let mut greeted = greeted.lock().unwrap_or_else(PoisonError::into_inner);
        greeted.take()
    });
    greeted.ok_or_else(|| Status::failed_precondition("a connection attaches once: connect again"))
}

#[tonic::async_trait]
impl v1::runtime_server::Runtime for Sessions {
    type AttachStream = std::pin::Pin<
        Box<dyn tokio_stream::Stream<Item = Result<v1::AgentCommand, Status>> + Send>,
    >;

    async fn attach(
        &self,
        request: Request<Streaming<v1::ClientEvent>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let peer = request
            .extensions()
            .get::<Peer>()
            .cloned()
            .ok_or_else(|| Status::internal("the connection has no peer"))?;
        let mut greeted = take_greeted(&peer)?;
        let carried = request.extensions().get::<Carried>().cloned();
        let mut events = heard::Stream::new(request.into_inner(), carried.unwrap_or_default());
        let hello = events.hello().await?;
        let heard_ns = now_ns();
        let Some(clock) = clock(&peer, &greeted, &hello, heard_ns) else {
            self.budget
                .refuse(&peer.credentials.tenant, identity::clock::UNKNOWN);
            return Err(Status::failed_precondition(identity::clock::UNKNOWN));
        };
        let (heard_tx, heard_rx) = watch::channel(0);
        // With a page edges are read there.
        let paced = hello.paces && (greeted.page.is_none() || hello.page_version == 0);
        let session = greeted.session;
        let process = peer.credentials.process();
        let pidfd = greeted
            .pidfd
            .try_clone()
            .map_err(|error| Status::resource_exhausted(error.to_string()))?;
        let (tell_tx, tell_rx) = mpsc::channel(OUTBOX);
        if let Some(cut_tx) = greeted.cut_tx.take() {
            self.attached.enter(process, session, cut_tx);
        }
        let loaded = Arc::clone(&self.in_force.borrow());
        self.yard.house(session, peer.credentials.tenant.clone());
        let newcomer = Self::newcomer(&loaded.config, &peer, greeted, hello, clock, tell_tx);
        self.mailbox.put(NodeInput::Attached(Box::new(newcomer)));
        if let Err(error) = self.reaper.watch(process, pidfd) {
            self.mailbox.put(NodeInput::Disconnected(session));
            self.yard.leave(session);
            self.attached.leave(process, session);
            return Err(Status::resource_exhausted(error.to_string()));
        }
        let (refused_tx, refused_rx) = mpsc::channel(1);
        let listener = Listener {
            session,
            process,
            tenant: peer.credentials.tenant.clone(),
            mailbox: self.mailbox.clone(),
            hooks: Arc::clone(&self.hooks),
            attached: Arc::clone(&self.attached),
            yard: self.yard.clone(),
        };
        let purse = self.budget.purse(
            &peer.credentials.tenant,
            loaded.config.tuning.messages_per_second,
        );
        tokio::spawn(listener.listen(events, purse, (refused_tx, heard_tx)));
        let limits = limits(&loaded.config);
        let commands = tokio_stream::wrappers::ReceiverStream::new(tell_rx)
            .map(move |tell| Ok(command(tell, limits)));
        let refusal = tokio_stream::wrappers::ReceiverStream::new(refused_rx)
            .map(|why: &str| Err(Status::resource_exhausted(why)));
        let (count_tx, count_rx) = mpsc::channel(1);
        if paced {
            tokio::spawn(count(heard_rx, count_tx));
        }
        let heard = tokio_stream::wrappers::ReceiverStream::new(count_rx)
            .map(|messages| Ok(said_heard(messages)));
        Ok(Response::new(Box::pin(
            commands.merge(refusal).merge(heard),
        )))
    }
}

/// Who reads a client's stream.
struct Listener {
    session: u64,
    process: Process,
    tenant: Tenant,
    mailbox: Mailbox,
    hooks: Arc<HookReports>,
    attached: Arc<Attached>,
    yard: Yard,
}

impl Listener {
    /// Reads it to its end.
    async fn listen(
        self,
        mut events: heard::Stream,
        mut purse: Purse,
        (refused_tx, heard_tx): (mpsc::Sender<&'static str>, watch::Sender<u64>),
    ) {
        let session = self.session;
        while let Some(heard) = events.next().await {
            match heard.pay(&mut purse, now_ns()) {
                Ok(None) => {}
                Ok(Some(pause)) => tokio::time::sleep(pause).await,
                Err(why) => {
                    let _ = refused_tx.send(why).await;
                    break;
                }
            }
            let (read, room) = heard.read();
            match read {
                Read::Hooks(report) => self.hooks.put(session, &self.tenant, report),
                Read::Said(parts) => {
                    for said in parts {
                        let Some(ahead) = purse.go_ahead(room.clone()).await else {
                            break;
                        };
                        let said = NodeInput::Said(session, said);
                        self.mailbox.put(Input::Node(said, Some(ahead)));
                    }
                }
            }
            heard_tx.send_replace(events.messages());
        }
        self.hooks.remove(session);
        self.yard.leave(session);
        self.mailbox.put(NodeInput::Disconnected(session));
        self.attached.leave(self.process, session);
    }
}

/// Says how many messages were read, as often as that is taken: only the newest count matters.
async fn count(mut heard_rx: watch::Receiver<u64>, count_tx: mpsc::Sender<u64>) {
    while heard_rx.changed().await.is_ok() {
        let messages = *heard_rx.borrow_and_update();
        if count_tx.send(messages).await.is_err() {
            return;
        }
    }
}

fn said_heard(messages: u64) -> v1::AgentCommand {
    let heard = v1::agent_command::Command::Heard(v1::Heard { messages });
    v1::AgentCommand {
        command: Some(heard),
    }
}

fn command(tell: Tell, limits: v1::Limits) -> v1::AgentCommand {
    use v1::agent_command::Command;
    let command = match tell {
        Tell::Welcome(welcome) => Command::Welcome(v1::Welcome {
            session: welcome.session,
            role: role(welcome.role).into(),
            level: level(welcome.level).into(),
            agent_generation: welcome.agent_generation,
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            limits: Some(limits),
            launch_gates: true,
            method: method(welcome.method).into(),
            hears: true,
            memory: MEMORY,
        }),
        Tell::Gate { slot, closed } => Command::LaunchGate(v1::LaunchGate { slot, closed }),
        Tell::Go { ticket } => Command::ScheduleGo(v1::ScheduleGo { ticket }),
        Tell::Set(SetChannels {
            seq,
            switch,
            pairs,
            device_instance,
            method: by,
            more,
        }) => Command::SetChannels(v1::SetChannels {
            seq,
            disable: switch.disables(),
            pairs: pairs
                .into_iter()
                .map(|(client, channel)| v1::ChannelPair { client, channel })
                .collect(),
            device_instance: i32::try_from(device_instance).unwrap_or(-1),
            method: method(by).into(),
            more,
        }),
        Tell::Memory(order) => memory::command(*order),
        Tell::BeatsWanted => Command::BeatsWanted(v1::BeatsWanted {}),
        Tell::Lease { slot, lease } => Command::Lease(v1::Lease {
            slot,
            lease: match lease.state {
                LeaseState::None => 0,
                LeaseState::Given | LeaseState::Withdrawn => lease.number,
            },
            withdrawn: lease.state == LeaseState::Withdrawn,
            until_ns: lease.until_ns,
            units: u64::from(lease.units),
            tokens: 0,
            resident_layers: None,
        }),
    };
    v1::AgentCommand {
        command: Some(command),
    }
}

fn limits(config: &Config) -> v1::Limits {
    let nanos = crate::clock::nanos;
    let AgentLoss { action, max_hold } = config.agent_loss;
    v1::Limits {
        probe_interval_ns: nanos(config.tuning.probe_interval),
        busy_suspect_ns: nanos(config.gate.busy_suspect),
        schedule_hold_ns: nanos(config.tuning.schedule_hold),
        on_agent_loss: match action {
            OnAgentLoss::Hold => v1::OnAgentLoss::Hold,
            OnAgentLoss::Run => v1::OnAgentLoss::Run,
        }
        .into(),
        max_hold_ns: nanos(max_hold),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plain::Foreign;
    use tidegate_node::text::NAME;

    /// P-SECURITY-22: what a tenant says or makes does not multiply in the log.
    #[test]
    fn a_job_that_is_named_by_a_cgroup_has_a_short_name() {
        let peer = Credentials {
            cgroup: Foreign::new(format!("/{}/last", "d/".repeat(1_800))),
            ..Credentials::default()
        };
        let name = job_name(&peer, Text::default());
        assert!(
            name.chars().count() <= NAME && name.ends_with("/last"),
            "{name}"
        );
        assert_eq!(job_name(&peer, Text::name("batch")).as_str(), "batch");
    }
}
