//! The node agent.
#![forbid(unsafe_code)]

use anyhow::Context;
use clap::{CommandFactory, Parser};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use tidegate_agent::app::{self, AppError, Ended, Options};
use tidegate_agent::config::Sources;
use tidegate_agent::device::Device;
use tidegate_agent::host::logs;
use tidegate_agent::selftest::work;

/// Gates offline GPU work while online work needs the GPU.
#[derive(Debug, Parser)]
#[command(name = "tidegate-agent", version, after_help = EXIT_CODES)]
struct Arguments {
    /// The configuration; may be absent unless named here.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// "real", or "virtual=DIR" with the directory of a virtual GPU.
    #[arg(long, default_value = "real", value_name = "DEVICE")]
    device: Device,
    /// The virtual GPU's shim; beside this program unless given.
    #[arg(long, value_name = "PATH")]
    vgpu_shim: Option<PathBuf>,
    /// The agent's directory, instead of the configured one.
    #[arg(long, env = tidegate_proto::RUN_DIR_ENV, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// A setting, over files and environment: `--set gate.cooldown=20ms`. May be given several times.
    #[arg(long, value_name = "KEY=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,
    /// Ask a running agent to hand over, and take its place.
    #[arg(long)]
    replace: bool,
    /// Write every decision, and what it was made from, to a file that replay makes them from again.
    #[arg(long, env = "TIDEGATE_RECORD", value_name = "FILE")]
    record: Option<PathBuf>,
    /// How large that file may become; the recording ends there, and the agent goes on.
    #[arg(long, env = "TIDEGATE_RECORD_LIMIT", value_name = "SIZE", default_value = "4GiB", value_parser = size)]
    record_limit: u64,
    /// Be the GPU work that the self-test looks at.
    #[arg(long, hide = true)]
    self_test_work: bool,
    /// Write this program's manual page.
    #[arg(long, hide = true)]
    manual: bool,
}

const EXIT_CODES: &str =
    "Exit codes: 0 told to end; 1 failed; 2 wrong usage or configuration; 3 another agent runs.";

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.self_test_work {
        return work::run();
    }
    let done = if arguments.manual {
        manual()
    } else {
        run(arguments)
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidegate-agent: {error:#}");
            let code = match error.downcast_ref::<AppError>() {
                Some(error) => error.exit_code(),
                None => 2,
            };
            ExitCode::from(code)
        }
    }
}

fn manual() -> anyhow::Result<()> {
    let page = tidegate_agent::cli::manual::page(Arguments::command(), "8")?;
    Ok(std::io::stdout().write_all(&page)?)
}

fn size(text: &str) -> Result<u64, String> {
    tidegate_agent::config::size(text).ok_or_else(|| "expected a size such as \"4GiB\"".to_owned())
}

fn assignment(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("give KEY=VALUE")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

/// What the configuration is made of.
fn sources(arguments: &Arguments) -> Sources {
    let assigned = arguments.set.iter().cloned();
    let mut flags: Vec<_> = assigned
        .map(|(key, value)| ("--set".to_owned(), key, value))
        .collect();
    flags.extend(arguments.run_dir.as_ref().map(|run_dir| {
        let variable = std::env::var_os(tidegate_proto::RUN_DIR_ENV);
        let name = if variable.as_deref() == Some(run_dir.as_os_str()) {
            tidegate_proto::RUN_DIR_ENV
        } else {
            "--run-dir"
        };
        let path = run_dir.to_string_lossy().into_owned();
        (name.to_owned(), "node.run_dir".to_owned(), path)
    }));
    Sources {
        optional: arguments.config.is_none(),
        environment: tidegate_agent::config::environment(),
        flags,
        ..arguments
            .config
            .as_deref()
            .map_or_else(Sources::default, Sources::of)
    }
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    let sources = sources(&arguments);
    let loaded = sources.load().context("the configuration is refused")?;
    let log_level = logs::init(&loaded.config);
    let options = Options {
        sources,
        loaded,
        device: arguments.device,
        vgpu_shim: arguments.vgpu_shim,
        replace: arguments.replace,
        record: arguments.record.map(|file| (file, arguments.record_limit)),
        log_level,
    };
    match app::run(&options)? {
        Ended::ForGood => Ok(()),
        Ended::ToStartAgain => Err(anyhow::Error::new(start_again())
            .context("the driver has changed, and the agent does not start again")),
    }
}

/// Becomes a new agent, as this one was started; what returns is why not. `--replace` would ask itself.
fn start_again() -> std::io::Error {
    let arguments = std::env::args_os().skip(1);
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return error,
    };
    Command::new(program)
        .args(arguments.filter(|argument| argument != "--replace"))
        .exec()
}
