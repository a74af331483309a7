//! Several offline jobs on one GPU that run at once, by timeslices.

use std::collections::{BTreeMap, BTreeSet};
use tidegate_tests::figures::Span;
use tidegate_tests::shares::{by_time, engine_time, shares};
use tidegate_tests::watch::{Testimony, channels, status, wait_all};
use tidegate_tests::{Node, Offline, compile, monotonic_ns, view, wait_for};
use tidegate_vgpu::control::Control;
use tidegate_vgpu::history::Kind;

/// What the virtual GPU gives a group, us.
const DRIVERS: u64 = 2_000;
/// What stands for that under an earlier agent, us.
const CUDAS: u64 = tidegate_node::task::CUDA_US;
const WATCHED_NS: u64 = 4_000_000_000;

fn config(mode: &str) -> String {
    // SAFETY: it has no preconditions.
    let uid = unsafe { libc::geteuid() };
    format!(
        "[identity]\ntrust_env_uids = [\"self\"]\n[[identity.rules]]\nuid = {uid}\nrole = \"offline\"\nweight = 4\n\
         [gate]\ncooldown = \"5ms\"\n[fair]\nmode = \"{mode}\"\nturn = \"50ms\"\n"
    )
}

/// `apps/offline.c` of the job `job` with kernels of 20 ms: what is queued outlasts a round of timeslices.
fn offline(node: &Node, job: &str, weight: u32) -> Offline {
    let mut command = node.preloaded(compile("offline", &["-lcuda"]), "offline");
    command
        .args(["20000000", "0"])
        .env("TIDEGATE_JOB", job)
        .env("TIDEGATE_WEIGHT", weight.to_string());
    let mut offline = Offline::from_command(&mut command);
    offline.running();
    offline
}

fn pids(jobs: &[Offline]) -> BTreeSet<u32> {
    jobs.iter().map(|own| own.process.pid()).collect()
}

/// The timeslice that each process was given last, us, by the device.
fn given(node: &Node) -> BTreeMap<u32, u64> {
    let testimony = Testimony::of(node);
    let records = by_time(&testimony).into_iter();
    let set = records.filter(|record| record.kind == Kind::Timeslice);
    set.map(|record| (record.pid, record.tag)).collect()
}

fn wait_given(node: &Node, what: &str, wanted: &[(&BTreeSet<u32>, u64)]) {
    wait_for(what, || {
        let given = given(node);
        let has = |pids: &BTreeSet<u32>, us| pids.iter().all(|pid| given.get(pid) == Some(&us));
        wanted.iter().all(|(pids, us)| has(pids, *us)).then_some(())
    });
}

fn reload(node: &Node, mode: &str) {
    std::fs::write(node.dir().join("agent.toml"), config(mode)).expect("it is writable");
    let output = node.tidegate(&["reload"]);
    assert!(output.status.success(), "{output:?}");
}

/// Waits until each job was seen to wait as a whole: they take turns.
fn take_turns(node: &Node, jobs: [&BTreeSet<u32>; 2]) {
    for own in jobs {
        let own: Vec<u32> = own.iter().copied().collect();
        wait_all(node, &own, true);
    }
}

/// P-FAIR-18: jobs run at once and share by weight, whatever number of processes they have; status says by what.
#[test]
fn eight_processes_of_weight_one_get_a_fifth_beside_one_of_weight_four() {
    let node = Node::new(&[], &config("slices"));
    let light: Vec<Offline> = (0..8).map(|_| offline(&node, "light", 1)).collect();
    let heavy = [offline(&node, "heavy", 4)];
    let jobs = [pids(&light), pids(&heavy)];
    // 1 / 8 to 4: the least has 5 ms.
    let wanted = [(&jobs[0], 5_000), (&jobs[1], 160_000)];
    wait_given(&node, "timeslices by weight", &wanted);
    let from = monotonic_ns();
    let testimony = wait_for("four seconds", || {
        let testimony = Testimony::of(&node);
        let last = testimony.0.last()?.at_ns;
        (last > from + WATCHED_NS).then_some(testimony)
    });
    let to = from + WATCHED_NS;
    let span = Span {
        from_ns: from,
        to_ns: to,
    };
    let ran = engine_time(&testimony, &jobs, span);
    let part = shares(&ran)[0];
    assert!(
        (0.15..0.25).contains(&part),
        "{part} of {ran:?} ns, a fifth is its part"
    );
    let used = ran.iter().sum::<u64>() as f64 / WATCHED_NS as f64;
    assert!(used > 0.9, "{used} of the time is used");
    let inside = |at: u64| at >= from && at < to;
    let stopped = testimony
        .0
        .iter()
        .filter(|r| r.kind == Kind::DisableBegin && inside(r.at_ns));
    assert_eq!(stopped.count(), 0, "nobody waits for another");
    let set = testimony
        .0
        .iter()
        .filter(|r| r.kind == Kind::Timeslice && inside(r.at_ns));
    assert_eq!(set.count(), 0, "nothing changed");
    let status = status(&node);
    for job in status["jobs"].as_array().expect("jobs") {
        let (part, ns) = if job["name"] == "light" {
            (0.2, 5_000_000)
        } else {
            (0.8, 160_000_000)
        };
        let share = &job["share"];
        let deserved = share["deserved"].as_f64().unwrap_or(f64::NAN);
        // From the time before weights were known and the other was there.
        assert!((part - 0.1..part + 0.1).contains(&deserved), "{job:#}");
        assert_eq!(share["at_once"], true, "{job:#}");
        assert_eq!(share["timeslice_ns"], ns, "{job:#}");
        assert_eq!(share["turns_because"], "", "{job:#}");
    }
    let table = view::table(&node);
    assert!(table.contains("not what the GPU measured"), "{table}");
    drop((light, heavy));
}

