//! What one tenant may have of the agent. Each attack runs in processes of a user without rights, beside an honest
//! pair of another.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use tidegate_tests::cgroup::Cgroup;
use tidegate_tests::peer::{NOBODY, Peer};
use tidegate_tests::strangers::{Honest, refusal};
use tidegate_tests::view::{counter, cpu_ns, descriptors, process, status, wait_all, wait_so};
use tidegate_tests::{Node, TRUSTING, monotonic_ns, wait_for};

/// Waits until status names the strangers as having asked too much of `what`.
#[track_caller]
fn wait_for_refusal(honest: &Honest, what: &str) {
    wait_so("status names who was refused", || {
        refusal(&status(&honest.node), &format!("uid {NOBODY}"), what)
            .is_some_and(|row| row["times"].as_u64().is_some_and(|times| times > 0))
    });
}

/// Processor time of the control thread, and of all threads, ns, as the kernel counts it.
fn thread_cpu_ns(agent: u32) -> [u64; 2] {
    let tasks = std::fs::read_dir(format!("/proc/{agent}/task")).expect("it runs");
    let spent = |task: &std::path::Path| -> u64 {
        let said = std::fs::read_to_string(task.join("schedstat")).unwrap_or_default();
        let first = said.split_whitespace().next();
        first.and_then(|ns| ns.parse().ok()).unwrap_or(0)
    };
    tasks.flatten().fold([0, 0], |[control, all], task| {
        let ns = spent(&task.path());
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        let own = if name.trim() == "tg-control" { ns } else { 0 };
        [control + own, all + ns]
    })
}

/// P-SECURITY-7: what one tenant takes is bounded and named, and nobody else notices.
#[test]
fn connections_of_a_stranger_shut_neither_programs_nor_operators_out() {
    const LIMIT: usize = 32;
    let Some(mut honest) =
        Honest::beside_strangers(&format!("[limits]\nconnections_per_uid = {LIMIT}\n"))
    else {
        return;
    };
    let agent = honest.node.agent.as_ref().expect("it runs").pid();
    let before = descriptors(agent);
    let mut stranger = Peer::of_nobody(&honest.node);
    stranger.ask("hold hook.sock 1500");
    stranger.ask("hold status.sock 1500");
    wait_for_refusal(&honest, "hook.sock");
    wait_for_refusal(&honest, "status.sock");
    for args in [["status"], ["pause"], ["resume"]] {
        let output = honest.node.tidegate(&args);
        assert!(output.status.success(), "{args:?}: {output:?}");
    }
    let newcomer = Peer::attached(&honest.node, "offline", "newcomer");
    let pid = newcomer.running.pid();
    wait_so("a newcomer to be attached", || {
        process(&honest.node, pid).is_some()
    });
    honest.turns(3);
    // A connection and a name of its process, on hook.sock; a connection on status.sock.
    let most = before + 2 * LIMIT + 64 + 16;
    wait_for("what is refused to be closed", || {
        (descriptors(agent) <= most).then_some(())
    });
}

/// P-SECURITY-21: readers of status keep nobody from steering.
#[test]
fn readers_without_end_share_a_report_and_keep_no_operator_waiting() {
    let Some(mut honest) = Honest::beside_strangers("") else {
        return;
    };
    let attached: Vec<Peer> = (0..24)
        .map(|at| honest.stranger(&format!("row{at}")))
        .collect();
    let agent = honest.node.agent.as_ref().expect("it runs").pid();
    let mut stranger = Peer::of_nobody(&honest.node);
    stranger.ask("readers 60 16");
    let spent = |from: [u64; 2]| [0, 1].map(|at| thread_cpu_ns(agent)[at] - from[at]);
    let before = thread_cpu_ns(agent);
    while spent(before)[1] < 500_000_000 {
        honest.turns(1);
        for args in [["pause"], ["resume"]] {
            let output = honest.node.tidegate(&args);
            assert!(output.status.success(), "{args:?}: {output:?}");
        }
    }
    let [control, all] = spent(before);
    assert!(
        control < all / 4,
        "the control thread used {control} of the agent's {all} ns"
    );
    drop((stranger, attached));
    honest.turns(1);
}

