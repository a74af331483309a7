//! A scripted peer of the agent (`src/bin/scripted-peer`), driven line by line.

use crate::cgroup::Cgroup;
use crate::{Node, Running, built, clock, wait_until};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The user of a process without rights.
pub const NOBODY: u32 = 65_534;

/// A process that attaches as its test says.
#[derive(Debug)]
pub struct Peer {
    /// The process.
    pub running: Running,
    stdin: Option<ChildStdin>,
    lines: Arc<Mutex<Vec<String>>>,
    read: usize,
}

impl Peer {
    /// Starts one on `node`, with nothing said yet.
    ///
    /// # Panics
    /// When it does not start.
    #[track_caller]
    #[must_use]
    pub fn start(node: &Node) -> Self {
        Self::from_command(node.plain(built("scripted-peer")))
    }

    /// Starts one with a CUDA context under the library, which attaches for it as `role`.
    ///
    /// # Panics
    /// When it does not start.
    #[track_caller]
    #[must_use]
    pub fn preloaded(node: &Node, role: &str) -> Self {
        let mut peer = Self::from_command(node.preloaded(built("scripted-peer"), role));
        peer.ask("cuda");
        peer
    }

    /// Starts one that the virtual GPU knows, of the user that nobody is; `node` is open to all users.
    ///
    /// # Panics
    /// When it does not start.
    #[track_caller]
    #[must_use]
    pub fn of_nobody(node: &Node) -> Self {
        Self::of_user(node, NOBODY)
    }

    /// The same, of another user.
    ///
    /// # Panics
    /// When it does not start.
    #[track_caller]
    #[must_use]
    pub fn of_user(node: &Node, user: u32) -> Self {
        let mut command = node.plain(built("scripted-peer"));
        command.uid(user).gid(user);
        Self::from_command(command)
    }

    /// Starts one in a cgroup.
    ///
    /// # Panics
    /// When it does not start.
    #[track_caller]
    #[must_use]
    pub fn in_cgroup(node: &Node, cgroup: &Cgroup) -> Self {
        let mut command = node.plain("/bin/sh");
        let (procs, program) = (cgroup.path().join("cgroup.procs"), built("scripted-peer"));
        let line = format!(
            "echo $$ > {} && exec {}",
            procs.display(),
            program.display()
        );
        command.args(["-c", &line]);
        Self::from_command(command)
    }

    #[track_caller]
    fn from_command(mut command: std::process::Command) -> Self {
        command.stdin(Stdio::piped()).stderr(Stdio::inherit());
        let mut running = Running::start("scripted-peer", &mut command);
        let stdin = running.child.stdin.take();
        let stdout = running.child.stdout.take().expect("stdout is piped");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let said = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                said.lock().expect("not poisoned").push(line);
            }
        });
        Self {
            running,
            stdin,
            lines,
            read: 0,
        }
    }

    /// Starts one that attaches as `role` with GPU 0 in place 0.
    ///
    /// # Panics
    /// When it cannot.
    #[track_caller]
    #[must_use]
    pub fn attached(node: &Node, role: &str, job: &str) -> Self {
        let mut peer = Self::start(node);
        peer.ask("connect");
        peer.ask(&format!("hello {role} {job}"));
        peer.ask("device 0 0");
        peer
    }

    /// As [`Self::attached`], online and idle.
    ///
    /// # Panics
    /// When it cannot.
    #[track_caller]
    #[must_use]
    pub fn idle_online(node: &Node) -> Self {
        let mut online = Self::attached(node, "online", "");
        online.ask("idle 0");
        online
    }

    /// Has it obey one command; its answer.
    ///
    /// # Panics
    /// When it does not answer, or answers with an error.
    #[track_caller]
    pub fn ask(&mut self, command: &str) -> String {
        let answer = self.try_ask(command);
        assert!(!answer.starts_with("error"), "{command}: {answer}");
        answer
    }

    /// As [`Self::ask`], and an error is an answer too.
    ///
    /// # Panics
    /// When it does not answer.
    #[track_caller]
    pub fn try_ask(&mut self, command: &str) -> String {
        let answer = self.ask_within(clock::DEADLINE, command);
        answer.unwrap_or_else(|| panic!("no answer to {command}"))
    }

    /// As [`Self::try_ask`]; none: no answer has come for so long.
    ///
    /// # Panics
    /// When it is gone.
    #[track_caller]
    pub fn ask_within(&mut self, limit: Duration, command: &str) -> Option<String> {
        self.tell(command);
        let mut at = self.read;
        let answer = wait_until(limit, || {
            let lines = self.lines.lock().expect("not poisoned");
            let line = lines.get(at)?;
            at += 1;
            (!line.starts_with('<')).then(|| line.clone())
        });
        self.read = at;
        answer
    }

    /// Has it begin to obey one command, without waiting for the answer.
    ///
    /// # Panics
    /// When it is gone.
    #[track_caller]
    pub fn tell(&mut self, command: &str) {
        let stdin = self.stdin.as_mut().expect("stdin is piped");
        writeln!(stdin, "{command}").expect("the peer lives");
    }

    /// Whether the agent has said `line` so far.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn heard(&self, line: &str) -> bool {
        self.times(line) > 0
    }

    /// How often the agent has said `line` so far.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn times(&self, line: &str) -> usize {
        let lines = self.lines.lock().expect("not poisoned");
        let said = lines.iter().filter(|said| **said == format!("< {line}"));
        said.count()
    }

    /// Makes `count` channels on GPU `gpu` and reports them; (client, channels).
    ///
    /// # Panics
    /// When it cannot.
    #[track_caller]
    pub fn channels(&mut self, gpu: u32, count: u32) -> (u32, Vec<u32>) {
        let made = self.ask(&format!("make {gpu} {count}"));
        let words: Vec<&str> = made.split(' ').skip(1).collect();
        self.ask(&format!("report {gpu} {}", words.join(" ")));
        let number =
            |word: &&str| u32::from_str_radix(word.trim_start_matches("0x"), 16).expect("a handle");
        let handles: Vec<u32> = words.iter().map(number).collect();
        (handles[0], handles[1..].to_vec())
    }
}
