//! What the agent does for, and against, peers that behave in every way.

use tidegate_tests::peer::Peer;
use tidegate_tests::view::{counter, disabled, process, status, wait_all, wait_so};
use tidegate_tests::{Node, Offline, TempDir, clock, compile, wait_for, watch};
use tidegate_vgpu::control::Control;

const FIXED: &str = "[identity]\ntrust_env_uids = [\"self\"]\n[gate]\ncooldown = \"5ms\"\n";

fn at_level(level: &str) -> String {
    format!("{FIXED}[channel]\nlevel = \"{level}\"\n")
}

#[track_caller]
fn gates_at(level: &str) {
    let node = Node::new(&[], &at_level(level));
    let mut online = Peer::idle_online(&node);
    let mut offline = Peer::attached(&node, "offline", "batch");
    let (client, channels) = offline.channels(0, 70);
    assert_eq!(channels.len(), 70, "more than one call carries");
    wait_so("the job to run", || {
        status(&node)["jobs"][0]["state"] == "running"
    });
    for _ in 0..3 {
        online.ask("busy 0");
        wait_all(&node, client, true);
        online.ask("idle 0");
        wait_all(&node, client, false);
    }
    let status = status(&node);
    assert_eq!(status["gpus"][0]["channels"], 70);
    assert_eq!(status["gpus"][0]["preemptions"], 3);
    assert_eq!(status["jobs"][0]["name"], "batch");
}

#[test]
fn a_busy_edge_disables_and_a_cooldown_enables_through_the_agents_own_client() {
    gates_at("L1");
}

#[test]
fn a_busy_edge_disables_and_a_cooldown_enables_through_the_owners_file() {
    gates_at("L2");
}

#[test]
fn a_busy_edge_disables_and_a_cooldown_enables_by_the_process_itself() {
    gates_at("L3");
}

#[test]
fn at_level_5_launches_wait_and_no_channel_is_touched() {
    let node = Node::new(&[], &at_level("L5"));
    let table = tidegate_tests::view::table(&node);
    assert!(!table.contains("self-test"), "nothing was tried: {table}");
    let mut online = Peer::idle_online(&node);
    let mut offline = Peer::attached(&node, "offline", "batch");
    let (client, _) = offline.channels(0, 2);
    wait_so("an open gate", || offline.ask("gate 0") == "gate open");
    online.ask("busy 0");
    wait_so("a closed gate", || offline.ask("gate 0") == "gate closed");
    assert_eq!(disabled(&node, client), [false, false]);
    online.ask("idle 0");
    wait_so("an open gate", || offline.ask("gate 0") == "gate open");
}

#[test]
fn a_process_without_rights_to_it_is_never_online() {
    let node = Node::new(&[], "[gate]\ncooldown = \"5ms\"\n");
    let mut forger = Peer::start(&node);
    forger.ask("connect");
    let welcome = forger.ask("hello online");
    assert!(welcome.contains("ROLE_IGNORE"), "{welcome}");
}

/// P-SECURITY-1: a hostile process neither stops the agent nor moves others.
#[test]
fn channels_of_another_process_are_not_touched_whenever_they_are_claimed() {
    let node = Node::new(&[], FIXED);
    let mut online = Peer::idle_online(&node);
    // Before their owner reports them.
    let made = online.ask("make 0 2");
    let words: Vec<&str> = made.split(' ').skip(1).collect();
    let client = u32::from_str_radix(&words[0][2..], 16).expect("a handle");
    let mut early = Peer::attached(&node, "offline", "thief");
    early.ask(&format!("report 0 {}", words.join(" ")));
    wait_so("the claim's refusal", || {
        counter(&node, "foreign_claims") >= 1
    });
    online.ask(&format!("report 0 {}", words.join(" ")));
    // After it.
    let mut late = Peer::attached(&node, "offline", "thief");
    late.ask(&format!("report 0 {}", words.join(" ")));
    wait_so("the claim's refusal", || {
        counter(&node, "foreign_claims") >= 2
    });
    // And without any file to ask.
    let mut fileless = Peer::start(&node);
    fileless.ask("connect nofile");
    fileless.ask("hello offline thief");
    fileless.ask(&format!("report 0 {}", words.join(" ")));
    let mut honest = Peer::attached(&node, "offline", "honest");
    let (own, _) = honest.channels(0, 1);
    online.ask("busy 0");
    wait_all(&node, own, true);
    assert_eq!(disabled(&node, client), [false, false]);
}

