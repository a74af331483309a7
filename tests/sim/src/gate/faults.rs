//! What goes wrong in a schedule.

use super::online::BELIEVED;
use super::play::{Gate, Happening, Own};
use super::script::{Fault, Script, Word};
use crate::dice::{MS, US};
use crate::world::{In, Play, World};
use std::collections::VecDeque;

/// A held scheduling call passes after this long, ns.
const SCHEDULE_HOLD: u64 = 2_000 * MS;

impl World<Gate> {
    /// A fault of the script happens.
    pub fn fault(&mut self, fault: Fault) {
        let now = self.now;
        match fault {
            Fault::AgentKilled(ns) => self.agent_is_killed(ns),
            Fault::AgentStopped(ns) => {
                self.agent_is_stopped(ns);
                // Time in which the agent did not run counts against no word that it still believes.
                if self
                    .play
                    .script
                    .online
                    .iter()
                    .any(|online| online.2 == Word::Lies)
                {
                    self.pending += 1;
                    self.play_at(now + ns + BELIEVED, Happening::Seen);
                }
            }
            Fault::OnlineKilled | Fault::OnlineExecs => {
                let Some(pid) = self.any(true) else { return };
                let gpus = self.processes[pid].gpus;
                let serving = self.processes[pid].own.serving();
                let left = serving.map(|s| (core::mem::take(&mut s.requests), s.word));
                let (left, word) = left.unwrap_or((VecDeque::new(), Word::Plain));
                self.kill(pid);
                let wait = if fault == Fault::OnlineExecs {
                    5 * MS
                } else {
                    100 * MS
                };
                self.spawn_in(now + wait, Own::online(gpus, left, word));
            }
            Fault::OnlineForks => {
                let Some(pid) = self.any(true) else { return };
                let gpus = self.processes[pid].gpus;
                let gap = self.play.script.gap;
                let word = self.processes[pid].own.serving().map(|s| s.word);
                let word = word.unwrap_or(Word::Plain);
                let requests = (0..self.dice.between(1, 3))
                    .map(|_| Script::request(&mut self.dice, gap))
                    .collect();
                self.spawn_in(now + 3 * MS, Own::online(gpus, requests, word));
            }
            Fault::OfflineKilled | Fault::OfflineExecs | Fault::OfflineForks => {
                let Some(pid) = self.any(false) else { return };
                let (job, gpus) = (
                    self.processes[pid].job.unwrap_or(0),
                    self.processes[pid].gpus,
                );
                if fault != Fault::OfflineForks {
                    self.kill(pid);
                }
                let wait = self.dice.between(MS, 60 * MS);
                self.spawn_in(now + wait, Own::offline(job, gpus));
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
                Gate::passes(self, pid);
            }
        }
    }
}
