//! Blocks in which offline runs beside online, so that `tidegate bench` can measure what that costs: by the device's
//! history offline runs in them, and in nothing that comes after them, however they end.

#[expect(dead_code, reason = "the tests of the command itself use the rest")]
#[path = "../agent/cli/tests/bench/fake.rs"]
mod fake;

use fake::{Behaviour, Fake};
use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::Duration;
use tidegate_tests::view::{records, status, wait_so};
use tidegate_tests::{Node, Offline, Online, Running, TRUSTING, monotonic_ns, wait_for, watch};
use tidegate_vgpu::history::Kind;

/// An online process that is busy all the time, an offline one beside it, and a server to measure.
struct Beside {
    node: Node,
    offline: Offline,
    online: Online,
    fake: Fake,
}

fn config(ungated: &str) -> String {
    format!("{TRUSTING}\n[gate]\ncooldown = \"20ms\"\n[bench]\nungated = \"{ungated}\"\n")
}

impl Beside {
    fn start(ungated: &str) -> Self {
        let node = Node::new(&["--gpus", "1"], &config(ungated));
        let mut offline = Offline::start(&node, 2_000_000, &[0]);
        offline.running();
        let mut online = Online::start(&node, 0);
        // Minutes of work, in the order of launches.
        online.send("launch 100000 2000000");
        let beside = Self {
            node,
            offline,
            online,
            fake: Fake::start(Behaviour {
                ttft: Duration::from_millis(30),
                tpot: Duration::from_millis(2),
                ..Behaviour::default()
            }),
        };
        beside.stands_still();
        beside
    }

    /// Ends of kernels of `pid` after a moment.
    fn ends(&self, pid: u32, after_ns: u64) -> Vec<u64> {
        let records = records(&self.node);
        let own = records
            .iter()
            .filter(|r| r.pid == pid && r.kind == Kind::KernelEnd && r.at_ns > after_ns);
        own.map(|r| r.at_ns).collect()
    }

    /// Offline's channels are disabled, online goes on, and no kernel of offline ends meanwhile.
    #[track_caller]
    fn stands_still(&self) {
        let (offline, online) = (self.offline.process.pid(), self.online.process.pid());
        watch::wait_all(&self.node, &[offline], true);
        let since = monotonic_ns();
        wait_so("online to go on", || self.ends(online, since).len() >= 20);
        assert_eq!(self.ends(offline, since), [0; 0], "offline ran beside it");
    }

    /// Both have kernels that end, one between those of the other.
    #[track_caller]
    fn runs_beside_online(&self) {
        let pids = [self.online.process.pid(), self.offline.process.pid()];
        let since = monotonic_ns();
        let turns = || {
            let ends = pids.map(|pid| self.ends(pid, since));
            let of_both = ends.iter().flatten().copied();
            let mut all: Vec<(u64, bool)> = of_both.map(|at| (at, ends[0].contains(&at))).collect();
            all.sort_unstable();
            all.windows(2).filter(|two| two[0].1 != two[1].1).count()
        };
        wait_so("kernels of both in turns", || turns() >= 20);
    }

    /// A bench with ungated blocks of `seconds`, and no others.
    fn bench(&self, seconds: &str) -> Running {
        let mut command = bench(&self.node, &self.fake, seconds, &["--modes", "ungated"]);
        Running::start("tidegate", &mut command)
    }

    fn wait_ungated(&self, ungated: bool) {
        wait_so("the word of the agent", || {
            (status(&self.node)["ungated_ns"].as_u64() > Some(0)) == ungated
        });
    }

    /// What was told of one kind.
    fn events(&self, kind: &str) -> Vec<String> {
        let output = self.node.tidegate(&["events", "--output", "json"]);
        let text = String::from_utf8(output.stdout).expect("text");
        let events = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"));
        events
            .filter(|event: &Value| event["kind"] == kind)
            .map(|event| event["text"].to_string())
            .collect()
    }
}

