//! Offline work stops when online work begins and resumes, exactly, after a cooldown.

use tidegate_tests::view::status;
use tidegate_tests::{Node, Offline, Online, TRUSTING, personality, wait_for, watch};
use tidegate_vgpu::control::Control;
use tidegate_vgpu::history::{self, Kind, Record};
use tidegate_vgpu::personality::Personality;

/// The engine that runs kernels, as the history names it.
const GRAPHICS: u64 = tidegate_abi::class::ENGINE_TYPE_GR0 as u64;

fn history(node: &Node) -> Vec<Record> {
    history::read(&node.vgpu_dir()).expect("the device keeps a history")
}

/// Records of one process of one kind.
fn of(records: &[Record], pid: u32, kind: Kind) -> Vec<Record> {
    records
        .iter()
        .filter(|r| r.pid == pid && r.kind == kind)
        .copied()
        .collect()
}

/// Offline stops for the `kernels` that `commands` have online launch behind a hold, and resumes a cooldown
/// after the last of them ended on the device. Where the firmware lets a kernel that runs go on to its end,
/// it is stopped from that end on: the device's history says when that was.
#[track_caller]
fn offline_stops_for(node: &Node, commands: &[&str], kernels: usize) {
    let mut offline = Offline::start(node, 5_000_000, &[0]);
    offline.running();
    let pid = offline.process.pid();
    let mut online = Online::start(node, 0);
    // A process that has just attached counts as busy: its own edge comes first, and status is a moment old when
    // it is read.
    let begun = wait_for("a moment at which nothing is disabled", || {
        watch::wait_open(node, 0, online.process.pid());
        let begun = tidegate_tests::monotonic_ns();
        let channels = watch::channels(node, &[pid]);
        let mut disabled = channels.iter().filter(|channel| channel.disabled);
        disabled.next().is_none().then_some(begun)
    });
    for command in commands {
        online.say(command);
    }
    let worker = online.process.pid();

    // The burst's busy edge disables every channel of the offline program.
    let stopped = wait_for("the disables in the device's history", || {
        let records = history(node);
        let last = |up: Record| {
            let mut ends = of(&records, pid, Kind::DisableEnd).into_iter();
            ends.find(|r| r.at_ns > begun && (r.client, r.object) == (up.client, up.object))
        };
        let all: Option<Vec<Record>> = of(&records, pid, Kind::ChannelUp)
            .into_iter()
            .map(last)
            .collect();
        all?.into_iter().max_by_key(|r| r.at_ns)
    });
    online.say("release");
    let enabled = wait_for("the enable after the cooldown", || {
        of(&history(node), pid, Kind::EnableEnd)
            .into_iter()
            .find(|r| r.at_ns > stopped.at_ns)
    });
    // By the device's time: the program may learn of its end long after it.
    let done = wait_for("the end of the online work", || {
        let ended = of(&history(node), worker, Kind::KernelEnd);
        (ended.len() >= kernels).then(|| ended.last().map(|r| r.at_ns))?
    });
    assert!(
        enabled.at_ns >= done + 20_000_000,
        "woken at {}, before a cooldown after {done}",
        enabled.at_ns
    );
    // What late wakes are dated by: the agent had read the clock, looked, and read it again before the call.
    if enabled.caller != pid {
        assert!(
            enabled.tag >= done && enabled.tag <= enabled.value,
            "the caller of {enabled:?} had read the clock before {done}, or not at all"
        );
    }
    // Nothing of it ran in between.
    let ran: Vec<Record> = of(&history(node), pid, Kind::TsgRun)
        .into_iter()
        .filter(|r| r.value == GRAPHICS && r.at_ns > stopped.at_ns && r.at_ns < enabled.at_ns)
        .collect();
    assert!(
        ran.is_empty(),
        "offline ran while its channels were disabled: {ran:?}"
    );
    wait_for("offline work after the enable", || {
        of(&history(node), pid, Kind::KernelEnd)
            .into_iter()
            .find(|r| r.at_ns > enabled.at_ns)
    });
    // Each kernel that began finished, and counted once.
    let counted = offline.stop();
    let records = history(node);
    let ended = of(&records, pid, Kind::KernelEnd).len() as u64;
    assert_eq!(counted, ended, "kernels lost or run twice by a preemption");
}

