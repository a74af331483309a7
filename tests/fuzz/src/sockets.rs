//! Plays a stranger at the two sockets of the agent that everybody may open.
//!
//! An input is a list of steps: the stranger sends bytes, files, greetings, HTTP/2 frames and calls, lets time pass, and
//! closes connections or halves of them. The sockets are real, and so is everything of the agent behind them. Time advances
//! only when the input says so. After the last step the stranger closes every connection. Then these must hold:
//!
//! * A neighbour that behaves is greeted, or gets its status, at once.
//! * No descriptor stays open, and no more memory is held than a report and some events take.

use crate::files::directory;
use crate::input::Input;
use crate::node::Node;
use crate::spent;
use crate::status;
use std::cell::RefCell;
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tidegate_agent::clock::now_ns;
use tidegate_agent::config::Role;
use tidegate_agent::grpc::authority::{Authorisation, METHODS, Operators, Socket, denials};
use tidegate_agent::grpc::bounds::{Bounds, REQUEST};
use tidegate_agent::grpc::budget::{Budget, MESSAGE_LIMIT};
use tidegate_agent::grpc::crowd::Crowd;
use tidegate_agent::grpc::peers::{Connection, Pages, accept_greeted, accept_plain};
use tidegate_agent::grpc::rooms::Rooms;
use tidegate_agent::grpc::server;
use tidegate_agent::grpc::sessions::{HookReports, Sessions};
use tidegate_agent::host::reaper::Reaper;
use tidegate_agent::host::yard::Yard;
use tidegate_agent::sys;
use tidegate_proto::greeting::{Greeting, LEN};
use tidegate_proto::v1;
use tokio::net::UnixListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio_stream::wrappers::ReceiverStream;

/// Bytes that a tenant may keep.
const SHARE: usize = 4 << 20;
/// What connections that are gone may leave behind: reports and events that all share.
const STAYS: usize = 1 << 20;
/// Steps of an input that are taken, and connections that it opens.
const STEPS: usize = 64;
const CONNECTIONS: usize = 4;
/// Turns of the runtime after a step, and after the last.
const TURNS: usize = 12;
const LAST_TURNS: usize = 4_000;
/// How long threads may take to close what was passed.
const PATIENCE: Duration = Duration::from_secs(5);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Types of HTTP/2 frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Everything behind one socket.
struct Stage {
    runtime: Runtime,
    node: Node,
    path: PathBuf,
    socket: Socket,
}

type Connections = mpsc::Receiver<std::io::Result<Connection>>;

impl Stage {
    fn new(socket: Socket) -> Self {
        let name = match socket {
            Socket::Hook => "greeting",
            _ => "frames",
        };
        let node = Node::new(Role::Online, false);
        let path = directory(name).join("socket");
        let _ = std::fs::remove_file(&path);
        let mut runtime = Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build();
        let runtime = runtime.expect("a runtime");
        {
            let _inside = runtime.enter();
            let listener = UnixListener::bind(&path).expect("a directory of ours");
            let refusals = Arc::default();
            let rooms = Arc::new(Rooms::new(SHARE, Arc::clone(&refusals)));
            let hooks = Arc::new(HookReports::new(Arc::clone(&rooms)));
            let authorisation = Authorisation {
                socket,
                operators: Operators::of_this_machine(),
                denials: Arc::new(denials()),
            };
            let (connection_tx, connection_rx) = mpsc::channel(64);
            let yard = Yard::start(8);
            let crowd = Arc::new(Crowd::new(64, yard.clone()));
            if socket == Socket::Hook {
                let pages = Arc::new(Pages::new(1));
                tokio::spawn(accept_greeted(listener, pages, crowd, connection_tx));
                let sessions = Sessions::new(
                    status::in_force().running(),
                    node.mailbox(),
                    Reaper::start(node.mailbox()).expect("a thread"),
                    hooks,
                    Arc::new(Budget::new(Arc::default())),
                    yard,
                );
                let libraries = v1::runtime_server::RuntimeServer::new(sessions)
                    .max_decoding_message_size(MESSAGE_LIMIT);
                let served = server::for_libraries()
                    .layer(authorisation)
                    .layer(Bounds::of_libraries(rooms))
                    .add_service(libraries);
                tokio::spawn(served.serve_with_incoming(stream(connection_rx)));
            } else {
                tokio::spawn(accept_plain(listener, crowd, connection_tx));
                let service = status::service(node.mailbox(), hooks, refusals);
                let readers = v1::node_server::NodeServer::new(service);
                let served = server::for_readers()
                    .layer(authorisation)
                    .layer(Bounds::of_readers(rooms))
                    .add_service(readers.max_decoding_message_size(REQUEST));
                tokio::spawn(served.serve_with_incoming(stream(connection_rx)));
            }
        }
        Self {
            runtime,
            node,
            path,
            socket,
        }
    }

