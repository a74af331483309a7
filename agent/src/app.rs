//! Builds the agent from its parts, in the order they depend on each other, and runs it to its end.
//! The only file that knows every concrete type; [`serving`] is its half that serves the sockets.

mod error;
mod serving;

use crate::causes::with_causes;
use crate::channels::channel::Restarter;
use crate::channels::figures;
use crate::channels::issue::{self, Haste};
use crate::channels::journal::{self, Journal, Marked};
use crate::channels::level::{self, Choice};
use crate::channels::lookout::{Alarm, Lookout};
use crate::channels::obstacle::{self, Mps, Obstacle};
use crate::channels::prove;
use crate::channels::reconcile::{self, Reconciled};
use crate::config::{Config, Level, Loaded, Sources, Unproven, pool_of, state_directory, tunables};
use crate::control::{About, ControlThread, Machine, MonotonicClock, Strangers};
use crate::device::Device;
use crate::grpc::activation::Passed;
use crate::grpc::crowd::Crowd;
use crate::grpc::reload::InForce;
use crate::grpc::standing::Standing;
use crate::host::drives::{self, DeviceLock};
use crate::host::leases::LeasesFile;
use crate::host::logs::LogLevel;
use crate::host::means::Means;
use crate::host::notify::Notifier;
use crate::host::orders::{Order, Orders, OrdersFile};
use crate::host::rundir::{self, RunDir, RunDirError};
use crate::host::users;
use crate::host::yard::Yard;
use crate::inbox::{self, Learnt, Mailbox};
use crate::rm::{self, Driver};
use crate::selftest::{self, Outcome, SelfTest};
use crate::watch::events::EventLog;
use crate::watch::gauge::Gauge;
use crate::watch::recorder::Recorder;
use crate::watch::refusals::Refusals;
use crate::watch::watcher::{Keep, Watcher};
use crate::{clock, sys};
pub use error::AppError;
use error::starting;
use serving::{CONTROL_PRIORITY, Guards, Serving};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidegate_abi::rm::Layout;
use tidegate_node::Parts;
use tidegate_node::kinds::Gpu as NodeGpu;
use tidegate_node::ports::{self, Ports};

/// SCHED_FIFO priority of the issue threads, below the control thread's.
const ISSUE_PRIORITY: i32 = 10;
/// How long a predecessor may take to step aside.
const REPLACE_LIMIT: Duration = Duration::from_secs(2);

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