/// P-SECURITY-1: a hostile process neither stops the agent nor moves others.
#[test]
fn a_file_that_is_not_the_drivers_proves_nothing() {
    let node = Node::new(&[], FIXED);
    let mut online = Peer::idle_online(&node);
    let mut liar = Peer::start(&node);
    liar.ask("connect wrongfile");
    liar.ask("hello offline liar");
    let (client, _) = liar.channels(0, 1);
    let mut honest = Peer::attached(&node, "offline", "honest");
    let (own, _) = honest.channels(0, 1);
    online.ask("busy 0");
    wait_all(&node, own, true);
    assert_eq!(disabled(&node, client), [false]);
}

#[test]
fn a_scheduling_call_of_a_gated_job_waits_until_its_channels_are_disabled() {
    let node = Node::new(&[], FIXED);
    let mut online = Peer::idle_online(&node);
    online.ask("busy 0");
    let mut offline = Peer::attached(&node, "offline", "batch");
    let made = offline.ask("make 0 2");
    let words: Vec<&str> = made.split(' ').skip(1).collect();
    offline.ask(&format!("schedule 1 {} {}", words[0], words[1]));
    let client = u32::from_str_radix(&words[0][2..], 16).expect("a handle");
    assert!(
        !offline.heard("go 1"),
        "nothing is known of the channel yet"
    );
    offline.ask(&format!("report 0 {}", words.join(" ")));
    wait_so("the call's turn", || offline.heard("go 1"));
    assert_eq!(disabled(&node, client), [true, true]);
}

/// P-SECURITY-1: a hostile process neither stops the agent nor moves others.
#[test]
fn random_bytes_in_a_page_neither_stop_the_agent_nor_other_processes() {
    let node = Node::new(&[], FIXED);
    let mut online = Peer::idle_online(&node);
    let mut offline = Peer::attached(&node, "offline", "batch");
    let (client, _) = offline.channels(0, 1);
    let mut hostile = Peer::attached(&node, "online", "");
    hostile.ask("scribble 300");
    let mut hostile_offline = Peer::attached(&node, "offline", "noise");
    hostile_offline.ask("scribble 300");
    drop(hostile);
    drop(hostile_offline);
    online.ask("busy 0");
    wait_all(&node, client, true);
    online.ask("idle 0");
    wait_all(&node, client, false);
}

/// P-SECURITY-1: a hostile process neither stops the agent nor moves others.
#[test]
fn a_process_that_rings_without_end_loses_its_page() {
    let node = Node::new(&[], &format!("{FIXED}[limits]\nrings_per_second = 2000\n"));
    let mut online = Peer::idle_online(&node);
    let mut offline = Peer::attached(&node, "offline", "batch");
    let (client, _) = offline.channels(0, 1);
    let mut hostile = Peer::attached(&node, "online", "");
    hostile.tell("ring 30000");
    wait_so("the page's end", || counter(&node, "pages_dropped") == 1);
    // It counted as busy, and no longer does.
    wait_all(&node, client, false);
    online.ask("busy 0");
    wait_all(&node, client, true);
}

/// P-SECURITY-1: a hostile process neither stops the agent nor moves others.
#[test]
fn floods_and_huge_messages_cost_only_their_sender() {
    let node = Node::new(&[], FIXED);
    let mut online = Peer::idle_online(&node);
    let mut offline = Peer::attached(&node, "offline", "batch");
    let (client, _) = offline.channels(0, 1);
    let mut flood = Peer::attached(&node, "offline", "flood");
    flood.ask("flood 20000");
    let mut huge = Peer::attached(&node, "offline", "huge");
    huge.ask("huge");
    wait_so("the end of its stream", || huge.heard("end"));
    online.ask("busy 0");
    wait_all(&node, client, true);
}

