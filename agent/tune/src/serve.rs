//! Finetuning as a service, in front of one engine: `tidegate tune serve`.
//!
//! A client speaks OpenAI's files and fine-tuning jobs. Every job trains an adapter in the engine, as `tidegate tune`
//! does, and the engine's own server answers with it. A server that was killed goes on where it was: what it answered
//! is in its folder before it answers.
//!
//! ```text
//!   http     connections, keys, which call it is
//!   api      the calls; create: a new job
//!   service  what a server knows
//!   store    uploaded files           STATE/files/ID/{file.json,content}
//!   jobs     what is known of jobs    STATE/jobs/ID/{job.json,events.jsonl,adapter,adapter.tune}
//!   work     has the jobs trained
//!   link     the engine               status, quota, keys: pure
//! ```

mod answer;
mod api;
mod call;
mod create;
mod http;
mod jobs;
mod keys;
mod link;
mod quota;
mod service;
mod shared;
mod status;
mod store;
#[cfg(test)]
mod tests;
mod work;

pub use keys::Keys;

use crate::files::{self, FileError};
use service::Service;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// What a server is started with.
#[derive(Debug)]
pub struct Options {
    /// The engine's socket.
    pub engine: PathBuf,
    /// Where clients connect.
    pub listen: SocketAddr,
    /// Who they are.
    pub keys: Keys,
    /// The folder of the state, an absolute path.
    pub state: PathBuf,
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The folder of the state.
    #[error(transparent)]
    State(#[from] FileError),
    /// Another server has the folder.
    #[error("{}: another server uses this folder", .0.display())]
    Held(PathBuf),
}

/// Serves until `stop` ends. Jobs under way go on from their newest checkpoint when a server is started again.
///
/// # Errors
/// When the address or the folder of the state cannot be used.
pub async fn serve(
    options: Options,
    stop: impl Future<Output = ()>,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), ServeError> {
    let _held = held(&options.state)?;
    let address = options.listen;
    let failed = |source| ServeError::Listen { address, source };
    let listener = tokio::net::TcpListener::bind(address)
        .await
        .map_err(failed)?;
    let service = Arc::new(Service::open(options.keys, options.engine, options.state)?);
    for id in service.jobs.unfinished() {
        tokio::spawn(work::drive(Arc::clone(&service), id));
    }
    ready(listener.local_addr().map_err(failed)?);
    tokio::select! {
        () = http::accept(listener, service) => {}
        () = stop => {}
    }
    Ok(())
}

/// Keeps other servers out of the folder.
fn held(state: &std::path::Path) -> Result<nix::fcntl::Flock<std::fs::File>, ServeError> {
    use nix::fcntl::{Flock, FlockArg};
    files::make_folder(state)?;
    let path = state.join("lock");
    let file = std::fs::File::create(&path).map_err(FileError::at(&path))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock)
        .map_err(|_| ServeError::Held(state.to_owned()))
}
