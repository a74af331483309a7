//! All GPUs of a node are enabled, and an edge comes in the middle of it.
//!
//! Judged by the calls that reach the GPUs, each of which the driver makes before the next, whichever GPU it names.

mod rig;

use rig::Rig;
use tidegate_node::kinds::Role;

const GPUS: usize = 4;

/// Tasks that wait for the GPUs' threads.
fn handed_on(rig: &mut Rig) -> usize {
    rig.gpus.iter_mut().map(rig::Played::waiting).sum()
}

fn enabled(rig: &Rig, offline: u64) -> usize {
    (0..GPUS).filter(|gpu| rig.is_on(offline, *gpu)).count()
}

fn turn(rig: &mut Rig) {
    rig.shell.wake();
    rig.shell.rest();
}

/// Online is idle again, a job of all GPUs is disabled on each, and the shell has decided to enable it.
fn opening() -> (Rig, u64, u64) {
    let mut rig = Rig::new(GPUS, Rig::without_waits());
    let online = rig.attach(Role::Online, "");
    let offline = rig.attach(Role::Offline, "job");
    rig.pass(1_000_000);
    rig.edge(online, 0, true, 10);
    rig.rest();
    assert_eq!(enabled(&rig, offline), 0);
    rig.pass(1_000_000);
    rig.edge(online, 0, false, 10);
    rig.pass(1_000_000);
    rig.probe();
    turn(&mut rig);
    (rig, online, offline)
}

/// P-GATE-20: enables are handed to the driver one after the other, and all are made.
#[test]
fn a_node_is_enabled_one_call_at_a_time() {
    let (mut rig, _, offline) = opening();
    for before in 0..GPUS {
        assert_eq!(enabled(&rig, offline), before);
        assert_eq!(handed_on(&mut rig), 1, "with {before} GPUs enabled");
        assert!(rig.answer_one());
        turn(&mut rig);
    }
    rig.rest();
    assert_eq!(enabled(&rig, offline), GPUS);
    assert_eq!(handed_on(&mut rig), 0);
}

/// P-GATE-20: an edge waits for no enable but the one that the driver has, and for no disable that changes nothing.
#[test]
fn an_edge_in_the_middle_of_it_finds_one_enable_under_way() {
    for answered in 0..GPUS {
        let (mut rig, online, offline) = opening();
        for _ in 0..answered {
            assert!(rig.answer_one());
            turn(&mut rig);
        }
        for gpu in &mut rig.gpus {
            gpu.orders.clear();
        }
        rig.edge(online, 0, true, 10);
        rig.rest();
        assert_eq!(enabled(&rig, offline), 0);
        let orders = rig.gpus.iter().flat_map(|gpu| &gpu.orders);
        let enables = orders.filter(|(_, switch)| !switch.disables()).count();
        assert_eq!(enables, 1, "after {answered} answers");
        let orders = rig.gpus.iter().flat_map(|gpu| &gpu.orders);
        let disables = orders.filter(|(_, switch)| switch.disables()).count();
        assert_eq!(disables, answered + 1, "after {answered} answers");
        for gpu in &rig.gpus {
            assert!(gpu.orders.is_sorted_by_key(|(generation, _)| *generation));
        }
        // Nothing of it is left over for the next time.
        rig.pass(1_000_000);
        rig.edge(online, 0, false, 10);
        rig.pass(1_000_000);
        rig.probe();
        rig.rest();
        assert_eq!(enabled(&rig, offline), GPUS, "after {answered} answers");
    }
}

/// P-GATE-20: nothing is believed to be disabled still once processes may have enabled it by themselves.
#[test]
fn an_agent_that_was_stopped_disables_what_it_believes_disabled() {
    let (mut rig, online, offline) = opening();
    for gpu in &mut rig.gpus {
        gpu.orders.clear();
    }
    // Longer than a process waits for a sign of life.
    rig.pass(2_000_000_000);
    for gpu in &mut rig.gpus {
        gpu.disabled.clear();
    }
    rig.edge(online, 0, true, 10);
    rig.rest();
    assert_eq!(enabled(&rig, offline), 0);
    for gpu in &rig.gpus {
        assert!(gpu.orders.iter().any(|(_, switch)| switch.disables()));
    }
}

/// P-GATE-20: a GPU whose driver does not return keeps no other from being enabled for longer than it takes to tell.
#[test]
fn a_stalled_gpu_does_not_keep_the_others_closed() {
    let mut rig = Rig::new(GPUS, Rig::without_waits());
    let online = rig.attach(Role::Online, "");
    let jobs: Vec<u64> = (0..GPUS)
        .map(|gpu| {
            rig.uses = vec![gpu];
            rig.attach(Role::Offline, &format!("job-{gpu}"))
        })
        .collect();
    let on = |rig: &Rig| {
        let of = jobs.iter().enumerate();
        of.filter(|(gpu, job)| rig.is_on(**job, *gpu)).count()
    };
    let period = |rig: &mut Rig| {
        rig.pass(1_000_000);
        (0..GPUS).for_each(|gpu| rig.edge(online, gpu, true, 10));
        rig.rest();
        rig.pass(1_000_000);
        (0..GPUS).for_each(|gpu| rig.edge(online, gpu, false, 10));
        rig.pass(1_000_000);
        rig.probe();
    };
    period(&mut rig);
    turn(&mut rig);
    let stalled = rig.gpus.iter_mut().position(|gpu| gpu.waiting() == 1);
    let stalled = stalled.expect("one is under way");
    rig.gpus[stalled].stands = true;
    rig.rest();
    assert_eq!(on(&rig), 0);
    rig.pass(50_000_000);
    rig.probe();
    rig.rest();
    assert_eq!(on(&rig), GPUS - 1);
    // Now it is known, and nobody waits for it.
    period(&mut rig);
    rig.rest();
    assert_eq!(on(&rig), GPUS - 1);
    rig.gpus[stalled].stands = false;
    rig.rest();
    assert_eq!(on(&rig), GPUS);
}

/// P-GATE-20: an agent that ends leaves nothing disabled that waited for its turn.
#[test]
fn the_end_enables_what_waits() {
    let (mut rig, _, offline) = opening();
    rig.shell.take(tidegate_node::Input::Stop);
    rig.rest();
    assert_eq!(enabled(&rig, offline), GPUS);
    assert!(rig.shell.has_ended());
}

/// P-GATE-20: a process that ends while its channels wait leaves nothing of them to others.
#[test]
fn who_leaves_while_it_waits_is_in_no_call() {
    let (mut rig, _, offline) = opening();
    let other = rig.attach(Role::Offline, "other");
    rig.exit(offline);
    rig.rest();
    assert_eq!(enabled(&rig, other), GPUS);
    for gpu in &rig.gpus {
        assert!(gpu.disabled.is_empty(), "{:?}", gpu.disabled);
    }
}
