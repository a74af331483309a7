//! The command line `tidegate`: a thin client of the gRPC services.

mod cdi;
mod config;
mod doctor;
mod events;
mod explain;
mod json;
pub mod manual;
mod probe;
mod release;
mod replay;
mod report;
mod steer;
mod table;
mod top;
mod trace;

use crate::device::Device;
use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate_proto::{CONTROL_SOCKET, RUN_DIR, RUN_DIR_ENV, STATUS_SOCKET, v1};
use tonic::transport::{Channel, Endpoint};

/// Look at and steer the GPU colocation of this node.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, after_help = EXIT_CODES)]
pub struct Cli {
    /// The agent's directory.
    #[arg(long, global = true, env = RUN_DIR_ENV, default_value = RUN_DIR, value_name = "DIR")]
    run_dir: PathBuf,
    /// The socket to speak to, instead of one in the agent's directory.
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 success; 1 the operation failed; 2 wrong usage; \
3 the agent is absent or refuses. Of doctor: 0 nothing to do; 1 warnings; 2 failures.";

#[derive(Debug, Subcommand)]
enum Command {
    /// GPUs, jobs and processes, and the state of their gates.
    Status {
        /// How to print it.
        #[arg(long, short, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// The node, live: GPUs, gates, jobs, processes.
    Top(top::Args),
    /// What happened, oldest first.
    Events(events::Args),
    /// What was harvested over days, from the history the agent keeps. Needs no agent.
    Report(report::Args),
    /// What the agent logs from now on.
    LogLevel {
        /// error, warn, info, debug, trace, or a filter; as configured unless given.
        filter: Option<String>,
    },
    /// Close the gate of a job, or of every job, until `resume`.
    Pause {
        /// The job.
        job: Option<String>,
    },
    /// Undo `pause`.
    Resume {
        /// The job.
        job: Option<String>,
    },
    /// Let no offline job run, those to come included, until `undrain`.
    Drain,
    /// Undo `drain`.
    Undrain,
    /// Change a setting on the running agent, until it ends: `gate.cooldown=20ms`.
    Set {
        /// KEY=VALUE, or KEY with --unset.
        #[arg(value_name = "KEY=VALUE")]
        assignment: String,
        /// Take back what was set.
        #[arg(long)]
        unset: bool,
    },
    /// Make the agent read its configuration again; says what changed, and what needs a restart.
    Reload,
    /// Why a process is what it is and runs or waits, or why a memory handle was taken.
    #[command(subcommand)]
    Explain(explain::What),
    /// The hooks of attached processes: installed, resolved, calls.
    Hooks {
        /// One process.
        pid: Option<i32>,
        /// How to print it.
        #[arg(long, short, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Record what happens on the node, for a trace viewer such as <https://ui.perfetto.dev>.
    Trace {
        /// For how long.
        #[arg(long, default_value = "10", value_name = "S", value_parser = recording)]
        seconds: f64,
        /// Where to.
        #[arg(
            long,
            short,
            default_value = "tidegate-trace.json",
            value_name = "FILE"
        )]
        output: PathBuf,
    },
    /// What would I harvest, and what would it cost? Needs no agent and no GPU.
    Replay(Box<replay::Args>),
    /// Whether this node can do what Tidegate asks of it, and what to do where it cannot.
    Doctor(doctor::Arguments),
    /// Look at and check the configuration.
    #[command(subcommand)]
    Config(config::Command),
    /// Give containers the library and the agent's socket, by the Container Device Interface.
    #[command(subcommand)]
    Cdi(cdi::Command),
    /// What a shell reads to complete this command's arguments.
    Completions {
        /// Which.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages of this command into a directory.
    #[command(hide = true)]
    Man {
        /// The directory.
        dir: PathBuf,
    },
    /// Enable every channel a dead agent left disabled.
    Release {
        /// The device to speak to: "real" or "virtual=DIR"; what the last agent used unless given.
        #[arg(long, value_name = "DEVICE")]
        device: Option<String>,
        /// The virtual device's shim; beside this program unless given.
        #[arg(long, value_name = "PATH")]
        vgpu_shim: Option<PathBuf>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people.
    Table,
    /// One object, or one a line.
    Json,
}

fn recording(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|s| (0.1..=3_600.0).contains(s));
    seconds.ok_or_else(|| "give a number of seconds from 0.1 to 3600".to_owned())
}

/// A time back from now, in nanoseconds: "90s", "30m", "12h", "7d".
fn ago(text: &str) -> Result<u64, String> {
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let seconds = match unit {
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => 0,
    };
    let number = number.parse::<u64>().ok();
    let ns = number.and_then(|number| number.checked_mul(seconds * 1_000_000_000));
    ns.filter(|&ns| ns != 0)
        .ok_or_else(|| "give a number and one of s, m, h, d".to_owned())
}

/// The agent cannot be spoken to.
#[derive(Debug, thiserror::Error)]
pub enum Unreachable {
    /// Nobody listens.
    #[error("no agent listens on {}; is tidegate-agent running?", .0.display())]
    Absent(PathBuf),
    /// The socket may not be opened.
    #[error("{} may not be opened by this user; ask for group tidegate, or use status", .0.display())]
    Forbidden(PathBuf),
    /// Anything else, also on the way.
    #[error("the agent on {} does not serve: {why}", .path.display())]
    Failed {
        /// Its socket or directory.
        path: PathBuf,
        /// What it did instead.
        why: String,
    },
}

/// 1; 2 for wrong usage, or when doctor could not begin; 3 when the agent could not be reached or refused.
#[must_use]
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<replay::Usage>() || error.is::<doctor::NotStarted>() {
        return 2;
    }
    let refused = error.downcast_ref::<Refusal>().is_some_and(|refusal| {
        matches!(
            refusal.code,
            tonic::Code::PermissionDenied
                | tonic::Code::Unavailable
                | tonic::Code::Unimplemented
                | tonic::Code::Unauthenticated
        )
    });
    if refused || error.downcast_ref::<Unreachable>().is_some() {
        3
    } else {
        1
    }
}

/// Carries out what the command line asks; the exit code.
///
/// # Errors
/// With a text of one line; [`exit_code`] tells which kind it is.
pub fn run(cli: &Cli) -> anyhow::Result<u8> {
    match &cli.command {
        Command::Release { device, vgpu_shim } => {
            release::run(&cli.run_dir, device.as_deref(), vgpu_shim.as_deref())?;
        }
        Command::Replay(args) => replay::run(args)?,
        Command::Report(args) => report::run(args)?,
        Command::Doctor(arguments) => return doctor::run(cli, arguments),
        Command::Cdi(command) => cdi::run(&cli.run_dir, command)?,
        Command::Completions { shell } => write(&manual::completions(Cli::command(), *shell))?,
        Command::Man { dir } => manual::pages(Cli::command(), dir)?,
        _ => runtime()?.block_on(ask(cli)).map_err(|error| {
            match error.downcast::<tonic::Status>() {
                Ok(status) => Refusal::from(&status).into(),
                Err(error) => error,
            }
        })?,
    }
    Ok(0)
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot make a runtime")
}

/// The device a command is about: as given, else what the last agent used, else the machine's own.
fn device_of(given: Option<&str>, last: Option<String>) -> anyhow::Result<Device> {
    let device = given.map(str::to_owned).or(last);
    let device = device.unwrap_or_else(|| Device::Real.to_string());
    device
        .parse()
        .map_err(|error| anyhow::anyhow!("device `{device}`: {error}"))
}

/// What the agent answered, without the protocol's details.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct Refusal {
    code: tonic::Code,
    message: String,
}

