//! The command line `tidegate`: a thin client of the gRPC services.

mod agent;
mod bench;
mod cdi;
mod config;
pub mod doctor;
mod events;
mod examples;
mod explain;
mod finetune;
mod json;
mod manual;
mod misused;
mod place;
mod print;
mod probe;
mod release;
mod replay;
mod report;
mod run;
#[cfg(test)]
mod screens;
mod status;
mod steer;
mod table;
mod top;
mod trace;
mod values;

pub use agent::Unreachable;
use agent::{Agent, Refusal, runtime};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use print::{Output, write};
use std::path::PathBuf;
use tidegate_agent::config::SETTINGS;

/// Look at and steer the GPU colocation of this node.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, after_help = EXIT_CODES)]
pub struct Cli {
    #[command(flatten)]
    agent: Agent,
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 success; 1 the operation failed; 2 wrong usage; \
3 the agent is absent or refuses. Of doctor: 0 nothing to do; 1 warnings; 2 failures.";

const WORDS: &str = "Words:
  gate          open: offline may run; closed: online has the GPU; cooling:
                online just stopped
  cooldown      how long online must be idle before offline runs: twice the
                longest gap; longer where [slo] is set and preemptions cost more
  longest gap   the longest pause between two iterations of an online request,
                of late
  per unit      preemptions of one online request, or of one busy period where
                requests are not known
  channel       a hardware queue of a GPU; those of an offline job are disabled
                while its gate is closed
  level         who disables channels: L1 the agent, L2 the agent through the
                owner's file, L3 the process' library; at L5 no channel is
                touched and launches wait
  calls only    the agent has not stopped work of its own to try a level: it goes
                by what the driver answered
  generation    the agent's number since the node booted: one more with each
                start
  lane          in JSON: how a process meets the agent: by a page of memory that
                both share, or by messages (stream) where it can pass no files
  counts        in JSON: how its launches are counted: in words of its threads
                (membarrier), or by atomic adds";

#[derive(Debug, Subcommand)]
enum Command {
    /// GPUs, jobs and processes, and the state of their gates.
    #[command(after_help = WORDS)]
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
        #[arg(hide_possible_values = true,
              value_parser = values::known(["error", "warn", "info", "debug", "trace"], values::any))]
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
        #[arg(value_name = "KEY=VALUE", hide_possible_values = true,
              value_parser = values::known(SETTINGS.iter().map(|setting| setting.path), values::any))]
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
        #[arg(long, default_value = "10", value_name = "S", value_parser = values::recording)]
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
    /// Start a program online or offline: with the library, its role and the engines' time-outs.
    Run(run::Args),
    /// Train a LoRA of a local model offline, and have a running vLLM answer with it.
    Finetune(Box<finetune::Args>),
    /// What would I harvest, and what would it cost? Needs no agent and no GPU.
    Replay(Box<replay::Args>),
    /// What does sharing the GPU cost my users? Measures your own server: alone, and with Tidegate.
    Bench(Box<bench::Args>),
    /// Whether this node can do what Tidegate asks of it, and what to do where it cannot.
    Doctor(doctor::Arguments),
    /// Look at and check the configuration.
    #[command(subcommand)]
    Config(config::Command),
    /// What this node gives offline jobs, for the engine that places them: Slurm or Kubernetes.
    #[command(subcommand)]
    Place(Box<place::Command>),
    /// Give containers the library and the agent's socket, by the Container Device Interface.
    #[command(subcommand)]
    Cdi(cdi::Command),
    /// What a shell reads to complete this command's arguments.
    Completions {
        /// Which.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages of this command and of the agent into a directory.
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

/// 1; 2 for wrong usage, or when doctor could not begin; 3 when the agent could not be reached or refused.
#[must_use]
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if error.is::<replay::Usage>()
        || error.is::<bench::Usage>()
        || error.is::<doctor::NotStarted>()
        || error.is::<misused::Misused>()
        || error.is::<finetune::NoPackage>()
    {
        return 2;
    }
    if error.is::<Unreachable>() || error.is::<run::NotStarted>() {
        return 3;
    }
    error
        .downcast_ref::<Refusal>()
        .map_or(1, |refusal| code_of(refusal.code))
}

