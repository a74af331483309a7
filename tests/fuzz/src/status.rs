//! Calls of a reader at `status.sock`: any method, and any bytes of a body, cut anywhere.
//!
//! An input is calls. The first byte of each chooses the method; then come pieces of the body, each behind its length,
//! until one of length zero. The body passes what the socket has: who may call what, the bounds of what comes in and
//! goes out, the services, and the control thread behind them. HTTP/2 itself is left to the target `frames`.
//!
//! Time stands still but where it is moved: a message that was begun and does not end is waited for until its time is up.

use crate::files::directory;
use crate::input::Input;
use crate::node::Node;
use crate::spent;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::Request;
use hyper::body::{Bytes, Frame};
use prost::Message as _;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::task::Poll;
use std::time::Duration;
use tidegate_agent::config::{Config, Level, Loaded, Role, Sources};
use tidegate_agent::grpc::authority::{Authorisation, METHODS, Operators, Socket, denials};
use tidegate_agent::grpc::bounds::{Bounds, REQUEST};
use tidegate_agent::grpc::crowd::Crowd;
use tidegate_agent::grpc::incoming::LIMIT;
use tidegate_agent::grpc::outgoing::Taking;
use tidegate_agent::grpc::peers::Peer;
use tidegate_agent::grpc::reload::InForce;
use tidegate_agent::grpc::rooms::Rooms;
use tidegate_agent::grpc::service::{Made, Service};
use tidegate_agent::grpc::sessions::HookReports;
use tidegate_agent::grpc::standing::Standing;
use tidegate_agent::host::logs::{self, LogLevel};
use tidegate_agent::host::orders::{Orders, OrdersFile};
use tidegate_agent::host::yard::Yard;
use tidegate_agent::identity::{self, Credentials};
use tidegate_agent::inbox::{Mailbox, inbox};
use tidegate_agent::watch::events::EventLog;
use tidegate_agent::watch::gauge::Gauge;
use tidegate_agent::watch::refusals::Refusals;
use tidegate_agent::watch::reports::Reports;
use tidegate_node::kinds::Tenant;
use tidegate_proto::v1;
use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;
use tokio::time::advance;
use tokio_stream::iter;
use tonic::body::Body;
use tonic::service::Routes;
use tower::Layer as _;

/// The tenant, who is nobody on this machine.
const UID: u32 = 70_000;
/// Bytes that it may keep.
const SHARE: usize = 1 << 20;
/// The longest answer.
const ANSWER: usize = 1 << 20;
/// What a call may leave behind: the report that readers share, and events.
const STAYS: usize = 256 << 10;
const CALLS: usize = 8;
const PIECES: usize = 16;
/// Turns in which an answer that needs no time is there.
const TURNS: usize = 64;
/// Processor time that an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is made once: threads, and the configuration.
struct Standard {
    runtime: Runtime,
    log_level: LogLevel,
    in_force: Arc<InForce>,
    gauge: Gauge,
    orders: Arc<Standing>,
}

static STANDARD: LazyLock<Standard> = LazyLock::new(|| {
    let mut config = Config::default();
    "off".clone_into(&mut config.log.level);
    let log_level = logs::init(&config);
    let crowd = Crowd::new(64, Yard::start(1));
    let in_force = InForce::new(
        Sources::default(),
        Loaded::from(config),
        Level::L1,
        inbox().0,
        log_level.clone(),
        Arc::new(crowd),
        Arc::default(),
    );
    let mut runtime = Builder::new_current_thread();
    runtime.enable_time().start_paused(true);
    Standard {
        runtime: runtime.build().expect("a runtime"),
        log_level,
        in_force: Arc::new(in_force),
        gauge: Gauge::start(Vec::new).expect("a thread"),
        orders: Standing::new(Orders::default(), OrdersFile::new(&directory("status"), 1)),
    }
});

pub fn run(input: &[u8]) {
    STANDARD.runtime.block_on(calls(Input(input)));
}

/// What is in force of the configuration, for who attaches.
pub fn in_force() -> Arc<InForce> {
    Arc::clone(&STANDARD.in_force)
}

/// What answers readers.
pub fn service(mailbox: Mailbox, hooks: Arc<HookReports>, refusals: Arc<Refusals>) -> Service {
    let (_, events) = EventLog::start(Arc::clone(&refusals)).expect("a thread");
    let service = Service::new(Made {
        mailbox: mailbox.clone(),
        events,
        hooks,
        log_level: STANDARD.log_level.clone(),
        in_force: Arc::clone(&STANDARD.in_force),
        refusals,
        gauge: STANDARD.gauge.clone(),
        orders: Arc::clone(&STANDARD.orders),
        reports: Arc::new(Reports::new(mailbox)),
    });
    service.for_readers()
}

