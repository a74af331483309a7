//! Memory that this process shares with others: the page of a preloaded library, and a file of words.
//!
//! A mapping is only ever handed out as a struct of atomics: another process writes it at any moment, so a
//! plain reference into one would be undefined behaviour.

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use tidegate_abi::beats::BeatPage;
use tidegate_abi::page::Page;

/// A shared mapping of a whole file, unmapped with this value.
#[derive(Debug)]
struct Mapping {
    at: NonNull<c_void>,
    bytes: usize,
}

impl Mapping {
    fn new(file: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        Self::of(file, bytes, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE)
    }

    fn of(file: BorrowedFd<'_>, bytes: usize, protection: ProtFlags) -> io::Result<Self> {
        let length = NonZeroUsize::new(bytes).ok_or(io::ErrorKind::InvalidInput)?;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE;
        // SAFETY: a fresh mapping at an address the kernel chooses touches no memory of ours.
        let at = unsafe { mmap(None, length, protection, flags, file, 0) }?;
        Ok(Self { at, bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is ours since `new`, and every reference into it borrows `self`.
        let _ = unsafe { munmap(self.at, self.bytes) };
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
    /// us (SIGBUS) nor grow it, nor make holes in it where the kernel can forbid that.
    ///
    /// # Errors
    /// When the kernel refuses a memfd, its seals or the mapping.
    pub fn create() -> io::Result<(Self, OwnedFd)> {
        use nix::fcntl::{FcntlArg, SealFlag, fcntl};
        use nix::sys::memfd::{MFdFlags, memfd_create};
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd_create(c"tidegate-page", flags)?;
        nix::unistd::ftruncate(&file, tidegate_abi::page::BYTES as i64)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        forbid_holes(&file);
        let mapping = Mapping::new(file.as_fd(), tidegate_abi::page::BYTES)?;
        Ok((Self(mapping), file))
    }
}

/// Makes a file of memory immutable: no memory of it can be taken away, while every mapping of it is written as ever. No
/// seal does that and lets the process map it. It takes `CAP_LINUX_IMMUTABLE` and Linux 6.0; without them a hole makes a
/// wait on the page fail, and whoever waits drops that page.
fn forbid_holes(file: &OwnedFd) {
    const FS_IMMUTABLE_FL: libc::c_int = 0x10;
    let flags = FS_IMMUTABLE_FL;
    // SAFETY: the call reads an `int`, which lives until it returns.
    let _ = unsafe { libc::ioctl(file.as_raw_fd(), libc::FS_IOC_SETFLAGS, &raw const flags) };
}

impl std::ops::Deref for SharedPage {
    type Target = Page;

    fn deref(&self) -> &Page {
        // SAFETY: the mapping is BYTES long, page aligned, alive as long as `self`, sealed against
        // shrinking, and `Page` consists of atomics only, for which every bit pattern is valid.
        unsafe { self.0.at.cast::<Page>().as_ref() }
    }
}

/// The page on which an online process says its iterations, which it made and this process only reads.
#[derive(Debug)]
pub struct SharedBeats(Mapping);

impl SharedBeats {
    /// Maps the page in `file`, which another process made: a memfd of just that size, sealed so that it can neither
    /// shrink nor grow. A hole in it is filled with zeros when it is read.
    ///
    /// # Errors
    /// When it is anything else, or cannot be mapped.
    pub fn map(file: BorrowedFd<'_>) -> io::Result<Self> {
        use nix::fcntl::{FcntlArg, SealFlag, fcntl};
        use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
        let wrong = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        // Anything but a file in memory has no seals, and one of huge pages another magic.
        let seals = SealFlag::from_bits_truncate(fcntl(file, FcntlArg::F_GET_SEALS)?);
        if fstatfs(file)?.filesystem_type() != TMPFS_MAGIC {
            return wrong("not a file in memory");
        }
        if !seals.contains(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW) {
            return wrong("it can shrink or grow");
        }
        let bytes = tidegate_abi::beats::BYTES;
        if u64::try_from(nix::sys::stat::fstat(file)?.st_size).ok() != Some(bytes as u64) {
            return wrong("not of the size of a page");
        }
        Ok(Self(Mapping::of(file, bytes, ProtFlags::PROT_READ)?))
    }
}

impl std::ops::Deref for SharedBeats {
    type Target = BeatPage;

    fn deref(&self) -> &BeatPage {
        // SAFETY: the mapping is BYTES long, page aligned, alive as long as `self`, sealed against shrinking, and
        // `BeatPage` consists of atomics only, for which every bit pattern is valid and which are only loaded from.
        unsafe { self.0.at.cast::<BeatPage>().as_ref() }
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

    /// P-TRAINER-15: memory that a process could take away, or that is no page, is not mapped.
    #[test]
    fn a_page_of_iterations_is_mapped_only_if_nobody_can_take_it_away() {
        use nix::fcntl::{FcntlArg, SealFlag, fcntl};
        use nix::sys::memfd::{MFdFlags, memfd_create};
        use tidegate_abi::beats::BYTES;
        let made = |bytes: i64, seals| {
            let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
            let file = memfd_create(c"beats", flags).expect("memfds exist");
            nix::unistd::ftruncate(&file, bytes).expect("there is memory");
            fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).expect("it takes seals");
            file
        };
        let (bytes, both) = (
            BYTES as i64,
            SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW,
        );
        for (bytes, seals) in [
            (bytes, SealFlag::F_SEAL_SHRINK),
            (bytes, SealFlag::F_SEAL_GROW),
            (0, both),
            (bytes - 1, both),
            (2 * bytes, both),
        ] {
            let file = made(bytes, seals);
            assert!(SharedBeats::map(file.as_fd()).is_err(), "{bytes} {seals:?}");
        }
        let (pipe, _) = nix::unistd::pipe().expect("there are pipes");
        let zero = std::fs::File::open("/dev/zero").expect("it is there");
        assert!(SharedBeats::map(pipe.as_fd()).is_err());
        assert!(SharedBeats::map(zero.as_fd()).is_err());
        let page = SharedBeats::map(made(bytes, both).as_fd()).expect("a page");
        assert_eq!(page.header.magic.load(Ordering::Relaxed), 0);
    }
}