/// What the agent's answer means for whoever asked.
const fn code_of(answer: tonic::Code) -> u8 {
    use tonic::Code;
    match answer {
        // What was asked for makes no sense, whoever asks and whenever.
        Code::InvalidArgument => 2,
        // Not here, not so, not now, or not for this caller.
        Code::PermissionDenied
        | Code::Unauthenticated
        | Code::Unimplemented
        | Code::Unavailable
        | Code::FailedPrecondition
        | Code::ResourceExhausted
        | Code::DeadlineExceeded => 3,
        // It was tried: there is no such job, process or event, or it went wrong.
        _ => 1,
    }
}

/// The command line, with an example for every command.
fn command() -> clap::Command {
    examples::with(Cli::command())
}

impl Cli {
    /// What the program was called with; ends it where that is wrong, or help is asked for.
    #[must_use]
    pub fn of_this_process() -> Self {
        let matches = command().get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// Carries out what the command line asks; the exit code.
///
/// # Errors
/// With a text of one line; [`exit_code`] tells which kind it is.
pub fn run(cli: &Cli) -> anyhow::Result<u8> {
    match &cli.command {
        Command::Release { device, vgpu_shim } => {
            release::run(&cli.agent.run_dir, device.as_deref(), vgpu_shim.as_deref())?;
        }
        Command::Replay(args) => replay::run(args)?,
        Command::Run(args) => return run::run(&cli.agent, args),
        Command::Finetune(args) => return finetune::run(&cli.agent, args),
        Command::Report(args) => report::run(args)?,
        Command::Bench(args) => return bench::run(&cli.agent, args).map_err(refused),
        Command::Doctor(arguments) => return doctor::run(&cli.agent, arguments),
        Command::Cdi(command) => cdi::run(&cli.agent.run_dir, command)?,
        Command::Place(command) => return place::run(&cli.agent, command),
        Command::Completions { shell } => write(&manual::completions(command(), *shell))?,
        Command::Man { dir } => manual::pages(command(), dir)?,
        _ => runtime()?.block_on(ask(cli)).map_err(refused)?,
    }
    Ok(0)
}

/// What the agent answered, in its words.
fn refused(error: anyhow::Error) -> anyhow::Error {
    match error.downcast::<tonic::Status>() {
        Ok(status) => Refusal::from(&status).into(),
        Err(error) => error,
    }
}

async fn ask(cli: &Cli) -> anyhow::Result<()> {
    let agent = &cli.agent;
    match &cli.command {
        Command::Status { output } => status::status(agent, *output).await,
        Command::Events(args) => events::run(agent, args).await,
        Command::Top(args) => top::run(agent, args).await,
        Command::LogLevel { filter } => steer::log_level(agent, filter.as_deref()).await,
        Command::Pause { job } => steer::pause(agent, job.clone()).await,
        Command::Resume { job } => steer::resume(agent, job.clone()).await,
        Command::Drain => steer::drain(agent).await,
        Command::Undrain => steer::undrain(agent).await,
        Command::Set { assignment, unset } => steer::set(agent, assignment, *unset).await,
        Command::Reload => steer::reload(agent).await,
        Command::Explain(what) => explain::run(agent, what).await,
        Command::Config(command) => config::run(agent, command).await,
        Command::Hooks { pid, output } => status::hooks(agent, *pid, *output).await,
        Command::Trace { seconds, output } => trace::run(agent, *seconds, output).await,
        // Done above.
        Command::Doctor(_)
        | Command::Bench(_)
        | Command::Release { .. }
        | Command::Replay(_)
        | Command::Run(_)
        | Command::Finetune(_)
        | Command::Cdi(_)
        | Command::Place(_)
        | Command::Completions { .. }
        | Command::Man { .. }
        | Command::Report(_) => Ok(()),
    }
}
