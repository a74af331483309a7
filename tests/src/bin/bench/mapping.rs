//! What a reclaim costs: the library's own part and, beside it, what the driver's calls take on hardware.

use crate::{Row, median};
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::Duration;
use tidegate_proto::v1::agent_command::Command;
use tidegate_proto::v1::client_event::Event;
use tidegate_proto::v1::{self, MemoryResult, Role};
use tidegate_tests::engine::Engine;
use tidegate_tests::stand_in::{Gate, StandIn};
use tidegate_tests::{Node, Running, compile};

/// Handles of 2 MiB taken at once.
const HANDLES: u32 = 127;
const PER_GIB: f64 = 512.0;
const ROUNDS: usize = 5;

/// Nanoseconds to take and to give back [`HANDLES`] stripes of a handle each, medians.
fn take_and_give(costs: &str) -> (f64, f64) {
    let set = format!("memory_costs={costs}");
    let node = Node::device_only(&["--set", &set]);
    let mut agent = StandIn::start(&node, Role::Offline);
    let job = format!("bench-{}", node.device.pid());
    let mut engine = Engine::start(&node, &job, &["--blocks", "128"]);
    agent.let_run(0);
    let kv = agent.cache(0).kv;
    let stripes: Vec<u32> = (0..HANDLES).collect();
    let (mut taking, mut giving) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        engine.goes_on(64);
        shut(&mut agent);
        let taken = agent.reclaim(0, kv, &stripes).pop().expect("an answer");
        assert_eq!(taken.result(), MemoryResult::Ok, "{taken:?}");
        taking.push((taken.done_ns - taken.started_ns) as f64);
        open(&mut agent);
        agent.hear(0, "the blocks to be withheld", |event| match event {
            Event::Withheld(withheld) if withheld.log_seq >= taken.log_seq => Some(()),
            _ => None,
        });
        shut(&mut agent);
        let given = agent.restore(0, kv, &stripes).pop().expect("an answer");
        assert_eq!(given.result(), MemoryResult::Ok, "{given:?}");
        giving.push((given.done_ns - given.started_ns) as f64);
        open(&mut agent);
    }
    engine.stop();
    (median(taking), median(giving))
}

fn shut(agent: &mut StandIn) {
    let prepared = agent.prepare(0, Duration::from_secs(2));
    assert_eq!(prepared.result(), MemoryResult::Ok, "{prepared:?}");
    agent.channels(0, true);
}

fn open(agent: &mut StandIn) {
    agent.channels(0, false);
    agent.gate(0, Gate::Open);
}

/// Nanoseconds of a `tg_reserve` and `tg_release` of one block inside the headroom.
fn reserve() -> f64 {
    let node = Node::device_only(&[]);
    let mut agent = StandIn::start(&node, Role::Online);
    let mut command = node.preloaded(compile("kv_online", &["-lcuda", "-O2"]), "online");
    command.stdin(Stdio::piped());
    let mut program = Running::start("kv_online", &mut command);
    let kv = agent.cache(0).kv;
    let seq = agent.seq();
    let bytes = 64 << 20;
    agent.say(0, Command::MapTarget(v1::MapTarget { seq, kv, bytes }));
    agent.hear(0, "Mapped", |event| match event {
        Event::Mapped(mapped) if mapped.seq == seq => Some(()),
        _ => None,
    });
    let mut stdin = program.child.stdin.take().expect("stdin is piped");
    let stdout = program.child.stdout.take().expect("stdout is piped");
    writeln!(stdin, "bench 1000000").expect("the program lives");
    let lines = BufReader::new(stdout).lines().map_while(Result::ok);
    let took = lines.filter_map(|line| line.parse::<f64>().ok()).next();
    took.expect("the program answers")
}

/// Measures and prints.
pub fn measure() -> Vec<Row> {
    let handles = f64::from(HANDLES);
    let mut rows = Vec::new();
    for (label, costs) in [("software", "none"), ("a100", "a100")] {
        let (take, give) = take_and_give(costs);
        for (way, ns) in [("take", take), ("give", give)] {
            let each = ns / handles;
            rows.push(Row::new(
                format!("reclaim.{label}.{way}.us_per_handle"),
                each / 1e3,
                "us",
            ));
            rows.push(Row::new(
                format!("reclaim.{label}.{way}.ms_per_gib"),
                each * PER_GIB / 1e6,
                "ms",
            ));
        }
    }
    rows.push(Row::new("reclaim.reserve_and_release.ns", reserve(), "ns").at_most(1000.0));
    rows
}
