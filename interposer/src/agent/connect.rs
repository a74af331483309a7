//! One connection to the agent, and why it ends.

use crate::sys;
use std::io;
use std::sync::Mutex;
use std::time::Duration;
use tokio::net::UnixStream;
use tonic::transport::{Endpoint, Uri};

const KEEP_ALIVE: Duration = Duration::from_millis(500);

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// No agent listens.
    #[error("connect to the agent")]
    Connect(#[source] io::Error),
    /// It did not say what it has to say first.
    #[error("greet the agent")]
    Greet(#[source] io::Error),
    /// The transport failed.
    #[error("open a channel")]
    Transport(#[source] tonic::transport::Error),
    /// The call failed.
    #[error("attach")]
    Attach(#[source] Box<tonic::Status>),
    /// It was silent.
    #[error("the agent did not answer in time")]
    Slow,
    /// It is done.
    #[error("the agent ended the stream")]
    Ended,
}

/// One stream, one channel: a second call of the connector, tonic's own reconnect, fails.
pub async fn channel(
    stream: UnixStream,
) -> Result<tonic::transport::Channel, tonic::transport::Error> {
    let stream = Mutex::new(Some(stream));
    Endpoint::from_static("http://tidegate.invalid")
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .keep_alive_while_idle(true)
        .connect_with_connector(tower::service_fn(move |_: Uri| {
            let stream = sys::lock(&stream).take();
            async move {
                stream
                    .map(hyper_util::rt::TokioIo::new)
                    .ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))
            }
        }))
        .await
}

/// An error with everything below it.
#[derive(Debug)]
pub struct Chain<'a>(pub &'a dyn std::error::Error);

impl core::fmt::Display for Chain<'_> {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(out, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            write!(out, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}
