//! What the user sees while it runs, on standard error: one line that is rewritten on a terminal,
//! and now and then a plain line elsewhere.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use tidegate_tests::monotonic_ns;

const PLAIN_EVERY: Duration = Duration::from_secs(5);

/// Where progress goes.
#[derive(Debug)]
pub struct Progress {
    terminal: bool,
    columns: usize,
    shown: bool,
    last_plain_ns: u64,
}

impl Progress {
    /// To standard error, whatever it is.
    #[must_use]
    pub fn new() -> Self {
        Self {
            terminal: std::io::stderr().is_terminal(),
            columns: columns().unwrap_or(80),
            shown: false,
            last_plain_ns: 0,
        }
    }

    /// Shows `text` as what goes on now.
    pub fn now(&mut self, text: &str) {
        let mut err = std::io::stderr().lock();
        if self.terminal {
            let text: String = text.chars().take(self.columns.saturating_sub(1)).collect();
            // A terminal that has gone away is no reason to stop measuring.
            let _ = write!(err, "\r\x1b[K{text}");
            let _ = err.flush();
            self.shown = true;
        } else if monotonic_ns() - self.last_plain_ns >= PLAIN_EVERY.as_nanos() as u64 {
            self.last_plain_ns = monotonic_ns();
            let _ = writeln!(err, "{text}");
        }
    }

    /// Writes `text` to stay, above what goes on.
    pub fn done(&mut self, text: &str) {
        let mut err = std::io::stderr().lock();
        if self.shown {
            let _ = write!(err, "\r\x1b[K");
            self.shown = false;
        }
        let _ = writeln!(err, "{text}");
        self.last_plain_ns = monotonic_ns();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _ = writeln!(std::io::stderr().lock());
        }
    }
}

/// Columns of the terminal behind standard error.
fn columns() -> Option<usize> {
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: `size` is a valid winsize for the kernel to write to.
    let rc = unsafe { libc::ioctl(libc::STDERR_FILENO, libc::TIOCGWINSZ, &raw mut size) };
    (rc == 0 && size.ws_col > 0).then(|| usize::from(size.ws_col))
}
