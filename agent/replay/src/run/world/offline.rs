//! What offline does: its iterations, and how it is let in and told to go.

use super::{BACKLOG, Slot, State, Work, World};
use crate::baselines::KERNELS_PER_LAYER;
use crate::clock::Time;
use crate::compute::{Boundary, Event};
use crate::record::{Preemption, SpanKind};
use crate::run::slots::NEVER;
use std::time::Duration;

impl World<'_> {
    pub(super) fn offline_done(&mut self, now: u64) {
        self.pause_offline(now);
        self.offline = None;
        self.kept.outcome.offline.iterations += 1;
        self.pool.offline.finish(|_| {});
        if self.kept.slice > 0 {
            let mut by_slice = core::mem::take(&mut self.kept.outcome.placement.by_slice);
            self.count_slice(now, &mut by_slice);
            self.kept.outcome.placement.by_slice = by_slice;
        }
        if let State::Draining { takes, .. } = self.state {
            self.stop(takes, now);
        }
        self.retry_online(now);
        self.tell(Event::OfflineDone, now);
    }

    /// What offline did may have freed what online waits for.
    pub(super) fn retry_online(&mut self, now: u64) {
        if self.waits.starved && self.slots.at(Slot::Launch) == NEVER {
            self.slots.set(Slot::Launch, now);
        }
    }

    /// Offline's process died with what it had submitted.
    pub(super) fn void_offline(&mut self, now: u64) {
        if core::mem::take(&mut self.pool.offline_void) {
            self.pause_offline(now);
            if let Some(work) = self.offline.take() {
                self.counts.wastes += work.iteration.ns - work.left;
            }
            self.slots.set(Slot::OfflineDone, NEVER);
        }
    }

    pub(super) fn submit_offline(&mut self, now: u64) {
        if self.offline.is_some() || now < self.pool.offline_down_until {
            return;
        }
        let taxed = self.policies.offline_wants(now, &mut self.pool);
        let mut refused = 0;
        while self.pool.offline.waiting() < BACKLOG && refused < self.spec.offline.lengths.len() {
            let lengths = self.spec.offline.lengths[self.feed.next_lengths];
            self.feed.next_lengths = (self.feed.next_lengths + 1) % self.spec.offline.lengths.len();
            self.feed.last_offline_id += 1;
            let taken = self.pool.offline.offer(
                self.feed.last_offline_id,
                lengths.input_tokens,
                lengths.output_tokens,
            );
            refused = if taken { 0 } else { refused + 1 };
        }
        if let Some(mut iteration) = self.pool.offline.start() {
            iteration.ns += taxed;
            self.offline = Some(Work::new(iteration));
        }
    }

    pub(super) fn let_in(&mut self, takes: u64, now: u64) {
        self.waits.barred = false;
        if self.turn.share.is_some() || !matches!(self.state, State::Off | State::Stopping) {
            return;
        }
        let waits = self.policies.gate(true, now, &mut self.pool);
        let from = match self.state {
            State::Stopping => self.slots.at(Slot::Switch),
            _ => now,
        };
        self.state = State::Starting;
        self.pool.gated = false;
        if !core::mem::take(&mut self.waits.held) {
            self.kept.outcome.wakes += 1;
            if self.queue.in_flight > 0 && self.pause.in_gap {
                self.kept.outcome.cooldown.woken_in_gap += 1;
            }
        }
        self.turn.switch_from = from;
        self.slots.set(Slot::Switch, from + waits + takes);
        if takes == 0 && from + waits == now {
            self.slots.set(Slot::Switch, NEVER);
            self.switched(now);
        }
    }

    pub(super) fn tell_to_go(&mut self, at: Boundary, takes: u64, now: u64) {
        match self.state {
            State::Starting => {
                self.charge(now);
                self.kept.outcome.gpu.switching +=
                    Duration::from_nanos(now - self.turn.switch_from.min(now));
                self.stop(takes, now);
            }
            State::On => {
                self.charge(now);
                self.pause_offline(now);
                let until = self.boundary(at, now);
                let again = at == Boundary::LayerAndAgain;
                if until <= now {
                    self.stop(takes, now);
                } else {
                    self.state = State::Draining { takes, again };
                    self.turn.switch_from = now;
                    // The end of the iteration is an event of its own.
                    if self.offline.is_none_or(|work| now + work.left > until) {
                        self.slots.set(Slot::Switch, until);
                    }
                }
            }
            State::Off | State::Draining { .. } | State::Stopping => {}
        }
    }

    /// Offline makes way for memory that moves, and not for online.
    pub(super) fn hold(&mut self, takes: u64, now: u64) {
        if self.turn.share.is_some() {
            self.waits.barred = true;
            self.pause_offline(now);
        } else if self.state == State::On {
            self.pause_offline(now);
            self.waits.held = true;
            self.waits.told = NEVER;
            self.stop(takes, now);
        }
    }

    /// There may be memory for the iteration that online could not begin.
    pub(super) fn retry(&mut self, now: u64) {
        if self.online.is_none() && self.slots.at(Slot::Launch) == NEVER {
            self.slots.set(Slot::Launch, now);
        }
    }

    /// A preemption, charged by the rule above.
    pub(super) fn charge(&mut self, now: u64) {
        self.waits.told = now;
        self.counts.preemptions += 1;
        if self.queue.in_flight == 0 {
            self.counts.charge_next += 1;
        }
    }

    /// When the unit that runs can be interrupted.
    pub(super) fn boundary(&self, at: Boundary, now: u64) -> u64 {
        let Some(work) = self.offline else {
            return match at {
                Boundary::After(ns) => now + ns,
                _ => now,
            };
        };
        let (total, done) = (work.iteration.ns, work.iteration.ns - work.left);
        let layers = u64::from(self.spec.offline.model.shape.layers.max(1));
        let unit = match at {
            Boundary::After(ns) => return now + ns,
            Boundary::Iteration => total,
            Boundary::Kernels(_) if work.iteration.prompt_tokens == 0 => total,
            Boundary::Kernels(in_flight) => {
                let kernels = layers * u64::from(KERNELS_PER_LAYER);
                total / kernels * u64::from(in_flight)
            }
            Boundary::LayerAndAgain => total / layers,
        };
        let end = done.next_multiple_of(unit.max(1)).min(total);
        now + end - done
    }

    /// Offline stops running and is off after `takes`.
    pub(super) fn stop(&mut self, takes: u64, now: u64) {
        if let State::Draining { again: true, .. } = self.state
            && let Some(work) = &mut self.offline
        {
            self.counts.wastes += work.iteration.ns - work.left;
            work.left = work.iteration.ns;
        }
        self.pool.gated = true;
        self.state = State::Stopping;
        self.turn.switch_from = now;
        let waits = self.policies.gate(false, now, &mut self.pool);
        self.slots.set(Slot::Switch, now + takes + waits);
        if takes + waits == 0 {
            self.slots.set(Slot::Switch, NEVER);
            self.switched(now);
        }
    }

    /// The boundary of a drain, or the end of a switch.
    pub(super) fn switched(&mut self, now: u64) {
        match self.state {
            State::Draining { takes, .. } => {
                self.pause_offline(now);
                self.stop(takes, now);
                if self.state == State::Stopping {
                    return;
                }
            }
            State::Starting => {
                self.state = State::On;
                self.switch_over(now);
                self.tell(Event::Running, now);
            }
            State::Stopping => {
                self.state = State::Off;
                self.switch_over(now);
                let wanted = self
                    .waits
                    .wanted
                    .map_or(self.waits.told, |wanted| wanted.min(self.waits.told));
                // Held for memory, it makes nobody wait who does not launch meanwhile.
                if wanted != NEVER {
                    self.kept.outcome.preemptions.push(Preemption {
                        wanted: Time(wanted),
                        off: Time(now),
                    });
                }
                self.tell(Event::Stopped, now);
            }
            State::Off | State::On => {}
        }
        self.dispatch(now);
    }

    pub(super) fn switch_over(&mut self, now: u64) {
        self.kept.outcome.gpu.switching +=
            Duration::from_nanos(now - self.turn.switch_from.min(now));
        self.span(SpanKind::Switch, self.turn.switch_from, now);
    }
}
