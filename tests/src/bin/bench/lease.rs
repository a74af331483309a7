//! What a lease costs: a plan, a record that is there, a prediction, and a step of a node of eight GPUs with leases
//! against the same node without; and how fast a trainer beside online is replayed. Allocations are counted by a test (`agent/node/tests/steps.rs`).

use crate::row::{Row, median};
use std::time::Duration;
use tidegate_device::sharing::Contention;
use tidegate_policy::config::{Config, Cooldown};
use tidegate_policy::effect::Effect;
use tidegate_policy::event::{Event, Reading, Standing};
use tidegate_policy::gap::Turns;
use tidegate_policy::ids::{Channels, GpuId, GpuSet, GraphId, JobId, Launches, LeaseId, SessionId};
use tidegate_policy::lease::event::{self, Iteration, LeaseEvent, Unit};
use tidegate_policy::lease::plan::{self, Favour, Layers};
use tidegate_policy::lease::predict::SoloFit;
use tidegate_policy::lease::record::{Key, Kind, RECORDS, Records};
use tidegate_policy::lease::slo::Promise;
use tidegate_policy::lease::{Leaser, Leasing};
use tidegate_policy::node::Node;
use tidegate_policy::time::Instant;
use tidegate_replay::comparison::rows::Row as RowOf;
use tidegate_replay::run::alone;
use tidegate_replay::run::beside::{Disturbance, Platform, Setting, run};
use tidegate_replay::trainer::Finetune;
use tidegate_tests::monotonic_ns;
use tidegate_text::rng::Rng;

const ROUNDS: usize = 101;
/// Calls of a round, so that reading the clock does not count.
const CALLS: u32 = 500;
const GPUS: u8 = 8;
const MS: u64 = 1_000_000;

const LEASING: Leasing = Leasing {
    promise: Promise::Tail {
        ttft_ns: 500 * MS,
        tpot_ns: 50 * MS,
        late_permille: 10,
    },
    margin_permille: 50,
    switch_ns: 40_000,
    gate_ns: MS,
    grace_ns: MS / 2,
};

/// Nanoseconds of one of `CALLS` calls, the median over rounds.
fn each(mut call: impl FnMut(u32)) -> f64 {
    let rounds = (0..ROUNDS).map(|_| {
        let begin = monotonic_ns();
        (0..CALLS).for_each(&mut call);
        (monotonic_ns() - begin) as f64 / f64::from(CALLS)
    });
    median(rounds.collect())
}

fn iteration(number: u32) -> Iteration {
    let batch = 1 + number % 64;
    Iteration {
        fingerprint: u64::from(batch.next_multiple_of(8)),
        batch,
        cached: u64::from(batch) * 500,
        prompt: 0,
    }
}

fn took(of: &Iteration) -> u64 {
    5 * MS + u64::from(of.batch) * 20_000 + of.cached * 30
}

const UNIT: Unit = Unit {
    key: Key {
        fingerprint: 1,
        kind: Kind::Backward,
    },
    most: u32::MAX,
    claimed_ns: MS / 2,
};

/// A GPU's leases after a thousand iterations with a batch full of requests.
fn known() -> (Leaser, u64) {
    let (mut leaser, mut now) = (Leaser::new(LEASING), 0);
    for request in 0..64 {
        let event = event::Event::First {
            request,
            ttft_ns: MS,
        };
        leaser.step(&event, now);
    }
    for number in 0..1_000 {
        let iteration = iteration(number);
        let took_ns = took(&iteration);
        now += took_ns;
        let event = event::Event::Beat {
            iteration,
            took_ns,
            interval_ns: took_ns,
            delayed_ns: 0,
        };
        leaser.step(&event, now);
    }
    (leaser, now)
}

/// Every way there is: in series, beside layers, in the pass, and on shares.
fn plan(leaser: &mut Leaser, now: u64, number: u32) -> u64 {
    let next = iteration(number);
    let grant = leaser.serial(&next, &UNIT, now);
    let alone = took(&next);
    let beside = plan::parallel(&Layers {
        layers: 32,
        alone_ns: alone / 32,
        beside_ns: alone / 24,
        unit_ns: UNIT.claimed_ns,
        budget_ns: 40 * MS,
        most: u32::MAX,
    });
    let tokens = plan::tokens(2_048, 16, 40 * MS, |tokens| {
        alone.max(u64::from(tokens) * 20_000)
    });
    let shares = plan::partition(10, 40 * MS, Favour::Trainer, |at| {
        Some(alone * 10 / u64::from(at.online) + u64::from(at.trainer))
    });
    grant.granted_ns + u64::from(beside.units + tokens + shares.trainer)
}