#[test]
fn a_connection_that_begins_with_anything_else_is_closed() {
    let node = Node::new(&[], FIXED);
    let mut peer = Peer::start(&node);
    for bytes in [
        "474554202f20485454502f312e310d0a0d0a",
        "0000000000000000000000000000000000000000",
        "ffffffffffffffffffffffffffffffff",
        // A greeting that is not ours.
        "000007f70000000000414243440000000000",
    ] {
        assert_eq!(peer.ask(&format!("raw {bytes}")), "closed", "{bytes}");
    }
}

/// P-LIFECYCLE-7: what a dead client held is given back.
#[test]
fn what_a_dead_process_held_is_given_back() {
    let node = Node::new(&[], FIXED);
    let mut online = Peer::idle_online(&node);
    online.ask("busy 0");
    let mut offline = Peer::attached(&node, "offline", "batch");
    let (client, _) = offline.channels(0, 3);
    wait_all(&node, client, true);
    drop(offline);
    wait_so("an empty node", || {
        let status = status(&node);
        status["gpus"][0]["channels"] == 0 && status["jobs"].as_array().is_some_and(Vec::is_empty)
    });
}

/// P-LIFECYCLE-7: what a dead client held is given back.
#[test]
fn an_online_process_that_dies_busy_does_not_keep_the_gate_closed() {
    let node = Node::new(&[], FIXED);
    let mut online = Peer::idle_online(&node);
    let mut offline = Peer::attached(&node, "offline", "batch");
    let (client, _) = offline.channels(0, 1);
    online.ask("busy 0");
    wait_all(&node, client, true);
    drop(online);
    wait_all(&node, client, false);
}

#[test]
fn a_lost_connection_keeps_the_job_gated() {
    let node = Node::new(&[], FIXED);
    let mut online = Peer::idle_online(&node);
    let mut offline = Peer::attached(&node, "offline", "batch");
    let (client, channels) = offline.channels(0, 2);
    online.ask("busy 0");
    wait_all(&node, client, true);
    offline.ask("drop");
    wait_so("the loss to show", || {
        status(&node)["processes"]
            .to_string()
            .contains("connection lost")
    });
    online.ask("idle 0");
    wait_all(&node, client, false);
    online.ask("busy 0");
    wait_all(&node, client, true);
    // It attaches again and is the same process.
    offline.ask("connect");
    offline.ask("hello offline batch");
    offline.ask("device 0 0");
    let list: Vec<_> = channels.iter().map(|c| format!("{c:#x}")).collect();
    offline.ask(&format!("report 0 {client:#x} {}", list.join(" ")));
    online.ask("idle 0");
    wait_all(&node, client, false);
    let status = status(&node);
    assert_eq!(status["processes"].as_array().map(Vec::len), Some(2));
}

#[test]
fn pause_and_resume_steer_one_job() {
    let node = Node::new(&[], &format!("{FIXED}[fair]\nmode = \"together\"\n"));
    let mut a = Peer::attached(&node, "offline", "a");
    let mut b = Peer::attached(&node, "offline", "b");
    let ((client_a, _), (client_b, _)) = (a.channels(0, 1), b.channels(0, 1));
    wait_all(&node, client_a, false);
    assert!(node.tidegate(&["pause", "a"]).status.success());
    wait_all(&node, client_a, true);
    assert_eq!(disabled(&node, client_b), [false]);
    assert!(node.tidegate(&["resume", "a"]).status.success());
    wait_all(&node, client_a, false);
    assert_eq!(node.tidegate(&["pause", "c"]).status.code(), Some(1));
}

#[test]
fn a_second_agent_is_told_who_runs_and_ends_with_3() {
    let node = Node::new(&[], FIXED);
    let second = node.agent_command().output().expect("it starts");
    assert_eq!(second.status.code(), Some(3), "{second:?}");
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    let pid = node.agent.as_ref().expect("it runs").pid().to_string();
    assert!(text.contains(&pid), "{text}");
}

