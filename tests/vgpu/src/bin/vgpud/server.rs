//! The two threads of the device process, and the sockets between it and its clients.
//!
//! The serving thread waits on one epoll set: listeners, open files, control connections, the timer
//! of answers that are due later, SIGTERM. The engine thread sleeps on the doorbell word until a
//! client rings or the model has something due. Either takes the world's mutex and brings the
//! device up to the present, so an answer never goes out before the device got there.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate_vgpu::clock::now_ns;
use tidegate_vgpu::history::{Kind, Record};
use tidegate_vgpu::ring::Usermode;
use tidegate_vgpu::wire::{Ask, MAGIC, Node, Reply, Request};

use crate::call::{Answer, Call, FileId};
use crate::sys::{self, Epoll, Mapping, Timer};
use crate::world::{Setup, World};

const TIMER: u64 = 0;
const SIGNAL: u64 = 1;
const CONTROL_LISTENER: u64 = 2;
const FIRST_LISTENER: u64 = 16;
const FIRST_CONNECTION: u64 = 1 << 20;
const BUFFER: usize = 128 * 1024;

enum Connection {
    File(FileId),
    Control,
}

/// An answer that is not due yet; the earliest is the greatest in the heap.
struct Pending {
    due: u64,
    number: u64,
    to: OwnedFd,
    answer: Answer,
    params: Vec<u8>,
}

impl PartialEq for Pending {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Pending {}
impl PartialOrd for Pending {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Pending {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        Reverse((self.due, self.number)).cmp(&Reverse((other.due, other.number)))
    }
}

/// What both threads share.
struct Shared {
    world: Mutex<World>,
    doorbell: Mapping,
    stop: AtomicBool,
    /// Threads that wait for the world.
    wanted: AtomicU32,
}

impl Shared {
    fn world(&self) -> MutexGuard<'_, World> {
        self.wanted.fetch_add(1, Ordering::SeqCst);
        let world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        self.wanted.fetch_sub(1, Ordering::SeqCst);
        world
    }

    /// Lets the other thread have the world, which it would not get from one that takes it again
    /// at once.
    fn give_way(&self) {
        while self.wanted.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
    }

    fn usermode(&self) -> Option<&Usermode> {
        self.doorbell.at::<Usermode>(0)
    }

    /// Makes the engine thread look again, as a client's doorbell would.
    fn ring(&self) {
        if let Some(page) = self.usermode() {
            page.doorbell.fetch_add(1, Ordering::SeqCst);
            if page.sleeping.load(Ordering::SeqCst) != 0 {
                sys::futex_wake(&raw const page.doorbell);
            }
        }
    }

    /// Ends a turn with the world, and rings if there is now something for the engine thread to do
    /// before it would look by itself.
    fn leave(&self, now: u64, mut world: MutexGuard<'_, World>) {
        world.flush_history();
        let next = world.next_event(now).unwrap_or(u64::MAX);
        let early = next < world.engine_until.unwrap_or(u64::MAX);
        drop(world);
        if early {
            self.ring();
        }
    }

    fn engine_thread(&self) {
        sys::precise_timers();
        let Some(page) = self.usermode() else { return };
        loop {
            // Before anything that the ringer wrote is looked at: what comes later changes the word, and ends the wait.
            let seen = page.doorbell.load(Ordering::SeqCst);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            let next = {
                let mut world = self.world();
                let now = now_ns();
                world.pump(now);
                world.flush_history();
                if world.move_pieces(now) {
                    drop(world);
                    self.give_way();
                    continue;
                }
                world.engine_until = world.next_event(now);
                world.engine_until
            };
            let timeout = next.map(|next| next.saturating_sub(now_ns()));
            if timeout == Some(0) {
                continue;
            }
            page.sleeping.store(1, Ordering::SeqCst);
            sys::futex_wait(&page.doorbell, seen, timeout);
            page.sleeping.store(0, Ordering::SeqCst);
        }
    }
}

struct Server {
    shared: Arc<Shared>,
    epoll: Epoll,
    timer: Timer,
    /// What the timer is set to.
    timer_at: Option<u64>,
    listeners: Vec<(Node, OwnedFd)>,
    control: OwnedFd,
    connections: HashMap<u64, (OwnedFd, Connection)>,
    next_connection: u64,
    pending: BinaryHeap<Pending>,
    next_pending: u64,
    buffer: Vec<u8>,
}

