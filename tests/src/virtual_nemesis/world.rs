//! One schedule from its first event to its verdict.
//!
//! Everything that takes time is an event in one queue; the device model's own events come before
//! those of the same instant. There is no other state, and nothing depends on the order in which
//! memory happens to lie.

use super::breaks::Break;
use super::judge::Figures;
use super::process::{Kind, PROBE_MAX, Process, busy};
use super::script::{MS, US};
use super::state::{Ev, GRAPHICS, In, World, client_of};
use std::sync::atomic::Ordering;
use tidegate_core::landing::{AgentView as Glance, Effect as Land, OnLoss};
use tidegate_device::{ChannelId, EventKind, TsgId, Work};
use tidegate_node::Input;

/// The graph of a decode step.
const DECODE: u64 = 7;
/// Quiet at the end of a schedule: start hold, longest cooldown, and time to spare.
const QUIET: u64 = 1_200 * MS;
/// A held scheduling call passes after this long.
pub(super) const SCHEDULE_HOLD: u64 = 2_000 * MS;
/// No schedule lasts longer; one that does is stuck.
const LONGEST: u64 = 120_000 * MS;

impl World {
    pub fn run(mut self) -> (Vec<String>, Figures) {
        self.begin();
        while !self.over && self.now < LONGEST {
            let device = (0..self.gpus.len())
                .filter_map(|gpu| self.gpus[gpu].next_event().map(|at| (at, gpu)))
                .min();
            let event = self.queue.first_key_value().map(|(key, _)| key.0);
            match (device, event) {
                (Some((at, gpu)), event) if event.is_none_or(|event| at <= event) => {
                    self.now = at.max(self.now);
                    self.device(gpu);
                }
                (_, Some(at)) => {
                    self.now = at;
                    if let Some((_, event)) = self.queue.pop_first() {
                        self.happens(event);
                    }
                }
                _ => break,
            }
            self.remember();
        }
        self.judge.close(self.now)
    }

    fn begin(&mut self) {
        self.agent_starts();
        for (gpus, requests) in self.script.online.clone() {
            let process = Process::online(gpus, requests.into());
            self.spawn_in(self.now, process);
        }
        for (job, gpus) in self.script.offline.clone() {
            self.spawn_in(self.now, Process::offline(job, gpus));
        }
        for (at, fault) in self.script.faults.clone() {
            self.pending += 1;
            self.at(at, Ev::Fault(fault));
        }
        self.at(QUIET, Ev::Over);
    }

    /// The device's history goes to the judge, and to the processes that wait for work to end.
    fn remember(&mut self) {
        while !self.history.is_empty() {
            for (gpu, event) in core::mem::take(&mut self.history) {
                match event.kind {
                    EventKind::Finished { tag, .. } => self.work_ends(gpu, tag, event.at),
                    EventKind::TsgRun { tsg, .. } if self.offline_tsgs.contains(&(gpu, tsg)) => {
                        self.judge.run(gpu, tsg, event.at);
                    }
                    EventKind::TsgStop { tsg, .. } => self.judge.stop(gpu, tsg, event.at),
                    EventKind::Disabled { channel, .. } => {
                        self.judge.disabled(gpu, channel, event.at);
                    }
                    EventKind::Enabled { channel, .. } => {
                        self.judge.enabled(gpu, channel, event.at);
                    }
                    _ => {}
                }
            }
        }
    }

