//! Many GPUs, many processes, many channels: the gate of each GPU answers to its own work only, and
//! a job stops and runs as a whole.

use std::collections::HashSet;
use std::process::Command;
use tidegate_abi::class::{Engine, engine_of_type};
use tidegate_tests::watch::{
    Testimony, channels, counter, status, wait_all, wait_finished, wait_open,
};
use tidegate_tests::{
    DEADLINE, Node, Offline, Online, compile, monotonic_ns, wait_for, wait_until,
};
use tidegate_vgpu::control::Control;
use tidegate_vgpu::history::Kind;

const CONFIG: &str = "[identity]\ntrust_env_uids = [\"self\"]\n[gate]\ncooldown = \"20ms\"\n[log]\nlevel = \"warn\"\n";
const COOLDOWN_NS: u64 = 20_000_000;

/// Several jobs on a GPU, all at once.
fn together() -> String {
    format!("{CONFIG}[fair]\nmode = \"together\"\n")
}

/// `apps/offline.c` of the job `job` with kernels of 1 ms on the devices `ordinals`.
fn offline(node: &Node, job: &str, ordinals: &[usize]) -> Offline {
    let mut command = node.preloaded(compile("offline", &["-lcuda"]), "offline");
    command
        .arg("1000000")
        .args(ordinals.iter().map(ToString::to_string))
        .env("TIDEGATE_JOB", job);
    let mut offline = Offline::from_command(&mut command);
    offline.running();
    offline
}

/// `apps/contexts.c` of the job `job` on device 0; it is driven as the online program is.
fn contexts(node: &Node, job: &str, change: impl Fn(&mut Command)) -> Online {
    let mut command = node.preloaded(compile("contexts", &["-lcuda"]), "offline");
    command
        .env("TIDEGATE_JOB", job)
        .stderr(std::process::Stdio::inherit());
    change(&mut command);
    Online::from_command(&mut command)
}

/// Waits until `pids` are disabled and enabled again after `after_ns`, with `count` channels; the
/// stretch between, in which nothing of them may have run.
#[track_caller]
fn judged_shut(node: &Node, pids: &[u32], count: usize, after_ns: u64) -> (u64, u64) {
    let (from, to) = wait_for("a shut and an open gate in the history", || {
        Testimony::of(node).shut(pids, count, after_ns)
    });
    let ran = Testimony::of(node).ran_between(pids, from, to);
    assert!(ran.is_empty(), "ran while all was disabled: {ran:?}");
    (from, to)
}

/// When the device finished the one kernel that `online` launched after `begun`.
#[track_caller]
fn end_after(node: &Node, online: &Online, begun: u64) -> u64 {
    let pid = [online.process.pid()];
    wait_for("the end of online work in the history", || {
        let testimony = Testimony::of(node);
        testimony
            .all(&pid, Kind::KernelEnd)
            .map(|record| record.at_ns)
            .find(|at| *at > begun)
    })
}

/// No call of the agent failed, no claim was refused, and no process has a remark.
#[track_caller]
fn no_error_in_status(node: &Node) {
    for name in [
        "disables_failed",
        "enables_failed",
        "foreign_claims",
        "channels_refused",
        "pages_dropped",
    ] {
        assert_eq!(counter(node, name), 0, "{name}: {:#}", status(node));
    }
    let status = status(node);
    let rows = |list: &str| status[list].as_array().cloned().unwrap_or_default();
    for process in rows("processes") {
        assert_eq!(process["note"], "", "{process:#}");
        assert_eq!(process["proven"], true, "{process:#}");
    }
}

