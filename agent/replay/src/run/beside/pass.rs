//! One iteration of online, with what runs in its pass or beside it.

use super::{Platform, Way, World, ns};
use crate::baselines::TIMESLICE;
use crate::batch::{self, Progress};
use crate::clock::Time;
use crate::record::SpanKind;
use crate::tuning::{self, Beside, Profile, Seen};
use tidegate_device::sharing::{Contention, Shares};
use tidegate_policy::lease::event::{Event, Iteration, Unit};

/// Late decodes whose moments are kept.
const KEPT: usize = 1_000;

impl World<'_> {
    /// As an engine pads its graphs: exact up to four, then in eights.
    pub(super) fn fingerprint(&self) -> u64 {
        let running = self.batch.running() as u64;
        let batch = if running <= 4 {
            running
        } else {
            running.next_multiple_of(8)
        };
        batch | u64::from(self.batch.unread() > 0) << 32
    }

    pub(super) fn seen(&self, now: u64, prompt: u32) -> Seen {
        let waits = u32::from(self.batch.unread() > 0);
        let unit = self.trainer.unit();
        Seen {
            now,
            next: Iteration {
                fingerprint: self.fingerprint(),
                batch: u32::try_from(self.batch.running()).unwrap_or(u32::MAX),
                cached: self.batch.context(),
                prompt: prompt.max(waits),
            },
            unit: Unit {
                key: self.key(),
                most: if self.flags.blocked { 0 } else { u32::MAX },
                claimed_ns: unit.demand.alone_ns() as u64,
            },
            phase: unit.phase,
            forward_tokens: if self.flags.blocked {
                0
            } else {
                self.trainer.forward_tokens()
            },
            in_flight: self.queue.in_flight,
        }
    }

    /// Whether what the trainer holds and what online uses is there.
    fn memory(&mut self) {
        let used = u64::from(self.batch.store.used) * self.block;
        let held = u64::from(self.trainer.held()) * self.of.finetune.held_bytes();
        let over = used + held > self.of.spec.kv_pool_bytes;
        if over && !self.flags.blocked {
            self.trainer.lose_layer();
            self.out.reclaims += 1;
        }
        self.flags.blocked = over;
    }

    /// One iteration from its launch: the moment it is over.
    pub(super) fn iterate(&mut self, last: u64, nominal: u64, launch: u64, idle: bool) -> u64 {
        if let Some((at, saturation)) = self.of.disturbance.later
            && launch >= at
        {
            self.contention = Contention { saturation };
        }
        let Some(iteration) = self.batch.start() else {
            // Nothing fits: only an arrival could change that, and none can.
            return self.next_arrival().unwrap_or(u64::MAX).max(launch + 1);
        };
        self.memory();
        let mut seen = self.seen(launch, iteration.prompt_tokens);
        seen.next.prompt = iteration.prompt_tokens;
        seen.next.batch = iteration.decodes;
        let gated = self.gate(last, launch, &iteration);
        let launch = gated.unwrap_or(launch);
        self.out.delayed_ns += launch.saturating_sub(nominal);
        self.flags.shared = false;
        let took = if gated.is_some() {
            iteration.ns
        } else if self.of.platform == Platform::TimeSliced {
            self.sliced(iteration.ns)
        } else {
            let before = self.trainer.totals.alone_ns;
            let (took, beside) = self.together(&seen, &iteration);
            self.flags.shared = beside.fused > 0 || beside.units > 0;
            self.out.iterations.shared += u64::from(self.flags.shared);
            let trained = self.trainer.totals.alone_ns - before;
            let off = self.of.disturbance.off;
            self.policy
                .ran(&seen, &beside, took as f64 * off, trained * off);
            took
        };
        let now = launch + took;
        self.out.online_ns += took;
        let kind = if iteration.prompt_tokens > 0 {
            SpanKind::OnlinePrefill
        } else {
            SpanKind::OnlineDecode
        };
        self.keep(kind, launch, now);
        if self.flags.shared {
            self.keep(SpanKind::Offline, launch, now);
        }
        self.out.iterations.all += 1;
        self.finished(now);
        let plain = iteration.prompt_tokens == 0 && !idle;
        if plain {
            self.out.iterations.decodes += 1;
            if now - last > self.of.decode_limit_ns {
                self.out.iterations.late += 1;
                if self.out.iterations.late_at.len() < KEPT {
                    self.out.iterations.late_at.push(now);
                }
            }
        }
        let off = self.of.disturbance.off;
        let event = Event::Beat {
            iteration: seen.next,
            // What it takes by itself is not seen where something ran beside it.
            took_ns: if self.flags.shared {
                0
            } else {
                (took as f64 * off) as u64
            },
            interval_ns: now - if idle { nominal } else { last },
            delayed_ns: launch - nominal,
        };
        self.see(event, now);
        now
    }

    fn finished(&mut self, now: u64) {
        let (requests, policy) = (&mut self.out.requests, &mut *self.policy);
        let trace = self.of.spec.online.trace.requests();
        let mut left = 0;
        self.batch.finish(|progress| match progress {
            Progress::First(id) => {
                let request = &mut requests[id as usize];
                request.first_token = Time(now);
                let ttft_ns = ns(request.ttft());
                policy.see(
                    &Event::First {
                        request: id,
                        ttft_ns,
                    },
                    now,
                );
            }
            Progress::Finished(id) => {
                let request = &mut requests[id as usize];
                request.last_token = Time(now);
                request.tokens = trace[id as usize].output_tokens;
                left += 1;
                let event = Event::Ended {
                    request: id,
                    ttft_ns: ns(request.ttft()),
                    tpot_ns: request.tpot().map_or(0, ns),
                };
                policy.see(&event, now);
            }
        });
        self.queue.in_flight -= left;
    }

    /// Each has the GPU for a slice in turn.
    fn sliced(&mut self, alone: u64) -> u64 {
        let (slice, switch) = (ns(TIMESLICE), self.switch());
        let turns = alone / slice;
        self.units(turns * slice, 1.0);
        self.went(Way::Serial);
        self.out.switching_ns += 2 * turns * switch;
        alone + turns * (slice + 2 * switch)
    }

    /// The iteration, with what the policy lets run in its pass or beside it, ns.
    fn together(&mut self, seen: &Seen, iteration: &batch::Iteration) -> (u64, Beside) {
        let cost = &self.of.spec.online.model.cost;
        let alone = iteration.ns as f64;
        let profile = Profile {
            cost,
            trainer: &self.trainer,
            contention: self.contention,
            off: self.of.disturbance.off,
            known_ns: Some(alone),
        };
        let beside = self.policy.beside(seen, &profile);
        if self.flags.blocked {
            return (iteration.ns, Beside::default());
        }
        let mut ns = alone;
        if beside.fused > 0 {
            let tokens = beside.fused.min(self.trainer.forward_tokens());
            ns = tuning::fused_ns(cost, &self.trainer, &seen.next, alone, tokens);
            self.trainer.fused(tokens);
            self.went(Way::Fused);
        }
        if beside.units == 0 {
            let took = if beside.fixed {
                let online = tuning::demand(cost, &self.trainer, &seen.next, ns);
                self.contention.alone(online, beside.shares.0) as u64
            } else {
                ns as u64
            };
            return (took, beside);
        }
        let online = tuning::demand(cost, &self.trainer, &seen.next, ns);
        let shares = Shares {
            online: beside.shares.0,
            trainer: beside.shares.1,
        };
        let (mut at, mut left, mut units) = (0.0, 1.0, beside.units);
        let mut unit = self.trainer.unit();
        let mut times = self.contention.together([online, unit.demand], shares);
        loop {
            if units == 0 {
                let share = if beside.fixed { shares.online } else { 1.0 };
                at += left * self.contention.alone(online, share);
                break;
            }
            let whole = times[1] * self.noise;
            let (online_left, unit_left) = (left * times[0], whole * self.trainer.left());
            if unit_left > online_left {
                self.trainer.progress(online_left / whole);
                self.flags.begun = !beside.fixed;
                at += online_left;
                self.out.trainer_ns += online_left as u64;
                break;
            }
            at += unit_left;
            self.out.trainer_ns += unit_left as u64;
            left -= unit_left / times[0];
            self.done(unit.demand.alone_ns() * self.noise);
            units -= 1;
            let next = self.trainer.unit();
            if (next.phase, next.window) != (unit.phase, unit.window) {
                unit = next;
                times = self.contention.together([online, unit.demand], shares);
            }
        }
        self.went(Way::Spatial);
        (at as u64, beside)
    }
}
