//! The agent as systemd's service: ready when what a dead agent left is in order, alive while its control thread
//! is, and restarted without anybody noticing.

use std::time::Duration;
use tidegate_tests::manager::Manager;
use tidegate_tests::restarts::Loaded;
use tidegate_tests::watch::{channels, wait_all, wait_open};
use tidegate_tests::{Node, Offline, Online, Running, TRUSTING, monotonic_ns, wait_for};

/// As in the unit.
const WATCHDOG: Duration = Duration::from_secs(2);

/// P-LIFECYCLE-3: ready when all is in order, silent when hung, restarted unnoticed.
#[test]
fn an_agent_is_ready_once_the_channels_of_a_dead_one_are_enabled() {
    let mut node = Node::device_only(&["--gpus", "1"]);
    let manager = Manager::new(&node, TRUSTING, WATCHDOG);
    node.agent = Some(manager.start(&node));
    let mut offline = Offline::start(&node, 500_000, &[0]);
    offline.running();
    let pid = [offline.process.pid()];
    let mut online = Online::start(&node, 0);
    wait_open(&node, 0, online.process.pid());
    online.say("launch 1 60000000000");
    let count = wait_all(&node, &pid, true);
    // A frozen process cannot help itself, and the dead agent is not there to.
    offline.process.signal(libc::SIGSTOP);
    node.agent = None;
    let disabled = || {
        channels(&node, &pid)
            .iter()
            .filter(|channel| channel.disabled)
            .count()
    };
    assert_eq!(disabled(), count);
    let agent = manager.begin(&node);
    // Whatever it has said before it is ready, nothing is left disabled when it is.
    wait_for("the agent to be ready", || {
        manager.said("READY=1").then_some(())
    });
    assert_eq!(
        disabled(),
        0,
        "ready, and channels of a dead agent are disabled"
    );
    drop(agent);
}

/// Stops one thread of a process, as a hang would: its id, for [`kill_hung`].
fn hang(process: &Running, thread: &str) -> Option<i32> {
    let tasks = format!("/proc/{}/task", process.pid());
    let named = |task: &std::fs::DirEntry| {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        name.trim_end() == thread
    };
    let mut tasks = std::fs::read_dir(tasks).expect("the agent lives").flatten();
    let task = tasks.find(named).expect("it has that thread");
    let tid: i32 = task
        .file_name()
        .to_str()
        .and_then(|name| name.parse().ok())
        .expect("a number");
    let no = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: plain system calls about another process; no memory is passed.
    let seized = unsafe {
        libc::ptrace(libc::PTRACE_SEIZE, tid, no, no) == 0
            && libc::ptrace(libc::PTRACE_INTERRUPT, tid, no, no) == 0
    };
    if !seized {
        eprintln!("SKIPPED: no process may be traced here");
        return None;
    }
    wait_traced(tid);
    Some(tid)
}

/// Waits until a traced thread stops, or ends.
fn wait_traced(tid: i32) {
    let mut status = 0;
    // SAFETY: `status` is valid to write to; the thread is traced by this one.
    let changed = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL) };
    assert_eq!(changed, tid, "the thread stops or ends");
}

/// Kills a process with a thread that hangs. The kernel keeps it until who traced the thread has asked for it.
fn kill_hung(process: Running, tid: i32) {
    process.signal(libc::SIGKILL);
    wait_traced(tid);
    drop(process);
}

/// P-LIFECYCLE-3: ready when all is in order, silent when hung, restarted unnoticed.
#[test]
fn an_agent_whose_control_thread_hangs_falls_silent_and_its_successor_takes_over() {
    let mut node = Node::device_only(&["--gpus", "1"]);
    let manager = Manager::new(&node, TRUSTING, WATCHDOG);
    let agent = manager.start(&node);
    let mut offline = Offline::start(&node, 500_000, &[0]);
    offline.running();
    let pid = [offline.process.pid()];
    for _ in 0..3 {
        wait_for("a sign of life", || {
            manager.said("WATCHDOG=1").then_some(())
        });
    }
    let Some(hung) = hang(&agent, "tg-control") else {
        return;
    };
    // What was said before.
    while manager.hear().is_some() {}
    let since = monotonic_ns();
    while monotonic_ns() < since + u64::try_from(WATCHDOG.as_nanos()).expect("seconds") {
        assert!(
            !manager.said("WATCHDOG=1"),
            "alive, and its control thread is not"
        );
    }
    // The rest of it lives, so nothing but the watchdog would tell.
    let threads = std::fs::read_dir(format!("/proc/{}/task", agent.pid())).expect("it lives");
    assert!(threads.count() > 3);
    // What WatchdogSignal=SIGKILL, ExecStopPost= and Restart=always do.
    kill_hung(agent, hung);
    let released = node.tidegate(&["release"]);
    assert!(released.status.success(), "{released:?}");
    node.agent = Some(manager.start(&node));
    let mut online = Online::start(&node, 0);
    wait_open(&node, 0, online.process.pid());
    let count = wait_all(&node, &pid, false);
    online.say("launch 1 300000000");
    assert_eq!(wait_all(&node, &pid, true), count, "the successor gates");
    online.say("sync");
    assert_eq!(wait_all(&node, &pid, false), count);
}

/// P-LIFECYCLE-3: silent when any thread hangs that serves somebody.
#[test]
fn an_agent_of_which_a_serving_thread_hangs_falls_silent() {
    let node = Node::device_only(&["--gpus", "1"]);
    let manager = Manager::new(&node, TRUSTING, WATCHDOG);
    for thread in ["tidegate-agent", "tg-operators"] {
        let agent = manager.start(&node);
        wait_for("a sign of life", || {
            manager.said("WATCHDOG=1").then_some(())
        });
        let Some(hung) = hang(&agent, thread) else {
            return;
        };
        wait_for("silence for as long as the service manager waits", || {
            while manager.hear().is_some() {}
            let since = monotonic_ns();
            while monotonic_ns() < since + u64::try_from(WATCHDOG.as_nanos()).expect("seconds") {
                if manager.said("WATCHDOG=1") {
                    return None;
                }
            }
            Some(())
        });
        kill_hung(agent, hung);
        let released = node.tidegate(&["release"]);
        assert!(released.status.success(), "{released:?}");
    }
}

/// How often; `scripts/bench agent` does it a hundred times and says how long the pauses are.
const RESTARTS: usize = 8;

/// P-LIFECYCLE-3: ready when all is in order, silent when hung, restarted unnoticed.
/// P-LIFECYCLE-10: restarts under load.
/// P-LIFECYCLE-1: online never waits for the agent.
#[test]
fn restarts_under_load_lose_nothing_and_stop_nobody() {
    let mut loaded = Loaded::start();
    for _ in 0..RESTARTS {
        loaded.the_gate_works();
        loaded.restart();
    }
    loaded.the_gate_works();
    loaded.finish();
}

#[test]
fn a_socket_of_the_managers_that_was_removed_is_named_and_left_to_the_manager() {
    let node = Node::device_only(&[]);
    let manager = Manager::new(&node, TRUSTING, WATCHDOG);
    let agent = manager.start(&node);
    let hook = node.run_dir().join("hook.sock");
    std::fs::remove_file(&hook).expect("the manager made it");
    wait_for("the agent to say so", || {
        let said = node
            .tidegate(&["events", "--kind", "socket_removed"])
            .stdout;
        String::from_utf8_lossy(&said)
            .contains("until its socket unit is restarted")
            .then_some(())
    });
    assert!(!hook.exists(), "it is not the agent's to make");
    drop(agent);
}
