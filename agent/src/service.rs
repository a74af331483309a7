//! The Node and Control services, and who may call what on which socket.
//!
//! No decisions: a request becomes a question to the control thread, its answer a message. Which
//! method is served where stands in one table ([`METHODS`]); a method that is not in it is refused, so
//! a new one needs a row before it can be called.

use crate::events::{Compacted, EventLog};
use crate::inbox::{Answer, Ask, Input, Mailbox};
use crate::logs::LogLevel;
use crate::sessions::HookReports;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tidegate_proto::v1;
use tokio::sync::{mpsc, oneshot};
use tonic::body::Body;
use tonic::codegen::http;
use tonic::{Request, Response, Status};

/// One of the agent's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Socket {
    /// World-writable; preloaded libraries.
    Hook,
    /// Root and group `tidegate`.
    Control,
    /// World-writable; readers.
    Status,
}

/// Every method there is, and the sockets that serve it. A path that ends in `/` is a whole service.
pub const METHODS: [(&str, &[Socket]); 9] = [
    ("/tidegate.v1.Runtime/Attach", &[Socket::Hook]),
    (
        "/tidegate.v1.Node/GetStatus",
        &[Socket::Control, Socket::Status],
    ),
    (
        "/tidegate.v1.Node/WatchEvents",
        &[Socket::Control, Socket::Status],
    ),
    ("/tidegate.v1.Control/Pause", &[Socket::Control]),
    ("/tidegate.v1.Control/Resume", &[Socket::Control]),
    ("/tidegate.v1.Control/SetLogLevel", &[Socket::Control]),
    (
        "/grpc.health.v1.Health/",
        &[Socket::Control, Socket::Status],
    ),
    (
        "/grpc.reflection.v1.ServerReflection/",
        &[Socket::Control, Socket::Status],
    ),
    (
        "/grpc.reflection.v1alpha.ServerReflection/",
        &[Socket::Control, Socket::Status],
    ),
];

/// Whether a row of [`METHODS`] is about `path`.
fn names(method: &str, path: &str) -> bool {
    method == path || (method.ends_with('/') && path.starts_with(method))
}

/// Whether `socket` serves `path`.
#[must_use]
pub fn serves(socket: Socket, path: &str) -> bool {
    METHODS
        .iter()
        .any(|(method, sockets)| names(method, path) && sockets.contains(&socket))
}

/// Calls that were refused, by method; those that no socket serves are counted together.
#[derive(Debug, Default)]
pub struct Denials([AtomicU64; METHODS.len() + 1]);

impl Denials {
    fn count(&self, path: &str) {
        let known = METHODS.iter().position(|(method, _)| names(method, path));
        self.0[known.unwrap_or(METHODS.len())].fetch_add(1, Ordering::Relaxed);
    }

    /// How many of each since the start.
    #[must_use]
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let methods = METHODS.iter().map(|(method, _)| *method).chain(["other"]);
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        methods.zip(counts).collect()
    }
}

/// Refuses what [`METHODS`] does not allow, before any service sees it, and counts it.
#[derive(Clone, Debug)]
pub struct Authorisation(pub Socket, pub Arc<Denials>);

/// See [`Authorisation`].
#[derive(Clone, Debug)]
pub struct Authorised<S> {
    socket: Socket,
    denials: Arc<Denials>,
    inner: S,
}

impl<S> tower::Layer<S> for Authorisation {
    type Service = Authorised<S>;

    fn layer(&self, inner: S) -> Authorised<S> {
        Authorised {
            socket: self.0,
            denials: Arc::clone(&self.1),
            inner,
        }
    }
}

impl<S, B> tower::Service<http::Request<B>> for Authorised<S>
where
    S: tower::Service<http::Request<B>, Response = http::Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = std::pin::Pin<
        Box<dyn Future<Output = Result<http::Response<Body>, S::Error>> + Send + 'static>,
    >;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        if serves(self.socket, request.uri().path()) {
            return Box::pin(self.inner.call(request));
        }
        self.denials.count(request.uri().path());
        let refusal = Status::permission_denied("this socket does not serve this method");
        Box::pin(async move { Ok(refusal.into_http()) })
    }
}

/// How long the control thread may take for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// Events given to a reader at once, and messages on their way to it.
const PAGE: usize = 256;

/// The Node and Control services.
#[derive(Clone, Debug)]
pub struct Service {
    mailbox: Mailbox,
    events: Arc<EventLog>,
    hooks: Arc<HookReports>,
    log_level: LogLevel,
}

impl Service {
    /// A service that asks the control thread behind `mailbox`.
    #[must_use]
    pub const fn new(
        mailbox: Mailbox,
        events: Arc<EventLog>,
        hooks: Arc<HookReports>,
        log_level: LogLevel,
    ) -> Self {
        Self {
            mailbox,
            events,
            hooks,
            log_level,
        }
    }

    async fn ask<T>(&self, question: impl FnOnce(Answer<T>) -> Ask) -> Result<T, Status> {
        let (answer_tx, answer_rx) = oneshot::channel();
        self.mailbox.put(Input::Ask(question(answer_tx)));
        match tokio::time::timeout(ANSWER_LIMIT, answer_rx).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(Status::unavailable("the agent is ending")),
            Err(_) => Err(Status::deadline_exceeded(
                "the control thread does not answer",
            )),
        }
    }

    async fn jobs(
        &self,
        job: String,
        question: impl FnOnce(Option<String>, Answer<Vec<String>>) -> Ask,
    ) -> Result<Vec<String>, Status> {
        let named = Some(job.clone()).filter(|job| !job.is_empty());
        let jobs = self.ask(|answer| question(named, answer)).await?;
        if jobs.is_empty() && !job.is_empty() {
            return Err(Status::not_found(format!("there is no job `{job}`")));
        }
        Ok(jobs)
    }
}

