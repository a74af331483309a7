//! System calls that no safe wrapper offers in the shape the agent needs: shared mappings, futexes
//! over other processes' pages, credentials and descriptors of socket peers, scheduling class.
//!
//! Together with `rm.rs` this is all of the agent's unsafe code. Mappings are only ever handed out
//! as structs of atomics: another process writes them at any moment, so a plain reference into one
//! would be undefined behaviour.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;
use tidegate_abi::page::Page;

/// `CLOCK_MONOTONIC` in nanoseconds.
#[must_use]
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// `CLOCK_REALTIME` in milliseconds.
#[must_use]
pub fn realtime_ms() -> u64 {
    clock_ns(libc::CLOCK_REALTIME) / 1_000_000
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut at = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `at` is a valid timespec to write to; both clock ids always exist on Linux.
    unsafe { libc::clock_gettime(clock, &raw mut at) };
    at.tv_sec.cast_unsigned() * 1_000_000_000 + at.tv_nsec.cast_unsigned()
}

/// A shared mapping of a whole file, unmapped with this value.
#[derive(Debug)]
struct Mapping {
    at: NonNull<libc::c_void>,
    bytes: usize,
}

impl Mapping {
    fn new(file: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address the kernel chooses touches no memory of ours.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(at).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Self { at, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is ours since `new`, and every reference into it borrows `self`.
        unsafe { libc::munmap(self.at.as_ptr(), self.bytes) };
    }
}

// SAFETY: the mapping is memory shared with other processes already, and it is only reachable as
// atomics, so which of our threads touches it makes no difference.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapping {}

/// One process' shared page as the agent sees it.
#[derive(Debug)]
pub struct SharedPage(Mapping);

impl SharedPage {
    /// Makes a page: a memfd, sized, then sealed so that the other side can neither shrink it under
    /// us (SIGBUS) nor grow it.
    ///
    /// # Errors
    /// When the kernel refuses a memfd, its seals or the mapping.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        use nix::fcntl::{FcntlArg, SealFlag, fcntl};
        use nix::sys::memfd::{MFdFlags, memfd_create};
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd_create(c"tidegate-page", flags)?;
        nix::unistd::ftruncate(&file, Page::BYTES)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        let mapping = Mapping::new(file.as_fd(), tidegate_abi::page::BYTES)?;
        Ok((Self(mapping), file))
    }
}

/// Size of the page as file offsets are typed.
trait PageBytes {
    const BYTES: i64;
}

impl PageBytes for Page {
    const BYTES: i64 = tidegate_abi::page::BYTES as i64;
}

impl std::ops::Deref for SharedPage {
    type Target = Page;

    fn deref(&self) -> &Page {
        // SAFETY: the mapping is BYTES long, page aligned, alive as long as `self`, sealed against
        // shrinking, and `Page` consists of atomics only, for which every bit pattern is valid.
        unsafe { self.0.at.cast::<Page>().as_ref() }
    }
}

/// A file of words that survives this process.
#[derive(Debug)]
pub struct SharedWords {
    mapping: Mapping,
    words: usize,
}

impl SharedWords {
    /// Maps `file`, which must be at least `words` words long and stay so: it lies in the agent's own
    /// directory.
    ///
    /// # Errors
    /// When the file is shorter or cannot be mapped.
    pub fn map(file: BorrowedFd<'_>, words: usize) -> io::Result<Self> {
        let bytes = words * size_of::<u64>();
        let length = nix::sys::stat::fstat(file)?.st_size;
        if length < i64::try_from(bytes).unwrap_or(i64::MAX) {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the file is shorter than its layout",
            ));
        }
        let mapping = Mapping::new(file, bytes)?;
        Ok(Self { mapping, words })
    }
}

impl std::ops::Deref for SharedWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: `map` checked the length, the mapping is page aligned and lives as long as
        // `self`, and any bit pattern is a valid AtomicU64.
        unsafe { std::slice::from_raw_parts(self.mapping.at.cast().as_ptr(), self.words) }
    }
}

fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// Wakes every waiter on a shared futex.
pub fn futex_wake(word: &AtomicU32) {
    // SAFETY: FUTEX_WAKE reads nothing but the address of `word`, which is valid.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, c_int::MAX) };
}

