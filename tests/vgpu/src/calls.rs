//! The caller's side of the wire: `open`, `ioctl` and `mmap` of a device node.
//!
//! The shim is a thin layer of exported symbols over this file. Nothing here keeps state beyond what the
//! driver's version says, allocates once that is known, which the first `open` of a process sees to, or
//! takes a lock, so it may run in any thread, in a fork child and in a signal handler. It makes its own
//! system calls where libc's symbol may be hooked.
//! Failures are `errno` values, as the system call would give them.

use core::ffi::{c_int, c_void};
use core::mem;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use tidegate_abi::rm;

use crate::facts::{self, Driver};
use crate::wire::{self, Ask, MAGIC, Node, Order, Reply, Request};

/// An `errno`.
pub type Errno = c_int;

/// How long a call waits before it looks whether the device process is still there.
const LOOK_AFTER_SECONDS: libc::time_t = 1;

fn errno() -> Errno {
    // SAFETY: the location is the calling thread's own and always valid.
    unsafe { *libc::__errno_location() }
}

fn set_errno(value: Errno) {
    // SAFETY: as in `errno`.
    unsafe { *libc::__errno_location() = value };
}

struct Fd(c_int);

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: the descriptor was made by this file and is not used afterwards.
        unsafe { libc::close(self.0) };
    }
}

const fn sockaddr() -> libc::sockaddr_un {
    libc::sockaddr_un {
        sun_family: libc::AF_UNIX as libc::sa_family_t,
        sun_path: [0; 108],
    }
}

/// The node whose open file `fd` is, by the name of the socket at its other end. `errno` is kept.
#[must_use]
pub fn node_of_fd(fd: c_int) -> Option<Node> {
    let kept = errno();
    let mut address = sockaddr();
    let mut length = mem::size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: `address` and `length` are valid for the kernel to write; any `fd` is allowed.
    let rc = unsafe { libc::getpeername(fd, (&raw mut address).cast(), &raw mut length) };
    set_errno(kept);
    if rc != 0 || c_int::from(address.sun_family) != libc::AF_UNIX {
        return None;
    }
    // SAFETY: `c_char` and `u8` have one layout.
    let path = unsafe { &*(&raw const address.sun_path).cast::<[u8; 108]>() };
    let path = &path[..path.iter().position(|b| *b == 0).unwrap_or(path.len())];
    Node::of_name(&path[path.iter().rposition(|b| *b == b'/')? + 1..])
}

