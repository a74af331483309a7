//! What an agent costs its node: memory, processor time, the time to start, and what a restart costs others.

use crate::row::{Row, median};
use std::time::Duration;
use tidegate_tests::manager::Manager;
use tidegate_tests::restarts::Loaded;
use tidegate_tests::view::{cpu_ns, status_value};
use tidegate_tests::watch::wait_open;
use tidegate_tests::{Node, Offline, Online, TRUSTING, monotonic_ns, wait_until};

const GPUS: usize = 8;
/// How long the agent is watched while nothing happens.
const IDLE: Duration = Duration::from_secs(10);

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
pub fn measure(restarts: usize) -> Vec<Row> {
    let mut rows = idle_and_start();
    let mut loaded = Loaded::start();
    let (mut pauses, mut answers) = (Vec::new(), Vec::new());
    for _ in 0..restarts {
        loaded.the_gate_works();
        let restart = loaded.restart();
        pauses.push(restart.offline_pause_ns as f64 / 1e6);
        answers.push(restart.online_answer_ns as f64 / 1e6);
    }
    loaded.finish();
    let longest = pauses.iter().copied().fold(0.0, f64::max);
    rows.extend([
        Row::new("agent.restarts", restarts as f64, ""),
        Row::new("agent.restart_offline_pause_p50_ms", median(pauses), "ms"),
        Row::new("agent.restart_offline_pause_max_ms", longest, "ms").at_most(1_000.0),
        Row::new(
            "agent.restart_online_answer_p50_ms",
            median(answers.clone()),
            "ms",
        ),
        Row::new(
            "agent.restart_online_answer_max_ms",
            answers.into_iter().fold(0.0, f64::max),
            "ms",
        ),
    ]);
    rows
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn idle_and_start() -> Vec<Row> {
    let count = GPUS.to_string();
    let mut node = Node::device_only(&["--gpus", &count]);
    let manager = Manager::new(&node, TRUSTING, Duration::from_secs(2));
    let mut starts = Vec::new();
    for _ in 0..5 {
        let begun = monotonic_ns();
        let agent = manager.start(&node);
        starts.push((monotonic_ns() - begun) as f64 / 1e6);
        agent.signal(libc::SIGTERM);
        agent.finish();
    }
    let agent = manager.start(&node);
    let pid = agent.pid();
    node.agent = Some(agent);
    let idle_share = || {
        let (before, from) = (cpu_ns(pid), monotonic_ns());
        wait_until(IDLE, || None::<()>);
        (cpu_ns(pid) - before) as f64 / (monotonic_ns() - from) as f64 * 100.0
    };
    let alone = idle_share();
    // One program of each kind on every GPU, none of which launches anything.
    let ordinals: Vec<usize> = (0..GPUS).collect();
    let mut offline = Offline::start(&node, 500_000, &ordinals);
    offline.running();
    let online: Vec<Online> = ordinals
        .iter()
        .map(|gpu| Online::start(&node, *gpu))
        .collect();
    for (gpu, program) in online.iter().enumerate() {
        wait_open(&node, gpu, program.process.pid());
    }
    let attached = idle_share();
    vec![
        Row::new("agent.ready_p50_ms", median(starts), "ms").at_most(300.0),
        Row::new("agent.idle_percent", alone, "% of a core").at_most(0.5),
        Row::new("agent.idle_attached_percent", attached, "% of a core").at_most(0.5),
        Row::new("agent.rss_mib", status_value(pid, "VmRSS") / 1024.0, "MiB").at_most(64.0),
    ]
}
