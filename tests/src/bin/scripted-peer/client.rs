//! The peer: its connection, its page, its stream.

use crate::attack;
use crate::lease;
use crate::rm::{self, Objects};
use crate::say::say;
use crate::trial::Trials;
use crate::wire;
use std::collections::HashMap;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate_abi::page::Page;
use tidegate_agent::sys;
use tidegate_proto::greeting::{First, Greeting, LEN};
use tidegate_proto::v1;
use tidegate_tests::monotonic_ns;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnboundedReceiverStream;

type Result<T> = std::result::Result<T, String>;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[derive(Debug, Default)]
pub struct Peer {
    control: Option<Arc<OwnedFd>>,
    objects: Arc<Mutex<HashMap<u32, Objects>>>,
    page: Option<Arc<Mapped>>,
    stream: Option<UnixStream>,
    event_tx: Option<mpsc::UnboundedSender<v1::ClientEvent>>,
    refuses: Arc<AtomicBool>,
    prober: bool,
    held: Vec<UnixStream>,
    table: Vec<std::fs::File>,
    /// Locks that [`attack::lock`] took.
    locks: Vec<nix::fcntl::Flock<std::fs::File>>,
    /// Where it says its iterations.
    beats: Option<lease::Beats>,
    /// Activity words by place, where there is no page.
    told: HashMap<usize, u64>,
    trials: Trials,
}

/// The page, mapped as long as anything looks at it.
#[derive(Debug)]
struct Mapped {
    at: NonNull<Page>,
    file: OwnedFd,
}

// SAFETY: the page is of atomics, and mapped until it is dropped.
unsafe impl Send for Mapped {}
// SAFETY: likewise.
unsafe impl Sync for Mapped {}

impl Deref for Mapped {
    type Target = Page;

    fn deref(&self) -> &Page {
        // SAFETY: mapped until it is dropped, and only reached as atomics.
        unsafe { self.at.as_ref() }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped with this size, and nothing refers to it any more.
        unsafe { libc::munmap(self.at.as_ptr().cast(), tidegate_abi::page::BYTES) };
    }
}

impl Mapped {
    fn of(file: &OwnedFd) -> Result<Self> {
        use std::os::fd::AsRawFd;
        // SAFETY: a fresh shared mapping of a memfd that the agent has sealed at this size.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                tidegate_abi::page::BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        let mapped = NonNull::new(at.cast()).filter(|_| at != libc::MAP_FAILED);
        let at = mapped.ok_or_else(|| text(std::io::Error::last_os_error()))?;
        let file = file.try_clone().map_err(text)?;
        Ok(Self { at, file })
    }

    fn ring(&self) {
        let bell = &self.process.doorbell;
        bell.fetch_add(1, Ordering::Release);
        sys::futex_wake(bell);
    }
}

fn number<T: TryFrom<u64>>(words: &[&str], at: usize) -> Result<T> {
    let word = words.get(at).ok_or("too few words")?;
    let value = match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).map_err(text)?,
        None => word.parse().map_err(text)?,
    };
    T::try_from(value).map_err(|_| "out of range".to_owned())
}

fn run_dir() -> PathBuf {
    std::env::var_os(tidegate_proto::RUN_DIR_ENV)
        .unwrap_or_default()
        .into()
}

