//! KV memory under test: a running engine (`apps/kv_engine.c`), and what the device's history says of its mappings.

use crate::{Node, Running, compile, wait_for};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
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

    /// Waits until it has accepted so many more tokens.
    ///
    /// # Panics
    /// When it does not go on.
    #[track_caller]
    pub fn goes_on(&mut self, tokens: u64) {
        let from = self.tokens();
        let name = format!("{tokens} tokens after {from}");
        wait_for(&name, || {
            let ended = self.process.child.try_wait().expect("a child of ours");
            assert!(ended.is_none(), "the engine ended: {ended:?}");
            (self.tokens() >= from + tokens).then_some(())
        });
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
            // A range that is freed goes with its allocation; a map counts where it replaces one.
            Kind::Unmap | Kind::Map => {
                let taken = (record.kind == Kind::Map) == (record.object == 1);
                if taken && range.contains(&record.value) && !enabled.is_empty() {
                    wrong.unmaps.push(*record);
                }
            }
            _ => {}
        }
    }
    wrong
}