/// P-OPERATE-28: one agent drives a device, whatever directories there are.
#[test]
fn a_second_agent_on_the_device_is_told_who_drives_it_and_ends_with_3() {
    let mut node = Node::new(&[], FIXED);
    let mut peer = Peer::attached(&node, "offline", "batch");
    let (client, _) = peer.channels(0, 2);
    let elsewhere = TempDir::new();
    let start = |replace: &[&str]| {
        let mut command = node.agent_command();
        command.env("TIDEGATE_RUN_DIR", elsewhere.path());
        let second = command.args(replace).output().expect("it starts");
        assert_eq!(second.status.code(), Some(3), "{second:?}");
        String::from_utf8_lossy(&second.stderr).into_owned()
    };
    let pid = node.agent.as_ref().expect("it runs").pid().to_string();
    for said in [start(&[]), start(&["--replace"])] {
        assert!(said.contains(&pid), "{said}");
        assert!(said.contains("already drives device"), "{said}");
    }
    wait_all(&node, client, false);
    // An agent that was killed keeps nobody out.
    node.agent = None;
    node.start_agent(FIXED);
}

#[test]
fn a_driver_that_refuses_foreign_pairs_is_asked_through_the_owners_file() {
    let mut node = Node::device_only(&[]);
    let device = Control::connect(&node.vgpu_dir()).expect("the device listens");
    device.set("gsp_foreign", "deny_1b").expect("a knob");
    node.start_agent(FIXED);
    let seen = status(&node);
    assert_eq!(seen["level"], "l2_owner_file");
    let note = seen["level_note"].as_str().expect("a text");
    assert!(note.contains("INSUFFICIENT_PERMISSIONS"), "{note}");
    let mut online = Peer::idle_online(&node);
    let mut offline = Peer::attached(&node, "offline", "batch");
    let (client, _) = offline.channels(0, 2);
    online.ask("busy 0");
    wait_all(&node, client, true);
}

#[test]
fn a_forced_level_that_does_not_work_is_an_error() {
    let node = Node::device_only(&[]);
    let device = Control::connect(&node.vgpu_dir()).expect("the device listens");
    device.set("gsp_foreign", "deny_23").expect("a knob");
    let mut command = node.agent_command();
    command.env("TIDEGATE_CHANNEL__LEVEL", "L1");
    let output = command.output().expect("it starts");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("channel level L1 cannot be used"), "{text}");
}

#[test]
fn a_driver_of_a_known_branch_runs_with_a_note_when_its_version_was_not_tested() {
    let node = Node::new(&["--driver", "580.159.04"], FIXED);
    let seen = status(&node);
    assert_eq!(seen["level"], "l1_agent");
    let note = seen["driver_note"].as_str().expect("a text");
    assert!(note.contains("not a version that was tested"), "{note}");
}

#[test]
fn a_configuration_with_an_unknown_key_ends_with_2_and_names_it() {
    let node = Node::device_only(&[]);
    let mut command = node.agent_command();
    command.env("TIDEGATE_GATE__COOLDWN", "5ms");
    let output = command.output().expect("it starts");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("gate.cooldwn"), "{text}");
}

#[test]
fn more_online_processes_than_one_wait_can_hold_are_all_heard() {
    let node = Node::new(&[], FIXED);
    let mut crowd: Vec<Peer> = (0..140).map(|_| Peer::start(&node)).collect();
    for peer in &mut crowd {
        peer.ask("connect");
        peer.ask("hello online");
        peer.ask("device 0 0");
        peer.ask("idle 0");
    }
    let mut offline = Peer::attached(&node, "offline", "batch");
    let (client, _) = offline.channels(0, 1);
    for at in [0, 139] {
        wait_all(&node, client, false);
        crowd[at].ask("busy 0");
        wait_all(&node, client, true);
        crowd[at].ask("idle 0");
    }
}