/// Events of a kind, oldest first.
fn events(node: &Node, kind: &str) -> Vec<serde_json::Value> {
    let output = node.tidegate(&["events", "--kind", kind, "--output", "json"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let event = |line| serde_json::from_str(line).expect("events are JSON lines");
    text.lines().map(event).collect()
}

/// P-SECURITY-22: what a tenant says or makes does not multiply in the log, and what operators did is kept.
#[test]
fn notes_without_end_are_counted_and_hide_nothing_that_an_operator_did() {
    const NOTES: u64 = 8_000;
    let Some(mut honest) = Honest::beside_strangers("") else {
        return;
    };
    let mut stranger = honest.stranger("flood");
    for args in [["drain"], ["undrain"]] {
        let output = honest.node.tidegate(&args);
        assert!(output.status.success(), "{args:?}: {output:?}");
    }
    stranger.ask(&format!("flood {NOTES}"));
    let counted = |honest: &Honest| -> u64 {
        let more = events(&honest.node, "more");
        let counts = more.iter().filter_map(|event| {
            let text = event["text"].as_str()?;
            let (count, whose) = text.split_once(" more events of ")?;
            count
                .parse::<u64>()
                .ok()
                .filter(|_| whose == format!("uid {NOBODY}"))
        });
        counts.sum()
    };
    // The same limit holds for its other events.
    wait_so("each note to be an event or to be counted", || {
        events(&honest.node, "note").len() as u64 + counted(&honest) >= NOTES
    });
    let told = events(&honest.node, "note").len();
    assert!(
        told < 2_000,
        "{told} of {NOTES} notes are events of their own"
    );
    for kind in ["drained", "undrained"] {
        assert_eq!(events(&honest.node, kind).len(), 1);
    }
    honest.turns(2);
}

/// The GPUs of each job of that name.
fn gpus_of_jobs(node: &Node, name: &str) -> Vec<serde_json::Value> {
    let status = status(node);
    let jobs = status["jobs"].as_array().cloned().unwrap_or_default();
    let own = jobs.into_iter().filter(|job| job["name"] == name);
    own.map(|job| job["gpus"].clone()).collect()
}

/// P-SECURITY-23: nobody joins another tenant's job by its name, unless an operator says so.
#[test]
fn a_container_ties_no_other_containers_job_to_its_gpus() {
    let own = std::process::id();
    let id = |part: &str| format!("tg-jobs-{own}/{:0>64}", format!("{own:x}{part}"));
    let cgroups = ["a", "b"].map(|part| Cgroup::make(&id(part)));
    let [Some(victim), Some(stranger)] = &cgroups else {
        eprintln!("!!! SKIPPED: no cgroup may be made here");
        return;
    };
    for (rule, jobs) in [(String::new(), 2), (joining(), 1)] {
        let node = Node::new(&["--gpus", "2"], &format!("{TRUSTING}{rule}"));
        let peers = [(victim, 0), (stranger, 1)].map(|(cgroup, gpu)| {
            let mut peer = Peer::in_cgroup(&node, cgroup);
            peer.ask("connect");
            peer.ask("hello offline batch");
            peer.ask(&format!("device 0 {gpu}"));
            peer
        });
        let expected = if jobs == 1 {
            serde_json::json!([[0, 1]])
        } else {
            serde_json::json!([[0], [1]])
        };
        wait_so("both GPUs to be known, of one job or of two", || {
            serde_json::json!(gpus_of_jobs(&node, "batch")) == expected
        });
        drop(peers);
    }
}

/// A rule by which an operator makes one job of the processes of all containers that name the same.
fn joining() -> String {
    let uid = std::fs::metadata("/proc/self")
        .expect("it is mounted")
        .uid();
    format!("[[identity.rules]]\nuid = {uid}\nrole = \"offline\"\njoin = true\n")
}

/// P-SECURITY-7: what one tenant takes is bounded and named, and nobody else notices.
#[test]
fn channels_that_a_stranger_invents_leave_places_for_an_honest_job() {
    let Some(mut honest) = Honest::beside_strangers("") else {
        return;
    };
    let mut strangers = Vec::new();
    for at in 0..16 {
        let mut stranger = honest.stranger(&format!("greedy{at}"));
        let made = stranger.ask("make 0 0");
        let client = made.split(' ').nth(1).expect("a client").to_owned();
        stranger.ask(&format!("invent {client} 1024"));
        strangers.push(stranger);
    }
    let all = |honest: &Honest| {
        strangers.iter().all(|stranger| {
            process(&honest.node, stranger.running.pid())
                .is_some_and(|known| known["channels"] == 1_024)
        })
    };
    wait_so("all of them to be heard", || all(&honest));
    wait_so("the strangers' share to be taken", || {
        counter(&honest.node, "channels_refused") > 0
    });
    let mut late = Peer::attached(&honest.node, "offline", "late");
    let (client, _) = late.channels(0, 200);
    let pid = late.running.pid();
    wait_so("its channels to be managed", || {
        process(&honest.node, pid).is_some_and(|known| known["channels"] == 200)
    });
    honest.online.ask("busy 0");
    wait_all(&honest.node, client, true);
    honest.online.ask("idle 0");
    wait_all(&honest.node, client, false);
    let note = process(&honest.node, pid).expect("attached")["note"].to_string();
    assert!(!note.contains("journal"), "{note}");
}

/// P-SECURITY-8: what a stranger passes makes nobody wait but itself.
#[test]
fn sockets_whose_close_waits_hold_up_neither_calls_nor_proofs() {
    let Some(mut honest) = Honest::beside_strangers("") else {
        return;
    };
    let mut stranger = Peer::of_nobody(&honest.node);
    stranger.ask("linger");
    let mut others = Vec::new();
    for _ in 0..3 {
        let mut other = Peer::of_nobody(&honest.node);
        other.ask("connect lingering");
        other.ask("hello offline lingering");
        others.push(other);
    }
    for args in [["status"], ["pause"], ["resume"]] {
        let output = honest.node.tidegate(&args);
        assert!(output.status.success(), "{args:?}: {output:?}");
    }
    let mut newcomer = Peer::attached(&honest.node, "offline", "newcomer");
    let (client, _) = newcomer.channels(0, 2);
    honest.online.ask("busy 0");
    // Only what was proven is disabled.
    wait_all(&honest.node, client, true);
    honest.online.ask("idle 0");
    wait_all(&honest.node, client, false);
    honest.turns(2);
}

/// P-SECURITY-12: files that strangers pass where none belongs take no descriptor and no thread of the agent's.
#[test]
fn files_that_nobody_asked_for_take_no_descriptors() {
    let Some(mut honest) = Honest::beside_strangers("[limits]\nconnections_per_uid = 64\n") else {
        return;
    };
    let agent = honest.node.agent.as_ref().expect("it runs").pid();
    let before = descriptors(agent);
    let mut strangers: Vec<Peer> = (0..3).map(|_| Peer::of_nobody(&honest.node)).collect();
    for stranger in &mut strangers {
        stranger.tell("files 100");
    }
    // Its seats on both sockets: two descriptors each, and one of a greeting. What it passes, 150,000 files, has none.
    let most = before + 64 * 3 + 64 * 2 + 64;
    let mut highest = 0;
    for _ in 0..8 {
        honest.turns(1);
        highest = highest.max(descriptors(agent));
        let output = honest.node.tidegate(&["status"]);
        assert!(output.status.success(), "{output:?}");
    }
    assert!(highest <= most, "{highest} descriptors, {before} before");
    let newcomer = Peer::attached(&honest.node, "offline", "newcomer");
    let pid = newcomer.running.pid();
    wait_so("a newcomer to be attached", || {
        process(&honest.node, pid).is_some()
    });
    drop(strangers);
    wait_for("what they held to be closed", || {
        (descriptors(agent) <= before + 16).then_some(())
    });
}

/// P-SECURITY-13: what stays of what a tenant sends and asks is at most its share.
#[test]
fn who_attaches_again_and_again_has_one_connection() {
    let Some(mut honest) = Honest::beside_strangers("") else {
        return;
    };
    let agent = honest.node.agent.as_ref().expect("it runs").pid();
    let before = descriptors(agent);
    let mut stranger = Peer::of_nobody(&honest.node);
    stranger.ask("again 40");
    let pid = stranger.running.pid();
    wait_so("the older ones to be closed", || {
        let said = status(&honest.node);
        let known = said["processes"].as_array().map_or(0, |all| {
            all.iter().filter(|known| known["pid"] == pid).count()
        });
        known == 1 && stranger.times("end") == 39 && descriptors(agent) <= before + 8
    });
    honest.turns(2);
}

/// P-SECURITY-13: what stays of what a tenant sends and asks is at most its share.
#[test]
fn what_is_begun_and_never_ends_and_what_is_asked_and_never_taken_is_cut() {
    let Some(mut honest) = Honest::beside_strangers("") else {
        return;
    };
    let mut strangers: Vec<Peer> = (0..2).map(|_| Peer::of_nobody(&honest.node)).collect();
    strangers[0].ask("begin 1");
    strangers[1].ask("untaken 16 1");
    honest.turns(2);
    wait_so("both to be cut off", || {
        strangers.iter().all(|stranger| stranger.heard("cut"))
    });
    wait_for_refusal(&honest, "does not end");
    wait_for_refusal(&honest, "not taken");
    honest.turns(2);
}

/// P-SECURITY-10: no file that a stranger can open keeps an agent from starting.
#[test]
fn files_that_a_stranger_locks_keep_no_agent_from_starting() {
    let Some(mut honest) = Honest::beside_strangers("") else {
        return;
    };
    let mut stranger = Peer::of_nobody(&honest.node);
    // Versions before 0.2 left their lock open to everybody: a stranger may have opened it then.
    let earlier = honest.node.run_dir().join("lock");
    let mut early = Peer::of_nobody(&honest.node);
    for open in [false, true] {
        honest
            .node
            .agent
            .take()
            .expect("it runs")
            .signal(libc::SIGKILL);
        if open {
            let everybody = std::fs::Permissions::from_mode(0o644);
            std::fs::set_permissions(&earlier, everybody).expect("it is there");
        }
        let locked = if open { &mut early } else { &mut stranger }.ask("lock");
        assert_ne!(
            locked, "locked 0",
            "there is nothing to lock, so nothing is tried"
        );
        honest.node.start_agent("");
        let modes = [earlier.clone(), honest.node.run_dir().join("agent.lock")].map(|file| {
            let file = std::fs::metadata(file).expect("it is there");
            file.permissions().mode() & 0o7777
        });
        assert_eq!(modes, [0o600; 2], "who can open it can lock it");
        let successor = honest.node.replace_agent("");
        drop(successor);
    }
}

/// P-SECURITY-9: preemption does not wait for what a stranger says.
#[test]
fn storms_of_long_messages_are_read_at_their_tenants_pace() {
    let Some(mut honest) = Honest::beside_strangers("") else {
        return;
    };
    honest.turns(5);
    let mut strangers: Vec<Peer> = (0..4).map(|_| honest.stranger("storm")).collect();
    for stranger in &mut strangers {
        stranger.tell("storm 100 2000");
    }
    wait_for_refusal(&honest, "too many messages");
    honest.turns(10);
    // Of 120,000 changes in one message nothing is heard at all.
    let mut huge = honest.stranger("huge");
    huge.ask("storm 1 120000");
    wait_for_refusal(&honest, "beyond all bounds");
    wait_so("its stream to be closed", || huge.heard("end"));
    honest.turns(3);
    let preempted = &status(&honest.node)["gpus"][0]["preempt_latency"];
    let median = preempted["p50_ns"].as_u64().expect("it was preempted");
    assert!(median < 50_000_000, "{preempted}");
    drop(strangers);
    honest.turns(1);
}

/// For so long the agent uses less than a quarter of a processor.
fn uses_little(honest: &Honest, ns: u64) {
    let agent = honest.node.agent.as_ref().expect("it runs").pid();
    let (begun, used) = (monotonic_ns(), cpu_ns(agent));
    wait_for("a while", || (monotonic_ns() >= begun + ns).then_some(()));
    let (passed, used) = (monotonic_ns() - begun, cpu_ns(agent) - used);
    assert!(used < passed / 4, "the agent used {used} of {passed} ns");
}

/// P-SECURITY-16: who wakes the agent for nothing is not listened to.
#[test]
fn a_stranger_that_wakes_without_a_ring_is_named_and_not_listened_to() {
    let limit = "[limits]\nrings_per_second = 2000\n";
    let Some(mut honest) = Honest::sharing_with_strangers(limit, "turns", 1) else {
        return;
    };
    let mut stranger = Peer::of_nobody(&honest.node);
    stranger.ask("connect");
    stranger.ask("hello offline waker says-work");
    stranger.ask("device 0 0");
    stranger.tell("wake 30000");
    wait_for_refusal(&honest, "woke the agent without a ring");
    uses_little(&honest, 1_500_000_000);
    honest.turns(2);
}

/// Whether that process may make files immutable, and the kernel lets it do so with a file of memory.
fn may_make_pages_immutable(pid: u32) -> bool {
    const LINUX_IMMUTABLE: u64 = 1 << 9;
    let text = |path: String| std::fs::read_to_string(path).unwrap_or_default();
    let status = text(format!("/proc/{pid}/status"));
    let mut rights = status
        .lines()
        .filter_map(|line| line.strip_prefix("CapEff:"));
    let rights = rights.find_map(|text| u64::from_str_radix(text.trim(), 16).ok());
    let release = text("/proc/sys/kernel/osrelease".to_owned());
    let major = release.split('.').next().and_then(|text| text.parse().ok());
    rights.unwrap_or(0) & LINUX_IMMUTABLE != 0 && major.unwrap_or(0) >= 6
}

/// P-SECURITY-16: no process takes the memory of its page away, which would make whoever waits on it fail.
#[test]
fn no_stranger_takes_the_memory_of_its_page_away() {
    let Some(mut honest) = Honest::sharing_with_strangers("", "turns", 1) else {
        return;
    };
    let agent = honest.node.agent.as_ref().expect("it runs").pid();
    let mut stranger = Peer::of_nobody(&honest.node);
    stranger.ask("connect");
    stranger.ask("hello offline holes says-work");
    stranger.ask("device 0 0");
    let made = stranger.ask("holes 300");
    if may_make_pages_immutable(agent) {
        assert_eq!(made, "holes 0");
        // It is written as before.
        stranger.ask("idle 0");
    } else {
        eprintln!("!!! the agent may make no file immutable here: {made}");
    }
    honest.turns(2);
}

/// To look for another control file of a process is as long as its table of files.
/// P-SECURITY-17: false claims cost their tenant what they cost the agent.
#[test]
fn false_claims_of_a_stranger_with_thousands_of_files_wait_for_each_other() {
    let Some(mut honest) = Honest::beside_strangers("") else {
        return;
    };
    let mut stranger = honest.stranger("liar");
    assert_eq!(stranger.ask("table 4000"), "table 4000");
    // One that stays long enough to be found false.
    stranger.ask("report 0 0x6fffffff 0x6fffffff");
    wait_so("a false claim", || {
        counter(&honest.node, "foreign_claims") > 0
    });
    stranger.tell("lie 60000");
    uses_little(&honest, 2_000_000_000);
    // An honest one is proven meanwhile.
    let mut newcomer = Peer::attached(&honest.node, "offline", "newcomer");
    let (client, _) = newcomer.channels(0, 2);
    honest.online.ask("busy 0");
    wait_all(&honest.node, client, true);
    honest.online.ask("idle 0");
    wait_all(&honest.node, client, false);
}

/// P-FAIR-23: a process that has shown no channel of its own has no part of the memory of those that have one, and one that
/// has gets its part.
#[test]
fn a_cache_that_a_stranger_invents_takes_no_memory_from_an_engine() {
    const STRIPE: u64 = 2 << 20;
    let Some(honest) = Honest::beside_strangers("[memory]\npool = \"256MiB\"\n") else {
        return;
    };
    let deserves = |name: &str| {
        let status = status(&honest.node);
        let jobs = status["jobs"].as_array()?.clone();
        let job = jobs.into_iter().find(|job| job["name"] == name)?;
        Some(job["memory"]["deserves_bytes"].as_u64()? / STRIPE)
    };
    let mut engine = Peer::attached(&honest.node, "offline", "engine");
    engine.channels(0, 2);
    engine.ask("cache 100");
    let mut liar = honest.stranger("liar");
    liar.ask("cache 100");
    wait_so("the stranger to be weighed", || deserves("liar").is_some());
    assert_eq!((deserves("engine"), deserves("liar")), (Some(100), Some(0)));
    let mut second = Peer::attached(&honest.node, "offline", "second");
    second.channels(0, 2);
    second.ask("cache 100");
    wait_so("a second engine to have its part", || {
        deserves("second").is_some_and(|stripes| stripes > 40)
    });
    assert_eq!(deserves("liar"), Some(0));
    assert!(deserves("engine").is_some_and(|stripes| (40..100).contains(&stripes)));
}