impl Peer {
    pub async fn obey(&mut self, command: &str, words: &[&str]) -> Result<String> {
        match command {
            "connect" => self.connect(words.first().copied()),
            "hello" => self.hello(words).await,
            "device" => self.device(number(words, 0)?, number(words, 1)?),
            "make" => {
                let wanted = if words.len() > 2 {
                    number(words, 2)?
                } else {
                    0
                };
                self.make(number(words, 0)?, number(words, 1)?, wanted)
            }
            "free" => {
                let client = number(words, 0)?;
                let object = if words.len() > 1 {
                    number(words, 1)?
                } else {
                    client
                };
                rm::free(&*self.control()?, client, object)?;
                Ok(String::new())
            }
            "version" => rm::build_version(&*self.control()?, number(words, 0)?)
                .map(|status| format!("status {status:#x}")),
            "report" => self.report(words),
            "gone" => {
                let client = number(words, 0)?;
                self.rm(vec![v1::rm_event::Event::ClientDown(v1::ClientDown {
                    client,
                })])
            }
            "schedule" => self.send(v1::client_event::Event::ScheduleRequest(
                v1::ScheduleRequest {
                    ticket: number(words, 0)?,
                    client: number(words, 1)?,
                    object: number(words, 2)?,
                },
            )),
            "waits" => self.send(v1::client_event::Event::GateWait(v1::GateWait {
                waiting: number::<u32>(words, 0)? != 0,
            })),
            "busy" => self.edge(number(words, 0)?, true),
            "idle" => self.edge(number(words, 0)?, false),
            "word" => {
                let slot: usize = number(words, 0)?;
                let page = self.page()?;
                page.devices[slot]
                    .activity
                    .store(number(words, 1)?, Ordering::Release);
                Ok(String::new())
            }
            "gate" => {
                let slot: usize = number(words, 0)?;
                let word = self.page()?.gates[slot].gate.load(Ordering::Acquire);
                let closed = word & tidegate_abi::page::GATE_STATE != 0;
                Ok(if closed { "gate closed" } else { "gate open" }.to_owned())
            }
            "beats" | "beat" | "flight" | "offer" | "lease" | "over" => self.leases(command, words),
            "land" => self.land(),
            "refuse" => {
                self.refuses.store(true, Ordering::Release);
                Ok(String::new())
            }
            "scribble" => self.scribble(number(words, 0)?),
            "ring" => {
                let page = self.page()?;
                let until = monotonic_ns() + number::<u64>(words, 0)? * 1_000_000;
                while monotonic_ns() < until {
                    page.ring();
                }
                Ok(String::new())
            }
            "wake" => {
                let page = self.page()?;
                let until = monotonic_ns() + number::<u64>(words, 0)? * 1_000_000;
                while monotonic_ns() < until {
                    sys::futex_wake(&page.process.doorbell);
                }
                Ok(String::new())
            }
            "holes" => {
                let page = self.page()?;
                let until = monotonic_ns() + number::<u64>(words, 0)? * 1_000_000;
                let mut made = attack::punch(&page, &page.file);
                while monotonic_ns() < until {
                    sys::futex_wake(&page.process.doorbell);
                    made += attack::punch(&page, &page.file);
                }
                Ok(format!("holes {made}"))
            }
            "flood" => {
                for at in 0..number::<u64>(words, 0)? {
                    self.note(&format!("flood {at}"))?;
                }
                Ok(String::new())
            }
            "huge" => self.note(&"x".repeat(2 << 20)),
            "hold" => {
                let held = attack::hold(&run_dir().join(words[0]), number(words, 1)?);
                self.held.extend(held);
                Ok(format!("held {}", self.held.len()))
            }
            "readers" => {
                let socket = run_dir().join(tidegate_proto::STATUS_SOCKET);
                attack::readers(&socket, number(words, 0)?, number(words, 1)?)
                    .await
                    .map_err(text)?;
                Ok(String::new())
            }
            "linger" => {
                self.held.extend(attack::linger(&run_dir()).map_err(text)?);
                Ok(String::new())
            }
            "again" => {
                for _ in 0..number::<u32>(words, 0)? {
                    self.connect(Some("nofile"))?;
                    self.hello(&["offline", "again"]).await?;
                }
                Ok(String::new())
            }
            "begin" => {
                for _ in 0..number::<u32>(words, 0)? {
                    self.begin()?;
                }
                Ok(String::new())
            }
            "untaken" => {
                for at in 0..number::<usize>(words, 1)? {
                    let path = run_dir().join(tidegate_proto::STATUS_SOCKET);
                    let stream = UnixStream::connect(path).map_err(text)?;
                    let method = ["GetStatus", "WatchEvents"][at % 2];
                    let path = format!("/tidegate.v1.Node/{method}");
                    let calls = number(words, 0)?;
                    wire::call(stream, &path, (calls, false), 0, &[0; 5]).map_err(text)?;
                }
                Ok(String::new())
            }
            "files" => {
                let held = attack::files(&run_dir(), number(words, 0)?).map_err(text)?;
                self.held.extend(held);
                Ok(String::new())
            }
            "lock" => {
                self.locks = attack::lock(&run_dir()).map_err(text)?;
                Ok(format!("locked {}", self.locks.len()))
            }
            "storm" => {
                for _ in 0..number::<u64>(words, 0)? {
                    self.rm(attack::nothings(number(words, 1)?))?;
                }
                Ok(String::new())
            }
            "table" => {
                self.table = attack::table(number(words, 0)?).map_err(text)?;
                Ok(format!("table {}", self.table.len()))
            }
            "cache" => self.send(attack::whole(number(words, 0)?)),
            "caches" => {
                let until = monotonic_ns() + number::<u64>(words, 0)? * 1_000_000;
                for kv in 1.. {
                    if monotonic_ns() >= until {
                        break;
                    }
                    self.send(attack::cache(kv, 1_000))?;
                    std::thread::sleep(Duration::from_micros(200));
                }
                Ok(String::new())
            }
            "wait" => {
                let until = monotonic_ns() + number::<u64>(words, 0)? * 1_000_000;
                let mut waiting = false;
                while monotonic_ns() < until {
                    waiting = !waiting;
                    let said = v1::GateWait { waiting };
                    self.send(v1::client_event::Event::GateWait(said))?;
                    std::thread::sleep(Duration::from_micros(50));
                }
                Ok(String::new())
            }
            "lie" => {
                let until = monotonic_ns() + number::<u64>(words, 0)? * 1_000_000;
                let mut from = 0x7000_0000;
                while monotonic_ns() < until {
                    self.rm(attack::claims(from, 32))?;
                    from += 32;
                    std::thread::sleep(Duration::from_millis(10));
                }
                Ok(String::new())
            }
            "invent" => self.rm(attack::channels(number(words, 0)?, number(words, 1)?)),
            "raw" => raw(words.first().copied().unwrap_or_default()),
            "try" => self.trials.obey(&run_dir(), words).map_err(text),
            "hang" => {
                std::thread::sleep(Duration::from_millis(number(words, 0)?));
                Ok(String::new())
            }
            "drop" => {
                self.event_tx = None;
                let stream = self.stream.take().ok_or("connect first")?;
                stream.shutdown(std::net::Shutdown::Both).map_err(text)?;
                Ok(String::new())
            }
            "cuda" => rm::cuda_context().map(|()| String::new()),
            "enable" => {
                let control = self.control()?;
                let begun = monotonic_ns();
                let status = rm::schedule(&control, number(words, 0)?, number(words, 1)?)?;
                Ok(format!("enabled {status} {}", monotonic_ns() - begun))
            }
            "dup" => {
                let other = self.control()?.try_clone().map_err(text)?;
                self.control = Some(Arc::new(other));
                Ok(String::new())
            }
            "close" => {
                self.control = None;
                Ok(String::new())
            }
            _ => Err("no such command".to_owned()),
        }
    }