/// Wakes every waiter on the low half of a word of 64 bits.
pub fn futex_wake_low(word: &AtomicU64) {
    // SAFETY: as `futex_wake`; on a little-endian machine the low half lies at the word's address.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, c_int::MAX) };
}

/// Sleeps while `word` is `expected`, at most for `limit`. Wakes spuriously.
pub fn futex_wait(word: &AtomicU32, expected: u32, limit: Option<Duration>) {
    let limit = limit.map(timespec);
    let limit = limit
        .as_ref()
        .map_or(std::ptr::null(), std::ptr::from_ref::<libc::timespec>);
    // SAFETY: the kernel only reads `word`, and `limit` is null or a timespec that outlives the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            expected,
            limit,
        )
    };
}

/// Words one `futex_waitv` takes.
pub const WAITV_MAX: usize = 128;

/// The set of futex words one thread sleeps on, kept between calls so that a wait allocates nothing.
#[derive(Debug, Default)]
pub struct WaitSet(Vec<Waiter>);

/// `struct futex_waitv` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Waiter {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

/// `FUTEX2_SIZE_U32`, without the private flag: the words are shared between processes.
const FUTEX_32: u32 = 2;

impl WaitSet {
    /// A set that holds `WAITV_MAX` words without growing.
    #[must_use]
    pub fn new() -> Self {
        Self(Vec::with_capacity(WAITV_MAX))
    }

    /// Empties the set.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Adds a word that is waited on while it holds `expected`; false when the set is full.
    pub fn push(&mut self, word: &AtomicU32, expected: u32) -> bool {
        if self.0.len() == WAITV_MAX {
            return false;
        }
        self.0.push(Waiter {
            value: u64::from(expected),
            address: word.as_ptr() as u64,
            flags: FUTEX_32,
            reserved: 0,
        });
        true
    }

    /// Sleeps until one of the words is woken or differs, or `deadline_ns` (monotonic) passed.
    /// Wakes spuriously. A word whose memory is gone makes the call fail at once, not crash.
    ///
    /// # Errors
    /// `ENOSYS` before Linux 5.16; `EFAULT` for a word whose memory is gone.
    pub fn wait(&self, deadline_ns: u64) -> io::Result<()> {
        let deadline = timespec(Duration::from_nanos(deadline_ns));
        // SAFETY: the array and the timespec outlive the call; the addresses are only read by the
        // kernel, which answers EFAULT for one that is not mapped.
        let woken = unsafe {
            libc::syscall(
                libc::SYS_futex_waitv,
                self.0.as_ptr(),
                self.0.len(),
                0,
                &raw const deadline,
                libc::CLOCK_MONOTONIC,
            )
        };
        if woken >= 0 {
            return Ok(());
        }
        match io::Error::last_os_error() {
            error
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EAGAIN | libc::ETIMEDOUT | libc::EINTR)
                ) =>
            {
                Ok(())
            }
            error => Err(error),
        }
    }
}

/// Whether this kernel has `futex_waitv`.
#[must_use]
pub fn has_futex_waitv() -> bool {
    let word = AtomicU32::new(0);
    let mut set = WaitSet::new();
    set.push(&word, 1);
    set.wait(0).is_ok()
}

/// Whether this kernel does the barrier that a library counts launches with.
///
/// # Errors
/// `ENOSYS` or `EPERM` from a sandbox; `ENOTSUP` when the kernel has the call, but not this barrier.
pub fn query_membarrier() -> io::Result<()> {
    const QUERY: c_int = 0;
    const PRIVATE_EXPEDITED: i64 = 1 << 3;
    // SAFETY: a query takes no address and changes nothing.
    match unsafe { libc::syscall(libc::SYS_membarrier, QUERY, 0, 0) } {
        commands if commands < 0 => Err(io::Error::last_os_error()),
        commands if commands & PRIVATE_EXPEDITED == 0 => {
            Err(io::Error::from_raw_os_error(libc::ENOTSUP))
        }
        _ => Ok(()),
    }
}

/// How wide the terminal on standard output is; None: it is no terminal, or does not say.
#[must_use]
pub fn terminal_columns() -> Option<u16> {
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: TIOCGWINSZ writes one winsize, and `size` is one.
    let result = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) };
    (result == 0 && size.ws_col > 0).then_some(size.ws_col)
}

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

