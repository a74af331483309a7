//! Processes attach and leave, make channels, launch, and report when their devices are busy.

use crate::defect::Defect;
use crate::dice::{MS, US};
use crate::process::{PROBE_MAX, Process, busy};
use crate::world::{Ev, Fact, GRAPHICS, In, Play, World, client_of, process_of};
use std::sync::atomic::Ordering;
use tidegate_device::TsgId;
use tidegate_node::Input;

/// How far the clocks of processes are ahead of the agent's, ns: some are in time namespaces.
const AHEAD: [u64; 4] = [0, 86_400_000 * MS, 0, 700 * MS];

impl<P: Play> World<P> {
    pub fn spawn_in(&mut self, at: u64, process: Process<P::Own>) {
        self.pending += 1;
        self.at(at, Ev::Spawn(Box::new(process)));
    }

    /// A process begins, makes its channels and attaches.
    pub fn spawn(&mut self, mut process: Process<P::Own>) {
        let pid = self.processes.len();
        process.ahead = AHEAD[pid % AHEAD.len()];
        let online = process.is_online();
        self.processes.push(process);
        self.switches.set_running(kernel_pid(pid), true);
        for device in 0..self.processes[pid].devices.len() {
            let channels = if online { 1 } else { self.dice.between(1, 2) };
            for _ in 0..channels {
                let (gpu, tsg) = self.add_channel(pid, device);
                self.device(gpu).set_scheduled(tsg, true);
            }
        }
        let wait = self.dice.between(200 * US, 2 * MS);
        self.tell_in(wait, In::Attach(pid));
        P::spawned(self, pid);
    }

    /// An offline process looks at its agent again and again, from some time in the first 50 ms on.
    pub fn begin_reporter(&mut self, pid: usize) {
        let wait = self.dice.between(0, 50 * MS);
        self.at(self.now + wait, Ev::ReporterTick(pid));
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
            let process = &self.processes[pid];
            let (job, late) = (process.job.unwrap_or(0), process.attached.is_some());
            self.learns(Fact::ChannelUp {
                gpu,
                channel,
                job,
                late,
            });
        }
        (gpu, tsg)
    }

    /// A process ends, with all it had.
    pub fn kill(&mut self, pid: usize) {
        let now = self.now;
        self.processes[pid].alive = false;
        self.switches.set_running(kernel_pid(pid), false);
        for device in 0..self.processes[pid].devices.len() {
            let gpu = self.processes[pid].devices[device].gpu;
            for (tsg, channel) in self.processes[pid].devices[device].channels.clone() {
                self.device(gpu).remove_tsg(tsg);
                self.learns(Fact::Stop(gpu, tsg, now));
                self.learns(Fact::ChannelDown(gpu, channel));
            }
        }
        if self.processes[pid].is_online() {
            self.learns(Fact::OnlineGone(pid));
        }
        if self.processes[pid].attached == Some(self.epoch) {
            self.closes_stream(pid);
        }
        let wait = self.dice.between(MS, 4 * MS);
        self.tell_in(wait, In::Gone(pid));
        P::settled(self);
    }

    /// The agent hears that a stream ended.
    fn closes_stream(&mut self, pid: usize) {
        let lost = Input::Disconnected(self.processes[pid].session);
        let wait = self.dice.between(30 * US, MS);
        self.tell_in(wait, In::Node(lost));
    }

    /// A living process loses its stream, and attaches again.
    pub fn loses_stream(&mut self, pid: usize) {
        let process = &mut self.processes[pid];
        if !process.alive || process.attached != Some(self.epoch) {
            return;
        }
        process.attached = None;
        process.listens.store(false, Ordering::Relaxed);
        self.closes_stream(pid);
        P::detached(self, pid);
        self.at(self.now, Ev::Reporter(pid));
        let wait = self.dice.between(MS, 60 * MS);
        self.tell_in(wait, In::Attach(pid));
    }

    pub fn any(&mut self, online: bool) -> Option<usize> {
        let of_kind = |pid: &usize| {
            let process = &self.processes[*pid];
            process.alive && process.is_online() == online
        };
        let pids: Vec<usize> = (0..self.processes.len()).filter(of_kind).collect();
        self.dice.one_of(&pids)
    }

    /// A living process by its session with the agent there is.
    pub fn of_session(&self, session: u64) -> Option<usize> {
        let same = |process: &Process<P::Own>| {
            process.alive && process.session == session && process.attached == Some(self.epoch)
        };
        self.processes.iter().position(same)
    }

    pub fn ring(&mut self, pid: usize) {
        if self.is_broken(Defect::LostEdge) && self.dice.percent(10) {
            return;
        }
        self.processes[pid].ring();
        if self.processes[pid].attached.is_some() {
            let wait = self.dice.between(5 * US, 35 * US);
            self.tell_in(wait, In::Doorbell);
            self.wake_armed();
        }
    }

    pub fn wake_prober(&mut self, pid: usize) {
        let wait = self.dice.between(200 * US, PROBE_MAX - 10 * US);
        let process = &mut self.processes[pid];
        if process.is_online() && !core::mem::replace(&mut process.probing, true) {
            self.at(self.now + wait, Ev::Probe(pid));
        }
    }

    pub fn probe(&mut self, pid: usize) {
        let now = self.now;
        let process = &mut self.processes[pid];
        if !process.alive {
            return;
        }
        process.probing = false;
        let theirs = process.clock(now);
        let mut due = Vec::new();
        let page = &process.page;
        for (index, device) in process.devices.iter_mut().enumerate() {
            if device.probe(&page.devices[index], theirs) {
                due.push(index);
            }
        }
        page.process.prober_ns.store(theirs, Ordering::Relaxed);
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

    pub fn publish(&mut self, pid: usize, device: usize) {
        let process = &mut self.processes[pid];
        let words = &process.page.devices[device];
        let theirs = process.clock(self.now);
        if process.alive && process.devices[device].publish(words, theirs) {
            self.ring(pid);
        }
    }
}

/// The process id that the kernel gives it.
fn kernel_pid(pid: usize) -> u32 {
    process_of(pid).pid.cast_unsigned()
}
