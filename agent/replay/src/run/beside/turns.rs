//! The trainer's turns: its units between online's iterations, in gaps and under leases.

use super::{Way, World, ns};
use crate::batch;
use crate::record::SpanKind;
use crate::trainer::Phase;
use crate::tuning::{Idle, Lease, Profile, Stop};
use tidegate_policy::lease::event::Event;
use tidegate_policy::lease::record::{Key, Kind};

impl World<'_> {
    pub(super) fn key(&self) -> Key {
        let unit = self.trainer.unit();
        let kind = match unit.phase {
            Phase::Forward => Kind::Forward,
            Phase::Backward => Kind::Backward,
            Phase::Optimizer => Kind::Optimizer,
        };
        Key {
            fingerprint: u64::from(unit.window) + 1,
            kind,
        }
    }

    /// The unit is done after `ns` of the whole GPU.
    pub(super) fn done(&mut self, took: f64) {
        let key = self.key();
        if self.of.disturbance.sigma > 0.0 || self.last_key != Some(key) {
            self.last_key = Some(key);
            let ns = (took * self.of.disturbance.off) as u64;
            self.policy.see(&Event::Unit { key, ns }, 0);
        }
        self.trainer.done();
        if self.of.disturbance.sigma > 0.0 {
            self.noise = (self.of.disturbance.sigma * self.rng.normal()).exp();
        }
    }

    /// What is left of the unit on this share, ns.
    fn rest(&self, share: f64) -> f64 {
        let whole = self.contention.alone(self.trainer.unit().demand, share) * self.noise;
        whole * self.trainer.left()
    }

    /// Runs units for `span` ns on a share; the last may stay under way.
    pub(super) fn units(&mut self, span: u64, share: f64) {
        self.out.trainer_ns += span;
        let mut left = span as f64;
        let plain = self.of.disturbance.sigma <= 0.0 && share >= 1.0;
        while left > 0.0 {
            if plain {
                left = self.trainer.whole_samples(left);
            }
            let rest = self.rest(share);
            if rest > left {
                let whole = self.contention.alone(self.trainer.unit().demand, share) * self.noise;
                self.trainer.progress(left / whole);
                return;
            }
            left -= rest;
            self.done(self.trainer.unit().demand.alone_ns() * self.noise);
        }
    }

    /// Runs the unit under way to its end, and on to the end of what `stop` says; ns.
    fn finish(&mut self, stop: Stop) -> u64 {
        let fresh = self.trainer.left() >= 1.0;
        let before = (
            self.trainer.totals.trained,
            self.trainer.unit().window,
            self.trainer.unit().phase,
        );
        let mut took = 0.0;
        if stop == Stop::Unit && fresh {
            return 0;
        }
        loop {
            if stop == Stop::Sample && self.trainer.held() == 0 && self.trainer.left() >= 1.0 {
                break;
            }
            took += self.rest(1.0);
            self.done(self.trainer.unit().demand.alone_ns() * self.noise);
            let unit = self.trainer.unit();
            let over = match stop {
                Stop::Sample => self.trainer.totals.trained > before.0,
                // All layers of a window forward; backward a layer's windows, one by one.
                Stop::Pass => (unit.window, unit.phase) != (before.1, before.2),
                _ => true,
            };
            if over {
                break;
            }
        }
        self.out.trainer_ns += took as u64;
        took.ceil() as u64
    }

    pub(super) fn away(&mut self, from: u64, arrival: u64) -> u64 {
        if self.policy.gate().is_some() {
            return arrival;
        }
        let (seen, truth) = (self.seen(from, 0), self.truth(arrival, arrival));
        let Idle {
            from: age,
            stop,
            share,
            defer_ns,
        } = self.policy.idle(&seen, &truth);
        let Some(age) = age.filter(|_| self.may_train()) else {
            return arrival;
        };
        if stop == Stop::Never {
            self.units(arrival - from, share);
            return arrival;
        }
        let enters = if core::mem::take(&mut self.flags.gated) {
            ns(self.of.spec.costs.enable_restore)
        } else {
            self.switch()
        };
        let start = from.saturating_add(age).saturating_add(enters);
        if start >= arrival {
            return arrival;
        }
        self.out.switching_ns += enters;
        self.units(arrival + defer_ns - start, share);
        let delay = self.leave(stop);
        self.keep(SpanKind::Offline, start, arrival + defer_ns + delay);
        arrival + defer_ns + delay
    }

    /// Online wants the GPU back: how long that takes, ns.
    fn leave(&mut self, stop: Stop) -> u64 {
        if stop != Stop::Gate {
            return self.finish(stop) + self.switch();
        }
        let costs = &self.of.spec.costs;
        let (edge, disable) = (ns(costs.edge), ns(costs.disable_save));
        if self.trainer.left() >= 1.0 {
            return self.switch();
        }
        if self.rest(1.0) as u64 + self.switch() <= edge + disable {
            return self.finish(Stop::Unit) + self.switch();
        }
        self.units(edge, 1.0);
        self.flags.gated = true;
        edge + disable
    }

    /// Online launches `iteration`, away since `from`: when it has the GPU.
    pub(super) fn gate(
        &mut self,
        from: u64,
        launch: u64,
        iteration: &batch::Iteration,
    ) -> Option<u64> {
        let gate = self.policy.gate()?;
        let before = gate.ran_ns;
        let off = gate.idle(from, launch, iteration.prompt_tokens > 0, iteration.decodes);
        let ran = gate.ran_ns - before;
        self.units(ran, 1.0);
        self.went(Way::Gap);
        Some(off)
    }

    pub(super) fn between(&mut self, from: u64, nominal: u64) -> u64 {
        if self.policy.gate().is_some() {
            return nominal;
        }
        let mut from = from;
        if core::mem::take(&mut self.flags.begun) && self.trainer.left() < 1.0 {
            from += self.finish(Stop::Unit);
            self.went(Way::Spatial);
        }
        let (seen, truth) = (self.seen(from, 0), self.truth_of(nominal));
        let profile = Profile {
            cost: &self.of.spec.online.model.cost,
            trainer: &self.trainer,
            contention: self.contention,
            off: self.of.disturbance.off,
            known_ns: None,
        };
        let lease = self.policy.before(&seen, &profile, &truth);
        if !self.may_train() {
            return nominal.max(from);
        }
        if let Some(share) = lease.keeps {
            self.units(nominal.saturating_sub(from), share);
            self.went(Way::Spatial);
            return nominal.max(from);
        }
        if lease.units == 0 {
            return self.in_the_gap(from, nominal, lease.gap_from);
        }
        self.lease(from, nominal, lease)
    }

    fn in_the_gap(&mut self, from: u64, nominal: u64, age: Option<u64>) -> u64 {
        let Some(age) = age else {
            return nominal.max(from);
        };
        let enters = if self.flags.gated {
            ns(self.of.spec.costs.enable_restore)
        } else {
            self.switch()
        };
        let start = from.saturating_add(age).saturating_add(enters);
        if start >= nominal {
            return nominal.max(from);
        }
        self.flags.gated = false;
        self.out.switching_ns += enters;
        self.units(nominal - start, 1.0);
        let off = nominal + self.leave(Stop::Gate);
        self.went(Way::Gap);
        self.keep(SpanKind::Offline, start, off);
        off
    }

    fn lease(&mut self, from: u64, nominal: u64, lease: Lease) -> u64 {
        self.out.leases.0 += 1;
        let enters = if core::mem::take(&mut self.flags.gated) {
            ns(self.of.spec.costs.enable_restore)
        } else {
            self.switch()
        };
        let withdrawn = self.next_arrival().filter(|_| lease.withdrawn);
        let start = from + enters;
        let mut at = start as f64;
        let end = (start + lease.until_ns) as f64;
        let mut cut = false;
        let mut units = 0;
        while units < lease.units {
            if withdrawn.is_some_and(|arrival| at >= arrival as f64) || !self.may_train() {
                break;
            }
            let rest = self.rest(1.0);
            let claimed = self.trainer.unit().demand.alone_ns() * self.trainer.left();
            if lease.by_time && at + claimed > (start + lease.granted_ns) as f64 {
                break;
            }
            if lease.until_ns > 0 && at + rest > end {
                cut = true;
                break;
            }
            at += rest;
            self.done(self.trainer.unit().demand.alone_ns() * self.noise);
            units += 1;
        }
        let overruns = self.of.disturbance.overrun_every;
        if !cut && overruns > 0 && self.out.leases.0.is_multiple_of(overruns) {
            // It goes on as if it had been given three times as much, until somebody stops it.
            let over = at + 2.0 * lease.granted_ns as f64;
            cut = lease.until_ns > 0 && over > end;
            let on = if cut { end } else { over } - at;
            let before = self.out.trainer_ns;
            self.units(on.max(0.0) as u64, 1.0);
            self.out.trainer_ns = before;
            at += on.max(0.0);
            if !cut {
                at += self.finish(Stop::Unit) as f64;
            }
        }
        let mut off = at as u64;
        if cut {
            self.out.leases.1 += 1;
            let (edge, disable) = (self.of.spec.costs.edge, self.of.spec.costs.disable_save);
            let room = (end - at).max(0.0) as u64 + ns(edge);
            let before = self.out.trainer_ns;
            self.units(room, 1.0);
            self.out.trainer_ns = before;
            off = end as u64 + ns(edge) + ns(disable);
            self.flags.gated = true;
        } else {
            off += self.switch();
        }
        self.out.switching_ns += enters + self.switch();
        let used = (off - start).saturating_sub(if cut { 0 } else { self.switch() });
        self.out.trainer_ns += used;
        self.keep(SpanKind::Offline, start, start + used);
        self.went(Way::Serial);
        let event = Event::Lease {
            fingerprint: self.fingerprint(),
            units: units.max(1),
            granted_ns: lease.granted_ns,
            used_ns: used,
        };
        self.see(event, off);
        nominal.max(off)
    }
}