#[test]
fn events_tell_the_story_of_a_preemption() {
    let node = Node::new(&[], FIXED);
    let mut online = Peer::idle_online(&node);
    let mut offline = Peer::attached(&node, "offline", "batch");
    let (client, _) = offline.channels(0, 1);
    wait_so("a first wake", || counter(&node, "rings") > 0);
    wait_so("the job to run", || {
        status(&node)["jobs"][0]["state"] == "running"
    });
    wait_all(&node, client, false);
    online.ask("busy 0");
    wait_all(&node, client, true);
    let story = || {
        let output = node.tidegate(&["events", "--output", "json"]);
        let text = String::from_utf8(output.stdout).expect("JSON");
        let kinds: Vec<String> = text
            .lines()
            .filter_map(|line| {
                let event: serde_json::Value = serde_json::from_str(line).ok()?;
                Some(event["kind"].as_str()?.to_owned())
            })
            .collect();
        kinds.ends_with(&["preempted".to_owned()]).then_some(kinds)
    };
    let kinds = wait_for("the preemption", story);
    assert_eq!(kinds[0], "attached");
    assert!(kinds.contains(&"woken".to_owned()), "{kinds:?}");
}

#[test]
fn every_wake_is_told_also_one_that_online_overtakes_between_two_batches() {
    let node = Node::new(&[], FIXED);
    let mut online = Peer::idle_online(&node);
    let mut offline = Peer::attached(&node, "offline", "batch");
    let (_, channels) = offline.channels(0, 70);
    assert_eq!(channels.len(), 70, "more than one call carries");
    wait_so("the job to run", || {
        status(&node)["jobs"][0]["state"] == "running"
    });
    let told = || {
        let output = node.tidegate(&["events", "--output", "json"]);
        let text = String::from_utf8(output.stdout).expect("JSON");
        text.matches("\"woken\"").count() + text.matches("\"wake_overtaken\"").count()
    };
    let gated = || {
        wait_so("the job to be gated", || {
            status(&node)["jobs"][0]["state"] == "gated"
        });
    };
    let device = Control::connect(&node.vgpu_dir()).expect("the device listens");
    device.set("enable_us", 300_000).expect("a knob");
    // A call of the first batch takes long enough for online to begin meanwhile; where the machine is
    // too busy for that, the wake is over, and the next one is tried.
    wait_so("a wake withheld after its first batch", || {
        online.ask("busy 0");
        gated();
        let (withheld, before) = (counter(&node, "enables_withheld"), told());
        online.ask("idle 0");
        wait_so("the wake", || {
            let state = status(&node)["jobs"][0]["state"].clone();
            state == "enabling" || state == "running"
        });
        online.ask("busy 0");
        gated();
        wait_so("a word of the wake", || told() > before);
        counter(&node, "enables_withheld") > withheld
    });
}

#[test]
fn launches_wait_for_a_process_whose_channels_cannot_be_controlled() {
    let node = Node::new(&[], FIXED);
    let mut online = Peer::idle_online(&node);
    let mut offline = Peer::start(&node);
    offline.ask("connect nofile");
    offline.ask("hello offline batch");
    offline.ask("device 0 0");
    let (client, _) = offline.channels(0, 1);
    wait_so("an open gate", || offline.ask("gate 0") == "gate open");
    online.ask("busy 0");
    wait_so("a closed gate", || offline.ask("gate 0") == "gate closed");
    assert_eq!(disabled(&node, client), [false]);
    online.ask("idle 0");
    wait_so("an open gate", || offline.ask("gate 0") == "gate open");
}

#[test]
fn a_driver_that_does_not_return_is_an_event_and_launches_wait() {
    let node = Node::new(&[], FIXED);
    let mut online = Peer::idle_online(&node);
    let mut offline = Peer::attached(&node, "offline", "batch");
    let (client, _) = offline.channels(0, 1);
    wait_so("an open gate", || offline.ask("gate 0") == "gate open");
    wait_so("the job to run", || {
        status(&node)["jobs"][0]["state"] == "running"
    });
    let device = Control::connect(&node.vgpu_dir()).expect("the device listens");
    device.set("disable_fixed_us", 400_000).expect("a knob");
    online.ask("busy 0");
    wait_so("the stall to show", || counter(&node, "issue_stalls") == 1);
    wait_so("a closed gate", || offline.ask("gate 0") == "gate closed");
    wait_all(&node, client, true);
}

