//! What every call passes: bounds for what comes in ([`super::incoming`]), and, on the sockets of readers, for what goes
//! out ([`super::outgoing`]) and for how many calls of a tenant are answered at once, by however many connections they come.

use super::incoming::{Incoming, Longest};
use super::outgoing::{CALL, Outgoing, UNTAKEN};
use super::rooms::{Each, Rooms};
use crate::grpc::peers::Peer;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tidegate_node::kinds::Tenant;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http;

/// Calls of one tenant that are answered at once.
const CALLS: usize = 16;
/// Longest request of a reader.
pub const REQUEST: usize = 16 * 1_024;

/// The bounds of one socket.
#[derive(Clone, Debug)]
pub struct Bounds {
    rooms: Arc<Rooms>,
    longest: Longest,
    /// On a socket of readers.
    calls: Option<Arc<Each>>,
}

impl Bounds {
    /// Of a socket on which libraries attach.
    #[must_use]
    pub const fn of_libraries(rooms: Arc<Rooms>) -> Self {
        Self {
            rooms,
            longest: crate::grpc::budget::longest,
            calls: None,
        }
    }

    /// Of a socket that answers.
    #[must_use]
    pub fn of_readers(rooms: Arc<Rooms>) -> Self {
        Self {
            rooms,
            longest: |_| REQUEST,
            calls: Some(Arc::new(Each::new(CALLS))),
        }
    }
}

/// See [`Bounds`].
#[derive(Clone, Debug)]
pub struct Bounded<S> {
    bounds: Bounds,
    inner: S,
}

impl<S> tower::Layer<S> for Bounds {
    type Service = Bounded<S>;

    fn layer(&self, inner: S) -> Bounded<S> {
        Bounded {
            bounds: self.clone(),
            inner,
        }
    }
}

impl<S> tower::Service<http::Request<Body>> for Bounded<S>
where
    S: tower::Service<http::Request<Body>, Response = http::Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future =
        Pin<Box<dyn Future<Output = Result<http::Response<Body>, S::Error>> + Send + 'static>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let Bounds {
            rooms,
            longest,
            calls,
        } = self.bounds.clone();
        let Some(peer) = request.extensions().get::<Peer>().cloned() else {
            let nobody = Status::internal("the connection has no peer");
            return Box::pin(async move { Ok(nobody.into_http()) });
        };
        let tenant = peer.credentials.tenant.clone();
        let (mut parts, body) = request.into_parts();
        let body = Incoming::new(body, tenant.clone(), Arc::clone(&rooms), longest);
        parts.extensions.insert(body.carried());
        let request = http::Request::from_parts(parts, Body::new(body));
        let answer = self.inner.call(request);
        let Some(calls) = calls else {
            return Box::pin(answer);
        };
        let calls = (tenant != Tenant::Agent).then(|| calls.of(&tenant));
        Box::pin(async move {
            let Some(room) = rooms.take_or_refuse(&tenant, CALL, UNTAKEN) else {
                return Ok(Status::resource_exhausted(UNTAKEN).into_http());
            };
            let _turn = match calls {
                Some(calls) => calls.acquire_owned().await.ok(),
                None => None,
            };
            let (parts, body) = answer.await?.into_parts();
            let body = Outgoing::encode(body, tenant, (rooms, room), peer.taking).await;
            Ok(match body {
                Ok(body) => http::Response::from_parts(parts, Body::new(body)),
                Err(status) => status.into_http(),
            })
        })
    }
}
