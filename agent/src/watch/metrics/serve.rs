//! The metrics endpoint: `GET /metrics` over TCP or a Unix socket, and nothing else.
//!
//! It lives beside the gRPC services and never speaks to the gate but through the questions that they
//! ask. Nobody who says nothing keeps others out: of [`SILENT`] connections that have asked for nothing yet, the oldest
//! gives way to the next. A slow scraper holds one of [`ANSWERING`] places from its question on, for at most [`LIMIT`]; a
//! flood of them gets the report that all readers share ([`Reports`]).

use super::{Format, Scrape, render};
use crate::config::Listen;
use crate::watch::denials::Denials;
use crate::watch::reports::Reports;
use crate::watch::watcher::Watched;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tidegate_proto::v1;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

/// Connections that have not asked yet.
pub const SILENT: usize = 64;
/// Scrapers answered at a time.
pub const ANSWERING: usize = 16;
/// Longest life of a connection, and of its question.
pub const LIMIT: Duration = Duration::from_secs(10);

/// How the configuration stands: why it was refused, or nothing, and what waits for a restart.
pub trait Configured: std::fmt::Debug + Send + Sync {
    /// As status says it.
    fn standing(&self) -> (String, Vec<String>);
}

/// What answers are made of.
#[derive(Clone, Debug)]
pub struct Exporter {
    reports: Arc<Reports>,
    watched: Arc<Watched>,
    denials: Arc<Denials>,
    configured: Arc<dyn Configured>,
}

impl Exporter {
    /// An exporter of these reports.
    #[must_use]
    pub const fn new(
        reports: Arc<Reports>,
        watched: Arc<Watched>,
        denials: Arc<Denials>,
        configured: Arc<dyn Configured>,
    ) -> Self {
        Self {
            reports,
            watched,
            denials,
            configured,
        }
    }

    /// None: the control thread does not answer.
    async fn scrape(&self) -> Option<Scrape> {
        let report = self.reports.latest().await?;
        let mut status = v1::GetStatusResponse::clone(&report);
        status.counters.push(self.watched.events_lost());
        (status.config_error, status.config_pending) = self.configured.standing();
        Some(Scrape {
            status,
            shares: self.watched.shares(),
            denied: self.denials.counts(),
            history_lost: self.watched.history_lost(),
        })
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
        let places = Arc::new(Places::new());
        loop {
            let accepted = match &self {
                Self::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                    places.admit(|place| connection(stream, exporter.clone(), place));
                }),
                Self::Unix(listener) => listener.accept().await.map(|(stream, _)| {
                    places.admit(|place| connection(stream, exporter.clone(), place));
                }),
            };
            if accepted.is_err() {
                // Out of descriptors: the connection stays in the queue, and so would a tight loop.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Who may be connected.
#[derive(Debug)]
struct Places {
    /// Those who have asked for nothing yet, oldest first, and how each is sent away.
    silent: std::sync::Mutex<VecDeque<(u64, AbortHandle)>>,
    next: AtomicU64,
    answering: Arc<Semaphore>,
}

/// One connection's.
#[derive(Clone, Debug)]
struct Place {
    places: Arc<Places>,
    number: u64,
}

impl Places {
    fn new() -> Self {
        Self {
            silent: std::sync::Mutex::default(),
            next: AtomicU64::new(0),
            answering: Arc::new(Semaphore::new(ANSWERING)),
        }
    }

    /// Serves one more connection; the one that has been silent for longest gives way.
    fn admit<F>(self: &Arc<Self>, connection: impl FnOnce(Place) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let place = Place {
            places: Arc::clone(self),
            number: self.next.fetch_add(1, Ordering::Relaxed),
        };
        let number = place.number;
        // Held until it is in the list: it cannot leave before it came.
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        let served = tokio::time::timeout(LIMIT, connection(place.clone()));
        let task = tokio::spawn(async move {
            let _ = served.await;
            place.spoke();
        });
        silent.push_back((number, task.abort_handle()));
        if silent.len() > SILENT
            && let Some((_, oldest)) = silent.pop_front()
        {
            oldest.abort();
        }
    }
}

impl Place {
    /// It is silent no more.
    fn spoke(&self) {
        let silent = &self.places.silent;
        let mut silent = silent.lock().unwrap_or_else(PoisonError::into_inner);
        silent.retain(|(number, _)| *number != self.number);
    }

    /// It asked: a place to be answered at, to be kept until the answer is written.
    async fn asks(&self) -> Option<OwnedSemaphorePermit> {
        self.spoke();
        Arc::clone(&self.places.answering)
            .acquire_owned()
            .await
            .ok()
    }
}

async fn connection<S>(stream: S, exporter: Exporter, place: Place)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let answering = std::sync::Mutex::new(None);
    let answer = service_fn(|request| {
        let (exporter, place, answering) = (exporter.clone(), place.clone(), &answering);
        async move {
            let permit = place.asks().await;
            *answering.lock().unwrap_or_else(PoisonError::into_inner) = permit;
            Ok::<_, Infallible>(exporter.answer(request).await)
        }
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