/// P-GATE-1: a busy edge stops offline, a cooldown wakes it.
/// P-GATE-7: many GPUs, processes, channels and handles.
#[test]
fn on_8_gpus_each_gate_answers_to_the_online_work_of_its_own_gpu() {
    let node = Node::new(&["--gpus", "8"], CONFIG);
    let jobs = [
        offline(&node, "first", &[0]),
        offline(&node, "second", &[5]),
        offline(&node, "third", &[7]),
    ];
    let pids: Vec<u32> = jobs.iter().map(|job| job.process.pid()).collect();
    let mut online = [Online::start(&node, 0), Online::start(&node, 5)];
    for _ in 0..3 {
        for at in [0, 1] {
            // The other as well: until it was asked it counts as busy.
            for (one, gpu) in online.iter().zip([0, 5]) {
                wait_open(&node, gpu, one.process.pid());
            }
            let own = &pids[at..=at];
            wait_finished(&node, own, 3, monotonic_ns());
            let count = wait_all(&node, own, false);
            let begun = monotonic_ns();
            online[at].say("hold");
            assert_eq!(wait_all(&node, own, true), count);
            wait_finished(&node, &pids[1 - at..=1 - at], 3, monotonic_ns());
            online[at].say("release");
            let (_, to) = judged_shut(&node, own, count, begun);
            let done = end_after(&node, &online[at], begun);
            assert!(
                to >= done + COOLDOWN_NS,
                "woken {} ns after the burst, before the cooldown",
                to - done
            );
            // The other of the two kept its gate open all along.
            let other = &pids[1 - at..=1 - at];
            let testimony = Testimony::of(&node);
            let touched = testimony
                .all(other, Kind::DisableEnd)
                .filter(|record| record.at_ns > begun && record.at_ns < done)
                .count();
            assert_eq!(touched, 0, "a burst on one GPU disabled another's work");
        }
    }
    let testimony = Testimony::of(&node);
    assert_eq!(
        testimony.all(&pids[2..], Kind::DisableEnd).count(),
        0,
        "no online work ever touched the third's GPU"
    );
    let online_pids = online.each_ref().map(|one| one.process.pid());
    assert_eq!(testimony.all(&online_pids, Kind::DisableEnd).count(), 0);
    no_error_in_status(&node);
    for job in jobs {
        assert!(job.stop() > 0);
    }
}

/// Online work on GPU 2, then on GPU 6 as well, then on 6 alone: the job of `pids` is shut on all
/// eight from the first busy edge until both are idle.
#[track_caller]
fn stops_and_resumes_whole(node: &Node, pids: &[u32]) {
    let mut two = Online::start(node, 2);
    let mut six = Online::start(node, 6);
    for _ in 0..3 {
        wait_open(node, 2, two.process.pid());
        wait_open(node, 6, six.process.pid());
        for pid in pids {
            wait_finished(node, &[*pid], 8, monotonic_ns());
        }
        let count = wait_all(node, pids, false);
        let gpus = |disabled| {
            let mut gpus: Vec<u32> = channels(node, pids)
                .iter()
                .filter(|channel| channel.disabled == disabled)
                .map(|channel| channel.gpu)
                .collect();
            gpus.sort_unstable();
            gpus.dedup();
            gpus.len()
        };
        assert_eq!(gpus(false), 8, "the job has channels on every GPU");
        let begun = monotonic_ns();
        two.say("hold");
        assert_eq!(wait_all(node, pids, true), count);
        six.say("hold");
        let is = |gpu: usize, state: &str| status(node)["gpus"][gpu]["gate"] == state;
        wait_for("the other gate to close", || is(6, "closed").then_some(()));
        two.say("release");
        wait_for("the first gate to open", || is(2, "open").then_some(()));
        assert_eq!(wait_all(node, pids, true), count);
        six.say("release");
        let (from, to) = judged_shut(node, pids, count, begun);
        let first_done = end_after(node, &two, begun);
        let last_done = end_after(node, &six, begun).max(first_done);
        assert!(from < first_done, "disabled before the first was done");
        assert!(
            to >= last_done + COOLDOWN_NS,
            "one GPU's gate was still closed: enabled at {to}, the last online work ended at {last_done}"
        );
        assert_eq!(wait_all(node, pids, false), count);
    }
    no_error_in_status(node);
}

/// P-GATE-1: a busy edge stops offline, a cooldown wakes it.
/// P-GATE-7: many GPUs, processes, channels and handles.
#[test]
fn a_process_on_8_gpus_stops_on_all_for_one_and_resumes_when_every_gate_is_open() {
    let node = Node::new(&["--gpus", "8"], CONFIG);
    let job = offline(&node, "tp", &[0, 1, 2, 3, 4, 5, 6, 7]);
    stops_and_resumes_whole(&node, &[job.process.pid()]);
    assert!(job.stop() > 0);
}