/// Runs the device in `dir` until SIGTERM; calls `ready` once its sockets listen.
pub(crate) fn run(setup: Setup, dir: &Path, ready: impl FnOnce()) -> io::Result<()> {
    let signal = sys::termination()?;
    sys::raise_descriptor_limit();
    sys::precise_timers();
    fs::create_dir_all(dir)?;
    let dir = fs::canonicalize(dir)?;
    let gpus = setup.gpus;
    let world = World::new(setup, &dir)?;
    let doorbell = world.usermode.map()?;
    let shared = Arc::new(Shared {
        world: Mutex::new(world),
        doorbell,
        stop: AtomicBool::new(false),
        wanted: AtomicU32::new(0),
    });

    let epoll = Epoll::new()?;
    let timer = Timer::new()?;
    epoll.add(timer.fd(), TIMER)?;
    epoll.add(signal.as_raw_fd(), SIGNAL)?;
    let listen = |name: &str| {
        let path = dir.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        sys::listen(&path)
    };
    let control = listen("control")?;
    epoll.add(control.as_raw_fd(), CONTROL_LISTENER)?;
    let mut nodes = vec![Node::Ctl, Node::Uvm];
    nodes.extend((0..gpus).map(|minor| Node::Gpu(minor as u8)));
    let mut listeners = Vec::new();
    for node in nodes {
        let socket = listen(&node.name())?;
        // As the driver's device nodes: every local user may open them.
        fs::set_permissions(dir.join(node.name()), fs::Permissions::from_mode(0o666))?;
        epoll.add(socket.as_raw_fd(), FIRST_LISTENER + listeners.len() as u64)?;
        listeners.push((node, socket));
    }

    let engine = {
        let shared = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("engine".into())
            .spawn(move || shared.engine_thread())?
    };
    ready();
    let mut server = Server {
        shared,
        epoll,
        timer,
        timer_at: None,
        listeners,
        control,
        connections: HashMap::new(),
        next_connection: FIRST_CONNECTION,
        pending: BinaryHeap::new(),
        next_pending: 0,
        buffer: vec![0; BUFFER],
    };
    let result = server.serve();
    server.shared.stop.store(true, Ordering::SeqCst);
    server.shared.ring();
    if engine.join().is_err() {
        return Err(io::Error::other("the engine thread panicked"));
    }
    server.shared.world().flush_history();
    result
}

impl Server {
    fn serve(&mut self) -> io::Result<()> {
        let mut numbers = Vec::new();
        loop {
            self.epoll.wait(&mut numbers)?;
            for number in &numbers {
                // Whatever is told from here on, the answers that were due before it are out.
                self.answer_due();
                match *number {
                    TIMER => self.timer.take(),
                    SIGNAL => return Ok(()),
                    CONTROL_LISTENER => self.accept(None),
                    number if number < FIRST_CONNECTION => {
                        self.accept(Some((number - FIRST_LISTENER) as usize));
                    }
                    number => self.message(number),
                }
            }
            self.answer_due();
        }
    }

    fn accept(&mut self, listener: Option<usize>) {
        let socket = match listener {
            None => &self.control,
            Some(index) => &self.listeners[index].1,
        };
        let Ok(connection) = sys::accept(socket.as_raw_fd()) else {
            return;
        };
        let kind = match listener {
            None => Connection::Control,
            Some(index) => {
                let pid = sys::peer_pid(connection.as_raw_fd());
                Connection::File(self.shared.world().open(self.listeners[index].0, pid))
            }
        };
        let number = self.next_connection;
        self.next_connection += 1;
        if self.epoll.add(connection.as_raw_fd(), number).is_ok() {
            self.connections.insert(number, (connection, kind));
        }
    }