impl From<&tonic::Status> for Refusal {
    fn from(status: &tonic::Status) -> Self {
        Self {
            code: status.code(),
            message: if status.message().is_empty() {
                format!("the agent answers: {}", status.code())
            } else {
                status.message().to_owned()
            },
        }
    }
}

async fn ask(cli: &Cli) -> anyhow::Result<()> {
    match &cli.command {
        Command::Status { output } => status(cli, *output).await,
        Command::Events(args) => events::run(cli, args).await,
        Command::Top(args) => top::run(cli, args).await,
        Command::LogLevel { filter } => log_level(cli, filter.as_deref()).await,
        Command::Pause { job } => {
            let channel = cli.connect(CONTROL_SOCKET).await?;
            let request = v1::PauseRequest {
                job: job.clone().unwrap_or_default(),
            };
            let answer = v1::control_client::ControlClient::new(channel)
                .pause(request)
                .await?;
            jobs("paused", &answer.into_inner().jobs)
        }
        Command::Resume { job } => {
            let channel = cli.connect(CONTROL_SOCKET).await?;
            let request = v1::ResumeRequest {
                job: job.clone().unwrap_or_default(),
            };
            let answer = v1::control_client::ControlClient::new(channel)
                .resume(request)
                .await?;
            jobs("resumed", &answer.into_inner().jobs)
        }
        Command::Drain => steer::drain(cli).await,
        Command::Undrain => steer::undrain(cli).await,
        Command::Set { assignment, unset } => steer::set(cli, assignment, *unset).await,
        Command::Reload => steer::reload(cli).await,
        Command::Explain(what) => explain::run(cli, what).await,
        Command::Config(command) => config::run(cli, command).await,
        Command::Hooks { pid, output } => hooks(cli, *pid, *output).await,
        Command::Trace { seconds, output } => trace::run(cli, *seconds, output).await,
        // Done without an agent, above.
        Command::Doctor(_)
        | Command::Release { .. }
        | Command::Replay(_)
        | Command::Cdi(_)
        | Command::Completions { .. }
        | Command::Man { .. }
        | Command::Report(_) => Ok(()),
    }
}

