//! What must hold, judged from the device model and the tokens: nothing moves while a channel of its process is
//! enabled, no kernel runs where nothing is mapped, every request ends, nothing stays disabled or held, and the sums
//! of the ledger are exact after every turn of the shell.

use super::play::{Own, Reclaim};
use crate::world::World;
use tidegate_policy::ids::{Bytes, GpuId};

impl World<Reclaim> {
    pub fn violated(&mut self, what: &str) {
        self.play.violated(self.now, what);
    }

    /// Mappings of a process change.
    pub fn fault_if_enabled(&mut self, pid: usize) {
        let process = &self.processes[pid];
        let channels = process.devices.iter().flat_map(|device| &device.channels);
        let enabled = channels.filter(|held| !self.gpus[0].is_disabled(held.1));
        if process.alive && enabled.count() > 0 {
            self.play.figures.faults += 1;
            self.violated("memory moved beside an enabled channel");
        }
    }

    pub fn check_ledger(&mut self) {
        let shell = self.agent.as_ref().map(|agent| &agent.shell);
        let ledger = shell.and_then(|shell| shell.policy().ledger(GpuId(0)));
        let sum = ledger.map(|ledger| ledger.totals().sum());
        if sum.is_some_and(|sum| !sum.is_zero() && sum != Bytes(self.rules.pool)) {
            self.violated("the ledger does not add up");
        }
    }

    /// Requests that have not ended.
    pub fn left(&self) -> u64 {
        let live = self.processes.iter().filter(|process| process.alive);
        live.map(|process| match &process.own {
            Own::Offline(offline) => offline.cache.as_ref().map_or(0, |c| c.engine.left()),
            Own::Online(_) => 0,
        })
        .sum()
    }

    /// Whether a process is in the middle of a change, or stopped.
    pub fn moves_or_stands_still(&self) -> bool {
        let live = self.processes.iter().filter(|process| process.alive);
        let mut live = live.map(|process| &process.own);
        live.any(|own| match own {
            Own::Offline(offline) => {
                offline.service.change.is_some() || offline.stopped_until > self.now
            }
            Own::Online(_) => false,
        })
    }

    pub fn close(&mut self) {
        self.play.figures.untaken = self.switches.untaken();
        let left = self.left();
        self.play.figures.lost_requests += left;
        if left > 0 {
            self.violated(&format!("{left} requests never ended"));
        }
        let offline =
            |process: &&crate::process::Process<Own>| process.alive && !process.is_online();
        let live = || self.processes.iter().filter(offline);
        let held = live().filter(|process| !process.passes()).count();
        let devices = live().flat_map(|process| &process.devices);
        let channels = devices.flat_map(|device| &device.channels);
        let disabled = channels.filter(|held| self.gpus[0].is_disabled(held.1));
        let disabled = disabled.count();
        if held + disabled > 0 {
            self.violated(&format!(
                "{disabled} channels left disabled and {held} processes held although all is quiet"
            ));
        }
    }
}
