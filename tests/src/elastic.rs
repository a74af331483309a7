//! An online KV cache that grows and shrinks, under test (`apps/kv_online.c`).

use crate::{Node, Running, compile, wait_for};
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};

/// A running `apps/kv_online.c`.
#[derive(Debug)]
pub struct Elastic {
    /// The process.
    pub process: Running,
    stdin: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Elastic {
    /// Starts it preloaded, online, as a job of its own.
    ///
    /// # Panics
    /// When it does not come up.
    #[track_caller]
    #[must_use]
    pub fn start(node: &Node) -> Self {
        let mut command = node.preloaded(compile("kv_online", &["-lcuda"]), "online");
        command
            .stdin(Stdio::piped())
            .env("TIDEGATE_JOB", format!("online-{}", node.device.pid()));
        let mut process = Running::start("kv_online", &mut command);
        let stdin = process.child.stdin.take().expect("stdin is piped");
        let lines = BufReader::new(process.child.stdout.take().expect("stdout is piped"));
        let mut elastic = Self {
            process,
            stdin,
            lines,
        };
        assert!(elastic.line().starts_with("ready "));
        elastic
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a pipe can be read");
        line
    }

    /// Asks until it has so many blocks more.
    ///
    /// # Panics
    /// When they do not come in time.
    #[track_caller]
    pub fn take(&mut self, blocks: u64) {
        let mut held = 0;
        wait_for("blocks for online", || {
            let answer = self.ask(&format!("reserve {}", blocks - held));
            let granted = answer.split(' ').next().and_then(|n| n.parse::<u64>().ok());
            held += granted.expect("it answers");
            (held == blocks).then_some(())
        });
    }

    /// Writes it a line; its answer.
    ///
    /// # Panics
    /// When it is gone.
    #[track_caller]
    pub fn ask(&mut self, what: &str) -> String {
        writeln!(self.stdin, "{what}").expect("the program lives");
        self.line().trim().to_owned()
    }
}
