//! The Runtime service: one stream per connection of a preloaded library.
//!
//! It turns messages into [`NodeInput`]s and [`Tell`]s into messages, decides the role, and knows nothing
//! of channels or gates. What comes in is hostile until shown otherwise: sizes and rates are bounded
//! here, so that the control thread's queue is.

mod memory;

use crate::clock::now_ns;
use crate::config::{AgentLoss, Config, Loaded, OnAgentLoss, Role};
use crate::grpc::budget::{Budget, Purse};
use crate::grpc::peers::{Greeted, Peer};
use crate::host::reaper::Reaper;
use crate::host::yard::Yard;
use crate::identity::rules::decide;
use crate::identity::{Credentials, Subject};
use crate::inbox::{
    Channel, Input, Library, Mailbox, Newcomer, NodeInput, Peer as NodePeer, RmChange, Said,
    SetChannels, Stream, Tell, Ticket,
};
use crate::plain;
use crate::wire::{level, method, method_said, role};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate_abi::class::Engine;
use tidegate_node::file::SentFile;
use tidegate_node::page::Activity;
use tidegate_proto::v1;
use tidegate_proto::v1::client_event::Event;
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt;
use tonic::{Request, Response, Status, Streaming};

/// How long a client may take for its Hello.
const HELLO_LIMIT: Duration = Duration::from_secs(5);
/// Messages on their way to one process.
const OUTBOX: usize = 1_024;
/// Largest message of a client: a snapshot of 1 024 channels is under 64 KiB.
pub const MESSAGE_LIMIT: usize = 1 << 20;

/// Hook reports of the attached processes, for status.
#[derive(Debug, Default)]
pub struct HookReports(Mutex<HashMap<u64, v1::HookReport>>);

impl HookReports {
    fn put(&self, session: u64, report: v1::HookReport) {
        self.lock().insert(session, report);
    }

    fn remove(&self, session: u64) {
        self.lock().remove(&session);
    }

    /// The last report of a session.
    #[must_use]
    pub fn get(&self, session: u64) -> Option<v1::HookReport> {
        self.lock().get(&session).cloned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u64, v1::HookReport>> {
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
}

impl Sessions {
    /// A service that decides by what is in force when a process attaches.
    #[must_use]
    pub const fn new(
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
        }
    }

    fn newcomer(
        config: &Config,
        peer: &Peer,
        greeted: Greeted,
        hello: v1::Hello,
        tell_tx: mpsc::Sender<Tell>,
    ) -> Newcomer {
        let wishes = match hello.wished_role() {
            v1::Role::Online => Some(Role::Online),
            v1::Role::Offline => Some(Role::Offline),
            v1::Role::Ignore => Some(Role::Ignore),
            v1::Role::Unspecified => None,
        };
        let subject = Subject::of(&peer.credentials, &config.identity);
        let decision = decide(&config.identity, &subject, wishes);
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
            },
            role: decision.role,
            rule: decision.rule,
            job: job_name(&peer.credentials, &hello.job),
            library: Library {
                version: plain::name(&hello.version),
                driver: plain::name(&hello.driver_version),
                membarrier: hello.membarrier,
                takes_memory: hello.memory != 0,
            },
            last_agent_generation: hello.last_agent_generation,
            page: page.map(crate::grpc::page::shared),
            control_file: greeted.control_file.map(|file| SentFile(Box::new(file))),
            outbox: Box::new(Stream(tell_tx)),
        }
    }
}

