//! Asks the node: kernel, driver, directory, processes, files. Changes nothing.

mod ask;
mod driver;
mod library;
mod node;
mod processes;
mod system;

use super::facts::{Agent, Facts, Node};
use std::path::{Path, PathBuf};
use tidegate_agent::config::{Config, LevelChoice};
use tidegate_driver::causes::with_causes;
use tidegate_driver::device::Device;

/// What to look at.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which GPUs; this process speaks to them already.
    pub device: Device,
    /// The agent's directory.
    pub run_dir: PathBuf,
    /// The agent's configuration; may be absent unless it was named.
    pub config: Option<PathBuf>,
    /// The library, instead of one in the usual places.
    pub library: Option<PathBuf>,
}

/// Everything about the library's file.
#[must_use]
pub fn library(options: &Options) -> super::facts::Library {
    library::collect(options.library.as_deref())
}

/// Everything but the library; `agent` is what the agent said when it was asked.
#[must_use]
pub fn node(options: &Options, agent: Agent) -> Node {
    // The file of the agent that runs, which need not be the usual one.
    let running = agent
        .status()
        .map(|status| PathBuf::from(&status.config_file));
    let running = running.filter(|file| !file.as_os_str().is_empty());
    let config = configuration(options.config.as_deref(), running);
    let run_dir = node::run_dir(&options.run_dir);
    let choice = config
        .1
        .as_ref()
        .map_or(LevelChoice::Auto, |config| config.level);
    let tries = agent.status().is_none().then_some(choice);
    let agent_pid = run_dir.holder.as_ref().filter(|_| run_dir.holder_lives);
    let (processes, hidden) = processes::on_gpus(&options.device);
    Node {
        system: system::collect(agent_pid.map(|holder| holder.pid)),
        driver: driver::collect(&options.device, tries),
        config,
        agents: processes::agents(),
        processes,
        hidden,
        run_dir,
        agent,
    }
}

/// The facts of one run.
#[must_use]
pub fn facts(options: &Options, node: Option<Node>, library: bool) -> Facts {
    Facts {
        device: options.device.clone(),
        version: env!("CARGO_PKG_VERSION"),
        node,
        library: library.then(|| self::library(options)),
    }
}

fn configuration(
    named: Option<&Path>,
    running: Option<PathBuf>,
) -> (PathBuf, Result<Config, String>) {
    let usual = || running.unwrap_or_else(|| PathBuf::from(tidegate_agent::config::FILE));
    let path = named.map_or_else(usual, Path::to_owned);
    // The environment is this shell's, not the agent's, so only the file is looked at.
    let config = Config::load(&path, named.is_none(), std::iter::empty());
    (path, config.map_err(|error| with_causes(&error)))
}
