//! The open-loop generator: sends each request of a schedule when it is due, whatever became of those before.
//!
//! A closed loop, which waits for answers, sends less to a server that is slow, and so hides that it is. Here requests
//! queue up where the users' would. Connections are opened before a request is due and kept, as users' clients keep
//! them, so that TTFT begins with the sending of the request on an open connection.

use crate::plan::{Schedule, prompt};
use crate::record::{End, Seen};
use crate::stream::{Stream, excerpt};
use crate::target::{Call, Target, TargetError, body, model};
use crate::tls::Trust;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response, header};
use hyper_util::rt::TokioIo;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// How long before its time a request looks for a connection: a round trip over a continent takes less.
const AHEAD: Duration = Duration::from_millis(50);
/// The same where the connection has to agree on keys, which takes two more of them (RFC 8446, RFC 5246).
const AHEAD_TLS: Duration = Duration::from_millis(150);
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long the server may take to say what it is.
const PROBE: Duration = Duration::from_secs(10);
/// Largest answer to a question that is no generation.
const LARGEST: usize = 8 << 20;
/// Priority of online's requests: that of those which name none.
const ONLINE: i32 = 0;
/// Requests in a row without a connection after which the server is gone.
const GONE_AFTER: u32 = 5;

/// Nanoseconds of a clock that never goes back.
pub type Clock = fn() -> u64;

/// How to reach a server.
#[derive(Clone)]
pub struct Way {
    /// The server.
    pub target: Target,
    /// Sent as a bearer token.
    pub key: Option<String>,
    /// Whose certificates are taken, where TLS is spoken.
    pub trust: Option<Trust>,
}

impl std::fmt::Debug for Way {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let target = self.target.url("");
        f.debug_tuple("Way").field(&target).finish()
    }
}

/// Why no answer came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// For people.
    pub why: String,
    /// TLS is what stands in the way.
    pub tls: bool,
}

impl From<String> for Unanswered {
    fn from(why: String) -> Self {
        Self { why, tls: false }
    }
}

/// How to speak to a server.
#[derive(Clone, Debug)]
pub struct Client {
    /// The server.
    pub way: Way,
    /// The model to ask for.
    pub model: String,
    /// Which call.
    pub call: Call,
    /// Whether to ask for exactly as many tokens as planned, see [`body`].
    pub exact: bool,
    /// How long nothing may arrive of an answer.
    pub silence: Duration,
    /// What times are taken from.
    pub clock: Clock,
}

/// What the server says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Server {
    /// The model that is asked for.
    pub model: String,
    /// Its version, as `/version` (vLLM, SGLang) or the header `server` says it; empty if neither does.
    pub version: String,
}

/// What became of a block.
#[derive(Clone, Debug)]
pub struct Driven {
    /// Every request that has an end.
    pub seen: Vec<Seen>,
    /// Why it ended early; none if it did not.
    pub early: Option<String>,
}

pub(crate) type Connection = SendRequest<Full<Bytes>>;

/// Connections that wait for a request.
#[derive(Debug, Default)]
struct Idle(Mutex<Vec<Connection>>);

impl Idle {
    fn take(&self) -> Option<Connection> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(connection) = all.pop() {
            if connection.is_ready() {
                return Some(connection);
            }
        }
        None
    }

    fn put(&self, connection: Connection) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(connection);
    }
}

pub(crate) async fn connect(way: &Way) -> Result<Connection, Unanswered> {
    let address = &way.target.address;
    let late = || format!("{address}: no answer in {} s", CONNECT.as_secs());
    let stream = match timeout(CONNECT, TcpStream::connect(address)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(format!("{address}: {error}").into()),
        Err(_) => return Err(late().into()),
    };
    let _ = stream.set_nodelay(true);
    let Some(trust) = way.trust.as_ref().filter(|_| way.target.tls) else {
        return spoken(stream).await;
    };
    let wrapped = timeout(CONNECT, trust.wrap(stream, &way.target.host)).await;
    let wrapped = wrapped.unwrap_or_else(|_| Err(late()));
    spoken(wrapped.map_err(|why| Unanswered { why, tls: true })?).await
}

/// HTTP over what is connected.
async fn spoken<S>(stream: S) -> Result<Connection, Unanswered>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    tokio::spawn(async move {
        // Its end is seen where the answer is read.
        let _ = connection.await;
    });
    Ok(sender)
}