    fn message(&mut self, number: u64) {
        let Some((socket, kind)) = self.connections.get(&number) else {
            return;
        };
        let received = match sys::receive(socket.as_raw_fd(), &mut self.buffer) {
            Ok(None) => return,
            Ok(Some(received)) if received.bytes > 0 => received,
            _ => {
                self.gone(number);
                return;
            }
        };
        match *kind {
            Connection::Control => {
                let text = String::from_utf8_lossy(&self.buffer[..received.bytes]).into_owned();
                let mut world = self.shared.world();
                let now = now_ns();
                world.pump(now);
                let answer = world.command(now, text.trim());
                self.shared.leave(now, world);
                if sys::send(socket.as_raw_fd(), &[answer.as_bytes()], None).is_err() {
                    self.gone(number);
                }
            }
            Connection::File(file) => self.request(file, received),
        }
    }

    fn gone(&mut self, number: u64) {
        if let Some((_, Connection::File(file))) = self.connections.remove(&number) {
            let mut world = self.shared.world();
            let now = now_ns();
            world.pump(now);
            world.close(now, file);
            self.shared.leave(now, world);
        }
    }

    fn request(&mut self, file: FileId, received: sys::Received) {
        const HEADER: usize = size_of::<Request>();
        let message = &mut self.buffer[..received.bytes];
        let mut descriptors = received.descriptors.into_iter();
        let Some(to) = descriptors.next() else { return };
        let named = descriptors.next();
        if message.len() < HEADER {
            return;
        }
        // SAFETY: enough bytes; a request is made of integers, so any bytes are one.
        let header = unsafe { message.as_ptr().cast::<Request>().read_unaligned() };
        let (params, nested) = (header.params as usize, header.nested as usize);
        if header.magic != MAGIC || message.len() != HEADER + params + nested {
            return;
        }
        let (params, nested) = message[HEADER..].split_at_mut(params);

        let mut world = self.shared.world();
        let now = now_ns();
        world.run_until(now);
        let named = named
            .and_then(|fd| sys::inode(fd.as_raw_fd()))
            .map(|inode| (inode, world.by_inode.get(&inode).copied()));
        let caller = received
            .pid
            .or_else(|| world.files.get(&file).map(|f| f.pid))
            .unwrap_or(0);
        let mut call = Call {
            now,
            file,
            caller,
            request: header.request,
            entry_ns: header.entry_ns,
            read_ns: header.read_ns,
            params,
            nested,
            named: named.and_then(|(_, file)| file),
        };
        let answer = if header.ask == Ask::Hello as u32 {
            world.hello(file, named.map(|(inode, _)| inode));
            world.version(now)
        } else if header.ask == Ask::Version as u32 {
            world.version(now)
        } else if header.ask == Ask::Mmap as u32 {
            world.mmap(&call, header.length)
        } else if header.ask == Ask::Ioctl as u32 {
            world.ioctl(&mut call)
        } else {
            Answer::errno(now, libc::EINVAL)
        };
        self.shared.leave(now, world);
        let number = self.next_pending;
        self.next_pending += 1;
        let params = message[HEADER..].to_vec();
        self.pending.push(Pending {
            due: answer.due,
            number,
            to,
            answer,
            params,
        });
    }

    /// Sends the answers whose time has come, and sets the timer for the next.
    fn answer_due(&mut self) {
        let now = now_ns();
        if self.pending.peek().is_some_and(|first| first.due <= now) {
            let mut world = self.shared.world();
            world.run_until(now);
            while let Some(first) = self.pending.peek()
                && first.due <= now
                && let Some(pending) = self.pending.pop()
            {
                if let Some(record) = pending.answer.record {
                    let at_ns = now;
                    world.history.push(Record { at_ns, ..record });
                }
                world.flush_history();
                send(&pending);
            }
            self.shared.leave(now, world);
        }
        let next = self.pending.peek().map(|next| next.due);
        if next != self.timer_at {
            self.timer.set(next);
            self.timer_at = next;
        }
    }
}

fn send(pending: &Pending) {
    let reply = &pending.answer.reply;
    // SAFETY: a reply is made of integers without padding, so all its bytes are initialised.
    let header = unsafe {
        std::slice::from_raw_parts(std::ptr::from_ref(reply).cast::<u8>(), size_of::<Reply>())
    };
    let memory = pending.answer.memory.as_ref().map(|fd| fd.as_raw_fd());
    // A caller that died does not read its answer.
    let _ = sys::send(pending.to.as_raw_fd(), &[header, &pending.params], memory);
}

