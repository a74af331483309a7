//! What online programs do with their devices, and offline programs with the gaps.

use super::play::{Gate, Happening};
use crate::dice::{MS, US};
use crate::world::World;
use tidegate_device::{ChannelId, Work};

/// The graph of a decode step.
const DECODE: u64 = 7;

impl World<Gate> {
    pub fn next_request(&mut self, pid: usize, at_least: u64) {
        let Some(serving) = self.processes[pid].own.serving() else {
            return;
        };
        if let Some(pause) = serving.requests.front().map(|request| request.pause) {
            self.play_at(self.now + pause.max(at_least), Happening::Request(pid));
        }
    }

    pub fn request(&mut self, pid: usize) {
        let process = &mut self.processes[pid];
        let gpus = process.gpus;
        let Some(serving) = process.own.serving() else {
            return;
        };
        serving.request = serving.requests.pop_front();
        serving.done = 0;
        serving.launches_left = 9;
        if process.alive {
            self.play.judge.request_begins(pid, gpus);
            self.launch(pid);
        }
    }

    pub fn launch(&mut self, pid: usize) {
        let now = self.now;
        let eager = self.play.script.eager;
        let process = &mut self.processes[pid];
        if !process.alive {
            return;
        }
        let Some(serving) = process.own.serving() else {
            return;
        };
        let Some(request) = serving.request else {
            return;
        };
        if let Some(gap) = serving.gap.take() {
            self.play.judge.decode_gap(pid, gap);
        }
        let prefill = serving.done == 0;
        let per_iteration = if prefill { 9 } else { decode_launches(eager) };
        let ns = if prefill {
            request.prefill
        } else {
            request.decode
        } / per_iteration;
        let graph = if prefill || eager { 0 } else { DECODE };
        let mut rang = false;
        for device in 0..process.devices.len() {
            let process = &mut self.processes[pid];
            let held = &mut process.devices[device];
            rang |= held.launch(&process.page.devices[device], graph, now);
            let (gpu, channel) = (held.gpu, held.channels[0].1);
            self.play.judge.submitted(pid, gpu, now);
            let tag = u64::try_from(pid).unwrap_or(u64::MAX);
            self.device(gpu).submit(channel, Work::Run { ns, tag });
        }
        if rang {
            self.ring(pid);
            self.wake_prober(pid);
        }
        let wait = self.dice.between(2 * US, 6 * US);
        self.play_at(now + wait, Happening::LaunchReturned(pid));
    }

    pub fn launch_returned(&mut self, pid: usize) {
        let process = &mut self.processes[pid];
        if !process.alive {
            return;
        }
        for device in &process.devices {
            device.returned();
        }
        let Some(serving) = process.own.serving() else {
            return;
        };
        serving.launches_left -= 1;
        if serving.launches_left > 0 {
            let wait = self.dice.between(US, 5 * US);
            return self.play_at(self.now + wait, Happening::Launch(pid));
        }
        serving.syncing = true;
        self.sync(pid);
    }

    fn sync(&mut self, pid: usize) {
        let process = &mut self.processes[pid];
        let done = process.devices.iter().all(|device| device.outstanding == 0);
        let Some(serving) = process.own.serving() else {
            return;
        };
        if done && core::mem::take(&mut serving.syncing) {
            let wait = if self.play.script.syncs {
                self.dice.between(3 * US, 8 * US)
            } else {
                self.dice.between(20 * US, 250 * US)
            };
            self.play_at(self.now + wait, Happening::SyncReturned(pid));
        }
    }

    pub fn sync_returned(&mut self, pid: usize) {
        let (now, syncs, shortest) = (self.now, self.play.script.syncs, self.play.script.gap);
        let launches = decode_launches(self.play.script.eager);
        let process = &mut self.processes[pid];
        if !process.alive {
            return;
        }
        if syncs {
            for device in &mut process.devices {
                device.synced(now);
            }
        }
        let Some(serving) = process.own.serving() else {
            return;
        };
        serving.done += 1;
        let tokens = serving.request.map_or(0, |request| request.tokens);
        if serving.done <= tokens {
            let gap = self.dice.between(shortest, shortest * 9 / 5);
            serving.gap = (serving.done > 1).then_some(gap);
            serving.launches_left = launches;
            self.play_at(now + gap, Happening::Launch(pid));
        } else {
            serving.request = None;
            self.play.judge.request_ends(pid, now);
            self.acts();
            self.next_request(pid, 0);
        }
    }

    pub fn work_ends(&mut self, gpu: usize, tag: u64, at: u64) {
        let Some(pid) = usize::try_from(tag)
            .ok()
            .filter(|pid| *pid < self.processes.len())
        else {
            return;
        };
        if !self.processes[pid].is_online() {
            return self.offline_feeds(pid);
        }
        self.play.judge.finished(pid, gpu, at);
        let devices = &mut self.processes[pid].devices;
        if let Some(device) = devices.iter_mut().find(|device| device.gpu == gpu) {
            device.outstanding -= 1;
        }
        self.sync(pid);
    }

    /// Keeps two kernels queued on every channel while launches pass.
    pub fn offline_feeds(&mut self, pid: usize) {
        let process = &mut self.processes[pid];
        if !process.alive || !process.passes() {
            return;
        }
        let channels: Vec<(usize, ChannelId)> = process
            .devices
            .iter()
            .flat_map(|device| {
                device
                    .channels
                    .iter()
                    .map(|channel| (device.gpu, channel.1))
            })
            .collect();
        let tag = u64::try_from(pid).unwrap_or(u64::MAX);
        for (gpu, channel) in channels {
            while self.gpus[gpu].queued(channel) < 2 {
                let ns = self.dice.between(500 * US, 6 * MS);
                self.device(gpu).submit(channel, Work::Run { ns, tag });
            }
        }
    }
}

fn decode_launches(eager: bool) -> u64 {
    if eager { 5 } else { 2 }
}
