//! Connections of the agent's sockets, from `accept` to the first HTTP/2 byte.
//!
//! The kernel says who connected before anything it sent is read, and that one more connection of its tenant
//! may be ([`super::crowd`]). What `/proc` says of it is read when it speaks: one that hangs up costs no more than its
//! place. On `hook.sock` the agent greets first: sixteen bytes with the shared page (`tidegate_proto::greeting`), and
//! reads the client's first sixteen, which are either its own greeting, perhaps with its control file, or the beginning
//! of HTTP/2. A connection that stays silent, or speaks and never attaches, is closed: it must never block the others,
//! so each one is admitted by a task of its own. Files that come with any other byte are never received
//! ([`crate::host::foreign`]).

use crate::grpc::crowd::Crowd;
use crate::grpc::outgoing::{TAKEN_WITHIN, Taking, UNTAKEN};
use crate::host::foreign::{Foreign, Held, Wire};
use crate::identity::{Credentials, credentials, tenant};
use crate::sys::{self, SharedPage};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tidegate_abi::page;
use tidegate_node::kinds::Tenant;
use tidegate_proto::greeting::{self, First, Greeting};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tonic::transport::server::Connected;

/// How long a client may take for its first sixteen bytes.
const GREETING_LIMIT: Duration = Duration::from_secs(5);
/// How long the agent waits at most until it looks for the rest of them again.
const LONGEST_PAUSE: Duration = Duration::from_millis(512);
/// How long it may take from there to its Attach.
const ATTACH_LIMIT: Duration = Duration::from_secs(5);
/// How long a connection of the other sockets may take for its first byte.
const FIRST_BYTE_LIMIT: Duration = Duration::from_secs(10);
/// How long it may send nothing at all after that. Whoever speaks HTTP/2 answers
/// the server's pings, which come every [`PING_EVERY`].
const SILENCE_LIMIT: Duration = Duration::from_secs(25);
/// How often the server of those sockets pings.
pub const PING_EVERY: Duration = Duration::from_secs(10);
/// How long a connection may stay after the stream has ended for which it was there.
const END_LIMIT: Duration = Duration::from_secs(1);

/// Who is at the other end, known to every handler of the connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// What the kernel says.
    pub credentials: Arc<Credentials>,
    /// What came with the greeting; the one Attach stream of the connection takes it.
    pub greeted: Option<Arc<Mutex<Option<Greeted>>>>,
    /// How far it takes what it is answered.
    pub taking: Arc<Taking>,
}

/// What a connection of `hook.sock` starts with.
#[derive(Debug)]
pub struct Greeted {
    /// The agent's number for the connection.
    pub session: u64,
    /// When the greeting went to it, ns.
    pub greeted_ns: u64,
    /// Names the process for good.
    pub pidfd: OwnedFd,
    /// None: the client is older than the greeting.
    pub page: Option<SharedPage>,
    /// Not looked at yet.
    pub control_file: Option<Foreign>,
    /// Closes the connection: at once when it is sent, soon when it is dropped.
    pub cut_tx: Option<oneshot::Sender<()>>,
}

/// An admitted connection.
#[derive(Debug)]
pub struct Connection {
    wire: Wire,
    peer: Peer,
    limit: Limit,
    watch: Watch,
}

/// What else may end it.
#[derive(Debug)]
enum Watch {
    /// The session that came by it has ended, or another connection of its process took its place.
    Session(oneshot::Receiver<()>),
    /// Its peer takes no answer. When that is looked at next, and where it is told.
    Reader(Pin<Box<tokio::time::Sleep>>, Arc<Crowd>),
    /// Nothing.
    None,
}

impl Watch {
    fn reader(crowd: &Arc<Crowd>) -> Self {
        let look = tokio::time::sleep(TAKEN_WITHIN / 3);
        Self::Reader(Box::pin(look), Arc::clone(crowd))
    }
}

/// What a connection is closed for.
#[derive(Debug)]
enum Limit {
    /// The peer has not attached by then.
    Attach(Pin<Box<tokio::time::Sleep>>),
    /// The peer has sent nothing until then, which moves on with every byte.
    Silence(Pin<Box<tokio::time::Sleep>>),
    /// Its session has ended: what is said last may be read until then.
    End(Pin<Box<tokio::time::Sleep>>),
    /// Nothing any more.
    None,
}

