//! The node agent.
#![forbid(unsafe_code)]

use anyhow::Context;
use clap::Parser as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use tidegate_agent::app::{self, AppError, Ended, Options};
use tidegate_agent::arguments::Arguments;
use tidegate_agent::config::Sources;
use tidegate_agent::host::logs;
use tidegate_agent::selftest::work;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.self_test_work {
        return work::run();
    }
    match run(arguments) {
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