    /// The agent does what there is to do, so many turns long.
    fn turns(&mut self, turns: usize) {
        let Self { runtime, node, .. } = self;
        runtime.block_on(async {
            for _ in 0..turns {
                yield_now().await;
            }
        });
        node.settle();
    }

    fn advance(&mut self, by: Duration) {
        self.runtime.block_on(tokio::time::advance(by));
        self.turns(TURNS);
    }

    fn connect(&mut self) -> Option<UnixStream> {
        let stream = UnixStream::connect(&self.path).ok()?;
        stream.set_nonblocking(true).expect("a socket can be");
        self.turns(TURNS);
        Some(stream)
    }

    /// The stranger's input, from its first step to the end of its last connection.
    fn play(&mut self, mut input: Input<'_>) {
        let (pipe, _writer) = std::io::pipe().expect("pipes exist");
        let mut streams: Vec<UnixStream> = self.connect().into_iter().collect();
        let mut room = [0; 4_096];
        for _ in 0..STEPS {
            if input.is_empty() {
                break;
            }
            let step = input.byte();
            if step % 16 == 15 && streams.len() < CONNECTIONS {
                streams.extend(self.connect());
                continue;
            }
            let Some(stream) = streams.last() else {
                break;
            };
            let files = |count: usize| vec![pipe.as_fd(); count];
            let send = |bytes: &[u8], count: usize| {
                // What the agent has closed takes nothing more.
                let _ = sys::send_with_descriptors(stream.as_fd(), bytes, &files(count));
            };
            match step % 16 {
                0 | 1 => {
                    let length = usize::from(input.byte());
                    send(input.bytes(length), 0);
                }
                2 => {
                    let count = [1, 2, 3, 253][usize::from(input.byte() % 4)];
                    let length = usize::from(input.byte()).max(1);
                    send(input.bytes(length), count);
                }
                3 => urgent(stream, input.byte(), &pipe),
                4 => send(
                    &Greeting::new(input.byte()).encode(),
                    usize::from(input.byte() % 4),
                ),
                5 => send(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat(), 0),
                6 | 7 => {
                    let ([kind, flags], number) = (input.array(), u32::from(input.byte() % 8));
                    let length = usize::from(input.byte());
                    send(&frame(kind % 12, flags, number, input.bytes(length)), 0);
                }
                8 => {
                    let (flags, number) = (input.byte(), u32::from(input.byte() % 8));
                    let length = usize::from(input.byte());
                    send(
                        &frame(HEADERS, flags | END_HEADERS, number, input.bytes(length)),
                        0,
                    );
                }
                9 => {
                    let path = METHODS[usize::from(input.byte()) % METHODS.len()].0;
                    let number = u32::from(input.byte() % 8) | 1;
                    send(&call(path, number), 0);
                }
                10 | 11 => {
                    let (flags, number) = (input.byte(), u32::from(input.byte() % 8) | 1);
                    let length = usize::from(input.byte());
                    let message = message(input.bytes(length));
                    send(&frame(DATA, flags & END_STREAM, number, &message), 0);
                }
                12 => {
                    let how = [Shutdown::Read, Shutdown::Write, Shutdown::Both];
                    let _ = stream.shutdown(how[usize::from(input.byte() % 3)]);
                }
                13 => self.advance(Duration::from_millis(100 * u64::from(input.byte()))),
                14 => drop(streams.pop()),
                _ => {
                    let mut reader = stream;
                    while matches!(reader.read(&mut room), Ok(1..)) {}
                }
            }
            self.turns(TURNS);
        }
    }

