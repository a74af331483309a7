//! The self-test's child, and the socket that only it knows.

use super::place::{NotPossible, Place};
use crate::channels::obstacle::PIPE_DIR_ENV;
use crate::config::Config;
use crate::grpc::budget::Budget;
use crate::grpc::crowd::Crowd;
use crate::grpc::peers::{self, Pages};
use crate::grpc::rooms::Rooms;
use crate::grpc::sessions::{HookReports, Sessions};
use crate::host::reaper::Reaper;
use crate::host::yard::Yard;
use crate::inbox;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use tidegate_driver::worker::{Worker, put_first};
use tidegate_proto::{HOOK_SOCKET, RUN_DIR_ENV, v1};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;

/// A directory for one socket, gone with this value.
pub(super) struct Directory(pub(super) PathBuf);

impl Directory {
    pub(super) fn new(run_dir: &Path) -> Result<Self, NotPossible> {
        use std::os::unix::fs::DirBuilderExt;
        let dir = run_dir.join(format!("self-test-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&dir)
            .map_err(|error| NotPossible::Prepare("make a directory for its socket", error))?;
        Ok(Self(dir))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The socket the child's library attaches to; closed with this value.
pub(super) struct Server {
    end_tx: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    pub(super) fn start(dir: &Path, mailbox: inbox::Mailbox) -> Result<Self, NotPossible> {
        let prepare = |what| move |error| NotPossible::Prepare(what, error);
        let listener = std::os::unix::net::UnixListener::bind(dir.join(HOOK_SOCKET))
            .map_err(prepare("listen for its library"))?;
        listener
            .set_nonblocking(true)
            .map_err(prepare("listen for its library"))?;
        let yard = Yard::start(1);
        let reaper = Reaper::new().map_err(prepare("watch it"))?;
        let mut config = Config::default();
        config.identity.trust_env_uids = vec![nix::unistd::Uid::effective().as_raw()];
        let in_force = tokio::sync::watch::Sender::new(Arc::new(config.into())).subscribe();
        let sessions = Sessions::new(
            in_force,
            mailbox,
            Arc::new(reaper),
            Arc::new(HookReports::new(Arc::new(Rooms::new(0, Arc::default())))),
            Arc::new(Budget::new(Arc::default())),
            yard.clone(),
        );
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(prepare("make a runtime"))?;
        let (end_tx, end_rx) = oneshot::channel();
        let serve = async move {
            let Ok(listener) = tokio::net::UnixListener::from_std(listener) else {
                return;
            };
            let (connection_tx, connection_rx) = mpsc::channel(1);
            tokio::spawn(peers::accept_greeted(
                listener,
                Arc::new(Pages::new(1)),
                Arc::new(Crowd::new(1, yard)),
                connection_tx,
            ));
            let runtime = v1::runtime_server::RuntimeServer::new(sessions);
            let served = tonic::transport::Server::builder()
                .add_service(runtime)
                .serve_with_incoming(ReceiverStream::new(connection_rx));
            tokio::select! {
                _ = served => {}
                _ = end_rx => {}
            }
        };
        let thread = std::thread::Builder::new()
            .name("tg-self-test".to_owned())
            .spawn(move || runtime.block_on(serve))
            .map_err(prepare("start a thread"))?;
        Ok(Self {
            end_tx: Some(end_tx),
            thread: Some(thread),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end_tx = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Starts the child.
pub(super) fn start(place: &Place, dir: &Path) -> Result<Worker, NotPossible> {
    let mut command = Command::new(&place.program);
    put_first(&mut command, "LD_PRELOAD", &place.library);
    command
        .arg("--self-test-work")
        .env("TIDEGATE_ROLE", "offline")
        .env("TIDEGATE_JOB", "self-test")
        .env(RUN_DIR_ENV, dir)
        .env_remove("TIDEGATE_DISABLE")
        .env_remove("CUDA_VISIBLE_DEVICES")
        // No daemon is there, whatever runs on the node.
        .env(PIPE_DIR_ENV, dir)
        .stderr(Stdio::null());
    if let Some(driver_dir) = &place.driver_dir {
        put_first(&mut command, "LD_LIBRARY_PATH", driver_dir);
    }
    Worker::start(command).map_err(|error| NotPossible::Prepare("start its GPU work", error))
}