struct Bench {
    node: Node,
    now: u64,
    generation: u64,
    out: Vec<Effect>,
    steps: u64,
    ns: u64,
}

impl Bench {
    fn step(&mut self, event: Event<'_>) {
        self.out.clear();
        let now = Instant::from_nanos(self.now);
        let begin = monotonic_ns();
        self.node.step(event, now, &mut self.out);
        self.ns += monotonic_ns() - begin;
        self.steps += 1;
    }

    /// The last step's orders are carried out.
    fn answer(&mut self) {
        let orders: Vec<Event<'_>> = self
            .out
            .iter()
            .filter_map(|effect| match *effect {
                Effect::Enable { order, .. } => Some(Event::Enabled { order }),
                Effect::Disable(order) => Some(Event::Disabled {
                    order,
                    entered: Instant::from_nanos(self.now),
                    returned: Instant::from_nanos(self.now),
                }),
                _ => None,
            })
            .collect();
        for event in orders {
            self.step(event);
        }
    }

    fn lease(&self) -> Option<(GpuId, LeaseId)> {
        self.out.iter().find_map(|effect| match *effect {
            Effect::Lease { gpu, lease, .. } => Some((gpu, lease)),
            _ => None,
        })
    }

    fn edge(&mut self, gpu: u8, busy: bool) {
        self.generation += 1;
        let at = Instant::from_nanos(self.now);
        let reading = Reading {
            generation: 2 * self.generation + u64::from(busy),
            busy,
            busy_since: at,
            idle_since: at,
            launches: Launches(40),
            graph: GraphId(1),
            turns: Turns::default(),
        };
        self.step(Event::Activity {
            session: SessionId(u64::from(gpu)),
            gpu: GpuId(gpu),
            reading,
        });
        self.answer();
    }
}

/// Nanoseconds of a step, the mean over `iterations` of online on every GPU; and how many leases there were.
fn steps(leases: Option<Leasing>, iterations: u32) -> (f64, u64) {
    let config = Config {
        leases,
        cooldown: Cooldown::Fixed(Duration::from_millis(20)),
        ..Config::default()
    };
    let mut bench = Bench {
        node: Node::new(config, GPUS, Instant::from_nanos(0)),
        now: 0,
        generation: 0,
        out: Vec::with_capacity(64),
        steps: 0,
        ns: 0,
    };
    for gpu in 0..GPUS {
        let (session, trainer) = (SessionId(u64::from(gpu)), SessionId(100 + u64::from(gpu)));
        bench.step(Event::OnlineAttached { session });
        bench.step(Event::OfflineAttached {
            session: trainer,
            job: JobId(u32::from(gpu)),
            gpus: GpuSet::of(GpuId(gpu)),
            standing: Standing::Enabled,
        });
        bench.step(Event::ChannelsChanged {
            session: trainer,
            gpu: GpuId(gpu),
            channels: Channels(8),
            grown: true,
        });
        bench.answer();
    }
    bench.now += 1_000 * MS;
    (bench.steps, bench.ns) = (0, 0);
    let mut given = 0;
    for number in 0..iterations {
        for gpu in 0..GPUS {
            let own = GpuId(gpu);
            bench.edge(gpu, true);
            let next = iteration(number / 8);
            let took_ns = took(&next);
            bench.now += took_ns / u64::from(GPUS);
            bench.edge(gpu, false);
            if leases.is_none() {
                continue;
            }
            if number == 0 {
                bench.step(Event::Lease(LeaseEvent::Offered {
                    gpu: own,
                    job: JobId(u32::from(gpu)),
                    unit: UNIT,
                }));
                for request in 0..32 {
                    let event = event::Event::First {
                        request,
                        ttft_ns: MS,
                    };
                    bench.step(Event::Lease(LeaseEvent::Seen { gpu: own, event }));
                }
            }
            let event = event::Event::Beat {
                iteration: next,
                took_ns,
                interval_ns: took_ns,
                delayed_ns: 0,
            };
            bench.step(Event::Lease(LeaseEvent::Seen { gpu: own, event }));
            bench.step(Event::Lease(LeaseEvent::Next { gpu: own, next }));
            let lent = bench.lease();
            bench.answer();
            if let Some((gpu, lease)) = lent {
                given += 1;
                bench.now += MS;
                let units = 1;
                bench.step(Event::Lease(LeaseEvent::Returned { gpu, lease, units }));
            }
        }
    }
    (bench.ns as f64 / bench.steps as f64, given)
}

