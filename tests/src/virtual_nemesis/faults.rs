//! What goes wrong in a schedule.

use super::process::Process;
use super::script::{Fault, MS, Script, US};
use super::state::{Ev, In, World};
use super::world::SCHEDULE_HOLD;

impl World {
    /// A fault of the script happens.
    pub fn fault(&mut self, fault: Fault) {
        let now = self.now;
        match fault {
            Fault::AgentKilled(ns) if self.agent.as_ref().is_some_and(|a| !a.stopped) => {
                self.agent_dies();
                self.pending += 1;
                self.at(now + ns, Ev::AgentStarts);
            }
            Fault::AgentStopped(ns) if self.agent.as_ref().is_some_and(|a| !a.stopped) => {
                self.agent_stops();
                self.pending += 1;
                self.at(now + ns, Ev::AgentGoesOn(self.epoch));
            }
            Fault::AgentKilled(_) | Fault::AgentStopped(_) => {}
            Fault::OnlineKilled | Fault::OnlineExecs => {
                let Some(pid) = self.any(true) else { return };
                let gpus = self.processes[pid].gpus;
                let left = self.processes[pid]
                    .serving()
                    .map(|s| core::mem::take(&mut s.requests));
                self.kill(pid);
                let wait = if fault == Fault::OnlineExecs {
                    5 * MS
                } else {
                    100 * MS
                };
                self.spawn_in(now + wait, Process::online(gpus, left.unwrap_or_default()));
            }
            Fault::OnlineForks => {
                let Some(pid) = self.any(true) else { return };
                let gpus = self.processes[pid].gpus;
                let gap = self.script.gap;
                let requests = (0..self.dice.between(1, 3))
                    .map(|_| Script::request(&mut self.dice, gap))
                    .collect();
                self.spawn_in(now + 3 * MS, Process::online(gpus, requests));
            }
            Fault::OfflineKilled | Fault::OfflineExecs | Fault::OfflineForks => {
                let Some(pid) = self.any(false) else { return };
                let (job, gpus) = (
                    self.processes[pid].job().unwrap_or(0),
                    self.processes[pid].gpus,
                );
                if fault != Fault::OfflineForks {
                    self.kill(pid);
                }
                let wait = self.dice.between(MS, 60 * MS);
                self.spawn_in(now + wait, Process::offline(job, gpus));
            }
            Fault::NewChannel => {
                let Some(pid) = self.any(false) else { return };
                let (gpu, tsg) = self.add_channel(pid, 0);
                if self.processes[pid].attached.is_some() {
                    self.device(gpu)
                        .set_scheduled_at(now + SCHEDULE_HOLD, tsg, true);
                    let wait = self.dice.between(30 * US, 300 * US);
                    self.tell_in(wait, In::Objects(pid, Some((gpu, tsg))));
                } else {
                    self.device(gpu).set_scheduled(tsg, true);
                }
                self.offline_feeds(pid);
            }
        }
    }
}