/// Runs the agent until it is told to end.
///
/// # Errors
/// When it cannot start, or loses a part it cannot live without.
pub fn run(options: &Options) -> Result<Ended, AppError> {
    let passed = enter(options)?;
    let config = &options.loaded.config;
    let Ground {
        run_dir,
        device: _device,
        journal,
        journal_note,
        library,
        mut driver,
        adopted,
        generation,
    } = take_ground(options)?;
    let (orders_file, orders) = standing_orders(config, generation);
    let (leases_file, learnt) = learnt_leases(config);
    let found = choose(options, &driver)?;
    let (choice, mps) = (found.choice.clone(), found.mps.clone());
    let fifo = tries_fifo();
    let (mailbox, inbox) = inbox::inbox();
    let means = means();
    let yard = Yard::start(means.threads());
    let refusals = Arc::new(Refusals::telling(mailbox.clone()));
    let (sender, events) =
        EventLog::start(Arc::clone(&refusals)).map_err(starting("start the event thread"))?;
    let lookout = Lookout::default();
    let tells = (&mailbox, &lookout.alarm());
    let gpus = issuers(&mut driver, &choice, &journal, tells, haste(fifo, config))?;
    let notifier = Arc::new(Notifier::from_environment());
    let about = found.about(&driver, library.as_deref(), journal_note, fifo);
    let parts = Parts {
        tunables: tunables(&options.loaded, choice.level),
        level: choice.level,
        method: choice.stop.method,
        pool: pool(config, &choice, &driver),
        believe_unproven: config.unproven == Unproven::FirstClaim,
        unseen: obstacle::unseen(&driver, choice.level, &about.obstacles),
        gpus,
        generation,
        journal: Arc::clone(&journal),
        adopted,
        mps: about.mps().is_some(),
        ports: Ports {
            clock: Box::new(MonotonicClock),
            prover: prover(&mailbox, &yard, &mps)?,
            machine: Box::new(Machine {
                journal,
                mailbox: mailbox.clone(),
            }),
            events: Box::new(sender),
            recorder: recorder(options)?,
        },
    };
    look_for_others(options, mps, about.mps(), &mailbox)?;
    let again = look_at_driver(lookout, &driver, &notifier, &mailbox)?;
    // Ends after the control thread, with the last slice of time.
    let (_watcher, watched) = Watcher::start(mailbox.clone(), Arc::clone(&events), keep(config))
        .map_err(starting("start the watcher thread"))?;
    let guards = Guards::new(config, &means, refusals, yard);
    let server = Serving {
        in_force: in_force(options, choice.level, &mailbox, &guards.crowd, &notifier),
        gauge: gauge(&driver)?,
        orders: Standing::new(orders.clone(), orders_file),
        leases_file,
        run_dir: &run_dir,
        passed: RefCell::new(passed),
        config,
        guards,
        generation,
        mailbox,
        events,
        notifier: Arc::clone(&notifier),
        log_level: options.log_level.clone(),
        watched,
    };
    let runtime = runtime()?;
    say_start(options, &driver, generation, choice.level, fifo);
    let thread = ControlThread::new(parts, inbox, notifier, about, orders, learnt);
    runtime.block_on(server.run(thread, fifo))?;
    Ok(Ended::of(again.load(Ordering::Acquire)))
}

/// Makes the process fit for the device; the sockets that the service manager passed.
fn enter(options: &Options) -> Result<Passed, AppError> {
    options.device.enter(options.vgpu_shim.as_deref())?;
    if let Err(error) = sys::raise_descriptor_limit() {
        tracing::debug!(%error, "the soft limit of open files stays as it is");
    }
    Ok(Passed::from_environment()?)
}

/// Starts to look at the driver; whether the agent is to be started again, when it has ended.
fn look_at_driver(
    lookout: Lookout,
    driver: &Driver,
    notifier: &Notifier,
    mailbox: &Mailbox,
) -> Result<Arc<AtomicBool>, AppError> {
    let again = lookout.starts_again();
    lookout
        .start(driver, notifier.is_heard(), mailbox.clone())
        .map_err(starting("start looking at the driver"))?;
    Ok(again)
}

/// What the agent stands on: its directory, what earlier agents left there, and the driver.
struct Ground {
    run_dir: RunDir,
    /// Held while this agent drives the device.
    device: Option<DeviceLock>,
    journal: Arc<Journal>,
    /// What is said where the journal could not be read.
    journal_note: String,
    /// The version of the driver's library.
    library: Option<String>,
    driver: Driver,
    adopted: Vec<Marked>,
    generation: u64,
}

fn take_ground(options: &Options) -> Result<Ground, AppError> {
    let (mut run_dir, device) = take_places(options)?;
    let (journal, unreadable) = journal::of(&run_dir)?;
    let journal_note = unreadable.map(|aside| lost_journal(&aside));
    let library = options.device.library_version();
    let driver = driver(library.as_deref());
    let adopted = take_over(&journal, &driver);
    let generation = journal.next_generation();
    run_dir.sign(generation)?;
    Ok(Ground {
        run_dir,
        device,
        journal: Arc::new(journal),
        journal_note: journal_note.unwrap_or_default(),
        library,
        driver,
        adopted,
        generation,
    })
}

/// The orders of operators that stand, and the file that keeps them.
fn standing_orders(config: &Config, generation: u64) -> (OrdersFile, Orders) {
    let file = OrdersFile::new(&orders_dir(config), generation);
    let orders = file.read(clock::unix_ms());
    if let Some(Order { by, .. }) = &orders.drained {
        tracing::warn!("no offline job runs until `tidegate undrain`: still drained by {by}");
    }
    (file, orders)
}

