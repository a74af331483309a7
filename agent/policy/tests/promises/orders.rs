//! What a job is ordered to do, under any list of events.

mod stories;
mod ungated;

use crate::bench::Bench;
use proptest::prelude::*;
use std::time::Duration;
use tidegate_policy::config::{Config, Cooldown, Fair, FairMode};
use tidegate_policy::effect::{Effect, Look};
use tidegate_policy::event::{Event, Order, Reading, Standing};
use tidegate_policy::gap::Turns;
use tidegate_policy::ids::{
    Channels, Generation, GpuId, GpuSet, GraphId, JobId, Launches, RequestId, SessionId,
};
use tidegate_policy::time::Instant;
use tidegate_policy::view::{JobState, JobView, Reason};

const GPUS: u8 = 3;
const COOLDOWN: u64 = 5_000_000;

fn config() -> Config {
    Config {
        cooldown: Cooldown::Fixed(Duration::from_nanos(COOLDOWN)),
        start_hold: Duration::ZERO,
        frozen_after: Duration::from_secs(3600),
        fair: Fair {
            mode: FairMode::Turns,
            ..Fair::default()
        },
        ..Config::default()
    }
}

/// One thing a test does to a bench.
#[derive(Clone, Copy, Debug)]
enum Op {
    Pass(u64),
    AttachOnline(u64),
    OnlineGone(u64),
    Busy(u64, u8),
    Idle(u64, u8),
    /// Edges the agent does not look at until the next reading.
    Unseen(u64, u8, bool),
    AttachOffline(u64, u32, u8),
    OfflineGone(u64),
    Grow(u64, u8),
    Answer(u8, bool),
    Pause(Option<u32>),
    Resume(Option<u32>),
    Stalled(u8),
    Reissue,
    Drain(bool),
}

fn op(failures: bool) -> impl Strategy<Value = Op> {
    let (online, offline, gpu, job) = (0u64..3, 10u64..14, 0..GPUS, 0u32..3);
    prop_oneof![
        6 => (0u64..3 * COOLDOWN).prop_map(Op::Pass),
        1 => online.clone().prop_map(Op::AttachOnline),
        1 => online.clone().prop_map(Op::OnlineGone),
        4 => (online.clone(), gpu.clone()).prop_map(|(s, g)| Op::Busy(s, g)),
        5 => (online.clone(), gpu.clone()).prop_map(|(s, g)| Op::Idle(s, g)),
        1 => (online, gpu.clone(), any::<bool>()).prop_map(|(s, g, b)| Op::Unseen(s, g, b)),
        2 => (offline.clone(), job.clone(), 1u8..8).prop_map(|(s, j, m)| Op::AttachOffline(s, j, m)),
        1 => offline.clone().prop_map(Op::OfflineGone),
        1 => (offline, gpu.clone()).prop_map(|(s, g)| Op::Grow(s, g)),
        8 => (gpu.clone(), prop::bool::weighted(if failures { 0.2 } else { 0.0 }))
            .prop_map(|(g, f)| Op::Answer(g, f)),
        1 => prop::option::of(job.clone()).prop_map(Op::Pause),
        2 => prop::option::of(job).prop_map(Op::Resume),
        1 => gpu.prop_map(Op::Stalled),
        1 => Just(Op::Reissue),
        1 => any::<bool>().prop_map(Op::Drain),
    ]
}

