//! The command line `tidegate`: a thin client of the gRPC services.

mod agent;
mod bench;
mod cdi;
mod config;
mod demo;
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
mod tips;
mod top;
mod trace;
mod trial;
mod tune;
mod values;

pub use agent::Unreachable;
use agent::{Agent, Refusal, runtime};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use print::{Output, write};
use std::path::PathBuf;
use tidegate_agent::config::SETTINGS;

/// Observe and control GPU sharing on this node.
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
                longest gap; longer if [slo] is set and preemptions cost more
  longest gap   the longest recent pause between two iterations of an online
                request
  per unit      preemptions of one online request, or of one busy period if
                requests are not known
  channel       a hardware queue of a GPU; those of an offline job are disabled
                while its gate is closed
  level         who disables channels: L1 the agent, L2 the agent through the
                owner's file, L3 the process' library; at L5 no channel is
                touched and launches wait
  calls only    the level was not tested on GPU work; the agent only checked that
                the driver accepts the calls
  generation    how many agents have started since the node booted
  lane          in JSON: the transport of a process: a shared page of memory, or
                messages (stream) if it cannot pass files
  counts        in JSON: how launches are counted: in words of each thread
                (membarrier), or by atomic adds";

#[derive(Debug, Subcommand)]
enum Command {
    /// Show GPUs, jobs and processes, and the state of their gates.
    #[command(after_help = WORDS)]
    Status {
        /// Output format.
        #[arg(long, short, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Show the node, live: GPUs, gates, jobs, processes.
    Top(top::Args),
    /// Show what happened, oldest first.
    Events(events::Args),
    /// Sum up what was harvested over days, from the history file. Needs no agent.
    Report(report::Args),
    /// Change what the agent logs, until the next change or restart.
    LogLevel {
        /// error, warn, info, debug, trace, or a filter (default: as configured).
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
    /// Let no offline job run, including those that start later, until `undrain`.
    Drain,
    /// Undo `drain`.
    Undrain,
    /// Change a setting on the running agent, until it ends: `gate.cooldown=20ms`.
    Set {
        /// KEY=VALUE, or KEY with --unset.
        #[arg(value_name = "KEY=VALUE", hide_possible_values = true,
              value_parser = values::known(SETTINGS.iter().map(|setting| setting.path), values::any))]
        assignment: String,
        /// Return to the configured value.
        #[arg(long)]
        unset: bool,
    },
    /// Make the agent read its configuration again; prints what changed, and what needs a restart.
    Reload,
    /// Explain the role of a process and why it runs or waits, or why a memory handle was taken.
    #[command(subcommand)]
    Explain(explain::What),
    /// List the hooks of attached processes: installed, resolved, calls.
    Hooks {
        /// One process.
        pid: Option<i32>,
        /// Output format.
        #[arg(long, short, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Record what happens on the node, for a trace viewer such as <https://ui.perfetto.dev>.
    Trace {
        /// Length of the recording.
        #[arg(long, default_value = "10", value_name = "S", value_parser = values::recording)]
        seconds: f64,
        /// Output file.
        #[arg(
            long,
            short,
            default_value = "tidegate-trace.json",
            value_name = "FILE"
        )]
        output: PathBuf,
    },
    /// Start a program online or offline: with the library, its role and longer engine timeouts.
    Run(run::Args),
    /// Train a LoRA of a local model offline, and have a running vLLM answer with it.
    Finetune(Box<finetune::Args>),
    /// Train a LoRA inside a running vLLM, which answers with it while it learns.
    Tune(Box<tune::Args>),
    /// Show what Tidegate does, on a virtual GPU: three runs of the same requests. Needs no agent and no GPU.
    Demo(demo::Args),
    /// Run a program of your own on a virtual GPU, under Tidegate. Needs no agent and no GPU.
    Try(trial::Args),
    /// Estimate harvest and cost for a trace. Needs no agent and no GPU.
    Replay(Box<replay::Args>),
    /// Measure what sharing the GPU costs your users, on your own server.
    Bench(Box<bench::Args>),
    /// Check whether this node can run Tidegate, and suggest remedies.
    Doctor(doctor::Arguments),
    /// Print and check the configuration.
    #[command(subcommand)]
    Config(config::Command),
    /// Predict what this node gives offline jobs, for Slurm or Kubernetes.
    #[command(subcommand)]
    Place(Box<place::Command>),
    /// Give containers the library and the agent's socket, through the Container Device Interface.
    #[command(subcommand)]
    Cdi(cdi::Command),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages of this command and of the agent into a directory.
    #[command(hide = true)]
    Man {
        /// The directory.
        dir: PathBuf,
    },
    /// Enable every channel that a dead agent left disabled.
    Release {
        /// The device: "real" or "virtual=DIR" (default: what the last agent used).
        #[arg(long, value_name = "DEVICE")]
        device: Option<String>,
        /// The shim of the virtual device (default: beside this program).
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
        || error.is::<tune::Usage>()
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
        let words: Vec<_> = std::env::args_os().collect();
        let matches = command().try_get_matches_from(&words);
        let matches = matches.unwrap_or_else(|error| tips::explained(error, &words).exit());
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
        Command::Demo(args) => return demo::run(args),
        Command::Try(args) => return trial::run(args),
        Command::Replay(args) => replay::run(args)?,
        Command::Run(args) => return run::run(&cli.agent, args),
        Command::Finetune(args) => return finetune::run(&cli.agent, args),
        Command::Tune(args) => return tune::run(args),
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
        | Command::Demo(_)
        | Command::Try(_)
        | Command::Replay(_)
        | Command::Run(_)
        | Command::Finetune(_)
        | Command::Tune(_)
        | Command::Cdi(_)
        | Command::Place(_)
        | Command::Completions { .. }
        | Command::Man { .. }
        | Command::Report(_) => Ok(()),
    }
}
