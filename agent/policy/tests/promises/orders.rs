//! What a job is ordered to do, under any list of events.

use crate::bench::Bench;
use proptest::prelude::*;
use std::time::Duration;
use tidegate_policy::config::{Config, Cooldown, OnMaxGated, Suspects};
use tidegate_policy::effect::{Effect, Look, Report};
use tidegate_policy::event::{Event, Order, Reading, Standing};
use tidegate_policy::ids::{
    Channels, Generation, GpuId, GpuSet, GraphId, JobId, Launches, RequestId, SessionId,
};
use tidegate_policy::time::Instant;
use tidegate_policy::view::{GateState, JobState};

const GPUS: u8 = 3;
const COOLDOWN: u64 = 5_000_000;

fn config() -> Config {
    Config {
        cooldown: Cooldown::Fixed(Duration::from_nanos(COOLDOWN)),
        start_hold: Duration::ZERO,
        frozen_after: Duration::from_secs(3600),
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
            let mut settled = Vec::new();
            if bench.issued.iter().all(std::collections::VecDeque::is_empty) {
                settled = bench.node.jobs().collect();
            }
            let busy = bench.busy_gpus();
            for job in settled {
                let given_up = matches!(job.state, JobState::Unknown | JobState::Unmanaged);
                if given_up || job.gpus.intersection(busy).is_empty() {
                    continue;
                }
                for (key, (of, enabled)) in &bench.held {
                    prop_assert!(*of != job.job || !*enabled, "{key:?} of {job:?} runs");
                }
            }
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
        for (key, (job, enabled)) in &bench.held {
            prop_assert!(*enabled, "{key:?} of {job:?}: {:?}", bench.node.job(*job));
        }
        for job in bench.node.jobs() {
            prop_assert!(matches!(job.state, JobState::Running | JobState::Unmanaged), "{job:?}");
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

const ENGINE: SessionId = SessionId(1);
const BATCH: SessionId = SessionId(10);
const JOB: JobId = JobId(0);
const GPU: GpuId = GpuId(0);

/// A job that runs on every GPU, and an engine that is idle.
fn running(config: Config) -> Bench {
    let mut bench = Bench::new(config, GPUS);
    bench.attach_online(ENGINE);
    bench.attach_offline(BATCH, JOB, GpuSet::first(GPUS));
    bench.pass(10 * COOLDOWN);
    bench.answer_all();
    assert_eq!(
        bench.node.job(JOB).map(|job| job.state),
        Some(JobState::Running)
    );
    bench.effects.clear();
    bench.reports.clear();
    bench
}

fn disables(bench: &Bench) -> usize {
    bench
        .effects
        .iter()
        .filter(|(_, e)| matches!(e, Effect::Disable(_)))
        .count()
}

#[test]
fn a_busy_edge_stops_the_whole_gang_in_one_step_and_reports_when_the_last_gpu_stopped() {
    let mut bench = running(config());
    let rang = bench.at();
    bench.busy(ENGINE, GPU);
    assert_eq!(disables(&bench), usize::from(GPUS));
    for gpu in 0..GPUS {
        assert!(bench.reports.is_empty());
        bench.pass(1000);
        bench.answer(GpuId(gpu), false);
    }
    let (gpu, jobs, returned) = (GPU, 1, bench.at());
    let whole = Report::Preempted {
        gpu,
        rang,
        entered: returned,
        returned,
        jobs,
    };
    assert_eq!(bench.reports, [whole]);
    assert_eq!(
        bench.node.gpu(GPU, bench.at()).map(|gpu| gpu.preemptions),
        Some(1)
    );
}

#[test]
fn a_channel_created_while_gated_is_disabled_at_once() {
    let mut bench = running(config());
    bench.busy(ENGINE, GPU);
    bench.answer_all();
    bench.effects.clear();
    apply(&mut bench, Op::Grow(BATCH.0, 1));
    assert_eq!(disables(&bench), 1);
    bench.answer_all();
    assert!(bench.held.values().all(|held| !held.1));
    assert_eq!(
        bench.node.job(JOB).map(|job| job.preemptions),
        Some(1),
        "no second preemption"
    );
}

#[test]
fn a_failed_disable_enables_everything_and_reads_activity_before_it_is_tried_again() {
    let mut bench = running(config());
    bench.busy(ENGINE, GPU);
    bench.effects.clear();
    bench.answer(GPU, true);
    let enabled = bench.effects.iter().filter(|(_, effect)| {
        matches!(
            effect,
            Effect::Enable {
                look: Look::Unconditional,
                ..
            }
        )
    });
    assert_eq!(enabled.count(), usize::from(GPUS));
    assert!(
        bench
            .effects
            .iter()
            .any(|(_, e)| matches!(e, Effect::ReadActivity { .. }))
    );
    assert_eq!(disables(&bench), 0);
    assert_eq!(
        bench.node.job(JOB).map(|job| job.state),
        Some(JobState::Unknown)
    );
    bench.answer_all();
    assert_eq!(
        bench.node.job(JOB).map(|job| job.state),
        Some(JobState::Gated)
    );
    assert!(bench.held.values().all(|held| !held.1));
}

#[test]
fn a_job_whose_disables_keep_failing_is_given_up_enabled_and_held_by_its_launch_gate() {
    let mut bench = running(config());
    bench.busy(ENGINE, GPU);
    for _ in 0..100 {
        for gpu in 0..GPUS {
            let fails = bench.issued[usize::from(gpu)]
                .front()
                .is_some_and(|i| !i.enable);
            bench.answer(GpuId(gpu), fails);
        }
    }
    assert_eq!(
        bench.node.job(JOB).map(|job| job.state),
        Some(JobState::Unmanaged)
    );
    assert!(bench.reports.contains(&Report::Unmanaged { job: JOB }));
    assert!(bench.held.values().all(|held| held.1));
    let gates = |bench: &Bench| {
        bench
            .effects
            .iter()
            .rev()
            .find_map(|(_, effect)| match effect {
                Effect::CloseLaunchGate { .. } => Some(true),
                Effect::OpenLaunchGate { .. } => Some(false),
                _ => None,
            })
    };
    assert_eq!(gates(&bench), Some(true));
    bench.idle(ENGINE, GPU, 1, 0);
    bench.pass(2 * COOLDOWN);
    assert_eq!(gates(&bench), Some(false));
    bench.busy(ENGINE, GPU);
    bench.effects.clear();
    bench.send(Event::Resume { job: None });
    assert_eq!(
        disables(&bench),
        usize::from(GPUS),
        "resume gives it another chance"
    );
}

/// P-OPERATE-5: what is set, drained or asked for holds at once.
#[test]
fn a_drained_node_runs_nothing_offline_until_it_is_undrained() {
    let mut bench = running(config());
    bench.send(Event::Drain { drained: true });
    assert_eq!(disables(&bench), usize::from(GPUS));
    bench.answer_all();
    let later = (SessionId(11), JobId(1));
    bench.attach_offline(later.0, later.1, GpuSet::first(GPUS));
    bench.answer_all();
    bench.send(Event::Pause { job: Some(JOB) });
    bench.effects.clear();
    bench.send(Event::Resume { job: None });
    bench.pass(10 * COOLDOWN);
    let state = |bench: &Bench, job| bench.node.job(job).map(|job| job.state);
    for job in [JOB, later.1] {
        assert_eq!(state(&bench, job), Some(JobState::Gated), "{job:?}");
    }
    assert!(
        !bench
            .effects
            .iter()
            .any(|(_, e)| matches!(e, Effect::Enable { .. }))
    );
    assert!(bench.node.is_drained());
    bench.send(Event::Pause { job: Some(JOB) });
    bench.send(Event::Drain { drained: false });
    bench.answer_all();
    assert_eq!(
        state(&bench, JOB),
        Some(JobState::Gated),
        "what was paused stays so"
    );
    assert_eq!(state(&bench, later.1), Some(JobState::Running));
}

/// P-OPERATE-5: what is set, drained or asked for holds at once.
#[test]
fn a_new_cooldown_counts_for_the_idle_time_that_runs_already() {
    for (new, opens) in [(COOLDOWN / 4, true), (4 * COOLDOWN, false)] {
        let mut bench = running(config());
        bench.busy(ENGINE, GPU);
        bench.answer_all();
        bench.idle(ENGINE, GPU, 1, 0);
        bench.pass(COOLDOWN / 2);
        bench.configure(Config {
            cooldown: Cooldown::Fixed(Duration::from_nanos(new)),
            ..config()
        });
        bench.answer_all();
        let state = || bench.node.job(JOB).map(|job| job.state);
        assert_eq!(state() == Some(JobState::Running), opens, "{new}");
        bench.pass(COOLDOWN);
        bench.answer_all();
        let state = bench.node.job(JOB).map(|job| job.state);
        assert_eq!(state == Some(JobState::Running), opens, "{new}");
    }
}

#[test]
fn a_stalled_issue_thread_closes_the_launch_gate_of_the_jobs_it_was_to_stop() {
    let mut bench = running(config());
    bench.busy(ENGINE, GPU);
    bench.send(Event::IssueStalled { gpu: GPU });
    assert!(
        bench
            .effects
            .iter()
            .any(|(_, e)| matches!(e, Effect::CloseLaunchGate { .. }))
    );
    bench.effects.clear();
    bench.answer_all();
    assert!(
        bench
            .effects
            .iter()
            .any(|(_, e)| matches!(e, Effect::OpenLaunchGate { .. }))
    );
}

#[test]
fn an_enable_that_was_skipped_is_tried_again_only_when_the_gate_says_so() {
    let mut bench = running(config());
    bench.busy(ENGINE, GPU);
    bench.answer_all();
    bench.idle(ENGINE, GPU, 1, 0);
    bench.pass(COOLDOWN);
    let order = bench.issued[0]
        .pop_front()
        .expect("an order to enable")
        .order;
    // Online came back between the step and the look.
    bench.edge(ENGINE, GPU, true, 0, 0);
    bench.effects.clear();
    bench.send(Event::EnableSkipped { order });
    bench.answer_all();
    assert_eq!(bench.enables().count(), 0);
    assert!(
        bench.held.values().all(|held| !held.1),
        "the rest of the gang stops too"
    );
    bench.pass(10 * COOLDOWN);
    assert_eq!(bench.enables().count(), 0);
    assert_eq!(
        bench.node.gpu(GPU, bench.at()).map(|gpu| gpu.gate),
        Some(GateState::Closed)
    );
    let preemptions = bench.node.gpu(GPU, bench.at()).map(|gpu| gpu.preemptions);
    assert_eq!(preemptions, Some(1));
}

#[test]
fn a_frozen_online_process_stops_counting_and_counts_again_when_it_goes_on() {
    let mut bench = running(Config {
        frozen_after: Duration::from_secs(5),
        ..config()
    });
    bench.busy(ENGINE, GPU);
    bench.answer_all();
    bench.pass(4_999_999_999);
    bench.send(Event::Progress {
        session: ENGINE,
        at: bench.at(),
    });
    bench.pass(4_999_999_999);
    assert!(
        bench
            .reports
            .iter()
            .all(|r| !matches!(r, Report::Lapsed { .. }))
    );
    bench.pass(1 + 2 * COOLDOWN);
    bench.answer_all();
    assert!(bench.reports.contains(&Report::Lapsed { session: ENGINE }));
    assert!(bench.held.values().all(|held| held.1));
    bench.send(Event::Progress {
        session: ENGINE,
        at: bench.at(),
    });
    bench.answer_all();
    assert!(
        bench
            .reports
            .contains(&Report::Recovered { session: ENGINE })
    );
    assert!(bench.held.values().all(|held| !held.1));
}

#[test]
fn edges_of_a_suspect_that_is_passed_over_stop_nobody_until_it_is_none() {
    let mut bench = running(Config {
        suspects: Suspects::Ignore,
        ..config()
    });
    let say = |bench: &mut Bench, suspect| {
        bench.send(Event::Suspected {
            session: ENGINE,
            gpu: GPU,
            suspect,
        });
    };
    say(&mut bench, true);
    for _ in 0..3 {
        bench.busy(ENGINE, GPU);
        bench.idle(ENGINE, GPU, 1, 0);
    }
    bench.answer_all();
    assert_eq!(disables(&bench), 0);
    say(&mut bench, false);
    bench.busy(ENGINE, GPU);
    assert!(disables(&bench) > 0);
}

/// P-OPERATE-5: what is set, drained or asked for holds at once.
#[test]
fn a_pause_holds_for_jobs_to_come_until_resume() {
    let mut bench = running(config());
    bench.send(Event::Pause { job: None });
    bench.attach_offline(SessionId(11), JobId(1), GpuSet::of(GPU));
    bench.answer_all();
    bench.pass(10 * COOLDOWN);
    assert!(bench.held.values().all(|held| !held.1));
    bench.send(Event::Resume { job: None });
    bench.answer_all();
    assert!(bench.held.values().all(|held| held.1));
    assert_eq!(
        bench.node.gpu(GPU, bench.at()).map(|gpu| gpu.preemptions),
        Some(0)
    );
}

#[test]
fn a_job_attached_to_a_new_agent_is_ordered_into_the_wanted_state_whatever_it_was_in() {
    let mut bench = Bench::new(config(), GPUS);
    bench.pass(10 * COOLDOWN);
    let (session, job, gpus) = (BATCH, JOB, GpuSet::of(GPU));
    bench.held.insert((session, GPU), (job, false));
    let standing = Standing::Unknown;
    bench.send(Event::OfflineAttached {
        session,
        job,
        gpus,
        standing,
    });
    let (gpu, channels) = (GPU, Channels(1));
    bench.send(Event::ChannelsChanged {
        session,
        gpu,
        channels,
        grown: true,
    });
    bench.answer_all();
    assert!(bench.held.values().all(|held| held.1));
}

#[test]
fn a_new_agent_keeps_its_gates_shut_until_online_had_time_to_attach() {
    let mut bench = Bench::new(
        Config {
            start_hold: Duration::from_millis(500),
            ..config()
        },
        GPUS,
    );
    bench.attach_offline(BATCH, JOB, GpuSet::of(GPU));
    bench.answer_all();
    bench.pass(499_000_000);
    assert!(bench.held.values().all(|held| !held.1));
    bench.pass(1_000_000);
    bench.answer_all();
    assert!(bench.held.values().all(|held| held.1));
}

#[test]
fn a_failed_enable_is_tried_again_for_as_long_as_the_job_lives() {
    let mut bench = running(config());
    bench.busy(ENGINE, GPU);
    bench.answer_all();
    bench.idle(ENGINE, GPU, 1, 0);
    bench.pass(COOLDOWN);
    for _ in 0..20 {
        for gpu in 0..GPUS {
            bench.answer(GpuId(gpu), true);
        }
        bench.pass(1_000_000_000);
    }
    bench.answer_all();
    assert!(bench.held.values().all(|held| held.1));
    let told = bench
        .reports
        .iter()
        .filter(|r| matches!(r, Report::EnableFailed { .. }))
        .count();
    assert_eq!(told, usize::from(GPUS), "told once per GPU");
}

#[test]
fn a_job_gated_for_too_long_is_reported_once_and_held() {
    let mut bench = running(config());
    bench.busy(ENGINE, GPU);
    bench.answer_all();
    bench.pass(1_000_000_000_000);
    let told = bench
        .reports
        .iter()
        .filter(|r| matches!(r, Report::MaxGated { .. }))
        .count();
    assert_eq!(told, 1);
    assert!(bench.held.values().all(|held| !held.1));
}

#[test]
fn a_job_that_may_breathe_gets_one_turn_in_an_idle_gap_and_is_stopped_after_it() {
    let turn = Duration::from_millis(1);
    let mut bench = running(Config {
        max_gated: Duration::from_millis(1005),
        on_max_gated: OnMaxGated::Breathe(turn),
        ..config()
    });
    let mut turns = 0;
    for round in 0..150 {
        bench.busy(ENGINE, GPU);
        bench.answer_all();
        assert!(
            bench.held.values().all(|held| !held.1),
            "never beside busy online"
        );
        bench.pass(7_000_000);
        bench.idle(ENGINE, GPU, 1, 0);
        bench.pass(2_200_000);
        bench.answer_all();
        let breathes = bench.held.values().all(|held| held.1);
        turns += u32::from(breathes);
        assert!(!breathes || round >= 91, "not before max_gated");
        bench.pass(1_800_000);
        bench.answer_all();
        assert!(bench.held.values().all(|held| !held.1), "the turn ends");
    }
    assert_eq!(turns, 1);
}
