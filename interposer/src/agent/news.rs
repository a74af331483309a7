//! What the agent already knows of this process in this session, and what is new.

use super::messages::{event, hook_rows, record};
use super::upstream::Upstream;
use crate::clock;
use crate::process::Process;
use crate::real::driver;
use crate::real::loader::DEEPBIND_LOADS;
use crate::real::row::Row;
use crate::state::objects::Up;
use crate::state::unhooked::unhooked;
use crate::sys;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use tidegate_abi::cuda::CUuuid;
use tidegate_proto::parts;
use tidegate_proto::v1::{self, client_event::Event};

const HOOKS_EVERY_NS: u64 = 1_000_000_000;

/// What the agent was told.
pub struct News {
    process: &'static Process,
    rows: &'static [Row],
    /// The client, and the application's descriptor, whose control file the agent was given.
    control: Option<(u32, i32)>,
    /// The UVM descriptor that the agent knows.
    uvm: Option<i32>,
    devices: u32,
    waiting: bool,
    hooks_at_ns: u64,
    hooks_calls: u64,
}

impl News {
    /// Nothing yet.
    pub const fn new(process: &'static Process, rows: &'static [Row]) -> Self {
        Self {
            process,
            rows,
            control: None,
            uvm: None,
            devices: 0,
            waiting: false,
            hooks_at_ns: 0,
            hooks_calls: 0,
        }
    }

    /// The greeting told the agent of this control file.
    pub const fn greeted(&mut self, control: Option<(u32, i32)>) {
        self.control = control;
    }

    /// Says what stands; from here on every change is kept for the agent.
    pub fn snapshot(&mut self, up: &Upstream) {
        let events = {
            let mut rm = sys::lock(&self.process.rm);
            rm.outbox.clear();
            rm.edges = Default::default();
            rm.granted.clear();
            self.process.link.attached.store(true, Release);
            rm.graph.snapshot()
        };
        self.control_file(up);
        send_changes(up, true, events.into_iter().map(record).collect());
        self.devices = 0;
        self.uvm = None;
        self.hooks(up, true);
    }

    /// Says on which control file the channels are, before anything is said of them.
    fn control_file(&mut self, up: &Upstream) {
        let owners = sys::lock(&self.process.rm).owners();
        let Some(&owner) = owners.first() else { return };
        // One that owns channels will do: the agent finds the file of another by itself.
        if !self.control.is_some_and(|told| owners.contains(&told)) {
            self.control = Some(owner);
            up.send(Event::ControlFile(v1::ControlFile { fd: owner.1 }));
        }
    }

    /// Says which files and devices are new, and what other threads left for the agent.
    pub fn objects(&mut self, up: &Upstream) {
        self.control_file(up);
        let uvm = sys::lock(&self.process.rm).uvm;
        if let Some(fd) = uvm.filter(|_| uvm != self.uvm) {
            self.uvm = uvm;
            up.send(Event::UvmFile(v1::UvmFile { fd }));
        }
        for device in self.process.seen_devices() {
            let bit = 1 << device;
            if self.devices & bit == 0
                && let Some(uuid) = uuid(device)
            {
                self.devices |= bit;
                let slot = u32::try_from(device).unwrap_or(0);
                let uuid = uuid.to_vec();
                up.send(Event::DeviceSeen(v1::DeviceSeen { slot, uuid }));
            }
        }
        let outbox = std::mem::take(&mut sys::lock(&self.process.rm).outbox);
        let mut records = Vec::new();
        for item in outbox {
            if let Up::Record(change) = item {
                records.push(record(change));
                continue;
            }
            send_changes(up, false, std::mem::take(&mut records));
            up.send(event(item));
        }
        send_changes(up, false, records);
    }

    /// Says whether a launch waits at a closed gate, if that changed.
    pub fn waiting(&mut self, up: &Upstream) {
        let waiting = self.process.waits.waiting.load(Acquire) != 0;
        if waiting != self.waiting {
            self.waiting = waiting;
            up.send(Event::GateWait(v1::GateWait { waiting }));
        }
    }

    /// Says the state of every hook, if it changed.
    pub fn hooks(&mut self, up: &Upstream, always: bool) {
        let now = clock::now_ns();
        if !always && now.saturating_sub(self.hooks_at_ns) < HOOKS_EVERY_NS {
            return;
        }
        self.hooks_at_ns = now;
        let rows = hook_rows(self.rows);
        let calls = rows.iter().map(|row| row.calls).sum();
        if !always && calls == self.hooks_calls {
            return;
        }
        self.hooks_calls = calls;
        up.send(Event::Hooks(v1::HookReport {
            rows,
            unhooked: unhooked()
                .into_iter()
                .map(|entry| v1::UnhookedAbi {
                    name: entry.name,
                    version: entry.version,
                    flags: entry.flags,
                    count: entry.count,
                })
                .collect(),
            deepbind_loads: DEEPBIND_LOADS.load(Relaxed),
            panics: self.process.panics.load(Relaxed),
        }));
    }
}

fn send_changes(up: &Upstream, snapshot: bool, events: Vec<v1::RmEvent>) {
    let parts = parts::changes(snapshot, events);
    parts
        .into_iter()
        .map(Event::Rm)
        .for_each(|part| up.send(part));
}

fn uuid(device: usize) -> Option<[u8; 16]> {
    let mut uuid = CUuuid::default();
    let driver = driver::driver()?;
    // SAFETY: `uuid` is live; the call needs no context.
    unsafe { (driver.device_uuid)(&raw mut uuid, i32::try_from(device).ok()?) }
        .is_ok()
        .then_some(uuid.bytes)
}