const COOLDOWN: &str = "[gate]\ncooldown = \"20ms\"\n";

fn plain() -> Node {
    Node::new(&["--gpus", "1"], &format!("{TRUSTING}\n{COOLDOWN}"))
}

/// P-GATE-1: a busy edge stops offline, a cooldown wakes it.
#[test]
fn offline_stops_for_a_burst_and_resumes_where_it_was() {
    offline_stops_for(&plain(), &["hold", "launch 20 3000000"], 21);
}

/// P-GATE-1: a busy edge stops offline, a cooldown wakes it.
#[test]
fn work_on_a_stream_that_was_destroyed_under_it_keeps_offline_stopped_to_its_end() {
    offline_stops_for(&plain(), &["orphan"], 1);
}

/// Gated by the agent's own calls, whoever knows the driver's layouts.
#[track_caller]
fn offline_stops_on_driver(version: &str, layout: &str) {
    let mut node = Node::device_only(&["--gpus", "1", "--driver", version]);
    node.self_test = "full";
    node.start_agent(&format!("{TRUSTING}\n{COOLDOWN}"));
    let seen = status(&node);
    assert_eq!(seen["level"], "l1_agent", "{version}: {seen}");
    assert_eq!(seen["driver"]["layout"], layout, "{version}");
    let note = seen["level_note"].as_str().expect("a text");
    let said = note == "unknown branch, by what it answered";
    assert_eq!(said, layout == "by answers", "{version}: {note}");
    offline_stops_for(&node, &["hold", "launch 20 3000000"], 21);
}

/// P-GATE-23: a branch that nobody has read is controlled by what it answered.
#[test]
fn offline_stops_on_branch_610() {
    offline_stops_on_driver("610.57.04", "known");
}

/// P-GATE-23: a branch that nobody has read is controlled by what it answered.
#[test]
fn offline_stops_on_branch_615_whose_groups_two_sources_describe_differently() {
    offline_stops_on_driver("615.71.09", "by answers");
}

/// P-GATE-23: a branch that nobody has read is controlled by what it answered.
#[test]
fn offline_stops_on_a_driver_that_nobody_has_written_yet() {
    for invented in ["999.01", "999.77"] {
        offline_stops_on_driver(invented, "by answers");
    }
}

/// By the method that the self-test finds there (`selftest.rs`).
fn on(personality: Personality) -> Node {
    let config = format!("{TRUSTING}\n{COOLDOWN}{}", personality::forced(personality));
    Node::new(&["--personality", personality.name()], &config)
}

#[track_caller]
fn offline_stops_on(personality: Personality) {
    let node = on(personality);
    offline_stops_for(&node, &["hold", "launch 20 3000000"], 21);
}

/// P-GATE-8: a level and a method are used only if they stop work.
#[test]
fn offline_stops_on_firmware_that_needs_a_restart_of_the_runlist() {
    offline_stops_on(Personality::Restart);
}

/// P-GATE-8: a level and a method are used only if they stop work.
#[test]
fn offline_stops_on_firmware_that_needs_a_preemption() {
    offline_stops_on(Personality::Preempt);
}

/// The job's library carries the method out.
#[track_caller]
fn offline_stops_itself_on(personality: Personality, method: &str) {
    let channel = format!("[channel]\nlevel = \"L3\"\nmethod = \"{method}\"\n");
    let config = format!("{TRUSTING}\n{COOLDOWN}{channel}");
    let node = Node::new(&["--personality", personality.name()], &config);
    offline_stops_for(&node, &["hold", "launch 20 3000000"], 21);
}

/// P-GATE-8: a level and a method are used only if they stop work.
#[test]
fn a_job_restarts_its_runlists_itself_where_it_is_told_to() {
    offline_stops_itself_on(Personality::Restart, "disable+restart");
}

/// P-GATE-8: a level and a method are used only if they stop work.
#[test]
fn a_job_preempts_its_groups_itself_where_it_is_told_to() {
    offline_stops_itself_on(Personality::Preempt, "preempt");
}

/// P-GATE-26: on several GPUs preemptions side by side come before the disables in a row.
#[test]
fn a_job_preempts_its_groups_itself_before_its_disables_where_it_is_told_to() {
    offline_stops_itself_on(Personality::Evicts, "preempt+disable");
}

