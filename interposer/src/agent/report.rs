//! The reporter: the one thread that talks to the agent.
//!
//! It runs in an empty descriptor table of its own ([`crate::threads`]), not in the application's. So the application
//! neither sees, inherits nor closes our descriptors, and we cannot write into a file of the application that reused a
//! number of ours. No other thread may touch a descriptor of this one. It is therefore woken by a signal that it reads
//! from a `signalfd` ([`super::signals`], [`crate::sys::Bell`]), and the agent is woken by a futex in the page.
//!
//! A lost stream is tried again after 10 ms; the delay doubles up to 100 ms until a session has lasted. Meanwhile
//! [`tidegate_core::landing`] decides what an offline process does. This thread checks and acts, on a timer while there
//! is an agent to check.

use super::connect::{Chain, Lost, channel};
use super::edges::Edges;
use super::greet::{Greeted, Met, greet};
use super::news::News;
use super::pages::Pages;
use super::signals::{drain, signal_descriptor};
use super::upstream::Upstream;
use super::watch::Watch;
use crate::env::Said;
use crate::memory::talk::{self, Talk};
use crate::process::Process;
use crate::real::row::Row;
use crate::rm::channels::{self, Outcome};
use crate::rm::version;
use crate::state::activity::slots;
use crate::state::objects::GRANTS;
use crate::sys;
use crate::{clock, ending, log};
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;
use tidegate_abi::page::{MAJOR, MINOR, Page};
use tidegate_abi::rm::Status;
use tidegate_core::gate::{LaunchGate, Role, Switch};
use tidegate_proto::v1::{self, StopMethod, agent_command::Command, client_event::Event};
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnboundedReceiverStream;

const FIRST_BACKOFF: Duration = Duration::from_millis(10);
/// A new agent wakes nobody and gives nobody memory for half a second, so that all are heard before:
/// who looks for it comes well within that, on a busy machine too.
const LAST_BACKOFF: Duration = Duration::from_millis(100);
/// A session that ends sooner is no reason to look for the next at once.
const LASTED_NS: u64 = 1_000_000_000;
/// How often an offline process checks its agent's heartbeat.
const TICK: Duration = Duration::from_millis(25);

/// Runs for ever, in a thread with a descriptor table of its own.
pub fn run(process: &'static Process, rows: &'static [Row], said: Said) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        // It reads the clock before it sleeps, and after.
        .on_thread_unpark(|| ending::sleeping(|| ()))
        .build();
    let (Ok(runtime), Ok(signals)) = (runtime, signal_descriptor()) else {
        log::debug(|| "the reporter cannot start".to_owned());
        return;
    };
    process.bell.listen();
    ending::woken_by(|| process.bell.ring());
    let mut reporter = Reporter {
        process,
        said,
        watch: Watch::new(process),
        news: News::new(process, rows),
        talk: Talk::default(),
        pages: Pages::default(),
        edges: Edges::default(),
    };
    runtime.block_on(async {
        // SAFETY: an owned descriptor, which stays open as long as the value that is registered.
        let Ok(signals) = (unsafe { AsyncFd::register(signals) }) else {
            return;
        };
        reporter.run(&signals).await;
    });
}

struct Reporter {
    process: &'static Process,
    /// What the environment said when this thread was started.
    said: Said,
    watch: Watch,
    news: News,
    talk: Talk,
    pages: Pages,
    edges: Edges,
}

impl Reporter {
    async fn run(&mut self, signals: &AsyncFd<OwnedFd>) {
        let mut backoff = FIRST_BACKOFF;
        loop {
            let begun = clock::now_ns();
            if let Err(lost) = self.session(signals).await {
                log::debug(|| format!("{}", Chain(&lost)));
            }
            self.detach();
            if clock::now_ns().saturating_sub(begun) >= LASTED_NS {
                backoff = FIRST_BACKOFF;
            }
            self.while_watching(tokio::time::sleep(backoff)).await;
            backoff = (backoff * 2).min(LAST_BACKOFF);
        }
    }

