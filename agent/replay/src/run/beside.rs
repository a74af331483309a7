//! Online and a trainer on one GPU in virtual time.
//!
//! Online's engine is the one of the other world: the same batches, blocks, gaps and costs. It does
//! one thing after the other, so that a run is a walk along its iterations, and the trainer's units
//! fill what lies between, or run beside it at rates that change with what is beside what.
//!
//! ```text
//!   two-process    both take turns; a switch between contexts each way, or the gate
//!   one-process    turns without a switch, training tokens in online's own pass, shares of the GPU
//!   time-sliced    nobody decides: the GPU gives each a slice in turn
//! ```

use std::time::Duration;

use tidegate_device::sharing::{Contention, Shares};
use tidegate_policy::lease::event::{Event, Iteration, Unit};
use tidegate_policy::lease::record::{Key, Kind};

use crate::baselines::TIMESLICE;
use crate::batch::{self, Batch, Progress, Spare, Store};
use crate::clock::Time;
use crate::kv::BLOCK_TOKENS;
use crate::record::Request;
use crate::rng::{Rng, splitmix64};
use crate::run::check;
use crate::spec::{Spec, SpecError};
use crate::trainer::{Finetune, Phase, Trainer};
use crate::tuning::{self, Idle, Lease, Policy, Profile, Seen, Stop, Truth};

/// What the two are to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Platform {
    /// Two processes without MPS: turns.
    TwoProcess,
    /// One process, or a GPU divided among clients.
    OneProcess,
    /// Two processes and nobody who decides.
    TimeSliced,
}

/// What goes otherwise than it was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Disturbance {
    /// Sigma of a log-normal factor on every unit.
    pub sigma: f64,
    /// By what every prediction is multiplied.
    pub off: f64,
    /// Every so manyth lease takes three times what it was granted; zero for none.
    pub overrun_every: u64,
    /// From this time on, ns, the GPU's saturation is this.
    pub later: Option<(u64, f64)>,
}

impl Default for Disturbance {
    fn default() -> Self {
        Self {
            sigma: 0.0,
            off: 1.0,
            overrun_every: 0,
            later: None,
        }
    }
}

/// One run.
#[derive(Clone, Debug)]
pub struct Setting<'a> {
    /// Online and the GPU; its offline side is not asked.
    pub spec: &'a Spec,
    /// What is trained.
    pub finetune: &'a Finetune,
    /// What the two are to each other.
    pub platform: Platform,
    /// How they share.
    pub contention: Contention,
    /// What goes otherwise.
    pub disturbance: Disturbance,
    /// Decodes that take longer are counted, ns.
    pub decode_limit_ns: u64,
    /// Most KV cache that online uses alone, bytes: what is left is the trainer's.
    pub online_peak_bytes: u64,
}

/// What one run gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuned {
    /// Online requests, in the order of the trace.
    pub requests: Vec<Request>,
    /// To the last online token.
    pub length: Duration,
    /// Tokens trained, each counted once.
    pub trained: u64,
    /// Optimizer steps.
    pub steps: u64,
    /// Units.
    pub units: u64,
    /// Tokens of a layer done again.
    pub redone: u64,
    /// Times memory was taken.
    pub reclaims: u64,
    /// The trainer had the GPU, or a share of it, ns.
    pub trainer_ns: u64,
    /// Of that it had all of it while online was away, ns.
    pub away_ns: u64,
    /// Online ran, ns.
    pub online_ns: u64,
    /// Online waited for the trainer to leave, ns.
    pub delayed_ns: u64,
    /// Neither ran because of a switch, ns.
    pub switching_ns: u64,
    /// Leases, and of them those that overran.
    pub leases: (u64, u64),
    /// Iterations of online.
    pub iterations: u64,
    /// Iterations that only decode, right behind another; and those of them that took too long.
    pub decodes: (u64, u64),
    /// When those were, ns: the first thousand.
    pub late_at: Vec<u64>,
}