/// What new pages are stamped with.
#[derive(Debug)]
pub struct Pages {
    /// Generation of this agent.
    pub generation: u64,
    next_session: AtomicU64,
}

impl Pages {
    /// Sessions count from 1.
    #[must_use]
    pub const fn new(generation: u64) -> Self {
        Self {
            generation,
            next_session: AtomicU64::new(1),
        }
    }

    fn create(&self, session: u64) -> io::Result<(SharedPage, OwnedFd)> {
        let (page, file) = SharedPage::create()?;
        let header = &page.header;
        header.major.store(page::MAJOR, Ordering::Relaxed);
        header.minor.store(page::MINOR, Ordering::Relaxed);
        let small = |n: usize| u32::try_from(n).unwrap_or(0);
        header.bytes.store(small(page::BYTES), Ordering::Relaxed);
        header
            .devices
            .store(small(page::DEVICES), Ordering::Relaxed);
        header.session.store(session, Ordering::Relaxed);
        header
            .agent_generation
            .store(self.generation, Ordering::Relaxed);
        // Launches of an offline process wait until the control thread has its channels.
        for gate in &page.gates {
            gate.gate.store(page::GATE_CLOSED, Ordering::Relaxed);
        }
        page.agent
            .heartbeat_ns
            .store(crate::clock::now_ns(), Ordering::Relaxed);
        header.magic.store(page::MAGIC, Ordering::Release);
        Ok((page, file))
    }
}

/// Accepts connections of a socket that greets, for ever.
pub async fn accept_greeted(
    listener: UnixListener,
    pages: Arc<Pages>,
    crowd: Arc<Crowd>,
    connection_tx: mpsc::Sender<io::Result<Connection>>,
) {
    loop {
        let Some(stream) = accept(&listener).await else {
            continue;
        };
        let (pages, crowd, connection_tx) = (
            Arc::clone(&pages),
            Arc::clone(&crowd),
            connection_tx.clone(),
        );
        tokio::spawn(async move {
            match greet(stream, &pages, &crowd).await {
                Ok(connection) => {
                    // The server is gone only when the agent ends.
                    let _ = connection_tx.send(Ok(connection)).await;
                }
                Err(error) => tracing::debug!(%error, "connection not admitted"),
            }
        });
    }
}

/// Accepts connections of a socket that speaks HTTP/2 from the first byte, for ever.
pub async fn accept_plain(
    listener: UnixListener,
    crowd: Arc<Crowd>,
    connection_tx: mpsc::Sender<io::Result<Connection>>,
) {
    loop {
        let Some(stream) = accept(&listener).await else {
            continue;
        };
        let crowd = Arc::clone(&crowd);
        let connection_tx = connection_tx.clone();
        tokio::spawn(async move {
            match hear(stream, &crowd).await {
                Ok(connection) => drop(connection_tx.send(Ok(connection)).await),
                Err(error) => tracing::debug!(%error, "connection not admitted"),
            }
        });
    }
}

