//! What a schedule does, drawn from its seed, and what goes wrong in it.

use super::engine::Engine;
use super::fault::{Fault, SCRIPT, Trigger};
use super::play::{Happening, Own, Reclaim};
use crate::defect::Defect;
use crate::dice::{MS, US};
use crate::world::World;

impl World<Reclaim> {
    /// The programs that are there from the beginning.
    pub fn draw_programs(&mut self, jobs: u64) {
        for job in 0..u32::try_from(jobs).unwrap_or(1) {
            let overlap = self.dice.percent(60);
            let mut engine = Engine::new(overlap, self.play.broken);
            for _ in 0..self.dice.between(20, 120) {
                self.draw_request(&mut engine);
            }
            self.spawn_in(0, Own::offline(job, Some(engine)));
            // Of some jobs a process has channels and no cache.
            if self.dice.percent(30) {
                self.spawn_in(0, Own::offline(job, None));
            }
        }
        self.spawn_in(0, Own::online());
    }

    fn draw_request(&mut self, engine: &mut Engine) {
        // Prompts begin alike, so that they share blocks.
        let kind = self.dice.between(1, 25);
        let alike = self.dice.between(8, 40);
        let own = self.dice.between(1, 10);
        let mut prompt: Vec<u64> = (0..alike).map(|n| kind * 100 + n).collect();
        prompt.extend((0..own).map(|_| self.dice.between(1_000, 1 << 40)));
        let want = self.dice.between(3, 24);
        engine.add(prompt, usize::try_from(want).unwrap_or(1));
    }

    pub fn draw_script(&mut self) {
        let mut at = 450 * MS;
        let mut busy = false;
        while at < SCRIPT {
            busy = !busy;
            self.play_at(at, Happening::Online(busy));
            at += if busy {
                self.dice.scale(MS, 80 * MS)
            } else {
                self.dice.scale(4 * MS, 200 * MS)
            };
        }
        self.play_at(SCRIPT, Happening::Online(false));
        for _ in 0..self.dice.between(4, 14) {
            let at = self.dice.between(500 * MS, SCRIPT);
            self.play_at(at, Happening::Demand);
        }
        for _ in 0..self.dice.between(0, 7) {
            let at = self.dice.between(100 * MS, SCRIPT);
            let trigger = match self.dice.between(0, 9) {
                0..=4 => None,
                5 | 6 => Some(Trigger::Check),
                _ => Some(Trigger::Move),
            };
            let fault = self.draw_fault();
            self.pending += 1;
            self.play_at(at, Happening::Fault(trigger, fault));
        }
    }

    fn draw_fault(&mut self) -> Fault {
        let dice = &mut self.dice;
        match dice.between(0, 15) {
            0..=2 => Fault::SchedulerRestarts,
            3 | 4 => Fault::OfflineKilled,
            5 | 6 => Fault::AgentKilled(dice.scale(5 * MS, 1_500 * MS)),
            7 => Fault::AgentStopped(dice.scale(5 * MS, 1_500 * MS)),
            8 => Fault::OnlineKilled,
            9 | 10 => Fault::StreamLost,
            11 => Fault::QueueFull(dice.scale(MS, 60 * MS)),
            12 => Fault::DriverRefuses(dice.scale(MS, 60 * MS)),
            13 => Fault::OfflineStopped(dice.scale(5 * MS, 1_200 * MS)),
            _ => Fault::Arrives,
        }
    }

    /// A fault that waited for this order happens to the process that has it, a moment later.
    pub fn strikes(&mut self, pid: usize, trigger: Trigger) {
        if self.now >= SCRIPT {
            return;
        }
        let armed = self.play.armed.iter().position(|armed| armed.0 == trigger);
        if let Some(armed) = armed {
            let (_, fault) = self.play.armed.remove(armed);
            let at = self.now + self.dice.scale(US, 3 * MS);
            self.pending += 1;
            self.play_at(at, Happening::Strikes(pid, fault));
        }
    }

    /// A fault happens, to this process or to any that it can happen to.
    pub fn fault(&mut self, pid: Option<usize>, fault: Fault) {
        let now = self.now;
        let of = |world: &mut Self| match pid {
            Some(pid) => Some(pid).filter(|pid| world.processes[*pid].alive),
            None => world.any(false),
        };
        match fault {
            Fault::SchedulerRestarts => {
                if let Some(pid) = of(self) {
                    self.scheduler_restarts(pid);
                }
            }
            Fault::Arrives => {
                if let Some(pid) = of(self)
                    && let Some(mut engine) =
                        self.processes[pid].own.cache().map(|c| c.engine.clone())
                {
                    self.draw_request(&mut engine);
                    if let Some(cache) = self.processes[pid].own.cache() {
                        cache.engine = engine;
                    }
                    self.schedules(pid);
                }
            }
            Fault::OfflineKilled => {
                if let Some(pid) = of(self) {
                    self.offline_is_killed(pid);
                }
            }
            Fault::OnlineKilled => {
                if let Some(pid) = self.any(true) {
                    self.kill(pid);
                    let wait = self.dice.between(MS, 60 * MS);
                    self.spawn_in(now + wait, Own::online());
                }
            }
            Fault::AgentKilled(ns) => self.agent_is_killed(ns),
            Fault::AgentStopped(ns) => self.agent_is_stopped(ns),
            Fault::OfflineStopped(ns) => {
                let pid = of(self);
                let offline = pid.and_then(|pid| self.processes[pid].own.as_offline());
                if let Some(offline) = offline {
                    offline.stopped_until = now + ns;
                }
            }
            Fault::StreamLost => {
                if let Some(pid) = of(self) {
                    self.loses_stream(pid);
                }
            }
            Fault::QueueFull(ns) => {
                let forgets = self.is_broken(Defect::LostOrder);
                self.switches.set_full(true, forgets);
                self.pending += 1;
                self.play_at(now + ns, Happening::QueueDrains);
            }
            Fault::DriverRefuses(ns) => self.refuses_until = now + ns,
        }
    }

    /// A process of a job is killed, and another follows with what was accepted.
    fn offline_is_killed(&mut self, pid: usize) {
        let engine = self.processes[pid].own.cache().map(|c| c.engine.clone());
        let job = self.processes[pid].job.unwrap_or(0);
        self.void(pid);
        self.kill(pid);
        self.play.steps.retain(|_, step| step.0 != pid);
        let engine = engine.map(|mut engine| {
            engine.begins_anew();
            engine
        });
        let wait = self.dice.between(MS, 60 * MS);
        self.spawn_in(self.now + wait, Own::offline(job, engine));
    }
}
