//! Serves the sockets until the agent is told to end.

use super::error::{AppError, starting};
use crate::config::Config;
use crate::control::ControlThread;
use crate::grpc::activation::Passed;
use crate::grpc::apart::Apart;
use crate::grpc::authority::{self, Authorisation, Operators, Socket};
use crate::grpc::bounds::{Bounds, REQUEST};
use crate::grpc::budget::{Budget, MESSAGE_LIMIT};
use crate::grpc::crowd::Crowd;
use crate::grpc::peers::{self, Connection, Pages};
use crate::grpc::reload::InForce;
use crate::grpc::rooms::Rooms;
use crate::grpc::server;
use crate::grpc::service::{Made, Service};
use crate::grpc::sessions::{HookReports, Sessions};
use crate::grpc::sockets::{self, Maker};
use crate::grpc::standing::Standing;
use crate::host::leases::LeasesFile;
use crate::host::logs::LogLevel;
use crate::host::means::Means;
use crate::host::notify::Notifier;
use crate::host::reaper::Reaper;
use crate::host::rundir::{self, RunDir};
use crate::host::yard::Yard;
use crate::inbox::{Ask, Asker, Learnt, Mailbox, NodeInput};
use crate::watch::denials::Denials;
use crate::watch::events::EventLog;
use crate::watch::gauge::Gauge;
use crate::watch::metrics::serve::{Configured, Endpoint, Exporter};
use crate::watch::refusals::Refusals;
use crate::watch::reports::Reports;
use crate::watch::watcher::Watched;
use crate::{clock, sys};
use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tidegate_proto::{CONTROL_SOCKET, DESCRIPTOR, HOOK_SOCKET, STATUS_SOCKET, v1};
use tokio::net::UnixListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;

/// SCHED_FIFO priority of the control thread, above the issue threads that carry out what it says.
pub(super) const CONTROL_PRIORITY: i32 = 20;
/// Connections between `accept` and their server.
const BACKLOG: usize = 64;
/// The gRPC side.
pub(super) struct Serving<'a> {
    pub gauge: Gauge,
    pub orders: Arc<Standing>,
    pub leases_file: LeasesFile,
    pub run_dir: &'a RunDir,
    pub passed: RefCell<Passed>,
    pub config: &'a Config,
    pub guards: Guards,
    pub in_force: Arc<InForce>,
    pub generation: u64,
    pub mailbox: Mailbox,
    pub events: Arc<EventLog>,
    pub notifier: Arc<Notifier>,
    pub log_level: LogLevel,
    pub watched: Arc<Watched>,
}

/// What keeps callers within bounds, and remembers who was refused.
pub(super) struct Guards {
    pub crowd: Arc<Crowd>,
    denials: Arc<Denials>,
    refusals: Arc<Refusals>,
    rooms: Arc<Rooms>,
    yard: Yard,
}

impl Guards {
    pub fn new(config: &Config, means: &Means, refusals: Arc<Refusals>, yard: Yard) -> Self {
        let limit = config.limits.connections_per_uid;
        let most = means.attachable();
        Self {
            crowd: Arc::new(Crowd::at_hook(
                limit,
                most,
                Arc::clone(&refusals),
                yard.clone(),
            )),
            denials: Arc::new(authority::denials()),
            rooms: Arc::new(Rooms::new(means.share(), Arc::clone(&refusals))),
            refusals,
            yard,
        }
    }
}

/// The signals that the agent obeys.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    replace: Signal,
    hangup: Signal,
}

impl Signals {
    fn listen() -> Result<Self, AppError> {
        let listen = |kind| signal(kind).map_err(starting("listen for signals"));
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            replace: listen(SignalKind::user_defined1())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }
}

