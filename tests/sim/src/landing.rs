//! What an offline process does when its agent is gone. [`tidegate_core::landing`] decides; this file carries it out.

use crate::defect::Defect;
use crate::dice::{MS, US};
use crate::world::{Ev, Play, World};
use tidegate_abi::gate::MOST_DISABLES;
use tidegate_core::landing::{AgentView as Glance, Effect as Land, OnLoss};

/// How soon a process that must not enable its channels yet looks again, ns.
const SETTLES: u64 = MS;

impl<P: Play> World<P> {
    /// An offline process looks at its agent.
    pub fn reporter(&mut self, pid: usize) {
        let (now, epoch) = (self.now, self.epoch);
        let process = &mut self.processes[pid];
        if !process.alive || process.is_online() || !process.attached_once {
            return;
        }
        let look = Glance {
            heartbeat_ns: process.heard(now),
            handing_over_ns: 0,
            generation: process.obeyed,
            stream: process.attached == Some(epoch),
        };
        let (next, effects) = process
            .landing
            .step(look, OnLoss::default(), process.clock(now));
        process.landing = next;
        for effect in effects {
            match effect {
                Land::EnableChannels if self.is_broken(Defect::NoLanding) => {}
                // Nothing may run over a range where nothing is mapped.
                Land::EnableChannels
                    if P::is_changing(self, pid) && !self.is_broken(Defect::LandsMoving) =>
                {
                    self.at(now + SETTLES, Ev::Reporter(pid));
                }
                Land::EnableChannels => {
                    let process = &mut self.processes[pid];
                    process.landing = process.landing.enabled(true).0;
                    for device in 0..self.processes[pid].devices.len() {
                        let held = &self.processes[pid].devices[device];
                        let list: Vec<_> = held.channels.iter().map(|channel| channel.1).collect();
                        let gpu = held.gpu;
                        for _ in 0..MOST_DISABLES {
                            self.device(gpu).enable_at(now + 30 * US, &list, 0);
                        }
                    }
                    self.at(now + 30 * US, Ev::Landed(pid));
                }
                Land::ObeyAgent | Land::OpenGate => P::passes(self, pid),
                Land::CloseGate => {}
            }
        }
    }
}
