//! The self-test proper: a child with GPU work of its own ([`super::work`]) runs as an offline process,
//! with the preloaded library, attached to a socket that only the two know. Its channels come to this
//! side the way every job's do, and each level disables and enables them the way it will a job's. A
//! level is proven when, on every GPU, the work stands still while the driver says that it is disabled
//! and goes on when it says that it is enabled.
//!
//! The child makes its own contexts and is killed by nobody: it ends when its standard input does, with
//! everything enabled.

use super::Outcome;
use crate::clock::now_ns;
use crate::config::{Config, Level, Method, Role};
use crate::gate;
use crate::inbox::{self, Channel, Inbox, Input, Outbox, RmChange, Said, Tell, Welcome};
use crate::peers::{self, Crowd, Pages};
use crate::reaper::Reaper;
use crate::rm::{ControlFile, Driver, Subdevice};
use crate::sessions::{HookReports, Sessions};
use crate::sys::SharedPage;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidegate_abi::rm::{DisableChannels, MAX_PAIRS};
use tidegate_proto::{HOOK_SOCKET, RUN_DIR_ENV, v1};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;

/// How long the child may take until its kernels run: contexts on eight GPUs without persistence mode.
const READY_NS: u64 = 30_000_000_000;
/// How long an answer of the child, or of its library, may take.
const ANSWER_NS: u64 = 2_000_000_000;
/// How long enabled work may take to go on.
const RESUME_NS: u64 = 2_000_000_000;
/// How long disabled work must stand still, at least ...
const STILL: Duration = Duration::from_millis(10);
/// ... and this many times the longest that enabled work stood still while it was watched: a machine
/// that keeps the work from running must not pass for a driver that stopped it.
const STILL_FACTOR: u32 = 10;
/// And no longer than this.
const STILL_MOST: Duration = Duration::from_millis(500);
/// How often enabled work is watched move, and how often a level is tried.
const WATCHED: usize = 8;
const ROUNDS: usize = 2;
/// After a disable returned, until what its last kernel wrote has reached the host.
const SETTLE: Duration = Duration::from_millis(1);
/// How long the child may take to end.
const END_NS: u64 = 5_000_000_000;
/// Messages are looked for this often.
const TURN: Duration = Duration::from_millis(1);

/// What a trial needs to know.
#[derive(Clone, Debug)]
pub struct Place {
    /// The program that does the work (`tidegate-agent`).
    pub program: PathBuf,
    /// The library that is preloaded.
    pub library: PathBuf,
    /// A directory with `libcuda.so.1`, where it is not in the system's.
    pub driver_dir: Option<PathBuf>,
    /// Where a socket can be made.
    pub run_dir: PathBuf,
}