    fn happens(&mut self, event: Ev) {
        match event {
            Ev::Request(pid) => self.request(pid),
            Ev::Launch(pid) => self.launch(pid),
            Ev::LaunchReturned(pid) => self.launch_returned(pid),
            Ev::SyncReturned(pid) => self.sync_returned(pid),
            Ev::Probe(pid) => self.probe(pid),
            Ev::Publish(pid, device) => {
                let process = &mut self.processes[pid];
                let words = &process.page.devices[device];
                if process.alive && process.devices[device].publish(words, self.now) {
                    self.ring(pid);
                }
            }
            Ev::Reporter(pid) => self.reporter(pid),
            Ev::ReporterTick(pid) => {
                if self.processes[pid].alive {
                    self.reporter(pid);
                    self.at(self.now + 50 * MS, Ev::ReporterTick(pid));
                }
            }
            Ev::Kick(kick) => self.kick(*kick),
            Ev::Agent(epoch, message) => self.receive(epoch, *message),
            Ev::Reported(epoch, pid) => {
                self.proven.insert((epoch, pid));
                let process = &mut self.processes[pid];
                if process.attached == Some(epoch) {
                    process.reported = (0..process.devices.len()).collect();
                    self.check_control();
                }
            }
            Ev::Enter(epoch, gpu) => self.enter(epoch, gpu),
            Ev::Returned(epoch, gpu, done) => self.call_returned(epoch, gpu, *done),
            Ev::Released(epoch, released) => {
                let released = In::Node(Input::Released(*released));
                self.at(self.now, Ev::Agent(epoch, Box::new(released)));
            }
            Ev::Landed(pid) => self.processes[pid].released(),
            Ev::Fault(fault) => {
                self.pending -= 1;
                self.acts();
                self.fault(fault);
            }
            Ev::AgentStarts => {
                self.pending -= 1;
                self.acts();
                self.agent_starts();
            }
            Ev::AgentGoesOn(epoch) => {
                self.pending -= 1;
                self.acts();
                if self
                    .agent
                    .as_ref()
                    .is_some_and(|agent| agent.epoch == epoch)
                {
                    self.agent_goes_on();
                }
            }
            Ev::Spawn(process) => {
                self.pending -= 1;
                self.acts();
                self.spawn(*process);
            }
            Ev::Over => self.is_over(),
        }
    }

    fn acts(&mut self) {
        self.last_action = self.now;
    }

    fn is_over(&mut self) {
        let serving = self.processes.iter_mut().any(|process| {
            process.alive
                && process
                    .serving()
                    .is_some_and(|s| s.request.is_some() || !s.requests.is_empty())
        });
        if serving || self.pending > 0 {
            self.acts();
        }
        self.over = self.now >= self.last_action + QUIET;
        self.at(self.now + 50 * MS, Ev::Over);
    }

    /// The agent is in control once every process it may know has attached to it.
    pub fn check_control(&mut self) {
        let epoch = self
            .agent
            .as_ref()
            .filter(|agent| !agent.stopped)
            .map(|agent| agent.epoch);
        let controlled = epoch.is_some()
            && self
                .processes
                .iter()
                .filter(|p| p.alive && p.attached_once)
                .all(|process| process.attached == epoch && process.is_reported());
        self.judge.control(self.now, controlled);
    }

    pub fn spawn_in(&mut self, at: u64, process: Process) {
        self.pending += 1;
        self.at(at, Ev::Spawn(Box::new(process)));
    }

    fn spawn(&mut self, process: Process) {
        let pid = self.processes.len();
        let online = process.is_online();
        self.processes.push(process);
        for device in 0..self.processes[pid].devices.len() {
            let channels = if online { 1 } else { self.dice.between(1, 2) };
            for _ in 0..channels {
                let (gpu, tsg) = self.add_channel(pid, device);
                self.device(gpu).set_scheduled(tsg, true);
            }
        }
        let wait = self.dice.between(200 * US, 2 * MS);
        self.tell_in(wait, In::Attach(pid));
        if online {
            self.next_request(pid, 20 * MS);
        } else {
            let wait = self.dice.between(0, 50 * MS);
            self.at(self.now + wait, Ev::ReporterTick(pid));
        }
    }

    pub fn add_channel(&mut self, pid: usize, device: usize) -> (usize, TsgId) {
        let gpu = self.processes[pid].devices[device].gpu;
        let tsg = self.device(gpu).add_tsg(GRAPHICS);
        let channel = self.device(gpu).add_channel(tsg);
        let held = &mut self.processes[pid].devices[device].channels;
        held.push((tsg, channel));
        let base = u32::try_from(gpu).unwrap_or(0) << 16;
        let number = u32::try_from(held.len()).unwrap_or(0);
        let client = client_of(pid);
        self.handles.insert((client, base + number), (gpu, channel));
        self.groups.insert((client, base + 0x8000 + number), tsg);
        if !self.processes[pid].is_online() {
            self.offline_tsgs.insert((gpu, tsg));
            self.judge.channel_up(gpu, channel);
        }
        (gpu, tsg)
    }

