//! What the device testifies and what the agent says, as tests ask for it.
//!
//! The verdicts are the device's: [`Testimony`] holds its history and answers questions of order.
//! [`status`] is only ever asked for what a user reads there.

pub use crate::view::{counter, status};
use crate::{Node, clock, wait_until};
use tidegate_vgpu::control::{ChannelState, Control};
use tidegate_vgpu::history::{self, Kind, Record};

/// The channels that the processes `pids` have on the device now.
///
/// # Panics
/// When the device does not answer.
#[track_caller]
#[must_use]
pub fn channels(node: &Node, pids: &[u32]) -> Vec<ChannelState> {
    let control = Control::connect(&node.vgpu_dir()).expect("the device listens");
    let mut channels = control.channels().expect("the device answers");
    channels.retain(|channel| pids.contains(&channel.pid));
    channels
}

/// Waits until the agent has heard that the online process `pid` is idle, the gate on GPU `gpu` is open and
/// nothing is disabled there: a process counts as busy from its attaching until it was asked, and the gate
/// closes for that a moment after status shows the process.
///
/// # Panics
/// When that does not come before the deadline.
#[track_caller]
pub fn wait_open(node: &Node, gpu: usize, pid: u32) {
    let open = || {
        let status = status(node);
        let rows = status["processes"].as_array()?;
        let seen = rows.iter().any(|row| {
            let devices = row["devices"].as_array().into_iter().flatten();
            let mut of = devices.clone();
            let heard = |device: &serde_json::Value| device["edges"].as_u64() > Some(0);
            let idle = of.all(|device| device["busy"] == false && heard(device));
            row["pid"] == pid && idle && devices.count() > 0
        });
        let gate = &status["gpus"][gpu];
        (seen && gate["gate"] == "open" && gate["channels_disabled"] == 0).then_some(())
    };
    if wait_until(clock::DEADLINE, open).is_none() {
        panic!("no open gate on GPU {gpu}: {:#}", status(node));
    }
}

/// Waits until every channel of `pids` is disabled, or enabled; how many there are.
///
/// # Panics
/// When they are not before the deadline, with the agent's log.
#[track_caller]
pub fn wait_all(node: &Node, pids: &[u32], disabled: bool) -> usize {
    let all = || {
        let channels = channels(node, pids);
        let so = channels.iter().all(|channel| channel.disabled == disabled);
        (so && !channels.is_empty()).then_some(channels.len())
    };
    wait_until(clock::DEADLINE, all).unwrap_or_else(|| {
        panic!(
            "not all channels of {pids:?} are {}: {:?}\n{}",
            if disabled { "disabled" } else { "enabled" },
            channels(node, pids),
            std::fs::read_to_string(node.agent_log()).unwrap_or_default()
        )
    })
}

/// The history of a node's device.
#[derive(Clone, Debug)]
pub struct Testimony(pub Vec<Record>);

impl Testimony {
    /// All of it so far.
    ///
    /// # Panics
    /// When there is none.
    #[track_caller]
    #[must_use]
    pub fn of(node: &Node) -> Self {
        Self(history::read(&node.vgpu_dir()).expect("the device keeps a history"))
    }

    /// Records of one kind about `pids`, in the order the device learnt of them.
    pub fn all(&self, pids: &[u32], kind: Kind) -> impl Iterator<Item = &Record> {
        self.0
            .iter()
            .filter(move |record| record.kind == kind && pids.contains(&record.pid))
    }

    /// Kernels of `pids` that finished after `at_ns`.
    #[must_use]
    pub fn finished_after(&self, pids: &[u32], at_ns: u64) -> usize {
        self.all(pids, Kind::KernelEnd)
            .filter(|record| record.at_ns > at_ns)
            .count()
    }

    /// Anything of `pids` that got on an engine between two instants.
    #[must_use]
    pub fn ran_between(&self, pids: &[u32], from_ns: u64, to_ns: u64) -> Vec<Record> {
        self.0
            .iter()
            .filter(|record| matches!(record.kind, Kind::TsgRun | Kind::KernelStart))
            .filter(|record| pids.contains(&record.pid))
            .filter(|record| record.at_ns > from_ns && record.at_ns < to_ns)
            .copied()
            .collect()
    }

    /// The first stretch after `after_ns` in which channels of `pids` are disabled: when the first
    /// `count` of them were, and when the first of them was enabled again.
    #[must_use]
    pub fn shut(&self, pids: &[u32], count: usize, after_ns: u64) -> Option<(u64, u64)> {
        let from = self
            .all(pids, Kind::DisableEnd)
            .filter(|record| record.at_ns > after_ns)
            .map(|record| record.at_ns)
            .nth(count.checked_sub(1)?)?;
        let to = self
            .all(pids, Kind::EnableEnd)
            .find(|record| record.at_ns > from)?
            .at_ns;
        Some((from, to))
    }
}

/// Waits until `pids` have finished `count` kernels after `at_ns`.
///
/// # Panics
/// When they do not before the deadline.
#[track_caller]
pub fn wait_finished(node: &Node, pids: &[u32], count: usize, at_ns: u64) {
    let finished = || {
        let seen = Testimony::of(node).finished_after(pids, at_ns);
        (seen >= count).then_some(())
    };
    if wait_until(clock::DEADLINE, finished).is_none() {
        panic!(
            "{pids:?} do not run: {:?}\n{}",
            channels(node, pids),
            std::fs::read_to_string(node.agent_log()).unwrap_or_default()
        );
    }
}