    /// Whether there is an agent's page to check and reason to.
    fn watches(&self) -> bool {
        self.process.role() == Role::Offline && self.process.link.ever.load(Relaxed)
    }

    /// Waits for `step` and checks the agent meanwhile: the socket of one that is stopped still
    /// takes connections, and then nothing is heard from it.
    async fn while_watching<T>(&mut self, step: impl Future<Output = T>) -> T {
        tokio::pin!(step);
        loop {
            tokio::select! {
                done = &mut step => return done,
                () = tokio::time::sleep(TICK), if self.watches() => self.watch.check(clock::now_ns()),
            }
        }
    }

    /// After a session, or a try.
    fn detach(&mut self) {
        let was = self.process.link.attached.swap(false, AcqRel);
        self.process.link.stream_lane.store(false, Release);
        self.process.forget_private_leases();
        // Schedule calls that wait for an answer go on.
        GRANTS.fetch_add(1, AcqRel);
        sys::futex_wake(&GRANTS);
        let mut rm = sys::lock(&self.process.rm);
        rm.outbox.clear();
        rm.edges = Default::default();
        drop(rm);
        self.talk.void(self.process);
        if was {
            log::debug(|| "the agent is gone".to_owned());
            if self.process.role() == Role::Offline {
                self.watch.check(clock::now_ns());
            } else {
                self.process.set_private_gates(LaunchGate::Open);
                self.process.swap_page(self.process.pages.private);
            }
        }
    }

    async fn session(&mut self, signals: &AsyncFd<OwnedFd>) -> Result<(), Lost> {
        let path = format!("{}/{}", self.said.run_dir, tidegate_proto::HOOK_SOCKET);
        let process = self.process;
        // An agent that knows this process may enable its channels: not over a range where nothing is mapped.
        let settling = async {
            while process.role() == Role::Offline && process.memory.is_changing() {
                tokio::time::sleep(TICK).await;
            }
        };
        self.while_watching(settling).await;
        let place = self.free_place().map_err(Lost::Greet)?;
        let greeting = async {
            let stream = UnixStream::connect(path).await.map_err(Lost::Connect)?;
            let greeted = greet(&stream, process, place).await.map_err(Lost::Greet)?;
            let channel = channel(stream).await.map_err(Lost::Transport)?;
            Ok((greeted, channel))
        };
        let (Met { greeted, told }, channel) = self.while_watching(greeting).await?;
        self.news.greeted(told);
        let (events_tx, events) = mpsc::unbounded_channel();
        let up = Upstream::new(events_tx, self.hello(&greeted));
        self.edges = Edges::default();
        let mut client = v1::runtime_client::RuntimeClient::new(channel);
        let attach = client.attach(UnboundedReceiverStream::new(events));
        let mut down = self
            .while_watching(tokio::time::timeout(Duration::from_secs(2), attach))
            .await
            .map_err(|_| Lost::Slow)?
            .map_err(|status| Lost::Attach(Box::new(status)))?
            .into_inner();
        let page = match greeted {
            Greeted::Page(page) => Some(page),
            Greeted::Bare => None,
        };
        if let Some(page) = page {
            // The agent reads there what was launched under another one, as soon as it hears of the devices.
            slots::carry_tallies(process.page(), page);
        }
        self.snapshot(&up);
        loop {
            let waits = [
                self.talk.wake_in(self.process),
                self.edges.wake_in(self.process, clock::now_ns()),
            ];
            let next = waits.into_iter().flatten().min();
            tokio::select! {
                command = down.next() => match command {
                    Some(Ok(command)) => self.command(&up, command, page),
                    Some(Err(status)) => {
                        self.unheard(&up, &status);
                        return Err(Lost::Attach(Box::new(status)));
                    }
                    None => return Err(Lost::Ended),
                },
                ready = signals.readable() => {
                    if let Ok(mut ready) = ready {
                        drain(signals.get_ref());
                        ready.clear_ready();
                    }
                    self.deliver(&up);
                }
                () = tokio::time::sleep(TICK), if self.watches() => self.watch.check(clock::now_ns()),
                () = tokio::time::sleep(next.unwrap_or_default()), if next.is_some() => self.deliver(&up),
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
            }
            // Not an arm of its own: one that ends every few milliseconds would begin it anew for ever.
            self.news.hooks(&up, false);
        }
    }