    pub fn kill(&mut self, pid: usize) {
        let now = self.now;
        self.processes[pid].alive = false;
        for device in 0..self.processes[pid].devices.len() {
            let gpu = self.processes[pid].devices[device].gpu;
            for (tsg, channel) in self.processes[pid].devices[device].channels.clone() {
                self.device(gpu).remove_tsg(tsg);
                self.judge.stop(gpu, tsg, now);
                self.judge.channel_down(gpu, channel);
            }
        }
        if self.processes[pid].is_online() {
            self.judge.online_gone(pid, now);
        }
        if self.processes[pid].attached == Some(self.epoch) {
            let lost = Input::Disconnected(self.processes[pid].session);
            let wait = self.dice.between(30 * US, MS);
            self.tell_in(wait, In::Node(lost));
        }
        let wait = self.dice.between(MS, 4 * MS);
        self.tell_in(wait, In::Gone(pid));
        self.check_control();
    }

    pub fn any(&mut self, online: bool) -> Option<usize> {
        let of_kind = |pid: &usize| {
            let process = &self.processes[*pid];
            process.alive && process.is_online() == online
        };
        let pids: Vec<usize> = (0..self.processes.len()).filter(of_kind).collect();
        self.dice.one_of(&pids)
    }

    fn next_request(&mut self, pid: usize, at_least: u64) {
        let Some(serving) = self.processes[pid].serving() else {
            return;
        };
        if let Some(pause) = serving.requests.front().map(|request| request.pause) {
            self.at(self.now + pause.max(at_least), Ev::Request(pid));
        }
    }

    fn request(&mut self, pid: usize) {
        let process = &mut self.processes[pid];
        let gpus = process.gpus;
        let Some(serving) = process.serving() else {
            return;
        };
        serving.request = serving.requests.pop_front();
        serving.done = 0;
        serving.launches_left = 9;
        if process.alive {
            self.judge.request_begins(pid, gpus);
            self.launch(pid);
        }
    }

    fn launch(&mut self, pid: usize) {
        let now = self.now;
        let eager = self.script.eager;
        let process = &mut self.processes[pid];
        if !process.alive {
            return;
        }
        let Some(serving) = process.serving() else {
            return;
        };
        let Some(request) = serving.request else {
            return;
        };
        if let Some(gap) = serving.gap.take() {
            self.judge.decode_gap(pid, gap);
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
            self.judge.submitted(pid, gpu, now);
            let tag = u64::try_from(pid).unwrap_or(u64::MAX);
            self.device(gpu).submit(channel, Work::Run { ns, tag });
        }
        if rang {
            self.ring(pid);
            self.wake_prober(pid);
        }
        let wait = self.dice.between(2 * US, 6 * US);
        self.at(now + wait, Ev::LaunchReturned(pid));
    }

    fn launch_returned(&mut self, pid: usize) {
        let process = &mut self.processes[pid];
        if !process.alive {
            return;
        }
        for device in &process.devices {
            device.returned();
        }
        let Some(serving) = process.serving() else {
            return;
        };
        serving.launches_left -= 1;
        if serving.launches_left > 0 {
            let wait = self.dice.between(US, 5 * US);
            return self.at(self.now + wait, Ev::Launch(pid));
        }
        serving.syncing = true;
        self.sync(pid);
    }

    fn sync(&mut self, pid: usize) {
        let process = &mut self.processes[pid];
        let done = process.devices.iter().all(|device| device.outstanding == 0);
        let Some(serving) = process.serving() else {
            return;
        };
        if done && core::mem::take(&mut serving.syncing) {
            let wait = if self.script.syncs {
                self.dice.between(3 * US, 8 * US)
            } else {
                self.dice.between(20 * US, 250 * US)
            };
            self.at(self.now + wait, Ev::SyncReturned(pid));
        }
    }

