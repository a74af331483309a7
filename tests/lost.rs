//! A GPU that answers nothing any more, or that refuses one process: what is on the others goes on.
//!
//! Judged by the history and the channels of the virtual GPU, whose engines go on while its RM refuses.

use tidegate_abi::rm::{
    NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS as DISABLE, NV2080_CTRL_CMD_GPU_GET_GID_INFO as GET_UUID,
};
use tidegate_tests::watch::{Testimony, status, wait_all, wait_finished, wait_open};
use tidegate_tests::{Node, Offline, Online, compile, monotonic_ns, wait_for};
use tidegate_vgpu::control::Control;
use tidegate_vgpu::history::Kind;

const CONFIG: &str = "[identity]\ntrust_env_uids = [\"self\"]\n[gate]\ncooldown = \"20ms\"\n[fair]\nturn = \"50ms\"\n";
/// RM's answer for a GPU that has fallen off the bus.
const GPU_IS_LOST: u32 = 0x0f;
const LEVELS: [&str; 3] = ["L1", "L2", "L3"];
/// Kernels that show that a job runs.
const ENOUGH: usize = 50;

fn at(level: &str) -> String {
    format!("{CONFIG}[channel]\nlevel = \"{level}\"\n")
}

fn set(node: &Node, knob: &str, value: &str) {
    let device = Control::connect(&node.vgpu_dir()).expect("the device listens");
    device.set(knob, value).expect("a knob");
}

/// A running job of one process, with kernels of `ns` nanoseconds on these GPUs.
fn job(node: &Node, name: &str, ns: u32, ordinals: &[u32]) -> Offline {
    let mut command = node.preloaded(compile("offline", &["-lcuda"]), "offline");
    command.arg(ns.to_string()).env("TIDEGATE_JOB", name);
    command.args(ordinals.iter().map(ToString::to_string));
    let mut offline = Offline::from_command(&mut command);
    offline.running();
    offline
}

fn state(node: &Node, name: &str) -> String {
    let status = status(node);
    let mut jobs = status["jobs"].as_array().into_iter().flatten();
    let own = jobs.find(|job| job["name"] == name);
    own.and_then(|job| job["state"].as_str())
        .unwrap_or("")
        .to_owned()
}

/// The gate of the job `pid` stops all its channels for `online`, and lets them run again, three times.
#[track_caller]
fn gates(node: &Node, online: &mut Online, pid: u32, channels: usize) {
    for _ in 0..3 {
        online.say("hold");
        assert_eq!(wait_all(node, &[pid], true), channels);
        let released = online.say("release");
        assert_eq!(wait_all(node, &[pid], false), channels);
        wait_finished(node, &[pid], ENOUGH, released);
    }
}

/// P-LIFECYCLE-8: a lost GPU leaves the others as they were.
#[test]
fn a_gpu_that_is_lost_leaves_gates_on_the_others_as_they_were() {
    for level in LEVELS {
        let node = Node::new(&["--gpus", "2"], &at(level));
        let [near, far] = [0, 1].map(|gpu| job(&node, &format!("on{gpu}"), 500_000, &[gpu]));
        let [near, far] = [&near, &far].map(|job| job.process.pid());
        let [mut first, mut second] = [0, 1].map(|gpu| Online::start(&node, gpu));
        wait_open(&node, 0, first.process.pid());
        wait_open(&node, 1, second.process.pid());
        let [count, _] = [near, far].map(|pid| wait_all(&node, &[pid], false));
        set(&node, "lost", "1");
        gates(&node, &mut first, near, count);
        // So it does while the lost one's gate is shut.
        second.say("hold");
        gates(&node, &mut first, near, count);
        wait_for("the job of the lost GPU to be given up", || {
            (state(&node, "on1") == "unmanaged").then_some(())
        });
        assert_eq!(state(&node, "on0"), "running", "{level}");
        second.say("release");
        gates(&node, &mut first, near, count);
    }
}

/// P-LIFECYCLE-8: a lost GPU leaves the others as they were.
#[test]
fn jobs_that_take_turns_go_on_when_the_gpu_of_some_is_lost() {
    for level in LEVELS {
        let node = Node::new(&["--gpus", "2"], &at(level));
        let jobs = [
            job(&node, "on0", 500_000, &[0]),
            job(&node, "other", 500_000, &[0]),
            job(&node, "on1", 500_000, &[1]),
            job(&node, "both", 500_000, &[0, 1]),
        ];
        let pids = jobs.each_ref().map(|job| job.process.pid());
        for pid in &pids {
            wait_all(&node, &[*pid], true);
        }
        set(&node, "lost", "1");
        let lost = monotonic_ns();
        for name in ["on1", "both"] {
            wait_for("the jobs of the lost GPU to be given up", || {
                (state(&node, name) == "unmanaged").then_some(())
            });
        }
        for pid in &pids[..2] {
            wait_finished(&node, &[*pid], ENOUGH, lost);
            // Turns, not once.
            for disabled in [true, false, true, false] {
                wait_all(&node, &[*pid], disabled);
            }
        }
    }
}