fn apply(bench: &mut Bench, op: Op) {
    match op {
        Op::Pass(ns) => bench.pass(ns),
        Op::AttachOnline(s) => bench.attach_online(SessionId(s)),
        Op::OnlineGone(s) => bench.online_gone(SessionId(s)),
        Op::Busy(s, g) => {
            bench.attach_online(SessionId(s));
            bench.busy(SessionId(s), GpuId(g));
        }
        Op::Idle(s, g) => bench.idle(SessionId(s), GpuId(g), 10, 0),
        Op::Unseen(s, g, busy) => {
            bench.attach_online(SessionId(s));
            bench.edge(SessionId(s), GpuId(g), busy, 10, 0);
            bench.edge(SessionId(s), GpuId(g), !busy, 10, 0);
            bench.read(SessionId(s), GpuId(g));
        }
        Op::AttachOffline(s, j, mask) => {
            let gpus = (0..GPUS)
                .filter(|g| mask >> g & 1 == 1)
                .map(GpuId)
                .collect();
            bench.attach_offline(SessionId(s), JobId(j), gpus);
        }
        Op::OfflineGone(s) => bench.offline_gone(SessionId(s)),
        Op::Grow(s, g) => {
            if let Some(&job) = bench.jobs.get(&SessionId(s)) {
                // A new channel is born enabled, and drags what the process holds there with it.
                bench.held.insert((SessionId(s), GpuId(g)), (job, true));
                bench.send(Event::ChannelsChanged {
                    session: SessionId(s),
                    gpu: GpuId(g),
                    channels: Channels(2),
                    grown: true,
                });
            }
        }
        Op::Answer(g, fails) => bench.answer(GpuId(g), fails),
        Op::Pause(job) => bench.send(Event::Pause {
            job: job.map(JobId),
        }),
        Op::Resume(job) => bench.send(Event::Resume {
            job: job.map(JobId),
        }),
        Op::Stalled(g) => bench.send(Event::IssueStalled { gpu: GpuId(g) }),
        Op::Reissue => bench.send(Event::Reissue { job: None }),
        Op::Drain(drained) => bench.send(Event::Drain { drained }),
    }
}

/// A process that runs beside busy online though its job is not given up, once no order is under way.
fn beside_busy(bench: &Bench) -> Option<(SessionId, GpuId, JobView)> {
    if bench.issued.iter().any(|orders| !orders.is_empty()) {
        return None;
    }
    let busy = bench.busy_gpus();
    let held = bench.node.jobs().filter(|job| {
        let given_up = matches!(job.state, JobState::Unknown | JobState::Unmanaged);
        !given_up && !job.gpus.intersection(busy).is_empty()
    });
    let running = |job: JobView| {
        let mut own = bench.held.iter();
        let (key, _) = own.find(|(_, (of, enabled))| *of == job.job && *enabled)?;
        Some((key.0, key.1, job))
    };
    held.filter_map(running).next()
}