/// Iterations of online and units of a trainer beside it that one core replays in a second, an hour of callers; nothing
/// where they cannot be replayed.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn replayed(platform: Platform) -> Option<f64> {
    let spec = crate::replay::hour()?;
    let job = Finetune::new(spec.online.model.clone(), 16, 2_048).ok()?;
    let alone = alone(&spec).ok()?;
    let setting = Setting {
        spec: &spec,
        finetune: &job,
        platform,
        contention: Contention::default(),
        // Units that differ are run one by one; equal ones go by whole samples, which would flatter.
        disturbance: Disturbance {
            sigma: 0.2,
            ..Disturbance::default()
        },
        decode_limit_ns: 40 * MS,
        online_peak_bytes: alone.kv_peak_bytes,
    };
    let each = (0..5).map(|_| {
        let mut ours = RowOf::Tidegate.make(&setting, &alone, LEASING.promise, 0);
        let begun = monotonic_ns();
        let ran = run(&setting, ours.as_mut()).unwrap_or_default();
        let done = ran.iterations.all + ran.units;
        done as f64 * 1e9 / (monotonic_ns() - begun).max(1) as f64
    });
    Some(median(each.collect()))
}

pub fn measure() -> Vec<Row> {
    let (mut leaser, now) = known();
    let mut sum = 0u64;
    let plans = each(|number| sum = sum.wrapping_add(plan(&mut leaser, now, number)));
    let mut records = Records::default();
    let mut rng = Rng::new(1);
    let key = |number: u32| Key {
        fingerprint: u64::from(number),
        kind: Kind::Iteration,
    };
    let kept = u32::try_from(RECORDS / 2).unwrap_or(256);
    for number in 0..20 * kept {
        records.add(key(number % kept), 1e6 * (1.0 + rng.uniform()));
    }
    let mut found = 0u64;
    let hit = each(|number| {
        let took = records.get(key(number % kept));
        found += took.map_or(0, |took| took.seen);
    });
    let mut fit = SoloFit::default();
    for number in 0..1_000 {
        let iteration = iteration(number);
        fit.add(iteration.batch, iteration.cached, took(&iteration) as f64);
    }
    let predict = each(|number| {
        let iteration = iteration(number);
        // Both stages of it: the sums are solved as well, as after every 64 iterations.
        let solo = fit
            .fit()
            .map(|solo| solo.predict(iteration.batch, iteration.cached));
        sum = sum.wrapping_add(solo.unwrap_or_default() as u64);
    });
    let of = |leases| {
        let mut given = 0;
        let runs = (0..9).map(|_| {
            let (ns, leases) = steps(leases, 300);
            given = leases;
            ns
        });
        (median(runs.collect()), given)
    };
    let (without, _) = of(None);
    let (with, given) = of(Some(LEASING));
    std::hint::black_box((sum, found));
    let mut rows = vec![
        Row::new("lease.plan", plans / 1e3, "us").at_most(20.0),
        Row::new("lease.record_hit", hit, "ns").at_most(1_000.0),
        Row::new("lease.predict", predict / 1e3, "us").at_most(5.0),
        Row::new("lease.step.without", without, "ns"),
        Row::new("lease.step.with", with, "ns"),
        Row::new("lease.step.ratio", with / without, "x").at_most(2.0),
        Row::new("lease.step.given", given as f64, "").at_least(1_000.0),
    ];
    for (name, platform) in [
        ("lease.replay.two_process", Platform::TwoProcess),
        ("lease.replay.one_process", Platform::OneProcess),
    ] {
        let rate = replayed(platform).unwrap_or_default();
        rows.push(Row::new(name, rate, "/s").at_least(300_000.0));
    }
    rows
}