/// P-GATE-7: many GPUs, processes, channels and handles.
#[test]
fn processes_that_name_one_job_stop_on_all_gpus_for_one_and_resume_together() {
    let node = Node::new(&["--gpus", "8"], CONFIG);
    let ranks: Vec<Offline> = [[0, 1], [2, 3], [4, 5], [6, 7]]
        .iter()
        .map(|gpus| offline(&node, "tp", gpus))
        .collect();
    let pids: Vec<u32> = ranks.iter().map(|rank| rank.process.pid()).collect();
    let seen = status(&node);
    assert_eq!(seen["jobs"].as_array().map(Vec::len), Some(1), "{seen:#}");
    assert_eq!(seen["jobs"][0]["name"], "tp");
    stops_and_resumes_whole(&node, &pids);
    for rank in ranks {
        assert!(rank.stop() > 0);
    }
}

/// P-GATE-7: many GPUs, processes, channels and handles.
#[test]
fn every_channel_of_many_contexts_is_disabled_and_enabled_in_batches() {
    let node = Node::new(&[], &together());
    let mut many: Vec<Online> = ["a", "a", "b"]
        .iter()
        .map(|job| {
            contexts(&node, job, |command| {
                command.env("CUDA_DEVICE_MAX_CONNECTIONS", "32");
            })
        })
        .collect();
    for one in &mut many {
        one.say("make 2");
    }
    let pids: Vec<u32> = many.iter().map(|one| one.process.pid()).collect();
    let mut online = Online::start(&node, 0);
    for _ in 0..2 {
        for one in &mut many {
            one.say("launch 2000000");
        }
        wait_open(&node, 0, online.process.pid());
        let count = wait_all(&node, &pids, false);
        assert!(count > 3 * 3 * 32, "{count} channels");
        assert_eq!(status(&node)["gpus"][0]["channels"], count);
        let begun = monotonic_ns();
        online.say("hold");
        assert_eq!(wait_all(&node, &pids, true), count);
        for one in &mut many {
            one.say("launch 100000");
        }
        online.say("release");
        judged_shut(&node, &pids, count, begun);
        for one in &mut many {
            one.say("sync");
        }
    }
    no_error_in_status(&node);
}

/// The calls that disabled channels of `pids` after `begun`, in order: how many that compute and how many
/// others each names.
fn calls_with_graphics(node: &Node, pids: &[u32], begun: u64) -> Vec<(usize, usize)> {
    let testimony = Testimony::of(node);
    let graphics: HashSet<(u32, u32)> = testimony
        .all(pids, Kind::ChannelUp)
        .filter(|record| {
            engine_of_type(u32::try_from(record.value).unwrap_or(0)) == Engine::Graphics
        })
        .map(|record| (record.client, record.object))
        .collect();
    let mut calls: Vec<(u64, usize, usize)> = Vec::new();
    for record in testimony.all(pids, Kind::DisableBegin) {
        if record.at_ns <= begun {
            continue;
        }
        if calls.last().is_none_or(|call| call.0 != record.value) {
            calls.push((record.value, 0, 0));
        }
        let computes = graphics.contains(&(record.client, record.object));
        if let Some(call) = calls.last_mut() {
            call.1 += usize::from(computes);
            call.2 += usize::from(!computes);
        }
    }
    calls.into_iter().map(|call| (call.1, call.2)).collect()
}

/// P-GATE-7: many GPUs, processes, channels and handles.
#[test]
fn what_computes_is_disabled_by_the_first_calls_whatever_object_a_channel_got_first() {
    for objects in ["compute", "copy"] {
        let node = Node::new(&[], CONFIG);
        // Eight contexts in one, and three beside it in the same job.
        let mut job: Vec<Online> = [7, 2]
            .map(|more| {
                let mut one = contexts(&node, "many", |command| {
                    command.env("TIDEGATE_VGPU_OBJECTS", objects);
                });
                one.say(&format!("make {more}"));
                one
            })
            .into();
        let pids: Vec<u32> = job.iter().map(|one| one.process.pid()).collect();
        let mut online = Online::start(&node, 0);
        for one in &mut job {
            one.say("launch 2000000");
        }
        wait_open(&node, 0, online.process.pid());
        assert_eq!(wait_all(&node, &pids, false), 11 * 40);
        let begun = monotonic_ns();
        online.say("hold");
        wait_all(&node, &pids, true);
        let calls = calls_with_graphics(&node, &pids, begun);
        online.say("release");
        let computing: Vec<bool> = calls.iter().map(|call| call.0 > 0).collect();
        assert!(
            computing.is_sorted_by(|a, b| a >= b),
            "{objects}: {calls:?}"
        );
        let full = calls.iter().filter(|call| **call == (64, 0)).count();
        let mixed = calls.iter().filter(|call| **call == (24, 40)).count();
        assert_eq!(
            (full, mixed, calls.len()),
            (1, 1, 7),
            "{objects}: {calls:?}"
        );
        for one in &mut job {
            one.say("sync");
        }
        no_error_in_status(&node);
    }
}

