//! What the test reads.

use std::io::Write;

/// Prints one line at once, whole.
pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}");
    let _ = out.flush();
}
