//! The shell allocates nothing in a turn once it has met its processes, jobs and GPUs: a decision never waits
//! for the allocator, nor does an order.

mod counting;
mod rig;

use counting::allocations;
use rig::Rig;
use tidegate_node::kinds::Role;
use tidegate_policy::config::{Config, Cooldown};
use tidegate_policy::effect::Effect;
use tidegate_policy::event::{Event, Reading, Standing};
use tidegate_policy::gap::Turns;
use tidegate_policy::ids::{Channels, GpuId, GpuSet, GraphId, JobId, Launches, LeaseId, SessionId};
use tidegate_policy::lease::Leasing;
use tidegate_policy::lease::event::{self, Iteration, LeaseEvent, Unit};
use tidegate_policy::lease::record::{Key, Kind};
use tidegate_policy::lease::slo::Promise;
use tidegate_policy::node::Node;
use tidegate_policy::time::Instant;

const GPUS: usize = 4;
const ONLINE: u64 = 3;

/// One busy period of `launches` of one process on one GPU, and its pause.
fn period(rig: &mut Rig, session: u64, gpu: usize, launches: u64, pause_ns: u64) {
    for busy in [true, false] {
        rig.edge(session, gpu, busy, launches);
        rig.rest();
        rig.pass(3_000_000);
    }
    for _ in 0..4 {
        rig.pass(pause_ns / 4);
        rig.probe();
        rig.rest();
    }
}

/// A request's decode iterations on every GPU, then a pause in which the gates open.
fn requests(rig: &mut Rig, count: u64) {
    for number in 0..count {
        let session = 1 + number % ONLINE;
        for iteration in 0..12 {
            for gpu in 0..GPUS {
                period(
                    rig,
                    session,
                    gpu,
                    10 + number % 2,
                    200_000 * (iteration % 3),
                );
            }
        }
        for _ in 0..40 {
            rig.pass(10_000_000);
            rig.probe();
            rig.rest();
        }
    }
}

/// P-LIBRARY-1: a decision of the agent allocates nothing, nor does an order.
#[test]
fn no_turn_allocates_once_its_processes_jobs_and_gpus_are_known() {
    let mut rig = Rig::new(GPUS, Config::default());
    for _ in 0..ONLINE {
        rig.attach(Role::Online, "");
    }
    for job in ["one", "other", "one"] {
        rig.attach(Role::Offline, job);
    }
    for gpu in &mut rig.gpus {
        gpu.keeps_orders = false;
    }
    requests(&mut rig, 6);
    let calls = |rig: &Rig| rig.gpus.iter().map(|gpu| gpu.calls).sum::<u64>();
    let (before, called) = (allocations(), calls(&rig));
    requests(&mut rig, 60);
    let allocated = allocations() - before;
    let called = calls(&rig) - called;
    assert!(called > 500, "an empty run: {called} calls");
    assert_eq!(allocated, 0);
}

/// P-TRAINER-12: a lease allocates nothing, from the iteration that is told to the trainer that is back.
#[test]
fn no_lease_allocates_once_its_trainer_and_iterations_are_known() {
    const MS: u64 = 1_000_000;
    const GPU: GpuId = GpuId(0);
    let leasing = Leasing {
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
    let config = Config {
        leases: Some(leasing),
        cooldown: Cooldown::Fixed(std::time::Duration::from_millis(20)),
        ..Config::default()
    };
    let mut node = Node::new(config, 1, Instant::from_nanos(0));
    let (mut now, mut out) = (1_000 * MS, Vec::with_capacity(64));
    let mut step = |event: Event<'_>, now: u64| -> Option<LeaseId> {
        out.clear();
        node.step(event, Instant::from_nanos(now), &mut out);
        let order = out.iter().find_map(|effect| match *effect {
            Effect::Enable { order, .. } => Some(Event::Enabled { order }),
            Effect::Disable(order) => Some(Event::Disabled {
                order,
                entered: Instant::from_nanos(now),
                returned: Instant::from_nanos(now),
            }),
            _ => None,
        });
        let lent = out.iter().find_map(|effect| match *effect {
            Effect::Lease { lease, .. } => Some(lease),
            _ => None,
        });
        if let Some(answer) = order {
            out.clear();
            node.step(answer, Instant::from_nanos(now), &mut out);
        }
        lent
    };
    let (session, trainer, job) = (SessionId(1), SessionId(2), JobId(0));
    step(Event::OnlineAttached { session }, now);
    let standing = Standing::Enabled;
    let gpus = GpuSet::of(GPU);
    step(
        Event::OfflineAttached {
            session: trainer,
            job,
            gpus,
            standing,
        },
        now,
    );
    let (channels, grown) = (Channels(8), true);
    step(
        Event::ChannelsChanged {
            session: trainer,
            gpu: GPU,
            channels,
            grown,
        },
        now,
    );
    let reading = Reading {
        generation: 1,
        busy: true,
        busy_since: Instant::from_nanos(now),
        idle_since: Instant::from_nanos(now),
        launches: Launches(40),
        graph: GraphId(1),
        turns: Turns::default(),
    };
    step(
        Event::Activity {
            session,
            gpu: GPU,
            reading,
        },
        now,
    );
    let lease = Event::Lease;
    let mut run = |iterations: u64| {
        let mut leases = 0;
        for number in 0..iterations {
            let batch = u32::try_from(1 + number % 64).expect("few");
            let next = Iteration {
                fingerprint: u64::from(batch),
                batch,
                cached: u64::from(batch) * 500,
                prompt: 0,
            };
            let unit = Unit {
                key: Key {
                    fingerprint: 1,
                    kind: Kind::Backward,
                },
                most: u32::MAX,
                claimed_ns: MS / 2,
            };
            step(
                Event::Progress {
                    session,
                    at: Instant::from_nanos(now),
                },
                now,
            );
            step(
                lease(LeaseEvent::Offered {
                    gpu: GPU,
                    job,
                    unit,
                }),
                now,
            );
            let seen = |event| lease(LeaseEvent::Seen { gpu: GPU, event });
            if number % 64 == 0 {
                let request = number;
                step(seen(event::Event::Arrived { request }), now);
                let ttft_ns = MS;
                step(seen(event::Event::First { request, ttft_ns }), now);
                if let Some(request) = number.checked_sub(64) {
                    let tpot_ns = 10 * MS;
                    step(
                        seen(event::Event::Ended {
                            request,
                            ttft_ns,
                            tpot_ns,
                        }),
                        now,
                    );
                }
            }
            let took_ns = 5 * MS + u64::from(batch) * 20_000;
            now += took_ns;
            step(
                seen(event::Event::Beat {
                    iteration: next,
                    took_ns,
                    interval_ns: took_ns,
                    delayed_ns: 0,
                }),
                now,
            );
            if let Some(lent) = step(lease(LeaseEvent::Next { gpu: GPU, next }), now) {
                leases += 1;
                now += MS;
                // Some stay too long.
                now += 60 * MS * u64::from(number % 23 == 0);
                step(Event::Tick, now);
                let units = 1;
                step(
                    lease(LeaseEvent::Returned {
                        gpu: GPU,
                        lease: lent,
                        units,
                    }),
                    now,
                );
            }
        }
        leases
    };
    run(2_000);
    let before = allocations();
    let leases = run(20_000);
    let allocated = allocations() - before;
    assert!(leases > 1_000, "an empty run: {leases} leases");
    assert_eq!(allocated, 0);
}
