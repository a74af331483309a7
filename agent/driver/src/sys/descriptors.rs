//! Descriptors: of processes, of this process' sockets, and copies of other processes' own.

use std::ffi::c_long;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Raises the soft limit of open files to the hard one: every attached process takes two.
///
/// # Errors
/// The kernel's, or that of a filter which does not let limits be changed.
pub fn raise_descriptor_limit() -> io::Result<()> {
    let kind = nix::sys::resource::Resource::RLIMIT_NOFILE;
    let (soft, hard) = nix::sys::resource::getrlimit(kind)?;
    if soft < hard {
        nix::sys::resource::setrlimit(kind, hard, hard)?;
    }
    Ok(())
}

/// How many files may be open at once; 1,024, the least that systems allow, where the kernel does not say.
#[must_use]
pub fn descriptor_limit() -> usize {
    let kind = nix::sys::resource::Resource::RLIMIT_NOFILE;
    let soft = nix::sys::resource::getrlimit(kind).map_or(1_024, |(soft, _)| soft);
    usize::try_from(soft).unwrap_or(usize::MAX)
}

/// A descriptor that became ours by a system call.
fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: callers pass a descriptor that the kernel has just made for this process and that
    // nobody else closes.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// What a system call that makes a descriptor has returned.
fn made(returned: c_long) -> io::Result<OwnedFd> {
    match RawFd::try_from(returned) {
        Ok(fd) if fd >= 0 => Ok(owned(fd)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A descriptor that this process was started with. Only who activates its sockets asks for it, once.
#[must_use]
pub fn passed_descriptor(fd: RawFd) -> OwnedFd {
    // SAFETY: the service manager opened it for us, and nothing else in the process knows of it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A pidfd of the process that connected `socket`: names that process even after its id is reused.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 6.5; `ESRCH` or `EINVAL` when the process is gone already.
pub fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    use nix::sys::socket::{getsockopt, sockopt};
    Ok(getsockopt(&socket, sockopt::PeerPidfd)?)
}

/// `pidfd_open`.
///
/// # Errors
/// `ESRCH` when there is no such process.
pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes two integers.
    made(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })
}

/// A copy of descriptor `fd` of the process `pidfd` names.
///
/// # Errors
/// `EPERM` without the right to trace it, `EBADF`, `ESRCH`.
pub fn pidfd_getfd(pidfd: BorrowedFd<'_>, fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: takes three integers.
    made(unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), fd, 0) })
}

/// Sends `bytes` with `descriptors`; a short write of so few bytes is an error.
///
/// # Errors
/// As `sendmsg`; `WouldBlock` on a full non-blocking socket.
pub fn send_with_descriptors(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &[][..] } else { &rights };
    let sent = sendmsg::<()>(
        socket.as_raw_fd(),
        &[io::IoSlice::new(bytes)],
        control,
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    if sent == bytes.len() {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::WriteZero, "short greeting"))
    }
}

/// Has out-of-band data of a socket delivered in line with everything else. Otherwise no read returns such a byte, and the
/// kernel drops it, with the files that came with it, inside whichever call comes to it first.
///
/// # Errors
/// As `setsockopt`.
pub fn deliver_in_line(socket: BorrowedFd<'_>) -> io::Result<()> {
    use nix::sys::socket::{setsockopt, sockopt};
    Ok(setsockopt(&socket, sockopt::OobInline, &true)?)
}

