//! The metrics endpoint: `GET /metrics` over TCP or a Unix socket, and nothing else.
//!
//! It lives beside the gRPC services and never speaks to the gate but through the questions that they
//! ask. A slow scraper holds its own connection, of which there are at most [`CONNECTIONS`], each for at
//! most [`LIMIT`]; a flood of them gets the answer that was made within the last [`FRESH`].

use super::{Format, Scrape, render};
use crate::clock::now_ns;
use crate::config::Listen;
use crate::inbox::{Ask, Input, Mailbox};
use crate::watch::denials::Denials;
use crate::watch::watcher::Watched;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Mutex, Semaphore, oneshot};

/// Scrapers served at a time; more wait in the socket's queue.
pub const CONNECTIONS: usize = 16;
/// Longest life of a connection.
pub const LIMIT: Duration = Duration::from_secs(10);
/// An answer this young is given again.
pub const FRESH: Duration = Duration::from_millis(200);
/// How long the control thread may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// What answers are made of.
#[derive(Clone, Debug)]
pub struct Exporter {
    mailbox: Mailbox,
    watched: Arc<Watched>,
    denials: Arc<Denials>,
    last: Arc<Mutex<Option<(u64, Scrape)>>>,
}

impl Exporter {
    /// An exporter that asks the control thread behind `mailbox`.
    #[must_use]
    pub fn new(mailbox: Mailbox, watched: Arc<Watched>, denials: Arc<Denials>) -> Self {
        Self {
            mailbox,
            watched,
            denials,
            last: Arc::default(),
        }
    }

    /// None: the control thread does not answer.
    async fn scrape(&self) -> Option<Scrape> {
        // Those who come meanwhile wait here, and get what this one brings.
        let mut last = self.last.lock().await;
        if let Some((at, scrape)) = &*last
            && now_ns() < at + crate::clock::nanos(FRESH)
        {
            return Some(scrape.clone());
        }
        let (answer_tx, answer_rx) = oneshot::channel();
        self.mailbox.put(Input::Ask(Ask::Report(answer_tx)));
        let answer = tokio::time::timeout(ANSWER_LIMIT, answer_rx).await;
        let mut status = *answer.ok()?.ok()?;
        status.counters.push(self.watched.events_lost());
        let scrape = Scrape {
            status,
            shares: self.watched.shares(),
            denied: self.denials.counts(),
            history_lost: self.watched.history_lost(),
        };
        *last = Some((now_ns(), scrape.clone()));
        Some(scrape)
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        if request.uri().path() != "/metrics" {
            return plain(StatusCode::NOT_FOUND, "metrics are at /metrics\n");
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return plain(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
        }
        let Some(scrape) = self.scrape().await else {
            return plain(
                StatusCode::SERVICE_UNAVAILABLE,
                "the control thread does not answer\n",
            );
        };
        let accept = request.headers().get(header::ACCEPT);
        let format = Format::accepted(accept.and_then(|said| said.to_str().ok()).unwrap_or(""));
        let mut response = Response::new(Full::from(render(scrape, format)));
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            header::HeaderValue::from_static(format.content_type()),
        );
        response
    }
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response
}

/// The socket of an endpoint.
#[derive(Debug)]
pub enum Endpoint {
    /// Over TCP.
    Tcp(TcpListener),
    /// In the file system.
    Unix(UnixListener),
}

impl Endpoint {
    /// Listens; a socket file that is there already is taken for a dead agent's.
    ///
    /// # Errors
    /// When it cannot.
    pub fn listen(on: &Listen) -> io::Result<Self> {
        match on {
            Listen::Tcp(address) => {
                let listener = std::net::TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Ok(Self::Tcp(TcpListener::from_std(listener)?))
            }
            Listen::Unix(path) => Ok(Self::Unix(UnixListener::from_std(
                crate::host::rundir::bind_at(path, 0o660, Some(crate::host::rundir::GROUP))?,
            )?)),
        }
    }

    /// Where scrapers find it.
    #[must_use]
    pub fn place(&self) -> String {
        match self {
            Self::Tcp(listener) => listener
                .local_addr()
                .map(|address| format!("http://{address}/metrics"))
                .unwrap_or_default(),
            Self::Unix(listener) => listener
                .local_addr()
                .ok()
                .and_then(|address| Some(format!("unix:{}", address.as_pathname()?.display())))
                .unwrap_or_default(),
        }
    }

    /// Serves for as long as it is polled.
    pub async fn serve(self, exporter: Exporter) {
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                return;
            };
            let accepted = match &self {
                Self::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                    tokio::spawn(limited(connection(stream, exporter.clone()), place));
                }),
                Self::Unix(listener) => listener.accept().await.map(|(stream, _)| {
                    tokio::spawn(limited(connection(stream, exporter.clone()), place));
                }),
            };
            if accepted.is_err() {
                // Out of descriptors: the connection stays in the queue, and so would a tight loop.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection<S>(stream: S, exporter: Exporter)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let answer = service_fn(|request| {
        let exporter = exporter.clone();
        async move { Ok::<_, Infallible>(exporter.answer(request).await) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(16 * 1024)
        .serve_connection(TokioIo::new(stream), answer)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a scraper left");
    }
}

async fn limited(connection: impl Future<Output = ()>, _place: tokio::sync::OwnedSemaphorePermit) {
    let _ = tokio::time::timeout(LIMIT, connection).await;
}
