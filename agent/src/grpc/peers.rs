//! Connections of the agent's sockets, from `accept` to the first HTTP/2 byte.
//!
//! Every connection is asked for its credentials before anything it sent is read. On `hook.sock` the
//! agent then greets: sixteen bytes with the shared page (`tidegate_proto::greeting`), and reads the
//! client's first sixteen, which are either its own greeting, perhaps with its control file, or the
//! beginning of HTTP/2. A connection that stays silent, or speaks and never attaches, is closed: it must
//! never block the others, so each one is admitted by a task of its own.

use crate::identity::{Credentials, credentials};
use crate::sys::{self, SharedPage};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tidegate_abi::page;
use tidegate_proto::greeting::{self, First, Greeting};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tonic::transport::server::Connected;

/// How long a client may take for its first sixteen bytes.
const GREETING_LIMIT: Duration = Duration::from_secs(5);
/// How long it may take from there to its Attach.
const ATTACH_LIMIT: Duration = Duration::from_secs(5);
/// How long a connection of the other sockets may send nothing at all. Whoever speaks HTTP/2 answers
/// the server's pings, which come every [`PING_EVERY`].
const SILENCE_LIMIT: Duration = Duration::from_secs(25);
/// How often the server of those sockets pings.
pub const PING_EVERY: Duration = Duration::from_secs(10);

/// Who is at the other end, known to every handler of the connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// What the kernel says.
    pub credentials: Arc<Credentials>,
    /// What came with the greeting; the one Attach stream of the connection takes it.
    pub greeted: Option<Arc<Mutex<Option<Greeted>>>>,
}

/// What a connection of `hook.sock` starts with.
#[derive(Debug)]
pub struct Greeted {
    /// The agent's number for the connection.
    pub session: u64,
    /// Names the process for good.
    pub pidfd: OwnedFd,
    /// None: the client is older than the greeting.
    pub page: Option<SharedPage>,
    /// Not looked at yet.
    pub control_file: Option<OwnedFd>,
}

/// An admitted connection.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    peer: Peer,
    limit: Limit,
    _place: Place,
}

/// What a connection is closed for.
#[derive(Debug)]
enum Limit {
    /// The peer has not attached by then.
    Attach(Pin<Box<tokio::time::Sleep>>),
    /// The peer has sent nothing until then, which moves on with every byte.
    Silence(Pin<Box<tokio::time::Sleep>>),
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

/// Counts the connections of each user on one socket, so that one user cannot take all descriptors.
#[derive(Debug)]
pub struct Crowd {
    limit: AtomicUsize,
    /// Whose connections are not limited.
    exempt: Option<u32>,
    by_uid: Mutex<HashMap<u32, usize>>,
}

/// One counted connection.
#[derive(Debug)]
struct Place {
    crowd: Arc<Crowd>,
    uid: u32,
}

impl Crowd {
    /// At most `limit` connections of a user, the agent's own apart.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit: AtomicUsize::new(limit),
            exempt: Some(nix::unistd::Uid::effective().as_raw()),
            by_uid: Mutex::default(),
        }
    }

    /// At most `limit` connections of any user: a container's root has the agent's user id, too.
    #[must_use]
    pub fn of_anyone(limit: usize) -> Self {
        Self {
            exempt: None,
            ..Self::new(limit)
        }
    }

    /// At most `limit` from here on; who is in stays in.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    fn enter(self: &Arc<Self>, uid: u32) -> Option<Place> {
        let mut by_uid = self.by_uid.lock().unwrap_or_else(PoisonError::into_inner);
        let here = by_uid.entry(uid).or_default();
        if *here >= self.limit.load(Ordering::Relaxed) && self.exempt != Some(uid) {
            return None;
        }
        *here += 1;
        Some(Place {
            crowd: Arc::clone(self),
            uid,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut by_uid = self
            .crowd
            .by_uid
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(here) = by_uid.get_mut(&self.uid) {
            *here -= 1;
            if *here == 0 {
                by_uid.remove(&self.uid);
            }
        }
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
        let admitted = identify(&stream).and_then(|(credentials, _)| {
            let place = crowd.enter(credentials.uid).ok_or_else(too_many)?;
            Ok((credentials, place))
        });
        match admitted {
            Ok((credentials, place)) => {
                let connection = Connection {
                    stream,
                    peer: Peer {
                        credentials: Arc::new(credentials),
                        greeted: None,
                    },
                    limit: Limit::Silence(Box::pin(tokio::time::sleep(SILENCE_LIMIT))),
                    _place: place,
                };
                let _ = connection_tx.send(Ok(connection)).await;
            }
            Err(error) => tracing::debug!(%error, "connection not admitted"),
        }
    }
}

