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

mod turns;

use std::time::Duration;

use tidegate_device::sharing::{Contention, Shares};
use tidegate_policy::lease::event::{Event, Iteration, Unit};
use tidegate_policy::lease::record::Key;

use crate::baselines::TIMESLICE;
use crate::batch::{self, Batch, Progress, Spare, Store};
use crate::clock::Time;
use crate::kv::BLOCK_TOKENS;
use crate::record::{Request, Span, SpanKind};
use crate::run::check;
use crate::spec::{Spec, SpecError};
use crate::trainer::{Finetune, Trainer};
use crate::tuning::{self, Beside, Policy, Profile, Seen, Truth};
use tidegate_text::rng::{Rng, splitmix64};

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
    /// What was trained which way, in time of the trainer alone, ns: see [`Way`].
    pub ways: [u64; Way::COUNT],
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
    /// Iterations with training in their pass or beside them.
    pub shared: u64,
    /// When the late ones were, ns: the first thousand.
    pub late_at: Vec<u64>,
    /// Who had the GPU, where that is kept.
    pub timeline: Vec<Span>,
}

impl Tuned {
    /// Tokens trained a second.
    #[must_use]
    pub fn trained_per_s(&self) -> f64 {
        self.trained as f64 / self.length.as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

/// How a piece of training came to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// While online was away, or in a decode gap until the gate shut.
    Gap,
    /// In turn with online, between two of its iterations.
    Serial,
    /// In the pass of an iteration.
    Fused,
    /// On a share of the GPU.
    Spatial,
}

impl Way {
    /// How many there are.
    pub const COUNT: usize = 4;
    /// All, in order.
    pub const ALL: [Self; Self::COUNT] = [Self::Gap, Self::Serial, Self::Fused, Self::Spatial];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gap => "gap",
            Self::Serial => "serial",
            Self::Fused => "fused",
            Self::Spatial => "spatial",
        }
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
    /// Something ran in the last iteration's pass or beside it.
    shared: bool,
    /// What was trained which way, and of the trainer's all what is in there, ns.
    ways: [f64; Way::COUNT],
    counted: f64,
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
            cache: limit,
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
            shared: false,
            ways: [0.0; Way::COUNT],
            counted: 0.0,
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
                self.went(Way::Gap);
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
            let ran = core::mem::take(&mut gate.ran);
            for (from, to) in ran {
                self.keep(SpanKind::Offline, from, to);
            }
        }
        self.out.length = Duration::from_nanos(now);
        (self.out.trained, self.out.steps) = (self.trainer.trained, self.trainer.steps);
        (self.out.units, self.out.redone) = (self.trainer.units, self.trainer.redone);
        self.out.ways = self.ways.map(|ns| ns as u64);
        self.out
    }

    /// What was trained since was trained this way.
    fn went(&mut self, way: Way) {
        self.ways[way as usize] += self.trainer.alone_ns - self.counted;
        self.counted = self.trainer.alone_ns;
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

    // While online is away.

    // Between two iterations.

    // What a policy is told.

    /// As an engine pads its graphs: exact up to four, then in eights.
    fn fingerprint(&self) -> u64 {
        let running = self.batch.running() as u64;
        let batch = if running <= 4 {
            running
        } else {
            running.next_multiple_of(8)
        };
        batch | u64::from(self.batch.unread() > 0) << 32
    }

    fn seen(&self, now: u64, prompt: u32) -> Seen {
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

    /// That had the GPU, or a share of it.
    fn keep(&mut self, kind: SpanKind, from: u64, to: u64) {
        if self.of.spec.timeline && from < to {
            let (from, to) = (Time(from), Time(to));
            self.out.timeline.push(Span { kind, from, to });
        }
    }

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
        self.shared = false;
        let took = if gated.is_some() {
            iteration.ns
        } else if self.of.platform == Platform::TimeSliced {
            self.sliced(iteration.ns)
        } else {
            let before = self.trainer.alone_ns;
            let (took, beside) = self.together(&seen, &iteration);
            self.shared = beside.fused > 0 || beside.units > 0;
            self.out.shared += u64::from(self.shared);
            let trained = self.trainer.alone_ns - before;
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
        if self.shared {
            self.keep(SpanKind::Offline, launch, now);
        }
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
            // What it takes by itself is not seen where something ran beside it.
            took_ns: if self.shared {
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
        self.in_flight -= left;
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
        if self.blocked {
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
        self.went(Way::Spatial);
        (at as u64, beside)
    }
}