impl Cli {
    async fn connect(&self, name: &str) -> Result<Channel, Unreachable> {
        let path = self
            .socket
            .clone()
            .unwrap_or_else(|| self.run_dir.join(name));
        match tokio::net::UnixStream::connect(&path).await {
            Ok(stream) => over(stream, &path).await,
            Err(error) => Err(match error.kind() {
                std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
                    Unreachable::Absent(path)
                }
                std::io::ErrorKind::PermissionDenied => Unreachable::Forbidden(path),
                _ => Unreachable::Failed {
                    path,
                    why: error.to_string(),
                },
            }),
        }
    }
}

async fn over(stream: tokio::net::UnixStream, path: &Path) -> Result<Channel, Unreachable> {
    let mut stream = Some(stream);
    let connector = tower::service_fn(move |_: tonic::transport::Uri| {
        // One connection per command; a second would be a reconnect, which helps nobody here.
        let stream = stream.take();
        async move {
            stream
                .map(hyper_util::rt::TokioIo::new)
                .ok_or_else(|| std::io::Error::other("the agent hung up"))
        }
    });
    Endpoint::from_static("http://tidegate.invalid")
        .connect_timeout(Duration::from_secs(2))
        .connect_with_connector(connector)
        .await
        .map_err(|error| Unreachable::Failed {
            path: path.to_owned(),
            why: error.to_string(),
        })
}

async fn report(cli: &Cli, hooks: bool) -> anyhow::Result<v1::GetStatusResponse> {
    let channel = cli.connect(STATUS_SOCKET).await?;
    let mut request = tonic::Request::new(v1::GetStatusRequest { hooks });
    request.set_timeout(Duration::from_secs(5));
    let answer = v1::node_client::NodeClient::new(channel)
        .get_status(request)
        .await?;
    Ok(answer.into_inner())
}

async fn status(cli: &Cli, output: Output) -> anyhow::Result<()> {
    let report = report(cli, false).await?;
    match output {
        Output::Table => print(&table::status(&report, terminal_width())),
        Output::Json => print(&format!("{:#}\n", json::status(&report))),
    }
}

async fn hooks(cli: &Cli, pid: Option<i32>, output: Output) -> anyhow::Result<()> {
    let mut report = report(cli, true).await?;
    if let Some(pid) = pid {
        report.processes.retain(|process| process.pid == pid);
        anyhow::ensure!(
            !report.processes.is_empty(),
            "no attached process has the id {pid}"
        );
    }
    match output {
        Output::Table => print(&table::hooks(&report.processes)),
        Output::Json => print(&format!("{:#}\n", json::processes(&report.processes))),
    }
}

async fn log_level(cli: &Cli, filter: Option<&str>) -> anyhow::Result<()> {
    let channel = cli.connect(CONTROL_SOCKET).await?;
    let request = v1::SetLogLevelRequest {
        filter: filter.unwrap_or_default().to_owned(),
    };
    let answer = v1::control_client::ControlClient::new(channel)
        .set_log_level(request)
        .await?
        .into_inner();
    print(&format!("{} (before: {})\n", answer.filter, answer.before))
}

fn jobs(what: &str, jobs: &[String]) -> anyhow::Result<()> {
    if jobs.is_empty() {
        print("no job is attached\n")
    } else {
        print(&format!("{what}: {}\n", jobs.join(", ")))
    }
}

/// Writes to standard output, without what would steer a terminal; a reader that has left is no error.
fn print(text: &str) -> anyhow::Result<()> {
    write(crate::plain::lines(text).as_bytes())
}

fn write(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write")
        }
        _ => Ok(()),
    }
}

fn terminal_width() -> Option<u16> {
    if std::io::stdout().is_terminal() {
        let said = std::env::var("COLUMNS").ok();
        said.and_then(|columns| columns.parse().ok())
            .or_else(crate::sys::terminal_columns)
    } else {
        None
    }
}

/// Whether to paint: on a terminal whose user did not ask for plain text.
fn colours() -> bool {
    std::io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
