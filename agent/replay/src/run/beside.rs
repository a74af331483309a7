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

mod pass;
mod turns;

use std::time::Duration;

use tidegate_device::sharing::Contention;
use tidegate_policy::lease::event::Event;
use tidegate_policy::lease::record::Key;

use crate::batch::{Batch, Spare, Store};
use crate::clock::Time;
use crate::kv::BLOCK_TOKENS;
use crate::record::{Request, Span, SpanKind};
use crate::run::check;
use crate::spec::{Spec, SpecError};
use crate::trainer::{Finetune, Trainer};
use crate::tuning::{Policy, Truth};
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
    /// Online's iterations.
    pub iterations: Iterations,
    /// Who had the GPU, where that is kept.
    pub timeline: Vec<Span>,
}

/// Online's iterations beside a trainer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Iterations {
    /// All of them.
    pub all: u64,
    /// Those that only decode, right behind another.
    pub decodes: u64,
    /// Of these, those that took longer than [`Setting::decode_limit_ns`].
    pub late: u64,
    /// Those with training in their pass or beside them.
    pub shared: u64,
    /// When the late ones were, ns: the first thousand.
    pub late_at: Vec<u64>,
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
    out: Tuned,
    last_key: Option<Key>,
    queue: Queue,
    flags: Flags,
    trained: Trained,
}

/// Online's requests.
#[derive(Debug, Default)]
struct Queue {
    next_request: usize,
    in_flight: u32,
}

/// How the unit under way stands.
#[derive(Debug, Default)]
struct Flags {
    /// The gate stopped it in mid-unit: the next start restores its context.
    gated: bool,
    /// Memory it needs is online's.
    blocked: bool,
    /// A unit that was begun beside an iteration is not done.
    begun: bool,
    /// Something ran in the last iteration's pass or beside it.
    shared: bool,
}

/// What was trained which way.
#[derive(Debug, Default)]
struct Trained {
    /// What was trained which way, and of the trainer's all what is in there, ns.
    ways: [f64; Way::COUNT],
    counted: f64,
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
            queue: Queue::default(),
            flags: Flags::default(),
            trained: Trained::default(),
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
        (self.out.trained, self.out.steps) =
            (self.trainer.totals.trained, self.trainer.totals.steps);
        (self.out.units, self.out.redone) = (self.trainer.totals.units, self.trainer.totals.redone);
        self.out.ways = self.trained.ways.map(|ns| ns as u64);
        self.out
    }

    /// What was trained since was trained this way.
    fn went(&mut self, way: Way) {
        self.trained.ways[way as usize] += self.trainer.totals.alone_ns - self.trained.counted;
        self.trained.counted = self.trainer.totals.alone_ns;
    }

    fn see(&mut self, event: Event, now: u64) {
        self.policy.see(&event, now);
    }

    fn next_arrival(&self) -> Option<u64> {
        let requests = self.of.spec.online.trace.requests();
        requests
            .get(self.queue.next_request)
            .map(|request| request.arrival.0)
    }

    fn admit(&mut self, now: u64) {
        let trace = &self.of.spec.online.trace;
        while let Some(request) = trace.requests().get(self.queue.next_request)
            && request.arrival.0 <= now
        {
            let id = self.queue.next_request as u64;
            self.batch
                .admit(id, request.input_tokens, request.output_tokens);
            self.queue.next_request += 1;
            self.queue.in_flight += 1;
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
        !self.flags.blocked
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

    /// That had the GPU, or a share of it.
    fn keep(&mut self, kind: SpanKind, from: u64, to: u64) {
        if self.of.spec.timeline && from < to {
            let (from, to) = (Time(from), Time(to));
            self.out.timeline.push(Span { kind, from, to });
        }
    }
}
