//! System calls of the device process, each in a shape that is safe to use.

use std::ffi::CStr;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use tidegate_vgpu::clock::timespec;

/// Turns `-1` into the last error.
pub(crate) fn check(rc: libc::c_int) -> io::Result<libc::c_int> {
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(rc)
    }
}

/// Memory that clients can map: a memfd.
#[derive(Clone, Debug)]
pub(crate) struct Memfd {
    pub(crate) fd: Arc<OwnedFd>,
    pub(crate) bytes: u64,
}

impl Memfd {
    pub(crate) fn new(name: &CStr, bytes: u64) -> io::Result<Self> {
        // SAFETY: `name` is a C string.
        let fd = check(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) })?;
        // SAFETY: memfd_create gave a descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: plain system call.
        check(unsafe { libc::ftruncate(fd.as_raw_fd(), bytes as libc::off_t) })?;
        Ok(Self {
            fd: Arc::new(fd),
            bytes,
        })
    }

    /// Gives a range back to the system; it then reads as zero.
    pub(crate) fn punch(&self, offset: u64, bytes: u64) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (offset, bytes) = (offset as libc::off_t, bytes as libc::off_t);
        // SAFETY: plain system call on our own descriptor.
        unsafe { libc::fallocate(self.fd.as_raw_fd(), mode, offset, bytes) };
    }

    /// Writes `byte` over a range.
    pub(crate) fn fill(&self, offset: u64, bytes: u64, byte: u8) {
        let piece = [byte; 64 * 1024];
        let mut done = 0;
        while done < bytes {
            let length = (bytes - done).min(piece.len() as u64) as usize;
            let at = (offset + done) as libc::off_t;
            // SAFETY: plain system call on our own descriptor, from a live buffer of that length.
            let wrote =
                unsafe { libc::pwrite(self.fd.as_raw_fd(), piece.as_ptr().cast(), length, at) };
            if wrote <= 0 {
                return;
            }
            done += wrote as u64;
        }
    }

    pub(crate) fn map(&self) -> io::Result<Mapping> {
        let bytes = self.bytes as usize;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let fd = self.fd.as_raw_fd();
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, libc::MAP_SHARED, fd, 0) };
        match NonNull::new(at.cast::<u8>()) {
            Some(at) if at.as_ptr().cast() != libc::MAP_FAILED => Ok(Mapping { at, bytes }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// A shared mapping of a whole [`Memfd`]. Clients write to it at any time, so only atomics and
/// volatile copies look inside.
#[derive(Debug)]
pub(crate) struct Mapping {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process; access is by atomics and volatile copies.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// The `T` at `offset`, if it lies inside and is aligned. `T` must be made of atomics only.
    pub(crate) fn at<T: Shared>(&self, offset: usize) -> Option<&T> {
        let inside = offset.checked_add(mem::size_of::<T>())? <= self.bytes;
        if !inside || !offset.is_multiple_of(mem::align_of::<T>()) {
            return None;
        }
        // SAFETY: inside the mapping, aligned (mappings are page-aligned), and `Shared` says that
        // any bytes are a `T` that others may change.
        Some(unsafe { &*self.at.as_ptr().add(offset).cast::<T>() })
    }

    /// A copy of the plain `T` at `offset`, which must lie inside.
    pub(crate) fn copy<T: Plain>(&self, offset: usize) -> Option<T> {
        if offset.checked_add(mem::size_of::<T>())? > self.bytes {
            return None;
        }
        // SAFETY: inside the mapping; `Plain` says that any bytes are a `T`.
        Some(unsafe { self.at.as_ptr().add(offset).cast::<T>().read_volatile() })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no borrow of it outlives `self`.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

/// Types made of atomics, so that others may write them while we look.
///
/// # Safety
///
/// Every field is an atomic or padding.
pub(crate) unsafe trait Shared {}
// SAFETY: atomics and padding.
unsafe impl Shared for tidegate_vgpu::ring::Ring {}
// SAFETY: atomics.
unsafe impl Shared for tidegate_vgpu::ring::Usermode {}
// SAFETY: atomics.
unsafe impl Shared for tidegate_vgpu::ring::Semaphore {}

/// Types for which any bytes are a value.
///
/// # Safety
///
/// No invalid bit patterns, no pointers that somebody follows.
pub(crate) unsafe trait Plain: Copy {}
// SAFETY: integers only.
unsafe impl Plain for tidegate_vgpu::ring::Entry {}

/// Wakes everybody who waits on `word`.
pub(crate) fn futex_wake(word: *const AtomicU32) {
    // SAFETY: the kernel checks the address; waking has no other effect.
    unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX) };
}

/// The low half of a 64-bit word, which is what a futex waits on.
pub(crate) const fn low_half(word: &std::sync::atomic::AtomicU64) -> *const AtomicU32 {
    std::ptr::from_ref(word).cast()
}

/// Waits until `word` is woken or differs from `expected`, at most `timeout_ns`.
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>) {
    let time = timespec(timeout_ns.unwrap_or(0));
    let time = if timeout_ns.is_some() {
        &raw const time
    } else {
        std::ptr::null()
    };
    // SAFETY: `word` is alive, `time` is NULL or a valid relative timeout.
    unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, expected, time) };
}