/// P-GATE-26: on several GPUs preemptions side by side come before the disables in a row.
#[test]
fn each_gpu_of_a_job_is_preempted_before_it_is_disabled_and_none_before_an_enable() {
    const GPUS: u32 = 8;
    let channel = "[channel]\nmethod = \"preempt+disable\"\n";
    let node = Node::new(
        &["--gpus", "8"],
        &format!("{TRUSTING}\n{COOLDOWN}{channel}"),
    );
    let ranks: Vec<Offline> = (0..GPUS as usize)
        .map(|gpu| {
            let mut rank = Offline::start(&node, 5_000_000, &[gpu]);
            rank.running();
            rank
        })
        .collect();
    let pids: Vec<u32> = ranks.iter().map(|rank| rank.process.pid()).collect();
    let mut online = Online::start(&node, 0);
    watch::wait_open(&node, 0, online.process.pid());
    watch::wait_all(&node, &pids, false);
    let begun = tidegate_tests::monotonic_ns();
    online.say("hold");
    watch::wait_all(&node, &pids, true);
    let stopped = tidegate_tests::monotonic_ns();
    let agent = node.agent.as_ref().expect("it runs").pid();
    // By the instants at which the agent entered its calls.
    let entered = |kind, gpu| -> Vec<u64> {
        let records = history(&node);
        let own = |r: &&Record| (r.kind, r.gpu, r.caller) == (kind, gpu, agent);
        let calls = records.iter().filter(own).map(|r| r.value);
        calls.filter(|at| *at > begun).collect()
    };
    for gpu in 0..GPUS {
        let (preempts, disables) = (
            entered(Kind::Preempt, gpu),
            entered(Kind::DisableBegin, gpu),
        );
        assert_eq!(preempts.len(), 1, "GPU {gpu}: {preempts:?}");
        assert!(
            disables.iter().all(|at| *at > preempts[0]),
            "GPU {gpu}: {preempts:?}, {disables:?}"
        );
    }
    online.say("release");
    watch::wait_all(&node, &pids, false);
    for gpu in 0..GPUS {
        let later = entered(Kind::Preempt, gpu).into_iter();
        assert_eq!(later.filter(|at| *at > stopped).count(), 0, "GPU {gpu}");
    }
}

/// Calls that restart the runlist of kernels, by `caller`, in order.
fn restarts(node: &Node, caller: u32) -> Vec<u64> {
    let records = history(node);
    let own = |r: &&Record| r.kind == Kind::Restart && r.caller == caller && r.tag == GRAPHICS;
    records.iter().filter(own).map(|r| r.at_ns).collect()
}

/// Once after the last disable, once after the enable; and by whoever enables what a dead agent left.
/// P-GATE-8: a level and a method are used only if they stop work.
#[test]
fn a_runlist_is_restarted_once_an_order_and_by_who_lands_softly() {
    let mut node = on(Personality::Restart);
    let agent = node.agent.as_ref().expect("it runs").pid();
    let mut offline = Offline::start(&node, 5_000_000, &[0]);
    offline.running();
    let pid = offline.process.pid();
    let mut online = Online::start(&node, 0);
    watch::wait_open(&node, 0, online.process.pid());
    let before = restarts(&node, agent).len();
    let begun = tidegate_tests::monotonic_ns();
    online.say("hold");
    let channels = watch::wait_all(&node, &[pid], true);
    wait_for("the restart after the disables", || {
        let off = of(&history(&node), pid, Kind::DisableEnd)
            .last()
            .map(|r| r.at_ns)?;
        let made = restarts(&node, agent);
        (made.len() > before && made[before] <= off).then_some(())
    });
    let calls: std::collections::BTreeSet<u64> = of(&history(&node), pid, Kind::DisableBegin)
        .iter()
        .filter(|r| r.at_ns > begun)
        .map(|r| r.value)
        .collect();
    let orders = calls.len() / channels.div_ceil(tidegate_abi::rm::MAX_PAIRS);
    assert_eq!(restarts(&node, agent).len() - before, orders);
    let lost = tidegate_tests::monotonic_ns();
    drop(node.agent.take());
    watch::wait_all(&node, &[pid], false);
    wait_for("the restart by the job itself", || {
        let enabled = of(&history(&node), pid, Kind::EnableEnd);
        let enabled = enabled.into_iter().find(|r| r.at_ns > lost)?;
        let made = restarts(&node, pid);
        made.into_iter().find(|at| *at >= enabled.at_ns)
    });
    online.say("release");
}