/// Waits until the caller speaks.
async fn hear(stream: UnixStream, crowd: &Arc<Crowd>) -> io::Result<Connection> {
    let (caller, wire) = Caller::enter(stream, crowd)?;
    let stream = wire.stream()?;
    let mut byte = [0];
    let spoke = stream.async_io(Interest::READABLE, || sys::peek(stream.as_fd(), &mut byte));
    match tokio::time::timeout(FIRST_BYTE_LIMIT, spoke).await {
        Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        Ok(Ok(0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(spoke) => spoke?,
    };
    Ok(Connection {
        wire,
        peer: Peer {
            credentials: Arc::new(caller.identify()?),
            greeted: None,
            taking: Arc::default(),
        },
        limit: Limit::Silence(Box::pin(tokio::time::sleep(SILENCE_LIMIT))),
        watch: Watch::reader(crowd),
    })
}

async fn accept(listener: &UnixListener) -> Option<UnixStream> {
    let accepted = listener.accept().await;
    // Before the first look at what was sent. A socket that refuses is closed like one that was not accepted.
    let accepted = accepted.and_then(|(stream, _)| {
        sys::deliver_in_line(stream.as_fd())?;
        Ok(stream)
    });
    match accepted {
        Ok(stream) => {
            // All sockets are served by one thread: a crowd at one of them takes its turn among all callers.
            tokio::task::yield_now().await;
            Some(stream)
        }
        Err(error) => {
            // Out of descriptors: the connection stays in the queue, and so would a tight loop.
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(Duration::from_millis(20)).await;
            None
        }
    }
}

/// Who connected, as far as it is known before it speaks.
#[derive(Debug)]
struct Caller {
    pid: i32,
    /// Its effective user when it connected.
    uid: u32,
    /// Its groups then, the effective one first; None: the kernel does not tell all of them.
    groups: Option<Vec<u32>>,
    /// Names it for good.
    pidfd: OwnedFd,
    tenant: Tenant,
}

impl Caller {
    /// Who is at the other end, and the connection, if one more of its tenant may be.
    fn enter(stream: UnixStream, crowd: &Arc<Crowd>) -> io::Result<(Self, Wire)> {
        let (caller, seat) = match Self::of(&stream) {
            Ok(caller) => {
                let seat = crowd.enter(&caller.tenant);
                (Ok(caller), seat.map(|seat| Some(Arc::new(seat) as Held)))
            }
            Err(error) => (Err(error), Ok(None)),
        };
        let tenant = caller.as_ref().map(|caller| caller.tenant.clone());
        let (seat, refused) = match seat {
            Ok(seat) => (seat, None),
            Err(error) => (None, Some(error)),
        };
        // Also one that is refused may have files on it.
        let wire = Wire::new(stream, seat, crowd.yard.clone(), tenant.unwrap_or_default());
        refused.map_or_else(|| Ok((caller?, wire)), Err)
    }

    /// Before Linux 6.5 there is no `SO_PEERPIDFD`, and a filter may refuse it; then it is whoever has the process id by now.
    fn of(stream: &UnixStream) -> io::Result<Self> {
        let (peer, elsewhere) = (stream.peer_cred()?, "the peer is in another pid namespace");
        let pid = peer.pid().filter(|&pid| pid > 0);
        let pid = pid.ok_or_else(|| io::Error::other(elsewhere))?;
        let pidfd = match sys::peer_pidfd(stream.as_fd()) {
            Err(error) if lacks(&error) => sys::pidfd_open(pid),
            named => named,
        }?;
        let groups = sys::peer_groups(stream.as_fd()).ok();
        let groups = groups.map(|others| [&[peer.gid()], &*others].concat());
        Ok(Self {
            pid,
            uid: peer.uid(),
            groups,
            pidfd,
            tenant: tenant::of_process(pid, peer.uid()),
        })
    }

    /// All that `/proc` says of it.
    fn identify(&self) -> io::Result<Credentials> {
        let mut credentials = credentials(self.pid, self.uid, self.pidfd.as_fd())?;
        credentials.tenant = self.tenant.clone();
        // A program that it has executed since may have the rights of a group.
        if let Some(groups) = &self.groups {
            credentials.groups.clone_from(groups);
        }
        Ok(credentials)
    }
}

async fn greet(stream: UnixStream, pages: &Pages, crowd: &Arc<Crowd>) -> io::Result<Connection> {
    let (caller, wire) = Caller::enter(stream, crowd)?;
    let stream = wire.stream()?;
    let session = pages.next_session.fetch_add(1, Ordering::Relaxed);
    let (page, file) = pages.create(session)?;
    let bytes = Greeting::new(1).encode();
    let greeted_ns = crate::clock::now_ns();
    stream
        .async_io(Interest::WRITABLE, || {
            sys::send_with_descriptors(stream.as_fd(), &bytes, &[file.as_fd()])
        })
        .await?;
    drop(file);
    let first = tokio::time::timeout(GREETING_LIMIT, first_bytes(stream))
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the client said nothing"))??;
    let (page, control_file) = match first {
        First::Greeting(_) => {
            let mut bytes = [0; greeting::LEN];
            let (taken, file) = wire.read_file(&mut bytes)?;
            if taken != greeting::LEN {
                return Err(io::Error::other("half a greeting"));
            }
            (Some(page), file)
        }
        // It never took the page: edges travel on the stream.
        First::Preface => (None, None),
        other => {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the client began with {other:?}"),
            ));
        }
    };
    let credentials = caller.identify()?;
    let (cut_tx, cut_rx) = oneshot::channel();
    let greeted = Greeted {
        session,
        greeted_ns,
        pidfd: caller.pidfd,
        page,
        control_file,
        cut_tx: Some(cut_tx),
    };
    Ok(Connection {
        wire,
        peer: Peer {
            credentials: Arc::new(credentials),
            greeted: Some(Arc::new(Mutex::new(Some(greeted)))),
            taking: Arc::default(),
        },
        limit: Limit::Attach(Box::pin(tokio::time::sleep(ATTACH_LIMIT))),
        watch: Watch::Session(cut_rx),
    })
}