/// Why nothing could be tried.
#[derive(Debug, thiserror::Error)]
pub enum NotPossible {
    /// The way to the child.
    #[error("cannot {0}")]
    Prepare(&'static str, #[source] std::io::Error),
    /// What the child says.
    #[error("{0}")]
    Child(String),
    /// It says nothing.
    #[error("its GPU work did not begin within {} s", READY_NS / 1_000_000_000)]
    Slow,
    /// Its library did not attach.
    #[error("its preloaded library did not attach")]
    NotAttached,
    /// The agent's side.
    #[error("the driver gives the agent no subdevice")]
    Subdevice(#[source] crate::rm::RmError),
}

/// Tries all levels; in order L1, L2, L3.
///
/// # Errors
/// When the work could not be set up, which says nothing about any level.
pub fn run(driver: &Driver, place: &Place) -> Result<Vec<(Level, Outcome)>, NotPossible> {
    let dir = Directory::new(&place.run_dir)?;
    let (mailbox, inbox) = inbox::inbox();
    let server = Server::start(&dir.0, mailbox)?;
    let mut trial = Trial {
        child: Worker::start(place, &dir.0)?,
        inbox,
        attached: None,
        channels: Vec::new(),
        answers: Vec::new(),
        next_seq: 1,
        own: Vec::new(),
        still: STILL,
    };
    for gpu in &driver.gpus {
        trial
            .own
            .push(Subdevice::open(gpu).map_err(NotPossible::Subdevice)?);
    }
    let outcome = trial.wait_ready().and_then(|()| {
        trial.still = trial.watch().map_err(NotPossible::Child)?;
        Ok(())
    });
    let outcome = outcome.map(|()| {
        [Level::L1, Level::L2, Level::L3]
            .into_iter()
            .map(|level| (level, trial.attempt(driver, level)))
            .collect()
    });
    trial.end();
    drop(server);
    outcome
}

/// A directory for one socket, gone with this value.
struct Directory(PathBuf);

impl Directory {
    fn new(run_dir: &Path) -> Result<Self, NotPossible> {
        use std::os::unix::fs::DirBuilderExt;
        let dir = run_dir.join(format!("self-test-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&dir)
            .map_err(|error| NotPossible::Prepare("make a directory for its socket", error))?;
        Ok(Self(dir))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The socket the child's library attaches to; closed with this value.
struct Server {
    end_tx: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    fn start(dir: &Path, mailbox: inbox::Mailbox) -> Result<Self, NotPossible> {
        let prepare = |what| move |error| NotPossible::Prepare(what, error);
        let listener = std::os::unix::net::UnixListener::bind(dir.join(HOOK_SOCKET))
            .map_err(prepare("listen for its library"))?;
        listener
            .set_nonblocking(true)
            .map_err(prepare("listen for its library"))?;
        let reaper = Reaper::new().map_err(prepare("watch it"))?;
        let mut config = Config::default();
        config.identity.trust_env_uids = vec![nix::unistd::Uid::effective().as_raw()];
        let in_force = tokio::sync::watch::Sender::new(Arc::new(config.into())).subscribe();
        let sessions = Sessions::new(
            in_force,
            mailbox,
            Arc::new(reaper),
            Arc::new(HookReports::default()),
        );
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(prepare("make a runtime"))?;
        let (end_tx, end_rx) = oneshot::channel();
        let serve = async move {
            let Ok(listener) = tokio::net::UnixListener::from_std(listener) else {
                return;
            };
            let (connection_tx, connection_rx) = mpsc::channel(1);
            tokio::spawn(peers::accept_greeted(
                listener,
                Arc::new(Pages::new(1)),
                Arc::new(Crowd::new(1)),
                connection_tx,
            ));
            let runtime = v1::runtime_server::RuntimeServer::new(sessions);
            let served = tonic::transport::Server::builder()
                .add_service(runtime)
                .serve_with_incoming(ReceiverStream::new(connection_rx));
            tokio::select! {
                _ = served => {}
                _ = end_rx => {}
            }
        };
        let thread = std::thread::Builder::new()
            .name("tg-self-test".to_owned())
            .spawn(move || runtime.block_on(serve))
            .map_err(prepare("start a thread"))?;
        Ok(Self {
            end_tx: Some(end_tx),
            thread: Some(thread),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end_tx = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The child.
struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    line_rx: crossbeam_channel::Receiver<String>,
}

impl Worker {
    fn start(place: &Place, dir: &Path) -> Result<Self, NotPossible> {
        let with = |first: &Path, name: &str| {
            let mut all = first.as_os_str().to_owned();
            if let Some(inherited) = std::env::var_os(name).filter(|text| !text.is_empty()) {
                all.push(":");
                all.push(inherited);
            }
            all
        };
        let mut command = Command::new(&place.program);
        command
            .arg("--self-test-work")
            .env("LD_PRELOAD", with(&place.library, "LD_PRELOAD"))
            .env("TIDEGATE_ROLE", "offline")
            .env("TIDEGATE_JOB", "self-test")
            .env(RUN_DIR_ENV, dir)
            .env_remove("TIDEGATE_DISABLE")
            .env_remove("CUDA_VISIBLE_DEVICES")
            .env_remove("CUDA_MPS_PIPE_DIRECTORY")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        if let Some(driver_dir) = &place.driver_dir {
            command.env("LD_LIBRARY_PATH", with(driver_dir, "LD_LIBRARY_PATH"));
        }
        let mut child = command
            .spawn()
            .map_err(|error| NotPossible::Prepare("start its GPU work", error))?;
        let (line_tx, line_rx) = crossbeam_channel::unbounded();
        let output = child.stdout.take();
        let read = move || {
            let Some(output) = output else { return };
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = line_tx.send(line);
            }
        };
        let thread = std::thread::Builder::new().name("tg-self-test-in".to_owned());
        thread
            .spawn(read)
            .map_err(|error| NotPossible::Prepare("start a thread", error))?;
        Ok(Self {
            input: child.stdin.take(),
            child,
            line_rx,
        })
    }
}

/// Who attached.
struct Attached {
    page: Option<SharedPage>,
    file: Option<ControlFile>,
    outbox: Outbox,
}

struct Trial {
    child: Worker,
    inbox: Inbox,
    attached: Option<Attached>,
    channels: Vec<Channel>,
    /// Answers to orders of level L3: number, whether it was done.
    answers: Vec<(u64, bool)>,
    next_seq: u64,
    /// The agent's own subdevices, by GPU.
    own: Vec<Subdevice>,
    /// How long disabled work must stand still here.
    still: Duration,
}

impl Trial {
    /// Takes what the child's library says, and gives it the signs of life it wants.
    fn turn(&mut self) {
        if let Some(page) = self.attached.as_ref().and_then(|own| own.page.as_ref()) {
            page.agent.heartbeat_ns.store(now_ns(), Ordering::Release);
        }
        let Ok(first) = self.inbox.input_rx.recv_timeout(TURN) else {
            return;
        };
        let more: Vec<_> = self.inbox.input_rx.try_iter().collect();
        for input in std::iter::once(first).chain(more) {
            match input {
                Input::Attached(newcomer) => {
                    let _ = newcomer.outbox.try_send(Tell::Welcome(Welcome {
                        session: newcomer.session,
                        role: Role::Offline,
                        level: Level::L1,
                        method: Method::default(),
                        agent_generation: 1,
                    }));
                    for words in newcomer.page.iter().flat_map(|page| &page.gates) {
                        gate::set(words, gate::Gate::Open);
                    }
                    self.attached = Some(Attached {
                        page: newcomer.page,
                        file: newcomer
                            .control_file
                            .and_then(|file| ControlFile::adopt(file).ok()),
                        outbox: newcomer.outbox,
                    });
                }
                Input::Said(_, Said::Rm { changes, .. }) => {
                    for change in changes {
                        self.observe(&change);
                    }
                }
                Input::Said(_, Said::Schedule { ticket, .. }) => {
                    if let Some(own) = &self.attached {
                        let _ = own.outbox.try_send(Tell::Go { ticket });
                    }
                }
                Input::Said(
                    _,
                    Said::Channels {
                        seq, status, errno, ..
                    },
                ) => {
                    self.answers.push((seq, status == 0 && errno == 0));
                }
                _ => {}
            }
        }
    }

    fn observe(&mut self, change: &RmChange) {
        match *change {
            RmChange::ChannelUp(up) => {
                self.channels
                    .retain(|own| (own.client, own.channel) != (up.client, up.channel));
                self.channels.push(up);
            }
            RmChange::ChannelDown { client, channel } => self
                .channels
                .retain(|own| (own.client, own.channel) != (client, channel)),
            RmChange::ClientDown(client) => self.channels.retain(|own| own.client != client),
            RmChange::ClientUp(_) => {}
        }
    }

    /// Turns until `done` says something, at most until `limit_ns` from now.
    fn until<T>(
        &mut self,
        limit_ns: u64,
        mut done: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<T> {
        let limit = now_ns() + limit_ns;
        loop {
            self.turn();
            if let Some(done) = done(self) {
                return Some(done);
            }
            if now_ns() >= limit {
                return None;
            }
        }
    }

    fn line(&mut self) -> Option<String> {
        match self.child.line_rx.try_recv() {
            Ok(line) => Some(line),
            Err(crossbeam_channel::TryRecvError::Empty) => None,
            Err(crossbeam_channel::TryRecvError::Disconnected) => {
                Some("error its GPU work ended by itself".to_owned())
            }
        }
    }

    fn wait_ready(&mut self) -> Result<(), NotPossible> {
        let said = self.until(READY_NS, Self::line).ok_or(NotPossible::Slow)?;
        if said != "ready" {
            let text = said.strip_prefix("error ").unwrap_or(&said);
            return Err(NotPossible::Child(text.to_owned()));
        }
        // What it did before it said so may still be on its way.
        self.until(ANSWER_NS, |trial| {
            let there = trial.attached.is_some() && !trial.channels.is_empty();
            there.then_some(())
        })
        .ok_or(NotPossible::NotAttached)
    }

    /// Every counter, as the child has them now, with how much is queued behind it.
    fn counters(&mut self) -> Result<Vec<(u64, u64)>, String> {
        let input = self.child.input.as_mut();
        let asked = input.is_some_and(|input| writeln!(input, "read").is_ok());
        let line = self.until(ANSWER_NS, Self::line).filter(|_| asked);
        let line = line.ok_or("its GPU work does not answer")?;
        line.split(' ')
            .map(|word| {
                let (value, queued) = word.split_once(':')?;
                Some((value.parse().ok()?, queued.parse().ok()?))
            })
            .collect::<Option<_>>()
            .ok_or(line.clone())
    }

    /// As [`Self::counters`], once there is work queued behind each: what has nothing to do stands still
    /// whatever the driver did.
    fn loaded(&mut self) -> Result<Vec<u64>, String> {
        let limit = now_ns() + ANSWER_NS;
        loop {
            let counters = self.counters()?;
            if counters.iter().all(|(_, queued)| *queued != 0) {
                return Ok(counters.into_iter().map(|(value, _)| value).collect());
            }
            if now_ns() >= limit {
                return Err("its GPU work is not kept queued".to_owned());
            }
        }
    }

    /// Waits until every counter has left `before`; the first that has not in time.
    fn moved(&mut self, before: &[u64]) -> Result<Result<(), usize>, String> {
        let limit = now_ns() + RESUME_NS;
        loop {
            let now = self.counters()?;
            let stands = before.iter().zip(&now).position(|(a, (b, _))| a == b);
            match stands {
                None => return Ok(Ok(())),
                Some(ordinal) if now_ns() >= limit => return Ok(Err(ordinal)),
                Some(_) => {}
            }
        }
    }

    /// Watches enabled work for how long it stands still by itself; how long disabled work must.
    fn watch(&mut self) -> Result<Duration, String> {
        let mut longest = 0;
        for _ in 0..WATCHED {
            let before = self.loaded()?;
            let from = now_ns();
            self.moved(&before)?
                .map_err(|_| "its GPU work does not go on".to_owned())?;
            longest = longest.max(now_ns() - from);
        }
        let factored = Duration::from_nanos(longest) * STILL_FACTOR;
        Ok(factored.clamp(STILL, STILL_MOST))
    }

    /// Turns for a while.
    fn pass(&mut self, time: Duration) {
        self.until(crate::clock::nanos(time), |_| None::<()>);
    }

    fn attempt(&mut self, driver: &Driver, level: Level) -> Outcome {
        let tried = (0..ROUNDS).try_for_each(|_| self.try_level(driver, level));
        if let Err(why) = tried {
            // Whatever this level left: the next one and the child's end want it enabled.
            for level in [Level::L2, Level::L1] {
                let _ = self.set_all(driver, level, false);
            }
            return Outcome::Failed(why);
        }
        Outcome::Proven
    }

    fn try_level(&mut self, driver: &Driver, level: Level) -> Result<(), String> {
        self.set_all(driver, level, true)?;
        // Orders are repeated, so each must be harmless the second time.
        self.set_all(driver, level, true)?;
        self.pass(SETTLE);
        let stopped = self.loaded()?;
        self.pass(self.still);
        let still = self.loaded()?;
        let went_on = stopped.iter().zip(&still).position(|(a, b)| a != b);
        if let Some(ordinal) = went_on {
            return Err(format!(
                "the driver says disabled, and work on CUDA device {ordinal} goes on"
            ));
        }
        self.set_all(driver, level, false)?;
        self.set_all(driver, level, false)?;
        self.moved(&still)?.map_err(|ordinal| {
            format!("the driver says enabled, and work on CUDA device {ordinal} stands still")
        })
    }

    /// Disables or enables all channels of the child, GPU by GPU, the way `level` does it.
    fn set_all(&mut self, driver: &Driver, level: Level, disable: bool) -> Result<(), String> {
        for (index, gpu) in driver.gpus.iter().enumerate() {
            let on = |channel: &&Channel| {
                channel.device_instance == Some(gpu.device_instance)
                    || channel.uuid == Some(gpu.uuid)
            };
            let mut channels: Vec<Channel> = self.channels.iter().filter(on).copied().collect();
            if channels.is_empty() {
                return Err(format!("no channel was seen on GPU {index}"));
            }
            channels.sort_by_key(|channel| channel.client);
            // One client a call, as level L2 needs it.
            let same = |a: &Channel, b: &Channel| a.client == b.client;
            for group in channels
                .chunk_by(same)
                .flat_map(|group| group.chunks(MAX_PAIRS))
            {
                self.set(index, gpu.device_instance, level, group, disable)
                    .map_err(|error| {
                        let what = if disable { "disable" } else { "enable" };
                        format!("{what} on GPU {index}: {error}")
                    })?;
            }
        }
        Ok(())
    }

    fn set(
        &mut self,
        index: usize,
        device_instance: u32,
        level: Level,
        group: &[Channel],
        disable: bool,
    ) -> Result<(), String> {
        let mut call = DisableChannels {
            disable: u8::from(disable),
            num_channels: u32::try_from(group.len()).unwrap_or(0),
            ..DisableChannels::default()
        };
        for (at, channel) in group.iter().enumerate() {
            call.h_client_list[at] = channel.client;
            call.h_channel_list[at] = channel.channel;
        }
        let Some(first) = group.first() else {
            return Ok(());
        };
        let text = |error: crate::rm::RmError| error.to_string();
        match level {
            Level::L1 => self.own[index].set_channels(&mut call).map_err(text),
            Level::L2 => {
                let file = self.attached.as_ref().and_then(|own| own.file.as_ref());
                let file = file.ok_or("its library sent no control file")?;
                file.set_channels(first.client, first.subdevice, &mut call)
                    .map_err(text)
            }
            Level::L3 => self.set_remotely(device_instance, group, disable),
            Level::L5 => Ok(()),
        }
    }

    fn set_remotely(
        &mut self,
        device_instance: u32,
        group: &[Channel],
        disable: bool,
    ) -> Result<(), String> {
        let seq = self.next_seq;
        self.next_seq += 1;
        let tell = Tell::Set {
            seq,
            disable,
            pairs: group.iter().map(|own| (own.client, own.channel)).collect(),
            device_instance,
            method: Method::default(),
            more: false,
        };
        let told = self
            .attached
            .as_ref()
            .is_some_and(|own| own.outbox.try_send(tell).is_ok());
        let answer = self.until(ANSWER_NS, |trial| {
            let (_, done) = trial.answers.iter().find(|(own, _)| *own == seq)?;
            Some(*done)
        });
        match answer {
            Some(true) if told => Ok(()),
            Some(_) => Err("its library could not".to_owned()),
            None => Err("its library does not answer".to_owned()),
        }
    }

    /// Lets the child end; it must never be killed while a channel of it is disabled.
    fn end(&mut self) {
        self.child.input = None;
        let ended = self.until(END_NS, |trial| {
            trial.child.child.try_wait().ok().flatten().map(|_| ())
        });
        if ended.is_none() {
            let _ = self.child.child.kill();
        }
        let _ = self.child.child.wait();
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        let _ = self.child.child.kill();
        let _ = self.child.child.wait();
    }
}
