//! What the kernel does for threads: their scheduling class, and a barrier over all of them.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
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

/// What a thread had of its processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadUse {
    ran_ns: u64,
    sleeps: i64,
}

/// Of the calling thread so far: `getrusage(RUSAGE_THREAD)`.
#[must_use]
pub fn thread_use() -> ThreadUse {
    getrusage(UsageWho::RUSAGE_THREAD).map_or_else(
        |_| ThreadUse::default(),
        |usage| {
            let us = (usage.user_time() + usage.system_time()).num_microseconds();
            ThreadUse {
                ran_ns: us.unsigned_abs() * 1_000,
                sleeps: usage.voluntary_context_switches(),
            }
        },
    )
}

impl ThreadUse {
    /// Processor time since `before`, ns, whatever it waited for.
    #[must_use]
    pub const fn since(self, before: Self) -> u64 {
        self.ran_ns.saturating_sub(before.ran_ns)
    }

    /// Processor time since `before`, ns, rounded up to the kernel's microsecond. None: it slept in between, for
    /// something that it waited for.
    #[must_use]
    pub const fn awake_since(self, before: Self) -> Option<u64> {
        if self.sleeps == before.sleeps {
            Some(self.ran_ns.saturating_sub(before.ran_ns) + 1_000)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::monotonic_ns;
    use super::*;
    use std::time::Duration;

    #[test]
    fn work_is_counted_and_sleep_is_told_from_it() {
        let before = thread_use();
        let begun = monotonic_ns();
        let mut ran = 0;
        while ran < 20_000_000 && monotonic_ns() - begun < 60_000_000_000 {
            ran = thread_use().ran_ns - before.ran_ns;
        }
        let worked = thread_use().awake_since(before).expect("it never slept");
        assert!(worked >= 20_000_000, "{worked} ns after 20 ms of work");
        assert!(worked <= monotonic_ns() - begun + 10_000_000);
        let before = thread_use();
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(thread_use().awake_since(before), None);
    }
}
