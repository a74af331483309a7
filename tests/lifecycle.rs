//! Agents come late, die, stop, end and are replaced: online never waits, offline lands softly.
//!
//! On GPU 1 an online program works through every test; that its answers keep coming while the agent
//! is gone or stopped shows that nothing of it waits. On GPU 0 another makes busy edges for the
//! offline program that is judged.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use tidegate_tests::clock::Stalls;
use tidegate_tests::elastic::Elastic;
use tidegate_tests::watch::{
    Testimony, channels, counter, status, wait_all, wait_finished, wait_open,
};
use tidegate_tests::{Node, Offline, Online, Running, compile, monotonic_ns, wait_for};
use tidegate_vgpu::control::Control;
use tidegate_vgpu::history::Kind;

const CONFIG: &str = "[identity]\ntrust_env_uids = [\"self\"]\n[gate]\ncooldown = \"20ms\"\n[log]\nlevel = \"warn\"\n";
/// No channel stays disabled without a live agent for longer than this.
const LANDING_NS: u64 = 1_000_000_000;
/// What two busy cores may add to it: the processes' own wake-ups.
const SLACK_NS: u64 = 500_000_000;
/// A successor is waited for at least this long, counted from an instant after which the agent was
/// still heard of: its last heartbeat may be 50 ms older than that.
const PATIENCE_NS: u64 = 800_000_000;

/// An online program on GPU 1 that answers all the time.
struct Serving {
    answers: Arc<AtomicU64>,
    enough: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    fn start(node: &Node) -> Self {
        let mut online = Online::start(node, 1);
        let (answers, enough) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (count, end) = (Arc::clone(&answers), Arc::clone(&enough));
        let thread = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                online.say("burst 2 2000000");
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self {
            answers,
            enough,
            thread: Some(thread),
        }
    }

