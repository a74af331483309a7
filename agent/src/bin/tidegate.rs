//! The command line of a node: what runs, what happened, pause, resume, release.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    match tidegate_agent::cli::run(&tidegate_agent::cli::Cli::of_this_process()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("tidegate: {error:#}");
            ExitCode::from(tidegate_agent::cli::exit_code(&error))
        }
    }
}
