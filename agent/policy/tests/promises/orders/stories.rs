//! Orders, one case at a time.

use super::{COOLDOWN, GPUS, Op, apply, config};
use crate::bench::Bench;
use std::time::Duration;
use tidegate_policy::config::{Config, Cooldown, OnMaxGated, Suspects};
use tidegate_policy::effect::{Effect, Look, Report};
use tidegate_policy::event::{Event, Standing};
use tidegate_policy::ids::{Channels, GpuId, GpuSet, JobId, SessionId};
use tidegate_policy::view::{GateState, JobState};

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

/// P-FAIR-9: a job whose channels cannot be disabled any more is given up, and the others go on taking turns.
#[test]
fn a_job_that_can_be_neither_disabled_nor_enabled_is_given_up_and_tried_on() {
    let mut bench = running(config());
    bench.busy(ENGINE, GPU);
    let retries = config().disable_retries;
    // The first GPU is lost: it takes no call.
    let mut tries = 0;
    while bench.node.job(JOB).map(|job| job.state) != Some(JobState::Unmanaged) {
        assert!(tries <= 2 * retries, "given up after {tries} tries");
        tries += u32::from(!bench.issued[GPU.index()].is_empty());
        bench.answer(GPU, true);
        (1..GPUS).for_each(|gpu| bench.answer(GpuId(gpu), false));
        bench.pass(10_000_000);
    }
    assert_eq!(tries, 1 + retries + 1, "a disable, and its enables");
    assert!(bench.reports.contains(&Report::Unmanaged { job: JOB }));
    // It is enabled as soon as the GPU takes it.
    bench.pass(1_000_000_000);
    bench.answer_all();
    assert!(bench.held.values().all(|held| held.1));
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
    assert_eq!(bench.never_on(), []);
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

/// P-OPERATE-22: what is said of a job before it is there holds from its first step on, and for it alone.
#[test]
fn a_job_that_was_steered_before_it_came_obeys_from_its_first_step() {
    let (paused, free) = (JobId(3), JobId(4));
    let state = |bench: &Bench, job| bench.node.job(job).map(|view| view.paused);
    for all in [false, true] {
        let mut bench = Bench::new(config(), GPUS);
        if all {
            bench.send(Event::Pause { job: None });
            bench.send(Event::Resume { job: Some(free) });
        } else {
            bench.send(Event::Pause { job: Some(paused) });
        }
        bench.pass(10 * COOLDOWN);
        bench.attach_offline(BATCH, paused, GpuSet::first(1));
        bench.attach_offline(SessionId(11), free, GpuSet::first(1));
        bench.pass(10 * COOLDOWN);
        bench.answer_all();
        let enables = |effect: &Effect, job| matches!(effect, Effect::Enable { order, .. } if order.job == job);
        let seen = |job| bench.effects.iter().any(|(_, effect)| enables(effect, job));
        assert_eq!(state(&bench, paused), Some(true));
        assert!(seen(free) && !seen(paused), "{all}: {:?}", bench.effects);
        bench.send(Event::Resume { job: Some(paused) });
        bench.pass(10 * COOLDOWN);
        bench.answer_all();
        assert_eq!(state(&bench, paused), Some(false));
    }
}
