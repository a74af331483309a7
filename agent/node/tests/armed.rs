//! Issue threads that disable for an edge without being told, and the shell that hears of it later, on a node of two
//! GPUs.
//!
//! Judged by what reaches the GPUs: the shell adds no call to what a thread did for an edge that is one, and takes back
//! what it did for none.

mod rig;

use core::time::Duration;
use rig::Rig;
use tidegate_node::Input;
use tidegate_node::kinds::Role;
use tidegate_policy::config::{Config, Cooldown};
use tidegate_policy::event::Event;

/// An online process and a job on both GPUs, enabled by order: what runs from then on is armed.
fn armed() -> (Rig, u64, u64) {
    let mut rig = Rig::new(2, Rig::without_waits());
    let online = rig.attach(Role::Online, "");
    let offline = rig.attach(Role::Offline, "job");
    rig.pass(1_000_000);
    edge(&mut rig, online, true);
    assert!(!rig.is_on(offline, 0));
    edge(&mut rig, online, false);
    assert!(rig.is_on(offline, 0) && rig.is_on(offline, 1));
    (rig, online, offline)
}

fn edge(rig: &mut Rig, online: u64, busy: bool) {
    rig.edge(online, 0, busy, 10);
    rig.rest();
    rig.pass(1_000_000);
    rig.probe();
    rig.rest();
}

fn calls(rig: &Rig) -> u64 {
    rig.gpus.iter().map(|gpu| gpu.calls).sum()
}

fn preempted(rig: &Rig) -> usize {
    let told = rig.told.kinds();
    told.iter().filter(|kind| **kind == "preempted").count()
}

/// P-GATE-19: a thread disables for an edge before the shell has heard of it, and the shell's order finds that done.
#[test]
fn an_edge_is_acted_on_by_every_gpus_thread_and_once() {
    let (mut rig, online, offline) = armed();
    for round in 0..3 {
        let (before, told) = (calls(&rig), preempted(&rig));
        rig.edge(online, 0, true, 10);
        assert_eq!(
            rig.look(),
            2,
            "round {round}: a gang is stopped on all GPUs"
        );
        assert!(!rig.is_on(offline, 0) && !rig.is_on(offline, 1));
        assert_eq!(calls(&rig) - before, 2);
        rig.rest();
        assert_eq!(calls(&rig) - before, 2, "round {round}: disabled twice");
        assert_eq!(preempted(&rig) - told, 1, "round {round}");
        assert_eq!(rig.look(), 0);
        edge(&mut rig, online, false);
        assert!(rig.is_on(offline, 0) && rig.is_on(offline, 1));
    }
}

/// P-GATE-19: whoever hears of the edge first, the other adds nothing.
#[test]
fn an_edge_that_the_shell_hears_of_first_is_not_acted_on_again() {
    let (mut rig, online, offline) = armed();
    let before = calls(&rig);
    rig.edge(online, 0, true, 10);
    rig.shell.wake();
    assert_eq!(rig.look(), 0);
    assert!(rig.is_on(offline, 0), "the order waits in the queue");
    rig.rest();
    assert!(!rig.is_on(offline, 0));
    assert_eq!((calls(&rig) - before, rig.look()), (2, 0));
}

/// P-GATE-19: what was disabled for no edge is enabled again, and that happens once.
#[test]
fn a_word_that_is_no_edge_costs_offline_one_call() {
    let (mut rig, online, offline) = armed();
    rig.forge(online, 0, true);
    assert_eq!(rig.look(), 2);
    rig.forge(online, 0, false);
    let told = preempted(&rig);
    rig.rest();
    assert!(rig.is_on(offline, 0) && rig.is_on(offline, 1));
    assert_eq!(preempted(&rig), told);
    rig.forge(online, 0, true);
    assert_eq!(rig.look(), 0, "a liar is not acted on again");
    rig.forge(online, 0, false);
    edge(&mut rig, online, true);
    assert!(!rig.is_on(offline, 0));
    edge(&mut rig, online, false);
    rig.edge(online, 0, true, 10);
    assert_eq!(rig.look(), 2, "an edge that was one arms anew");
}

/// P-GATE-19: a period that was over when the shell read it is one, the first of a process too.
#[test]
fn the_first_work_of_a_process_is_an_edge_even_if_it_is_over() {
    let config = Config {
        cooldown: Cooldown::Fixed(Duration::from_millis(10)),
        ..Rig::without_waits()
    };
    let mut rig = Rig::new(2, config);
    let offline = rig.attach(Role::Offline, "job");
    let online = rig.attach(Role::Online, "");
    rig.pass(20_000_000);
    rig.rest();
    rig.shell.steer(Some(Event::Pause { job: None }));
    rig.rest();
    rig.shell.steer(Some(Event::Resume { job: None }));
    rig.rest();
    assert!(rig.is_on(offline, 0), "enabled by order");
    let told = preempted(&rig);
    rig.pass(1_000_000);
    rig.edge(online, 0, true, 10);
    assert_eq!(rig.look(), 2);
    rig.pass(10_000);
    rig.edge(online, 0, false, 10);
    // The threads' words come before the shell has read a doorbell.
    while rig.answer() {}
    rig.rest();
    assert_eq!(preempted(&rig) - told, 1, "it is told of");
    assert_eq!(rig.shell.counters().strayed, 0);
}

/// P-GATE-19: nothing is acted on that the operator has paused, or that waits for another reason.
#[test]
fn a_job_that_is_not_to_run_is_not_armed() {
    let (mut rig, online, offline) = armed();
    rig.shell.steer(Some(Event::Pause { job: None }));
    rig.edge(online, 0, true, 10);
    assert_eq!(rig.look(), 0);
    rig.rest();
    assert!(!rig.is_on(offline, 0));
}

/// P-GATE-19: a process that goes away leaves no channel disabled, whoever acted on it last.
#[test]
fn a_channel_that_leaves_is_enabled_although_nobody_ordered_it_disabled() {
    let (mut rig, online, offline) = armed();
    rig.edge(online, 0, true, 10);
    assert_eq!(rig.look(), 2);
    rig.exit(offline);
    assert!(rig.gpus.iter().all(|gpu| gpu.disabled.is_empty()));
}

/// P-GATE-19: a process that is gone is in no call.
#[test]
fn an_order_is_not_acted_on_once_a_process_that_it_names_is_gone() {
    let (mut rig, online, offline) = armed();
    rig.exit(offline);
    for gpu in &rig.gpus {
        assert_eq!(gpu.arms.held(), 0, "the files of who left are held");
    }
    rig.edge(online, 0, true, 10);
    assert_eq!(rig.look(), 0);
    assert!(rig.gpus.iter().all(|gpu| gpu.disabled.is_empty()));
}

/// P-GATE-19: nor is the word of an online process that is gone.
#[test]
fn whoever_left_is_not_listened_to() {
    let (mut rig, online, offline) = armed();
    rig.exit(online);
    rig.forge(online, 0, true);
    assert_eq!(rig.look(), 0);
    assert!(rig.is_on(offline, 0));
}

/// P-GATE-19: an agent that ends enables what a thread disabled a moment before.
#[test]
fn the_end_finds_what_was_done_unasked() {
    let (mut rig, online, offline) = armed();
    rig.edge(online, 0, true, 10);
    assert_eq!(rig.look(), 2);
    rig.shell.take(Input::Stop);
    while rig.answer() {}
    assert!(rig.is_on(offline, 0) && rig.is_on(offline, 1));
    assert!(rig.shell.has_ended());
}