/// Opens `node` of the virtual GPU in directory `dir`.
pub fn open(dir: &[u8], node: Node, cloexec: bool) -> Result<c_int, Errno> {
    let mut address = sockaddr();
    let (name, name_length) = name_of(node);
    let length = dir.len() + 1 + name_length;
    if length >= address.sun_path.len() {
        return Err(libc::ENAMETOOLONG);
    }
    let bytes = dir.iter().chain(b"/").chain(&name[..name_length]);
    for (place, byte) in address.sun_path.iter_mut().zip(bytes) {
        *place = *byte as libc::c_char;
    }
    let flags = libc::SOCK_SEQPACKET | if cloexec { libc::SOCK_CLOEXEC } else { 0 };
    // SAFETY: plain system call.
    let fd = unsafe { libc::socket(libc::AF_UNIX, flags, 0) };
    if fd < 0 {
        return Err(errno());
    }
    let fd = Fd(fd);
    let size = mem::size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: `address` is a NUL-terminated sockaddr_un of `size` bytes.
    while unsafe { libc::connect(fd.0, (&raw const address).cast(), size) } != 0 {
        match errno() {
            libc::EINTR => {}
            libc::ECONNREFUSED => return Err(libc::ENODEV),
            other => return Err(other),
        }
    }
    if node == Node::Ctl {
        // The device process copies to and from this one's memory; under Yama a process has to
        // permit that.
        // SAFETY: plain system call without pointers; failure means that nothing restricts it.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    }
    let request = Request {
        magic: MAGIC,
        ask: Ask::Hello as u32,
        ..Request::default()
    };
    let (reply, _) = exchange(fd.0, &request, &mut [], &mut [], Some(fd.0))?;
    learn(&reply)?;
    let number = fd.0;
    mem::forget(fd);
    Ok(number)
}

/// The file name of `node` and its length, without an allocation.
#[must_use]
pub fn name_of(node: Node) -> ([u8; 16], usize) {
    let mut name = [0; 16];
    let mut length = 0;
    let mut put = |bytes: &[u8]| {
        name[length..length + bytes.len()].copy_from_slice(bytes);
        length += bytes.len();
    };
    match node {
        Node::Ctl => put(b"nvidiactl"),
        Node::Uvm => put(b"nvidia-uvm"),
        Node::Gpu(minor) => {
            put(b"nvidia");
            if minor >= 10 {
                put(&[b'0' + minor / 10]);
            }
            put(&[b'0' + minor % 10]);
        }
    }
    (name, length)
}

/// What the driver is that the device process plays.
static KNOWN: AtomicPtr<Driver<'static>> = AtomicPtr::new(core::ptr::null_mut());

fn known() -> Option<&'static Driver<'static>> {
    // SAFETY: null, or a driver that `learn` leaked and that is never changed.
    unsafe { KNOWN.load(Ordering::Acquire).as_ref() }
}

/// Finds out what the version in `reply` is.
fn learn(reply: &Reply) -> Result<&'static Driver<'static>, Errno> {
    let text = reply.text.split(|byte| *byte == 0).next().unwrap_or(&[]);
    let version = core::str::from_utf8(text).map_err(|_| libc::ENODEV)?;
    if let Some(known) = known().filter(|known| known.version == version) {
        return Ok(known);
    }
    let read = facts::Facts::read(&facts::TABLES).map_err(|_| libc::ENODEV)?;
    let found = read.of(version).ok_or(libc::ENODEV)?;
    // Two threads that come here at once each leak one, and either is right.
    let found: &'static mut Driver<'static> = Box::leak(Box::new(found));
    KNOWN.store(found, Ordering::Release);
    Ok(found)
}

/// The driver behind `fd`, which is asked where this process was given the file and opened none.
fn driver(fd: c_int) -> Result<&'static Driver<'static>, Errno> {
    if let Some(known) = known() {
        return Ok(known);
    }
    let request = Request {
        magic: MAGIC,
        ask: Ask::Version as u32,
        ..Request::default()
    };
    let (reply, _) = exchange(fd, &request, &mut [], &mut [], None)?;
    learn(&reply)
}

/// The bytes at `address`, as the kernel would take them on a caller's word.
///
/// # Safety
///
/// `address..address + length` is readable and writable for as long as the slice lives.
unsafe fn bytes_at<'a>(address: u64, length: usize) -> &'a mut [u8] {
    if address == 0 || length == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { core::slice::from_raw_parts_mut(address as *mut u8, length) }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..at + 4)
        .map_or(0, |b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | (u64::from(word(bytes, at + 4)) << 32)
}

/// When an ioctl was entered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry {
    /// The instant; 0: not taken.
    pub at_ns: u64,
    /// The calling thread's reading of `CLOCK_MONOTONIC`, the last but one before that; 0: none.
    pub read_ns: u64,
}

