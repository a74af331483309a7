//! Who made the namespace in which a process is: `ioctl_ns(2)`.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

/// `NS_GET_PARENT`, linux/nsfs.h.
const PARENT: libc::Ioctl = 0xb702;
/// `NS_GET_OWNER_UID`.
const OWNER: libc::Ioctl = 0xb704;
/// Namespaces of one kind lie in each other to this depth at most (`MAX_PID_NS_LEVEL`; 33 of users).
const DEPTH: usize = 34;

/// The namespace of `kind` ("pid", "user") in which the process `pid` is, as seen from this one: the one directly below
/// this process' own in which it lies, however many it made within. None: it is in this process' own.
///
/// # Errors
/// When there is no such process, or it cannot be looked at.
pub fn namespace_below(pid: i32, kind: &str) -> io::Result<Option<Below>> {
    let own = std::fs::metadata(format!("/proc/self/ns/{kind}"))?;
    let is_own = |file: &File| -> io::Result<bool> {
        let its = file.metadata()?;
        Ok((its.dev(), its.ino()) == (own.dev(), own.ino()))
    };
    let mut file = File::open(format!("/proc/{pid}/ns/{kind}"))?;
    if is_own(&file)? {
        return Ok(None);
    }
    for _ in 0..DEPTH {
        let parent = parent(&file)?;
        if is_own(&parent)? {
            let number = file.metadata()?.ino();
            return Ok(Some(Below { file, number }));
        }
        file = parent;
    }
    Err(io::Error::other("it lies too deep"))
}

/// A namespace directly below this process' own.
#[derive(Debug)]
pub struct Below {
    file: File,
    /// Its number, which no other has while it is there.
    pub number: u64,
}

impl Below {
    /// The user who made it, if it is one of users, as this process counts users.
    ///
    /// # Errors
    /// When it is one of something else.
    pub fn owner(&self) -> io::Result<u32> {
        let mut uid: libc::uid_t = u32::MAX;
        // SAFETY: the call writes one user id to `uid`, which lives until it returns.
        let said = unsafe { libc::ioctl(self.file.as_raw_fd(), OWNER, &raw mut uid) };
        if said < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(uid)
    }
}

fn parent(file: &File) -> io::Result<File> {
    // SAFETY: the call takes no argument and returns a descriptor or an error.
    let parent = unsafe { libc::ioctl(file.as_raw_fd(), PARENT) };
    if parent < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made it for this process, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(parent) }.into())
}

/// Groups of who connected, as they were then. The effective one is not among them.
///
/// # Errors
/// When the kernel does not tell (before Linux 4.13).
pub fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    // 65,536 is the most a process has (`NGROUPS_MAX`).
    let mut groups: Vec<libc::gid_t> = vec![0; 32];
    loop {
        let mut bytes = libc::socklen_t::try_from(size_of_val(&*groups)).unwrap_or(0);
        // SAFETY: the kernel writes at most `bytes` bytes to `groups`, and says in `bytes` how many there are.
        let said = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let count = usize::try_from(bytes).unwrap_or(0) / size_of::<libc::gid_t>();
        if said == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    #[test]
    fn this_process_is_in_no_namespace_below_its_own() {
        let own = i32::try_from(std::process::id()).expect("a pid");
        for kind in ["pid", "user"] {
            assert!(namespace_below(own, kind).expect("it is alive").is_none());
        }
    }

    #[test]
    fn whoever_makes_namespaces_in_namespaces_is_the_owner_of_the_first() {
        let sleeps = ["-Ur", "unshare", "-Ur", "sh", "-c", "echo in; sleep 60"];
        let mut command = Command::new("unshare");
        command.args(sleeps).stdout(Stdio::piped());
        let Ok(mut child) = command.spawn() else {
            eprintln!("SKIPPED: no unshare here");
            return;
        };
        let mut word = [0; 2];
        let said = child.stdout.as_mut().expect("it is piped");
        if io::Read::read_exact(said, &mut word).is_err() {
            eprintln!("SKIPPED: no namespace of users may be made");
            return;
        }
        let pid = i32::try_from(child.id()).expect("a pid");
        let below = namespace_below(pid, "user").expect("it is alive");
        let own = std::fs::metadata("/proc/self")
            .expect("it is mounted")
            .uid();
        assert_eq!(below.expect("it made one").owner().expect("of users"), own);
        let _ = child.kill();
        let _ = child.wait();
    }

    #[test]
    fn groups_are_those_of_who_connected() {
        let (one, _other) = UnixStream::pair().expect("sockets");
        let mut said = peer_groups(one.as_fd()).expect("the kernel tells");
        let status = std::fs::read_to_string("/proc/self/status").expect("it is mounted");
        let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
        let words = line.unwrap_or_default().split_whitespace();
        let mut own: Vec<u32> = words.map(|word| word.parse().expect("a number")).collect();
        said.sort_unstable();
        own.sort_unstable();
        assert_eq!(said, own);
    }
}
