//! The machine the demo runs on: the device, virtual or real, the agent, and how programs start.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;
use tidegate_tests::{Node, Running, TRUSTING, TempDir, built, compile, monotonic_ns};
use tidegate_vgpu::history::{Reader, Record};

use crate::interrupt;

/// Which GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Device {
    /// The virtual GPU: real processes, no hardware.
    Virtual,
    /// GPU 0 of this machine.
    Real,
}

/// Whether a program runs under the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// As if Tidegate did not exist.
    Plain,
    /// Under the library, with this role.
    Preloaded(&'static str),
}

/// Device, agent and programs. Everything it started ends with it.
#[derive(Debug)]
pub struct Stand {
    machine: Machine,
    /// The compiled online program.
    pub online: PathBuf,
    /// The compiled offline program.
    pub offline: PathBuf,
}

#[derive(Debug)]
enum Machine {
    Virtual {
        node: Node,
        history: Reader,
        records: Vec<Record>,
    },
    Real {
        agent: Option<Running>,
        dir: TempDir,
    },
}

impl Stand {
    /// Starts the device; a virtual one with these arguments.
    ///
    /// # Errors
    /// When its history cannot be read.
    pub fn new(device: Device, args: &[&str]) -> anyhow::Result<Self> {
        let machine = match device {
            Device::Virtual => {
                let node = Node::device_only(args);
                let history =
                    Reader::open(&node.vgpu_dir()).context("the virtual GPU's history")?;
                Machine::Virtual {
                    node,
                    history,
                    records: Vec::new(),
                }
            }
            Device::Real => Machine::Real {
                agent: None,
                dir: TempDir::new(),
            },
        };
        let dir = match &machine {
            Machine::Virtual { node, .. } => node.dir(),
            Machine::Real { dir, .. } => dir.path(),
        };
        let [online, offline] = [named("llm_online", dir)?, named("llm_offline", dir)?];
        Ok(Self {
            machine,
            online,
            offline,
        })
    }

    /// Starts the agent with the demo's configuration and waits until it serves.
    ///
    /// # Errors
    /// When it does not.
    pub fn start_agent(&mut self, cooldown_fixed: Option<Duration>) -> anyhow::Result<()> {
        let mut config = TRUSTING.to_owned();
        if let Some(cooldown) = cooldown_fixed {
            config += &format!("\n[gate]\ncooldown = \"{}ms\"\n", cooldown.as_millis());
        }
        match &mut self.machine {
            Machine::Virtual { node, .. } => node.start_agent(&config),
            Machine::Real { agent, dir } => {
                let file = dir.path().join("agent.toml");
                std::fs::write(&file, config)?;
                std::fs::create_dir_all(dir.path().join("run"))?;
                let log = File::create(dir.path().join("agent.log"))?;
                let mut command = Command::new(built("tidegate-agent"));
                command
                    .arg("--config")
                    .arg(file)
                    .env("TIDEGATE_RUN_DIR", dir.path().join("run"));
                command
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(log);
                *agent = Some(Running::start("tidegate-agent", &mut command));
                self.wait("the agent to serve", |stand| {
                    Ok(stand.tidegate(&["status"]).is_ok().then_some(()))
                })?;
            }
        }
        Ok(())
    }

    /// A command of `program` on this stand; what it says goes to a file beside its log.
    ///
    /// # Errors
    /// When that file cannot be made.
    pub fn command(&self, program: &Path, lane: Lane) -> anyhow::Result<Command> {
        let mut command = match (&self.machine, lane) {
            (Machine::Virtual { node, .. }, Lane::Plain) => node.plain(program),
            (Machine::Virtual { node, .. }, Lane::Preloaded(role)) => node.preloaded(program, role),
            (Machine::Real { .. }, Lane::Plain) => Command::new(program),
            (Machine::Real { dir, .. }, Lane::Preloaded(role)) => {
                let mut command = Command::new(program);
                command
                    .env("LD_PRELOAD", built("libtidegate.so"))
                    .env("TIDEGATE_RUN_DIR", dir.path().join("run"))
                    .env("TIDEGATE_ROLE", role);
                command
            }
        };
        if lane == Lane::Preloaded("offline") {
            command.env("TIDEGATE_JOB", "batch");
        }
        let name = program.file_name().unwrap_or_default();
        let said = self.dir().join(name).with_extension("stderr");
        let said = File::options().create(true).append(true).open(said)?;
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(said);
        Ok(command)
    }