/// Whether the kernel, or a filter before it, does not know what was asked of it.
fn lacks(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOPROTOOPT | libc::ENOSYS | libc::EPERM)
    )
}

/// Looks at the first sixteen bytes without taking them.
async fn first_bytes(stream: &UnixStream) -> io::Result<First> {
    let (mut seen, mut pause) = (0, Duration::from_millis(1));
    loop {
        let mut bytes = [0; greeting::LEN];
        let there = stream
            .async_io(Interest::READABLE, || sys::peek(stream.as_fd(), &mut bytes))
            .await?;
        if there == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the client left before it spoke",
            ));
        }
        match First::of(&bytes[..there]) {
            First::More => {}
            first => return Ok(first),
        }
        if stream.ready(Interest::READABLE).await?.is_read_closed() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if there == seen {
            // Bytes that were only peeked at keep the socket readable, so readiness cannot tell of
            // more. Both ends of the greeting are written in one call: this is next to never taken,
            // and a thousand connections that stop in the middle cost next to nothing.
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
        seen = there;
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl Peer {
    /// Whether an Attach stream has taken what came with the greeting.
    fn has_attached(&self) -> bool {
        self.greeted.as_ref().is_none_or(|greeted| {
            let greeted = greeted.lock().unwrap_or_else(PoisonError::into_inner);
            greeted.is_none()
        })
    }
}

impl Connection {
    /// Why it is closed, if it is.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<&'static str> {
        match &mut self.watch {
            Watch::Session(cut_rx) => match Pin::new(cut_rx).poll(cx) {
                Poll::Ready(Ok(())) => return Poll::Ready("its process attached again"),
                Poll::Ready(Err(_)) => {
                    self.watch = Watch::None;
                    self.limit = Limit::End(Box::pin(tokio::time::sleep(END_LIMIT)));
                }
                Poll::Pending => {}
            },
            Watch::Reader(look, crowd) => {
                while look.as_mut().poll(cx).is_ready() {
                    if self.peer.taking.is_stuck(crate::clock::now_ns()) {
                        crowd.refuse(&self.peer.credentials.tenant, UNTAKEN);
                        return Poll::Ready("the client takes no answer");
                    }
                    look.as_mut().set(tokio::time::sleep(TAKEN_WITHIN / 3));
                }
            }
            Watch::None => {}
        }
        // One that stops halfway through HTTP/2, or never calls, would hold its descriptors for ever.
        if matches!(self.limit, Limit::Attach(_)) && self.peer.has_attached() {
            self.limit = Limit::None;
        }
        let (limit, why) = match &mut self.limit {
            Limit::Attach(limit) => (limit, "the client never attached"),
            Limit::Silence(limit) => (limit, "the client says nothing"),
            Limit::End(limit) => (limit, "its session has ended"),
            Limit::None => return Poll::Pending,
        };
        limit.as_mut().poll(cx).map(|()| why)
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(why) = self.poll_end(cx) {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
        }
        let taken = loop {
            ready!(self.wire.stream()?.poll_read_ready(cx))?;
            match self.wire.read(buffer.initialize_unfilled()) {
                Ok(taken) => break taken,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        };
        buffer.advance(taken);
        if let Limit::Silence(limit) = &mut self.limit
            && taken > 0
        {
            limit.as_mut().set(tokio::time::sleep(SILENCE_LIMIT));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.wire.writer()?.poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.wire.writer()?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.wire.writer()?.poll_shutdown(cx)
    }
}
