//! A Python that the library is preloaded into lives and ends as it would without it: nothing hangs,
//! nothing crashes, and no descriptor of its own is touched or handed on.
//!
//! Each way of living (`apps/life.py`) is lived fifty times in each role. How many descriptors of
//! which kind it ends with must be what a run without the library ends with.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use tidegate_tests::view::status;
use tidegate_tests::{Node, Running, TRUSTING, wait_for};
use tidegate_vgpu::history::{self, Kind};

const LIVES: u32 = 50;
const ROLES: [&str; 2] = ["online", "offline"];

fn life(mut command: Command, way: &str, lives: u32) -> Command {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/apps/life.py");
    command.args(["-X", "dev", script, way, &lives.to_string()]);
    command
}

/// Lives `way` in both roles at once, and a few times without the library.
#[track_caller]
fn lives(way: &str) {
    let node = Node::new(&[], TRUSTING);
    let mut plain = life(node.plain("python3"), way, 10);
    let plain = Running::start(way, &mut plain).succeed();
    assert!(plain.starts_with("ok "), "{plain}");
    let preloaded = ROLES
        .map(|role| Running::start(way, &mut life(node.preloaded("python3", role), way, LIVES)));
    for (role, process) in ROLES.into_iter().zip(preloaded) {
        assert_eq!(process.succeed(), plain, "{way} {role}");
    }
}

/// P-LIBRARY-4: a Python lives and ends as without the library.
#[test]
fn a_process_with_a_context_forks() {
    lives("fork");
}

/// P-LIBRARY-4: a Python lives and ends as without the library.
#[test]
fn a_process_forks_before_it_and_its_children_make_contexts() {
    lives("fork_first");
}

/// P-LIBRARY-4: a Python lives and ends as without the library.
#[test]
fn a_process_forks_while_its_threads_launch() {
    lives("fork_under_threads");
}

/// P-LIBRARY-4: a Python lives and ends as without the library.
#[test]
fn a_pool_spawns_workers_that_make_contexts() {
    lives("spawned");
}

/// P-LIBRARY-4: a Python lives and ends as without the library.
#[test]
fn a_fork_server_makes_workers_that_make_contexts() {
    lives("forkserver");
}

/// P-LIBRARY-4: a Python lives and ends as without the library.
#[test]
fn a_pool_forks_workers_from_a_process_with_a_context() {
    lives("forked_pool");
}

/// P-LIBRARY-4: a Python lives and ends as without the library.
#[test]
fn other_programs_inherit_nothing() {
    lives("run_program");
}

/// P-LIBRARY-4: a Python lives and ends as without the library.
#[test]
fn a_process_replaces_itself_again_and_again() {
    lives("replace");
}

/// P-LIBRARY-4: a Python lives and ends as without the library.
#[test]
fn a_process_leaves_without_a_word_just_after_its_launches() {
    lives("leave");
}

/// P-LIBRARY-4: a Python lives and ends as without the library.
#[test]
fn signals_stay_with_the_application_and_break_no_launch() {
    lives("signalled");
}

/// P-LIBRARY-4: a Python lives and ends as without the library.
#[test]
fn a_process_closes_every_descriptor_and_opens_its_own_in_their_place() {
    lives("closes_everything");
}

/// A Python that waits in its first launch, as offline on `node`.
fn waiting(node: &Node, way: &str) -> (Running, BufReader<std::process::ChildStdout>) {
    let mut process = Running::start(way, &mut life(node.preloaded("python3", "offline"), way, 1));
    let stdout = process.child.stdout.take().expect("stdout is piped");
    let mut answers = BufReader::new(stdout);
    assert_eq!(line(&mut answers), "launches");
    // A signal that is handled in the moment in which something else wakes the launch does not end its wait, and an
    // attach does: the launch is to have asked the agent's gate again and again.
    if node.agent.is_some() {
        let pid = process.pid();
        wait_for("the process to be attached", || {
            let known = status(node)["processes"].as_array()?.clone();
            known
                .iter()
                .any(|process| process["pid"] == pid)
                .then_some(())
        });
        let slept = || {
            let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/status")).ok()?;
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
            line.trim().parse::<u64>().ok()
        };
        let before = slept().expect("it runs");
        wait_for("the launch to ask again", || {
            (slept()? >= before + 3).then_some(())
        });
    }
    let syscall = format!("/proc/{0}/task/{0}/syscall", process.pid());
    wait_for("the launch that waits", || {
        let inside = std::fs::read_to_string(&syscall).ok()?;
        // futex_waitv, which tells which signals interrupt.
        inside.starts_with("449 ").then_some(())
    });
    (process, answers)
}