fn ops(failures: bool) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(op(failures), 0..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// P-GATE-3: the policy decides as promised, whatever happens.
    #[test]
    fn offline_wakes_only_after_a_whole_cooldown_on_every_gpu_of_its_job(ops in ops(false)) {
        let mut bench = Bench::new(config(), GPUS);
        let mut busy_until = [0u64; GPUS as usize];
        for op in ops {
            let seen = bench.effects.len();
            let busy_before = bench.busy_gpus();
            let before = bench.now;
            apply(&mut bench, op);
            // Time passes before anything else an op does, so what was busy stayed so until now.
            for gpu in busy_before.iter().chain(bench.busy_gpus().iter()) {
                busy_until[gpu.index()] = bench.now;
            }
            for (at, effect) in &bench.effects[seen..] {
                let Effect::Enable { order, look: Look::First } = effect else { continue };
                for gpu in bench.gpus_of(order.job).iter() {
                    prop_assert!(!busy_before.contains(gpu) || *at == bench.now);
                    prop_assert!(
                        *at >= busy_until[gpu.index()].min(before) + COOLDOWN,
                        "woken at {at}, online was busy at {}", busy_until[gpu.index()]
                    );
                }
            }
        }
    }

    /// P-GATE-3: the policy decides as promised, whatever happens.
    #[test]
    fn once_orders_are_carried_out_nothing_runs_beside_busy_online(ops in ops(true)) {
        let mut bench = Bench::new(config(), GPUS);
        for op in ops {
            apply(&mut bench, op);
            prop_assert_eq!(beside_busy(&bench), None);
        }
    }

    /// P-GATE-3: the policy decides as promised, whatever happens.
    #[test]
    fn a_gang_is_never_left_half_enabled(ops in ops(false)) {
        let mut bench = Bench::new(config(), GPUS);
        for op in ops {
            apply(&mut bench, op);
            bench.answer_all();
            for job in bench.node.jobs() {
                let mut states = bench.held.values().filter(|held| held.0 == job.job);
                let first = states.next().map(|held| held.1);
                prop_assert!(states.all(|held| Some(held.1) == first), "{job:?}");
            }
        }
    }

    /// P-FAIR-4: where no two jobs share a GPU, turns change no decision.
    #[test]
    fn with_one_job_on_each_gpu_nothing_differs_from_jobs_that_run_together(ops in ops(true)) {
        let fair = |mode| Config { fair: Fair { mode, ..Fair::default() }, ..config() };
        let mut benches = [FairMode::Turns, FairMode::Together].map(|mode| Bench::new(fair(mode), GPUS));
        for op in ops {
            // The job of the first GPU, or the one of all others.
            let op = match op {
                Op::AttachOffline(s, _, mask) if s % 2 == 0 => Op::AttachOffline(s, 0, mask & 1),
                Op::AttachOffline(s, _, mask) => Op::AttachOffline(s, 1, mask & 6),
                Op::Grow(s, _) if s % 2 == 0 => Op::Grow(s, 0),
                Op::Grow(s, gpu) => Op::Grow(s, gpu.max(1)),
                op => op,
            };
            benches.iter_mut().for_each(|bench| apply(bench, op));
        }
        prop_assert_eq!(&benches[0].effects, &benches[1].effects);
        let jobs = benches.each_ref().map(|bench| bench.node.jobs().collect::<Vec<_>>());
        prop_assert_eq!(&jobs[0], &jobs[1]);
    }

    #[test]
    fn after_any_events_and_then_quiet_nothing_stays_disabled(ops in ops(true)) {
        let mut bench = Bench::new(config(), GPUS);
        for op in ops {
            apply(&mut bench, op);
        }
        bench.send(Event::Resume { job: None });
        bench.send(Event::Drain { drained: false });
        let keys: Vec<_> = bench.online.keys().copied().collect();
        for (session, gpu) in keys {
            bench.idle(session, gpu, 10, 0);
        }
        for _ in 0..4 {
            bench.answer_all();
            bench.pass(1_000_000_000);
        }
        prop_assert_eq!(bench.never_on(), []);
        bench.answer_all();
        for job in bench.node.jobs() {
            let runs = matches!(job.state, JobState::Running | JobState::Unmanaged);
            prop_assert!(runs || job.reason == Reason::Turn, "{job:?}");
        }
    }

    /// P-GATE-3: the policy decides as promised, whatever happens.
    #[test]
    fn an_answer_nobody_waits_for_changes_nothing(
        ops in ops(true),
        gpu in 0u8..GPUS + 1, job in 0u32..4, generation in 0u64..40, what in 0u8..5,
    ) {
        let mut bench = Bench::new(config(), GPUS);
        for op in ops {
            apply(&mut bench, op);
        }
        let order = Order { gpu: GpuId(gpu), job: JobId(job), generation: Generation(generation) };
        let awaited = bench.issued.iter().flatten().any(|issued| issued.order == order);
        prop_assume!(!awaited);
        // An answer shows that the thread lives, which is news only about a stalled one.
        let mut node = bench.node.clone();
        let mut out = Vec::new();
        let alive = Order { generation: Generation(u64::MAX), ..order };
        node.step(Event::Enabled { order: alive }, bench.at(), &mut out);
        let before = format!("{node:?}");
        out.clear();
        let now = bench.at();
        node.step(match what {
            0 => Event::Enabled { order },
            1 => Event::EnableFailed { order, status: 1 },
            2 => Event::EnableSkipped { order },
            3 => Event::DisableFailed { order, status: 1 },
            _ => Event::Disabled { order, entered: now, returned: now },
        }, now, &mut out);
        prop_assert!(out.is_empty(), "{out:?}");
        prop_assert_eq!(before, format!("{node:?}"));
    }

    #[test]
    fn a_reading_or_a_tick_that_says_nothing_new_changes_nothing(ops in ops(true)) {
        let mut bench = Bench::new(config(), GPUS);
        for op in ops {
            apply(&mut bench, op);
            let mut node = bench.node.clone();
            let mut out = Vec::new();
            node.step(Event::Tick, bench.at(), &mut out);
            out.clear();
            let before = format!("{node:?}");
            for (&(session, gpu), words) in &bench.online {
                node.step(Event::Activity { session, gpu, reading: words.reading }, bench.at(), &mut out);
            }
            prop_assert!(out.is_empty(), "{out:?}");
            prop_assert_eq!(before, format!("{node:?}"));
        }
    }

    /// P-GATE-3: the policy decides as promised, whatever happens.
    #[test]
    fn any_event_in_any_state_has_an_answer(events in prop::collection::vec((any::<u32>(), wild()), 0..200)) {
        let mut bench = Bench::new(config(), GPUS);
        for (ns, event) in events {
            bench.now += u64::from(ns);
            bench.send(event);
        }
    }
}