/// Lets timers of the calling thread fire when they are due, not up to 50 us later.
pub(crate) fn precise_timers() {
    // SAFETY: plain system call.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
}

fn transfer(write: bool, pid: u32, address: u64, buffer: *mut u8, bytes: usize) -> Result<(), i32> {
    let mut done = 0;
    while done < bytes {
        let local = libc::iovec {
            iov_base: buffer.wrapping_add(done).cast(),
            iov_len: bytes - done,
        };
        let remote = libc::iovec {
            iov_base: address.wrapping_add(done as u64) as *mut libc::c_void,
            iov_len: bytes - done,
        };
        let pid = pid as libc::pid_t;
        // SAFETY: `local` lies in a buffer that the caller owns; the kernel checks `remote`.
        let moved = unsafe {
            if write {
                libc::process_vm_writev(pid, &raw const local, 1, &raw const remote, 1, 0)
            } else {
                libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0)
            }
        };
        if moved <= 0 {
            let error = io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EFAULT);
            return Err(if moved == 0 { libc::EFAULT } else { error });
        }
        done += moved as usize;
    }
    Ok(())
}

/// Copies from the memory of process `pid`; an `errno` on failure.
pub(crate) fn read_process(pid: u32, address: u64, into: &mut [u8]) -> Result<(), i32> {
    transfer(false, pid, address, into.as_mut_ptr(), into.len())
}

/// Copies into the memory of process `pid`; an `errno` on failure.
pub(crate) fn write_process(pid: u32, address: u64, from: &[u8]) -> Result<(), i32> {
    transfer(true, pid, address, from.as_ptr().cast_mut(), from.len())
}

/// Copies 64-bit words from scattered addresses of process `pid`; an `errno` on failure.
pub(crate) fn read_words(pid: u32, at: &[u64]) -> Result<Vec<u64>, i32> {
    let mut words = vec![0; at.len()];
    scatter(false, pid, at, words.as_mut_ptr())?;
    Ok(words)
}

/// Copies 64-bit words to scattered addresses of process `pid`; an `errno` on failure.
pub(crate) fn write_words(pid: u32, at: &[u64], words: &[u64]) -> Result<(), i32> {
    assert_eq!(at.len(), words.len(), "an address for each word");
    scatter(true, pid, at, words.as_ptr().cast_mut())
}

/// `words` has as many words as `at`, and is written to only when reading the process.
fn scatter(write: bool, pid: u32, at: &[u64], words: *mut u64) -> Result<(), i32> {
    const AT_ONCE: usize = 1024;
    let pid = pid as libc::pid_t;
    for (number, piece) in at.chunks(AT_ONCE).enumerate() {
        let remote: Vec<libc::iovec> = piece
            .iter()
            .map(|address| libc::iovec {
                iov_base: *address as *mut libc::c_void,
                iov_len: 8,
            })
            .collect();
        let local = libc::iovec {
            iov_base: words.wrapping_add(number * AT_ONCE).cast(),
            iov_len: 8 * piece.len(),
        };
        let count = piece.len() as libc::c_ulong;
        // SAFETY: `local` lies in the caller's words; the kernel checks `remote`.
        let moved = unsafe {
            if write {
                libc::process_vm_writev(pid, &raw const local, 1, remote.as_ptr(), count, 0)
            } else {
                libc::process_vm_readv(pid, &raw const local, 1, remote.as_ptr(), count, 0)
            }
        };
        if moved != (8 * piece.len()) as isize {
            // Less than asked for: the next address is not mapped.
            let error = io::Error::last_os_error().raw_os_error();
            return Err(error.filter(|_| moved < 0).unwrap_or(libc::EFAULT));
        }
    }
    Ok(())
}

