//! Several offline jobs on one GPU.

use std::collections::BTreeSet;
use tidegate_tests::clock::Stalls;
use tidegate_tests::watch::{Testimony, channels, status};
use tidegate_tests::{Node, Offline, compile, monotonic_ns, view, wait_for};
use tidegate_vgpu::control::Control;
use tidegate_vgpu::history::Kind;

const TURNS: &str = "[identity]\ntrust_env_uids = [\"self\"]\n[gate]\ncooldown = \"5ms\"\n\
                     [fair]\nturn = \"50ms\"\n";
const WATCHED_NS: u64 = 3_000_000_000;
/// No channel stays disabled without a live agent for longer than this, and what two busy cores may add to it.
const LANDING_NS: u64 = 1_000_000_000;
const SLACK_NS: u64 = 500_000_000;

/// `apps/offline.c` of the job `job` with kernels of 1 ms.
fn offline(node: &Node, job: &str) -> Offline {
    offline_with(node, job, &[])
}

fn offline_with(node: &Node, job: &str, environment: &[(&str, &str)]) -> Offline {
    let mut command = node.preloaded(compile("offline", &["-lcuda"]), "offline");
    command.args(["1000000", "0"]).env("TIDEGATE_JOB", job);
    command.envs(environment.iter().copied());
    let mut offline = Offline::from_command(&mut command);
    offline.running();
    offline
}

/// How long a channel of each of two jobs was enabled between two instants, and how long of both, by the device.
fn enabled(testimony: &Testimony, jobs: [&[u32]; 2], from: u64, to: u64) -> ([u64; 2], u64) {
    let mut on: [BTreeSet<(u32, u32)>; 2] = Default::default();
    let (mut each, mut both, mut at) = ([0, 0], 0, from);
    let mut records = testimony.0.clone();
    records.sort_by_key(|record| record.at_ns);
    for record in records.iter().take_while(|record| record.at_ns < to) {
        let Some(job) = jobs.iter().position(|pids| pids.contains(&record.pid)) else {
            continue;
        };
        let span = record.at_ns.saturating_sub(at);
        at = at.max(record.at_ns);
        let runs = [0, 1].map(|job: usize| !on[job].is_empty());
        (0..2).for_each(|job| each[job] += if runs[job] { span } else { 0 });
        both += if runs == [true; 2] { span } else { 0 };
        let channel = (record.client, record.object);
        match record.kind {
            Kind::ChannelUp | Kind::EnableEnd => drop(on[job].insert(channel)),
            Kind::ChannelDown | Kind::DisableEnd => drop(on[job].remove(&channel)),
            _ => {}
        }
    }
    (each, both)
}

fn are_disabled(node: &Node, pids: &[u32]) -> bool {
    let channels = channels(node, pids);
    !channels.is_empty() && channels.iter().all(|channel| channel.disabled)
}

/// Waits until each of them was seen to wait as a whole.
fn a_turn_of_each(node: &Node, pids: &[[u32; 1]]) {
    for own in pids {
        wait_for("the others' turns", || {
            are_disabled(node, own).then_some(())
        });
    }
}

/// So much of the history as two jobs leave in three seconds from `from` on.
fn three_seconds(node: &Node, from: u64) -> Testimony {
    wait_for("three seconds", || {
        let testimony = Testimony::of(node);
        let last = testimony.0.last()?.at_ns;
        (last > from + WATCHED_NS).then_some(testimony)
    })
}

/// P-FAIR-5, P-OPERATE-21: a job of one process and one of four get equal times, never both at once; people see whose
/// turn it is.
#[test]
fn a_job_of_one_process_and_one_of_four_have_the_gpu_in_turns_for_equal_times() {
    let node = Node::new(&[], TURNS);
    let single = offline(&node, "one");
    let others: Vec<Offline> = (0..4).map(|_| offline(&node, "many")).collect();
    let one = [single.process.pid()];
    let many: Vec<u32> = others.iter().map(|other| other.process.pid()).collect();
    // From the first time that the newer job has waited as a whole.
    wait_for("a turn of the first job", || {
        are_disabled(&node, &many).then_some(())
    });
    let from = monotonic_ns();
    for (pid, other) in [(one[0], "many"), (many[0], "one")] {
        wait_for("the reason to be shown", || {
            let output = node.tidegate(&["explain", "pid", &pid.to_string()]);
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let reason = format!("waits for its turn: {other} runs, ");
            (text.contains(&reason) && text.contains(" ms left")).then_some(())
        });
    }
    let testimony = three_seconds(&node, from);
    let (each, both) = enabled(&testimony, [&one, &many], from, from + WATCHED_NS);
    assert_eq!(both, 0, "both enabled, of {each:?} ns");
    let share = each[0] as f64 / (each[0] + each[1]) as f64;
    assert!((0.4..0.6).contains(&share), "{share} of {each:?} ns");
    // Status says the same of the time since the second job came.
    let status = status(&node);
    for job in status["jobs"].as_array().expect("jobs") {
        let part = |name: &str| job["share"][name].as_f64().unwrap_or(f64::NAN);
        assert!((0.49..0.51).contains(&part("deserved")), "{job:#}");
        assert!((0.4..0.6).contains(&part("got")), "{job:#}");
        assert!(job["turns"].as_u64() > Some(10), "{job:#}");
    }
    let kernels = |pids: &[u32]| testimony.finished_after(pids, from);
    assert!(kernels(&one) > 0 && kernels(&many) > 0);
    drop((single, others));
}