    /// Attaches, and begins a message that never ends.
    fn begin(&mut self) -> Result<()> {
        self.connect(Some("nofile"))?;
        let stream = self.stream.take().ok_or("it was connected")?;
        // A hello that says nothing, and the first bytes of a list of requests.
        let mut bytes = vec![0, 0, 0, 0, 2, 0x0a, 0];
        bytes.extend([0, 0, 0x10, 0, 0, 0x82, 1]);
        bytes.extend([0; 10_000]);
        let attach = "/tidegate.v1.Runtime/Attach";
        wire::call(stream, attach, (1, true), 65_535, &bytes).map_err(text)
    }

    fn leases(&mut self, command: &str, words: &[&str]) -> Result<String> {
        let page = self.page()?;
        match command {
            "beats" => {
                let beats = lease::Beats::make(words.first() == Some(&"sealed"))?;
                let event = v1::BeatPage { fd: beats.fd() };
                self.beats = Some(beats);
                return self.send(v1::client_event::Event::BeatPage(event));
            }
            "beat" => {
                let beats = self.beats.as_ref().ok_or("no page of iterations")?;
                let what = (number(words, 1)?, number(words, 2)?, number(words, 3)?);
                beats.beat(number(words, 0)?, what);
            }
            "flight" => {
                let count: u64 = number(words, 0)?;
                page.process.in_flight.store(count + 1, Ordering::Release);
            }
            "offer" => lease::offer(&page, number(words, 0)?, number(words, 1)?),
            "lease" => return Ok(lease::lease(&page, number(words, 0)?)),
            _ => {
                let (slot, lease, units) =
                    (number(words, 0)?, number(words, 1)?, number(words, 2)?);
                lease::over(&page, slot, lease, units);
            }
        }
        page.ring();
        Ok(String::new())
    }

