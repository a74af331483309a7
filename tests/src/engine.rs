//! KV memory under test: a running engine (`apps/kv_engine.c`), and what the device's history says of its mappings.

use crate::clock::DEADLINE;
use crate::{Node, Running, compile, wait_for, wait_until};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::process::{ChildStdin, Stdio};
use std::sync::{Arc, Mutex};
use tidegate_vgpu::history::{Kind, Record};

/// A running `apps/kv_engine.c`.
#[derive(Debug)]
pub struct Engine {
    /// The process.
    pub process: Running,
    stdin: Option<ChildStdin>,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Engine {
    /// Starts it preloaded, offline, as a job of its own.
    #[track_caller]
    #[must_use]
    pub fn start(node: &Node, job: &str, args: &[&str]) -> Self {
        Self::start_with(node, job, args, &[])
    }

    /// As [`Self::start`], with environment variables.
    ///
    /// # Panics
    /// When it cannot be started.
    #[track_caller]
    #[must_use]
    pub fn start_with(node: &Node, job: &str, args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut command = node.preloaded(compile("kv_engine", &["-lcuda"]), "offline");
        command
            .args(args)
            .env("TIDEGATE_JOB", job)
            .envs(env.iter().copied())
            .stdin(Stdio::piped());
        let mut process = Running::start("kv_engine", &mut command);
        let stdin = process.child.stdin.take();
        let stdout = process.child.stdout.take().expect("stdout is piped");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let said = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                said.lock().expect("not poisoned").push(line);
            }
        });
        Self {
            process,
            stdin,
            lines,
        }
    }

    /// All numbers of lines that begin with `word`.
    fn numbers(&self, word: &str) -> Vec<u64> {
        let lines = self.lines.lock().expect("not poisoned");
        let mine = lines.iter().filter_map(|line| line.strip_prefix(word));
        mine.flat_map(|rest| rest.split(' ').filter_map(|n| n.parse().ok()))
            .collect()
    }

    /// The addresses of its cache, once it stands.
    ///
    /// # Panics
    /// When it does not come up.
    #[track_caller]
    pub fn ready(&self) -> Range<u64> {
        let at = wait_for("the engine's cache", || {
            let numbers = self.numbers("ready ");
            (numbers.len() == 2).then_some(numbers)
        });
        at[0]..at[0] + at[1]
    }

    /// Blocks it has been told are lost, and back.
    #[must_use]
    pub fn told(&self) -> (u64, u64) {
        (
            self.numbers("lost ").iter().sum(),
            self.numbers("back ").iter().sum(),
        )
    }

    /// Tokens accepted, all of them right, as of its last line.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.numbers("tokens ").last().copied().unwrap_or(0)
    }

    /// Writes it a line.
    ///
    /// # Panics
    /// When it is gone.
    #[track_caller]
    pub fn tell(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("stdin is piped");
        writeln!(stdin, "{line}").expect("the engine lives");
    }

    /// Waits for the `count`-th line that begins with `word`; its numbers.
    ///
    /// # Panics
    /// When it does not come.
    #[track_caller]
    pub fn line(&self, word: &str, count: usize) -> Vec<u64> {
        let name = format!("line {count} of {word:?}");
        wait_for(&name, || {
            let lines = self.lines.lock().expect("not poisoned");
            let mut mine = lines.iter().filter_map(|line| line.strip_prefix(word));
            let rest = mine.nth(count - 1)?;
            Some(rest.split(' ').filter_map(|n| n.parse().ok()).collect())
        })
    }

    /// Has it make a call that waits for the GPU, from a thread of its own, and waits until that thread sleeps in it.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    pub fn calls(&mut self, call: &str) {
        self.tell(&format!("call {call}"));
        let tid = self.line(&format!("calling {call} "), 1)[0];
        let stat = format!("/proc/{}/task/{tid}/stat", self.process.pid());
        let mut asleep = 0;
        wait_for("the call to wait", || {
            let text = std::fs::read_to_string(&stat).ok()?;
            let sleeps = text
                .rsplit(')')
                .next()
                .is_some_and(|rest| rest.trim_start().starts_with('S'));
            asleep = if sleeps { asleep + 1 } else { 0 };
            (asleep == 5).then_some(())
        });
    }

    /// Waits until it has accepted so many more tokens.
    ///
    /// # Panics
    /// When it does not go on.
    #[track_caller]
    pub fn goes_on(&mut self, tokens: u64) {
        if let Err(end) = self.progress(tokens) {
            panic!("{end}");
        }
    }

    /// As [`Self::goes_on`]; otherwise what became of it.
    ///
    /// # Errors
    /// When it ended, or stands still.
    pub fn progress(&mut self, tokens: u64) -> Result<(), String> {
        let from = self.tokens();
        let went = wait_until(DEADLINE, || match self.process.child.try_wait() {
            Ok(Some(status)) => Some(Err(format!("the engine ended: {status}"))),
            _ => (self.tokens() >= from + tokens).then_some(Ok(())),
        });
        if let Some(Err(end)) = went {
            // What it wrote says why.
            let mut wrote = String::new();
            if let Some(mut stderr) = self.process.child.stderr.take() {
                let _ = stderr.read_to_string(&mut wrote);
            }
            return Err(format!("{end}; it wrote\n{wrote}"));
        }
        went.unwrap_or_else(|| {
            let now = self.tokens();
            Err(format!(
                "the engine stands still: {now} tokens, {from} before"
            ))
        })
    }

    /// Ends it; it must not have failed.
    #[track_caller]
    pub fn stop(mut self) {
        if let Some(mut stdin) = self.stdin.take() {
            let _ = writeln!(stdin, "stop");
        }
        self.process.succeed();
    }
}

/// What the device saw go wrong with the memory of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wrong {
    /// Mappings inside `range` that were taken away or replaced while a channel of it was enabled.
    pub unmaps: Vec<Record>,
    /// Faults.
    pub faults: Vec<Record>,
}

/// Judges the mappings of process `pid` inside `range` by the device's history.
#[must_use]
pub fn judge(records: &[Record], pid: u32, range: &Range<u64>) -> Wrong {
    let mut ordered: Vec<&Record> = records.iter().filter(|record| record.pid == pid).collect();
    ordered.sort_by_key(|record| record.at_ns);
    let mut enabled = BTreeSet::new();
    let mut wrong = Wrong::default();
    for record in ordered {
        let channel = (record.client, record.object);
        match record.kind {
            Kind::ChannelUp | Kind::EnableEnd => {
                enabled.insert(channel);
            }
            Kind::ChannelDown | Kind::DisableEnd => {
                enabled.remove(&channel);
            }
            Kind::Fault => wrong.faults.push(*record),
            _ if takes(record) && range.contains(&record.value) && !enabled.is_empty() => {
                wrong.unmaps.push(*record);
            }
            _ => {}
        }
    }
    wrong
}

/// Whether a mapping was taken away. A range that is freed goes with its allocation; a map counts where it replaces one.
#[must_use]
pub fn takes(record: &Record) -> bool {
    match record.kind {
        Kind::Unmap => record.object != 1,
        Kind::Map => record.object == 1,
        _ => false,
    }
}
