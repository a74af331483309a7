//! The agent's directory: one agent at a time, its generation, its sockets.
//!
//! Whoever holds the lock on `lock` is the node's agent. The file says who that is, for the second one
//! to name, and which device it drives, for `tidegate release` to speak to the same one.

use crate::channels::journal::{self, Journal};
use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Name of the lock file.
pub const LOCK: &str = "lock";
/// Group that may use control.sock.
pub const GROUP: &str = "tidegate";

/// Who holds the lock, as the file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its process id.
    pub pid: i32,
    /// Its generation; 0 before it has one.
    pub generation: u64,
    /// `--device` as it was started with.
    pub device: String,
}

/// Why the directory cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// Another agent runs.
    #[error("{}", already(.0, .1))]
    Held(PathBuf, Option<Holder>),
    /// The file system refuses.
    #[error("cannot prepare {path}")]
    Prepare {
        /// What.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn already(dir: &Path, holder: &Option<Holder>) -> String {
    match holder {
        Some(holder) => format!(
            "tidegate-agent {} (generation {}) already runs on {}",
            holder.pid,
            holder.generation,
            dir.display()
        ),
        None => format!("another tidegate-agent already runs on {}", dir.display()),
    }
}

/// The directory, held.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    lock: Flock<File>,
    device: String,
}

impl RunDir {
    /// Makes the directory if needed and takes its lock without waiting.
    ///
    /// # Errors
    /// [`RunDirError::Held`] when another agent has it.
    pub fn take(path: &Path, device: &str) -> Result<Self, RunDirError> {
        let prepare = |path: &Path| {
            let path = path.to_owned();
            move |source| RunDirError::Prepare { path, source }
        };
        std::fs::create_dir_all(path).map_err(prepare(path))?;
        let lock = path.join(LOCK);
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .open(&lock)
            .map_err(prepare(&lock))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => {
                let mut held = Self {
                    path: path.to_owned(),
                    lock,
                    device: device.to_owned(),
                };
                held.sign(0)?;
                Ok(held)
            }
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => {
                Err(RunDirError::Held(path.to_owned(), holder(path)))
            }
            Err((_, errno)) => Err(prepare(&lock)(errno.into())),
        }
    }

    /// Writes into the lock file who holds it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn sign(&mut self, generation: u64) -> Result<(), RunDirError> {
        let line = format!("{} {generation} {}\n", std::process::id(), self.device);
        let write = |file: &mut File| {
            file.set_len(0)?;
            file.rewind()?;
            file.write_all(line.as_bytes())
        };
        write(&mut self.lock).map_err(|source| RunDirError::Prepare {
            path: self.path.join(LOCK),
            source,
        })
    }

    /// The journal.
    ///
    /// # Errors
    /// When it cannot be made or is not one.
    pub fn journal(&self) -> Result<Journal, RunDirError> {
        journal::open(&self.path).map_err(|source| RunDirError::Prepare {
            path: self.path.join(crate::channels::journal::NAME),
            source,
        })
    }

    /// Binds a socket in place of whatever has its name, with `mode`, for `group` if it exists.
    ///
    /// # Errors
    /// When it cannot be bound.
    pub fn bind(
        &self,
        name: &str,
        mode: u32,
        group: Option<&str>,
    ) -> Result<std::os::unix::net::UnixListener, RunDirError> {
        let path = self.path.join(name);
        bind_at(&path, mode, group).map_err(|source| RunDirError::Prepare {
            path: path.clone(),
            source,
        })
    }
}

/// Listens on `path`, in place of whatever was there, with `mode` and for `group`.
///
/// # Errors
/// When it cannot.
pub fn bind_at(
    path: &Path,
    mode: u32,
    group: Option<&str>,
) -> io::Result<std::os::unix::net::UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = std::os::unix::net::UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    if let Some(group) = group
        && let Ok(Some(group)) = nix::unistd::Group::from_name(group)
    {
        // Only root may; others keep their own group.
        let _ = nix::unistd::chown(path, None, Some(group.gid));
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    Ok(listener)
}

/// Who holds, or last held, the lock of `dir`.
#[must_use]
pub fn holder(dir: &Path) -> Option<Holder> {
    let mut text = String::new();
    File::open(dir.join(LOCK))
        .ok()?
        .take(4_096)
        .read_to_string(&mut text)
        .ok()?;
    let mut words = text.trim_end().splitn(3, ' ');
    Some(Holder {
        pid: words.next()?.parse().ok()?,
        generation: words.next()?.parse().ok()?,
        device: words.next()?.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_agent_is_told_who_holds_the_directory() {
        let dir = std::env::temp_dir().join(format!("tidegate-rundir-{}", std::process::id()));
        let mut first = RunDir::take(&dir, "virtual=/tmp/gpu 0").expect("free");
        first.sign(7).expect("writable");
        let error = RunDir::take(&dir, "real").expect_err("held");
        let text = error.to_string();
        assert!(text.contains(&std::process::id().to_string()), "{text}");
        assert!(text.contains("generation 7"), "{text}");
        assert_eq!(
            holder(&dir).map(|holder| holder.device),
            Some("virtual=/tmp/gpu 0".to_owned())
        );
        drop(first);
        RunDir::take(&dir, "real").expect("free again");
    }
}
