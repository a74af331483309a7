//! `tidegate doctor --probe`: starts `tidegate-probe`, which lies beside this program.
//!
//! A program of its own, because it loads the GPU's driver library and starts throw-away processes, which
//! a command that operators run on a node in service must never do by itself.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tidegate_driver::device::Device;

const PROGRAM: &str = "tidegate-probe";

/// What is for the probes alone.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(super) struct Arguments {
    /// Measure the driver and the GPU, on contexts of their own. No other process is touched, and no channel stays
    /// disabled.
    #[arg(long)]
    pub probe: bool,
    /// Fewer repetitions and shorter waits.
    #[arg(long, requires = "probe")]
    quick: bool,
    /// Also write every line to this file at once.
    #[arg(long, requires = "probe", value_name = "FILE")]
    results: Option<PathBuf>,
    /// Also run probes that may stall the whole node, because nobody else uses it.
    #[arg(long, requires = "probe")]
    kernel_is_ours: bool,
}

/// Whether `text` may be the id of a probe: `P2`, `p7b`.
pub(super) fn is_id(text: &str) -> bool {
    text.strip_prefix(['P', 'p'])
        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Becomes the probes; only an error returns.
pub(super) fn start(
    arguments: &Arguments,
    device: &Device,
    shim: Option<&Path>,
    only: &[String],
    library: Option<&Path>,
    json: bool,
) -> anyhow::Error {
    let program = match std::env::current_exe() {
        Ok(exe) => exe.with_file_name(PROGRAM),
        Err(error) => return error.into(),
    };
    let mut command = Command::new(&program);
    command.arg("run").arg("--device").arg(device.to_string());
    for (name, path) in [
        ("--vgpu-shim", shim),
        ("--library", library),
        ("--results", arguments.results.as_deref()),
    ] {
        if let Some(path) = path {
            command.arg(name).arg(path);
        }
    }
    if !only.is_empty() {
        command.arg("--only").arg(only.join(","));
    }
    for (name, given) in [
        ("--quick", arguments.quick),
        ("--kernel-is-ours", arguments.kernel_is_ours),
    ] {
        if given {
            command.arg(name);
        }
    }
    command.args(["--output", if json { "json" } else { "table" }]);
    let error = command.exec();
    anyhow::Error::new(error).context(format!("cannot start {}", program.display()))
}
