//! From facts to checks, without asking anybody.

mod driver;
mod library;
mod node;
mod processes;
mod system;

#[cfg(test)]
pub(super) mod healthy;

use super::facts::{Agent, Driver, Facts, GpuProcess, Node};
use super::{CHECKS, Check};
use crate::device::Device;
use std::time::Duration;

/// All checks, in the order of [`CHECKS`].
pub(super) fn all(facts: &Facts) -> Vec<Check> {
    let mut checks = Vec::with_capacity(CHECKS.len());
    if let Some(node) = &facts.node {
        let view = View::new(facts, node);
        checks.extend(system::checks(&view));
        checks.extend(driver::checks(&view));
        checks.extend(node::checks(&view));
        checks.extend(processes::checks(&view));
    }
    if let Some(library) = &facts.library {
        checks.push(library::check(library));
    }
    checks
}

/// The facts about the node, with what several checks ask of them.
struct View<'a> {
    facts: &'a Facts,
    node: &'a Node,
}

impl<'a> View<'a> {
    const fn new(facts: &'a Facts, node: &'a Node) -> Self {
        Self { facts, node }
    }

    const fn is_virtual(&self) -> bool {
        matches!(self.facts.device, Device::Virtual(_))
    }

    const fn driver(&self) -> &'a Driver {
        &self.node.driver
    }

    /// The driver's version and how many GPUs it has, if it answers.
    fn answer(&self) -> Option<(&'a str, usize)> {
        let answer = self.node.driver.answer.as_ref().ok()?;
        Some((&answer.version, answer.gpus))
    }

    /// An agent holds the directory, or somebody answers on its socket.
    fn agent_lives(&self) -> bool {
        self.node.run_dir.holder_lives || !matches!(self.node.agent, Agent::Absent)
    }

    /// Processes on the GPUs that are offline: by the agent's word, else by their own.
    fn offline(&self) -> Vec<&'a GpuProcess> {
        let is_offline = |process: &&GpuProcess| match self.node.agent.status() {
            Some(status) => status.processes.iter().any(|known| {
                known.pid == process.pid && known.role() == tidegate_proto::v1::Role::Offline
            }),
            None => process.wished_role.as_deref() == Some("offline"),
        };
        self.node.processes.iter().filter(is_offline).collect()
    }
}

/// "3 GPUs", "1 GPU".
fn count(number: usize, what: &str) -> String {
    if number == 1 {
        format!("1 {what}")
    } else if what.ends_with("ss") {
        format!("{number} {what}es")
    } else {
        format!("{number} {what}s")
    }
}

fn seconds(time: Duration) -> u64 {
    time.as_secs()
}