/// P-GATE-8: a level and a method are used only if they stop work.
#[test]
fn offline_stops_on_firmware_that_refuses_foreign_pairs() {
    offline_stops_on(Personality::RefusesForeign);
}

/// P-GATE-8: a level and a method are used only if they stop work.
#[test]
fn offline_stops_on_firmware_that_refuses_a_restart() {
    offline_stops_on(Personality::RefusesRestart);
}

/// P-GATE-8: a level and a method are used only if they stop work.
#[test]
fn offline_stops_at_the_end_of_its_kernel_on_firmware_that_waits_for_it() {
    offline_stops_on(Personality::KernelEnd);
}

/// No call stops anything there, so what is queued runs out, and no launch passes while online is busy.
/// P-GATE-8: a level and a method are used only if they stop work.
#[test]
fn offline_launches_nothing_beside_online_on_firmware_that_is_deaf() {
    let node = on(Personality::Deaf);
    let mut offline = Offline::start(&node, 5_000_000, &[0]);
    offline.running();
    let pid = offline.process.pid();
    let mut online = Online::start(&node, 0);
    watch::wait_open(&node, 0, online.process.pid());
    online.say("hold");
    online.say("launch 20 3000000");
    let device = Control::connect(&node.vgpu_dir()).expect("the device listens");
    wait_for("its queue to run out", || {
        let channels = device.channels().expect("the device answers");
        let mut own = channels.iter().filter(|channel| channel.pid == pid);
        own.all(|channel| channel.queued == 0).then_some(())
    });
    let ran = of(&history(&node), pid, Kind::KernelEnd).len();
    online.say("release");
    wait_for("offline work after the cooldown", || {
        (of(&history(&node), pid, Kind::KernelEnd).len() > ran).then_some(())
    });
    let counted = offline.stop();
    let records = history(&node);
    assert_eq!(counted, of(&records, pid, Kind::KernelEnd).len() as u64);
    assert!(of(&records, pid, Kind::Fault).is_empty());
}

/// P-GATE-3: an engine that launches a decode step before it has read the one before is never idle within a request, and
/// of each request its library is seen idle once, at the end. What it counts of the steps shortens the cooldown.
#[test]
fn an_engine_that_is_never_idle_within_a_request_shortens_its_cooldown_too() {
    let node = Node::new(&["--gpus", "1"], TRUSTING);
    let mut online = Online::start(&node, 0);
    let mut requests = 0;
    let cooldown = wait_for("a cooldown of more steps than requests", || {
        online.send("ahead 60 2000000");
        online.answer_fields();
        requests += 1;
        let gpu = &status(&node)["gpus"][0];
        let gaps = gpu["decode_gaps"].as_u64()?;
        // A step that comes late leaves the device idle, and may be seen.
        let many = gaps > 128 && gaps > 10 * requests;
        many.then(|| gpu["cooldown_ns"].as_u64()).flatten()
    });
    assert!(
        (2_000_000..200_000_000).contains(&cooldown),
        "{cooldown} ns after {requests} requests"
    );
}

