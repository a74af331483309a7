//! `tidegate demo`: online and offline programs on a virtual GPU, without a driver, a compiler or an agent of the node's.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// See each field.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Requests to replay, in a format that `tidegate replay` reads (default: a built-in generator).
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Length of each of the three runs, in seconds.
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Random seed of the generator and of the pauses between decode steps.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write the figures to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the page to this file.
    #[arg(long, value_name = "FILE", default_value = "tidegate-demo.html")]
    html: PathBuf,
    /// Leave everything running at the end, for `tidegate status` and `tidegate top`.
    #[arg(long)]
    keep: bool,
}

/// Where the demo lies: beside this program where it was built, or where a package puts it.
fn program(of: &Path) -> Option<PathBuf> {
    let dir = of.parent()?;
    let places = [dir.join("demo"), dir.join("../lib/tidegate/demo/demo")];
    places.into_iter().find(|place| place.is_file())
}

/// The demo, to be started.
///
/// # Errors
/// When it is not installed.
pub(super) fn command() -> anyhow::Result<Command> {
    let own = std::env::current_exe()?;
    let Some(program) = program(&own) else {
        anyhow::bail!(
            "{} finds no demo: the package installs it in lib/tidegate/demo; in a checkout, run scripts/demo",
            own.display()
        );
    };
    let mut command = Command::new(program);
    // In a checkout: what was built is what runs.
    command.env("TIDEGATE_TESTS_BUILT", "1");
    Ok(command)
}

/// Becomes this program.
///
/// # Errors
/// When it cannot be started.
pub(super) fn become_it(mut command: Command) -> anyhow::Error {
    let error = command.exec();
    let program = Path::new(command.get_program()).display();
    anyhow::anyhow!("cannot start {program}: {error}")
}

/// Becomes the demo.
///
/// # Errors
/// When it is not installed, or cannot be started.
pub(super) fn run(args: &Args) -> anyhow::Result<u8> {
    let mut command = command()?;
    command
        .args([
            "--seconds",
            &args.seconds.to_string(),
            "--seed",
            &args.seed.to_string(),
        ])
        .arg("--html")
        .arg(&args.html);
    for (name, file) in [("--trace", &args.trace), ("--json", &args.json)] {
        if let Some(file) = file {
            command.arg(name).arg(file);
        }
    }
    command.args(args.keep.then_some("--keep"));
    Err(become_it(command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_is_found_where_it_is_built_and_where_it_is_installed() {
        let dir = std::env::temp_dir().join(format!("tidegate-demo-{}", std::process::id()));
        let tidegate = dir.join("bin/tidegate");
        let installed = dir.join("lib/tidegate/demo");
        std::fs::create_dir_all(dir.join("bin")).expect("made");
        std::fs::create_dir_all(&installed).expect("made");
        assert_eq!(program(&tidegate), None);
        std::fs::write(installed.join("demo"), "").expect("written");
        assert_eq!(
            program(&tidegate),
            Some(dir.join("bin/../lib/tidegate/demo/demo"))
        );
        std::fs::write(dir.join("bin/demo"), "").expect("written");
        assert_eq!(program(&tidegate), Some(dir.join("bin/demo")));
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