    fn page(&self) -> Result<Arc<Mapped>> {
        self.page.clone().ok_or_else(|| "no page".to_owned())
    }

    fn control(&mut self) -> Result<Arc<OwnedFd>> {
        if let Some(control) = &self.control {
            return Ok(Arc::clone(control));
        }
        let control = Arc::new(rm::open_control()?);
        self.control = Some(Arc::clone(&control));
        Ok(control)
    }

    fn connect(&mut self, how: Option<&str>) -> Result<String> {
        let path = run_dir().join(tidegate_proto::HOOK_SOCKET);
        let stream = UnixStream::connect(&path).map_err(text)?;
        if how == Some("old") {
            // The agent's greeting stays where it is: a frame of a type that HTTP/2 does not know.
            self.stream = Some(stream);
            return Ok(String::new());
        }
        let page = greeted(&stream)?;
        let file = match how {
            None | Some("otherpage") => Some(self.control()?),
            Some("nofile" | "bare") => None,
            Some("wrongfile") => {
                let null = std::fs::File::open("/dev/null").map_err(text)?;
                Some(Arc::new(null.into()))
            }
            Some("lingering") => Some(Arc::new(attack::lingering().map_err(text)?)),
            Some(_) => {
                return Err("nofile, wrongfile, lingering, otherpage, bare or old".to_owned());
            }
        };
        let files: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
        let greeting = Greeting::new(u8::from(file.is_some())).encode();
        sys::send_with_descriptors(stream.as_fd(), &greeting, &files).map_err(text)?;
        self.page = (!matches!(how, Some("otherpage" | "bare"))).then(|| Arc::new(page));
        self.stream = Some(stream);
        Ok(String::new())
    }

