//! The agent that a command speaks to, and what becomes of that.

use anyhow::Context;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate_agent::host::rundir::{self, Holder};
use tidegate_proto::{CONTROL_SOCKET, RUN_DIR, RUN_DIR_ENV, STATUS_SOCKET, v1};
use tonic::transport::{Channel, Endpoint};

// What is documented here would become the program's own help.
#[derive(Debug, clap::Args)]
pub(super) struct Agent {
    /// The agent's directory.
    #[arg(long, global = true, env = RUN_DIR_ENV, default_value = RUN_DIR, value_name = "DIR")]
    pub run_dir: PathBuf,
    /// The socket (default: one in the agent's directory).
    #[arg(long, global = true, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// The agent cannot be spoken to.
#[derive(Debug, thiserror::Error)]
pub enum Unreachable {
    /// Nobody listens.
    #[error("no agent listens on {}; is tidegate-agent running?", .0.display())]
    Absent(PathBuf),
    /// That is something else.
    #[error("{} is not a socket; --socket names the agent's control.sock or status.sock", .0.display())]
    NoSocket(PathBuf),
    /// The socket may not be opened.
    #[error("{} may not be opened by this user; ask for group tidegate, or use status", .0.display())]
    Forbidden(PathBuf),
    /// Somebody else, systemd that is, holds the socket open, and no agent answers on it.
    #[error(
        "no agent serves {}: systemd holds the socket while the agent does not start; `systemctl status tidegate-agent` and \
         `tidegate doctor` say why",
        .0.display()
    )]
    Unserved(PathBuf),
    /// Anything else, also on the way.
    #[error("the agent on {} does not serve: {why}", .path.display())]
    Failed {
        /// Its socket or directory.
        path: PathBuf,
        /// What it did instead.
        why: String,
    },
}

fn is_socket(path: &Path) -> bool {
    let kind = std::fs::metadata(path).map(|data| data.file_type());
    kind.is_ok_and(|kind| std::os::unix::fs::FileTypeExt::is_socket(&kind))
}

/// What the agent answered, without the protocol's details.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(super) struct Refusal {
    pub code: tonic::Code,
    message: String,
}

impl From<&tonic::Status> for Refusal {
    fn from(status: &tonic::Status) -> Self {
        Self {
            code: status.code(),
            message: if status.message().is_empty() {
                format!("the agent answers: {}", status.code())
            } else {
                status.message().to_owned()
            },
        }
    }
}

pub(super) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot make a runtime")
}

impl Agent {
    /// For what anybody may read. Who may open `control.sock` is not in the crowd before `status.sock`.
    pub(super) async fn reader(&self) -> Result<Channel, Unreachable> {
        if self.socket.is_none()
            && let Ok(channel) = self.connect(CONTROL_SOCKET).await
        {
            return Ok(channel);
        }
        self.connect(STATUS_SOCKET).await
    }

    pub(super) async fn connect(&self, name: &str) -> Result<Channel, Unreachable> {
        let path = self
            .socket
            .clone()
            .unwrap_or_else(|| self.run_dir.join(name));
        match tokio::net::UnixStream::connect(&path).await {
            Ok(stream) => over(stream, &path).await,
            Err(_) if path.exists() && !is_socket(&path) => Err(Unreachable::NoSocket(path)),
            Err(error) => Err(match error.kind() {
                std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
                    Unreachable::Absent(path)
                }
                std::io::ErrorKind::PermissionDenied => Unreachable::Forbidden(path),
                _ => Unreachable::Failed {
                    path,
                    why: error.to_string(),
                },
            }),
        }
    }

    /// What it means that a question failed. Without an agent, one that timed out had nobody to answer it.
    fn unanswered(&self, status: tonic::Status) -> anyhow::Error {
        let timed_out = status.code() == tonic::Code::DeadlineExceeded
            || (status.code() == tonic::Code::Cancelled && status.message() == "Timeout expired");
        if !timed_out {
            return status.into();
        }
        let path = self.socket.clone();
        let path = path.unwrap_or_else(|| self.run_dir.join(STATUS_SOCKET));
        let lives = |holder: Holder| Path::new("/proc").join(holder.pid.to_string()).exists();
        if rundir::holder(&self.run_dir).is_some_and(lives) {
            let why = "no answer in 5 s".to_owned();
            Unreachable::Failed { path, why }.into()
        } else {
            Unreachable::Unserved(path).into()
        }
    }
}

async fn over(stream: tokio::net::UnixStream, path: &Path) -> Result<Channel, Unreachable> {
    let mut stream = Some(stream);
    let connector = tower::service_fn(move |_: tonic::transport::Uri| {
        // One connection per command; a second would be a reconnect, which helps nobody here.
        let stream = stream.take();
        async move {
            stream
                .map(hyper_util::rt::TokioIo::new)
                .ok_or_else(|| std::io::Error::other("the agent hung up"))
        }
    });
    Endpoint::from_static("http://tidegate.invalid")
        .connect_timeout(Duration::from_secs(2))
        .connect_with_connector(connector)
        .await
        .map_err(|error| Unreachable::Failed {
            path: path.to_owned(),
            why: error.to_string(),
        })
}

/// Longest report that is read: hook reports of some hundred processes, as the agent keeps them.
const LONGEST_REPORT: usize = 64 << 20;

pub(super) async fn report(agent: &Agent, hooks: bool) -> anyhow::Result<v1::GetStatusResponse> {
    let channel = agent.reader().await?;
    let mut request = tonic::Request::new(v1::GetStatusRequest {
        hooks,
        ..v1::GetStatusRequest::default()
    });
    request.set_timeout(Duration::from_secs(5));
    let answer = v1::node_client::NodeClient::new(channel)
        .max_decoding_message_size(LONGEST_REPORT)
        .get_status(request)
        .await
        .map_err(|status| agent.unanswered(status))?;
    Ok(answer.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P-OPERATE-16: whatever `--socket` names that is no agent's socket is named as what it is.
    #[test]
    fn a_file_that_is_no_socket_is_named_as_such() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().expect("a runtime");
        let told = |socket: &str| {
            let agent = Agent {
                run_dir: PathBuf::new(),
                socket: Some(PathBuf::from(socket)),
            };
            let answer = runtime.block_on(agent.connect(STATUS_SOCKET));
            answer.expect_err(socket).to_string()
        };
        assert!(told("/etc/passwd").starts_with("/etc/passwd is not a socket;"));
        assert!(told("/nowhere/status.sock").starts_with("no agent listens on /nowhere/"));
    }
}