/// A bench with one cycle of blocks of `seconds`.
fn bench(node: &Node, fake: &Fake, seconds: &str, more: &[&str]) -> Command {
    let mut command = node.tidegate_command(&[]);
    command
        .args(["bench", "--target", &fake.url, "--rate", "10"])
        .args(["--output-tokens", "4", "--warm-up", "0", "--cool-down", "0"])
        .args(["--seconds", seconds, "--cycles", "1", "--seed", "3"])
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// P-BENCH-7: offline runs beside online in an ungated block, everybody can see who let it, and the block is over when
/// its caller is killed.
#[test]
fn a_block_ends_with_its_caller() {
    let beside = Beside::start("1h");
    let node = &beside.node;
    let caller = beside.bench("600");
    beside.wait_ungated(true);
    beside.runs_beside_online();
    let now = status(node);
    assert_eq!(now["gpus"][0]["gate"], "closed", "{now:#}");
    assert_eq!(
        now["jobs"][0]["reason"],
        "an operator lets it run beside online"
    );
    let pid = beside.offline.process.pid().to_string();
    let explained = node.tidegate(&["explain", "pid", &pid]).stdout;
    let explained = String::from_utf8_lossy(&explained).into_owned();
    assert!(
        explained.contains("an operator lets it run beside online"),
        "{explained}"
    );
    let told = wait_for("the event", || beside.events("ungated").pop());
    assert!(told.contains("for 660.0s at most: by uid "), "{told}");
    // Two blocks at once would not know whose figures are whose.
    let second = Running::start(
        "tidegate",
        &mut bench(node, &beside.fake, "1", &["--modes", "ungated"]),
    );
    let second = second.finish();
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(
        !second.status.success() && said.contains("another block is ungated"),
        "{said}"
    );
    beside.runs_beside_online();
    caller.signal(libc::SIGKILL);
    beside.stands_still();
    beside.wait_ungated(false);
    let told = wait_for("the event", || beside.events("gated_again").pop());
    assert!(told.contains("is gone"), "{told}");
    let preemptions = status(node)["jobs"][0]["preemptions"].as_u64();
    assert_eq!(preemptions, Some(1), "the end of a block is no preemption");
}

/// P-BENCH-7: a block whose caller is stuck is over when its time is, one that the agent's file no longer allows at once,
/// and none outlives the agent.
#[test]
fn a_block_ends_by_its_time_by_the_file_and_with_the_agent() {
    let mut beside = Beside::start("3s");
    let stuck = beside.bench("2");
    beside.wait_ungated(true);
    stuck.freeze();
    let told = wait_for("the end of its time", || beside.events("gated_again").pop());
    assert!(told.contains("time is over"), "{told}");
    beside.stands_still();
    stuck.signal(libc::SIGKILL);

    let file = beside.node.dir().join("agent.toml");
    let reload = |ungated: &str| {
        std::fs::write(&file, config(ungated)).expect("writable");
        assert!(beside.node.tidegate(&["reload"]).status.success());
    };
    reload("1h");
    let forbidden = beside.bench("600");
    beside.wait_ungated(true);
    beside.runs_beside_online();
    reload("0s");
    beside.stands_still();
    forbidden.signal(libc::SIGINT);
    let output = forbidden.finish();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("not whole"), "{said}");
    let refused = beside.bench("600").finish();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("write [bench] ungated = "), "{said}");

    reload("1h");
    let orphaned = beside.bench("600");
    beside.wait_ungated(true);
    beside.runs_beside_online();
    let agent = beside.node.agent.take().expect("an agent");
    agent.signal(libc::SIGKILL);
    drop(agent);
    beside.node.start_agent(&config("1h"));
    beside.stands_still();
    beside.wait_ungated(false);
    orphaned.signal(libc::SIGKILL);
}

/// P-BENCH-7: where the agent's file allows it a bench has ungated blocks among the others: beside busy online, offline
/// runs in these and in no others, and the table and the figures say so.
#[test]
fn a_bench_has_ungated_blocks_where_the_file_allows_them() {
    let beside = Beside::start("1min");
    let offline = beside.offline.process.pid();
    let json = beside.node.dir().join("figures.json");
    let from_ns = monotonic_ns();
    let mut command = bench(&beside.node, &beside.fake, "2", &["--json"]);
    let said = Running::start("tidegate", command.arg(&json)).succeed();
    let file = std::fs::read(&json).expect("figures");
    let figures: Value = serde_json::from_slice(&file).expect("JSON");
    let blocks = figures["blocks"].as_array().expect("blocks");
    let modes: Vec<&str> = blocks
        .iter()
        .filter_map(|block| block["mode"].as_str())
        .collect();
    let order = ["drained", "ungated", "gated", "gated", "ungated", "drained"];
    assert_eq!(modes, order, "{said}");
    assert_eq!(figures["whole"], true, "{figures:#}");
    assert!(
        figures["paired_ungated"]["ci95"]["ttft_pct"].is_array(),
        "{figures:#}"
    );
    assert!(said.contains("with offline, no control"), "{said}");
    // Two stretches of work, each about as long as a block, with two gated blocks between.
    let mut stretches: Vec<[u64; 2]> = Vec::new();
    for at in beside.ends(offline, from_ns) {
        match stretches.last_mut() {
            Some([_, last]) if at - *last < 1_000_000_000 => *last = at,
            _ => stretches.push([at, at]),
        }
    }
    let lengths: Vec<u64> = stretches
        .iter()
        .map(|[first, last]| (last - first) / 1_000_000)
        .collect();
    assert_eq!(lengths.len(), 2, "{lengths:?} ms: {said}");
    assert!(
        lengths.iter().all(|ms| *ms > 1_500),
        "{lengths:?} ms: {said}"
    );
    assert!(
        stretches[1][0] - stretches[0][1] > 3_500_000_000,
        "{stretches:?}: {said}"
    );
    beside.stands_still();
}
