//! A process with GPU work of its own, from both ends.
//!
//! ```text
//!  who tries something            its worker, libtidegate.so preloaded
//!    Worker::say   ---- stdin ---->  listen
//!    Worker::line  <--- stdout ----  say
//! ```
//!
//! What the lines mean, the two agree on. A worker ends when its input does, so it outlives nobody who
//! started it. Who kills one enables its channels first: a disabled process that dies may stall the driver.

use crate::sys::monotonic_ns;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// How long a killed worker may take to end.
const LAST: Duration = Duration::from_secs(10);
/// It is asked this often whether it has.
const TURN: Duration = Duration::from_millis(1);

/// Puts `first` before what this process inherited in a variable that lists paths.
pub fn put_first(command: &mut Command, name: &str, first: &Path) {
    let mut all = first.as_os_str().to_owned();
    if let Some(inherited) = std::env::var_os(name).filter(|text| !text.is_empty()) {
        all.push(":");
        all.push(inherited);
    }
    command.env(name, all);
}

/// A worker. Killed with this value.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

/// The worker says nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the worker is gone")]
pub struct Gone;

impl Worker {
    /// Starts it.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(mut command: Command) -> std::io::Result<Self> {
        let (line_tx, lines) = channel();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take();
        let worker = Self {
            input: child.stdin.take(),
            child,
            lines,
        };
        let read = move || {
            let lines = output.map(|output| BufReader::new(output).lines());
            for line in lines.into_iter().flatten().map_while(Result::ok) {
                if line_tx.send(line).is_err() {
                    break;
                }
            }
        };
        let thread = std::thread::Builder::new().name("tg-worker-out".to_owned());
        thread.spawn(read)?;
        Ok(worker)
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells it a line.
    ///
    /// # Errors
    /// When it is gone.
    pub fn say(&mut self, line: &str) -> std::io::Result<()> {
        let input = self.input.as_mut();
        let input = input.ok_or(std::io::ErrorKind::BrokenPipe)?;
        writeln!(input, "{line}")
    }

    /// Its next line; none: it has not said one in time.
    ///
    /// # Errors
    /// When it has said everything.
    pub fn line(&self, limit: Duration) -> Result<Option<String>, Gone> {
        match self.lines.recv_timeout(limit) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Gone),
        }
    }

    /// Ends its input, and so asks it to end.
    pub fn end_input(&mut self) {
        self.input = None;
    }

    /// How it ended, if it did.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Kills it.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// Waits for its end; whether it came in time.
    pub fn ended(&mut self, limit: Duration) -> bool {
        let end = monotonic_ns().saturating_add(nanos(limit));
        while self.status().is_none() {
            if monotonic_ns() >= end {
                return false;
            }
            std::thread::sleep(TURN);
        }
        true
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
        // One that hangs in the driver is not waited for: the kernel has it, and no signal ends it.
        self.ended(LAST);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// One line of the worker's, at once; who does not read it is gone, and the end of the input will tell.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// What the worker is told, line by line. When its input has ended it has a grace to end by itself: a call
/// of the driver may never return.
///
/// # Errors
/// When no thread can be made.
pub fn listen<T: Send + 'static>(
    grace: Duration,
    understand: impl Fn(&str) -> T + Send + 'static,
) -> std::io::Result<Receiver<T>> {
    let (told_tx, told_rx) = channel();
    let run = move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if told_tx.send(understand(&line)).is_err() {
                break;
            }
        }
        drop(told_tx);
        std::thread::sleep(grace);
        // SAFETY: ends the process at once; nothing of it is of use to anybody any more.
        unsafe { libc::_exit(1) };
    };
    std::thread::Builder::new().spawn(run)?;
    Ok(told_rx)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    #[test]
    fn a_worker_is_told_lines_and_ends_with_its_input() {
        let mut echo = Worker::start(Command::new("cat")).expect("cat exists");
        echo.say("read").expect("it listens");
        assert_eq!(echo.line(SOON), Ok(Some("read".to_owned())));
        assert_eq!(echo.line(Duration::ZERO), Ok(None));
        assert_eq!(echo.status(), None);
        echo.end_input();
        assert_eq!(echo.line(SOON), Err(Gone));
        assert!(echo.ended(SOON));
        assert!(echo.say("read").is_err());
    }

    #[test]
    fn what_comes_first_comes_before_what_was_inherited() {
        let mut command = Command::new("true");
        put_first(&mut command, "PATH", Path::new("/first"));
        put_first(&mut command, "TIDEGATE_NOT_SET", Path::new("/first"));
        let mut set = command
            .get_envs()
            .map(|(name, value)| (name.to_owned(), value));
        let (_, path) = set.next().expect("two were set");
        let path = path.and_then(|path| path.to_str()).expect("text");
        assert!(path.starts_with("/first:"), "{path}");
        let (_, alone) = set.next().expect("two were set");
        assert_eq!(alone, Some("/first".as_ref()));
    }
}