/// A listening SEQPACKET socket at `path`.
pub(crate) fn listen(path: &std::path::Path) -> io::Result<OwnedFd> {
    use std::os::unix::ffi::OsStrExt;
    let bytes = path.as_os_str().as_bytes();
    // SAFETY: an all-zero sockaddr_un is valid.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    if bytes.len() >= address.sun_path.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (place, byte) in address.sun_path.iter_mut().zip(bytes) {
        *place = *byte as libc::c_char;
    }
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: plain system call.
    let fd = check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
    // SAFETY: a fresh descriptor.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let size = mem::size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: `address` is a NUL-terminated sockaddr_un.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size) })?;
    // SAFETY: plain system call.
    check(unsafe { libc::listen(fd.as_raw_fd(), 4096) })?;
    Ok(fd)
}

/// Accepts one connection, whose messages will carry their sender's credentials.
pub(crate) fn accept(listener: RawFd) -> io::Result<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: NULL addresses are allowed.
    let fd = check(unsafe {
        libc::accept4(listener, std::ptr::null_mut(), std::ptr::null_mut(), flags)
    })?;
    // SAFETY: a fresh descriptor.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let on: libc::c_int = 1;
    let size = mem::size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `on` is an int of `size` bytes.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PASSCRED,
            (&raw const on).cast(),
            size,
        )
    })?;
    Ok(fd)
}

/// The process that connected.
pub(crate) fn peer_pid(fd: RawFd) -> u32 {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut size = mem::size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `credentials` has the size given.
    unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut size,
        );
    }
    credentials.pid as u32
}

/// The inode behind a descriptor: for a socket, unique while it lives.
pub(crate) fn inode(fd: RawFd) -> Option<u64> {
    // SAFETY: an all-zero stat is valid, and fstat fills it.
    let mut stat: libc::stat = unsafe { mem::zeroed() };
    // SAFETY: `stat` is writable.
    (unsafe { libc::fstat(fd, &raw mut stat) } == 0).then_some(stat.st_ino)
}

/// What one `recvmsg` brought.
#[derive(Debug, Default)]
pub(crate) struct Received {
    pub(crate) bytes: usize,
    pub(crate) descriptors: Vec<OwnedFd>,
    pub(crate) pid: Option<u32>,
}

#[repr(C, align(8))]
struct ControlSpace([u8; 256]);

/// Receives one message. `Ok(None)`: nothing there now; `bytes == 0`: the peer is gone.
pub(crate) fn receive(fd: RawFd, buffer: &mut [u8]) -> io::Result<Option<Received>> {
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let mut space = ControlSpace([0; 256]);
    // SAFETY: an all-zero msghdr is valid.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut space).cast();
    message.msg_controllen = 256;
    // SAFETY: `message` points at live buffers.
    let got = unsafe { libc::recvmsg(fd, &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    if got < 0 {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => Ok(None),
            _ => Err(error),
        };
    }
    let mut received = Received {
        bytes: got as usize,
        ..Received::default()
    };
    // SAFETY: recvmsg filled the control space; the CMSG macros walk inside it, and each
    // descriptor in SCM_RIGHTS is fresh and ours.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(&raw const message);
        while !control.is_null() {
            let data = libc::CMSG_DATA(control);
            let bytes = (*control).cmsg_len - libc::CMSG_LEN(0) as usize;
            if (*control).cmsg_level == libc::SOL_SOCKET {
                match (*control).cmsg_type {
                    libc::SCM_RIGHTS => {
                        for index in 0..bytes / mem::size_of::<RawFd>() {
                            let fd = data.cast::<RawFd>().add(index).read_unaligned();
                            received.descriptors.push(OwnedFd::from_raw_fd(fd));
                        }
                    }
                    libc::SCM_CREDENTIALS => {
                        let credentials = data.cast::<libc::ucred>().read_unaligned();
                        received.pid = Some(credentials.pid as u32);
                    }
                    _ => {}
                }
            }
            control = libc::CMSG_NXTHDR(&raw const message, control);
        }
    }
    Ok(Some(received))
}