/// P-GATE-7: many GPUs, processes, channels and handles.
#[test]
fn contexts_made_while_their_job_is_gated_run_nothing_before_it_is_enabled() {
    let node = Node::new(&[], CONFIG);
    let mut job = contexts(&node, "batch", |_| {});
    let pid = [job.process.pid()];
    job.say("launch 1000000");
    job.say("sync");
    let mut online = Online::start(&node, 0);
    for _ in 0..3 {
        wait_open(&node, 0, online.process.pid());
        let count = wait_all(&node, &pid, false);
        online.say("hold");
        assert_eq!(wait_all(&node, &pid, true), count);
        let gated = monotonic_ns();
        // Whether the program gets through while it is gated is its own affair.
        job.send("make 3");
        job.send("launch 1000000");
        job.send("sync");
        let grown = wait_for("channels that are born gated", || {
            let channels = channels(&node, &pid);
            let grown = channels.len() > count;
            (grown && channels.iter().all(|channel| channel.disabled)).then_some(channels.len())
        });
        online.say("release");
        let idle = end_after(&node, &online, gated);
        let testimony = Testimony::of(&node);
        let born = testimony
            .all(&pid, Kind::ChannelUp)
            .filter(|record| record.at_ns > gated && record.at_ns < idle)
            .count();
        assert!(
            born > 0 && grown > count,
            "no channel was made while gated: {count} channels grew to {grown}, {born} in time"
        );
        let ran = testimony.ran_between(&pid, gated, idle);
        assert!(ran.is_empty(), "ran while gated: {ran:?}");
        for _ in ["make", "launch", "sync"] {
            job.answer();
        }
        job.say("drop 3");
    }
    no_error_in_status(&node);
}

/// P-GATE-7: many GPUs, processes, channels and handles.
#[test]
fn handles_freed_and_used_again_never_lead_to_a_wrong_or_a_missed_disable() {
    let node = Node::device_only(&[]);
    let device = Control::connect(&node.vgpu_dir()).expect("the device listens");
    device.set("reuse_clients", 1).expect("a knob");
    let mut node = node;
    node.start_agent(&together());
    let mut online = Online::start(&node, 0);
    let mut stays = contexts(&node, "stays", |_| {});
    let mut clients: Vec<u32> = Vec::new();
    let mut pids = vec![stays.process.pid()];
    for round in 0..6 {
        // Each is another process; it gets the RM clients that the last one left.
        let mut passing = contexts(&node, &format!("passing{}", round % 2), |_| {});
        pids.push(passing.process.pid());
        let here = [stays.process.pid(), passing.process.pid()];
        clients.extend(channels(&node, &here[1..]).first().map(|one| one.client));
        stays.send("cycle 8 300000");
        passing.send("cycle 8 300000");
        for _ in 0..4 {
            online.say("burst 4 1000000");
        }
        stays.answer();
        passing.answer();
        // What there is now is what is disabled, and nothing else.
        wait_open(&node, 0, online.process.pid());
        let count = wait_all(&node, &here, false);
        stays.say("launch 1000000");
        passing.say("launch 1000000");
        let begun = monotonic_ns();
        online.say("hold");
        assert_eq!(wait_all(&node, &here, true), count);
        online.say("release");
        judged_shut(&node, &here, count, begun);
        assert_eq!(wait_all(&node, &here, false), count);
        no_error_in_status(&node);
    }
    clients.sort_unstable();
    clients.dedup();
    assert!(clients.len() < 6, "no client was used again: {clients:x?}");
    let strangers = Testimony::of(&node)
        .all(&[online.process.pid()], Kind::DisableEnd)
        .count();
    assert_eq!(strangers, 0, "online work was disabled");
}

