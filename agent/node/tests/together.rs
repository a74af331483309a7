//! A job of several processes on one GPU, whose channels go to the driver together.
//!
//! Judged by the calls that the GPU's thread makes, on a driver that may not take them.

mod rig;

use rig::{Rig, client};
use tidegate_node::kinds::Role;

const PROCESSES: usize = 8;

/// An online program that works, and a job of [`PROCESSES`] whose channels run.
fn node() -> (Rig, u64, Vec<u64>) {
    let mut rig = Rig::new(1, Rig::without_waits());
    let online = rig.attach(Role::Online, "");
    let job = (0..PROCESSES).map(|_| rig.attach(Role::Offline, "job"));
    let job = job.collect();
    rig.pass(1_000_000);
    rig.rest();
    (rig, online, job)
}

fn on(rig: &Rig, job: &[u64]) -> Vec<u64> {
    let all = job.iter().copied();
    all.filter(|process| rig.is_on(*process, 0)).collect()
}

/// Calls from a busy edge to the next rest.
fn busy(rig: &mut Rig, online: u64) -> u64 {
    let before = rig.gpus[0].calls;
    rig.edge(online, 0, true, 10);
    rig.rest();
    rig.gpus[0].calls - before
}

/// Likewise from an idle edge.
fn idle(rig: &mut Rig, online: u64) -> u64 {
    let before = rig.gpus[0].calls;
    rig.pass(1_000_000);
    rig.edge(online, 0, false, 10);
    for _ in 0..4 {
        rig.pass(1_000_000);
        rig.probe();
        rig.rest();
    }
    rig.gpus[0].calls - before
}

/// P-GATE-21: an edge stops all processes of a job by one call, and the next pause lets them run by one.
#[test]
fn a_job_is_stopped_by_one_call_whatever_its_processes() {
    let (mut rig, online, job) = node();
    assert_eq!(on(&rig, &job), job);
    for _ in 0..3 {
        assert_eq!(busy(&mut rig, online), 1);
        assert!(on(&rig, &job).is_empty());
        assert_eq!(idle(&mut rig, online), 1);
        assert_eq!(on(&rig, &job), job);
    }
}

/// P-GATE-21: a process whose channels the driver does not know keeps none of the others enabled.
#[test]
fn a_refused_process_keeps_no_other_enabled() {
    for stranger in 0..PROCESSES {
        let (mut rig, online, job) = node();
        rig.gpus[0].unknown.insert(client(job[stranger]));
        busy(&mut rig, online);
        let calls = &rig.gpus[0].calls;
        assert!(*calls > 1, "{calls} calls");
        let never: Vec<u64> = job
            .iter()
            .copied()
            .filter(|process| !rig.gpus[0].ever_disabled.contains(&client(*process)))
            .collect();
        assert_eq!(never, [job[stranger]]);
    }
}

/// P-GATE-21: a driver that takes calls for one process only is asked for several once; nobody is late for it again, and
/// nothing stays disabled.
#[test]
fn a_driver_that_takes_one_process_a_call_is_given_such() {
    let (mut rig, online, job) = node();
    rig.gpus[0].takes_one_client = true;
    let processes = PROCESSES as u64;
    assert_eq!(busy(&mut rig, online), processes + 1);
    assert!(on(&rig, &job).is_empty());
    for times in [2, 1, 1] {
        // Of none is known whether the refused call has reached it.
        assert_eq!(idle(&mut rig, online), times * processes);
        assert_eq!(on(&rig, &job), job);
        assert_eq!(busy(&mut rig, online), processes);
        assert!(on(&rig, &job).is_empty());
    }
    // One that comes later is among them.
    idle(&mut rig, online);
    let late = rig.attach(Role::Offline, "job");
    assert_eq!(busy(&mut rig, online), processes + 1);
    assert!(!rig.is_on(late, 0));
}

/// P-GATE-21: what the thread does for an edge without being told is done and learnt likewise.
#[test]
fn an_armed_order_goes_on_by_process_too() {
    let (mut rig, online, job) = node();
    busy(&mut rig, online);
    idle(&mut rig, online);
    rig.gpus[0].takes_one_client = true;
    rig.edge(online, 0, true, 10);
    assert_eq!(rig.look(), 1);
    assert!(on(&rig, &job).is_empty());
    rig.rest();
    assert!(on(&rig, &job).is_empty());
    assert_eq!(idle(&mut rig, online), 2 * PROCESSES as u64);
    assert_eq!(on(&rig, &job), job);
    assert_eq!(busy(&mut rig, online), PROCESSES as u64);
}

/// P-GATE-21: firmware counts what a refused call had done by then, and so does the journal: each process is enabled as often
/// as it was disabled, and from then on once.
#[test]
fn what_a_refused_call_has_done_is_made_good() {
    let (mut rig, online, job) = node();
    rig.gpus[0].takes_one_client = true;
    rig.gpus[0].refuses_late = true;
    let processes = PROCESSES as u64;
    assert_eq!(busy(&mut rig, online), processes + 1);
    let times = |rig: &Rig| rig.gpus[0].disabled.values().copied().collect::<Vec<_>>();
    assert_eq!(times(&rig), [2, 1, 1, 1, 1, 1, 1, 1]);
    // Of none is known whether the call had reached it.
    assert_eq!(idle(&mut rig, online), 2 * processes);
    assert_eq!(times(&rig), []);
    for _ in 0..3 {
        assert_eq!(busy(&mut rig, online), processes);
        assert_eq!(times(&rig), [1; PROCESSES]);
        assert_eq!(idle(&mut rig, online), processes);
        assert_eq!(on(&rig, &job), job);
    }
}

/// P-GATE-21: nor does anything stay disabled of a job that is given up, where one process is refused in every call.
#[test]
fn a_process_that_is_always_refused_leaves_nothing_disabled() {
    for stranger in 0..PROCESSES {
        let (mut rig, online, job) = node();
        rig.gpus[0].refuses_late = true;
        rig.gpus[0].unknown.insert(client(job[stranger]));
        busy(&mut rig, online);
        let ever = rig.gpus[0].ever_disabled.len();
        assert_eq!(ever, PROCESSES - 1);
        assert!(
            rig.gpus[0].disabled.is_empty(),
            "{stranger}: {:?}",
            rig.gpus[0].disabled
        );
    }
}

/// P-GATE-21: of several processes only what may run is named, each disable is made good, and who joins a stopped job is
/// stopped alone.
#[test]
fn who_joins_a_stopped_job_is_stopped_alone() {
    let (mut rig, online, mut job) = node();
    assert_eq!(busy(&mut rig, online), 1);
    job.push(rig.attach(Role::Offline, "job"));
    rig.rest();
    assert_eq!(
        rig.gpus[0].disabled.values().copied().collect::<Vec<_>>(),
        [1; PROCESSES + 1]
    );
    assert_eq!(idle(&mut rig, online), 1);
    assert_eq!(on(&rig, &job), job);
}