/// An ioctl on `fd`, which is an open file of `node`, and when the caller entered it.
///
/// # Safety
///
/// As for the ioctl itself: `arg` and the pointers in the struct there must be what the request
/// takes.
pub unsafe fn ioctl(
    fd: c_int,
    node: Node,
    mut request: u64,
    mut arg: u64,
    entry: Entry,
) -> Result<c_int, Errno> {
    if node != Node::Uvm && rm::escape_of(request) == Some(rm::NV_ESC_IOCTL_XFER_CMD) {
        if rm::size_of_request(request) != mem::size_of::<rm::Xfer>() || arg == 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's promise about `arg`; the read asks for no alignment.
        let outer = unsafe { core::ptr::read_unaligned(arg as *const rm::Xfer) };
        if outer.size > 0x3fff {
            return Err(libc::EINVAL);
        }
        request = rm::request(outer.cmd & 0xff, outer.size as usize);
        arg = outer.ptr;
    }
    let driver = driver(fd)?;
    let size = wire::params_size(node, request, driver).ok_or(libc::EINVAL)?;
    if arg == 0 && size > 0 {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller's promise.
    let params = unsafe { bytes_at(arg, size) };

    let (nested_at, nested_size) = match (node, rm::escape_of(request), size) {
        (Node::Uvm, ..) => (0, 0),
        (_, Some(rm::NV_ESC_RM_CONTROL), 32) => {
            let stated = word(params, 24) as usize;
            let size = wire::control_size(word(params, 8), stated, driver);
            (long(params, 16), size)
        }
        (_, Some(rm::NV_ESC_RM_ALLOC), 32 | 48) => {
            (long(params, 16), wire::alloc_size(word(params, 12), driver))
        }
        _ => (0, 0),
    };
    if size + nested_size > wire::MAX_PARAMS {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's promise about the pointer inside the parameters.
    let nested = unsafe { bytes_at(nested_at, nested_size) };

    let named = wire::fd_offset(node, request, driver)
        .map(|at| word(params, at) as c_int)
        .filter(|named| *named >= 0);
    let header = Request {
        magic: MAGIC,
        ask: Ask::Ioctl as u32,
        request,
        params: params.len() as u32,
        nested: nested.len() as u32,
        entry_ns: entry.at_ns,
        read_ns: entry.read_ns,
        ..Request::default()
    };
    let (reply, memory) = exchange(fd, &header, params, nested, named)?;
    if reply.errno != 0 {
        return Err(reply.errno);
    }
    if node != Node::Uvm
        && rm::escape_of(request) == Some(rm::NV_ESC_RM_CONTROL)
        && word(params, 8) == rm::NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION
        && word(params, 28) == 0
    {
        // SAFETY: the control's parameters point at buffers of `size_of_strings` bytes.
        unsafe { put_versions(nested, &reply.text) };
    }
    // SAFETY: the device orders maps only over ranges that this process had registered with it.
    unsafe { obey(&reply, memory.as_ref())? };
    Ok(0)
}

/// # Safety
///
/// `nested` is a `BuildVersion` whose pointers, where not 0, have `size_of_strings` bytes.
unsafe fn put_versions(nested: &[u8], text: &[u8; 64]) {
    let room = word(nested, 0) as usize;
    let length = text.iter().position(|b| *b == 0).unwrap_or(text.len());
    for (at, text) in [
        (8, &text[..length]),
        (16, &b"virtual"[..]),
        (24, &b"virtual"[..]),
    ] {
        // SAFETY: the caller's promise.
        let buffer = unsafe { bytes_at(long(nested, at), room) };
        if buffer.len() > text.len() {
            buffer[..text.len()].copy_from_slice(text);
            buffer[text.len()] = 0;
        }
    }
}

/// # Safety
///
/// The ordered range belongs to the caller's external ranges.
unsafe fn obey(reply: &Reply, memory: Option<&Fd>) -> Result<(), Errno> {
    let (prot, flags, fd) = match (reply.order, memory) {
        (order, Some(memory)) if order == Order::Map as u32 => (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED,
            memory.0,
        ),
        (order, _) if order == Order::Unmap as u32 => (
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
            -1,
        ),
        _ => return Ok(()),
    };
    // SAFETY: the caller's promise covers the range.
    let at = unsafe { raw_mmap(reply.base, reply.length, prot, flags, fd, reply.offset) };
    at.map(|_| ())
}

/// # Safety
///
/// As for `mmap`.
unsafe fn raw_mmap(
    address: u64,
    length: u64,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: u64,
) -> Result<*mut c_void, Errno> {
    // SAFETY: the caller's promise; the raw call because libc's symbol is the shim's own.
    let at = unsafe { libc::syscall(libc::SYS_mmap, address, length, prot, flags, fd, offset) };
    if at == -1 {
        Err(errno())
    } else {
        Ok(at as *mut c_void)
    }
}

/// Maps what the last `NV_ESC_RM_MAP_MEMORY` announced for `fd`.
///
/// # Safety
///
/// As for `mmap`.
pub unsafe fn mmap(
    fd: c_int,
    address: u64,
    length: u64,
    prot: c_int,
    flags: c_int,
    offset: u64,
) -> Result<*mut c_void, Errno> {
    let request = Request {
        magic: MAGIC,
        ask: Ask::Mmap as u32,
        length,
        offset,
        ..Request::default()
    };
    let (reply, memory) = exchange(fd, &request, &mut [], &mut [], None)?;
    match (reply.errno, memory) {
        // SAFETY: the caller's promise.
        (0, Some(memory)) => unsafe {
            raw_mmap(address, length, prot, flags, memory.0, reply.offset)
        },
        (0, None) => Err(libc::EINVAL),
        (errno, _) => Err(errno),
    }
}

const CONTROL_BYTES: usize = 64;

/// Space for one SCM_RIGHTS message of up to two descriptors, aligned as the kernel wants it.
#[repr(C, align(8))]
struct ControlSpace([u8; CONTROL_BYTES]);

fn iov(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    }
}

/// A fresh connection with both its ends.
fn pair() -> Result<(Fd, Fd), Errno> {
    let mut pair = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: `pair` has room for the two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) } != 0 {
        return Err(errno());
    }
    Ok((Fd(pair[0]), Fd(pair[1])))
}

