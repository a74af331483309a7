//! How the reporter is woken: by a signal that it reads from a descriptor.

use crate::sys::Bell;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A descriptor that [`Bell::SIGNAL`] to the calling thread makes readable.
pub fn signal_descriptor() -> io::Result<OwnedFd> {
    // SAFETY: the set is live and initialised for the call; the new descriptor is ours.
    unsafe {
        let mut set: libc::sigset_t = core::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, Bell::SIGNAL);
        let fd = libc::signalfd(-1, &raw const set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Empties a signal descriptor.
pub fn drain(signals: &OwnedFd) {
    let mut space = [0_u8; size_of::<libc::signalfd_siginfo>()];
    // SAFETY: the buffer is live and as long as said; the descriptor does not block.
    while unsafe { libc::read(signals.as_raw_fd(), space.as_mut_ptr().cast(), space.len()) } > 0 {}
}
