//! vgpud: the device process of the virtual GPU. See the crate's front page.

mod call;
mod controls;
mod exec;
mod knobs;
mod kv;
mod memory;
mod rm;
mod server;
mod sys;
mod uvm;
mod world;

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Parser;
use tidegate_vgpu::facts;
use tidegate_vgpu::personality::Personality;

use crate::knobs::Knobs;
use crate::world::Setup;

/// The device process of a virtual GPU: owns channels, memory and time.
#[derive(Debug, Parser)]
struct Options {
    /// Directory for its sockets and history.
    #[arg(long, env = "TIDEGATE_VGPU_DIR")]
    dir: PathBuf,
    /// GPUs of the node.
    #[arg(long, default_value_t = 1)]
    gpus: usize,
    /// Version of the driver to play; it decides layouts and rules.
    #[arg(long, default_value = "580.95.05")]
    driver: String,
    /// Memory of each GPU in MiB, sparse.
    #[arg(long, default_value_t = 16 * 1024)]
    memory_mib: u64,
    /// Seed of everything drawn.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Driver patch in force: none, A or B.
    #[arg(long)]
    patch: Option<String>,
    /// Median of the time a disable takes, in microseconds.
    #[arg(long)]
    disable_us: Option<String>,
    /// Fixed time a disable takes, in microseconds.
    #[arg(long, conflicts_with = "disable_us")]
    disable_fixed_us: Option<String>,
    /// Personality of the firmware; `list` prints their names, one a line.
    #[arg(long)]
    personality: Option<String>,
    /// Any knob, as NAME=VALUE.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    set: Vec<String>,
}

fn setup(options: &Options) -> anyhow::Result<Setup> {
    if !(1..=16).contains(&options.gpus) {
        bail!("--gpus takes 1 to 16");
    }
    let driver = facts::of(&options.driver)
        .with_context(|| format!("--driver {}: not a known version", options.driver))?;
    let mut knobs = Knobs::default();
    let named = [
        ("patch", &options.patch),
        ("personality", &options.personality),
        ("disable_us", &options.disable_us),
        ("disable_fixed_us", &options.disable_fixed_us),
    ];
    for (name, value) in named {
        if let Some(value) = value {
            knobs.set(name, value)?;
        }
    }
    for pair in &options.set {
        let (name, value) = pair.split_once('=').context("--set takes NAME=VALUE")?;
        knobs.set(name, value)?;
    }
    Ok(Setup {
        gpus: options.gpus,
        driver: Box::leak(Box::new(driver)),
        memory_bytes: options.memory_mib << 20,
        seed: options.seed,
        knobs,
    })
}

fn main() -> anyhow::Result<()> {
    // A device of which only one thread lives would leave tests waiting without a word.
    std::panic::set_hook(Box::new(|info| {
        eprintln!("vgpud: {info}");
        std::process::abort();
    }));
    let options = Options::parse();
    if options.personality.as_deref() == Some("list") {
        for personality in Personality::ALL {
            println!("{}", personality.name());
        }
        return Ok(());
    }
    let setup = setup(&options)?;
    server::run(setup, &options.dir, || {
        let mut out = std::io::stdout().lock();
        // Nobody may be reading.
        let _ = writeln!(out, "ready").and_then(|()| out.flush());
    })
    .with_context(|| format!("virtual GPU in {}", options.dir.display()))
}
