//! A call, as it came over a connection.

use hyper::Method;
use hyper::body::Bytes;

/// A call.
#[derive(Debug)]
pub struct Call {
    /// The method.
    pub method: Method,
    /// The segments of the path.
    pub path: Vec<String>,
    /// What stands behind the `?`.
    pub query: String,
    /// The content's type.
    pub kind: String,
    /// The header `Idempotency-Key`.
    pub idempotency: Option<String>,
    /// The body.
    pub body: Bytes,
}