/// The job a process names, else its cgroup, else itself.
fn job_name(peer: &Credentials, named: &str) -> String {
    if !named.is_empty() {
        plain::name(named)
    } else if peer.cgroup.len() > 1 {
        plain::line(&peer.cgroup)
    } else {
        format!("pid {}", peer.pid)
    }
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
        let greeted = peer
            .greeted
            .as_ref()
            .and_then(|greeted| {
                let mut greeted = greeted.lock().unwrap_or_else(PoisonError::into_inner);
                greeted.take()
            })
            .ok_or_else(|| {
                Status::failed_precondition("a connection attaches once: connect again")
            })?;
        let mut events = request.into_inner();
        let first = tokio::time::timeout(HELLO_LIMIT, events.next())
            .await
            .map_err(|_| Status::deadline_exceeded("say Hello first"))?;
        let Some(Ok(v1::ClientEvent {
            event: Some(Event::Hello(hello)),
        })) = first
        else {
            return Err(Status::failed_precondition("say Hello first"));
        };
        let session = greeted.session;
        let process = peer.credentials.process();
        let pidfd = greeted
            .pidfd
            .try_clone()
            .map_err(|error| Status::resource_exhausted(error.to_string()))?;
        let (tell_tx, tell_rx) = mpsc::channel(OUTBOX);
        let loaded = Arc::clone(&self.in_force.borrow());
        self.yard.house(session, peer.credentials.tenant.clone());
        let newcomer = Self::newcomer(&loaded.config, &peer, greeted, hello, tell_tx);
        self.mailbox.put(NodeInput::Attached(Box::new(newcomer)));
        if let Err(error) = self.reaper.watch(process, pidfd) {
            self.mailbox.put(NodeInput::Disconnected(session));
            self.yard.leave(session);
            return Err(Status::resource_exhausted(error.to_string()));
        }
        let (refused_tx, refused_rx) = mpsc::channel(1);
        tokio::spawn(listen(
            session,
            events,
            self.mailbox.clone(),
            Arc::clone(&self.hooks),
            self.budget.purse(
                &peer.credentials.tenant,
                loaded.config.tuning.messages_per_second,
            ),
            refused_tx,
            self.yard.clone(),
        ));
        let limits = limits(&loaded.config);
        let commands = tokio_stream::wrappers::ReceiverStream::new(tell_rx)
            .map(move |tell| Ok(command(tell, limits)));
        let refusal = tokio_stream::wrappers::ReceiverStream::new(refused_rx)
            .map(|why: &str| Err(Status::resource_exhausted(why)));
        Ok(Response::new(Box::pin(commands.merge(refusal))))
    }
}

/// Reads a client's stream to its end.
async fn listen(
    session: u64,
    mut events: Streaming<v1::ClientEvent>,
    mailbox: Mailbox,
    hooks: Arc<HookReports>,
    mut purse: Purse,
    refused_tx: mpsc::Sender<&'static str>,
    yard: Yard,
) {
    loop {
        let event = match events.next().await {
            Some(Ok(message)) => message.event,
            // The usual end of a process is a broken stream: nothing to worry about.
            Some(Err(status)) => {
                tracing::debug!(session, %status, "stream ended");
                break;
            }
            None => break,
        };
        // Of a newer library.
        let Some(event) = event else { continue };
        match purse.pay(&event, now_ns()) {
            Ok(None) => {}
            Ok(Some(pause)) => tokio::time::sleep(pause).await,
            Err(why) => {
                let _ = refused_tx.send(why).await;
                break;
            }
        }
        if let Event::Hooks(report) = event {
            hooks.put(session, bounded(report));
        } else if let Some(said) = said(event) {
            for said in slices(said) {
                let Some(ahead) = purse.go_ahead().await else {
                    break;
                };
                mailbox.put(Input::Node(NodeInput::Said(session, said), Some(ahead)));
            }
        }
    }
    hooks.remove(session);
    yard.leave(session);
    mailbox.put(NodeInput::Disconnected(session));
}

/// Rows of a hook report that are kept; a library has some hundreds.
const ROWS: usize = 1_024;

/// A hook report as it is kept.
fn bounded(mut report: v1::HookReport) -> v1::HookReport {
    report.rows.truncate(ROWS);
    for row in &mut report.rows {
        row.symbol = plain::name(&row.symbol);
    }
    report.unhooked.truncate(ROWS);
    for abi in &mut report.unhooked {
        abi.name = plain::name(&abi.name);
    }
    report
}

/// Changes to RM objects that the control thread is told of at once. A snapshot is one: what is not in it is gone.
const SLICE: usize = 64;