#[test]
fn the_service_manager_hears_that_the_agent_is_ready_and_alive() {
    let mut node = Node::device_only(&[]);
    let path = node.dir().join("notify.sock");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).expect("a free name");
    socket
        .set_read_timeout(Some(clock::DEADLINE))
        .expect("a socket takes a time limit");
    let mut command = node.agent_command();
    command
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "300000")
        .stderr(std::process::Stdio::null());
    node.agent = Some(tidegate_tests::Running::start("agent", &mut command));
    let mut heard = Vec::new();
    while !heard
        .iter()
        .any(|text: &String| text.starts_with("READY=1"))
        || !heard.iter().any(|text| text.starts_with("WATCHDOG=1"))
    {
        let mut text = [0; 256];
        let length = socket.recv(&mut text).expect("the agent speaks in time");
        heard.push(String::from_utf8_lossy(&text[..length]).into_owned());
    }
    node.agent.as_ref().expect("it runs").signal(libc::SIGTERM);
    loop {
        let mut text = [0; 256];
        let length = socket.recv(&mut text).expect("the agent speaks in time");
        if text[..length].starts_with(b"STOPPING=1") {
            break;
        }
    }
}

/// P-SECURITY-1: a hostile process neither stops the agent nor moves others.
#[test]
fn the_status_socket_reads_and_does_not_steer() {
    let node = Node::new(&[], FIXED);
    let socket = node.run_dir().join("status.sock").display().to_string();
    let run =
        |socket: &str, command: &str| node.tidegate(&["--socket", socket, command]).status.code();
    assert_eq!(run(&socket, "status"), Some(0));
    assert_eq!(run(&socket, "pause"), Some(3));
    assert_eq!(run(&socket, "resume"), Some(3));
    let hook = node.run_dir().join("hook.sock").display().to_string();
    assert_ne!(run(&hook, "status"), Some(0));
    assert_ne!(run(&hook, "pause"), Some(0));
}

#[test]
fn after_a_failed_disable_the_job_is_enabled_whole_and_then_decided_about_anew() {
    let node = Node::new(&[], FIXED);
    let mut online = Peer::idle_online(&node);
    let mut offline = Peer::attached(&node, "offline", "batch");
    let (client, _) = offline.channels(0, 70);
    wait_so("the job to run", || {
        status(&node)["jobs"][0]["state"] == "running"
    });
    let device = Control::connect(&node.vgpu_dir()).expect("the device listens");
    // Two calls a time: the GPU's thread acts on the edge without being told, then the order comes.
    device.set("fail_disable", 4).expect("a knob");
    online.ask("busy 0");
    wait_so("the failures to show", || {
        counter(&node, "disables_failed") == 2
    });
    // Online is still busy, so the job ends disabled.
    wait_all(&node, client, true);
}

#[test]
fn what_a_process_enabled_while_the_agent_was_stopped_is_disabled_again() {
    let node = Node::new(&[], FIXED);
    let mut online = Peer::idle_online(&node);
    let mut offline = Peer::attached(&node, "offline", "batch");
    let (client, _) = offline.channels(0, 3);
    online.ask("busy 0");
    wait_all(&node, client, true);
    let agent = node.agent.as_ref().expect("it runs");
    agent.freeze();
    offline.ask("land");
    assert!(disabled(&node, client).iter().all(|&flag| !flag));
    agent.signal(libc::SIGCONT);
    wait_all(&node, client, true);
}

#[test]
fn three_hundred_processes_attach_at_once() {
    let node = Node::new(&[], FIXED);
    let mut crowd: Vec<Peer> = (0..300).map(|_| Peer::start(&node)).collect();
    for peer in &mut crowd {
        peer.tell("connect");
        peer.tell("hello offline crowd");
        peer.tell("make 0 1");
        peer.tell("device 0 0");
    }
    wait_so("all of them", || {
        let status = status(&node);
        let processes = status["processes"].as_array().map(Vec::len);
        processes == Some(300)
            && status["jobs"][0]["sessions"].as_array().map(Vec::len) == Some(300)
    });
}

