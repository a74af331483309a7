//! The agent's directory: one agent at a time, its generation, its sockets.
//!
//! Whoever holds the lock on `agent.lock` is the node's agent. Only the agent's user can open that file: anybody who may
//! open a file may lock it, and so keep every agent from starting. A second file, `agent`, which everybody may read, says
//! who the agent is, for another one to name, and which device it drives, for `tidegate release` to speak to the same one.
//! It is not believed when a process is to be signalled: `/proc/locks` says who holds the lock. Versions before 0.2 use
//! one file for both, `lock`. It is held and written as well, so that an agent of such a version and this one know each
//! other.

use crate::sys;
use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Name of the lock file.
const LOCK: &str = "agent.lock";
/// Name of the file that versions before 0.2 lock, and in which they say who holds it.
const EARLIER: &str = "lock";
/// Name of the file that says who holds the lock.
const HOLDER: &str = "agent";
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
    /// Another agent, on another directory, drives the same device.
    #[error("{}; end one of the two: each enables what the other disables", drives(.device, .holder))]
    Drives {
        /// Which, as `--device` names it.
        device: String,
        /// Process and directory of that agent, where it says them.
        holder: Option<(i32, PathBuf)>,
    },
    /// The file system refuses.
    #[error("cannot prepare {path}")]
    Prepare {
        /// What.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl RunDirError {
    /// Another agent has what this one asks for.
    #[must_use]
    pub const fn is_held(&self) -> bool {
        matches!(self, Self::Held(..) | Self::Drives { .. })
    }
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

fn drives(device: &str, holder: &Option<(i32, PathBuf)>) -> String {
    match holder {
        Some((pid, dir)) => format!(
            "tidegate-agent {pid} already drives device '{device}', from {}",
            dir.display()
        ),
        None => format!("another tidegate-agent already drives device '{device}'"),
    }
}

/// The directory, held.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    _lock: Flock<File>,
    earlier: Flock<File>,
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
        let (lock, earlier) = (path.join(LOCK), path.join(EARLIER));
        let held = || RunDirError::Held(path.to_owned(), holder(path));
        let own = lock_at(&lock).map_err(prepare(&lock))?.ok_or_else(held)?;
        let both = lock_earlier_at(&earlier).map_err(prepare(&earlier))?;
        let mut held = Self {
            path: path.to_owned(),
            _lock: own,
            earlier: both.ok_or_else(held)?,
            device: device.to_owned(),
        };
        held.sign(0)?;
        Ok(held)
    }

    /// Writes who holds the lock, for everybody to read and where earlier versions look.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn sign(&mut self, generation: u64) -> Result<(), RunDirError> {
        let line = format!("{} {generation} {}\n", std::process::id(), self.device);
        let prepare = |name: &str| {
            let path = self.path.join(name);
            move |source| RunDirError::Prepare { path, source }
        };
        let write = |file: &mut File| {
            file.set_len(0)?;
            file.rewind()?;
            file.write_all(line.as_bytes())
        };
        let failed = prepare(EARLIER);
        write(&mut self.earlier).map_err(failed)?;
        // Who cannot read it is told less. No agent ends for that: the directory may be full.
        let place = self.path.join(HOLDER);
        let readable = open_as(&place, 0o644).and_then(|mut file| write(&mut file));
        if let Err(error) = readable {
            tracing::warn!(%error, file = %place.display(), "cannot write the file that names the agent");
        }
        Ok(())
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
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

/// Takes the lock of the file at `path`, which only this user can open; None while another process holds it.
pub(super) fn lock_at(path: &Path) -> io::Result<Option<Flock<File>>> {
    match Flock::lock(open_lock(path)?, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, errno)) => Err(errno.into()),
    }
}

