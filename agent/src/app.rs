//! Builds the agent from its parts, in the order they depend on each other, and runs it to its end.
//! The only file that knows every concrete type.

use crate::causes::with_causes;
use crate::channels::channel::Restarter;
use crate::channels::figures;
use crate::channels::issue;
use crate::channels::journal::{Journal, Marked};
use crate::channels::level::{self, Choice, Refused};
use crate::channels::lookout::{Alarm, Lookout};
use crate::channels::obstacle::{self, Mps, Obstacle};
use crate::channels::prove;
use crate::channels::reconcile::{self, Reconciled};
use crate::config::{Config, Level, Loaded, Sources, Unproven, state_directory, tunables};
use crate::control::{About, ControlThread, Machine, MonotonicClock};
use crate::device::{Device, DeviceError};
use crate::grpc::activation::{ActivationError, Passed};
use crate::grpc::apart::Apart;
use crate::grpc::authority::{self, Authorisation, Operators, Socket};
use crate::grpc::bounds::{Bounds, REQUEST};
use crate::grpc::budget::{Budget, MESSAGE_LIMIT};
use crate::grpc::crowd::Crowd;
use crate::grpc::peers::{self, Connection, Pages};
use crate::grpc::reload::InForce;
use crate::grpc::rooms::Rooms;
use crate::grpc::service::{Made, Service};
use crate::grpc::sessions::{HookReports, Sessions};
use crate::grpc::sockets::{self, Maker};
use crate::grpc::standing::Standing;
use crate::host::logs::LogLevel;
use crate::host::means::Means;
use crate::host::notify::Notifier;
use crate::host::orders::{Order, OrdersFile};
use crate::host::reaper::Reaper;
use crate::host::rundir::{self, RunDir, RunDirError};
use crate::host::yard::Yard;
use crate::inbox::{self, Mailbox, NodeInput};
use crate::rm::{self, Driver, RmError};
use crate::selftest::{self, Outcome, SelfTest};
use crate::watch::denials::Denials;
use crate::watch::events::EventLog;
use crate::watch::gauge::Gauge;
use crate::watch::metrics::serve::{Configured, Endpoint, Exporter};
use crate::watch::recorder::Recorder;
use crate::watch::refusals::Refusals;
use crate::watch::reports::Reports;
use crate::watch::watcher::{Keep, Watched, Watcher};
use crate::{clock, sys};
use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidegate_abi::rm::Layout;
use tidegate_node::Parts;
use tidegate_node::kinds::Gpu as NodeGpu;
use tidegate_node::ports::{self, Ports};
use tidegate_proto::{CONTROL_SOCKET, DESCRIPTOR, HOOK_SOCKET, STATUS_SOCKET, v1};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;

/// SCHED_FIFO priorities: the control thread above those that carry out what it says.
const CONTROL_PRIORITY: i32 = 20;
const ISSUE_PRIORITY: i32 = 10;
/// How long a predecessor may take to step aside.
const REPLACE_LIMIT: Duration = Duration::from_secs(2);
/// Connections between `accept` and their server.
const BACKLOG: usize = 64;
/// Calls of one connection at a time: a library makes one.
const CALLS: u32 = 16;
const LIBRARY_CALLS: u32 = 2;
/// Bytes of headers of a call.
const HEADERS: u32 = 16 * 1_024;
const LIBRARY_HEADERS: u32 = 4 * 1_024;
/// Bytes that may come on a call, and on a connection, before they are taken.
const WINDOW: u32 = 65_535;

/// How the agent was started.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where settings come from.
    pub sources: Sources,
    /// Settings.
    pub loaded: Loaded,
    /// Which GPUs.
    pub device: Device,
    /// The virtual device's shim.
    pub vgpu_shim: Option<PathBuf>,
    /// Ask a running agent to step aside.
    pub replace: bool,
    /// Where decisions are recorded, and how many bytes of them at most.
    pub record: Option<(PathBuf, u64)>,
    /// What is logged.
    pub log_level: LogLevel,
}

