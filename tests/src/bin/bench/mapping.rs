//! What a reclaim costs: the library's own part and, beside it, what the driver's calls take on hardware.

use crate::row::{Row, median};
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::Duration;
use tidegate_proto::v1::agent_command::Command;
use tidegate_proto::v1::client_event::Event;
use tidegate_proto::v1::{self, MemoryResult, Role};
use tidegate_replay::engine::LLAMA_3_1_8B;
use tidegate_tests::engine::Engine;
use tidegate_tests::stand_in::{Gate, StandIn};
use tidegate_tests::{Node, Running, compile, monotonic_ns};

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
        let taken = take(&mut agent, kv, &stripes);
        taking.push((taken.done_ns - taken.started_ns) as f64);
        open(&mut agent);
        let given = give_back(&mut agent, kv, &stripes, taken.log_seq);
        giving.push((given.done_ns - given.started_ns) as f64);
    }
    engine.stop();
    (median(taking), median(giving))
}

fn take(agent: &mut StandIn, kv: u32, stripes: &[u32]) -> v1::Reclaimed {
    let taken = agent.reclaim(0, kv, stripes).pop().expect("an answer");
    assert_eq!(taken.result(), MemoryResult::Ok, "{taken:?}");
    taken
}

/// Gives back what is taken once the engine withholds it, and lets it go on.
fn give_back(agent: &mut StandIn, kv: u32, stripes: &[u32], log_seq: u64) -> v1::Restored {
    agent.hear(0, "the blocks to be withheld", |event| match event {
        Event::Withheld(withheld) if withheld.log_seq >= log_seq => Some(()),
        _ => None,
    });
    shut(agent);
    let given = agent.restore(0, kv, stripes).pop().expect("an answer");
    assert_eq!(given.result(), MemoryResult::Ok, "{given:?}");
    open(agent);
    given
}

/// Prompt of the prefill that is interrupted, what one iteration reads of it, and the model's layers.
const PROMPT: u32 = 32_768;
const CHUNK: u32 = 8_192;
const LAYERS: u32 = 32;

/// Mean and longest wait for the end of the part one is in, at a random moment of all of them; ms.
fn until_the_end(parts: &[f64]) -> (f64, f64) {
    let squares: f64 = parts.iter().map(|part| part * part).sum();
    let longest = parts.iter().copied().fold(0.0, f64::max);
    (squares / (2.0 * parts.iter().sum::<f64>()), longest)
}

/// A reclaim in the middle of a prefill: begun at once, as Tidegate does, or when a layer or an
/// iteration ends. Measured is the first, while kernels as long as a layer run; the others wait besides.
fn amid_a_prefill() -> Vec<Row> {
    let chunks = (0..PROMPT / CHUNK).map(|chunk| LLAMA_3_1_8B.prefill([(CHUNK, chunk * CHUNK)]));
    let iterations: Vec<f64> = chunks.map(|chunk| chunk.as_secs_f64() * 1e3).collect();
    let layers: Vec<f64> = iterations.iter().map(|ms| ms / f64::from(LAYERS)).collect();
    let node = Node::device_only(&["--set", "memory_costs=a100"]);
    let mut agent = StandIn::start(&node, Role::Offline);
    let job = format!("bench-{}", node.device.pid());
    let layer_ns = format!("{:.0}", until_the_end(&layers).1 * 1e6);
    let engine = Engine::start(&node, &job, &["--blocks", "128", "--ns", &layer_ns]);
    agent.let_run(0);
    let kv = agent.cache(0).kv;
    let stripes: Vec<u32> = (0..HANDLES).collect();
    let mut took: Vec<f64> = Vec::new();
    for _ in 0..ROUNDS {
        let begin = monotonic_ns();
        shut(&mut agent);
        let taken = take(&mut agent, kv, &stripes);
        took.push((monotonic_ns() - begin) as f64 / 1e6);
        open(&mut agent);
        give_back(&mut agent, kv, &stripes, taken.log_seq);
    }
    engine.stop();
    let worst = took.iter().copied().fold(0.0, f64::max);
    let at_once = (median(took), worst);
    println!(
        "{} MiB taken in a prefill of {PROMPT} tokens, {CHUNK} an iteration ({}, {LAYERS} layers), ms",
        2 * HANDLES,
        LLAMA_3_1_8B.name
    );
    println!("{:<28} {:>8} {:>8}", "begun", "mean", "worst");
    let mut rows = Vec::new();
    for (name, key, wait) in [
        ("at once", "at_once", (0.0, 0.0)),
        ("when a layer ends", "layer", until_the_end(&layers)),
        (
            "when an iteration ends",
            "iteration",
            until_the_end(&iterations),
        ),
    ] {
        let (mean, worst) = (at_once.0 + wait.0, at_once.1 + wait.1);
        println!("{name:<28} {mean:>8.1} {worst:>8.1}");
        rows.push(Row::new(format!("reclaim.prefill.{key}.mean"), mean, "ms"));
        rows.push(Row::new(
            format!("reclaim.prefill.{key}.worst"),
            worst,
            "ms",
        ));
    }
    println!();
    rows
}

fn shut(agent: &mut StandIn) {
    let checked = agent.check(0, Duration::from_secs(2));
    assert_eq!(checked.result(), MemoryResult::Ok, "{checked:?}");
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
    rows.extend(amid_a_prefill());
    rows.push(Row::new("reclaim.reserve_and_release.ns", reserve(), "ns").at_most(1000.0));
    rows
}
