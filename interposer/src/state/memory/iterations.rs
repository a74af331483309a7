//! Where the iterations of an online engine are written while its agent asks for them.
//!
//! The page is a memory file, which the agent copies by its number in the application's table of descriptors. The
//! reporter has a table of its own, so the engine's thread makes the file, at its first iteration after the agent
//! asked. One file serves all agents during the life of the process. If the application closes its descriptor, the next
//! session gets another one.

use super::file;
use crate::sys;
use core::ffi::c_int;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Mutex;
use tidegate_abi::beats::{BYTES, BeatPage, MAGIC, MAJOR, MINOR};
use tidegate_abi::page::DEVICES;
use tidegate_core::beat::Iteration;

/// The page, and its file.
#[derive(Debug)]
struct Made {
    page: &'static BeatPage,
    /// In the application's table, where it stays.
    fd: c_int,
    /// Device and inode: whether the number is still that file's.
    file: (u64, u64),
}

/// Where the iterations of this process are said.
#[derive(Debug, Default)]
pub(crate) struct Beats {
    /// The session whose agent asks for them, plus one; 0: none does.
    wanted: AtomicU64,
    page: Mutex<(u64, Option<Made>)>,
}

impl Beats {
    /// The agent of this session asks for them.
    pub(crate) fn want(&self, session: u64) {
        self.wanted.store(session + 1, Release);
    }

    /// Its session is over.
    pub(crate) fn unwanted(&self) {
        self.wanted.store(0, Release);
    }

    /// See `wanted`.
    pub(crate) fn wanted(&self) -> u64 {
        self.wanted.load(Acquire)
    }

    /// Writes an iteration of devices, one bit each, for the agent that asks; whether it is the first since that asked, whose
    /// number for this process is `session`. None: there is no page.
    pub(crate) fn write(
        &self,
        wanted: u64,
        session: u64,
        devices: u32,
        done: &Iteration,
    ) -> Option<bool> {
        let mut page = sys::lock(&self.page);
        let first = page.0 != wanted;
        if first {
            page.0 = wanted;
            let made = page.1.take().filter(Made::is_open);
            page.1 = made.or_else(Made::new);
        }
        let made = page.1.as_ref()?;
        if first {
            made.page.header.session.store(session, Release);
        }
        let all = made.page.devices.iter().enumerate();
        for (_, words) in all.filter(|(nth, _)| devices & (1 << nth) != 0) {
            done.write(words);
        }
        Some(first)
    }

    /// The page's descriptor, once it was made or looked at for the agent that asks.
    pub(crate) fn offered(&self) -> Option<c_int> {
        let wanted = self.wanted();
        if wanted == 0 {
            return None;
        }
        let page = sys::lock(&self.page);
        let made = page.1.as_ref().filter(|_| page.0 == wanted);
        made.map(|made| made.fd)
    }
}

impl Made {
    fn new() -> Option<Self> {
        let file = sealed()?;
        let stat = file::stat(file.as_raw_fd())?;
        let (rights, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a fresh mapping of a file of this size that nobody can shrink.
        let at = unsafe {
            let fd = file.as_raw_fd();
            libc::mmap(core::ptr::null_mut(), BYTES, rights, shared, fd, 0)
        };
        if at == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: page-aligned, zeroed and of this size; every field is an atomic. It is unmapped by `drop` alone. A
        // forked child has no use for it.
        let page = unsafe {
            libc::madvise(at, BYTES, libc::MADV_DONTFORK);
            &*at.cast::<BeatPage>()
        };
        page.header.major.store(MAJOR, Relaxed);
        page.header.minor.store(MINOR, Relaxed);
        page.header.bytes.store(BYTES as u32, Relaxed);
        page.header.devices.store(DEVICES as u32, Relaxed);
        page.header.magic.store(MAGIC, Release);
        Some(Self {
            page,
            fd: file.into_raw_fd(),
            file: (stat.st_dev, stat.st_ino),
        })
    }

    fn is_open(&self) -> bool {
        file::stat(self.fd).is_some_and(|stat| (stat.st_dev, stat.st_ino) == self.file)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let at = core::ptr::from_ref(self.page).cast_mut().cast();
        // SAFETY: the mapping is this value's, and who writes holds the lock that this value is behind.
        unsafe { libc::munmap(at, BYTES) };
    }
}

/// A memory file as the agent takes it.
fn sealed() -> Option<OwnedFd> {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: a name that lives for the call, and descriptors that nobody else has. A number that belongs to standard
    // input or output is left free: what is written there later must not go here.
    unsafe {
        let fd = libc::memfd_create(
            c"tidegate-beats".as_ptr(),
            libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING,
        );
        let first = (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))?;
        let file = if fd > libc::STDERR_FILENO {
            first
        } else {
            let fd = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, libc::STDERR_FILENO + 1);
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))?
        };
        let fd = file.as_raw_fd();
        let is = libc::ftruncate(fd, BYTES as libc::off_t) == 0
            && libc::fcntl(fd, libc::F_ADD_SEALS, seals) == 0;
        is.then_some(file)
    }
}
