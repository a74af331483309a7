//! A runtime with a thread of its own, for callers who have to be answered beside any crowd.
//!
//! Whoever floods `hook.sock` or `status.sock` keeps the thread busy that serves them: each connection costs its
//! admission, and every step of an honest call waits for its turn among them. Who steers the node waits for none of that.

use std::io;
use tokio::runtime::{Builder, EnterGuard, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The runtime; it ends when this is dropped.
#[derive(Debug)]
pub struct Apart {
    handle: Handle,
    _end_tx: oneshot::Sender<()>,
}

impl Apart {
    /// Starts its thread.
    ///
    /// # Errors
    /// When it or the runtime cannot be made.
    pub fn start(name: &str) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (end_tx, end_rx) = oneshot::channel::<()>();
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || runtime.block_on(end_rx))?;
        Ok(Self {
            handle,
            _end_tx: end_tx,
        })
    }

    /// What is made while the guard lives belongs to this runtime.
    pub fn enter(&self) -> EnterGuard<'_> {
        self.handle.enter()
    }

    /// Runs `task` there.
    pub fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.handle.spawn(task)
    }
}