impl Serving<'_> {
    pub async fn run(self, thread: ControlThread, fifo: bool) -> Result<(), AppError> {
        // Before anything is disabled or anybody is told that the agent serves: a signal must find it
        // ready to give everything back.
        let mut signals = Signals::listen()?;
        let reaper =
            Reaper::start(self.mailbox.clone()).map_err(starting("start the reaper thread"))?;
        let hooks = Arc::new(HookReports::new(Arc::clone(&self.guards.rooms)));
        let reports = Arc::new(Reports::new(self.mailbox.clone()));
        let service = Service::new(Made {
            mailbox: self.mailbox.clone(),
            events: Arc::clone(&self.events),
            hooks: Arc::clone(&hooks),
            log_level: self.log_level.clone(),
            in_force: Arc::clone(&self.in_force),
            refusals: Arc::clone(&self.guards.refusals),
            gauge: self.gauge.clone(),
            orders: Arc::clone(&self.orders),
            reports: Arc::clone(&reports),
        });
        let in_force = self.in_force.running();
        let budget = Arc::new(Budget::new(Arc::clone(&self.guards.refusals)));
        let sessions = Sessions::new(
            in_force,
            self.mailbox.clone(),
            reaper,
            hooks,
            budget,
            self.guards.yard.clone(),
        );
        // Last before serving: whoever connects finds everything in place.
        let file = self.leases_file.clone();
        let mut control_done = start_control(thread, fifo, Arc::clone(&self.watched), file)?;
        let hook = self.serve_hook(sessions)?;
        let apart = Apart::start("tg-operators").map_err(starting("start a runtime"))?;
        let control = {
            let _there = apart.enter();
            self.serve(Socket::Control, CONTROL_SOCKET, 0o660, &service)?
        };
        let mut control = apart.spawn(control);
        apart.spawn(self.notifier.turning("tg-operators"));
        tokio::spawn(self.notifier.turning("main"));
        tokio::spawn(name_late(
            self.guards.yard.clone(),
            Arc::clone(&self.guards.refusals),
        ));
        tokio::spawn(keep_learnt(self.mailbox.clone(), self.leases_file.clone()));
        let for_readers = service.for_readers();
        let status = self.serve(Socket::Status, STATUS_SOCKET, 0o666, &for_readers)?;
        self.serve_metrics(reports)?;
        self.notifier.ready("serving");
        tokio::pin!(hook, status);
        loop {
            tokio::select! {
                _ = signals.terminate.recv() => {
                    self.notifier.stopping();
                    self.mailbox.put(NodeInput::Stop);
                }
                _ = signals.interrupt.recv() => {
                    self.notifier.stopping();
                    self.mailbox.put(NodeInput::Stop);
                }
                _ = signals.replace.recv() => {
                    tracing::info!("a successor asks for the node: handing over");
                    self.mailbox.put(NodeInput::HandOver);
                }
                _ = signals.hangup.recv() => {
                    let _ = self.in_force.reload("SIGHUP");
                }
                done = &mut control_done => {
                    tracing::info!("tidegate-agent ends");
                    return done.map_err(|_| AppError::ControlLost);
                }
                ended = &mut hook => ended?,
                ended = &mut control => ended.map_err(io::Error::other).map_err(starting("serve control.sock"))??,
                ended = &mut status => ended?,
            }
        }
    }

    /// Serves the metrics, where a place for them is named.
    fn serve_metrics(&self, reports: Arc<Reports>) -> Result<(), AppError> {
        let Some(listen) = &self.config.watching.metrics else {
            return Ok(());
        };
        let endpoint = Endpoint::listen(listen).map_err(|source| AppError::Metrics {
            listen: listen.clone(),
            source,
        })?;
        tracing::info!("metrics are served at {}", endpoint.place());
        if listen.is_remote() && std::env::var_os("INVOCATION_ID").is_some() {
            tracing::warn!(
                "metrics.listen is an address of the network, and the shipped unit lets only this machine connect: add \
                 `IPAddressAllow=` and the address of Prometheus under [Service] by `systemctl edit tidegate-agent`"
            );
        }
        tokio::spawn(endpoint.serve(Exporter::new(
            reports,
            Arc::clone(&self.watched),
            Arc::clone(&self.guards.denials),
            Arc::clone(&self.in_force) as Arc<dyn Configured>,
        )));
        Ok(())
    }

    fn serve_hook(
        &self,
        sessions: Sessions,
    ) -> Result<impl Future<Output = Result<(), tonic::transport::Error>> + use<>, AppError> {
        let (pages, crowd) = (
            Arc::new(Pages::new(self.generation)),
            Arc::clone(&self.guards.crowd),
        );
        let connections =
            self.listen(HOOK_SOCKET, 0o666, None, move |listener, connection_tx| {
                let (pages, crowd) = (Arc::clone(&pages), Arc::clone(&crowd));
                tokio::spawn(peers::accept_greeted(listener, pages, crowd, connection_tx))
            })?;
        let runtime = v1::runtime_server::RuntimeServer::new(sessions)
            .max_decoding_message_size(MESSAGE_LIMIT);
        // A library that does not listen must not be taken for one that does: its orders would wait in
        // the connection.
        let keep_alive = self.config.tuning.keep_alive;
        Ok(server::for_libraries()
            .http2_keepalive_interval(Some(keep_alive))
            .http2_keepalive_timeout(Some(keep_alive))
            .layer(self.authorisation(Socket::Hook))
            .layer(Bounds::of_libraries(Arc::clone(&self.guards.rooms)))
            .add_service(runtime)
            .serve_with_incoming(connections))
    }

    fn serve(
        &self,
        socket: Socket,
        name: &str,
        mode: u32,
        service: &Service,
    ) -> Result<impl Future<Output = Result<(), tonic::transport::Error>> + use<>, AppError> {
        let group = (socket == Socket::Control).then_some(rundir::GROUP);
        let refusals = Arc::clone(&self.guards.refusals);
        let crowd = Arc::new(match socket {
            Socket::Control => Crowd::at_control(refusals, self.guards.yard.clone()),
            Socket::Hook | Socket::Status => Crowd::at_status(refusals, self.guards.yard.clone()),
        });
        let connections = self.listen(name, mode, group, move |listener, connection_tx| {
            let crowd = Arc::clone(&crowd);
            tokio::spawn(peers::accept_plain(listener, crowd, connection_tx))
        })?;
        let node =
            v1::node_server::NodeServer::new(service.clone()).max_decoding_message_size(REQUEST);
        let control = v1::control_server::ControlServer::new(service.clone())
            .max_decoding_message_size(REQUEST);
        let (health, health_server) = tonic_health::server::health_reporter();
        tokio::spawn(async move {
            health
                .set_serving::<v1::node_server::NodeServer<Service>>()
                .await;
            if socket == Socket::Control {
                health
                    .set_serving::<v1::control_server::ControlServer<Service>>()
                    .await;
            }
        });
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(DESCRIPTOR)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let broken = |error: tonic_reflection::server::Error| AppError::Start {
            what: "describe the services",
            source: io::Error::other(error),
        };
        Ok(server::for_readers()
            .http2_keepalive_interval(Some(peers::PING_EVERY))
            .layer(self.authorisation(socket))
            .layer(Bounds::of_readers(Arc::clone(&self.guards.rooms)))
            .add_service(node)
            .add_service(control)
            .add_service(health_server)
            .add_service(reflection().build_v1().map_err(broken)?)
            .add_service(reflection().build_v1alpha().map_err(broken)?)
            .serve_with_incoming(connections))
    }

    fn authorisation(&self, socket: Socket) -> Authorisation {
        Authorisation {
            socket,
            operators: Operators::of_this_machine(),
            denials: Arc::clone(&self.guards.denials),
        }
    }

    /// Listens on a socket of the run directory for as long as the agent runs, and has `accept` take connections.
    fn listen(
        &self,
        name: &str,
        mode: u32,
        group: Option<&'static str>,
        accept: impl Fn(UnixListener, ConnectionSender) -> JoinHandle<()> + Send + 'static,
    ) -> Result<ReceiverStream<io::Result<Connection>>, AppError> {
        let passed = self
            .passed
            .borrow_mut()
            .take(name.trim_end_matches(".sock"));
        let (listener, maker) = match passed {
            Some(listener) => (listener, Maker::Manager),
            None => (
                self.run_dir.bind(name, mode, group)?,
                Maker::Agent { mode, group },
            ),
        };
        let address = listener.local_addr().map_err(starting("listen"))?;
        let path = address.as_pathname().map(Path::to_owned);
        let listener = UnixListener::from_std(listener).map_err(starting("listen"))?;
        let (connection_tx, connection_rx) = mpsc::channel(BACKLOG);
        let accept = move |listener| accept(listener, connection_tx.clone());
        match path {
            Some(path) => sockets::keep(path, maker, self.mailbox.clone(), listener, accept),
            // One without a file cannot be removed.
            None => drop(accept(listener)),
        }
        Ok(ReceiverStream::new(connection_rx))
    }
}