    async fn hello(&mut self, words: &[&str]) -> Result<String> {
        let stream = self.stream.as_ref().ok_or("connect first")?;
        let stream = stream.try_clone().map_err(text)?;
        stream.set_nonblocking(true).map_err(text)?;
        let mut once = Some(tokio::net::UnixStream::from_std(stream).map_err(text)?);
        let connector = tower::service_fn(move |_: tonic::transport::Uri| {
            let stream = once.take();
            async move {
                stream
                    .map(hyper_util::rt::TokioIo::new)
                    .ok_or_else(|| std::io::Error::other("used up"))
            }
        });
        let channel = tonic::transport::Endpoint::from_static("http://tidegate.invalid")
            .connect_with_connector(connector)
            .await
            .map_err(text)?;
        let (event_tx, event_rx) = mpsc::unbounded_channel();
        let role = match words.first() {
            Some(&"online") => v1::Role::Online,
            Some(&"offline") => v1::Role::Offline,
            Some(&"ignore") => v1::Role::Ignore,
            _ => v1::Role::Unspecified,
        };
        let hello = v1::Hello {
            version: "scripted".to_owned(),
            page_version: match self.page {
                Some(_) if words.get(2) == Some(&"says-work") => {
                    (tidegate_abi::page::MAJOR << 16) | tidegate_abi::page::MINOR
                }
                Some(_) => tidegate_abi::page::MAJOR << 16,
                None => 0,
            },
            wished_role: role.into(),
            job: words.get(1).copied().unwrap_or_default().to_owned(),
            name: "scripted-peer".to_owned(),
            membarrier: true,
            ..v1::Hello::default()
        };
        self.event_tx = Some(event_tx);
        self.send(v1::client_event::Event::Hello(hello))?;
        let answer = v1::runtime_client::RuntimeClient::new(channel)
            .attach(UnboundedReceiverStream::new(event_rx))
            .await
            .map_err(|status| status.message().to_owned())?;
        let mut commands = answer.into_inner();
        let welcome = commands.next().await;
        let Some(Ok(v1::AgentCommand {
            command: Some(v1::agent_command::Command::Welcome(welcome)),
        })) = welcome
        else {
            return Err("no welcome".to_owned());
        };
        self.listen(commands);
        if let (false, Some(page)) = (self.prober, self.page.clone()) {
            self.prober = true;
            std::thread::spawn(move || {
                loop {
                    page.process
                        .prober_ns
                        .store(monotonic_ns(), Ordering::Release);
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
        }
        Ok(format!(
            "welcome {} {} session {}",
            welcome.role().as_str_name(),
            welcome.level().as_str_name(),
            welcome.session
        ))
    }

    /// Prints what the agent says, and carries out its orders of level L3.
    fn listen(&self, mut commands: tonic::Streaming<v1::AgentCommand>) {
        let (objects, control) = (Arc::clone(&self.objects), self.control.clone());
        let (refuses, event_tx) = (Arc::clone(&self.refuses), self.event_tx.clone());
        tokio::spawn(async move {
            use v1::agent_command::Command;
            while let Some(Ok(message)) = commands.next().await {
                match message.command {
                    Some(Command::ScheduleGo(go)) => say(&format!("< go {}", go.ticket)),
                    Some(Command::LaunchGate(gate)) => {
                        let state = if gate.closed { "closed" } else { "open" };
                        say(&format!("< gate {} {state}", gate.slot));
                    }
                    Some(Command::SetChannels(set)) => {
                        let entered_ns = monotonic_ns();
                        let status = if refuses.load(Ordering::Acquire) {
                            Ok(0x1b)
                        } else {
                            let pairs: Vec<_> =
                                set.pairs.iter().map(|p| (p.client, p.channel)).collect();
                            let objects = objects.lock().expect("not poisoned");
                            match (objects.values().next(), &control) {
                                (Some(objects), Some(control)) => {
                                    rm::set_channels(control, objects, set.disable, &pairs)
                                }
                                _ => Err("nothing made".to_owned()),
                            }
                        };
                        let result = v1::ChannelResult {
                            seq: set.seq,
                            status: status.unwrap_or(u32::MAX),
                            errno: 0,
                            entered_ns,
                            returned_ns: monotonic_ns(),
                            ..v1::ChannelResult::default()
                        };
                        let event = v1::client_event::Event::ChannelResult(result);
                        if let Some(event_tx) = &event_tx {
                            let _ = event_tx.send(v1::ClientEvent { event: Some(event) });
                        }
                    }
                    Some(Command::BeatsWanted(_)) => say("< beats wanted"),
                    _ => {}
                }
            }
            say("< end");
        });
    }

    fn send(&self, event: v1::client_event::Event) -> Result<String> {
        self.event_tx
            .as_ref()
            .ok_or("hello first")?
            .send(v1::ClientEvent { event: Some(event) })
            .map_err(text)?;
        Ok(String::new())
    }

    fn note(&self, text: &str) -> Result<String> {
        self.send(v1::client_event::Event::Note(v1::Note {
            kind: "test".to_owned(),
            text: text.to_owned(),
        }))
    }

    fn device(&mut self, slot: u32, gpu: u32) -> Result<String> {
        let control = self.control()?;
        let known = self
            .objects
            .lock()
            .expect("not poisoned")
            .contains_key(&gpu);
        if !known {
            self.make(gpu, 0, 0)?;
        }
        let objects = self.objects.lock().expect("not poisoned");
        let uuid = rm::uuid(&control, &objects[&gpu])?;
        self.send(v1::client_event::Event::DeviceSeen(v1::DeviceSeen {
            slot,
            uuid: uuid.to_vec(),
        }))
    }

    fn make(&mut self, gpu: u32, count: u32, wanted: u32) -> Result<String> {
        let control = self.control()?;
        let made = rm::make(&control, gpu, count, wanted)?;
        let mut answer = format!("made {:#x}", made.client);
        for channel in &made.channels {
            answer.push_str(&format!(" {channel:#x}"));
        }
        self.objects.lock().expect("not poisoned").insert(gpu, made);
        Ok(answer)
    }

    fn report(&self, words: &[&str]) -> Result<String> {
        let gpu: u32 = number(words, 0)?;
        let client = number(words, 1)?;
        // The driver's number of a GPU is another than that of its file, which is all that is known of one without objects.
        let (tsg, subdevice, instance) = self
            .objects
            .lock()
            .expect("not poisoned")
            .get(&gpu)
            .map_or((0, 0, gpu), |of| (of.tsg, of.subdevice, of.instance));
        let mut events = vec![v1::rm_event::Event::ClientUp(v1::ClientUp { client })];
        for at in 2..words.len() {
            events.push(v1::rm_event::Event::ChannelUp(v1::ChannelUp {
                client,
                channel: number(words, at)?,
                tsg,
                engine: v1::Engine::Graphics.into(),
                device_instance: i32::try_from(instance).map_err(text)?,
                uuid: Vec::new(),
                class: 0,
                subdevice,
            }));
        }
        self.rm(events)
    }

    fn rm(&self, events: Vec<v1::rm_event::Event>) -> Result<String> {
        self.send(v1::client_event::Event::Rm(v1::RmEvents {
            snapshot: false,
            events: events
                .into_iter()
                .map(|event| v1::RmEvent { event: Some(event) })
                .collect(),
        }))
    }

    fn edge(&mut self, slot: usize, busy: bool) -> Result<String> {
        let Some(page) = self.page.clone() else {
            let word = self.told.entry(slot).or_default();
            *word = ((*word >> 1) + 1) << 1 | u64::from(busy);
            let at_ns = monotonic_ns();
            let edge = v1::Edge {
                slot: u32::try_from(slot).map_err(text)?,
                busy,
                activity: *word,
                at_ns,
                launches: 1,
                graph: 0,
            };
            self.send(v1::client_event::Event::Edge(edge))?;
            return Ok(format!("edge {at_ns}"));
        };
        let words = &page.devices[slot];
        let now = monotonic_ns();
        if busy {
            words.busy_since_ns.store(now, Ordering::Release);
        } else {
            words.idle_since_ns.store(now, Ordering::Release);
            words.launches.store(1, Ordering::Release);
        }
        let before = words.activity.load(Ordering::Acquire);
        let next = ((before >> 1) + 1) << 1 | u64::from(busy);
        words.activity.store(next, Ordering::Release);
        page.ring();
        Ok(format!("edge {now}"))
    }

    fn land(&mut self) -> Result<String> {
        let control = self.control()?;
        let objects = self.objects.lock().expect("not poisoned");
        for objects in objects.values() {
            for batch in objects.channels.chunks(tidegate_abi::rm::MAX_PAIRS) {
                let pairs: Vec<_> = batch.iter().map(|&c| (objects.client, c)).collect();
                rm::set_channels(&control, objects, false, &pairs)?;
            }
        }
        let page = self.page()?;
        let generation = page.header.agent_generation.load(Ordering::Acquire);
        page.process.released.store(generation, Ordering::Release);
        Ok(String::new())
    }

    /// Random bytes over everything the process may write, ringing all the while.
    fn scribble(&self, ms: u64) -> Result<String> {
        let page = self.page()?;
        let at = std::ptr::from_ref::<Page>(&page).cast::<AtomicU8>();
        let mut seed = monotonic_ns() | 1;
        let until = monotonic_ns() + ms * 1_000_000;
        while monotonic_ns() < until {
            for _ in 0..64 {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                let offset = 128 + usize::try_from(seed % 1_088).expect("small");
                // SAFETY: within the page, which is only ever reached as atomics.
                unsafe { &*at.add(offset) }.store((seed >> 32) as u8, Ordering::Relaxed);
            }
            page.ring();
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(String::new())
    }
}

/// Takes the agent's greeting and maps the page that comes with it.
fn greeted(stream: &UnixStream) -> Result<Mapped> {
    let mut bytes = [0; LEN];
    let (taken, files, _) =
        sys::receive_with_descriptors(stream.as_fd(), &mut bytes).map_err(text)?;
    if !matches!(First::of(&bytes[..taken]), First::Greeting(_)) {
        return Err("the agent does not greet".to_owned());
    }
    Mapped::of(files.first().ok_or("no page in the greeting")?)
}

/// Connects, takes the greeting, sends bytes as they are, and tells how the agent takes it.
fn raw(hex: &str) -> Result<String> {
    use std::io::{Read, Write};
    static SENT: AtomicU64 = AtomicU64::new(0);
    SENT.fetch_add(1, Ordering::Relaxed);
    let path = run_dir().join(tidegate_proto::HOOK_SOCKET);
    let mut stream = UnixStream::connect(path).map_err(text)?;
    greeted(&stream)?;
    let bytes: Vec<u8> = (0..hex.len() / 2)
        .map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).map_err(text))
        .collect::<Result<_>>()?;
    stream.write_all(&bytes).map_err(text)?;
    stream
        .set_read_timeout(Some(Duration::from_secs(8)))
        .map_err(text)?;
    let mut answer = [0; 64];
    match stream.read(&mut answer) {
        Ok(0) => Ok("closed".to_owned()),
        Ok(got) => Ok(format!("answered {got}")),
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
            Ok("closed".to_owned())
        }
        Err(error) => Err(text(error)),
    }
}
