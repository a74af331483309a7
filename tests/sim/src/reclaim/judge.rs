//! The checker: what must hold, judged from the device model and the tokens. Nothing moves while a channel of its
//! process is enabled; no kernel runs where nothing is mapped; every request ends; nothing stays disabled or held; and
//! the sums of the ledger are exact after every iteration of the shell.

use super::play::{Own, Reclaim, TURN_MS};
use crate::dice::MS;
use crate::world::World;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_policy::config::FairMode;
use tidegate_policy::ids::{Bytes, GpuId};

/// Longest that a job waits when all is quiet and jobs take turns, ns: four turns of the other, a switch after each.
const LONGEST_WAIT: u64 = 4 * (TURN_MS + 10) * MS;

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
        // Where jobs take turns, one waits for the turns of the others.
        let turns = self.rules.config.fair.mode != FairMode::Together;
        let waits = if turns { LONGEST_WAIT } else { 0 };
        self.note_running();
        let live = self.processes.iter().filter(|p| p.alive && !p.is_online());
        let jobs: BTreeSet<_> = live.map(|process| process.job).collect();
        for job in jobs {
            let ran = self.play.ran.get(&job).copied().unwrap_or(0);
            if self.now - ran > waits {
                let off = format!("{job:?} left disabled or held although all is quiet");
                self.violated(&off);
            }
        }
    }

    /// Notes which jobs run: launches of all of their processes pass, and every channel is enabled.
    pub fn note_running(&mut self) {
        let live = self.processes.iter().filter(|p| p.alive && !p.is_online());
        let mut runs: BTreeMap<Option<u32>, bool> = BTreeMap::new();
        for process in live {
            let channels = process.devices.iter().flat_map(|device| &device.channels);
            let mut channels = channels.map(|held| held.1);
            let on = process.passes() && channels.all(|channel| !self.gpus[0].is_disabled(channel));
            *runs.entry(process.job).or_insert(true) &= on;
        }
        let on = runs.into_iter().filter(|job| job.1);
        let now = self.now;
        self.play.ran.extend(on.map(|(job, _)| (job, now)));
    }
}
