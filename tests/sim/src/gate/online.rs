//! What online programs do with their devices, and offline programs with the gaps.

use super::breaks::Break;
use super::play::{Gate, Happening};
use super::script::Word;
use crate::dice::{MS, US};
use crate::world::World;
use std::sync::atomic::Ordering::Release;
use tidegate_device::{ChannelId, Work};

/// The graph of a decode step.
const DECODE: u64 = 7;
/// After so long no agent believes a process that does not work: `frozen_after`, and time to be heard, ns.
pub(super) const BELIEVED: u64 = 5_100 * MS;

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
        let word = serving.word;
        if !process.alive {
            return;
        }
        self.play.judge.request_begins(pid, gpus, word, self.now);
        if word != Word::Tells {
            return self.launch(pid);
        }
        // Its scheduler has work to do before the first kernel.
        self.says(pid, 1);
        let wait = self.dice.between(2 * US, 3 * MS);
        self.play_at(self.now + wait, Happening::Launch(pid));
    }

    /// So many requests are in flight.
    fn says(&mut self, pid: usize, count: u64) {
        let page = &self.processes[pid].page;
        page.process.in_flight.store(count + 1, Release);
        self.ring(pid);
    }

    /// A process has attached by a new page, and what it had said is to be read there.
    pub fn speaks(&mut self, pid: usize) {
        let (now, gpus) = (self.now, self.processes[pid].gpus);
        let Some(serving) = self.processes[pid].own.serving() else {
            return;
        };
        let (word, serves) = (serving.word, serving.request.is_some());
        match word {
            Word::Plain => self.play.judge.silent(pid, gpus, now),
            Word::Stuck => {
                self.play.judge.speaks(pid);
                self.says(pid, 0);
            }
            Word::Tells => self.says(pid, u64::from(serves)),
            Word::Lies => {
                self.says(pid, 1);
                self.pending += 1;
                self.play_at(now + BELIEVED, Happening::Seen);
                // Or it leaves it at that.
                if self.dice.percent(70) {
                    let wait = self.dice.scale(50 * US, 400 * MS);
                    self.play_at(now + wait, Happening::Lie(pid));
                }
            }
        }
    }

    /// A liar says something else, and so on.
    pub fn lies(&mut self, pid: usize) {
        if !self.processes[pid].alive {
            return;
        }
        let word = self.dice.between(0, 3);
        let page = &self.processes[pid].page;
        page.process.in_flight.store(word, Release);
        self.ring(pid);
        let wait = self.dice.scale(50 * US, 400 * MS);
        self.play_at(self.now + wait, Happening::Lie(pid));
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
        if serving.word == Word::Stuck {
            self.play.judge.silent(pid, process.gpus, now);
        }
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
            let theirs = process.clock(now);
            let held = &mut process.devices[device];
            rang |= held.launch(&process.page.devices[device], graph, theirs);
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
            let theirs = process.clock(now);
            for device in &mut process.devices {
                device.synced(theirs);
            }
        }
        let Some(serving) = process.own.serving() else {
            return;
        };
        serving.done += 1;
        let tokens = serving.request.map_or(0, |request| request.tokens);
        if serving.done <= tokens {
            let gap = self.dice.between(shortest, shortest * 9 / 5);
            // Who says that a request is in flight has the gap after its prefill counted too.
            let counts = matches!(serving.word, Word::Tells | Word::Lies);
            serving.gap = (serving.done > 1 || counts).then_some(gap);
            serving.launches_left = launches;
            let early = self.play.broken == Break::EarlyWord && serving.word == Word::Tells;
            if early {
                self.says(pid, 0);
            }
            self.play_at(now + gap, Happening::Launch(pid));
        } else {
            serving.request = None;
            match serving.word {
                Word::Tells => self.says(pid, 0),
                Word::Lies => {
                    // It has worked, so it is believed once more.
                    self.pending += 1;
                    self.play_at(now + BELIEVED, Happening::Seen);
                }
                Word::Plain | Word::Stuck => {}
            }
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