    fn sync_returned(&mut self, pid: usize) {
        let (now, syncs, shortest) = (self.now, self.script.syncs, self.script.gap);
        let launches = decode_launches(self.script.eager);
        let process = &mut self.processes[pid];
        if !process.alive {
            return;
        }
        if syncs {
            for device in &mut process.devices {
                device.synced(now);
            }
        }
        let Some(serving) = process.serving() else {
            return;
        };
        serving.done += 1;
        let tokens = serving.request.map_or(0, |request| request.tokens);
        if serving.done <= tokens {
            let gap = self.dice.between(shortest, shortest * 9 / 5);
            serving.gap = (serving.done > 1).then_some(gap);
            serving.launches_left = launches;
            self.at(now + gap, Ev::Launch(pid));
        } else {
            serving.request = None;
            self.judge.request_ends(pid, now);
            self.acts();
            self.next_request(pid, 0);
        }
    }

    fn work_ends(&mut self, gpu: usize, tag: u64, at: u64) {
        let Some(pid) = usize::try_from(tag)
            .ok()
            .filter(|pid| *pid < self.processes.len())
        else {
            return;
        };
        if !self.processes[pid].is_online() {
            return self.offline_feeds(pid);
        }
        self.judge.finished(pid, gpu, at);
        let devices = &mut self.processes[pid].devices;
        if let Some(device) = devices.iter_mut().find(|device| device.gpu == gpu) {
            device.outstanding -= 1;
        }
        self.sync(pid);
    }

    fn ring(&mut self, pid: usize) {
        if self.broken == Break::LostEdge && self.dice.percent(10) {
            return;
        }
        self.processes[pid].ring();
        if self.processes[pid].attached.is_some() {
            let wait = self.dice.between(5 * US, 35 * US);
            self.tell_in(wait, In::Doorbell);
        }
    }

    pub fn wake_prober(&mut self, pid: usize) {
        let wait = self.dice.between(200 * US, PROBE_MAX - 10 * US);
        if let Some(serving) = self.processes[pid].serving()
            && !core::mem::replace(&mut serving.probing, true)
        {
            self.at(self.now + wait, Ev::Probe(pid));
        }
    }

    fn probe(&mut self, pid: usize) {
        let now = self.now;
        let process = &mut self.processes[pid];
        if !process.alive {
            return;
        }
        if let Some(serving) = process.serving() {
            serving.probing = false;
        }
        let mut due = Vec::new();
        let page = &process.page;
        for (index, device) in process.devices.iter_mut().enumerate() {
            if device.probe(&page.devices[index], now) {
                due.push(index);
            }
        }
        page.process.prober_ns.store(now, Ordering::Relaxed);
        let count = process.devices.len();
        let busy = page.devices.iter().take(count).any(busy);
        for device in due {
            let wait = self.dice.between(US, 4 * US);
            self.at(now + wait, Ev::Publish(pid, device));
        }
        if busy {
            self.wake_prober(pid);
        }
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

    /// An offline process looks at its agent.
    fn reporter(&mut self, pid: usize) {
        let (now, epoch) = (self.now, self.epoch);
        let process = &mut self.processes[pid];
        if !process.alive || !process.attached_once {
            return;
        }
        let (generation, attached) = (process.obeyed, process.attached);
        let heartbeat_ns = process.heartbeat();
        let Kind::Offline(harvesting) = &mut process.kind else {
            return;
        };
        let look = Glance {
            heartbeat_ns,
            handing_over_ns: 0,
            generation,
            stream: attached == Some(epoch),
        };
        let (next, effects) = harvesting.landing.step(look, OnLoss::default(), now);
        harvesting.landing = next;
        for effect in effects {
            match effect {
                Land::EnableChannels if self.broken != Break::NoLanding => {
                    if let Kind::Offline(harvesting) = &mut self.processes[pid].kind {
                        harvesting.landing = harvesting.landing.enabled(true).0;
                    }
                    for device in 0..self.processes[pid].devices.len() {
                        let held = &self.processes[pid].devices[device];
                        let list: Vec<_> = held.channels.iter().map(|channel| channel.1).collect();
                        let gpu = held.gpu;
                        self.device(gpu).enable_at(now + 30 * US, &list, 0);
                    }
                    self.at(now + 30 * US, Ev::Landed(pid));
                }
                Land::ObeyAgent | Land::OpenGate => self.offline_feeds(pid),
                _ => {}
            }
        }
    }
}

fn decode_launches(eager: bool) -> u64 {
    if eager { 5 } else { 2 }
}