/// A stopped process keeps its socket open; only that it does not answer tells.
#[test]
fn a_client_that_is_stopped_is_noticed_and_attaches_again_when_it_goes_on() {
    let node = Node::new(&[], FIXED);
    let mut online = Peer::idle_online(&node);
    let mut offline = Offline::start(&node, 1_000_000, &[0]);
    offline.running();
    let pid = offline.process.pid();
    let row = |pid| process(&node, pid).map(|row| row["note"].as_str().unwrap_or("").to_owned());
    wait_so("it to attach", || row(pid).as_deref() == Some(""));
    offline.process.signal(libc::SIGSTOP);
    wait_so("its silence to show", || {
        row(pid).is_some_and(|note| note.contains("connection lost"))
    });
    // Its channels are gated all the same.
    online.ask("busy 0");
    watch::wait_all(&node, &[pid], true);
    online.ask("idle 0");
    watch::wait_all(&node, &[pid], false);
    offline.process.signal(libc::SIGCONT);
    wait_so("it to attach again", || row(pid).as_deref() == Some(""));
    offline.stop();
}

#[test]
fn a_process_says_which_driver_it_sees() {
    let node = Node::new(&["--driver", "570.211.01"], FIXED);
    let mut offline = Offline::start(&node, 1_000_000, &[0]);
    offline.running();
    let row = process(&node, offline.process.pid()).expect("it is attached");
    assert_eq!(row["driver_version"], "570.211.01");
    assert_eq!(status(&node)["driver_version"], "570.211.01");
    offline.stop();
}

#[test]
fn a_process_whose_driver_library_never_asks_for_the_version_says_it_all_the_same() {
    let node = Node::new(&["--driver", "570.211.01"], FIXED);
    let mut command = node.preloaded(compile("offline", &["-lcuda"]), "offline");
    command.env("TIDEGATE_VGPU_QUIET_VERSION", "1");
    let mut offline = Offline::from_command(command.args(["1000000", "0"]));
    offline.running();
    let row = process(&node, offline.process.pid()).expect("it is attached");
    assert_eq!(row["driver_version"], "570.211.01");
    offline.stop();
}

/// The driver waits for each disabled channel of a process whose files are closed, with the locks of
/// all GPUs held: a minute here. The agent holds the files until it has enabled the channels.
#[test]
fn a_gated_process_that_is_killed_stalls_nobody_and_runs_no_more_than_what_was_on_the_gpu() {
    let node = Node::new(&["--set", "stop_channel_wait_us=60000000"], FIXED);
    let mut online = Peer::idle_online(&node);
    let mut other = Peer::attached(&node, "offline", "other");
    let (client, _) = other.channels(0, 2);
    let mut offline = Offline::start(&node, 20_000_000, &[0]);
    offline.running();
    let pid = offline.process.pid();
    online.ask("busy 0");
    watch::wait_all(&node, &[pid], true);
    wait_all(&node, client, true);
    let killed = tidegate_tests::monotonic_ns();
    offline.process.signal(libc::SIGKILL);
    wait_so("its channels to be gone", || {
        watch::channels(&node, &[pid]).is_empty()
    });
    let ran = watch::Testimony::of(&node).finished_after(&[pid], killed);
    assert!(
        ran <= 1,
        "{ran} kernels of a dead process ran beside online"
    );
    online.ask("idle 0");
    wait_all(&node, client, false);
}

#[test]
fn hooks_of_every_attached_process_are_reported_while_it_launches_and_while_it_waits() {
    let node = Node::new(&[], FIXED);
    let mut online = Peer::idle_online(&node);
    let mut offline = Offline::start(&node, 1_000_000, &[0]);
    offline.running();
    online.ask("busy 0");
    let pid = offline.process.pid();
    watch::wait_all(&node, &[pid], true);
    wait_so("its hooks", || {
        let output = node.tidegate(&["hooks", &pid.to_string()]);
        String::from_utf8_lossy(&output.stdout).contains("cuLaunchKernel ")
    });
    online.ask("idle 0");
    offline.stop();
}