fn line(answers: &mut impl BufRead) -> String {
    let mut line = String::new();
    answers.read_line(&mut line).expect("a pipe can be read");
    line.trim_end().to_owned()
}

/// An agent that has nothing but the launch gate: with it closed, a launch waits for as long as it stays so. Where
/// channels can be disabled, it goes into the queue of one.
fn launches_alone() -> String {
    format!("{TRUSTING}\n[channel]\nlevel = \"L5\"\n")
}

/// P-LIBRARY-4: Ctrl-C and a SIGTERM with a handler end a wait for an agent, and one at a closed gate.
#[test]
fn a_signal_that_interrupts_ends_a_wait() {
    let mut node = Node::device_only(&[]);
    for drained in [false, true] {
        if drained {
            node.start_agent(&launches_alone());
            assert!(node.tidegate(&["drain"]).status.success());
        }
        let (process, mut answers) = waiting(&node, "interrupted");
        process.signal(libc::SIGINT);
        assert_eq!(
            line(&mut answers),
            "KeyboardInterrupt",
            "drained: {drained}"
        );
        process.succeed();
        let (process, _answers) = waiting(&node, "terminated");
        process.signal(libc::SIGTERM);
        let output = process.finish();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("terminated"), "{said}");
    }
}

/// P-LIBRARY-4: a signal whose handler was set to restart calls breaks no launch.
#[test]
fn a_signal_that_restarts_calls_ends_no_wait() {
    let node = Node::new(&[], &launches_alone());
    assert!(node.tidegate(&["drain"]).status.success());
    let (process, mut answers) = waiting(&node, "restarted");
    for _ in 0..LIVES {
        process.signal(libc::SIGUSR1);
        assert_eq!(
            line(&mut answers),
            "",
            "the handler ran, and the launch waits"
        );
    }
    assert!(node.tidegate(&["undrain"]).status.success());
    assert_eq!(
        line(&mut answers),
        "0 1",
        "it was launched, then the handler ran"
    );
    process.succeed();
}

/// `apps/life.py serves`: five launches a line.
struct Serving {
    process: Running,
    answers: BufReader<std::process::ChildStdout>,
}

impl Serving {
    fn start(command: Command) -> Self {
        let mut command = life(command, "serves", 1);
        let mut process = Running::start("serves", command.stdin(Stdio::piped()));
        let stdout = process.child.stdout.take().expect("stdout is piped");
        let answers = BufReader::new(stdout);
        let mut serving = Self { process, answers };
        assert_eq!(serving.answer(), "serves");
        serving
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line);
        read.expect("a pipe can be read");
        line.trim_end().to_owned()
    }

    fn ask(&mut self) {
        let stdin = self.process.child.stdin.as_mut().expect("stdin is piped");
        stdin.write_all(b"\n").expect("the program reads");
    }

    fn end(mut self) -> String {
        drop(self.process.child.stdin.take());
        let last = self.answer();
        self.process.succeed();
        last
    }
}

/// P-LIBRARY-4: a Python lives and ends as without the library.
#[test]
fn its_agent_is_killed_and_comes_back_again_and_again() {
    let mut node = Node::new(&[], TRUSTING);
    let mut plain = Serving::start(node.plain("python3"));
    plain.ask();
    assert_eq!(plain.answer(), "served");
    let plain = plain.end();
    let [mut online, mut offline] =
        ROLES.map(|role| Serving::start(node.preloaded("python3", role)));
    let pid = offline.process.pid();
    let launched = |node: &Node| {
        let records = history::read(&node.vgpu_dir()).expect("the device writes its history");
        let of_offline =
            |record: &&history::Record| record.kind == Kind::KernelEnd && record.pid == pid;
        records.iter().filter(of_offline).count()
    };
    for round in 1..=LIVES as usize {
        let agent = node.agent.take().expect("it runs");
        agent.signal(libc::SIGKILL);
        drop(agent);
        offline.ask();
        online.ask();
        assert_eq!(online.answer(), "served", "online waits for nobody");
        node.start_agent(TRUSTING);
        assert_eq!(offline.answer(), "served", "round {round}");
        wait_for("its kernels", || {
            (launched(&node) >= 5 * (round + 1)).then_some(())
        });
        online.ask();
        assert_eq!(online.answer(), "served");
    }
    for (role, serving) in ROLES.into_iter().zip([online, offline]) {
        assert_eq!(serving.end(), plain, "{role}");
    }
}