/// Sets the limit of descriptors; what it was.
fn limit(to: &libc::rlimit) -> Result<libc::rlimit, Errno> {
    let mut was = *to;
    // SAFETY: both are valid limits of this process.
    match unsafe { libc::prlimit(0, libc::RLIMIT_NOFILE, to, &raw mut was) } {
        0 => Ok(was),
        _ => Err(errno()),
    }
}

/// Does `what` beyond the process' soft limit of descriptors: a call of the driver needs none, and must not fail
/// here for the lack of those that only the virtual one takes.
fn lend<T>(what: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut own = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `own` is valid to write to.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut own) } != 0 {
        return Err(errno());
    }
    let lent = libc::rlimit {
        rlim_cur: own.rlim_max,
        ..own
    };
    limit(&lent)?;
    let done = what();
    let meanwhile = limit(&own)?;
    if meanwhile.rlim_cur != lent.rlim_cur {
        // Somebody else set it while it was raised.
        limit(&meanwhile)?;
    }
    done
}

/// Sends a request and waits for its answer, which overwrites `params` and `nested`.
fn exchange(
    fd: c_int,
    request: &Request,
    params: &mut [u8],
    nested: &mut [u8],
    named: Option<c_int>,
) -> Result<(Reply, Option<Fd>), Errno> {
    let (ours, theirs) = match pair() {
        Err(libc::EMFILE) => lend(pair)?,
        other => other?,
    };
    match send(fd, request, params, nested, theirs.0, named) {
        // A named descriptor that is not open: the driver, too, gets to say so itself.
        Err(libc::EBADF) if named.is_some() => {
            send(fd, request, params, nested, theirs.0, None)?;
        }
        other => other?,
    }
    drop(theirs);
    let patience = libc::timeval {
        tv_sec: LOOK_AFTER_SECONDS,
        tv_usec: 0,
    };
    // SAFETY: `patience` is a valid timeval of the size given.
    unsafe {
        libc::setsockopt(
            ours.0,
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const patience).cast(),
            mem::size_of::<libc::timeval>() as libc::socklen_t,
        );
    }
    receive(ours.0, fd, params, nested)
}