/// What earlier agents learnt of leases.
fn learnt_leases(config: &Config) -> (LeasesFile, Learnt) {
    let file = LeasesFile::new(&orders_dir(config));
    let learnt = file.read().unwrap_or_else(|why| {
        tracing::warn!("{why}");
        Learnt::new()
    });
    (file, learnt)
}

fn prover(mailbox: &Mailbox, yard: &Yard, mps: &Mps) -> Result<Box<dyn ports::Prover>, AppError> {
    let prover = prove::start(mailbox, yard.clone(), mps.clone());
    Ok(Box::new(prover.map_err(starting("start the prover"))?))
}

fn gauge(driver: &Driver) -> Result<Gauge, AppError> {
    Gauge::start(figures::reader(driver)).map_err(starting("start the gauge thread"))
}

fn runtime() -> Result<tokio::runtime::Runtime, AppError> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build();
    runtime.map_err(starting("make the runtime"))
}

/// The configuration, and who hears of its changes.
fn in_force(
    options: &Options,
    level: Level,
    mailbox: &Mailbox,
    crowd: &Arc<Crowd>,
    notifier: &Arc<Notifier>,
) -> Arc<InForce> {
    Arc::new(InForce::new(
        options.sources.clone(),
        options.loaded.clone(),
        level,
        mailbox.clone(),
        options.log_level.clone(),
        Arc::clone(crowd),
        Arc::clone(notifier),
    ))
}

/// Where decisions are recorded, if they are.
fn recorder(options: &Options) -> Result<Option<Box<dyn ports::Recorder>>, AppError> {
    let Some((file, limit)) = &options.record else {
        return Ok(None);
    };
    let recorder = Recorder::start(file, *limit).map_err(starting("begin the recording"))?;
    Ok(Some(Box::new(recorder)))
}

/// Starts the threads that look who else uses the GPUs.
fn look_for_others(
    options: &Options,
    mps: Mps,
    runs: Option<i32>,
    mailbox: &Mailbox,
) -> Result<(), AppError> {
    obstacle::watch(mps, runs, mailbox.clone()).map_err(starting("start looking for MPS"))?;
    users::watch(
        options.device.clone(),
        &[users::AGENT, obstacle::MPS_PROCESS],
        mailbox.clone(),
    )
    .map_err(starting("start looking for users of the GPUs"))
}

/// Where the history is kept, if it is.
fn keep(config: &Config) -> Option<Keep> {
    config.watching.history_file().map(|file| Keep {
        file,
        bytes: config.watching.history_size,
        every: config.watching.history_every,
    })
}

/// Says in the log what starts, and what the operator should know of the configuration.
fn say_start(options: &Options, driver: &Driver, generation: u64, level: Level, fifo: bool) {
    tracing::info!(
        generation,
        driver = driver.version,
        gpus = driver.gpus.len(),
        %level,
        fifo,
        "tidegate-agent {} starts",
        env!("CARGO_PKG_VERSION")
    );
    let config = &options.loaded.config;
    crate::identity::rules::warn_of_none(&config.identity, &options.sources.file);
    for note in options.loaded.overridden() {
        tracing::warn!("configuration: {note}");
    }
}

/// How the agent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// As it was told to.
    ForGood,
    /// The driver is another, and nobody else starts it again.
    ToStartAgain,
}

impl Ended {
    const fn of(again: bool) -> Self {
        if again {
            Self::ToStartAgain
        } else {
            Self::ForGood
        }
    }
}

/// Where orders of operators are kept: with the service's state, else beside the history, else in the run directory.
fn orders_dir(config: &Config) -> PathBuf {
    let history = config.watching.history_file();
    let beside = history.as_deref().and_then(Path::parent);
    let dir = state_directory().or_else(|| beside.map(Path::to_owned));
    dir.unwrap_or_else(|| config.run_dir.clone())
}