    /// The agent's process, once there is one.
    #[must_use]
    pub fn agent(&self) -> Option<u32> {
        let (Machine::Virtual {
            node: Node { agent, .. },
            ..
        }
        | Machine::Real { agent, .. }) = &self.machine;
        agent.as_ref().map(Running::pid)
    }

    /// Where files of this run go.
    #[must_use]
    pub fn dir(&self) -> &Path {
        match &self.machine {
            Machine::Virtual { node, .. } => node.dir(),
            Machine::Real { dir, .. } => dir.path(),
        }
    }

    /// The agent's sockets.
    #[must_use]
    pub fn run_dir(&self) -> PathBuf {
        self.dir().join("run")
    }

    /// The device's history so far; nothing on hardware, which keeps none.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn history(&mut self) -> anyhow::Result<&[Record]> {
        match &mut self.machine {
            Machine::Virtual {
                history, records, ..
            } => {
                records.extend(history.read_new().context("the virtual GPU's history")?);
                Ok(records)
            }
            Machine::Real { .. } => Ok(&[]),
        }
    }

    /// What `tidegate ARGS --output json` says.
    ///
    /// # Errors
    /// When it fails.
    pub fn tidegate(&self, args: &[&str]) -> anyhow::Result<Value> {
        let mut lines = self.tidegate_lines(args)?;
        lines.pop().context("tidegate said nothing")
    }

    /// Every value of what `tidegate ARGS --output json` says.
    fn tidegate_lines(&self, args: &[&str]) -> anyhow::Result<Vec<Value>> {
        let output = Command::new(built("tidegate"))
            .args(args)
            .args(["--output", "json"])
            .env("TIDEGATE_RUN_DIR", self.run_dir())
            .stdin(Stdio::null())
            .output()?;
        if !output.status.success() {
            bail!(
                "tidegate {}: {}",
                args.join(" "),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        let values = serde_json::Deserializer::from_slice(&output.stdout).into_iter();
        Ok(values.collect::<Result<_, _>>()?)
    }

    /// When the agent's preemptions began, by its own events.
    ///
    /// # Errors
    /// When it does not say.
    pub fn preempted_ns(&self) -> anyhow::Result<Vec<u64>> {
        let lines = self.tidegate_lines(&["events"])?;
        let preempted = lines.iter().filter(|event| event["kind"] == "preempted");
        let begun = |event: &Value| {
            let [at, latency] = ["at_ns", "value_ns"].map(|key| event[key].as_u64());
            at?.checked_sub(latency?)
        };
        Ok(preempted.filter_map(begun).collect())
    }

    /// Asks `look` until it answers.
    ///
    /// # Errors
    /// When `look` fails, the user interrupts, or 20 s pass.
    pub fn wait<T>(
        &mut self,
        what: &str,
        mut look: impl FnMut(&mut Self) -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        let end = monotonic_ns() + Duration::from_secs(20).as_nanos() as u64;
        loop {
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            if monotonic_ns() > end {
                bail!(
                    "waited 20 s for {what}; see the logs in {}",
                    self.dir().display()
                );
            }
            interrupt::pause(Duration::from_millis(10))?;
        }
    }

    /// Lets everything run on after the demo; returns the process ids.
    #[must_use]
    pub fn leave(self) -> Vec<u32> {
        let pids = match &self.machine {
            Machine::Virtual { node, .. } => node
                .agent
                .iter()
                .chain([&node.device])
                .map(Running::pid)
                .collect(),
            Machine::Real { agent, .. } => agent.iter().map(Running::pid).collect(),
        };
        std::mem::forget(self);
        pids
    }
}

/// Compiles `name`; returns a path in `dir` that ends in it, so that `tidegate status` shows it.
fn named(name: &str, dir: &Path) -> std::io::Result<PathBuf> {
    let program = dir.join(name);
    std::os::unix::fs::symlink(compile(name, &["-lcuda"]), &program)?;
    Ok(program)
}
