//! The command line of a node: what runs, what happened, pause, resume, release.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    match tidegate_cli::run(&tidegate_cli::Cli::of_this_process()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("tidegate: {error:#}");
            ExitCode::from(tidegate_cli::exit_code(&error))
        }
    }
}