impl Tuned {
    /// Tokens trained a second.
    #[must_use]
    pub fn trained_per_s(&self) -> f64 {
        self.trained as f64 / self.length.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// Late decodes whose moments are kept.
const KEPT: usize = 1_000;

#[derive(Debug)]
struct World<'a> {
    of: &'a Setting<'a>,
    policy: &'a mut dyn Policy,
    batch: Batch,
    block: u64,
    trainer: Trainer,
    rng: Rng,
    /// The unit under way takes this many times what it should.
    noise: f64,
    contention: Contention,
    next_request: usize,
    in_flight: u32,
    /// The gate stopped it in mid-unit: the next start restores its context.
    gated: bool,
    /// Memory it needs is online's.
    blocked: bool,
    /// A unit that was begun beside an iteration is not done.
    begun: bool,
    out: Tuned,
    last_key: Option<Key>,
}

const fn ns(span: Duration) -> u64 {
    span.as_nanos() as u64
}

/// Runs `of` under `policy`.
///
/// # Errors
/// See [`check`].
pub fn run(of: &Setting<'_>, policy: &mut dyn Policy) -> Result<Tuned, SpecError> {
    check(of.spec)?;
    Ok(World::new(of, policy).run())
}

impl<'a> World<'a> {
    fn new(of: &'a Setting<'a>, policy: &'a mut dyn Policy) -> Self {
        let online = &of.spec.online;
        let block = online.model.shape.kv_bytes_per_token() * u64::from(BLOCK_TOKENS);
        let limit = u32::try_from(of.spec.kv_pool_bytes / block.max(1)).unwrap_or(u32::MAX);
        let store = Store {
            pages: None,
            used: 0,
            limit,
            spare: Spare::None,
        };
        let left = of.spec.kv_pool_bytes.saturating_sub(of.online_peak_bytes);
        let held = u32::try_from(left / of.finetune.held_bytes().max(1)).unwrap_or(u32::MAX);
        let requests = online.trace.requests().iter().map(|request| Request {
            arrival: request.arrival,
            first_token: request.arrival,
            last_token: request.arrival,
            ..Request::default()
        });
        Self {
            batch: Batch::new(
                online.model.cost.clone(),
                online.limits,
                online.batching,
                store,
            ),
            block,
            trainer: Trainer::new(of.finetune, &of.spec.gpu, held),
            rng: Rng::stream(of.spec.seed, 0x7e),
            noise: 1.0,
            contention: of.contention,
            next_request: 0,
            in_flight: 0,
            gated: false,
            blocked: false,
            begun: false,
            out: Tuned {
                requests: requests.collect(),
                ..Tuned::default()
            },
            last_key: None,
            of,
            policy,
        }
    }

    fn run(mut self) -> Tuned {
        let mut now = 0;
        if let Some(gate) = self.policy.gate() {
            gate.start();
        }
        loop {
            self.admit(now);
            if self.batch.is_idle() {
                let Some(arrival) = self.next_arrival() else {
                    break;
                };
                let launch = self.away(now, arrival);
                self.see(
                    Event::Returned {
                        idle_ns: arrival - now,
                        gap: false,
                        delayed_ns: launch - arrival,
                    },
                    launch,
                );
                self.admit(launch);
                now = self.iterate(now, launch, launch, true);
                continue;
            }
            let nominal = now + self.gap();
            let launch = self.between(now, nominal);
            self.see(
                Event::Returned {
                    idle_ns: nominal - now,
                    gap: true,
                    delayed_ns: launch - nominal,
                },
                launch,
            );
            self.admit(launch);
            now = self.iterate(now, nominal, launch, false);
        }
        if let Some(gate) = self.policy.gate() {
            gate.end(now);
            self.out.trainer_ns = gate.ran_ns;
        }
        self.out.length = Duration::from_nanos(now);
        (self.out.trained, self.out.steps) = (self.trainer.trained, self.trainer.steps);
        (self.out.units, self.out.redone) = (self.trainer.units, self.trainer.redone);
        self.out
    }

    fn see(&mut self, event: Event, now: u64) {
        self.policy.see(&event, now);
    }