/// The same for the file that earlier versions lock, which they left open to everybody. Such a file is replaced, unless a
/// process of this user holds its lock: that is an agent of such a version. Whoever else does keeps a file without a name.
///
/// Only who holds [`LOCK`] calls it.
fn lock_earlier_at(path: &Path) -> io::Result<Option<Flock<File>>> {
    let file = open_lock(path)?;
    if file.metadata()?.mode() & 0o077 == 0 {
        drop(file);
        return lock_at(path);
    }
    // Keeps out an earlier version that starts at this moment, where no stranger does so already.
    let _held = Flock::lock(file.try_clone()?, FlockArg::LockExclusiveNonblock);
    if keepers(&file)?.iter().any(|pid| *pid != own_pid()) {
        return Ok(None);
    }
    let beside = path.with_extension("new");
    match std::fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let Some(lock) = lock_at(&beside)? else {
        return Ok(None);
    };
    std::fs::rename(&beside, path)?;
    let late = keepers(&file)?.iter().any(|pid| *pid != own_pid());
    Ok((!late).then_some(lock))
}

fn open_lock(path: &Path) -> io::Result<File> {
    open_as(path, 0o600)
}

/// Opens a file to write it, or makes it with `mode`.
fn open_as(path: &Path, mode: u32) -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(mode)
        .open(path)
}

fn own_pid() -> i32 {
    nix::unistd::getpid().as_raw()
}

/// Processes of this user that hold the lock of `file`, as the kernel says.
fn keepers(file: &File) -> io::Result<Vec<i32>> {
    let (metadata, own) = (file.metadata()?, nix::unistd::geteuid().as_raw());
    let (major, minor) = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
    let name = format!("{major:02x}:{minor:02x}:{}", metadata.ino());
    let locks = std::fs::read_to_string("/proc/locks")?;
    let lockers = locks.lines().filter_map(|line| locker(line, &name));
    Ok(lockers
        .filter(|pid| {
            std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|process| process.uid() == own)
        })
        .collect())
}

/// Who holds the lock of `file`, by a line of `/proc/locks`. One who waits for it (`->`) does not.
fn locker(line: &str, file: &str) -> Option<i32> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    match words[..] {
        [_, "FLOCK", _, _, pid, of, ..] if of == file => pid.parse().ok(),
        _ => None,
    }
}

/// Asks the agent of `dir` to hand over to this one; whether there is one to ask.
///
/// # Errors
/// When the kernel does not say who holds the lock.
pub fn ask_to_hand_over(dir: &Path) -> io::Result<bool> {
    // Which an agent of an earlier version holds, too.
    let file = File::open(dir.join(EARLIER))?;
    let mut asked = false;
    for pid in keepers(&file)? {
        // From here on the descriptor names that process, and nobody who gets its number later.
        let Ok(process) = sys::pidfd_open(pid) else {
            continue;
        };
        if keepers(&file)?.contains(&pid) {
            asked |= sys::pidfd_signal(process.as_fd(), libc::SIGUSR1).is_ok();
        }
    }
    Ok(asked)
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
    // An earlier version that runs writes only the second; where it ran last, that one is newer.
    let newest = [HOLDER, EARLIER].into_iter().filter_map(|name| {
        let file = File::open(dir.join(name)).ok()?;
        Some((file.metadata().ok()?.modified().ok()?, file))
    });
    let (_, file) = newest.max_by_key(|(written, _)| *written)?;
    file.take(4_096).read_to_string(&mut text).ok()?;
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
        std::fs::remove_dir_all(&dir).expect("made above");
    }

    /// P-SECURITY-10: no file that a stranger can open keeps an agent from starting.
    #[test]
    fn who_holds_a_lock_is_read_from_the_kernels_list() {
        let line = "7: FLOCK  ADVISORY  WRITE 2254 fe:00:5325103 0 EOF";
        assert_eq!(locker(line, "fe:00:5325103"), Some(2254));
        assert_eq!(locker(line, "fe:00:532510"), None);
        let waits = "7: -> FLOCK  ADVISORY  WRITE 2255 fe:00:5325103 0 EOF";
        assert_eq!(locker(waits, "fe:00:5325103"), None);
        let other = "8: POSIX  ADVISORY  WRITE 2256 fe:00:5325103 0 EOF";
        assert_eq!(locker(other, "fe:00:5325103"), None);
    }
}