/// P-FAIR-6: a rule's weight holds; a process that wants more gets no more, and one that wants less gets less.
#[test]
fn a_job_can_lower_its_weight_and_no_job_can_raise_it() {
    // SAFETY: it has no preconditions.
    let uid = unsafe { libc::geteuid() };
    let rule = |rest: &str| {
        format!("{TURNS}[[identity.rules]]\nuid = {uid}\nrole = \"offline\"\nweight = 4\n{rest}")
    };
    let node = Node::new(&[], &rule(""));
    let less = offline_with(&node, "less", &[("TIDEGATE_WEIGHT", "1")]);
    let more = offline_with(&node, "more", &[("TIDEGATE_WEIGHT", "1000")]);
    let pids = [[less.process.pid()], [more.process.pid()]];
    let share = |from: u64| {
        let testimony = three_seconds(&node, from);
        let (each, both) = enabled(&testimony, [&pids[0], &pids[1]], from, from + WATCHED_NS);
        assert_eq!(both, 0, "both enabled, of {each:?} ns");
        each[0] as f64 / (each[0] + each[1]) as f64
    };
    wait_for("a turn of the second job", || {
        are_disabled(&node, &pids[0]).then_some(())
    });
    let part = share(monotonic_ns());
    assert!((0.12..0.28).contains(&part), "{part}, not a fifth");
    drop((less, more));
}

/// P-FAIR-7: a job without work gives its time to the other, and gets no more than its share when it comes back.
#[test]
fn a_job_that_rests_costs_the_other_nothing() {
    let node = Node::new(&[], TURNS);
    let rests = offline(&node, "rests");
    let works = offline(&node, "works");
    let pids = [[rests.process.pid()], [works.process.pid()]];
    let a_turn_of_each = || a_turn_of_each(&node, &pids);
    let measured = || {
        let from = monotonic_ns();
        let testimony = three_seconds(&node, from);
        let (each, both) = enabled(&testimony, [&pids[0], &pids[1]], from, from + WATCHED_NS);
        assert_eq!(both, 0, "both enabled, of {each:?} ns");
        each.map(|own| own as f64 / WATCHED_NS as f64)
    };
    a_turn_of_each();
    rests.process.signal(libc::SIGUSR1);
    // What it had queued ends in one turn more.
    let [resting, working] = measured();
    assert!(resting < 0.05, "{resting} of the time without work");
    assert!(working > 0.9, "{working} of the time beside nobody");
    let explained = node.tidegate(&["explain", "pid", &pids[0][0].to_string()]);
    let explained = String::from_utf8_lossy(&explained.stdout);
    assert!(explained.contains("it has no work"), "{explained}");
    rests.process.signal(libc::SIGUSR2);
    a_turn_of_each();
    let [back, other] = measured();
    let part = back / (back + other);
    assert!((0.4..0.6).contains(&part), "{part} after its rest");
    drop((rests, works));
}

/// P-FAIR-13: a process that is stopped in its turn loses it when the turn is over, and costs the others no more than
/// its part.
#[test]
fn a_stopped_process_loses_its_turn_after_its_turn() {
    let node = Node::new(&[], TURNS);
    let jobs = ["stopped", "one", "two"].map(|job| offline(&node, job));
    let pids = jobs.each_ref().map(|job| [job.process.pid()]);
    a_turn_of_each(&node, &pids);
    wait_for("a turn of the one that is to stop", || {
        let on = channels(&node, &pids[0]).iter().all(|own| !own.disabled);
        on.then_some(())
    });
    jobs[0].process.freeze();
    let from = monotonic_ns();
    let testimony = three_seconds(&node, from);
    let (each, both) = enabled(&testimony, [&pids[1], &pids[2]], from, from + WATCHED_NS);
    assert_eq!(both, 0, "both enabled, of {each:?} ns");
    for on in each {
        let share = on as f64 / WATCHED_NS as f64;
        assert!(share > 0.28, "{share} of {each:?} ns, a third is its part");
    }
    jobs[0].process.signal(libc::SIGCONT);
}

