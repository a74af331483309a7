//! The online process: it is busy at times, uses an elastic cache, and asks for memory beside it.

use super::fault::SCRIPT;
use super::play::{Happening, Reclaim};
use super::talk::KV;
use crate::dice::{MS, US};
use crate::world::World;
use tidegate_node::memory::{MemoryOrder, MemorySaid, Usage};
use tidegate_policy::ids::{AskId, Bytes};

/// Share of what is mapped whose use is pressure, in per cent: 90, as the library says.
const PRESSURE: u64 = 90;

impl World<Reclaim> {
    /// The online process that lives.
    fn online(&self) -> Option<usize> {
        let online = |pid: &usize| self.processes[*pid].alive && self.processes[*pid].is_online();
        (0..self.processes.len()).find(online)
    }

    /// A burst begins, or ends.
    pub fn online_is(&mut self, busy: bool) {
        let now = self.now;
        if core::mem::replace(&mut self.play.busy, busy) == busy {
            return;
        }
        self.play.figures.edges += u64::from(busy);
        let Some(pid) = self.online() else { return };
        let process = &mut self.processes[pid];
        let theirs = process.clock(now);
        let (device, words) = (&mut process.devices[0], &process.page.devices[0]);
        if busy {
            let rang = device.launch(words, 0, theirs);
            device.returned();
            if rang {
                self.ring(pid);
            }
        } else if device.outstanding > 0 {
            device.outstanding = 0;
            self.wake_prober(pid);
        }
        let Some(online) = self.processes[pid].own.as_online() else {
            return;
        };
        let most = if now < SCRIPT && busy {
            online.mapped
        } else {
            0
        };
        online.used = self.dice.between(0, most);
        let (used, mapped) = (online.used, online.mapped);
        self.writes_use(pid);
        if used > 0 && used * 100 >= mapped * PRESSURE {
            let used = Bytes(used);
            self.says(pid, MemorySaid::Pressure { kv: KV, used });
        }
    }

    /// An allocation of it would not fit: the agent is asked.
    pub fn demands(&mut self) {
        let bytes = self.dice.between(1, 9 * super::play::STRIPE);
        let loses_interest = self.dice.percent(15);
        let Some(pid) = self.online() else { return };
        let Some(online) = self.processes[pid].own.as_online() else {
            return;
        };
        online.demands += 1;
        let ask = online.demands;
        let counted = Bytes(online.counted);
        if !loses_interest {
            online.open.insert(ask, bytes);
        }
        self.says(
            pid,
            MemorySaid::Demand {
                ask: AskId(ask),
                slot: 0,
                kv: None,
                bytes: Bytes(bytes),
                mapped: None,
                ahead: false,
                usage: Some(Usage {
                    counted,
                    unregistered: Bytes::ZERO,
                    held: counted,
                }),
            },
        );
    }

    pub fn online_ordered(&mut self, pid: usize, order: &MemoryOrder) {
        let now = self.now;
        let Some(online) = self.processes[pid].own.as_online() else {
            return;
        };
        match *order {
            MemoryOrder::Answer { ask, granted } => {
                let Some(bytes) = online.open.remove(&ask.0) else {
                    return;
                };
                if granted {
                    self.play.figures.granted += 1;
                    let at = now + self.dice.between(10 * US, 2 * MS);
                    self.play_at(at, Happening::Allocates(pid, bytes));
                } else {
                    self.play.figures.denied += 1;
                }
            }
            MemoryOrder::Map { seq, bytes, .. } => {
                // Only the newest counts.
                online.target = Some((seq, bytes.0));
                if !core::mem::replace(&mut online.maps, true) {
                    let at = now + self.dice.scale(20 * US, 2 * MS);
                    self.play_at(at, Happening::Mapped(pid));
                }
            }
            _ => {}
        }
    }

    /// It has mapped what it was ordered to, or could not.
    pub fn maps(&mut self, pid: usize) {
        let fails = self.dice.percent(4);
        let Some(online) = self.processes[pid].own.as_online() else {
            return;
        };
        online.maps = false;
        let Some((seq, bytes)) = online.target.take() else {
            return;
        };
        online.mapped = if fails {
            online.mapped.min(bytes)
        } else {
            bytes
        };
        online.used = online.used.min(online.mapped);
        let mapped = Bytes(online.mapped);
        self.writes_use(pid);
        self.says(
            pid,
            MemorySaid::Mapped {
                kv: KV,
                mapped,
                seq,
            },
        );
    }

    pub fn allocates(&mut self, pid: usize, bytes: u64) {
        if let Some(online) = self.processes[pid].own.as_online() {
            online.counted += bytes;
            self.uses_more_or_less(pid);
            let at = self.now + self.dice.scale(5 * MS, 600 * MS);
            self.play_at(at, Happening::Frees(pid, bytes));
        }
    }

    pub fn frees(&mut self, pid: usize, bytes: u64) {
        if let Some(online) = self.processes[pid].own.as_online() {
            online.counted = online.counted.saturating_sub(bytes);
            self.uses_more_or_less(pid);
        }
    }
}