    /// Whether somebody who behaves is served.
    fn serves(&mut self) -> bool {
        let Some(mut stream) = self.connect() else {
            return false;
        };
        let said = if self.socket == Socket::Hook {
            Vec::new()
        } else {
            let path = "/tidegate.v1.Node/GetStatus";
            let whole = [
                PREFACE,
                &frame(SETTINGS, 0, 0, &[]),
                &call(path, 1),
                &frame(DATA, END_STREAM, 1, &message(&[])),
            ];
            whole.concat()
        };
        stream.write_all(&said).expect("it has room");
        let (mut answer, mut room) = (Vec::new(), [0; 4_096]);
        for _ in 0..LAST_TURNS / TURNS {
            // One that asks too often waits for its turn.
            self.advance(Duration::from_millis(10));
            while let Ok(some @ 1..) = stream.read(&mut room) {
                answer.extend_from_slice(&room[..some]);
            }
            let served = match self.socket {
                Socket::Hook => answer.len() >= LEN,
                _ => is_answered(&answer),
            };
            if served {
                return true;
            }
        }
        false
    }
}

fn stream(connection_rx: Connections) -> ReceiverStream<std::io::Result<Connection>> {
    ReceiverStream::new(connection_rx)
}

/// Whether the headers of an answer are among these frames. It may say that there were too many questions.
fn is_answered(mut frames: &[u8]) -> bool {
    while let [a, b, c, kind, rest @ ..] = frames {
        if *kind == HEADERS {
            return true;
        }
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        frames = rest.get(5 + length..).unwrap_or_default();
    }
    false
}

/// A frame whose length is right.
fn frame(kind: u8, flags: u8, number: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    let mut frame = vec![a, b, c, kind, flags];
    frame.extend(number.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// The headers of a call: literals without an index, but for what every client's table begins with.
fn call(path: &str, number: u32) -> Vec<u8> {
    let literal = |name: &str, value: &str| {
        let text =
            |text: &str| [&[u8::try_from(text.len()).unwrap_or(0)], text.as_bytes()].concat();
        [vec![0], text(name), text(value)].concat()
    };
    let method_and_scheme = vec![0x83, 0x86];
    let block = [
        method_and_scheme,
        literal(":path", path),
        literal(":authority", "tidegate.invalid"),
        literal("content-type", "application/grpc"),
        literal("te", "trailers"),
    ];
    frame(HEADERS, END_HEADERS, number, &block.concat())
}

/// A message of gRPC.
fn message(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap_or(0).to_be_bytes();
    [&[0], length.as_slice(), bytes].concat()
}

/// One byte out of band, with a file or without.
fn urgent(stream: &UnixStream, byte: u8, pipe: &std::io::PipeReader) {
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    let files = [pipe.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&files)];
    let beside = if byte.is_multiple_of(2) {
        &rights[..]
    } else {
        &[]
    };
    let flags = MsgFlags::MSG_OOB | MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    let _ = sendmsg::<()>(
        stream.as_raw_fd(),
        &[std::io::IoSlice::new(&[byte])],
        beside,
        flags,
        None,
    );
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc").count()
}

/// Plays an input on the stage of this thread.
fn on(stage: &RefCell<Stage>, input: &[u8]) {
    let mut stage = stage.borrow_mut();
    // The first one makes what is kept for all.
    assert!(
        stage.serves(),
        "a neighbour is not served before the stranger comes"
    );
    stage.turns(TURNS);
    // This process lives on when its session is over, so the agent keeps its name of it, and only one.
    let (open, held) = (descriptors() + 1, spent::held());
    stage.play(Input(input));
    // Threads close what was passed, and one that reaped nothing yet may still look.
    let begun = now_ns();
    loop {
        stage.turns(TURNS);
        // A connection may stay for its last answers.
        stage.advance(Duration::from_secs(1));
        let (now_open, now_held) = (descriptors(), spent::held());
        let stays = now_held.saturating_sub(held);
        if now_open <= open && stays <= STAYS {
            break;
        }
        assert!(
            Duration::from_nanos(now_ns() - begun) < PATIENCE,
            "{now_open} descriptors, {open} before; {stays} bytes stay"
        );
        std::thread::yield_now();
    }
    assert!(stage.serves(), "a neighbour is not served any more");
}

thread_local! {
    static HOOK: RefCell<Stage> = RefCell::new(Stage::new(Socket::Hook));
    static STATUS: RefCell<Stage> = RefCell::new(Stage::new(Socket::Status));
}

/// At `hook.sock`.
pub fn greeting(input: &[u8]) {
    HOOK.with(|stage| on(stage, input));
}

/// At `status.sock`.
pub fn frames(input: &[u8]) {
    STATUS.with(|stage| on(stage, input));
}
