//! What the agent is started with: read by the program, and by whoever writes its manual page.

use crate::device::Device;
use clap::Parser;
use std::path::PathBuf;

/// Gates offline GPU work while online work needs the GPU.
#[derive(Debug, Parser)]
#[command(name = "tidegate-agent", version, after_help = EXIT_CODES)]
pub struct Arguments {
    /// The configuration; may be absent unless named here.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// "real", or "virtual=DIR" with the directory of a virtual GPU.
    #[arg(long, default_value = "real", value_name = "DEVICE")]
    pub device: Device,
    /// The virtual GPU's shim; beside this program unless given.
    #[arg(long, value_name = "PATH")]
    pub vgpu_shim: Option<PathBuf>,
    /// The agent's directory, instead of the configured one.
    #[arg(long, env = tidegate_proto::RUN_DIR_ENV, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
    /// A setting, over files and environment: `--set gate.cooldown=20ms`. May be given several times.
    #[arg(long, value_name = "KEY=VALUE", value_parser = assignment)]
    pub set: Vec<(String, String)>,
    /// Ask a running agent to hand over, and take its place.
    #[arg(long)]
    pub replace: bool,
    /// Write every decision, and what it was made from, to a file that replay makes them from again.
    #[arg(long, env = "TIDEGATE_RECORD", value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// How large that file may become; the recording ends there, and the agent goes on.
    #[arg(long, env = "TIDEGATE_RECORD_LIMIT", value_name = "SIZE", default_value = "4GiB", value_parser = size)]
    pub record_limit: u64,
    /// Be the GPU work that the self-test looks at.
    #[arg(long, hide = true)]
    pub self_test_work: bool,
}

const EXIT_CODES: &str =
    "Exit codes: 0 told to end; 1 failed; 2 wrong usage or configuration; 3 another agent runs.";

fn size(text: &str) -> Result<u64, String> {
    crate::config::size(text).ok_or_else(|| "expected a size such as \"4GiB\"".to_owned())
}

fn assignment(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("give KEY=VALUE")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}
