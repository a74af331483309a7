//! `tidegate bench` on a node with an agent and an offline job: it drains and undrains in turns, and gives back what it
//! found. Judged by the device's own history; the server is one whose latencies are known.

#[expect(dead_code, reason = "the tests of the command itself use the rest")]
#[path = "../agent/cli/tests/bench/fake.rs"]
mod fake;

use fake::{Behaviour, Fake};
use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::Duration;
use tidegate_tests::view::{records, status, wait_so};
use tidegate_tests::{Node, Offline, Running, TRUSTING, monotonic_ns, wait_for};
use tidegate_vgpu::history::Kind;

const BLOCK_NS: u64 = 3_000_000_000;

fn server() -> Fake {
    Fake::start(Behaviour {
        ttft: Duration::from_millis(30),
        tpot: Duration::from_millis(2),
        ..Behaviour::default()
    })
}

fn node() -> (Node, Offline) {
    let node = Node::new(&[], TRUSTING);
    let mut offline = Offline::start(&node, 2_000_000, &[0]);
    offline.running();
    (node, offline)
}

/// A bench with one cycle of blocks of `seconds`.
fn bench(node: &Node, fake: &Fake, seconds: &str, more: &[&str]) -> Command {
    let mut command = node.tidegate_command(&[]);
    command
        .args([
            "bench",
            "--target",
            &fake.url,
            "--rate",
            "10",
            "--output-tokens",
            "4",
        ])
        .args([
            "--seconds",
            seconds,
            "--warm-up",
            "0",
            "--cool-down",
            "0",
            "--cycles",
            "1",
            "--seed",
            "3",
        ])
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Times in which no kernel of `pid` ended, the longest first, ns.
fn silences(node: &Node, pid: u32, from_ns: u64) -> Vec<u64> {
    let ends: Vec<u64> = records(node)
        .iter()
        .filter(|r| r.pid == pid && r.kind == Kind::KernelEnd && r.at_ns > from_ns)
        .map(|r| r.at_ns)
        .collect();
    let mut gaps: Vec<u64> = ends.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_unstable_by(|a, b| b.cmp(a));
    gaps
}

/// P-BENCH-6: offline stands still in drained blocks and in no other, and goes on when the bench is over.
#[test]
fn modes_take_turns_and_the_node_is_as_before() {
    let (node, offline) = node();
    let pid = offline.process.pid();
    let fake = server();
    let json = node.dir().join("figures.json");
    let from_ns = monotonic_ns();
    let mut command = bench(&node, &fake, "3", &["--json"]);
    let said = Running::start("tidegate", command.arg(&json)).succeed();
    wait_so("the node undrained", || status(&node)["drained"] == false);
    let after = monotonic_ns();
    wait_for("offline to go on", || {
        tidegate_tests::view::finished_after(&node, pid, after)
    });
    let figures: Value =
        serde_json::from_slice(&std::fs::read(&json).expect("figures")).expect("JSON");
    let blocks = figures["blocks"].as_array().expect("blocks");
    let modes: Vec<&str> = blocks
        .iter()
        .filter_map(|block| block["mode"].as_str())
        .collect();
    assert_eq!(modes, ["drained", "gated", "gated", "drained"], "{said}");
    // The drained blocks are the first and the last: two long silences, and none between.
    let silences = silences(&node, pid, from_ns);
    let lasts = |n: usize| silences.get(n).copied().unwrap_or(0);
    assert!(lasts(1) > BLOCK_NS * 8 / 10, "{silences:?}\n{said}");
    assert!(
        lasts(2) < BLOCK_NS / 2,
        "{:?}\n{said}",
        &silences[..silences.len().min(5)]
    );
    let launches = |place: usize| {
        blocks[place]["offline"]["launches"]
            .as_u64()
            .expect("the agent counts")
    };
    // Calls that fill the queue of a disabled channel are launches too.
    let few = launches(1).min(launches(2)) / 4;
    assert!(
        few > 0 && launches(0).max(launches(3)) <= few,
        "{figures:#}"
    );
    assert!(
        figures["paired"]["ci95"]["ttft_pct"].is_array(),
        "{figures:#}"
    );
    assert_eq!(figures["whole"], true);
    drop(offline);
}

/// P-BENCH-6: a bench that is interrupted, or whose server is gone, gives back what it found; a drained node stays drained.
#[test]
fn what_was_found_is_given_back_however_it_ends() {
    let (node, _offline) = node();
    let fake = server();
    let bench_ends = |signal: i32| {
        let running = Running::start("tidegate", &mut bench(&node, &fake, "600", &[]));
        let before = fake.prompts().len();
        wait_so("a drained block", || {
            status(&node)["drained"].is_object() && fake.prompts().len() > before
        });
        running.signal(signal);
        let output = running.finish();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
    };
    for signal in [libc::SIGINT, libc::SIGTERM] {
        bench_ends(signal);
        assert_eq!(status(&node)["drained"], false);
    }
    assert!(node.tidegate(&["drain"]).status.success());
    let output = Running::start("tidegate", &mut bench(&node, &fake, "1", &[])).finish();
    assert!(output.status.success(), "{output:?}");
    assert!(status(&node)["drained"].is_object());
    assert!(node.tidegate(&["undrain"]).status.success());
    // The server is gone in the middle of a drained block.
    let dying = Fake::start(Behaviour {
        fault: Some((8, fake::Fault::Die)),
        ..Behaviour::default()
    });
    let output = Running::start("tidegate", &mut bench(&node, &dying, "600", &[])).finish();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(status(&node)["drained"], false);
}