pub(crate) fn request(
    Way { target, key, .. }: &Way,
    path: &str,
    body: Option<String>,
) -> Result<Request<Full<Bytes>>, String> {
    let mut request = Request::builder()
        .method(if body.is_some() { "POST" } else { "GET" })
        .uri(target.path(path))
        .header(header::HOST, &target.authority)
        .header(
            header::USER_AGENT,
            concat!("tidegate-bench/", env!("CARGO_PKG_VERSION")),
        );
    if body.is_some() {
        request = request.header(header::CONTENT_TYPE, "application/json");
    }
    if let Some(key) = key {
        request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
    }
    request
        .body(Full::new(body.unwrap_or_default().into()))
        .map_err(|error| error.to_string())
}

/// At most `limit` bytes of a body.
async fn read(mut body: Incoming, limit: usize) -> Result<Vec<u8>, String> {
    let mut all = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| error.to_string())?;
        if let Ok(data) = frame.into_data() {
            all.extend_from_slice(&data);
        }
        if all.len() > limit {
            return Err(format!("its answer has more than {limit} bytes"));
        }
    }
    Ok(all)
}

/// Asks for `path`; status, header `server`, and body.
///
/// # Errors
/// When no whole answer comes.
pub async fn get(way: &Way, path: &str) -> Result<(u16, String, Vec<u8>), Unanswered> {
    let asked = async {
        let mut connection = connect(way).await?;
        let request = request(way, path, None)?;
        let answer = connection
            .send_request(request)
            .await
            .map_err(|error| error.to_string())?;
        let server = answer.headers().get(header::SERVER);
        let server = server
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned();
        let status = answer.status().as_u16();
        Ok((status, server, read(answer.into_body(), LARGEST).await?))
    };
    let limit = format!("no answer in {} s", PROBE.as_secs());
    timeout(PROBE, asked)
        .await
        .unwrap_or_else(|_| Err(limit.into()))
}

/// Finds out whether this is such a server, and which model it serves.
///
/// # Errors
/// When it is none, or does not serve `wanted`.
pub async fn probe(way: &Way, wanted: Option<&str>) -> Result<Server, TargetError> {
    let url = || way.target.url("/v1/models");
    let asked = get(way, "/v1/models").await;
    let (status, header, answer) = asked.map_err(|Unanswered { why, tls }| match tls {
        true => TargetError::Tls { url: url(), why },
        false => TargetError::Silent { url: url(), why },
    })?;
    let model = model(&way.target, status, &answer, wanted)?;
    let said = match get(way, "/version").await {
        Ok((200, _, text)) => serde_json::from_slice::<serde_json::Value>(&text).ok(),
        _ => None,
    };
    let version = said.and_then(|said| said["version"].as_str().map(excerpt));
    Ok(Server {
        model,
        version: version.unwrap_or_else(|| excerpt(&header)),
    })
}

/// Sends block number `block` of `schedule`; ends early when `stop` becomes true or the server is gone. `tell` hears how
/// many requests have ended.
pub async fn drive(
    client: &Client,
    schedule: &Schedule,
    block: usize,
    mut stop: watch::Receiver<bool>,
    mut tell: impl FnMut(usize),
) -> Driven {
    let idle = Arc::new(Idle::default());
    let refused = Arc::new(AtomicU32::new(0));
    let client = Arc::new(client.clone());
    // The first request of a schedule may be due at once, and has to find a connection like all others.
    let start_ns = (client.clock)() + nanos(2 * AHEAD);
    let mut running = JoinSet::new();
    for (index, request) in schedule.requests() {
        let due = request.due;
        let one = One {
            client: client.clone(),
            idle: idle.clone(),
            refused: refused.clone(),
            index,
            due,
            due_ns: start_ns + nanos(due),
        };
        let tokens = [request.input_tokens, request.output_tokens];
        running.spawn(one.run((schedule.seed, block), tokens));
    }
    let mut seen = Vec::with_capacity(running.len());
    let mut early = None;
    loop {
        tokio::select! {
            ended = running.join_next() => match ended {
                Some(Ok(one)) => {
                    seen.push(one);
                    tell(seen.len());
                }
                Some(Err(_)) => early = Some("a request was lost".to_owned()),
                None => break,
            },
            stopped = stop.wait_for(|stop| *stop) => {
                let _ = stopped;
                early = Some("interrupted".to_owned());
                break;
            }
        }
        if refused.load(Ordering::Relaxed) >= GONE_AFTER {
            early = Some(format!(
                "the server is gone: no connection for {GONE_AFTER} requests in a row"
            ));
            break;
        }
    }
    running.abort_all();
    Driven { seen, early }
}