/// The lines of `text` from number `from` on, as far as one message carries them; `more LINE` says
/// that and where there are more.
fn page(text: &str, from: usize) -> String {
    const ROOM: usize = 64 * 1024;
    let mut answer = String::from("ok\n");
    for (number, line) in text.lines().enumerate().skip(from) {
        if answer.len() + line.len() > ROOM {
            answer.push_str(&format!("more {number}\n"));
            break;
        }
        answer.push_str(line);
        answer.push('\n');
    }
    answer
}

impl World {
    /// Writes the history out.
    pub(crate) fn flush_history(&mut self) {
        if let Err(error) = self.history.flush() {
            eprintln!("vgpud: cannot write the history: {error}");
        }
    }

    /// Notes by which inode an open file will be named in calls on other files.
    fn hello(&mut self, file: FileId, inode: Option<u64>) {
        if let (Some(inode), Some(open)) = (inode, self.files.get_mut(&file)) {
            open.inode = Some(inode);
            self.by_inode.insert(inode, file);
        }
    }

    /// The answer that says which version is played.
    fn version(&self, now: u64) -> Answer {
        let mut answer = Answer::at(now);
        let version = self.setup.driver.version.as_bytes();
        let length = version.len().min(answer.reply.text.len() - 1);
        answer.reply.text[..length].copy_from_slice(&version[..length]);
        answer
    }

    fn ioctl(&mut self, call: &mut Call<'_>) -> Answer {
        match self.files.get(&call.file).map(|file| file.node) {
            Some(Node::Uvm) => self.uvm_ioctl(call),
            Some(node) => self.rm_ioctl(call, node),
            None => Answer::errno(call.now, libc::EBADF),
        }
    }

    /// A command of the control socket: `set NAME VALUE`; `state [LINE]`, answered from that line on
    /// with as much as one message carries; or `hold_api MICROSECONDS`, by which a writer of some
    /// other process takes the API lock now.
    fn command(&mut self, now: u64, text: &str) -> String {
        let mut words = text.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some("set"), Some(name), Some(value)) => match self.knobs.set(name, value) {
                Ok(()) => {
                    self.apply_knobs();
                    self.history.push(Record::new(now, Kind::KnobSet));
                    "ok".to_owned()
                }
                Err(error) => format!("error: {error}"),
            },
            (Some("hold_api"), Some(micros), None) => match micros.parse::<u64>() {
                Ok(micros) => {
                    let needs = tidegate_device::Needs::writer(0);
                    self.locks.reserve(now, needs, micros.saturating_mul(1_000));
                    "ok".to_owned()
                }
                Err(error) => format!("error: {error}"),
            },
            (Some("state"), from, None) => {
                let from = from.and_then(|from| from.parse().ok()).unwrap_or(0);
                page(&self.describe(), from)
            }
            _ => format!("error: no such command: {text}"),
        }
    }

    /// The state as lines of `word key=value...`.
    fn describe(&self) -> String {
        use std::fmt::Write;
        let mut text = String::new();
        let mut line = |line: std::fmt::Arguments<'_>| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{line}");
        };
        for (minor, gpu) in self.gpus.iter().enumerate() {
            line(format_args!(
                "gpu minor={minor} id={:#x} attached={} free_bytes={} total_bytes={}",
                gpu.id,
                gpu.attached,
                self.memory.free_bytes(minor),
                self.memory.total_bytes(minor),
            ));
        }
        for (handle, client) in &self.clients {
            let (pid, objects) = (client.pid, client.objects.len());
            line(format_args!(
                "client handle={handle:#x} pid={pid} objects={objects}"
            ));
        }
        for channel in self.channels.values() {
            let model = &self.gpus[channel.gpu].model;
            line(format_args!(
                "channel gpu={} client={:#x} handle={:#x} tsg={:#x} pid={} disabled={} queued={} \
                 running={} dead={}",
                channel.gpu,
                channel.client,
                channel.handle,
                channel.tsg_handle,
                channel.pid,
                model.is_disabled(channel.id),
                channel.entries.len(),
                model.is_running(channel.id),
                channel.dead,
            ));
        }
        text
    }
}
