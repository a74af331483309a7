//! The gate of each GPU: whether online is busy there, and how long it must be idle before offline runs.

use super::Node;
use super::gpu::{Ring, shut};
use crate::config::Cooldown;
use crate::gate::{Cooling, Gate, Online};
use crate::ids::{GpuId, SessionId};
use crate::job::World;
use crate::online::Session;
use crate::patience::Idle;
use crate::time::Instant;
use core::time::Duration;

impl Node {
    pub(super) fn settle_budgets(&mut self, now: Instant) {
        for id in self.world.all.iter() {
            let budget = &mut self.gpus[id.index()].budget;
            let busy = self.world.busy.contains(id);
            if let Some(short) = self.memory.shortages(id, busy, now) {
                budget.fell_short(short, now);
            }
            if let Some(slo) = self.config.slo {
                let usual = self.config.sharing.reserving.pressure_every;
                self.memory.steer(id, budget.every(slo, usual, now), now);
            }
        }
    }

    pub(super) fn settle_gates(&mut self, now: Instant) {
        let World {
            all,
            shut: mut shut_now,
            drained,
            ungated,
            ..
        } = self.world;
        let mut world = World {
            all,
            drained,
            ungated,
            ..World::default()
        };
        for id in all.iter() {
            let busy = self
                .sessions
                .iter()
                .any(|s| s.busy_on(id, self.config.suspects));
            if !busy {
                self.is_idle(id, now);
            }
            let (cooling, slo) = (self.cooling(id, now), self.config.slo);
            let gpu = &mut self.gpus[id.index()];
            let before = gpu.gate;
            let online = if busy { Online::Busy } else { Online::Idle };
            if busy && before != Gate::Closed {
                shut(gpu, Ring::Launch(now), slo, now);
                shut_now = shut_now.with(id);
            }
            gpu.gate = gpu.gate.step(online, cooling, now);
            if gpu.gate != before && gpu.gate != Gate::Closed {
                if before == Gate::Closed {
                    gpu.charges.period_ended();
                }
                gpu.since = now;
            }
            if gpu.gate.is_open() && !before.is_open() {
                (gpu.opened, gpu.expected) = (Some(now), None);
                gpu.longest_idle = Duration::ZERO;
                gpu.woken = false;
            }
            let breathable = gpu.breathable_at().is_some_and(|at| now >= at);
            for (set, holds) in [
                (&mut world.open, gpu.gate.is_open()),
                (&mut world.busy, busy),
                (&mut world.stalled, gpu.stalled),
                (&mut world.breathable, breathable),
            ] {
                if holds {
                    *set = set.with(id);
                }
            }
        }
        world.shut = shut_now;
        self.world = world;
    }

    pub(super) fn cooling(&self, gpu: GpuId, now: Instant) -> Cooling {
        if now < self.hold_until {
            return Cooling::Held;
        }
        if self.held(gpu).is_some() {
            return Cooling::Held;
        }
        Cooling::For(self.cooldown(gpu, now))
    }

    /// Whose requests keep the gate of that GPU shut.
    pub(super) fn held(&self, gpu: GpuId) -> Option<SessionId> {
        let holds = |session: &&Session| session.uses(gpu) && session.holds();
        self.sessions.iter().find(holds).map(|session| session.id)
    }

    /// Online is idle there: how long is that worth waiting for?
    fn is_idle(&mut self, id: GpuId, now: Instant) {
        let Some(slo) = self.config.slo else {
            return;
        };
        let idle = Idle {
            begins: self.gpus[id.index()].gate == Gate::Closed,
            held: self.held(id).is_some(),
            gap: self.gap(id, now),
        };
        let gpu = &mut self.gpus[id.index()];
        gpu.patience.idles(idle, slo, &mut gpu.budget, now);
    }

    /// How long online has to be idle before offline runs.
    pub(super) fn cooldown(&self, gpu: GpuId, now: Instant) -> Duration {
        let gap = self.gap(gpu, now);
        match self.config.slo {
            Some(_) => gap.max(self.gpus[gpu.index()].patience.wait()),
            None => gap,
        }
    }

    /// Longer than the idle times between two iterations of online.
    pub(super) fn gap(&self, gpu: GpuId, now: Instant) -> Duration {
        let mut users = self.sessions.iter().filter(|s| s.uses(gpu)).peekable();
        if users.peek().is_some() && users.all(Session::hinted) {
            return Duration::ZERO;
        }
        match (self.config.cooldown, &self.gpus[gpu.index()].learner) {
            (Cooldown::Fixed(cooldown), _) => cooldown,
            (Cooldown::Learnt(_), Some(learner)) => learner.cooldown(now),
            (Cooldown::Learnt(learning), None) => learning.max,
        }
    }
}
