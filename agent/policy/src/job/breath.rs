//! The anti-starvation window (`breath`): a job that has waited long runs for a moment although its gates are cooling.

use super::world::World;
use super::{Breath, Job, Mode, Want, Why};
use crate::config::{Config, OnMaxGated};
use crate::effect::{Effect, Report};
use crate::time::Instant;

impl Job {
    pub(super) fn breathes(&self, world: &World, now: Instant) -> bool {
        matches!(self.breath, Breath::Until(end) if now < end)
            && self.gpus.intersection(world.busy).is_empty()
    }

    pub(super) fn breathe(
        &mut self,
        config: &Config,
        world: &World,
        may: bool,
        now: Instant,
        out: &mut Vec<Effect>,
    ) {
        if self.ordered.want != Want::Gate(Why::Gates) {
            return;
        }
        let Some(since) = self.gated.since else {
            return;
        };
        if !self.gated.reported && now >= since.after(config.max_gated) {
            self.gated.reported = true;
            out.push(Effect::Emit(Report::MaxGated {
                job: self.id,
                since,
            }));
            if matches!(config.on_max_gated, OnMaxGated::Breathe(_)) {
                self.breath = Breath::Wanted;
            }
        }
        if let (Breath::Wanted, OnMaxGated::Breathe(turn)) = (self.breath, config.on_max_gated)
            && self.gpus.minus(world.breathable).is_empty()
            && self.ordered.mode == Mode::Managed
            && may
        {
            self.breath = Breath::Until(now.after(turn));
            out.push(Effect::Emit(Report::Breathed { job: self.id }));
        }
    }
}