/// What the descriptors of the process `pid` refer to.
fn opened(pid: u32) -> Vec<String> {
    let held = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the agent lives");
    let links = held.filter_map(|one| std::fs::read_link(one.ok()?.path()).ok());
    let mut links: Vec<String> = links.map(|link| link.display().to_string()).collect();
    links.sort_unstable();
    links
}

/// What the agent has open when it has opened all that it keeps: it has answered a question, and was handed what proves
/// the one process there is.
fn settled(node: &Node, online: u32) -> Vec<String> {
    wait_for("the online program with channels of its own", || {
        is_served(&status(node), online).then_some(())
    });
    opened(node.agent.as_ref().expect("it runs").pid())
}

/// Whether a process is listed with channels that are known to be its own.
fn is_served(status: &serde_json::Value, pid: u32) -> bool {
    let mut rows = status["processes"].as_array().into_iter().flatten();
    rows.any(|row| {
        row["pid"] == pid
            && row["proven"] == true
            && row["channels"].as_u64().is_some_and(|count| count > 0)
    })
}

/// P-GATE-7: many GPUs, processes, channels and handles.
/// P-LIFECYCLE-7: what a dead client held is given back.
#[test]
fn three_hundred_processes_that_attach_at_once_are_served_and_leave_nothing_behind() {
    const CROWD: usize = 300;
    // Its seven jobs are all on both GPUs.
    let node = Node::new(&["--gpus", "2"], &together());
    let agent = node.agent.as_ref().expect("it runs").pid();
    let mut online = Online::start(&node, 0);
    let at_first = settled(&node, online.process.pid());
    let program = compile("contexts", &["-lcuda"]);
    let start = |number: usize| {
        let mut command = node.preloaded(&program, "offline");
        command
            .arg((number % 2).to_string())
            .env("CUDA_DEVICE_MAX_CONNECTIONS", "1")
            .env("TIDEGATE_JOB", format!("crowd{}", number % 7))
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::inherit());
        tidegate_tests::Running::start("contexts", &mut command)
    };
    let mut crowd: Vec<_> = (0..CROWD).map(start).collect();
    let pids: Vec<u32> = crowd.iter().map(|one| one.pid()).collect();
    let on_first: Vec<u32> = pids.iter().copied().step_by(2).collect();
    let listed = || {
        let status = status(&node);
        pids.iter()
            .all(|pid| is_served(&status, *pid))
            .then_some(())
    };
    wait_for("everyone to be listed with channels of its own", listed);
    // All are gated as anyone is.
    wait_open(&node, 0, online.process.pid());
    let count = wait_all(&node, &on_first, false);
    assert!(count >= CROWD / 2, "{count} channels");
    online.say("hold");
    assert_eq!(wait_all(&node, &on_first, true), count);
    online.say("release");
    assert_eq!(wait_all(&node, &on_first, false), count);
    no_error_in_status(&node);
    // Half of them end by themselves, half are killed.
    for (number, one) in crowd.iter_mut().enumerate() {
        if number % 2 == 0 {
            drop(one.child.stdin.take());
        } else {
            one.signal(libc::SIGKILL);
        }
    }
    for one in &mut crowd {
        let ended = wait_for("its end", || one.child.try_wait().ok().flatten());
        assert!(ended.success() || ended.code().is_none(), "{ended}");
    }
    wait_for("an empty node", || {
        let status = status(&node);
        let left = status["processes"].as_array().map(Vec::len);
        let held = status["gpus"].as_array().into_iter().flatten();
        let none = held.into_iter().all(|gpu| gpu["channels"] == 0);
        (left == Some(1) && none).then_some(())
    });
    let as_before = wait_until(DEADLINE, || {
        (opened(agent).len() <= at_first.len()).then_some(())
    });
    assert!(
        as_before.is_some(),
        "the agent keeps {:#?}, and had {at_first:#?}",
        opened(agent)
    );
    online.say("burst 1 100000");
    no_error_in_status(&node);
}