/// P-LIFECYCLE-8: a lost GPU leaves the others as they were.
#[test]
fn a_gpu_that_is_lost_in_the_middle_of_an_enable_keeps_no_other_job_waiting() {
    let node = Node::new(&["--gpus", "2"], &at("L1"));
    let [near, _far] = [0, 1].map(|gpu| job(&node, &format!("on{gpu}"), 500_000, &[gpu]));
    let both = job(&node, "both", 500_000, &[0, 1]);
    for own in [&near, &both] {
        wait_all(&node, &[own.process.pid()], true);
    }
    set(&node, "lost_in_enable", "1");
    wait_for("the gang to be given up", || {
        (state(&node, "both") == "unmanaged").then_some(())
    });
    let from = monotonic_ns();
    wait_finished(&node, &[near.process.pid()], ENOUGH, from);
    wait_all(&node, &[near.process.pid()], true);
    wait_finished(&node, &[near.process.pid()], ENOUGH, monotonic_ns());
}

/// P-LIFECYCLE-8: a job that cannot be controlled keeps no other from its turn.
#[test]
fn a_process_whose_own_calls_are_refused_keeps_no_other_job_from_its_turns() {
    let node = Node::new(&[], &at("L3"));
    let jobs = [
        job(&node, "one", 500_000, &[0]),
        job(&node, "two", 500_000, &[0]),
        job(&node, "refused", 500_123, &[0]),
    ];
    let pids = jobs.each_ref().map(|job| job.process.pid());
    for pid in &pids {
        wait_all(&node, &[*pid], true);
    }
    set(
        &node,
        "refuse",
        &format!("{DISABLE:#x}:{GPU_IS_LOST:#x}:500123"),
    );
    wait_for("the job to be given up", || {
        (state(&node, "refused") == "unmanaged").then_some(())
    });
    let from = monotonic_ns();
    for pid in &pids[..2] {
        wait_finished(&node, &[*pid], ENOUGH, from);
        for disabled in [true, false, true, false] {
            wait_all(&node, &[*pid], disabled);
        }
    }
}

