//! Asking small files, and whoever may hang.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

/// How long whoever may hang is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs `ask` on a thread that is left behind if it takes too long.
pub(super) fn patiently<T: Send + 'static>(
    ask: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    within(PATIENCE, ask)
}

fn within<T: Send + 'static>(
    patience: Duration,
    ask: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (answer_tx, answer_rx) = mpsc::channel();
    let asked = std::thread::Builder::new().spawn(move || {
        // Nobody listens any more when it was too late.
        let _ = answer_tx.send(ask());
    });
    asked.map_err(|error| format!("no thread: {error}"))?;
    answer_rx
        .recv_timeout(patience)
        .map_err(|_| format!("no answer in {} s", patience.as_secs()))
}

/// The first line of a small file, without blanks around it.
pub(super) fn line(path: impl AsRef<Path>) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.lines().next()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_does_not_answer_is_left_behind() {
        assert_eq!(patiently(|| 7), Ok(7));
        let (_keep, never) = mpsc::channel::<()>();
        let waited = within(Duration::ZERO, move || never.recv().is_ok());
        assert_eq!(waited, Err("no answer in 0 s".to_owned()));
    }
}
