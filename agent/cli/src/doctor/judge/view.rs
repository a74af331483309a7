//! The facts, as the judges ask for them.

use crate::doctor::facts::{Agent, Driver, Facts, GpuProcess, Node};
use std::time::Duration;
use tidegate_driver::device::Device;

/// The facts about the node, with what several checks ask of them.
pub(super) struct View<'a> {
    pub(super) facts: &'a Facts,
    pub(super) node: &'a Node,
}

impl<'a> View<'a> {
    pub(super) const fn new(facts: &'a Facts, node: &'a Node) -> Self {
        Self { facts, node }
    }

    pub(super) const fn is_virtual(&self) -> bool {
        matches!(self.facts.device, Device::Virtual(_))
    }

    pub(super) const fn driver(&self) -> &'a Driver {
        &self.node.driver
    }

    /// The driver's version and how many GPUs it has, if it answers.
    pub(super) fn answer(&self) -> Option<(&'a str, usize)> {
        let answer = self.node.driver.answer.as_ref().ok()?;
        Some((&answer.version, answer.gpus))
    }

    /// An agent holds the directory, or somebody answers on its socket.
    pub(super) fn agent_lives(&self) -> bool {
        self.node.run_dir.holder_lives || !matches!(self.node.agent, Agent::Absent)
    }

    /// Processes on the GPUs that are offline: by the agent's word, else by their own.
    pub(super) fn offline(&self) -> Vec<&'a GpuProcess> {
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
pub(super) fn count(number: usize, what: &str) -> String {
    if number == 1 {
        format!("1 {what}")
    } else if what.ends_with("ss") {
        format!("{number} {what}es")
    } else {
        format!("{number} {what}s")
    }
}

pub(super) fn seconds(time: Duration) -> u64 {
    time.as_secs()
}