/// A long message in parts, between which others are heard.
fn slices(said: Said) -> Vec<Said> {
    match said {
        Said::Rm {
            snapshot: false,
            changes,
        } if changes.len() > SLICE => changes
            .chunks(SLICE)
            .map(|part| Said::Rm {
                snapshot: false,
                changes: part.to_vec(),
            })
            .collect(),
        said => vec![said],
    }
}

/// What the control thread is told of a message; none: nothing, or it does not parse.
#[must_use]
pub fn said(event: Event) -> Option<Said> {
    Some(match event {
        // A second Hello says nothing new.
        Event::Hello(_) | Event::Hooks(_) => return None,
        Event::KvRegistered(_)
        | Event::KvGone(_)
        | Event::Checked(_)
        | Event::Reclaimed(_)
        | Event::Restored(_)
        | Event::Requests(_)
        | Event::Withheld(_)
        | Event::Usage(_)
        | Event::Demand(_)
        | Event::Mapped(_)
        | Event::Pressure(_) => Said::Memory(Box::new(memory::said(event)?)),
        Event::DeviceSeen(seen) => Said::Device {
            slot: seen.slot,
            uuid: seen.uuid.try_into().ok()?,
        },
        Event::Rm(events) => Said::Rm {
            snapshot: events.snapshot,
            changes: events.events.into_iter().filter_map(change).collect(),
        },
        Event::ScheduleRequest(request) => Said::Schedule(Ticket {
            ticket: request.ticket,
            client: request.client,
            object: request.object,
        }),
        Event::Edge(edge) => Said::Edge {
            slot: edge.slot,
            edge: Activity {
                word: edge.activity,
                busy_since_ns: if edge.busy { edge.at_ns } else { 0 },
                idle_since_ns: if edge.busy { 0 } else { edge.at_ns },
                launches: edge.launches,
                graph: edge.graph,
            },
        },
        Event::ChannelResult(result) => Said::Channels {
            seq: result.seq,
            status: result.status,
            errno: result.errno,
            entered_ns: result.entered_ns,
            returned_ns: result.returned_ns,
            method: method_said(result.method()),
        },
        Event::Suspect(suspect) => Said::Suspect {
            slot: suspect.slot,
            reason: u32::try_from(suspect.reason).unwrap_or(0),
        },
        Event::Note(note) => Said::Note {
            kind: plain::name(&note.kind),
            text: plain::name(&note.text),
        },
        Event::GateWait(wait) => Said::GateWait(wait.waiting),
        Event::UvmFile(file) => Said::Uvm(file.fd),
        Event::ControlFile(file) => Said::ControlFile(file.fd),
    })
}

fn change(event: v1::RmEvent) -> Option<RmChange> {
    use v1::rm_event::Event;
    Some(match event.event? {
        Event::ChannelUp(up) => RmChange::ChannelUp(Channel {
            client: up.client,
            channel: up.channel,
            tsg: up.tsg,
            engine: match up.engine() {
                v1::Engine::Graphics => Engine::Graphics,
                v1::Engine::Copy => Engine::Copy,
                v1::Engine::Video => Engine::Video,
                v1::Engine::Unspecified => Engine::Unknown,
            },
            device_instance: u32::try_from(up.device_instance).ok(),
            uuid: up.uuid.try_into().ok(),
            subdevice: up.subdevice,
        }),
        Event::ChannelDown(down) => RmChange::ChannelDown {
            client: down.client,
            channel: down.channel,
        },
        Event::ClientUp(up) => RmChange::ClientUp(up.client),
        Event::ClientDown(down) => RmChange::ClientDown(down.client),
    })
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

    #[test]
    fn what_does_not_parse_is_skipped() {
        let seen = v1::DeviceSeen {
            slot: 0,
            uuid: vec![1; 15],
        };
        assert!(said(Event::DeviceSeen(seen)).is_none());
        assert!(change(v1::RmEvent { event: None }).is_none());
    }
}