fn send(
    fd: c_int,
    request: &Request,
    params: &mut [u8],
    nested: &mut [u8],
    reply_end: c_int,
    named: Option<c_int>,
) -> Result<(), Errno> {
    let mut header = *request;
    let header = libc::iovec {
        iov_base: (&raw mut header).cast(),
        iov_len: mem::size_of::<Request>(),
    };
    let mut parts = [header, iov(params), iov(nested)];
    let descriptors = [reply_end, named.unwrap_or(-1)];
    let count = 1 + usize::from(named.is_some());
    let mut space = ControlSpace([0; CONTROL_BYTES]);
    // SAFETY: an all-zero msghdr is valid.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len();
    message.msg_control = (&raw mut space).cast();
    let data = (count * mem::size_of::<c_int>()) as u32;
    // SAFETY: CMSG_SPACE and CMSG_LEN only compute; the control space is large enough for two
    // descriptors, so the first header is non-null and its data has room for `count` of them.
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(data) as usize;
        let control = libc::CMSG_FIRSTHDR(&raw const message);
        (*control).cmsg_level = libc::SOL_SOCKET;
        (*control).cmsg_type = libc::SCM_RIGHTS;
        (*control).cmsg_len = libc::CMSG_LEN(data) as usize;
        let place = libc::CMSG_DATA(control).cast::<c_int>();
        for (index, descriptor) in descriptors.iter().take(count).enumerate() {
            place.add(index).write_unaligned(*descriptor);
        }
    }
    loop {
        // SAFETY: `message` points at live buffers.
        if unsafe { libc::sendmsg(fd, &raw const message, libc::MSG_NOSIGNAL) } >= 0 {
            return Ok(());
        }
        match errno() {
            libc::EINTR => {}
            libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN => return Err(libc::ENODEV),
            other => return Err(other),
        }
    }
}

fn receive(
    ours: c_int,
    connection: c_int,
    params: &mut [u8],
    nested: &mut [u8],
) -> Result<(Reply, Option<Fd>), Errno> {
    loop {
        let mut reply = Reply::OK;
        let header = libc::iovec {
            iov_base: (&raw mut reply).cast(),
            iov_len: mem::size_of::<Reply>(),
        };
        let mut parts = [header, iov(params), iov(nested)];
        let mut space = ControlSpace([0; CONTROL_BYTES]);
        // SAFETY: an all-zero msghdr is valid.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len();
        message.msg_control = (&raw mut space).cast();
        message.msg_controllen = CONTROL_BYTES;
        // SAFETY: `message` points at live buffers.
        let got = unsafe { libc::recvmsg(ours, &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        if got >= mem::size_of::<Reply>() as isize {
            return Ok((reply, first_descriptor(&message).map(Fd)));
        }
        match (got, errno()) {
            (0.., _) => return Err(libc::ENODEV),
            (_, libc::EINTR) => {}
            (_, libc::EAGAIN) if connected(connection) => {}
            (_, libc::EAGAIN) => return Err(libc::ENODEV),
            (_, other) => return Err(other),
        }
    }
}

fn first_descriptor(message: &libc::msghdr) -> Option<c_int> {
    // SAFETY: `message` was filled by recvmsg; a header is followed by its data.
    unsafe {
        let control = libc::CMSG_FIRSTHDR(message);
        if control.is_null()
            || (*control).cmsg_level != libc::SOL_SOCKET
            || (*control).cmsg_type != libc::SCM_RIGHTS
        {
            return None;
        }
        Some(libc::CMSG_DATA(control).cast::<c_int>().read_unaligned())
    }
}

fn connected(fd: c_int) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: 0,
        revents: 0,
    };
    // SAFETY: one valid pollfd.
    let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
    ready == 0
}
