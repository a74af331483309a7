//! What the checker learns about launch gates, on nodes where nothing else can be gated.

use super::play::{Gate, Own};
use crate::method::{KERNEL, ONLINE};
use crate::process::Process;
use crate::world::World;
use tidegate_device::ChannelId;
use tidegate_node::kinds::Level;

/// Kernels that it keeps queued on a channel.
const QUEUED: u64 = 2;

impl World<Gate> {
    /// What the judge is told of launch gates, where they are all there is: it looks at the pages.
    pub fn look_at_gates(&mut self) {
        if self.rules.level != Level::L5 {
            return;
        }
        let now = self.now;
        for pid in 0..self.processes.len() {
            let process = &self.processes[pid];
            if process.is_online() || !process.alive || process.attached.is_none() {
                continue;
            }
            for at in 0..process.devices.len() {
                let device = &self.processes[pid].devices[at];
                let (gpu, open) = (device.gpu, self.processes[pid].is_open(at));
                let key = (pid, gpu);
                if self.play.open_gates.contains(&key) == open {
                    continue;
                }
                let list: Vec<ChannelId> = device.channels.iter().map(|held| held.1).collect();
                if open {
                    self.play.open_gates.insert(key);
                    self.play.judge.woke(gpu, now, now);
                } else {
                    self.play.open_gates.remove(&key);
                    let queued = self.offline_channels(gpu) * QUEUED + ONLINE;
                    self.play
                        .judge
                        .disable_call(gpu, &list, now, now, queued * KERNEL);
                }
            }
        }
        for gpu in 0..self.gpus.len() {
            let open = self.play.open_gates.iter().filter(|key| key.1 == gpu);
            let alive = open.filter(|key| self.processes[key.0].alive);
            let jobs = alive.filter_map(|key| self.processes[key.0].job).collect();
            self.play.judge.pass(gpu, &jobs, now);
        }
    }

    /// Channels on a GPU whose queued work runs out in turns, whosever gate was shut.
    fn offline_channels(&self, gpu: usize) -> u64 {
        let offline = |process: &&Process<Own>| process.alive && !process.is_online();
        let devices = self.processes.iter().filter(offline);
        let on = devices.flat_map(|process| &process.devices);
        let channels = on.filter(|device| device.gpu == gpu);
        let count: usize = channels.map(|device| device.channels.len()).sum();
        u64::try_from(count).unwrap_or(0)
    }
}
