//! The driven online program (`apps/online.c`): the test decides when it launches.

use crate::{Node, Running, compile};
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A running `apps/online.c`.
#[derive(Debug)]
pub struct Online {
    /// The process.
    pub process: Running,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Online {
    /// Starts it preloaded on device `ordinal` and waits until it has its context.
    #[track_caller]
    #[must_use]
    pub fn start(node: &Node, ordinal: usize) -> Self {
        let mut command = node.preloaded(compile("online", &["-lcuda"]), "online");
        command.arg(ordinal.to_string()).stderr(Stdio::inherit());
        Self::from_command(&mut command)
    }

    /// Starts `command`, which runs the program in some other way.
    ///
    /// # Panics
    /// When it does not come up.
    #[track_caller]
    pub fn from_command(command: &mut std::process::Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Running::start("online", command);
        let commands = process.child.stdin.take().expect("stdin is piped");
        let answers = BufReader::new(process.child.stdout.take().expect("stdout is piped"));
        let mut online = Self {
            process,
            commands,
            answers,
        };
        online.answer();
        online
    }

    /// Sends one command without waiting for its answer.
    ///
    /// # Panics
    /// When the program is gone.
    #[track_caller]
    pub fn send(&mut self, command: &str) {
        writeln!(self.commands, "{command}").expect("the online program reads commands");
    }

    /// Waits for the next answer: `CLOCK_MONOTONIC` nanoseconds at which the command was done.
    ///
    /// # Panics
    /// When the program is gone or answers something else.
    #[track_caller]
    pub fn answer(&mut self) -> u64 {
        self.answer_fields()[0]
    }

    /// As [`Self::answer`], with all the numbers of the answer.
    ///
    /// # Panics
    /// When the program is gone or answers something else.
    #[track_caller]
    pub fn answer_fields(&mut self) -> Vec<u64> {
        let mut line = String::new();
        self.answers
            .read_line(&mut line)
            .expect("the online program answers");
        let fields = line.trim().strip_prefix("ok ").and_then(|numbers| {
            numbers
                .split(' ')
                .map(|n| n.parse().ok())
                .collect::<Option<Vec<u64>>>()
        });
        fields.unwrap_or_else(|| panic!("the online program answered {line:?}"))
    }

    /// One request: `iterations` decode iterations of `ns` with gaps of `gap_ns` behind a prefill.
    ///
    /// # Panics
    /// When the program is gone.
    #[track_caller]
    pub fn request(&mut self, iterations: u32, ns: u64, gap_ns: u64) -> Request {
        self.send(&format!("request {iterations} {ns} {gap_ns}"));
        let fields = self.answer_fields();
        Request {
            end_ns: fields[0],
            start_ns: fields[1],
            longest_gap_ns: fields[2],
        }
    }

    /// One command and its answer.
    #[track_caller]
    pub fn say(&mut self, command: &str) -> u64 {
        self.send(command);
        self.answer()
    }
}

/// An online program that has its GPU for every other eighth of a second, until this value is dropped.
#[derive(Debug)]
pub struct HalfOfTheTime {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl HalfOfTheTime {
    /// Begins.
    #[must_use]
    pub fn of(mut online: Online) -> Self {
        const EIGHTH: Duration = Duration::from_millis(125);
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                online.say("hold");
                std::thread::sleep(EIGHTH);
                online.say("release");
                std::thread::sleep(EIGHTH);
            }
        });
        Self {
            over,
            thread: Some(thread),
        }
    }
}

impl Drop for HalfOfTheTime {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(
            std::thread::panicking() || matches!(ended, Some(Ok(()))),
            "the load went on"
        );
    }
}

/// A request as the online program itself saw it.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// When its first launch was made.
    pub start_ns: u64,
    /// When its last iteration was seen done.
    pub end_ns: u64,
    /// Longest gap between two of its iterations.
    pub longest_gap_ns: u64,
}

/// A running `apps/offline.c` that has finished its first kernels.
#[derive(Debug)]
pub struct Offline {
    /// The process.
    pub process: Running,
    answers: BufReader<ChildStdout>,
}

impl Offline {
    /// Starts it preloaded with kernels of `ns` nanoseconds on the devices `ordinals`, without
    /// waiting for its first kernels: with a busy online program they do not come.
    #[track_caller]
    #[must_use]
    pub fn start(node: &Node, ns: u64, ordinals: &[usize]) -> Self {
        let mut command = node.preloaded(compile("offline", &["-lcuda"]), "offline");
        command
            .arg(ns.to_string())
            .args(ordinals.iter().map(ToString::to_string));
        Self::from_command(&mut command)
    }

    /// Starts `command`, which runs the program in some other way.
    ///
    /// # Panics
    /// When it cannot be started.
    #[track_caller]
    pub fn from_command(command: &mut std::process::Command) -> Self {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        let mut process = Running::start("offline", command);
        let answers = BufReader::new(process.child.stdout.take().expect("stdout is piped"));
        Self { process, answers }
    }

    /// Waits until its first kernels have finished.
    ///
    /// # Panics
    /// When it ends first.
    #[track_caller]
    pub fn running(&mut self) {
        let mut line = String::new();
        self.answers
            .read_line(&mut line)
            .expect("the offline program answers");
        assert_eq!(line.trim(), "running", "the offline program ran");
    }

    /// Ends it as its user would, and returns how many kernels it saw finish.
    ///
    /// # Panics
    /// When it does not end by itself.
    #[track_caller]
    pub fn stop(mut self) -> u64 {
        self.process.signal(libc::SIGTERM);
        let mut line = String::new();
        self.answers
            .read_line(&mut line)
            .expect("the offline program answers");
        let done = line.trim().parse();
        self.process.succeed();
        done.unwrap_or_else(|_| panic!("the offline program answered {line:?}"))
    }
}