fn too_many() -> io::Error {
    io::Error::other("too many connections of this user")
}

async fn accept(listener: &UnixListener) -> Option<UnixStream> {
    match listener.accept().await {
        Ok((stream, _)) => Some(stream),
        Err(error) => {
            // Out of descriptors: the connection stays in the queue, and so would a tight loop.
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(Duration::from_millis(20)).await;
            None
        }
    }
}

/// The peer's credentials and a pidfd that names it.
///
/// Before Linux 6.5 there is no `SO_PEERPIDFD`; then the id is opened, and the start time read before
/// and after must be the same.
fn identify(stream: &UnixStream) -> io::Result<(Credentials, OwnedFd)> {
    let peer = stream.peer_cred()?;
    let pid = peer
        .pid()
        .filter(|&pid| pid > 0)
        .ok_or_else(|| io::Error::other("the peer is in another pid namespace"))?;
    match sys::peer_pidfd(stream.as_fd()) {
        Ok(pidfd) => Ok((credentials(pid, peer.uid(), pidfd.as_fd())?, pidfd)),
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
            let pidfd = sys::pidfd_open(pid)?;
            let before = credentials(pid, peer.uid(), pidfd.as_fd())?;
            let again = sys::pidfd_open(pid)?;
            let after = credentials(pid, peer.uid(), again.as_fd())?;
            if before.started == after.started {
                Ok((after, again))
            } else {
                Err(io::Error::other("the peer's process id was reused"))
            }
        }
        Err(error) => Err(error),
    }
}

async fn greet(stream: UnixStream, pages: &Pages, crowd: &Arc<Crowd>) -> io::Result<Connection> {
    let (credentials, pidfd) = identify(&stream)?;
    let place = crowd.enter(credentials.uid).ok_or_else(too_many)?;
    let session = pages.next_session.fetch_add(1, Ordering::Relaxed);
    let (page, file) = pages.create(session)?;
    let bytes = Greeting::new(1).encode();
    stream
        .async_io(Interest::WRITABLE, || {
            sys::send_with_descriptors(stream.as_fd(), &bytes, &[file.as_fd()])
        })
        .await?;
    drop(file);
    let first = tokio::time::timeout(GREETING_LIMIT, first_bytes(&stream))
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the client said nothing"))??;
    let (page, control_file) = match first {
        First::Greeting(_) => {
            let mut bytes = [0; greeting::LEN];
            let (taken, descriptors, truncated) = stream
                .async_io(Interest::READABLE, || {
                    sys::receive_with_descriptors(stream.as_fd(), &mut bytes)
                })
                .await?;
            if taken != greeting::LEN {
                return Err(io::Error::other("half a greeting"));
            }
            if truncated {
                return Err(io::Error::other("no descriptor left for a client's file"));
            }
            (Some(page), descriptors.into_iter().next())
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
    let greeted = Greeted {
        session,
        pidfd,
        page,
        control_file,
    };
    Ok(Connection {
        stream,
        peer: Peer {
            credentials: Arc::new(credentials),
            greeted: Some(Arc::new(Mutex::new(Some(greeted)))),
        },
        limit: Limit::Attach(Box::pin(tokio::time::sleep(ATTACH_LIMIT))),
        _place: place,
    })
}

/// Looks at the first sixteen bytes without taking them.
async fn first_bytes(stream: &UnixStream) -> io::Result<First> {
    let mut seen = 0;
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
        if there == seen {
            // Bytes that were only peeked at keep the socket readable, so readiness cannot tell of
            // more. Both ends of the greeting are written in one call: this is next to never taken.
            tokio::time::sleep(Duration::from_millis(1)).await;
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

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // One that stops halfway through HTTP/2, or never calls, would hold its descriptors for ever.
        if matches!(self.limit, Limit::Attach(_)) && self.peer.has_attached() {
            self.limit = Limit::None;
        }
        let late = match &mut self.limit {
            Limit::Attach(limit) => limit
                .as_mut()
                .poll(cx)
                .is_ready()
                .then_some("the client never attached"),
            Limit::Silence(limit) => limit
                .as_mut()
                .poll(cx)
                .is_ready()
                .then_some("the client says nothing"),
            Limit::None => None,
        };
        if let Some(why) = late {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if let Limit::Silence(limit) = &mut self.limit
            && buffer.filled().len() > before
        {
            limit.as_mut().set(tokio::time::sleep(SILENCE_LIMIT));
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
