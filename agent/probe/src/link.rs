//! A worker as a probe holds it.

use crate::message::{Answer, Done, Op, Request, Wait};
use crate::trace::Trace;
use anyhow::{Context, bail};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tidegate_driver::stop_and_resume::{Counters, goes_on};
use tidegate_driver::worker::{self, Gone, put_first};

/// How long an operation may take that should not wait for anything.
pub const PROMPT: Duration = Duration::from_secs(30);

/// How a worker is started.
#[derive(Clone, Debug)]
pub struct Preload {
    /// The preload library; None: the worker runs without it, and nothing is known of its channels.
    pub library: Option<PathBuf>,
    /// Where a `libcuda.so.1` lies that is not the system's.
    pub driver: Option<PathBuf>,
    /// Pipe directory of the MPS daemon whose client the worker is.
    pub mps: Option<PathBuf>,
    /// Further variables of the worker's environment; None: the variable is not set, whatever this process has.
    pub variables: Vec<(&'static str, Option<String>)>,
}

/// A worker process that takes requests. Killed with this value: who disabled its channels enables them first.
#[derive(Debug)]
pub struct Worker {
    process: worker::Worker,
    early: HashMap<u64, Answer>,
    next: u64,
    /// Its driver calls.
    pub trace: Trace,
}

/// A request that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

impl Worker {
    /// Starts a worker whose files go to `dir` under `name`.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(dir: &Path, name: &str, preload: &Preload) -> anyhow::Result<Self> {
        let trace = Trace::new(dir.join(format!("{name}.trace")));
        // An earlier worker of that name had other channels.
        let _ = std::fs::remove_file(trace.path());
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("worker");
        if let Some(library) = &preload.library {
            put_first(&mut command, "LD_PRELOAD", library);
            command
                .env("TIDEGATE_RM_TRACE", trace.path())
                .env("TIDEGATE_RUN_DIR", dir.join("no-agent"))
                .env_remove("TIDEGATE_ROLE");
        }
        if let Some(driver) = &preload.driver {
            put_first(&mut command, "LD_LIBRARY_PATH", driver);
        }
        if let Some(pipes) = &preload.mps {
            command.env("CUDA_MPS_PIPE_DIRECTORY", pipes);
        }
        for (name, value) in &preload.variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Ok(Self {
            process: worker::Worker::start(command).context("cannot start a worker")?,
            early: HashMap::new(),
            next: 0,
            trace,
        })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Sends operations to a lane.
    ///
    /// # Errors
    /// When the worker is gone.
    pub fn send(&mut self, lane: &str, ops: Vec<Op>) -> anyhow::Result<Ticket> {
        self.next += 1;
        let request = Request {
            id: self.next,
            lane: lane.to_owned(),
            ops,
        };
        let line = serde_json::to_string(&request)?;
        self.process.say(&line).context("the worker is gone")?;
        Ok(Ticket(self.next))
    }

    /// Waits for an answer; `None` when it does not come in time (it still may).
    ///
    /// # Errors
    /// When the worker is gone or an operation failed.
    pub fn wait(&mut self, ticket: Ticket, limit: Duration) -> anyhow::Result<Option<Vec<Done>>> {
        let end = crate::clock::now_ns() + crate::clock::nanos(limit);
        loop {
            if let Some(answer) = self.early.remove(&ticket.0) {
                return match answer.error {
                    None => Ok(Some(answer.done)),
                    Some(error) => bail!(error),
                };
            }
            let left = end.saturating_sub(crate::clock::now_ns());
            let said = match self.process.line(Duration::from_nanos(left)) {
                Ok(None) => return Ok(None),
                Ok(Some(line)) => serde_json::from_str(&line).map_err(|_| Gone),
                Err(gone) => Err(gone),
            };
            let answer: Answer = match said {
                Ok(answer) => answer,
                Err(gone) => bail!("{gone} ({:?})", self.process.status()),
            };
            self.early.insert(answer.id, answer);
        }
    }

    /// Sends and waits.
    ///
    /// # Errors
    /// When the worker is gone, an operation failed, or it takes longer than [`PROMPT`].
    pub fn call(&mut self, lane: &str, ops: Vec<Op>) -> anyhow::Result<Vec<Done>> {
        let what = format!("{ops:?}");
        let ticket = self.send(lane, ops)?;
        self.wait(ticket, PROMPT)?
            .with_context(|| format!("no answer in {PROMPT:?} to {what}"))
    }

    /// One operation on the main lane.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn one(&mut self, op: Op) -> anyhow::Result<Done> {
        let done = self.call("main", vec![op])?;
        done.first().copied().context("an empty answer")
    }

    /// Makes the context on device `ordinal`; total memory of the device.
    ///
    /// # Errors
    /// The driver's.
    pub fn context(&mut self, ordinal: i32, wait: Wait) -> anyhow::Result<Done> {
        let done = self.one(Op::Context { ordinal, wait })?;
        self.trace.read()?;
        Ok(done)
    }

    /// Kernel progress so far.
    ///
    /// # Errors
    /// When the worker is gone.
    pub fn progress(&mut self) -> anyhow::Result<u64> {
        Ok(self.one(Op::Progress)?.value)
    }

    /// Waits until the progress has passed `from`.
    ///
    /// # Errors
    /// When it does not in time.
    pub fn moved(&mut self, from: u64, limit: Duration) -> anyhow::Result<()> {
        match goes_on(self, &[from], limit)? {
            Ok(()) => Ok(()),
            Err(_) => bail!("no progress in {limit:?}"),
        }
    }

    /// How far the progress moves in `time`.
    ///
    /// # Errors
    /// When the worker is gone.
    pub fn progress_over(&mut self, time: Duration) -> anyhow::Result<u64> {
        let before = self.progress()?;
        crate::clock::pause(time);
        Ok(self.progress()? - before)
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Waits for its end; whether it came in time.
    pub fn ended(&mut self, limit: Duration) -> bool {
        self.process.ended(limit)
    }
}

impl Counters for Worker {
    type Error = anyhow::Error;

    fn counters(&mut self) -> anyhow::Result<Vec<u64>> {
        Ok(vec![self.progress()?])
    }

    fn pass(&mut self, time: Duration) {
        crate::clock::pause(time);
    }

    fn look_again(&mut self) {
        crate::clock::pause(Duration::from_millis(1));
    }
}