/// P-FAIR-19: where the driver refuses, jobs take turns, and event and status say for whose sake and why.
#[test]
fn a_refused_timeslice_leaves_turns_and_is_named() {
    let node = Node::new(&[], &config("slices"));
    let device = Control::connect(&node.vgpu_dir()).expect("the device listens");
    device
        .set("refuse", "0xa06c0103:0x56:tidegate")
        .expect("a knob");
    let one = [offline(&node, "one", 1)];
    let two = [offline(&node, "two", 4)];
    let jobs = [pids(&one), pids(&two)];
    let because = wait_for("the reason", || {
        let status = status(&node);
        let mut jobs = status["jobs"].as_array()?.iter();
        let why = jobs.find_map(|job| job["share"]["turns_because"].as_str().map(str::to_owned));
        why.filter(|why| !why.is_empty())
    });
    assert!(
        because.contains("the driver refused to set one, status 0x56"),
        "{because}"
    );
    assert!(
        because.starts_with("one: ") || because.starts_with("two: "),
        "{because}"
    );
    take_turns(&node, [&jobs[0], &jobs[1]]);
    let output = node.tidegate(&["events", "--output", "json"]);
    let events = String::from_utf8_lossy(&output.stdout).into_owned();
    let told = events
        .lines()
        .find(|line| line.contains("\"turns_instead\""));
    assert!(
        told.is_some_and(|line| line.contains("status 0x56")),
        "{events}"
    );
    drop((one, two));
}

/// P-FAIR-20: what was given is put back by a reload and at the agent's end; a killed agent's successor sets it anew.
#[test]
fn timeslices_are_put_back_by_a_reload_and_at_the_end_and_outlive_a_killed_agent_harmlessly() {
    let mut node = Node::new(&[], &config("slices"));
    let light = [offline(&node, "light", 1)];
    let heavy = [offline(&node, "heavy", 4)];
    let jobs = [pids(&light), pids(&heavy)];
    let by_weight = [(&jobs[0], 5_000), (&jobs[1], 20_000)];
    wait_given(&node, "timeslices by weight", &by_weight);
    reload(&node, "turns");
    let all = jobs.iter().flatten().copied().collect();
    wait_given(&node, "what the driver gave", &[(&all, DRIVERS)]);
    take_turns(&node, [&jobs[0], &jobs[1]]);
    reload(&node, "slices");
    wait_given(&node, "timeslices again", &by_weight);
    let agent = node.agent.take().expect("it runs");
    agent.signal(libc::SIGKILL);
    drop(agent);
    let killed = monotonic_ns();
    node.start_agent(&config("slices"));
    wait_for("the successor to set them", || {
        let testimony = Testimony::of(&node);
        let set = testimony
            .0
            .iter()
            .filter(|r| r.kind == Kind::Timeslice && r.at_ns > killed);
        let set: BTreeSet<(u32, u64)> = set.map(|record| (record.pid, record.tag)).collect();
        let has =
            |(pids, us): &(&BTreeSet<u32>, u64)| pids.iter().all(|pid| set.contains(&(*pid, *us)));
        by_weight.iter().all(has).then_some(())
    });
    let agent = node.agent.take().expect("it runs");
    agent.signal(libc::SIGTERM);
    agent.succeed();
    assert!(
        all.iter().all(|pid| given(&node).get(pid) == Some(&CUDAS)),
        "{:?}",
        given(&node)
    );
    let on = channels(&node, &all.iter().copied().collect::<Vec<_>>());
    assert!(on.iter().all(|channel| !channel.disabled), "{on:?}");
    drop((light, heavy));
}