/// P-GATE-18: an engine that says that a request came has the GPU before its first kernel, and gives it back when the
/// last one has ended, whatever the cooldown. A word that no work follows is forgotten.
#[test]
fn what_an_engine_says_of_its_requests_shuts_the_gate_and_opens_it() {
    // Within this cooldown nothing opens by itself before the test's deadline.
    let config = format!("{TRUSTING}\n[gate]\ncooldown = \"10min\"\nfrozen_after = \"1min\"\n");
    let node = Node::new(&["--gpus", "1"], &config);
    let mut offline = Offline::start(&node, 1_000_000, &[0]);
    let pid = offline.process.pid();
    let mut online = Online::start(&node, 0);
    let worker = online.process.pid();
    let says = |online: &mut Online, requests: u32| {
        online.send(&format!("requests {requests}"));
        assert_eq!(
            online.answer_fields(),
            [0],
            "the library is there and takes it"
        );
    };
    says(&mut online, 0);
    watch::wait_all(&node, &[pid], false);
    offline.running();
    for _ in 0..5 {
        says(&mut online, 2);
        watch::wait_all(&node, &[pid], true);
        let begun = tidegate_tests::monotonic_ns();
        online.say("burst 3 2000000");
        let ended = online.say("burst 3 2000000");
        let records = history(&node);
        let ran = of(&records, pid, Kind::KernelEnd);
        let beside = ran.iter().find(|r| (begun..ended).contains(&r.at_ns));
        assert_eq!(beside, None, "offline ran beside online");
        let first = of(&records, worker, Kind::KernelStart);
        assert!(first.iter().any(|r| r.at_ns >= begun), "online ran");
        says(&mut online, 0);
        watch::wait_all(&node, &[pid], false);
    }
    // Requests of which no work comes.
    says(&mut online, 1);
    watch::wait_all(&node, &[pid], true);
    for (who, why) in [
        (
            pid,
            format!("process {worker} (online_lcuda) has requests in flight"),
        ),
        (
            worker,
            "is idle, and keeps the gate closed: it has requests in flight".to_owned(),
        ),
    ] {
        let said = node.tidegate(&["explain", "pid", &who.to_string()]);
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(said.contains(&why), "{said}");
    }
    let patience = |time: &str| {
        let set = node.tidegate(&["set", &format!("gate.frozen_after={time}")]);
        assert!(set.status.success(), "{set:?}");
    };
    patience("200ms");
    watch::wait_all(&node, &[pid], false);
    says(&mut online, 0);
    patience("1min");
    let told = node.tidegate(&["events", "--kind", "doubted"]);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.contains("requests in flight without work"), "{told}");
    let before = of(&history(&node), pid, Kind::DisableEnd).len();
    for _ in 0..20 {
        says(&mut online, 1);
        says(&mut online, 0);
    }
    let ran = of(&history(&node), pid, Kind::KernelEnd).len();
    wait_for("offline work all the while", || {
        (of(&history(&node), pid, Kind::KernelEnd).len() > ran + 100).then_some(())
    });
    assert_eq!(of(&history(&node), pid, Kind::DisableEnd).len(), before);
    // It works, and is believed again.
    says(&mut online, 1);
    online.say("burst 1 2000000");
    watch::wait_all(&node, &[pid], true);
    says(&mut online, 0);
    watch::wait_all(&node, &[pid], false);
    offline.stop();
}

/// What the kernel allows processors at most, in microseconds, by whoever asks for the least.
fn allowed_us() -> Option<i32> {
    use std::io::Read;
    let mut number = [0; 4];
    let mut file = std::fs::File::open("/dev/cpu_dma_latency").ok()?;
    file.read_exact(&mut number).ok()?;
    Some(i32::from_ne_bytes(number))
}

/// P-GATE-27: processors sleep as they do without an agent, unless an order is armed.
#[test]
fn processors_are_kept_from_deep_sleep_only_while_an_order_is_armed() {
    const WANTED: i32 = 7;
    let Some(before) = allowed_us().filter(|allowed| *allowed > WANTED) else {
        return eprintln!(
            "SKIPPED: /dev/cpu_dma_latency cannot be read (it takes root), or somebody else keeps processors awake"
        );
    };
    let channel = format!("[channel]\ncpu_latency = \"{WANTED}us\"\n");
    let mut node = Node::new(&[], &format!("{TRUSTING}\n{COOLDOWN}{channel}"));
    let allows = |what: &str, us| wait_for(what, || (allowed_us() == Some(us)).then_some(()));
    let mut offline = Offline::start(&node, 5_000_000, &[0]);
    offline.running();
    let pids = [offline.process.pid()];
    let mut online = Online::start(&node, 0);
    watch::wait_open(&node, 0, online.process.pid());
    for _ in 0..2 {
        online.say("hold");
        watch::wait_all(&node, &pids, true);
        allows("the bound to go with the order", before);
        online.say("release");
        watch::wait_all(&node, &pids, false);
        allows("the bound of an armed order", WANTED);
    }
    node.agent.take();
    allows("the bound to go with the agent", before);
}