/// Events without sense.
fn wild() -> impl Strategy<Value = Event<'static>> {
    let numbers = (
        0u64..4,
        0u8..70,
        any::<u64>(),
        any::<u64>(),
        any::<bool>(),
        0u32..3,
    );
    (0u8..22, numbers).prop_map(|(kind, (s, g, a, b, flag, j))| {
        let (session, gpu, job) = (SessionId(s), GpuId(g), JobId(j));
        let (at, bt) = (Instant::from_nanos(a), Instant::from_nanos(b));
        let order = Order {
            gpu,
            job,
            generation: Generation(a % 8),
        };
        let reading = Reading {
            generation: a,
            busy: flag,
            busy_since: bt,
            idle_since: Instant::from_nanos(a ^ b),
            launches: Launches(b),
            graph: GraphId(a % 3),
            turns: Turns::default(),
        };
        let gpus = GpuSet::first((a % 65) as u8);
        let standing = if flag {
            Standing::Enabled
        } else {
            Standing::Unknown
        };
        match kind {
            0 => Event::OnlineAttached { session },
            1 => Event::OnlineGone { session },
            2 | 3 => Event::Activity {
                session,
                gpu,
                reading,
            },
            4 => Event::Progress { session, at },
            5 => Event::Suspected {
                session,
                gpu,
                suspect: flag,
            },
            6 => Event::RequestStarted {
                session,
                request: RequestId(a % 3),
            },
            7 => Event::RequestEnded {
                session,
                request: RequestId(a % 3),
            },
            8 => Event::OfflineAttached {
                session,
                job,
                gpus,
                standing,
            },
            9 => Event::OfflineGone { session },
            10 => Event::ChannelsChanged {
                session,
                gpu,
                channels: Channels(j),
                grown: flag,
            },
            11 => Event::Disabled {
                order,
                entered: at,
                returned: bt,
            },
            12 => Event::DisableFailed { order, status: j },
            13 => Event::Enabled { order },
            14 => Event::EnableFailed { order, status: j },
            15 => Event::EnableSkipped { order },
            16 => Event::IssueStalled { gpu },
            17 => Event::Pause {
                job: flag.then_some(job),
            },
            18 => Event::Resume {
                job: flag.then_some(job),
            },
            19 => Event::Reissue {
                job: flag.then_some(job),
            },
            20 => Event::Drain { drained: flag },
            _ => Event::Tick,
        }
    })
}
