//! Connections: whose key it is, which call it is, and no body beyond its bound.

use super::answer::{Answer, Refusal};
use super::api;
use super::call::Call;
use super::service::Service;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::AUTHORIZATION;
use hyper::service::service_fn;
use hyper::{Method, Request};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Largest body of a call in bytes, and of an upload. Uploads are read one at a time, so that all bodies together stay
/// below 64 MiB.
const LARGEST: usize = 1 << 20;
const LARGEST_FILE: usize = 32 << 20;
/// Connections at a time.
const CONNECTIONS: usize = 1024;
/// Bodies that are read at a time.
const BODIES: usize = 16;
/// How long a client may take to send the head of a request.
const HEAD: Duration = Duration::from_secs(30);
/// How long it may take to send the body.
const BODY: Duration = Duration::from_secs(300);

/// Answers connections for ever.
pub async fn accept(listener: TcpListener, service: Arc<Service>) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    let bodies = Arc::new(Bodies {
        small: Semaphore::new(BODIES),
        files: Semaphore::new(1),
    });
    loop {
        // Neither is ever closed.
        let Ok(place) = Arc::clone(&connections).acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            // Too many open files: those of other connections are closed in a while.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (service, bodies) = (Arc::clone(&service), Arc::clone(&bodies));
        tokio::spawn(async move {
            let answer = service_fn(|request| answered(&service, &bodies, request));
            let mut server = hyper::server::conn::http1::Builder::new();
            server.timer(TokioTimer::new()).header_read_timeout(HEAD);
            // A client that goes away in mid-answer is no error of this server.
            let _ = server.serve_connection(TokioIo::new(stream), answer).await;
            drop(place);
        });
    }
}

#[derive(Debug)]
struct Bodies {
    small: Semaphore,
    files: Semaphore,
}

async fn answered(
    service: &Arc<Service>,
    bodies: &Bodies,
    request: Request<Incoming>,
) -> Result<Answer, Infallible> {
    Ok(handled(service, bodies, request)
        .await
        .unwrap_or_else(|refusal| refusal.answer()))
}

async fn handled(
    service: &Arc<Service>,
    bodies: &Bodies,
    request: Request<Incoming>,
) -> Result<Answer, Refusal> {
    let header = |name: &str| {
        request
            .headers()
            .get(name)
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned)
    };
    let bearer = header(AUTHORIZATION.as_str());
    let key = bearer
        .as_deref()
        .and_then(|value| value.strip_prefix("Bearer "));
    let owner = key
        .and_then(|key| service.keys.owner(key))
        .ok_or_else(Refusal::no_key)?
        .clone();
    let path: Vec<String> = request
        .uri()
        .path()
        .split('/')
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect();
    let file = request.method() == Method::POST && path == ["v1", "files"];
    let (places, limit) = if file {
        (&bodies.files, LARGEST_FILE)
    } else {
        (&bodies.small, LARGEST)
    };
    let query = request.uri().query().unwrap_or_default().to_owned();
    let (method, kind, idempotency) = (
        request.method().clone(),
        header("content-type").unwrap_or_default(),
        header("idempotency-key"),
    );
    let _place = places.acquire().await;
    let reading =
        tokio::time::timeout(BODY, Limited::new(request.into_body(), limit).collect()).await;
    let body = match reading {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return Err(Refusal::large(limit)),
        _ => return Err(Refusal::wrong("body", "the body ended early")),
    };
    api::call(
        service,
        &owner,
        Call {
            method,
            path,
            query,
            kind,
            idempotency,
            body,
        },
    )
    .await
}