async fn calls(mut input: Input<'_>) {
    let mut node = Node::new(Role::Online, false);
    let refusals = Arc::default();
    let rooms = Arc::new(Rooms::new(SHARE, Arc::clone(&refusals)));
    let hooks = Arc::new(HookReports::new(Arc::clone(&rooms)));
    let service = service(node.mailbox(), hooks, refusals);
    let server = v1::node_server::NodeServer::new(service.clone());
    let control = v1::control_server::ControlServer::new(service);
    let routes = Routes::new(server.max_decoding_message_size(REQUEST))
        .add_service(control.max_decoding_message_size(REQUEST))
        .prepare();
    let authorisation = Authorisation {
        socket: Socket::Status,
        operators: Operators::of_this_machine(),
        denials: Arc::new(denials()),
    };
    let stack = authorisation.layer(Bounds::of_readers(Arc::clone(&rooms)).layer(routes));
    // The first call makes what is kept for all.
    one(stack.clone(), &mut node, METHODS[1].0, &[vec![0; 5]]).await;
    let before = spent::held();
    for _ in 0..CALLS {
        if input.is_empty() {
            break;
        }
        let path = METHODS[usize::from(input.byte()) % METHODS.len()].0;
        let mut pieces = Vec::new();
        for _ in 0..PIECES {
            let length = usize::from(input.byte());
            if length == 0 {
                break;
            }
            pieces.push(input.bytes(length).to_vec());
        }
        one(stack.clone(), &mut node, path, &pieces).await;
    }
    let stays = spent::held().saturating_sub(before);
    assert!(stays < STAYS, "{stays} bytes stay");
    let room = rooms.take(&Tenant::User(UID), SHARE);
    assert!(room.is_some(), "a call that is over keeps room");
    drop((room, stack));
    node.judge();
}

/// One call, from its first byte to the last of its answer.
async fn one<S>(mut stack: S, node: &mut Node, path: &str, pieces: &[Vec<u8>])
where
    S: tower::Service<Request<Body>, Response = hyper::Response<Body>>,
    S::Error: std::fmt::Debug,
{
    let frames = pieces
        .iter()
        .map(|piece| Ok(Frame::data(Bytes::from(piece.clone()))));
    let frames: Vec<Result<_, tonic::Status>> = frames.collect();
    let mut request = Request::new(Body::new(StreamBody::new(iter(frames))));
    *request.method_mut() = hyper::Method::POST;
    *request.uri_mut() = path.parse().expect("a path");
    request.extensions_mut().insert(Peer {
        credentials: Arc::new(Credentials {
            pid: 1,
            uid: UID,
            tenant: Tenant::User(UID),
            ..Credentials::default()
        }),
        greeted: None,
        taking: Arc::new(Taking::default()),
    });
    poll_fn(|cx| stack.poll_ready(cx)).await.expect("ready");
    let call = stack.call(request);
    let answered = async {
        let answer = call.await.expect("an answer");
        let (parts, mut body) = answer.into_parts();
        let mut bytes = Vec::new();
        let mut status = parts.headers.get("grpc-status").cloned();
        while let Some(frame) = body.frame().await {
            let frame = frame.expect("a frame");
            match frame.into_data() {
                Ok(data) => bytes.extend_from_slice(&data),
                Err(frame) => {
                    let trailers = frame.into_trailers().expect("data or trailers");
                    status = trailers.get("grpc-status").cloned().or(status);
                }
            }
            assert!(bytes.len() < ANSWER, "{} bytes of an answer", bytes.len());
            // Who follows events has no end of them.
            if path.ends_with("WatchEvents") && bytes.len() > 64 << 10 {
                break;
            }
        }
        (status, bytes)
    };
    let mut answered = pin!(answered);
    let begun = spent::time();
    for turn in 0.. {
        let done = poll_fn(|cx| {
            Poll::Ready(match answered.as_mut().poll(cx) {
                Poll::Ready(done) => Some(done),
                Poll::Pending => None,
            })
        });
        if let Some((status, bytes)) = done.await {
            return judge(
                path,
                status.as_ref().map(hyper::header::HeaderValue::as_bytes),
                &bytes,
            );
        }
        // A reader that follows waits for what comes next.
        if path.ends_with("WatchEvents") && turn > 2 * TURNS {
            return;
        }
        node.settle();
        yield_now().await;
        if turn % TURNS == TURNS - 1 {
            advance(LIMIT / 4).await;
        }
        assert!(spent::time() - begun < PATIENCE, "{path} is never answered");
    }
}

/// What nobody on this socket may have: another method, another's process, or text that a terminal would obey.
fn judge(path: &str, status: Option<&[u8]>, bytes: &[u8]) {
    let succeeded = status == Some(b"0");
    let serves = |socket: &Socket| *socket == Socket::Status;
    let row = METHODS.iter().find(|row| row.0 == path).expect("a row");
    assert!(!succeeded || row.1.iter().any(serves), "{path} is served");
    if !succeeded || bytes.len() < 5 {
        return;
    }
    match path.rsplit('/').next() {
        Some("Explain") => {
            let said = v1::ExplainResponse::decode(&bytes[5..]).expect("whole");
            let own = identity::of_process(said.pid).is_ok_and(|process| process.uid == UID);
            assert!(own, "process {} is described to a stranger", said.pid);
        }
        Some("GetStatus") => {
            let said = v1::GetStatusResponse::decode(&bytes[5..]).expect("whole");
            assert!(!said.drained, "a reader drained the node");
        }
        _ => {}
    }
}