    /// Where the next page may come: neither where the one of the agent is that was last obeyed, nor where a thread is.
    fn free_place(&mut self) -> io::Result<&'static Page> {
        let watched = self
            .watch
            .page()
            .map_or(core::ptr::null(), core::ptr::from_ref);
        let [shown, prober, work] = self.process.pages_in_use();
        self.pages.free(&[watched, shown, prober, work])
    }

    /// The agent closed the stream. If that was for something that it never hears, it is not said to it again.
    fn unheard(&mut self, up: &Upstream, status: &tonic::Status) {
        let beyond = status.code() == tonic::Code::ResourceExhausted
            && status.message() == tidegate_proto::BEYOND_BOUNDS;
        if let Some(what) = up.largest().filter(|_| beyond) {
            self.talk.unheard(what);
        }
    }

    /// As the driver told its library, else as it tells this thread.
    fn driver_version(&self) -> String {
        let told = sys::lock(&self.process.rm).driver.clone();
        if told.is_empty() {
            version::of_driver()
        } else {
            told
        }
    }

    fn hello(&self, greeted: &Greeted) -> v1::Hello {
        let page_version = match greeted {
            Greeted::Page(_) => MAJOR << 16 | MINOR,
            Greeted::Bare => 0,
        };
        v1::Hello {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            page_version,
            wished_role: match self.process.start.wished {
                Role::Online => v1::Role::Online,
                Role::Offline => v1::Role::Offline,
                _ => v1::Role::Unspecified,
            }
            .into(),
            job: self.said.job.clone(),
            name: std::fs::read_to_string("/proc/self/comm")
                .map(|name| name.trim().to_owned())
                .unwrap_or_default(),
            pid: std::process::id().cast_signed(),
            membarrier: self.process.start.membarrier,
            driver_version: self.driver_version(),
            last_agent_generation: self.watch.generation(),
            memory: talk::VERSION,
            unknown_role: self.said.unknown_role.clone(),
            weight: self.said.weight,
            paces: true,
            clock_ns: clock::now_ns(),
        }
    }

    /// What stands, and from here on every change.
    fn snapshot(&mut self, up: &Upstream) {
        self.news.snapshot(up);
        self.talk.attach(self.process);
        self.deliver(up);
    }

    /// Sends what other threads left here.
    fn deliver(&mut self, up: &Upstream) {
        self.news.objects(up);
        self.edges.deliver(self.process, up, clock::now_ns());
        self.news.waiting(up);
        self.talk.deliver(self.process, &mut |event| up.send(event));
    }

    fn command(&mut self, up: &Upstream, command: v1::AgentCommand, page: Option<&'static Page>) {
        match command.command {
            Some(Command::Welcome(welcome)) => {
                self.welcome(&welcome, page);
                self.talk.welcome(welcome.memory);
                self.deliver(up);
            }
            Some(Command::Heard(heard)) => {
                self.edges.heard(heard.messages);
                self.edges.deliver(self.process, up, clock::now_ns());
            }
            Some(Command::ScheduleGo(go)) => {
                sys::lock(&self.process.rm).granted.push(go.ticket);
                GRANTS.fetch_add(1, AcqRel);
                sys::futex_wake(&GRANTS);
            }
            Some(Command::SetChannels(wanted)) => {
                up.send(Event::ChannelResult(self.set_channels(&wanted)));
            }
            Some(Command::ReportHooks(_)) => self.news.hooks(up, true),
            Some(Command::LaunchGate(gate)) if page.is_none() => {
                let device = usize::try_from(gate.slot).unwrap_or(usize::MAX);
                self.process
                    .set_private_gate(device, launch_gate(gate.closed));
            }
            Some(Command::Lease(lease)) if page.is_none() => {
                let device = usize::try_from(lease.slot).unwrap_or(usize::MAX);
                self.process.set_private_lease(device, &lease);
            }
            Some(memory) => self.talk.command(self.process, memory),
            None => {}
        }
    }

    /// Carries out an order about this process' own channels.
    fn set_channels(&mut self, wanted: &v1::SetChannels) -> v1::ChannelResult {
        if wanted.disable {
            self.watch.touch();
        }
        let pairs: Vec<(u32, u32)> = wanted
            .pairs
            .iter()
            .map(|pair| (pair.client, pair.channel))
            .collect();
        // A method of a later agent is not carried out in part.
        let outcome = match StopMethod::try_from(wanted.method) {
            Err(_) => Outcome::refused(Status::NOT_SUPPORTED, 0),
            Ok(method) => {
                let order = channels::Order {
                    switch: if wanted.disable {
                        Switch::Disable
                    } else {
                        Switch::Enable
                    },
                    pairs: &pairs,
                    device_instance: wanted.device_instance.max(0).cast_unsigned(),
                    method,
                    more: wanted.more,
                };
                channels::carry_out(self.process, &order)
            }
        };
        v1::ChannelResult {
            seq: wanted.seq,
            status: outcome.status,
            errno: outcome.errno,
            entered_ns: outcome.entered_ns,
            returned_ns: outcome.returned_ns,
            method: wanted.method,
        }
    }

    fn welcome(&mut self, welcome: &v1::Welcome, page: Option<&'static Page>) {
        let process = self.process;
        log::debug(|| {
            format!(
                "attached as {}, session {}, to agent {} (its start number {})",
                match welcome.role() {
                    v1::Role::Online => "online",
                    v1::Role::Offline => "offline",
                    v1::Role::Ignore => "nothing: it is neither seen nor gated",
                    v1::Role::Unspecified => "something that this library does not know",
                },
                welcome.session,
                welcome.agent_version,
                welcome.agent_generation
            )
        });
        let role = match welcome.role() {
            v1::Role::Online => Role::Online,
            v1::Role::Offline => Role::Offline,
            v1::Role::Ignore => Role::Ignore,
            v1::Role::Unspecified => Role::Unknown,
        };
        if let Some(limits) = &welcome.limits {
            let given = |value: u64, default: u64| if value == 0 { default } else { value };
            process.limits.probe_interval.store(
                given(limits.probe_interval_ns, 500_000).clamp(200_000, 1_000_000),
                Relaxed,
            );
            process
                .limits
                .busy_suspect
                .store(given(limits.busy_suspect_ns, 5_000_000_000), Relaxed);
            process.limits.schedule_hold.store(
                given(
                    limits.schedule_hold_ns,
                    tidegate_core::gate::SCHEDULE_HOLD_NS,
                ),
                Relaxed,
            );
        }
        if welcome.hears {
            self.edges.hears();
        }
        self.watch.welcomed(welcome);
        process.set_role(role);
        process.link.ever.store(true, Release);
        let shown = page.unwrap_or(process.pages.private);
        process.link.stream_lane.store(page.is_none(), Release);
        if page.is_none() {
            // Without a page no gate word can reach this process: the agent says it on the stream,
            // or is too old to, and then the channels do all the gating.
            process.set_private_gates(launch_gate(welcome.launch_gates));
        }
        self.watch.obey_on(shown);
    }
}

/// As the agent says it on the stream.
const fn launch_gate(closed: bool) -> LaunchGate {
    if closed {
        LaunchGate::Closed
    } else {
        LaunchGate::Open
    }
}
