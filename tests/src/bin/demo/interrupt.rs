//! Ctrl-C and its kin end the demo by the ordinary way out, so that everything it started ends too.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

static ASKED: AtomicBool = AtomicBool::new(false);

extern "C" fn asked(_signal: i32) {
    ASKED.store(true, Ordering::Relaxed);
}

/// The user wants it to end.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// From here on SIGINT, SIGTERM and SIGHUP make [`pause`] fail instead of ending the process.
pub fn install() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which is async-signal-safe.
        unsafe { libc::signal(signal, asked as *const () as libc::sighandler_t) };
    }
}

/// Sleeps.
///
/// # Errors
/// When the user asked to end.
pub fn pause(length: Duration) -> Result<(), Interrupted> {
    check()?;
    std::thread::sleep(length);
    check()
}

fn check() -> Result<(), Interrupted> {
    if ASKED.load(Ordering::Relaxed) {
        Err(Interrupted)
    } else {
        Ok(())
    }
}
