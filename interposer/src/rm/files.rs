//! The application's control files, copied from its descriptor table into the reporter's.
//!
//! RM accepts a call for a client only on the open file on which the client was made. A process may open the control
//! device many times: NVML and the driver's library each do. The process' ioctls show which descriptor belongs to which
//! client ([`crate::state::objects::Rm::files`]). They do not show that a descriptor was closed, or that its number was
//! given to another file. So a descriptor is checked when it is copied, and RM's answer decides.
//!
//! Nothing is kept open: the driver frees a client with the last copy of its file.

use crate::process::Process;
use crate::sys;
use core::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use tidegate_abi::rm;

/// The client that owns most channels, with the application's descriptor of its file, and a copy of it.
pub fn owner(process: &Process) -> Option<((u32, c_int), OwnedFd)> {
    let owners = sys::lock(&process.rm).owners();
    let table = Table::open()?;
    owners
        .into_iter()
        .find_map(|(client, fd)| Some(((client, fd), table.control(fd).ok()??)))
}

/// The descriptors of the application.
#[derive(Debug)]
pub struct Table(OwnedFd);

impl Table {
    /// None where the kernel, or a sandbox, does not let a process look at its own.
    pub fn open() -> Option<Self> {
        // SAFETY: a system call without pointers; what it returns is a new descriptor of this thread.
        unsafe {
            let own = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0);
            let own = c_int::try_from(own).ok().filter(|own| *own >= 0)?;
            Some(Self(OwnedFd::from_raw_fd(own)))
        }
    }

    /// A copy of descriptor `fd`; `None`: it is closed, or not the driver's control device, because the
    /// application closed its file and opened another under the number.
    ///
    /// # Errors
    /// Where the kernel, or a sandbox, refuses.
    pub fn control(&self, fd: c_int) -> io::Result<Option<OwnedFd>> {
        // SAFETY: as in `open`.
        let file = unsafe {
            let taken = libc::syscall(libc::SYS_pidfd_getfd, self.0.as_raw_fd(), fd, 0);
            match c_int::try_from(taken).ok().filter(|taken| *taken >= 0) {
                Some(taken) => OwnedFd::from_raw_fd(taken),
                None if sys::errno() == libc::EBADF => return Ok(None),
                None => return Err(io::Error::last_os_error()),
            }
        };
        // SAFETY: zeroed is a valid stat.
        let mut stat: libc::stat = unsafe { core::mem::zeroed() };
        // SAFETY: `stat` is live.
        let known = unsafe { libc::fstat(file.as_raw_fd(), &raw mut stat) } == 0;
        let control = known
            && stat.st_mode & libc::S_IFMT == libc::S_IFCHR
            && libc::major(stat.st_rdev) == rm::DEVICE_MAJOR
            && libc::minor(stat.st_rdev) == rm::CTL_MINOR;
        Ok(control.then_some(file))
    }

    /// The application's descriptors.
    ///
    /// # Errors
    /// Where they cannot be listed, also because its first thread has ended.
    pub fn numbers(&self) -> io::Result<Vec<c_int>> {
        // Not this thread's table, which it has left.
        let mut numbers = Vec::new();
        for entry in std::fs::read_dir(format!("/proc/{}/fd", std::process::id()))? {
            numbers.extend(
                entry?
                    .file_name()
                    .to_str()
                    .and_then(|name| name.parse::<c_int>().ok()),
            );
        }
        if numbers.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(numbers)
    }
}