/// Why the agent does not run.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The run directory.
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// What the service manager passes.
    #[error(transparent)]
    Activation(#[from] ActivationError),
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The driver.
    #[error("cannot use the driver")]
    Driver(#[from] RmError),
    /// The channel level.
    #[error(transparent)]
    Level(#[from] Refused),
    /// Threads, sockets.
    #[error("cannot {what}")]
    Start {
        /// What.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The metrics endpoint.
    #[error("cannot serve metrics on {listen}: choose another `metrics.listen`, or \"off\"")]
    Metrics {
        /// Where.
        listen: crate::config::Listen,
        /// Why.
        source: io::Error,
    },
    /// The control thread is gone.
    #[error("the control thread ended by itself")]
    ControlLost,
    /// A server is gone.
    #[error("a socket is no longer served")]
    Server(#[from] tonic::transport::Error),
}

impl AppError {
    /// 3 when another agent runs, else 1.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::RunDir(RunDirError::Held(..)) => 3,
            _ => 1,
        }
    }
}

fn starting(what: &'static str) -> impl Fn(io::Error) -> AppError {
    move |source| AppError::Start { what, source }
}

/// Runs the agent until it is told to end.
///
/// # Errors
/// When it cannot start, or loses a part it cannot live without.
pub fn run(options: &Options) -> Result<Ended, AppError> {
    options.device.enter(options.vgpu_shim.as_deref())?;
    if let Err(error) = sys::raise_descriptor_limit() {
        tracing::debug!(%error, "the soft limit of open files stays as it is");
    }
    let passed = Passed::from_environment()?;
    let config = &options.loaded.config;
    let mut run_dir = take_run_dir(options)?;
    let (journal, unreadable) = run_dir.journal()?;
    let journal = Arc::new(journal);
    let lost = unreadable.map(|aside| lost_journal(&aside));
    let library = options.device.library_version();
    let mut driver = driver(library.as_deref());
    let adopted = take_over(&journal, &driver);
    let generation = journal.next_generation();
    run_dir.sign(generation)?;
    let orders_file = OrdersFile::new(&orders_dir(config), generation);
    let orders = orders_file.read(clock::unix_ms());
    if let Some(Order { by, .. }) = &orders.drained {
        tracing::warn!("no offline job runs until `tidegate undrain`: still drained by {by}");
    }
    let Found {
        choice,
        self_test,
        mps,
        obstacles,
    } = choose(options, &driver)?;
    let fifo = tries_fifo();
    let (mailbox, inbox) = inbox::inbox();
    let means = Means::found();
    tracing::info!("the agent may have {means}");
    let yard = Yard::start(means.threads());
    let (sender, events) = EventLog::start().map_err(starting("start the event thread"))?;
    let lookout = Lookout::default();
    let tells = (&mailbox, &lookout.alarm());
    let gpus = issuers(&mut driver, &choice, &journal, tells, fifo)?;
    let notifier = Arc::new(Notifier::from_environment());
    let recorder = options.record.as_ref();
    let recorder = recorder
        .map(|(file, limit)| Recorder::start(file, *limit))
        .transpose()
        .map_err(starting("begin the recording"))?
        .map(|recorder| Box::new(recorder) as Box<dyn ports::Recorder>);
    let about = About {
        driver_version: driver.version.clone(),
        driver_layout: driver.layout.map_or("", Layout::name),
        driver_note: level::driver_note(&driver, library.as_deref()),
        journal_note: lost.unwrap_or_default(),
        level_note: choice.note.clone(),
        stop: (choice.level != Level::L5).then_some(choice.stop),
        stop_note: self_test.why_not_better(choice.level),
        scheduling: if fifo { "SCHED_FIFO" } else { "SCHED_OTHER" }.to_owned(),
        self_test,
        obstacles,
    };
    let parts = Parts {
        tunables: tunables(&options.loaded, choice.level),
        level: choice.level,
        method: choice.stop.method,
        pool: pool(config, &choice),
        believe_unproven: config.unproven == Unproven::FirstClaim,
        unseen: obstacle::unseen(&driver, choice.level, &about.obstacles),
        gpus,
        generation,
        journal: Arc::clone(&journal),
        adopted,
        mps: about.mps().is_some(),
        ports: Ports {
            clock: Box::new(MonotonicClock),
            prover: Box::new(
                prove::start(&mailbox, yard.clone()).map_err(starting("start the prover"))?,
            ),
            machine: Box::new(Machine {
                journal,
                mailbox: mailbox.clone(),
            }),
            events: Box::new(sender),
            recorder,
        },
    };
    obstacle::watch(mps, about.mps(), mailbox.clone())
        .map_err(starting("start looking for MPS"))?;
    let again = lookout.starts_again();
    lookout
        .start(&driver, notifier.is_heard(), mailbox.clone())
        .map_err(starting("start looking at the driver"))?;
    let keep = config.watching.history_file().map(|file| Keep {
        file,
        bytes: config.watching.history_size,
        every: config.watching.history_every,
    });
    // Ends after the control thread, with the last slice of time.
    let (_watcher, watched) = Watcher::start(mailbox.clone(), Arc::clone(&events), keep)
        .map_err(starting("start the watcher thread"))?;
    let refusals = Arc::new(Refusals::telling(mailbox.clone()));
    let limit = config.limits.connections_per_uid;
    let most = means.attachable();
    let crowd = Arc::new(Crowd::at_hook(
        limit,
        most,
        Arc::clone(&refusals),
        yard.clone(),
    ));
    let rooms = Arc::new(Rooms::new(means.share(), Arc::clone(&refusals)));
    let in_force = InForce::new(
        options.sources.clone(),
        options.loaded.clone(),
        choice.level,
        mailbox.clone(),
        options.log_level.clone(),
        Arc::clone(&crowd),
        Arc::clone(&notifier),
    );
    let gauge =
        Gauge::start(figures::reader(&driver)).map_err(starting("start the gauge thread"))?;
    let server = Serving {
        gauge,
        orders: Standing::new(orders.clone(), orders_file),
        run_dir: &run_dir,
        passed: RefCell::new(passed),
        config,
        crowd,
        in_force: Arc::new(in_force),
        generation,
        mailbox,
        events,
        notifier: Arc::clone(&notifier),
        log_level: options.log_level.clone(),
        denials: Arc::new(authority::denials()),
        refusals,
        rooms,
        yard,
        watched,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(starting("make the runtime"))?;
    tracing::info!(
        generation,
        driver = driver.version,
        gpus = driver.gpus.len(),
        level = %choice.level,
        fifo,
        "tidegate-agent {} starts",
        env!("CARGO_PKG_VERSION")
    );
    crate::identity::rules::warn_of_none(&config.identity, &options.sources.file);
    for note in options.loaded.overridden() {
        tracing::warn!("configuration: {note}");
    }
    let thread = ControlThread::new(parts, inbox, notifier, about, orders);
    runtime.block_on(server.run(thread, fifo))?;
    Ok(if again.load(Ordering::Acquire) {
        Ended::ToStartAgain
    } else {
        Ended::ForGood
    })
}

/// How the agent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// As it was told to.
    ForGood,
    /// The driver is another, and nobody else starts it again.
    ToStartAgain,
}

/// Where orders of operators are kept: with the service's state, else beside the history, else in the run directory.
fn orders_dir(config: &Config) -> PathBuf {
    let history = config.watching.history_file();
    let beside = history.as_deref().and_then(Path::parent);
    let dir = state_directory().or_else(|| beside.map(Path::to_owned));
    dir.unwrap_or_else(|| config.run_dir.clone())
}

fn take_run_dir(options: &Options) -> Result<RunDir, AppError> {
    let path = &options.loaded.config.run_dir;
    let device = options.device.to_string();
    let held = match RunDir::take(path, &device) {
        Err(held @ RunDirError::Held(..)) if options.replace => held,
        other => return Ok(other?),
    };
    // Where the kernel does not say who holds the lock, nobody is signalled.
    if !rundir::ask_to_hand_over(path).unwrap_or(false) {
        return Err(held.into());
    }
    let limit = clock::now_ns() + clock::nanos(REPLACE_LIMIT);
    loop {
        match RunDir::take(path, &device) {
            Err(held @ RunDirError::Held(..)) if clock::now_ns() >= limit => {
                return Err(held.into());
            }
            Err(RunDirError::Held(..)) => std::thread::sleep(Duration::from_millis(2)),
            other => return Ok(other?),
        }
    }
}

/// Enables what a dead agent left disabled; returns what a living one handed over instead, what
/// processes in the middle of a change of their memory have to claim, and what the driver refused to enable.
fn take_over(journal: &Journal, driver: &Driver) -> Vec<Marked> {
    if journal.is_handing_over(clock::now_ns()) {
        return journal.marked();
    }
    let done = reconcile::enable_marked_on(journal, driver);
    if done != Reconciled::default() {
        tracing::warn!("an earlier agent left channels disabled: {done}");
    }
    for line in done.lines() {
        tracing::error!("{line}");
    }
    reconcile::leave_room(journal, driver);
    journal.marked()
}

/// What is said where the journal could not be read.
fn lost_journal(aside: &Path) -> String {
    let text = format!(
        "the journal of an earlier agent could not be read and lies at {}: every channel of a process that was gated before \
         is taken for disabled, and is enabled or disabled anew when its process attaches; remove the file when it is not \
         needed",
        aside.display()
    );
    tracing::error!("{text}");
    text
}

/// The driver, and what is wrong with it for the log.
fn driver(library: Option<&str>) -> Driver {
    let driver = rm::enumerate().unwrap_or_else(|error| Driver::unlisted(&error));
    if let Some(why) = &driver.lacks {
        tracing::error!("no channel control, only launches are gated: {why}");
    }
    if let Some(wrong) = level::half_upgraded(&driver.version, library) {
        tracing::error!("no CUDA program starts here: {wrong}");
    }
    for gpu in &driver.hidden {
        tracing::warn!("the channels of a GPU that this process cannot use are not touched: {gpu}");
    }
    driver
}

/// The channel level, and what it follows from.
struct Found {
    choice: Choice,
    self_test: selftest::Report,
    mps: Mps,
    obstacles: Vec<Obstacle>,
}

/// Chooses the channel level: as configured, as nothing on the node rules out, as the self-test shows.
fn choose(options: &Options, driver: &Driver) -> Result<Found, AppError> {
    let config = &options.loaded.config;
    let setting = selftest::Setting {
        kind: config.self_test,
        library: config.library.clone(),
        driver_dir: options.device.driver_dir(options.vgpu_shim.as_deref()),
        run_dir: config.run_dir.clone(),
        methods: config.method,
    };
    let mut self_test = SelfTest::new(driver, &setting);
    let mps = Mps::of(&options.device);
    let obstacles = obstacle::look(driver, &mps);
    for obstacle in &obstacles {
        tracing::warn!("no channel control: {obstacle}");
    }
    let choice = level::choose(config.level, driver, |level| {
        if let Some(obstacle) = obstacles.first() {
            return Err(obstacle.to_string());
        }
        self_test.outcome(level).stop()
    })?;
    let self_test = self_test.report();
    report_self_test(&self_test);
    Ok(Found {
        choice,
        self_test,
        mps,
        obstacles,
    })
}

fn report_self_test(report: &selftest::Report) {
    for tried in &report.levels {
        let level = tried.level;
        match &tried.outcome {
            Outcome::Failed(why) => tracing::error!(%level, "self-test failed: {why}"),
            found => tracing::info!(%level, "self-test: {found}"),
        }
    }
    if !report.summary.is_empty() {
        tracing::info!("self-test: {}", report.summary);
    }
}

/// What online and offline share. A kernel that goes on after the driver's word would fault on memory that
/// is taken from it, so where it may none is.
fn pool(config: &Config, choice: &Choice) -> u64 {
    if choice.stop.at_kernel_end && config.memory.pool != 0 {
        tracing::warn!("the firmware stops work only at the end of a kernel: no memory is shared");
        return 0;
    }
    config.memory.pool
}

/// Whether this process may use SCHED_FIFO, tried on a thread that ends.
fn tries_fifo() -> bool {
    std::thread::spawn(|| sys::schedule_fifo(CONTROL_PRIORITY).is_ok())
        .join()
        .unwrap_or(false)
}

/// A GPU and its issue thread (none at L3 and L5).
type Line = (NodeGpu, Option<Box<dyn ports::Issuer>>);

/// The GPUs, each with its issue thread where the level needs one. A GPU that is lost since it was listed is hidden.
fn issuers(
    driver: &mut Driver,
    choice: &Choice,
    journal: &Arc<Journal>,
    (mailbox, alarm): (&Mailbox, &Alarm),
    fifo: bool,
) -> Result<Vec<Line>, AppError> {
    let mut gpus = Vec::new();
    for gpu in std::mem::take(&mut driver.gpus) {
        let issuer = if matches!(choice.level, Level::L1 | Level::L2) {
            let control = match Restarter::open(&gpu, driver.branch(), choice.stop.method) {
                Ok(control) => control,
                Err(error) => {
                    tracing::warn!(
                        gpu = gpu.minor,
                        "lost since the driver listed it: {}",
                        with_causes(&error)
                    );
                    driver.hide(gpu.minor, error)?;
                    continue;
                }
            };
            let issuer = issue::start(
                u32::try_from(gpus.len()).unwrap_or(u32::MAX),
                Arc::new(control),
                Arc::clone(journal),
                (mailbox.clone(), Some(alarm.clone())),
                fifo.then_some(ISSUE_PRIORITY),
            );
            let issuer = issuer.map_err(starting("start an issue thread"))?;
            Some(Box::new(issuer) as Box<dyn ports::Issuer>)
        } else {
            None
        };
        let known = NodeGpu {
            device_instance: gpu.device_instance,
            uuid: gpu.uuid,
        };
        gpus.push((known, issuer));
        driver.gpus.push(gpu);
    }
    Ok(gpus)
}

/// The gRPC side.
struct Serving<'a> {
    gauge: Gauge,
    orders: Arc<Standing>,
    run_dir: &'a RunDir,
    passed: RefCell<Passed>,
    config: &'a Config,
    crowd: Arc<Crowd>,
    in_force: Arc<InForce>,
    generation: u64,
    mailbox: Mailbox,
    events: Arc<EventLog>,
    notifier: Arc<Notifier>,
    log_level: LogLevel,
    denials: Arc<Denials>,
    refusals: Arc<Refusals>,
    rooms: Arc<Rooms>,
    yard: Yard,
    watched: Arc<Watched>,
}

impl Serving<'_> {
    async fn run(self, thread: ControlThread, fifo: bool) -> Result<(), AppError> {
        // Before anything is disabled or anybody is told that the agent serves: a signal must find it
        // ready to give everything back.
        let mut terminate =
            signal(SignalKind::terminate()).map_err(starting("listen for signals"))?;
        let mut interrupt =
            signal(SignalKind::interrupt()).map_err(starting("listen for signals"))?;
        let mut replace =
            signal(SignalKind::user_defined1()).map_err(starting("listen for signals"))?;
        let mut hangup = signal(SignalKind::hangup()).map_err(starting("listen for signals"))?;
        let reaper =
            Reaper::start(self.mailbox.clone()).map_err(starting("start the reaper thread"))?;
        let hooks = Arc::new(HookReports::new(Arc::clone(&self.rooms)));
        let reports = Arc::new(Reports::new(self.mailbox.clone()));
        let service = Service::new(Made {
            mailbox: self.mailbox.clone(),
            events: Arc::clone(&self.events),
            hooks: Arc::clone(&hooks),
            log_level: self.log_level.clone(),
            in_force: Arc::clone(&self.in_force),
            refusals: Arc::clone(&self.refusals),
            gauge: self.gauge.clone(),
            orders: Arc::clone(&self.orders),
            reports: Arc::clone(&reports),
        });
        let in_force = self.in_force.running();
        let budget = Arc::new(Budget::new(Arc::clone(&self.refusals)));
        let sessions = Sessions::new(
            in_force,
            self.mailbox.clone(),
            reaper,
            hooks,
            budget,
            self.yard.clone(),
        );
        // Last before serving: whoever connects finds everything in place.
        let mut control_done = start_control(thread, fifo, Arc::clone(&self.watched))?;
        let hook = self.serve_hook(sessions)?;
        let apart = Apart::start("tg-operators").map_err(starting("start a runtime"))?;
        let control = {
            let _there = apart.enter();
            self.serve(Socket::Control, CONTROL_SOCKET, 0o660, &service)?
        };
        let mut control = apart.spawn(control);
        apart.spawn(self.notifier.turning("tg-operators"));
        tokio::spawn(self.notifier.turning("main"));
        tokio::spawn(name_late(self.yard.clone(), Arc::clone(&self.refusals)));
        let for_readers = service.for_readers();
        let status = self.serve(Socket::Status, STATUS_SOCKET, 0o666, &for_readers)?;
        if let Some(listen) = &self.config.watching.metrics {
            let endpoint = Endpoint::listen(listen).map_err(|source| AppError::Metrics {
                listen: listen.clone(),
                source,
            })?;
            tracing::info!("metrics are served at {}", endpoint.place());
            tokio::spawn(endpoint.serve(Exporter::new(
                reports,
                Arc::clone(&self.watched),
                Arc::clone(&self.denials),
                Arc::clone(&self.in_force) as Arc<dyn Configured>,
            )));
        }
        self.notifier.ready("serving");
        tokio::pin!(hook, status);
        loop {
            tokio::select! {
                _ = terminate.recv() => {
                    self.notifier.stopping();
                    self.mailbox.put(NodeInput::Stop);
                }
                _ = interrupt.recv() => {
                    self.notifier.stopping();
                    self.mailbox.put(NodeInput::Stop);
                }
                _ = replace.recv() => {
                    tracing::info!("a successor asks for the node: handing over");
                    self.mailbox.put(NodeInput::HandOver);
                }
                _ = hangup.recv() => {
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

    fn serve_hook(
        &self,
        sessions: Sessions,
    ) -> Result<impl Future<Output = Result<(), tonic::transport::Error>> + use<>, AppError> {
        let (pages, crowd) = (
            Arc::new(Pages::new(self.generation)),
            Arc::clone(&self.crowd),
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
        Ok(builder(LIBRARY_CALLS, LIBRARY_HEADERS)
            .http2_keepalive_interval(Some(keep_alive))
            .http2_keepalive_timeout(Some(keep_alive))
            .layer(self.authorisation(Socket::Hook))
            .layer(Bounds::of_libraries(Arc::clone(&self.rooms)))
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
        let refusals = Arc::clone(&self.refusals);
        let crowd = Arc::new(match socket {
            Socket::Control => Crowd::at_control(refusals, self.yard.clone()),
            Socket::Hook | Socket::Status => Crowd::at_status(refusals, self.yard.clone()),
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
        Ok(builder(CALLS, HEADERS)
            .http2_keepalive_interval(Some(peers::PING_EVERY))
            .layer(self.authorisation(socket))
            .layer(Bounds::of_readers(Arc::clone(&self.rooms)))
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
            denials: Arc::clone(&self.denials),
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

type ConnectionSender = mpsc::Sender<io::Result<Connection>>;

fn builder(calls: u32, headers: u32) -> Server {
    Server::builder()
        .concurrency_limit_per_connection(calls as usize)
        .max_concurrent_streams(calls)
        .http2_max_header_list_size(headers)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
}

/// Starts the control thread; what is returned completes when it has ended, and fails if it panicked.
fn start_control(
    thread: ControlThread,
    fifo: bool,
    watched: Arc<Watched>,
) -> Result<oneshot::Receiver<()>, AppError> {
    let (done_tx, done_rx) = oneshot::channel();
    std::thread::Builder::new()
        .name("tg-control".to_owned())
        .spawn(move || {
            if fifo {
                let _ = sys::schedule_fifo(CONTROL_PRIORITY);
            }
            watched.end(thread.run());
            let _ = done_tx.send(());
        })
        .map_err(starting("start the control thread"))?;
    Ok(done_rx)
}
