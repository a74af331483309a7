//! What the library prints on the application's standard error.
//!
//! Unless `TIDEGATE_LOG` is set it prints only four things: one line when an offline program waits for an agent that is
//! not there, one line a minute while such a program waits, one line if the process cannot attach to any agent, and one
//! line if a call of `tidegate.h` is refused for a reason that its errno does not tell.
//!
//! Each line is one `write` to descriptor 2 of the calling thread. The reporter keeps that descriptor in its own table
//! only when `TIDEGATE_LOG` is set.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

static ENABLED: AtomicU32 = AtomicU32::new(2);

/// Whether `TIDEGATE_LOG` is set.
pub fn enabled() -> bool {
    match ENABLED.load(Relaxed) {
        2 => {
            let on = crate::env::logs();
            ENABLED.store(u32::from(on), Relaxed);
            on
        }
        on => on == 1,
    }
}

/// Writes one line, whatever the environment says.
pub fn line(text: &str) {
    crate::sys::keeping_errno(|| {
        let line = format!("tidegate: {text}\n");
        // SAFETY: the bytes are live for the call. A closed descriptor 2 is an error we ignore.
        unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
    });
}

/// Writes one line if `TIDEGATE_LOG` is set.
pub fn debug(text: impl FnOnce() -> String) {
    if enabled() {
        line(&text());
    }
}
