//! Whatever a process has, its agent hears of it, in a session that lasts. Sessions that do not last leave nothing
//! behind.

use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use tidegate_proto::v1::Role;
use tidegate_tests::peer::Peer;
use tidegate_tests::stand_in::StandIn;
use tidegate_tests::view::{process, status, wait_so};
use tidegate_tests::{Node, Running, built, compile, monotonic_ns, wait_for};

const TRUSTED: &str = "[identity]\ntrust_env_uids = [\"self\"]\n";

/// Starts `command` and waits for its first line.
#[track_caller]
fn started(name: &str, command: &mut Command) -> (Running, String) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = Running::start(name, command);
    let stdout = program.child.stdout.take().expect("stdout is piped");
    let mut line = String::new();
    BufReader::new(stdout)
        .read_line(&mut line)
        .expect("a pipe can be read");
    (program, line.trim().to_owned())
}

/// An engine with so many blocks of a handle each, and requests that all hold the last `each`.
#[track_caller]
fn large(node: &Node, blocks: u32, requests: u32, each: u32) -> Running {
    let mut command = node.preloaded(compile("large", &["-lcuda"]), "offline");
    let numbers = [blocks, requests, each].map(|number| number.to_string());
    let job = format!("large-{}", node.device.pid());
    let (program, line) = started("large", command.args(numbers).env("TIDEGATE_JOB", job));
    assert_eq!(line, "ready");
    program
}

/// What the agent knows of a handle: the requests that hold it.
fn holders(node: &Node, handle: u32) -> Option<u64> {
    let handle = handle.to_string();
    let output = node.tidegate(&["explain", "handle", &handle, "--output", "json"]);
    let found: Value = serde_json::from_slice(&output.stdout).ok()?;
    found["jobs"][0]["requests"].as_u64()
}

/// The session in which `pid` is attached.
#[track_caller]
fn session(node: &Node, pid: u32) -> u64 {
    wait_for("the process to be attached", || {
        process(node, pid)?["session"].as_u64()
    })
}

/// Of a GPU of 96 GiB, whose memory is not really there.
fn large_node() -> Node {
    Node::new(&["--memory-mib", "98304"], TRUSTED)
}

/// P-LIFECYCLE-14: the agent hears of whatever a process has.
#[test]
fn a_cache_of_twenty_four_thousand_stripes_is_heard_of_in_a_session_that_lasts() {
    let node = large_node();
    let program = large(&node, 24_576, 3, 100);
    let before = session(&node, program.pid());
    wait_for(
        "the agent to know the last stripe, and who holds it",
        || (holders(&node, 24_575) == Some(3)).then_some(()),
    );
    assert_eq!(holders(&node, 0), Some(0));
    assert_eq!(session(&node, program.pid()), before, "it attached again");
}

/// P-LIFECYCLE-14: the agent hears of whatever a process has.
#[test]
fn four_hundred_requests_of_a_long_common_prompt_are_heard_of_by_the_next_agent_too() {
    let mut node = large_node();
    let program = large(&node, 24_576, 400, 1_000);
    for agent in 0..2 {
        if agent == 1 {
            let old = node.agent.take().expect("there is an agent");
            old.signal(libc::SIGKILL);
            old.finish();
            node.start_agent(TRUSTED);
        }
        let before = session(&node, program.pid());
        wait_for("the agent to know all that hold the last block", || {
            (holders(&node, 24_575) == Some(400)).then_some(())
        });
        assert_eq!(session(&node, program.pid()), before, "it attached again");
    }
}

/// How many mappings a process has.
fn mappings(pid: u32) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
    maps.lines().count()
}

/// Descriptors of the thread that has most of them: one has a table of its own.
fn descriptors(pid: u32) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives");
    let of = |task: std::io::Result<std::fs::DirEntry>| {
        let fds = std::fs::read_dir(task.ok()?.path().join("fd")).ok()?;
        Some(fds.count())
    };
    tasks.filter_map(of).max().expect("it has a thread")
}

/// Memory that a process has, KiB.
fn resident(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse().ok());
    kib.expect("the kernel says it")
}