/// P-FAIR-9: a job whose channels cannot be disabled any more is given up, and the others go on taking turns.
#[test]
fn a_swap_whose_disable_fails_costs_the_others_no_turn() {
    let node = Node::new(&[], TURNS);
    let jobs = ["one", "two", "three"].map(|job| offline(&node, job));
    let pids = jobs.each_ref().map(|job| [job.process.pid()]);
    a_turn_of_each(&node, &pids);
    let device = Control::connect(&node.vgpu_dir()).expect("the device listens");
    // Once more in a row than `gate.disable_retries`.
    device.set("fail_disable", 4).expect("a knob");
    let given_up = wait_for("a job to be given up", || {
        let status = status(&node);
        let mut jobs = status["jobs"].as_array()?.iter();
        let lost = jobs.find(|job| job["state"] == "unmanaged")?;
        ["one", "two", "three"]
            .iter()
            .position(|name| lost["name"] == *name)
    });
    let others: Vec<[u32; 1]> = (0..3)
        .filter(|nth| *nth != given_up)
        .map(|nth| pids[nth])
        .collect();
    a_turn_of_each(&node, &others);
    let from = monotonic_ns();
    let testimony = three_seconds(&node, from);
    let (each, both) = enabled(
        &testimony,
        [&others[0], &others[1]],
        from,
        from + WATCHED_NS,
    );
    assert_eq!(both, 0, "both enabled, of {each:?} ns");
    for (own, on) in others.iter().zip(each) {
        // Swaps take their time on a busy machine, of both alike.
        let (share, part) = (on as f64 / WATCHED_NS as f64, each[0] + each[1]);
        let part = on as f64 / part as f64;
        assert!((0.1..0.55).contains(&share), "{share} of {each:?} ns");
        assert!((0.4..0.6).contains(&part), "{part} of both, {each:?} ns");
        assert!(testimony.finished_after(own, from) > 0);
    }
    let disabled = channels(&node, &pids[given_up]);
    assert!(disabled.iter().all(|own| !own.disabled), "{disabled:?}");
    // It pays for the time in which it could not be stopped, so the others may have several turns first.
    wait_for("its launches to have turns", || {
        view::finished_after(&node, pids[given_up][0], from)
    });
}

/// P-FAIR-9: an agent that dies when it has disabled one job and not yet enabled the next leaves both to land softly,
/// and its successor has them take turns again.
#[test]
fn an_agent_killed_in_the_middle_of_a_swap_leaves_nobody_disabled() {
    let mut node = Node::new(&[], TURNS);
    let jobs = ["one", "two"].map(|job| offline(&node, job));
    let pids = jobs.each_ref().map(|job| [job.process.pid()]);
    a_turn_of_each(&node, &pids);
    let device = Control::connect(&node.vgpu_dir()).expect("the device listens");
    device.set("enable_us", 300_000).expect("a knob");
    wait_for("a swap to be half done", || {
        let halted = pids.iter().all(|own| are_disabled(&node, own));
        halted.then_some(())
    });
    let stalls = Stalls::watch();
    let agent = node.agent.take().expect("it runs");
    let heard = monotonic_ns();
    agent.signal(libc::SIGKILL);
    drop(agent);
    let lost = monotonic_ns();
    device.set("enable_us", 10).expect("a knob");
    for own in &pids {
        let (at, caller) = wait_for("the job to land", || {
            let testimony = Testimony::of(&node);
            let mut enables = testimony.all(own, Kind::EnableEnd);
            let first = enables.find(|record| record.at_ns > heard && record.caller == own[0])?;
            Some((first.at_ns, first.caller))
        });
        assert_eq!(caller, own[0], "the process enables its own channels");
        let (stuck, still) = (at.saturating_sub(lost), stalls.ns());
        assert!(
            stuck <= LANDING_NS + SLACK_NS + still,
            "disabled for {stuck} ns without an agent; the machine stood still for {still} ns"
        );
    }
    node.start_agent(TURNS);
    a_turn_of_each(&node, &pids);
    let from = monotonic_ns();
    let testimony = three_seconds(&node, from);
    let (each, both) = enabled(&testimony, [&pids[0], &pids[1]], from, from + WATCHED_NS);
    assert_eq!(both, 0, "both enabled, of {each:?} ns");
    let share = each[0] as f64 / (each[0] + each[1]) as f64;
    assert!((0.4..0.6).contains(&share), "{share} of {each:?} ns");
}