/// Asks for SCHED_FIFO at `priority` for the calling thread.
///
/// # Errors
/// Usually EPERM: the agent then runs on as it is.
pub fn schedule_fifo(priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: thread 0 is the caller, and `parameters` outlives the call.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// A descriptor that became ours by a system call.
fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: callers pass a descriptor that the kernel has just made for this process and that
    // nobody else closes.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A descriptor that this process was started with, which only [`crate::activation`] asks for, once.
#[must_use]
pub fn passed_descriptor(fd: RawFd) -> OwnedFd {
    // SAFETY: the service manager opened it for us, and nothing else in the process knows of it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// `SO_PEERPIDFD`, Linux 6.5.
const SO_PEERPIDFD: c_int = 77;

/// A pidfd of the process that connected `socket`: names that process even after its id is reused.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 6.5; `ESRCH` or `EINVAL` when the process is gone already.
pub fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut fd: c_int = -1;
    let mut length = libc::socklen_t::try_from(size_of::<c_int>()).unwrap_or(4);
    // SAFETY: `fd` and `length` are valid for writes of the sizes they announce.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(owned(fd))
}

/// `pidfd_open`.
///
/// # Errors
/// `ESRCH` when there is no such process.
pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes two integers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    match RawFd::try_from(fd) {
        Ok(fd) if fd >= 0 => Ok(owned(fd)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A copy of descriptor `fd` of the process `pidfd` names.
///
/// # Errors
/// `EPERM` without the right to trace it, `EBADF`, `ESRCH`.
pub fn pidfd_getfd(pidfd: BorrowedFd<'_>, fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: takes three integers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), fd, 0) };
    match RawFd::try_from(fd) {
        Ok(fd) if fd >= 0 => Ok(owned(fd)),
        _ => Err(io::Error::last_os_error()),
    }
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

/// Reads the first bytes without taking them.
///
/// # Errors
/// As `recv`; `WouldBlock` when nothing is there.
pub fn peek(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<usize> {
    use nix::sys::socket::{MsgFlags, recv};
    Ok(recv(socket.as_raw_fd(), bytes, MsgFlags::MSG_PEEK)?)
}

/// Takes `bytes.len()` bytes and at most four descriptors, which are closed on exec. Says whether
/// descriptors were lost on the way.
///
/// # Errors
/// As `recvmsg`.
pub fn receive_with_descriptors(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> io::Result<(usize, Vec<OwnedFd>, bool)> {
    use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
    let mut space = nix::cmsg_space!([RawFd; 4]);
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

/// Whether the process `pidfd` names has ended.
#[must_use]
pub fn pidfd_ended(pidfd: BorrowedFd<'_>) -> bool {
    let mut poll = libc::pollfd {
        fd: pidfd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid pollfd, no waiting.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
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
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_page_can_neither_be_shrunk_nor_grown() {
        let (page, file) = SharedPage::create().expect("memfds exist");
        page.header.session.store(7, Ordering::Relaxed);
        assert!(nix::unistd::ftruncate(&file, 0).is_err());
        assert!(nix::unistd::ftruncate(&file, 8192).is_err());
        assert_eq!(page.header.session.load(Ordering::Relaxed), 7);
    }

    #[test]
    fn a_wait_returns_at_once_when_a_word_has_changed_and_at_its_deadline_otherwise() {
        let word = AtomicU32::new(5);
        let mut set = WaitSet::new();
        assert!(set.push(&word, 4));
        set.wait(monotonic_ns() + 60_000_000_000)
            .expect("futex_waitv exists here");
        set.clear();
        set.push(&word, 5);
        let before = monotonic_ns();
        set.wait(before + 2_000_000)
            .expect("futex_waitv exists here");
        assert!(monotonic_ns() >= before + 2_000_000);
    }

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

    #[test]
    fn a_peer_is_named_by_a_pidfd() {
        let (left, _right) = std::os::unix::net::UnixStream::pair().expect("sockets exist");
        if let Ok(pidfd) = peer_pidfd(left.as_fd()) {
            assert!(!pidfd_ended(pidfd.as_fd()));
        }
    }
}