    fn next_arrival(&self) -> Option<u64> {
        let requests = self.of.spec.online.trace.requests();
        requests
            .get(self.next_request)
            .map(|request| request.arrival.0)
    }

    fn admit(&mut self, now: u64) {
        let trace = &self.of.spec.online.trace;
        while let Some(request) = trace.requests().get(self.next_request)
            && request.arrival.0 <= now
        {
            let id = self.next_request as u64;
            self.batch
                .admit(id, request.input_tokens, request.output_tokens);
            self.next_request += 1;
            self.in_flight += 1;
            self.policy
                .see(&Event::Arrived { request: id }, request.arrival.0);
        }
    }

    /// As the other world draws it: by request and token.
    fn gap(&self) -> u64 {
        let (request, token) = self.batch.head();
        let key = splitmix64(request).wrapping_add(u64::from(token));
        let mut rng = Rng::new(splitmix64(self.of.spec.seed) ^ splitmix64(key));
        ns(self.of.spec.online.gaps.draw(&mut rng)).max(1)
    }

    /// One switch between the two, ns.
    fn switch(&self) -> u64 {
        match self.of.platform {
            Platform::OneProcess => 0,
            _ => ns(self.of.spec.costs.timeslice_switch),
        }
    }

    fn may_train(&self) -> bool {
        !self.blocked
    }

    // The trainer.