/// Reads the first bytes without taking them.
///
/// # Errors
/// As `recv`; `WouldBlock` when nothing is there.
pub fn peek(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<usize> {
    use nix::sys::socket::{MsgFlags, recv};
    Ok(recv(socket.as_raw_fd(), bytes, MsgFlags::MSG_PEEK)?)
}

/// Takes bytes with which no files come, as many as are there.
///
/// # Errors
/// As `recv`; `InvalidData` when files come with the bytes, or right behind them: all are left where they are.
pub fn receive_plain(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<usize> {
    use nix::sys::socket::{MsgFlags, recv, recvmsg};
    // A look without room for files takes none, and says whether there were any. What it looked at stays what it is.
    let mut slices = [io::IoSliceMut::new(bytes)];
    let seen = recvmsg::<()>(socket.as_raw_fd(), &mut slices, None, MsgFlags::MSG_PEEK)?;
    let (there, files) = (seen.bytes, seen.flags.contains(MsgFlags::MSG_CTRUNC));
    if files {
        let text = "a file where none belongs";
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    if there == 0 {
        return Ok(0);
    }
    Ok(recv(
        socket.as_raw_fd(),
        &mut bytes[..there],
        MsgFlags::empty(),
    )?)
}

/// How many files wait on a Unix socket to be received. None: this kernel does not say (Linux 5.6 does).
///
/// # Errors
/// When `/proc` cannot be read.
pub fn files_waiting(socket: BorrowedFd<'_>) -> io::Result<Option<usize>> {
    let about = format!("/proc/self/fdinfo/{}", socket.as_raw_fd());
    let about = std::fs::read_to_string(about)?;
    let files = about
        .lines()
        .find_map(|line| line.strip_prefix("scm_fds:"))
        .and_then(|count| count.trim().parse().ok());
    Ok(files)
}

/// Gives this thread a descriptor table of its own, with standard input and outputs and `kept` in it. Threads that it makes
/// share that table.
///
/// # Errors
/// As `unshare`, which a filter may refuse; when `/proc` cannot be read.
pub fn own_descriptors(kept: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the other threads go on with the table that they have, and nothing in it is closed.
    if unsafe { libc::unshare(libc::CLONE_FILES) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let entries = std::fs::read_dir("/proc/thread-self/fd")?;
    let open: Vec<RawFd> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|&fd| fd > 2 && fd != kept.as_raw_fd())
        .collect();
    for fd in open {
        // SAFETY: a copy in this thread's own table, of which no value here knows.
        unsafe { libc::close(fd) };
    }
    Ok(())
}

/// Takes `bytes.len()` bytes and all descriptors that come with them, as many as one message may bring
/// (`SCM_MAX_FD`), which are closed on exec. Says whether descriptors were lost on the way: there was no room for them
/// in this process.
///
/// # Errors
/// As `recvmsg`.
pub fn receive_with_descriptors(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> io::Result<(usize, Vec<OwnedFd>, bool)> {
    use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
    let mut space = nix::cmsg_space!([RawFd; 253]);
    let mut slices = [io::IoSliceMut::new(bytes)];
    let message = recvmsg::<()>(
        socket.as_raw_fd(),
        &mut slices,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )?;
    let mut descriptors = Vec::new();
    let truncated = message.flags.contains(MsgFlags::MSG_CTRUNC);
    if let Ok(messages) = message.cmsgs() {
        for control in messages {
            if let ControlMessageOwned::ScmRights(fds) = control {
                descriptors.extend(fds.into_iter().map(owned));
            }
        }
    }
    Ok((message.bytes, descriptors, truncated))
}

/// Sends `signal` to the process `pidfd` names.
///
/// # Errors
/// As `pidfd_send_signal`.
pub fn pidfd_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let no_details = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: takes integers and no details.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            no_details,
            0,
        )
    };
    if sent == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Whether the process `pidfd` names has ended.
#[must_use]
pub fn pidfd_ended(pidfd: BorrowedFd<'_>) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut ended = [PollFd::new(pidfd, PollFlags::POLLIN)];
    poll(&mut ended, PollTimeout::ZERO) == Ok(1)
}

/// The device number of a character device, or None for any other file.
#[must_use]
pub fn character_device(file: BorrowedFd<'_>) -> Option<(u32, u32)> {
    let stat = nix::sys::stat::fstat(file).ok()?;
    let character = stat.st_mode & libc::S_IFMT == libc::S_IFCHR;
    character.then(|| (libc::major(stat.st_rdev), libc::minor(stat.st_rdev)))
}

#[cfg(test)]
mod tests {
    use super::super::shared::SharedPage;
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn descriptors_travel_with_their_bytes() {
        let (left, right) = std::os::unix::net::UnixStream::pair().expect("sockets exist");
        let (_page, file) = SharedPage::create().expect("memfds exist");
        send_with_descriptors(left.as_fd(), b"0123456789abcdef", &[file.as_fd()]).expect("room");
        let mut bytes = [0; 16];
        assert_eq!(peek(right.as_fd(), &mut bytes).expect("bytes wait"), 16);
        let (taken, descriptors, truncated) =
            receive_with_descriptors(right.as_fd(), &mut bytes).expect("bytes wait");
        assert_eq!((taken, descriptors.len(), truncated), (16, 1, false));
    }

    /// P-SECURITY-12: files that strangers pass where none belongs take no descriptor and no thread of the agent's.
    #[test]
    fn bytes_with_files_are_left_where_they_are_and_counted() {
        let (left, right) = std::os::unix::net::UnixStream::pair().expect("sockets exist");
        let (_page, file) = SharedPage::create().expect("memfds exist");
        send_with_descriptors(left.as_fd(), b"plain", &[]).expect("room");
        let mut bytes = [0; 5];
        let taken = receive_plain(right.as_fd(), &mut bytes).expect("no files come with these");
        assert_eq!((taken, &bytes), (5, b"plain"));
        send_with_descriptors(left.as_fd(), b"files", &[file.as_fd(); 7]).expect("room");
        for _ in 0..2 {
            let refused = receive_plain(right.as_fd(), &mut bytes).expect_err("files come");
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
            assert_eq!(files_waiting(right.as_fd()).expect("/proc"), Some(7));
        }
        drop(left);
        let (taken, files, _) = receive_with_descriptors(right.as_fd(), &mut bytes).expect("there");
        assert_eq!((taken, files.len()), (5, 7));
        assert_eq!(receive_plain(right.as_fd(), &mut bytes).expect("end"), 0);
    }

    #[test]
    fn a_peer_is_named_by_a_pidfd() {
        let (left, _right) = std::os::unix::net::UnixStream::pair().expect("sockets exist");
        if let Ok(pidfd) = peer_pidfd(left.as_fd()) {
            assert!(!pidfd_ended(pidfd.as_fd()));
        }
    }
}
