//! Asks the node: kernel, driver, directory, processes, files. Changes nothing.

mod driver;
mod library;
mod node;
mod processes;
mod system;

use super::facts::{Agent, Facts, Node};
use crate::causes::with_causes;
use crate::config::{Config, LevelChoice};
use crate::device::Device;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// How long whoever may hang is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

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
    let config = configuration(options.config.as_deref());
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

fn configuration(named: Option<&Path>) -> (PathBuf, Result<Config, String>) {
    let path = named.map_or_else(|| PathBuf::from(crate::config::FILE), Path::to_owned);
    // The environment is this shell's, not the agent's, so only the file is looked at.
    let config = Config::load(&path, named.is_none(), std::iter::empty());
    (path, config.map_err(|error| with_causes(&error)))
}

/// Runs `ask` on a thread that is left behind if it takes too long.
fn patiently<T: Send + 'static>(ask: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    within(PATIENCE, ask)
}

fn within<T: Send + 'static>(
    patience: Duration,
    ask: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (answer_tx, answer_rx) = mpsc::channel();
    let asked = std::thread::Builder::new().spawn(move || {
        // Nobody listens any more when it was too late.
        let _ = answer_tx.send(ask());
    });
    asked.map_err(|error| format!("no thread: {error}"))?;
    answer_rx
        .recv_timeout(patience)
        .map_err(|_| format!("no answer in {} s", patience.as_secs()))
}

/// The first line of a small file, without blanks around it.
fn line(path: impl AsRef<Path>) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.lines().next()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_does_not_answer_is_left_behind() {
        assert_eq!(patiently(|| 7), Ok(7));
        let (_keep, never) = mpsc::channel::<()>();
        let waited = within(Duration::ZERO, move || never.recv().is_ok());
        assert_eq!(waited, Err("no answer in 0 s".to_owned()));
    }
}
