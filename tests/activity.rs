//! While IDLE stands, nothing runs: the shipped library against a driver that knows what is running.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use tidegate_tests::{Node, Online, Running, TRUSTING, built, compile, compile_driver, watch};

/// How many launches: `TIDEGATE_STRESS_LAUNCHES=10000000`.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// What a run of `random_launches` came to.
struct Run {
    /// Launches that reached the driver.
    made: u64,
    /// Launches that the library counted.
    counted: u64,
    /// Idle edges.
    idle: u64,
}

/// Runs `launches` of `threads` by `command`, which runs `apps/random_launches.c`: none may run while
/// IDLE stands.
#[track_caller]
fn run(node: &Node, mut command: Command, launches: u64, seed: u64, threads: u64) -> Run {
    command
        .args([launches, seed, threads].map(|n| n.to_string()))
        .env("LD_PRELOAD", built("libtidegate.so"))
        .env("LD_LIBRARY_PATH", node.dir().join("driver"));
    let output = Running::start("random_launches", &mut command).succeed();
    println!("{threads} threads, seed {seed}: {}", output.trim());
    let figures: Vec<u64> = output
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let [counted, made, idle, violations] = figures[..] else {
        panic!("{output:?}");
    };
    assert_eq!(violations, 0, "launches that ran while IDLE stood");
    assert!(made >= launches - threads, "{output}");
    Run {
        made,
        counted,
        idle,
    }
}

#[track_caller]
fn node_with_driver() -> (Node, PathBuf) {
    let node = Node::new(&[], TRUSTING);
    let dir = node.dir().join("driver");
    let program = compile_driver(&dir, "running_cuda", "random_launches");
    (node, program)
}

/// P-GATE-4: idle means that nothing runs.
#[test]
fn of_millions_of_launches_none_runs_while_idle_stands() {
    let (node, program) = node_with_driver();
    let share = setting("TIDEGATE_STRESS_LAUNCHES", 1_500_000) / 2;
    let seed = setting("TIDEGATE_SEED", 1);
    for (at, threads) in (0_u64..).zip([2, 3]) {
        let command = node.preloaded(&program, "online");
        let run = run(&node, command, share, seed + at, threads);
        assert_eq!(run.counted, run.made, "each launch counts once");
        assert!(run.idle >= 200, "an empty run: {}", run.idle);
    }
}

/// P-GATE-4: idle means that nothing runs.
#[test]
fn threads_beyond_those_that_have_a_slot_count_each_launch_too() {
    let (node, program) = node_with_driver();
    let command = node.preloaded(&program, "online");
    let run = run(&node, command, 120_000, setting("TIDEGATE_SEED", 1), 1_150);
    assert_eq!(run.counted, run.made);
}

/// P-GATE-4: idle means that nothing runs.
/// P-LIBRARY-5: older kernels and filters are served by slower ways.
#[test]
fn where_membarrier_is_refused_none_runs_while_idle_stands_either() {
    let (node, program) = node_with_driver();
    let mut command = node.preloaded(compile("denied", &[]), "online");
    command.args([&libc::SYS_membarrier.to_string(), "--"]);
    command.arg(&program);
    let share = setting("TIDEGATE_STRESS_LAUNCHES", 1_500_000) / 5;
    let run = run(&node, command, share, setting("TIDEGATE_SEED", 1), 3);
    assert_eq!(run.counted, run.made);
    assert!(run.idle >= 50, "an empty run: {}", run.idle);
}

/// `apps/contexts.c`, online; it is driven as the online program is.
#[track_caller]
fn contexts(node: &Node) -> Online {
    let mut command = node.preloaded(compile("contexts", &["-lcuda"]), "online");
    Online::from_command(&mut command)
}

/// P-LIBRARY-3: captures and forks are not noticed.
#[test]
fn a_capture_whose_stream_or_context_goes_does_not_keep_its_process_busy() {
    let node = Node::new(&[], TRUSTING);
    let mut program = contexts(&node);
    for _ in 0..3 {
        program.say("abandon");
        program.say("launch 100000");
        watch::wait_open(&node, 0, program.process.pid());
    }
}

/// P-LIBRARY-3: captures, forks, and the ends of contexts and streams are not noticed.
#[test]
fn work_that_waits_for_another_thread_ends_however_a_context_or_stream_of_it_is_ended() {
    let node = Node::new(&[], TRUSTING);
    let mut program = contexts(&node);
    program.say("entangle 20");
    watch::wait_open(&node, 0, program.process.pid());
    program.say("launch 100000");
    watch::wait_open(&node, 0, program.process.pid());
}

/// P-GATE-4: idle means that nothing runs.
#[test]
fn a_thread_that_ends_inside_a_launch_does_not_keep_its_process_busy() {
    let node = Node::new(&[], TRUSTING);
    let mut command = node.preloaded(compile("ends_inside", &["-lcuda"]), "online");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = Running::start("ends_inside", &mut command);
    let mut line = String::new();
    let pipe = program.child.stdout.as_mut().expect("stdout is piped");
    let read = BufReader::new(pipe).read_line(&mut line);
    assert_eq!((read.ok(), line.as_str()), (Some(5), "gone\n"));
    watch::wait_open(&node, 0, program.pid());
    drop(program.child.stdin.take());
    program.succeed();
}