/// How many sessions: `TIDEGATE_STRESS_SESSIONS=100000`.
fn sessions(default: usize) -> usize {
    let said = std::env::var("TIDEGATE_STRESS_SESSIONS").ok();
    said.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// What a process has, over time.
#[derive(Debug, Default)]
struct Holdings(Vec<[usize; 3]>);

impl Holdings {
    fn note(&mut self, pid: u32) {
        self.0
            .push([mappings(pid), descriptors(pid), resident(pid)]);
    }

    /// None is more in the second half than in the first, at its least: what is given back late is given back.
    fn do_not_grow(&self) {
        let (early, late) = self.0.split_at(self.0.len() / 2);
        let least = |of: &[[usize; 3]], at: usize| of.iter().map(|one| one[at]).min();
        for (at, slack) in [4, 4, 2 << 10].into_iter().enumerate() {
            let grown = least(late, at) > least(early, at).map(|least| least + slack);
            assert!(!grown, "{:?}", self.0);
        }
    }
}

/// P-LIFECYCLE-13: sessions that end soon leave nothing behind in the agent.
#[test]
fn sessions_that_end_soon_leave_nothing_behind_in_the_agent() {
    let count = sessions(400);
    let node = Node::new(&[], TRUSTED);
    let agent = node.agent.as_ref().expect("there is an agent").pid();
    let mut peer = Peer::start(&node);
    let mut seen = Holdings::default();
    for nth in 0..count {
        for line in ["connect", "hello offline storm", "device 0 0", "drop"] {
            peer.ask(line);
        }
        // From the half on: of 100,000 the agent's list of events, two a session, is full by then.
        if nth >= count / 2 && nth % (count / 40) == 0 {
            seen.note(agent);
        }
    }
    seen.do_not_grow();
}

/// P-LIFECYCLE-13: sessions that end soon leave nothing behind.
#[test]
fn sessions_that_end_soon_leave_no_mapping_and_no_descriptor_behind() {
    /// Of one agent: this process keeps what it heard in each.
    const AT_ONCE: usize = 1_000;
    let count = sessions(120);
    for role in [Role::Offline, Role::Online] {
        let node = Node::device_only(&[]);
        let mut agent = StandIn::start(&node, role);
        let mut command = node.preloaded(compile("large", &["-lcuda"]), "");
        let (program, _) = started("large", command.args(["32", "4", "4"]));
        let pid = program.pid();
        let mut seen = BTreeSet::new();
        let mut holdings = Holdings::default();
        for nth in 0..count {
            let number = nth;
            let nth = nth % AT_ONCE;
            if nth == 0 && number > 0 {
                agent.die();
                agent = StandIn::start(&node, role);
            }
            agent.cache(nth);
            // Once it obeys this one, whose page it shows to its launches.
            wait_for("its page to be in use", || {
                agent.with(nth, |session| {
                    let word = &session.page().process.doorbell;
                    (word.load(std::sync::atomic::Ordering::Acquire) > 0).then_some(())
                })?
            });
            if number >= count / 2 {
                seen.insert((mappings(pid), descriptors(pid)));
            }
            if number >= count / 4 && number % (count / 40) == 0 {
                holdings.note(pid);
            }
            agent.cut(nth);
        }
        let all = seen.iter().map(|(all, _)| *all);
        assert!(
            all.clone().max() <= all.min().map(|least| least + 4),
            "{seen:?}"
        );
        let open = seen.iter().map(|(_, open)| *open);
        assert!(
            open.clone().max() <= open.min().map(|least| least + 4),
            "{seen:?}"
        );
        holdings.do_not_grow();
    }
}

/// P-GATE-13: a process without descriptors is gated on its stream.
#[test]
fn an_agent_that_reads_slowly_hears_the_newest_edge_of_each_device_next() {
    const DEVICES: usize = 8;
    let config =
        format!("{TRUSTED}[gate]\ncooldown = \"20ms\"\n[limits]\nmessages_per_second = 200\n");
    let node = Node::new(&["--gpus", "8"], &config);
    let mut command = node.preloaded(compile("flapper", &["-lcuda"]), "online");
    let libraries = [
        compile("sandbox", &["-shared", "-fPIC"]),
        built("libtidegate.so"),
        built("libvgpu_rm.so"),
    ];
    let preload = std::env::join_paths(libraries).expect("no colon in a path");
    command
        .env("LD_PRELOAD", preload)
        .args([&DEVICES.to_string(), "4"]);
    let (program, line) = started("flapper", &mut command);
    let idle_ns = monotonic_ns();
    let periods: u64 = line
        .strip_prefix("idle ")
        .and_then(|n| n.parse().ok())
        .expect(&line);
    // Two edges each: read one by one they take so long.
    let in_a_row = periods * 2 / 200;
    assert!(
        in_a_row > 30,
        "{periods} periods are too few to see anything"
    );
    let row = process(&node, program.pid()).expect("it is attached");
    assert_eq!(row["lane"], "stream");
    wait_so("the gates to open", || {
        let status = status(&node);
        let gpus = status["gpus"].as_array().expect("a list");
        gpus.iter().all(|gpu| gpu["gate"] == "open")
    });
    let late_s = (monotonic_ns() - idle_ns) / 1_000_000_000;
    assert!(
        late_s < in_a_row / 4,
        "{late_s} s, of {in_a_row} s for all edges"
    );
}