/// One request on its way.
struct One {
    client: Arc<Client>,
    idle: Arc<Idle>,
    refused: Arc<AtomicU32>,
    index: usize,
    due: Duration,
    due_ns: u64,
}

impl One {
    /// Of block `place`, a seed and a number; `tokens` of its prompt and its answer.
    async fn run(self, place: (u64, usize), [input, output]: [u32; 2]) -> Seen {
        let now = self.client.clock;
        let way = &self.client.way;
        let ahead = if way.target.tls { AHEAD_TLS } else { AHEAD };
        sleep(Duration::from_nanos(
            self.due_ns.saturating_sub(now() + nanos(ahead)),
        ))
        .await;
        let connection = match self.idle.take() {
            Some(connection) => Ok(connection),
            None => connect(way).await,
        };
        let mut connection = match connection {
            Ok(connection) => connection,
            Err(Unanswered { why, .. }) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                return self.seen(now(), &Stream::default(), End::Unreachable(why));
            }
        };
        self.refused.store(0, Ordering::Relaxed);
        let path = self.client.call.path();
        // Only now: a long schedule has more text than should be held at once.
        let prompt = prompt(place.0, place.1, self.index, input);
        let Client {
            call, model, exact, ..
        } = &*self.client;
        let body = body(*call, model, &prompt, output, (*exact, ONLINE)).to_string();
        let request = match request(way, path, Some(body)) {
            Ok(request) => request,
            Err(why) => return self.seen(now(), &Stream::default(), End::Other(why)),
        };
        sleep(Duration::from_nanos(self.due_ns.saturating_sub(now()))).await;
        let sent_ns = now();
        let mut stream = Stream::default();
        let answer = timeout(self.client.silence, connection.send_request(request)).await;
        let end = match answer {
            Err(_) => End::Silent,
            Ok(Err(error)) => End::Cut(error.to_string()),
            Ok(Ok(answer)) if answer.status() != 200 => refusal(answer, self.client.silence).await,
            Ok(Ok(answer)) => follow(&self.client, answer.into_body(), &mut stream, |_| ()).await,
        };
        if end == End::Done && connection.ready().await.is_ok() {
            self.idle.put(connection);
        }
        self.seen(sent_ns, &stream, end)
    }

    fn seen(&self, sent_ns: u64, stream: &Stream, end: End) -> Seen {
        let late_ms = sent_ns.saturating_sub(self.due_ns) as f64 / 1e6;
        Seen::of(
            self.index,
            self.due.as_secs_f64(),
            late_ms,
            sent_ns,
            stream,
            end,
        )
    }
}

/// Reads an answer to its end; `tell` hears how many tokens have come.
pub(crate) async fn follow(
    client: &Client,
    mut body: Incoming,
    stream: &mut Stream,
    mut tell: impl FnMut(u64),
) -> End {
    loop {
        match timeout(client.silence, body.frame()).await {
            Err(_) => return End::Silent,
            Ok(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    stream.feed(data, (client.clock)());
                    tell(stream.output_tokens());
                }
            }
            Ok(Some(Err(_))) if stream.is_complete() => return End::Done,
            Ok(Some(Err(error))) => return End::Cut(error.to_string()),
            Ok(None) => {
                return match stream.error() {
                    Some(said) => End::Error(said.to_owned()),
                    None if stream.is_complete() => End::Done,
                    None => End::Cut("it ended without [DONE]".to_owned()),
                };
            }
        }
    }
}

/// What a server says that does not serve.
pub(crate) async fn refusal(answer: Response<Incoming>, limit: Duration) -> End {
    let status = answer.status().as_u16();
    let said = timeout(limit, read(answer.into_body(), 1 << 16)).await;
    let said = said.ok().and_then(Result::ok).unwrap_or_default();
    let text = match serde_json::from_slice::<serde_json::Value>(&said) {
        Ok(said) => {
            let message = said["error"]["message"]
                .as_str()
                .or(said["message"].as_str());
            message.unwrap_or_default().to_owned()
        }
        Err(_) => String::from_utf8_lossy(&said).into_owned(),
    };
    End::Status(status, excerpt(&text))
}

fn nanos(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}