    fn key(&self) -> Key {
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
    fn done(&mut self, took: f64) {
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
    fn units(&mut self, span: u64, share: f64) {
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
            self.trainer.trained,
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
                Stop::Sample => self.trainer.trained > before.0,
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

    // While online is away.

    fn away(&mut self, from: u64, arrival: u64) -> u64 {
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
        let enters = if core::mem::take(&mut self.gated) {
            ns(self.of.spec.costs.enable_restore)
        } else {
            self.switch()
        };
        let start = from.saturating_add(age).saturating_add(enters);
        if start >= arrival {
            return arrival;
        }
        self.out.switching_ns += enters;
        let before = self.out.trainer_ns;
        self.units(arrival + defer_ns - start, share);
        let delay = self.leave(stop);
        self.out.away_ns += self.out.trainer_ns - before;
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
        self.gated = true;
        edge + disable
    }

    /// Online launches `iteration`, away since `from`: when it has the GPU.
    fn gate(&mut self, from: u64, launch: u64, iteration: &batch::Iteration) -> Option<u64> {
        let gate = self.policy.gate()?;
        let before = gate.ran_ns;
        let off = gate.idle(from, launch, iteration.prompt_tokens > 0, iteration.decodes);
        let ran = gate.ran_ns - before;
        self.units(ran, 1.0);
        Some(off)
    }

    // Between two iterations.

    fn between(&mut self, from: u64, nominal: u64) -> u64 {
        if self.policy.gate().is_some() {
            return nominal;
        }
        let mut from = from;
        if core::mem::take(&mut self.begun) && self.trainer.left() < 1.0 {
            from += self.finish(Stop::Unit);
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
        let enters = if self.gated {
            ns(self.of.spec.costs.enable_restore)
        } else {
            self.switch()
        };
        let start = from.saturating_add(age).saturating_add(enters);
        if start >= nominal {
            return nominal.max(from);
        }
        self.gated = false;
        self.out.switching_ns += enters;
        self.units(nominal - start, 1.0);
        nominal + self.leave(Stop::Gate)
    }

    fn lease(&mut self, from: u64, nominal: u64, lease: Lease) -> u64 {
        self.out.leases.0 += 1;
        let enters = if core::mem::take(&mut self.gated) {
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
            self.gated = true;
        } else {
            off += self.switch();
        }
        self.out.switching_ns += enters + self.switch();
        let used = (off - start).saturating_sub(if cut { 0 } else { self.switch() });
        self.out.trainer_ns += used;
        let event = Event::Lease {
            fingerprint: self.fingerprint(),
            units: units.max(1),
            granted_ns: lease.granted_ns,
            used_ns: used,
        };
        self.see(event, off);
        nominal.max(off)
    }

    // What a policy is told.

    /// As an engine pads its graphs: exact up to four, then in eights.
    fn fingerprint(&self) -> u64 {
        let running = self.batch.running() as u64;
        let batch = if running <= 4 {
            running
        } else {
            running.next_multiple_of(8)
        };
        batch | u64::from(self.batch.waiting() > 0) << 32
    }

    fn seen(&self, now: u64, prompt: u32) -> Seen {
        let waits = u32::from(self.batch.waiting() > 0);
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
                most: if self.blocked { 0 } else { u32::MAX },
                claimed_ns: unit.demand.alone_ns() as u64,
            },
            phase: unit.phase,
            forward_tokens: if self.blocked {
                0
            } else {
                self.trainer.forward_tokens()
            },
            in_flight: self.in_flight,
        }
    }

    fn truth(&self, arrival: u64, launch: u64) -> Truth {
        Truth {
            arrival,
            launch,
            iteration_ns: 0.0,
        }
    }

    fn truth_of(&self, nominal: u64) -> Truth {
        let online = &self.of.spec.online;
        let running = u32::try_from(self.batch.running()).unwrap_or(u32::MAX);
        Truth {
            iteration_ns: online.model.cost.decode_ms(running, self.batch.context()) * 1e6,
            ..self.truth(self.next_arrival().unwrap_or(u64::MAX), nominal)
        }
    }

    // Online.

    /// Whether what the trainer holds and what online uses is there.
    fn memory(&mut self) {
        let used = u64::from(self.batch.store.used) * self.block;
        let held = u64::from(self.trainer.held()) * self.of.finetune.held_bytes();
        let over = used + held > self.of.spec.kv_pool_bytes;
        if over && !self.blocked {
            self.trainer.lose_layer();
            self.out.reclaims += 1;
        }
        self.blocked = over;
    }

    /// One iteration from its launch: the moment it is over.
    fn iterate(&mut self, last: u64, nominal: u64, launch: u64, idle: bool) -> u64 {
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
        let took = if gated.is_some() {
            iteration.ns
        } else if self.of.platform == Platform::TimeSliced {
            self.sliced(iteration.ns)
        } else {
            self.together(&seen, &iteration)
        };
        let now = launch + took;
        self.out.online_ns += took;
        self.out.iterations += 1;
        self.finished(now);
        let plain = iteration.prompt_tokens == 0 && !idle;
        if plain {
            self.out.decodes.0 += 1;
            if now - last > self.of.decode_limit_ns {
                self.out.decodes.1 += 1;
                if self.out.late_at.len() < KEPT {
                    self.out.late_at.push(now);
                }
            }
        }
        let off = self.of.disturbance.off;
        let event = Event::Beat {
            iteration: seen.next,
            took_ns: (took as f64 * off) as u64,
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
        self.in_flight -= left;
    }

    /// Each has the GPU for a slice in turn.
    fn sliced(&mut self, alone: u64) -> u64 {
        let (slice, switch) = (ns(TIMESLICE), self.switch());
        let turns = alone / slice;
        self.units(turns * slice, 1.0);
        self.out.switching_ns += 2 * turns * switch;
        alone + turns * (slice + 2 * switch)
    }

    /// The iteration, with what the policy lets run in its pass or beside it, ns.
    fn together(&mut self, seen: &Seen, iteration: &batch::Iteration) -> u64 {
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
        if self.blocked {
            return iteration.ns;
        }
        let mut ns = alone;
        if beside.fused > 0 {
            let tokens = beside.fused.min(self.trainer.forward_tokens());
            ns = tuning::fused_ns(cost, &self.trainer, &seen.next, alone, tokens);
            self.trainer.fused(tokens);
        }
        if beside.units == 0 {
            return if beside.fixed {
                let online = tuning::demand(cost, &self.trainer, &seen.next, ns);
                self.contention.alone(online, beside.shares.0) as u64
            } else {
                ns as u64
            };
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
                self.begun = !beside.fixed;
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
        at as u64
    }
}