/// P-LIFECYCLE-8: a lost GPU leaves the others as they were.
#[test]
fn an_agent_that_starts_beside_a_lost_gpu_enables_and_gates_what_is_on_the_others() {
    for level in LEVELS {
        let mut node = Node::new(&["--gpus", "2"], &at(level));
        let [near, far] = [0, 1].map(|gpu| job(&node, &format!("on{gpu}"), 500_000, &[gpu]));
        let [near, far] = [&near, &far].map(|job| job.process.pid());
        let [mut first, mut second] = [0, 1].map(|gpu| Online::start(&node, gpu));
        first.say("hold");
        second.say("hold");
        let [count, _] = [near, far].map(|pid| wait_all(&node, &[pid], true));
        set(&node, "lost", "1");
        drop(node.agent.take());
        node.start_agent(&at(level));
        let seen = status(&node);
        let note = seen["driver_note"].as_str().expect("a text");
        assert!(
            note.contains("/dev/nvidia1") && note.contains("GPU_IS_LOST"),
            "{note}"
        );
        assert_eq!(seen["gpus"].as_array().map(Vec::len), Some(1), "{level}");
        second.say("release");
        let released = first.say("release");
        wait_all(&node, &[near], false);
        wait_finished(&node, &[near], ENOUGH, released);
        gates(&node, &mut first, near, count);
        // Nothing on the lost GPU can be enabled, and nobody is told that it runs.
        let channels = tidegate_tests::watch::channels(&node, &[far]);
        assert!(channels.iter().all(|channel| channel.disabled), "{level}");
        wait_for("the lost GPU's job to be known", || {
            (state(&node, "on1") == "unknown").then_some(())
        });
        // `tidegate release` does what can be done, and names the rest.
        first.say("hold");
        wait_all(&node, &[near], true);
        drop(node.agent.take());
        let output = node.tidegate(&["release"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let all = format!("{count} channels enabled, 0 were gone");
        assert!(
            text.starts_with(&all) && text.contains("GPU_IS_LOST"),
            "{text}"
        );
        wait_all(&node, &[near], false);
    }
}

/// P-LIFECYCLE-8: what is disabled on a GPU that the agent cannot use is enabled by its own process.
#[test]
fn what_an_agent_cannot_enable_is_enabled_by_its_process_at_its_word() {
    let mut node = Node::new(&["--gpus", "2"], CONFIG);
    let jobs = [0, 1].map(|gpu| job(&node, &format!("on{gpu}"), 500_000, &[gpu]));
    let pids = jobs.each_ref().map(|job| job.process.pid());
    let mut online = [0, 1].map(|gpu| Online::start(&node, gpu));
    for own in &mut online {
        own.say("hold");
    }
    for pid in pids {
        wait_all(&node, &[pid], true);
    }
    // RM refuses the agent each of its GPUs, and no process.
    let refusal = format!("{GET_UUID:#x}:{GPU_IS_LOST:#x}:tidegate-agent");
    set(&node, "refuse", &refusal);
    drop(node.agent.take());
    let lost = monotonic_ns();
    node.start_agent(CONFIG);
    assert_eq!(status(&node)["level"], "l5_launch_gate");
    for pid in pids {
        wait_all(&node, &[pid], false);
        let testimony = Testimony::of(&node);
        let own = [pid];
        let mut enables = testimony.all(&own, Kind::EnableEnd);
        assert!(enables.all(|call| call.at_ns < lost || call.caller == pid));
    }
    // By the agent's word, not because it was gone: it has cleared them from its record.
    wait_for("nothing on record", || {
        let journal = tidegate_agent::channels::journal::find(&node.run_dir());
        let journal = journal.expect("readable").expect("there is one");
        journal.marked().is_empty().then_some(())
    });
    let testimony = Testimony::of(&node);
    let mut disables = testimony.all(&pids, Kind::DisableEnd);
    assert!(
        disables.all(|call| call.at_ns < lost),
        "an agent without a list touches no channel"
    );
    for own in &mut online {
        own.say("release");
    }
    let released = monotonic_ns();
    for pid in pids {
        wait_finished(&node, &[pid], ENOUGH, released);
    }
}

/// What the agent says of itself, if it serves: between two lives of it nobody answers.
fn says(node: &Node) -> Option<serde_json::Value> {
    let output = node.tidegate(&["status", "--output", "json"]);
    serde_json::from_slice(&output.stdout).ok()
}

/// P-LIFECYCLE-9: a driver that goes and comes back as another version is noticed, named, and asked anew.
#[test]
fn a_driver_that_is_replaced_under_an_agent_is_the_one_that_it_uses() {
    for gated in [false, true] {
        let mut node = Node::new(&[], CONFIG);
        let before = gated.then(|| {
            let offline = job(&node, "before", 500_000, &[0]);
            let mut online = Online::start(&node, 0);
            online.say("hold");
            wait_all(&node, &[offline.process.pid()], true);
            (offline, online)
        });
        let pid = node.agent.as_ref().expect("it runs").pid();
        node.unload_driver();
        wait_for("the agent to be without a driver", || {
            let said = says(&node)?;
            let note = said["driver_note"].as_str()?.contains("cannot be listed");
            (note && said["level"] == "l5_launch_gate").then_some(())
        });
        let journal = || tidegate_agent::channels::journal::find(&node.run_dir());
        let marked = journal().expect("readable").expect("there is one").marked();
        assert_eq!(
            marked.is_empty(),
            !gated,
            "without a driver nobody knows what is gone"
        );
        drop(before);
        node.load_driver(&["--driver", "590.48.01"]);
        let said = wait_for("the agent to use the driver", || {
            says(&node).filter(|said| said["level"] == "l1_agent")
        });
        assert_eq!(said["driver_version"], "590.48.01");
        assert_eq!(said["pid"], pid, "it has started again by itself");
        let log = std::fs::read_to_string(node.agent_log()).unwrap_or_default();
        assert!(log.contains("driver 580.95.05 is gone"), "{log}");
        assert_eq!(log.matches("is gone").count(), 1, "said once: {log}");
        let journal = tidegate_agent::channels::journal::find(&node.run_dir());
        let journal = journal.expect("readable").expect("there is one");
        assert!(journal.marked().is_empty(), "its clients are gone");
        let after = job(&node, "after", 500_000, &[0]);
        let mut online = Online::start(&node, 0);
        wait_open(&node, 0, online.process.pid());
        let count = wait_all(&node, &[after.process.pid()], false);
        gates(&node, &mut online, after.process.pid(), count);
    }
}