#[tonic::async_trait]
impl v1::node_server::Node for Service {
    async fn get_status(
        &self,
        request: Request<v1::GetStatusRequest>,
    ) -> Result<Response<v1::GetStatusResponse>, Status> {
        let mut report = *self.ask(Ask::Report).await?;
        report.counters.push(self.events.lost());
        if request.get_ref().hooks {
            for process in &mut report.processes {
                if let Some(hooks) = self.hooks.get(process.session) {
                    process.hooks = hooks.rows;
                    process.unhooked = hooks.unhooked;
                }
            }
        }
        Ok(Response::new(report))
    }

    type WatchEventsStream =
        tokio_stream::wrappers::ReceiverStream<Result<v1::WatchEventsResponse, Status>>;

    async fn watch_events(
        &self,
        request: Request<v1::WatchEventsRequest>,
    ) -> Result<Response<Self::WatchEventsStream>, Status> {
        let v1::WatchEventsRequest {
            since_seq,
            no_follow,
        } = request.into_inner();
        let first = self.events.since(since_seq, PAGE).map_err(too_late)?;
        let (event_tx, event_rx) = mpsc::channel(PAGE);
        tokio::spawn(follow(
            Arc::clone(&self.events),
            first,
            since_seq,
            no_follow,
            event_tx,
        ));
        Ok(Response::new(event_rx.into()))
    }
}

fn too_late(compacted: Compacted) -> Status {
    Status::out_of_range(format!(
        "events before {} are no longer kept",
        compacted.oldest
    ))
}

/// Sends events until the reader leaves, falls behind what is kept, or has all it asked for.
async fn follow(
    events: Arc<EventLog>,
    mut batch: Vec<v1::Event>,
    mut next: u64,
    no_follow: bool,
    event_tx: mpsc::Sender<Result<v1::WatchEventsResponse, Status>>,
) {
    let mut newest = events.newest();
    loop {
        for event in batch.drain(..) {
            next = event.seq + 1;
            let message = v1::WatchEventsResponse { event: Some(event) };
            if event_tx.send(Ok(message)).await.is_err() {
                return;
            }
        }
        newest.mark_unchanged();
        batch = match events.since(next, PAGE) {
            Ok(batch) => batch,
            Err(_) => {
                let slow = Status::resource_exhausted("the reader is too slow");
                let _ = event_tx.send(Err(slow)).await;
                return;
            }
        };
        if batch.is_empty() {
            if no_follow {
                return;
            }
            tokio::select! {
                changed = newest.changed() => if changed.is_err() { return },
                () = event_tx.closed() => return,
            }
        }
    }
}

#[tonic::async_trait]
impl v1::control_server::Control for Service {
    async fn pause(
        &self,
        request: Request<v1::PauseRequest>,
    ) -> Result<Response<v1::PauseResponse>, Status> {
        let jobs = self.jobs(request.into_inner().job, Ask::Pause).await?;
        Ok(Response::new(v1::PauseResponse { jobs }))
    }

    async fn resume(
        &self,
        request: Request<v1::ResumeRequest>,
    ) -> Result<Response<v1::ResumeResponse>, Status> {
        let jobs = self.jobs(request.into_inner().job, Ask::Resume).await?;
        Ok(Response::new(v1::ResumeResponse { jobs }))
    }

    async fn set_log_level(
        &self,
        request: Request<v1::SetLogLevelRequest>,
    ) -> Result<Response<v1::SetLogLevelResponse>, Status> {
        let changed = self
            .log_level
            .set(&request.into_inner().filter)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        tracing::warn!(before = changed.before, now = changed.now, "log level set");
        Ok(Response::new(v1::SetLogLevelResponse {
            before: changed.before,
            filter: changed.now,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_of_the_contract_is_in_the_table_and_every_row_is_a_method() {
        let text = include_str!("../../proto/tidegate/v1/tidegate.proto");
        let mut methods = Vec::new();
        let mut service = "";
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match (words.next(), words.next()) {
                (Some("service"), Some(name)) => service = name,
                (Some("rpc"), Some(rest)) => {
                    let name = rest.split('(').next().expect("a name");
                    methods.push(format!("/tidegate.v1.{service}/{name}"));
                }
                _ => {}
            }
        }
        assert!(!methods.is_empty());
        let rows: Vec<_> = METHODS
            .iter()
            .map(|(method, _)| (*method).to_owned())
            .filter(|method| method.starts_with("/tidegate"))
            .collect();
        assert_eq!(rows, methods);
    }

    #[test]
    fn nothing_but_attaching_is_served_on_the_hook_socket() {
        for (method, _) in METHODS {
            assert_eq!(
                serves(Socket::Hook, method),
                method == "/tidegate.v1.Runtime/Attach",
                "{method}"
            );
        }
    }

    #[test]
    fn nothing_that_changes_the_node_is_served_on_the_status_socket() {
        for method in [
            "/tidegate.v1.Control/Pause",
            "/tidegate.v1.Control/Resume",
            "/tidegate.v1.Runtime/Attach",
            "/tidegate.v1.Control/Unheard",
            "/tidegate.v1.Node/Unheard",
        ] {
            assert!(!serves(Socket::Status, method), "{method}");
        }
    }
}