/// Sends one message, with a descriptor if there is one. Nobody is waited for.
pub(crate) fn send(fd: RawFd, parts: &[&[u8]], descriptor: Option<RawFd>) -> io::Result<()> {
    let mut parts: Vec<libc::iovec> = parts
        .iter()
        .map(|p| libc::iovec {
            iov_base: p.as_ptr().cast_mut().cast(),
            iov_len: p.len(),
        })
        .collect();
    let mut space = ControlSpace([0; 256]);
    // SAFETY: an all-zero msghdr is valid.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len();
    if let Some(descriptor) = descriptor {
        message.msg_control = (&raw mut space).cast();
        let bytes = mem::size_of::<RawFd>() as u32;
        // SAFETY: the control space has room for one descriptor, so its header is non-null.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(bytes) as usize;
            let control = libc::CMSG_FIRSTHDR(&raw const message);
            (*control).cmsg_level = libc::SOL_SOCKET;
            (*control).cmsg_type = libc::SCM_RIGHTS;
            (*control).cmsg_len = libc::CMSG_LEN(bytes) as usize;
            libc::CMSG_DATA(control)
                .cast::<RawFd>()
                .write_unaligned(descriptor);
        }
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: `message` points at live buffers.
    let sent = unsafe { libc::sendmsg(fd, &raw const message, flags) };
    if sent < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// An epoll set whose entries carry a number.
#[derive(Debug)]
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: plain system call.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: a fresh descriptor.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn add(&self, fd: RawFd, number: u64) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: number,
        };
        let (set, add) = (self.0.as_raw_fd(), libc::EPOLL_CTL_ADD);
        // SAFETY: `event` is valid.
        check(unsafe { libc::epoll_ctl(set, add, fd, &raw mut event) }).map(|_| ())
    }

    /// Waits for the next numbers.
    pub(crate) fn wait(&self, numbers: &mut Vec<u64>) -> io::Result<()> {
        numbers.clear();
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: room for 64 events.
        let count = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), 64, -1) };
        if count < 0 {
            let error = io::Error::last_os_error();
            let interrupted = error.kind() == io::ErrorKind::Interrupted;
            return if interrupted { Ok(()) } else { Err(error) };
        }
        numbers.extend(events[..count as usize].iter().map(|e| e.u64));
        Ok(())
    }
}

/// A timer that becomes readable at an instant of `CLOCK_MONOTONIC`.
#[derive(Debug)]
pub(crate) struct Timer(OwnedFd);

impl Timer {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: plain system call.
        let fd = check(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        // SAFETY: a fresh descriptor.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Sets the instant; `None` stops the timer.
    pub(crate) fn set(&self, at_ns: Option<u64>) {
        let zero = timespec(0);
        let spec = libc::itimerspec {
            it_interval: zero,
            it_value: at_ns.map_or(zero, |ns| timespec(ns.max(1))),
        };
        let flags = libc::TFD_TIMER_ABSTIME;
        // SAFETY: `spec` is valid, the old value is not asked for.
        unsafe {
            libc::timerfd_settime(self.fd(), flags, &raw const spec, std::ptr::null_mut());
        }
    }

    /// Takes the expiry, so that the timer is no longer readable.
    pub(crate) fn take(&self) {
        let mut count = [0_u8; 8];
        // SAFETY: eight bytes of room.
        unsafe { libc::read(self.fd(), count.as_mut_ptr().cast(), 8) };
    }
}

/// SIGTERM and SIGINT as a readable descriptor. Call before any thread is made.
pub(crate) fn termination() -> io::Result<OwnedFd> {
    // SAFETY: an all-zero sigset is a valid argument of sigemptyset.
    let mut set: libc::sigset_t = unsafe { mem::zeroed() };
    // SAFETY: `set` is valid for all four calls.
    unsafe {
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
        libc::sigaddset(&raw mut set, libc::SIGINT);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
    // SAFETY: `set` is valid.
    let fd = check(unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) })?;
    // SAFETY: a fresh descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Raises the limit of open descriptors as far as it goes: every open file of a client is one.
pub(crate) fn raise_descriptor_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is valid for both calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// Whether a process has `CAP_SYS_NICE`, which is RM's right NICE.
pub(crate) fn may_set_priorities(pid: u32) -> bool {
    const CAP_SYS_NICE: u64 = 1 << 23;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & CAP_SYS_NICE != 0)
}

/// Whether the process is root, as the driver means it.
pub(crate) fn is_root(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    ids.and_then(|ids| ids.split_whitespace().nth(1)) == Some("0")
}
