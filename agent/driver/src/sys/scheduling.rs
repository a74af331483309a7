//! What the kernel does for threads: their scheduling class, and a barrier over all of them.

use std::ffi::c_int;
use std::io;

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