    /// Waits for ten more answers, the first of which may have been asked for before this call.
    #[track_caller]
    fn goes_on(&self) {
        let before = self.answers.load(Ordering::Relaxed);
        wait_for("the online program to go on answering", || {
            (self.answers.load(Ordering::Relaxed) >= before + 10).then_some(())
        });
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A node with an agent, and offline work that is disabled for an online kernel.
struct Gated {
    serving: Serving,
    online: Online,
    offline: Offline,
    node: Node,
    /// The offline process.
    pid: [u32; 1],
    /// Its channels.
    count: usize,
}

impl Gated {
    /// With online work under way that ends when it is told to.
    #[track_caller]
    fn start(config: &str) -> Self {
        let node = Node::new(&["--gpus", "2"], config);
        let mut offline = Offline::start(&node, 500_000, &[0]);
        offline.running();
        let pid = [offline.process.pid()];
        let serving = Serving::start(&node);
        let mut online = Online::start(&node, 0);
        wait_open(&node, 0, online.process.pid());
        let count = wait_all(&node, &pid, false);
        online.say("hold");
        assert_eq!(wait_all(&node, &pid, true), count);
        Self {
            serving,
            online,
            offline,
            node,
            pid,
            count,
        }
    }

    fn agent(&self) -> &Running {
        self.node.agent.as_ref().expect("it runs")
    }

    /// When the offline channels were first enabled after `at_ns`, and by whom.
    #[track_caller]
    fn enabled_after(&self, at_ns: u64) -> (u64, u32) {
        wait_for("the enable in the history", || {
            let testimony = Testimony::of(&self.node);
            let mut enables = testimony.all(&self.pid, Kind::EnableEnd);
            let first = enables.find(|record| record.at_ns > at_ns)?;
            Some((first.at_ns, first.caller))
        })
    }

    /// Has the agent, which answers until then, vanish by `how`.
    #[track_caller]
    fn lose_agent(&mut self, how: impl FnOnce(&mut Node)) -> Loss {
        let stalls = Stalls::watch();
        let heard = monotonic_ns();
        assert_eq!(attached(&self.node), 3);
        how(&mut self.node);
        Loss {
            heard,
            lost: monotonic_ns(),
            stalls,
        }
    }

    /// The offline process enables every channel of its own within the bound after `loss`.
    #[track_caller]
    fn lands_by_itself(&self, loss: &Loss) {
        let lost = loss.lost;
        wait_all(&self.node, &self.pid, false);
        let (at, caller) = self.enabled_after(loss.heard);
        assert_eq!(caller, self.pid[0], "the process enables its own channels");
        let (stuck, still) = (at.saturating_sub(lost), loss.stalls.ns());
        assert!(
            stuck <= LANDING_NS + SLACK_NS + still,
            "disabled for {stuck} ns without an agent; the machine stood still for {still} ns"
        );
        let waited = at - loss.heard;
        assert!(
            waited >= PATIENCE_NS,
            "a successor is waited for: {waited} ns"
        );
    }

    /// What was queued runs; then no launch passes: the program waits inside one.
    #[track_caller]
    fn launches_wait(&self) -> usize {
        wait_for("the queue to run dry", || {
            let dry = |channel: &tidegate_vgpu::control::ChannelState| channel.queued == 0;
            channels(&self.node, &self.pid)
                .iter()
                .all(dry)
                .then_some(())
        });
        let settled = Testimony::of(&self.node).finished_after(&self.pid, 0);
        self.serving.goes_on();
        let later = Testimony::of(&self.node).finished_after(&self.pid, 0);
        assert!(
            later <= settled + 1,
            "{} launches passed a gate without an agent",
            later - settled
        );
        later
    }

    /// A fresh busy edge disables every channel, by the agent there is now, and its end enables
    /// them; the offline program then finishes what it has counted.
    #[track_caller]
    fn the_gate_works(mut self) {
        self.online.say("release");
        wait_open(&self.node, 0, self.online.process.pid());
        wait_finished(&self.node, &self.pid, 3, monotonic_ns());
        assert_eq!(wait_all(&self.node, &self.pid, false), self.count);
        let begun = monotonic_ns();
        self.online.say("hold");
        wait_all(&self.node, &self.pid, true);
        self.online.say("release");
        let (from, to) = wait_for("a shut and an open gate", || {
            Testimony::of(&self.node).shut(&self.pid, self.count, begun)
        });
        let testimony = Testimony::of(&self.node);
        let ran = testimony.ran_between(&self.pid, from, to);
        assert!(ran.is_empty(), "ran while all was disabled: {ran:?}");
        let agent = self.agent().pid();
        let callers = testimony
            .all(&self.pid, Kind::DisableEnd)
            .filter(|record| record.at_ns > begun);
        for record in callers {
            assert_eq!(record.caller, agent, "{record:?}");
        }
        wait_all(&self.node, &self.pid, false);
        self.serving.goes_on();
        assert_eq!(counter(&self.node, "enables_failed"), 0);
        assert_eq!(counter(&self.node, "disables_failed"), 0);
        let testimony = Testimony::of(&self.node);
        let ended = testimony.finished_after(&self.pid, 0);
        let counted = self.offline.stop();
        assert!(
            counted >= u64::try_from(ended).expect("a small number"),
            "a kernel that ended did not count: {counted} of {ended}"
        );
    }
}

/// How an agent was lost.
struct Loss {
    /// It still answered after this.
    heard: u64,
    /// It was gone by then.
    lost: u64,
    /// How long the machine has stood still since `heard`.
    stalls: Stalls,
}

/// Kills the agent of a node.
fn kill(node: &mut Node) {
    let agent = node.agent.take().expect("it runs");
    agent.signal(libc::SIGKILL);
    drop(agent);
}

/// Attached processes in status.
fn attached(node: &Node) -> usize {
    status(node)["processes"].as_array().map_or(0, Vec::len)
}

/// P-LIFECYCLE-15: an offline program whose agent is gone says so on its own standard error.
#[test]
fn an_offline_program_says_that_its_agent_is_gone() {
    let mut node = Node::new(&[], CONFIG);
    let program = compile("offline", &["-lcuda"]);
    let mut command = node.preloaded(&program, "offline");
    let mut offline = Running::start("offline", command.arg("500000"));
    let pid = [offline.pid()];
    let pipe = offline.child.stderr.take().expect("stderr is piped");
    wait_finished(&node, &pid, 5, 0);
    kill(&mut node);
    let line = BufReader::new(pipe).lines().next();
    let line = line.expect("a line").expect("a pipe can be read");
    let path = node.run_dir().join("hook.sock").display().to_string();
    assert!(
        line.contains(&format!("tidegate-agent at {path} is gone")),
        "{line}"
    );
    node.start_agent(CONFIG);
    let before = Testimony::of(&node).all(&pid, Kind::KernelEnd).count();
    wait_finished(&node, &pid, before + 5, 0);
}

/// P-LIFECYCLE-1: online never waits for the agent.
#[test]
fn without_an_agent_online_works_and_offline_waits_with_one_line_until_it_comes() {
    let mut node = Node::device_only(&["--gpus", "2"]);
    let serving = Serving::start(&node);
    let mut online = Online::start(&node, 0);
    let program = compile("offline", &["-lcuda"]);
    let mut command = node.preloaded(&program, "offline");
    let mut offline = Running::start("offline", command.arg("500000"));
    let pid = [offline.pid()];
    let pipe = offline.child.stderr.take().expect("stderr is piped");
    let mut errors = BufReader::new(pipe).lines();
    let line = errors.next().expect("a line").expect("a pipe can be read");
    assert!(line.contains("waits for tidegate-agent"), "{line}");
    serving.goes_on();
    // On its own GPU too, online runs in full and in order; nothing of offline does.
    online.say("burst 20 100000");
    wait_finished(&node, &[online.process.pid()], 20, 0);
    let testimony = Testimony::of(&node);
    let tags: Vec<u64> = testimony
        .all(&[online.process.pid()], Kind::KernelEnd)
        .map(|record| record.tag)
        .collect();
    assert_eq!(tags, (1..=20).collect::<Vec<u64>>());
    let early = testimony.all(&pid, Kind::KernelStart).count();
    assert_eq!(early, 0, "an offline launch passed");
    node.start_agent(CONFIG);
    wait_finished(&node, &pid, 5, 0);
    wait_for("all three to attach", || {
        (attached(&node) == 3).then_some(())
    });
    let count = wait_all(&node, &pid, false);
    online.say("hold");
    assert_eq!(wait_all(&node, &pid, true), count);
    online.say("release");
    assert_eq!(wait_all(&node, &pid, false), count);
    offline.signal(libc::SIGTERM);
    offline.succeed();
    assert_eq!(errors.count(), 0, "one line only");
}

/// P-LIFECYCLE-1: a cache that grows does so while the agent is absent, late, killed, stopped, replaced and of another
/// mind, and the agent that comes counts what was mapped without it.
#[test]
fn a_cache_grows_whatever_becomes_of_the_agent_and_the_next_one_counts_it() {
    let shared = format!(
        "{CONFIG}[memory]\npool = \"160MiB\"\nheadroom_min = \"4MiB\"\nheadroom_max = \"8MiB\"\n"
    );
    let mut node = Node::device_only(&[]);
    let mut online = Elastic::start(&node);
    let mut held = 0;
    let mut grows = |online: &mut Elastic| {
        online.take(4);
        held += 4;
        held
    };
    let counted = |node: &Node, blocks: u64| {
        wait_for("the agent to count what is mapped", || {
            let mapped = status(node)["gpus"][0]["memory"]["caches"][0]["mapped_bytes"].as_u64();
            mapped.filter(|bytes| *bytes >= blocks * (2 << 20))
        });
    };
    grows(&mut online);
    node.start_agent(&shared);
    let late = grows(&mut online);
    counted(&node, late);
    kill(&mut node);
    grows(&mut online);
    node.start_agent(&shared);
    counted(&node, 12);
    grows(&mut online);
    let agent = node.agent.as_ref().expect("it runs");
    agent.freeze();
    // More than was mapped ahead.
    online.take(12);
    agent.signal(libc::SIGCONT);
    counted(&node, 28);
    let first = node.replace_agent(&shared);
    drop(first);
    let all = online.ask("release 12");
    assert_eq!(all, "12");
    grows(&mut online);
    assert_eq!(online.ask("check"), "ok");
}

/// P-LIFECYCLE-1: a cache grows where the agent's rules do not make its process online, with a pool and without one.
#[test]
fn a_cache_grows_under_an_agent_that_does_not_make_it_online() {
    for pool in ["", "[memory]\npool = \"160MiB\"\n"] {
        let node = Node::new(&[], pool);
        let mut online = Elastic::start(&node);
        wait_for("it to attach", || (attached(&node) == 1).then_some(()));
        online.take(24);
        assert_eq!(online.ask("check"), "ok");
    }
}

/// P-LIFECYCLE-6: without an agent launches wait or pass as configured.
#[test]
fn an_offline_process_that_gave_up_waiting_runs_and_is_gated_by_an_agent_that_comes_later() {
    let mut node = Node::device_only(&["--gpus", "1"]);
    let mut command = node.preloaded(compile("offline", &["-lcuda"]), "offline");
    command.arg("500000").env("TIDEGATE_ATTACH_TIMEOUT", "1");
    let started = monotonic_ns();
    let mut offline = Offline::from_command(&mut command);
    offline.running();
    let pid = [offline.process.pid()];
    let first = Testimony::of(&node)
        .all(&pid, Kind::KernelStart)
        .map(|record| record.at_ns)
        .next()
        .expect("it ran");
    assert!(first >= started + 1_000_000_000, "it waited as told first");
    let mut online = Online::start(&node, 0);
    online.say("burst 5 100000");
    node.start_agent(CONFIG);
    wait_for("both to attach", || (attached(&node) == 2).then_some(()));
    wait_finished(&node, &pid, 3, monotonic_ns());
    online.say("hold");
    wait_all(&node, &pid, true);
    online.say("release");
    wait_all(&node, &pid, false);
    assert!(offline.stop() > 0);
}

/// P-LIFECYCLE-2: no channel stays disabled for over a second without an agent.
#[test]
fn a_killed_agent_leaves_channels_disabled_for_a_second_at_most_and_its_successor_gates_again() {
    let mut gated = Gated::start(CONFIG);
    let loss = gated.lose_agent(kill);
    gated.serving.goes_on();
    gated.online.say("launch 3 1000");
    gated.lands_by_itself(&loss);
    gated.launches_wait();
    assert!(!gated.node.tidegate(&["status"]).status.success());
    gated.node.start_agent(CONFIG);
    gated.serving.goes_on();
    gated.the_gate_works();
}

/// P-LIFECYCLE-2: no channel stays disabled for over a second without an agent.
#[test]
fn a_landing_that_the_driver_refuses_at_first_is_tried_again_and_said_once_it_is_done() {
    let mut gated = Gated::start(CONFIG);
    let control = Control::connect(&gated.node.vgpu_dir()).expect("the device listens");
    control.set("fail_enable", 5).expect("a knob");
    let loss = gated.lose_agent(kill);
    wait_all(&gated.node, &gated.pid, false);
    let (_, caller) = gated.enabled_after(loss.heard);
    assert_eq!(caller, gated.pid[0], "the process enables its own channels");
    gated.launches_wait();
    gated.node.start_agent(CONFIG);
    gated.the_gate_works();
}

/// P-LIFECYCLE-6: without an agent launches wait or pass as configured.
#[test]
fn without_an_agent_offline_runs_again_where_configuration_says_so() {
    let config = format!("{CONFIG}[agent_loss]\naction = \"run\"\n");
    let mut gated = Gated::start(&config);
    let loss = gated.lose_agent(kill);
    gated.lands_by_itself(&loss);
    let landed = gated.enabled_after(loss.heard).0;
    // Many more than the few that were queued.
    wait_finished(&gated.node, &gated.pid, 50, landed);
    gated.node.start_agent(&config);
    gated.the_gate_works();
}

/// P-LIFECYCLE-2: no channel stays disabled for over a second without an agent.
#[test]
fn an_agent_that_stopped_while_offline_was_disabled_finds_it_enabled_and_asserts_itself() {
    let mut gated = Gated::start(CONFIG);
    let agent = gated.agent().pid();
    let loss = gated.lose_agent(|node| node.agent.as_ref().expect("it runs").freeze());
    gated.serving.goes_on();
    gated.online.say("launch 3 1000");
    gated.lands_by_itself(&loss);
    gated.launches_wait();
    let back = monotonic_ns();
    gated.agent().signal(libc::SIGCONT);
    // Online is still busy, so every channel is disabled again, without being enabled first.
    let again = wait_for("the agent to disable what it believed disabled", || {
        let testimony = Testimony::of(&gated.node);
        let mut disables = testimony.all(&gated.pid, Kind::DisableEnd);
        disables
            .find(|record| record.at_ns > back && record.caller == agent)
            .copied()
    });
    let between = Testimony::of(&gated.node)
        .all(&gated.pid, Kind::EnableEnd)
        .filter(|record| record.at_ns > back && record.at_ns < again.at_ns)
        .count();
    assert_eq!(between, 0, "enabled first");
    assert!(counter(&gated.node, "late_turns") >= 1);
    gated.the_gate_works();
}

/// P-LIFECYCLE-1: online never waits for the agent.
#[test]
fn an_agent_that_stopped_while_offline_ran_sees_the_busy_edge_when_it_goes_on() {
    let mut gated = Gated::start(CONFIG);
    gated.online.say("release");
    wait_open(&gated.node, 0, gated.online.process.pid());
    wait_finished(&gated.node, &gated.pid, 3, monotonic_ns());
    gated.agent().freeze();
    let stopped = monotonic_ns();
    gated.online.say("hold");
    gated.serving.goes_on();
    // It took the agent for gone, and enabled what was not even disabled.
    let (_, caller) = gated.enabled_after(stopped);
    assert_eq!(caller, gated.pid[0]);
    gated.launches_wait();
    let disables = Testimony::of(&gated.node)
        .all(&gated.pid, Kind::DisableEnd)
        .filter(|record| record.at_ns > stopped)
        .count();
    assert_eq!(disables, 0, "nobody else disables");
    gated.agent().signal(libc::SIGCONT);
    assert_eq!(wait_all(&gated.node, &gated.pid, true), gated.count);
    gated.the_gate_works();
}

#[test]
fn an_agent_told_to_end_enables_everything_before_it_does() {
    let mut gated = Gated::start(CONFIG);
    let agent = gated.node.agent.take().expect("it runs");
    let pid = agent.pid();
    let told = monotonic_ns();
    agent.signal(libc::SIGTERM);
    let output = agent.finish();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(wait_all(&gated.node, &gated.pid, false), gated.count);
    let (_, caller) = gated.enabled_after(told);
    assert_eq!(caller, pid, "the agent itself enabled them");
    gated.launches_wait();
    gated.serving.goes_on();
    gated.online.say("launch 3 1000");
    gated.node.start_agent(CONFIG);
    gated.the_gate_works();
}

/// P-LIFECYCLE-1: online never waits for the agent.
#[test]
fn a_successor_that_replaces_an_agent_keeps_offline_disabled_while_online_is_busy() {
    let mut gated = Gated::start(CONFIG);
    let asked = monotonic_ns();
    gated.node.replace_agent(CONFIG).succeed();
    gated.serving.goes_on();
    assert_eq!(status(&gated.node)["agent_generation"], 2);
    wait_for("all three to attach again", || {
        (attached(&gated.node) == 3).then_some(())
    });
    wait_all(&gated.node, &gated.pid, true);
    let released = monotonic_ns();
    gated.online.say("release");
    wait_all(&gated.node, &gated.pid, false);
    // A hand-over that takes longer than the second it is allowed ends in a landing.
    let testimony = Testimony::of(&gated.node);
    let early: Vec<_> = testimony
        .all(&gated.pid, Kind::EnableEnd)
        .filter(|record| record.at_ns > asked && record.at_ns < released.min(asked + PATIENCE_NS))
        .collect();
    assert!(early.is_empty(), "enabled during a hand-over: {early:?}");
    gated.the_gate_works();
}

/// P-LIFECYCLE-2: no channel stays disabled for over a second without an agent.
#[test]
fn release_enables_a_frozen_process_that_a_killed_agent_left_disabled() {
    let mut gated = Gated::start(CONFIG);
    gated.offline.process.freeze();
    let agent = gated.node.agent.take().expect("it runs");
    let lost = monotonic_ns();
    agent.signal(libc::SIGKILL);
    drop(agent);
    gated.serving.goes_on();
    assert_eq!(
        channels(&gated.node, &gated.pid)
            .iter()
            .filter(|channel| channel.disabled)
            .count(),
        gated.count,
        "a frozen process cannot help itself"
    );
    let released = gated.node.tidegate(&["release"]);
    let text = String::from_utf8_lossy(&released.stdout).into_owned();
    assert!(released.status.success(), "{released:?}");
    let told = format!("{} channels enabled", gated.count);
    assert!(text.contains(&told), "{text}");
    assert_eq!(wait_all(&gated.node, &gated.pid, false), gated.count);
    let (_, caller) = gated.enabled_after(lost);
    assert_ne!(caller, gated.pid[0], "it was frozen");
    gated.offline.process.signal(libc::SIGCONT);
    gated.node.start_agent(CONFIG);
    gated.the_gate_works();
}

/// P-LIFECYCLE-1: online never waits for the agent.
#[test]
fn without_an_agent_an_online_program_ends_as_it_would_and_nothing_is_printed() {
    let node = Node::device_only(&[]);
    let mut command = node.preloaded(compile("online", &["-lcuda"]), "online");
    let mut online = Running::start("online", command.stdin(Stdio::piped()));
    drop(online.child.stdin.take());
    let output = online.finish();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}