/// How often it is looked who waits for threads that strangers keep.
const LATE_EVERY: Duration = Duration::from_secs(1);

/// Names in status whose files wait, and whose keep a thread waiting.
async fn name_late(yard: Yard, refusals: Arc<Refusals>) {
    loop {
        tokio::time::sleep(LATE_EVERY).await;
        for (tenant, what) in yard.late(clock::now_ns()) {
            refusals.note(&tenant, what);
        }
    }
}

/// How often what is known of leases is written: what an agent that is killed takes with it.
const KEEP_EVERY: Duration = Duration::from_secs(60);

/// Keeps what is known of leases for the next agent.
async fn keep_learnt(mailbox: Mailbox, file: LeasesFile) {
    loop {
        tokio::time::sleep(KEEP_EVERY).await;
        let (answer_tx, answer_rx) = oneshot::channel();
        if !mailbox.ask(Asker::Operator, Ask::Learnt(answer_tx)) {
            continue;
        }
        if let Ok(learnt) = answer_rx.await {
            let file = file.clone();
            let written = tokio::task::spawn_blocking(move || write_learnt(&file, &learnt));
            let _ = written.await;
        }
    }
}

fn write_learnt(file: &LeasesFile, learnt: &Learnt) {
    if let Err(why) = file.write(learnt) {
        tracing::warn!("what was learnt of leases is not kept for the next agent: {why}");
    }
}

type ConnectionSender = mpsc::Sender<io::Result<Connection>>;

/// Starts the control thread; what is returned completes when it has ended, and fails if it panicked.
fn start_control(
    thread: ControlThread,
    fifo: bool,
    watched: Arc<Watched>,
    leases_file: LeasesFile,
) -> Result<oneshot::Receiver<()>, AppError> {
    let (done_tx, done_rx) = oneshot::channel();
    std::thread::Builder::new()
        .name("tg-control".to_owned())
        .spawn(move || {
            if fifo {
                let _ = sys::schedule_fifo(CONTROL_PRIORITY);
            }
            let (totals, learnt) = thread.run();
            watched.end(totals);
            write_learnt(&leases_file, &learnt);
            let _ = done_tx.send(());
        })
        .map_err(starting("start the control thread"))?;
    Ok(done_rx)
}
