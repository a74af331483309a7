//! Who may call which method on which socket: one table, checked before any service sees a call.
//!
//! A method without a row in [`METHODS`] is refused, so a new method needs a row before it can be called. The content
//! of an answer may still depend on the caller: `Explain` describes another user's process to operators only.
//!
//! Methods that change the node require an operator: root, the agent's own user or a member of group `tidegate`, and
//! not from within a container. The mode of `control.sock` expresses the same for users. But a container that has the
//! agent's directory mounted, for `hook.sock`, has that socket too, and its root may have the number of the node's
//! root.

use crate::grpc::peers::Peer;
use crate::identity::Credentials;
use crate::watch::denials::Denials;
use std::sync::Arc;
use std::task::{Context, Poll};
use tidegate_node::text::Text;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http;

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

/// Who may call a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Whoever may open the socket.
    Anyone,
    /// Who steers the node.
    Operator,
}

/// What a method asks for: its path (one that ends in `/` is a whole service), the sockets that serve
/// it, and of whom.
pub type Row = (&'static str, &'static [Socket], Who);

const READERS: &[Socket] = &[Socket::Control, Socket::Status];
const STEERING: &[Socket] = &[Socket::Control];

/// Every method there is.
pub const METHODS: [Row; 18] = [
    ("/tidegate.v1.Runtime/Attach", &[Socket::Hook], Who::Anyone),
    ("/tidegate.v1.Node/GetStatus", READERS, Who::Anyone),
    ("/tidegate.v1.Node/WatchEvents", READERS, Who::Anyone),
    ("/tidegate.v1.Node/GetConfig", READERS, Who::Anyone),
    ("/tidegate.v1.Node/Explain", READERS, Who::Anyone),
    ("/tidegate.v1.Node/ExplainHandle", READERS, Who::Anyone),
    ("/tidegate.v1.Node/ExplainLease", READERS, Who::Anyone),
    ("/tidegate.v1.Control/Pause", STEERING, Who::Operator),
    ("/tidegate.v1.Control/Resume", STEERING, Who::Operator),
    ("/tidegate.v1.Control/Drain", STEERING, Who::Operator),
    ("/tidegate.v1.Control/Undrain", STEERING, Who::Operator),
    ("/tidegate.v1.Control/Ungate", STEERING, Who::Operator),
    ("/tidegate.v1.Control/Set", STEERING, Who::Operator),
    ("/tidegate.v1.Control/Reload", STEERING, Who::Operator),
    ("/tidegate.v1.Control/SetLogLevel", STEERING, Who::Operator),
    ("/grpc.health.v1.Health/", READERS, Who::Anyone),
    (
        "/grpc.reflection.v1.ServerReflection/",
        READERS,
        Who::Anyone,
    ),
    (
        "/grpc.reflection.v1alpha.ServerReflection/",
        READERS,
        Who::Anyone,
    ),
];

/// Users and groups that steer the node, beside root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operators {
    /// The agent's own user.
    pub own_uid: u32,
    /// Group `tidegate`, if there is one.
    pub group: Option<u32>,
}

impl Operators {
    /// As this machine has them.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let group = nix::unistd::Group::from_name(crate::host::rundir::GROUP);
        Self {
            own_uid: nix::unistd::Uid::effective().as_raw(),
            group: group.ok().flatten().map(|group| group.gid.as_raw()),
        }
    }

    /// Whether that peer may steer the node.
    #[must_use]
    pub fn include(self, peer: &Credentials) -> bool {
        self.objection(peer).is_none()
    }

    /// Why that peer does not steer the node; None: it may.
    fn objection(self, peer: &Credentials) -> Option<String> {
        let known = peer.uid == 0
            || peer.uid == self.own_uid
            || self.group.is_some_and(|group| peer.groups.contains(&group));
        if !known {
            return Some(format!(
                "uid {} does not steer this node: it takes root or group {}",
                peer.uid,
                crate::host::rundir::GROUP
            ));
        }
        (!peer.contained.is_empty()).then(|| {
            format!(
                "process {} does not steer this node: {}",
                peer.pid, peer.contained
            )
        })
    }
}

/// Whether `peer` may call `path` on `socket`.
///
/// # Errors
/// Why not, for the caller.
pub fn admit(
    socket: Socket,
    path: &str,
    peer: &Credentials,
    operators: Operators,
) -> Result<(), String> {
    let row = METHODS
        .iter()
        .find(|(method, sockets, _)| names(method, path) && sockets.contains(&socket));
    match row {
        None => Err("this socket does not serve this method".to_owned()),
        Some((_, _, Who::Anyone)) => Ok(()),
        Some((_, _, Who::Operator)) => operators.objection(peer).map_or(Ok(()), Err),
    }
}

/// Whether a row of [`METHODS`] is about `path`.
fn names(method: &str, path: &str) -> bool {
    method == path || (method.ends_with('/') && path.starts_with(method))
}

/// A counter of refused calls for each method.
#[must_use]
pub fn denials() -> Denials {
    Denials::of(METHODS.iter().map(|(method, ..)| *method))
}

/// Refuses what [`METHODS`] does not allow, before any service sees it, and counts it.
#[derive(Clone, Debug)]
pub struct Authorisation {
    /// Where the call came in.
    pub socket: Socket,
    /// Who steers the node.
    pub operators: Operators,
    /// Where refusals are counted.
    pub denials: Arc<Denials>,
}

/// See [`Authorisation`].
#[derive(Clone, Debug)]
pub struct Authorised<S> {
    rules: Authorisation,
    inner: S,
}

impl<S> tower::Layer<S> for Authorisation {
    type Service = Authorised<S>;

    fn layer(&self, inner: S) -> Authorised<S> {
        Authorised {
            rules: self.clone(),
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
        let path = request.uri().path();
        let admitted = match request.extensions().get::<Peer>() {
            Some(peer) => admit(
                self.rules.socket,
                path,
                &peer.credentials,
                self.rules.operators,
            ),
            None => Err("the connection has no peer".to_owned()),
        };
        match admitted {
            Ok(()) => Box::pin(self.inner.call(request)),
            Err(why) => {
                let row = METHODS.iter().position(|(method, ..)| names(method, path));
                self.rules.denials.count(row);
                tracing::debug!(socket = ?self.rules.socket, path = %Text::line(path), why, "call refused");
                Box::pin(async move { Ok(Status::permission_denied(why).into_http()) })
            }
        }
    }
}

#[cfg(test)]
mod tests;