/// What one agent alone may have: its run directory, and its device where that can be locked.
type Places = (RunDir, Option<DeviceLock>);

fn take_places(options: &Options) -> Result<Places, AppError> {
    let path = &options.loaded.config.run_dir;
    let take = || -> Result<Places, RunDirError> {
        let run_dir = RunDir::take(path, &options.device.to_string())?;
        Ok((run_dir, drives::take(&options.device, path)?))
    };
    let held = match take() {
        Err(held) if held.is_held() && options.replace => held,
        other => return Ok(other?),
    };
    // Where the kernel does not say who holds the lock, nobody is signalled.
    if !rundir::ask_to_hand_over(path).unwrap_or(false) {
        return Err(held.into());
    }
    let limit = clock::now_ns() + clock::nanos(REPLACE_LIMIT);
    loop {
        match take() {
            Err(held) if held.is_held() && clock::now_ns() < limit => {
                std::thread::sleep(Duration::from_millis(2));
            }
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

impl Found {
    /// What status says of the agent from its start on.
    fn about(
        self,
        driver: &Driver,
        library: Option<&str>,
        journal_note: String,
        fifo: bool,
    ) -> About {
        let choice = self.choice;
        About {
            driver_version: driver.version.clone(),
            driver_layout: driver.layout.map_or("", Layout::name),
            driver_note: level::driver_note(driver, library),
            journal_note,
            level_note: choice.note,
            stop: (choice.level != Level::L5).then_some(choice.stop),
            stop_note: self.self_test.why_not_better(choice.level),
            scheduling: if fifo { "SCHED_FIFO" } else { "SCHED_OTHER" }.to_owned(),
            self_test: self.self_test,
            obstacles: self.obstacles,
            strangers: Strangers::default(),
        }
    }
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
        if obstacle.rules_levels_out() {
            tracing::warn!("no channel control: {obstacle}");
        } else {
            tracing::warn!("{obstacle}");
        }
    }
    let choice = level::choose(config.level, driver, |level| {
        let mut ruling = obstacles.iter().filter(|found| found.rules_levels_out());
        if let Some(obstacle) = ruling.next() {
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
fn pool(config: &Config, choice: &Choice, driver: &Driver) -> u64 {
    if config.memory.pool == 0 {
        return 0;
    }
    if choice.stop.at_kernel_end {
        tracing::warn!("the firmware stops work only at the end of a kernel: no memory is shared");
        return 0;
    }
    let totals: Vec<u64> = figures::reader(driver)()
        .iter()
        .map(|gpu| gpu.total)
        .collect();
    let (pool, too_much) = pool_of(config.memory.pool, &totals);
    if let Some(text) = too_much {
        tracing::warn!("{text}");
    }
    pool
}

/// Whether this process may use SCHED_FIFO, tried on a thread that ends.
fn tries_fifo() -> bool {
    std::thread::spawn(|| sys::schedule_fifo(CONTROL_PRIORITY).is_ok())
        .join()
        .unwrap_or(false)
}

/// A GPU and its issue thread (none at L3 and L5).
type Line = (NodeGpu, Option<Box<dyn ports::Issuer>>);

fn means() -> Means {
    let found = Means::found();
    tracing::info!("the agent may have {found}");
    found
}

/// What issue threads may do to run soon after an edge.
fn haste(fifo: bool, config: &Config) -> Haste {
    Haste {
        fifo_priority: fifo.then_some(ISSUE_PRIORITY),
        cpu_latency: config.tuning.cpu_latency,
    }
}

/// The GPUs, each with its issue thread where the level needs one. A GPU that is lost since it was listed is hidden.
fn issuers(
    driver: &mut Driver,
    choice: &Choice,
    journal: &Arc<Journal>,
    (mailbox, alarm): (&Mailbox, &Alarm),
    haste: Haste,
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
                haste,
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
