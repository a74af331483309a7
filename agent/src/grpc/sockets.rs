//! A socket whose file somebody removed while the agent listens on it.
//!
//! Those that are attached notice nothing; those to come find no agent. What the agent bound itself it binds anew,
//! within a few looks. What the service manager holds is not the agent's to bind, since the manager would go on
//! listening on the old one: that is said, once for each time. A successor puts its own sockets in place of these
//! within moments, so a file counts as gone when it is missing at two looks in a row; one that is there belongs to
//! whoever made it.

use crate::inbox::{Input, Mailbox};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

/// How often it is looked for.
const EVERY: Duration = Duration::from_secs(1);
/// Looks in a row at which it is missing.
const LOOKS: u32 = 2;

/// Who makes a socket.
#[derive(Debug)]
pub enum Maker {
    /// The agent, so.
    Agent {
        /// Its access rights.
        mode: u32,
        /// Its group, if not the agent's own.
        group: Option<&'static str>,
    },
    /// The service manager.
    Manager,
}

/// Serves `listener`, which is bound to `path`, by `accept`, and whatever takes its place.
pub fn keep(
    path: PathBuf,
    maker: Maker,
    mailbox: Mailbox,
    listener: UnixListener,
    accept: impl Fn(UnixListener) -> JoinHandle<()> + Send + 'static,
) {
    let mut accepting = accept(listener);
    tokio::spawn(async move {
        let mut said = false;
        loop {
            until_gone(&path, &mut said).await;
            let text = match bind_again(&path, &maker) {
                Ok(Some(listener)) => {
                    accepting.abort();
                    accepting = accept(listener);
                    "it was removed, and is bound anew".to_owned()
                }
                Ok(None) => {
                    said = true;
                    "it was removed, and nobody can attach by it until its socket unit is restarted"
                        .to_owned()
                }
                Err(error) => {
                    said = true;
                    format!("it was removed, and cannot be bound anew: {error}")
                }
            };
            let text = format!("{}: {text}", path.display());
            mailbox.put(Input::Audit("socket_removed", text));
        }
    });
}

/// Returns when the file is gone. If that was `said`, when it was there again before.
async fn until_gone(path: &Path, said: &mut bool) {
    let mut missing = 0;
    loop {
        tokio::time::sleep(EVERY).await;
        let there = !matches!(
            std::fs::symlink_metadata(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound
        );
        if there {
            (missing, *said) = (0, false);
        } else {
            missing += 1;
        }
        if missing >= LOOKS && !*said {
            return;
        }
    }
}

/// None: it is not the agent's.
fn bind_again(path: &Path, maker: &Maker) -> io::Result<Option<UnixListener>> {
    match *maker {
        Maker::Manager => Ok(None),
        Maker::Agent { mode, group } => {
            let bound = crate::host::rundir::bind_at(path, mode, group)?;
            UnixListener::from_std(bound).map(Some)
        }
    }
}
