//! Leases, as a trainer obeys them: what runs is judged by the device's history.

use std::io::{BufRead, BufReader};
use std::process::{ChildStdout, Command};
use std::sync::atomic::Ordering;

use tidegate_proto::v1::agent_command::Command as Order;
use tidegate_proto::v1::client_event::Event;
use tidegate_proto::v1::{self, Role};
use tidegate_tests::stand_in::{Gate, StandIn};
use tidegate_tests::{Node, Running, compile, monotonic_ns, wait_for};
use tidegate_vgpu::history::{self, Kind};

const SECOND: u64 = 1_000_000_000;

/// A trainer, and its first line read.
struct Trainer {
    process: Running,
    lines: BufReader<ChildStdout>,
}

impl Trainer {
    #[track_caller]
    fn start(mut command: Command, args: &[&str]) -> Self {
        let mut process = Running::start("trainer", command.args(args));
        let lines = BufReader::new(process.child.stdout.take().expect("piped"));
        let mut trainer = Self { process, lines };
        assert_eq!(trainer.line(), "ready");
        trainer
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("it answers");
        line.trim().to_owned()
    }

    /// Kernels of it that began or ended so far.
    fn kernels(&self, node: &Node, kind: Kind) -> usize {
        let records = history::read(&node.vgpu_dir()).expect("the device keeps a history");
        let own =
            |record: &&history::Record| record.kind == kind && record.pid == self.process.pid();
        records.iter().filter(own).count()
    }

    #[track_caller]
    fn ran(&self, node: &Node, least: usize) {
        wait_for("units to run", || {
            (self.kernels(node, Kind::KernelEnd) >= least).then_some(())
        });
    }

    /// Ends it; it has run as many units as it says.
    #[track_caller]
    fn ends(mut self, node: &Node) {
        self.process.signal(libc::SIGTERM);
        let mut last = self.line();
        while last.contains(' ') {
            last = self.line();
        }
        self.ran(node, last.parse().expect("its units"));
        let ended = self.kernels(node, Kind::KernelEnd);
        assert_eq!(last.parse::<usize>().ok(), Some(ended), "{last:?}");
        let output = self.process.finish();
        assert!(output.status.success(), "{output:?}");
    }
}

/// A trainer that waits behind its gate, and a stand-in for the agent.
fn stage(args: &[&str]) -> (Node, StandIn, Trainer) {
    let node = Node::device_only(&[]);
    let agent = StandIn::start(&node, Role::Offline);
    let command = node.preloaded(compile("trainer", &["-lcuda"]), "offline");
    let trainer = Trainer::start(command, args);
    wait_for("a unit", || {
        let unit = agent.with(0, |session| {
            session.page().process.unit.load(Ordering::Acquire)
        })?;
        (unit >> 48 > 0).then_some(())
    });
    (node, agent, trainer)
}

fn lease(number: u64, units: u64, ahead_ns: u64) -> v1::Lease {
    v1::Lease {
        lease: number,
        units,
        until_ns: monotonic_ns() + ahead_ns,
        tokens: 256,
        resident_layers: Some(7),
        ..v1::Lease::default()
    }
}

/// P-LEASE-2: units run within a lease or behind an open gate, and nowhere else.
#[test]
fn a_lease_is_used_to_its_last_unit_and_no_further_though_the_gate_stays_open() {
    let (node, agent, mut trainer) = stage(&["obedient", "1000000"]);
    let bells = |agent: &StandIn| {
        let bell = |page: &tidegate_abi::page::Page| page.process.doorbell.load(Ordering::Acquire);
        agent.with(0, |session| bell(session.page()))
    };
    let unit = agent.with(0, |session| {
        session.page().process.unit.load(Ordering::Acquire)
    });
    assert_eq!(unit, Some(1000 << 48 | 512));
    let before = bells(&agent);
    let given = lease(1, 3, 60 * SECOND);
    agent.lend(0, &given);
    assert_eq!(agent.over(0, 1), 3);
    assert!(bells(&agent) > before, "the agent is woken");
    for (nth, left) in [(0, 3), (1, 2), (2, 1)] {
        let until = given.until_ns;
        assert_eq!(
            trainer.line(),
            format!("{nth} of {left} until {until} tokens 256 layers 7")
        );
    }
    // Were a unit begun in between, it would be one too many here.
    agent.lend(0, &lease(2, 2, 60 * SECOND));
    assert_eq!(agent.over(0, 2), 2);
    trainer.ran(&node, 5);
    assert_eq!(trainer.kernels(&node, Kind::KernelStart), 5);
    agent.take_back(0, 2);
    agent.lend(0, &lease(3, 9, 0));
    assert_eq!(agent.over(0, 3), 0, "its time was over when it was given");
    agent.take_back(0, 3);
    assert_eq!(trainer.kernels(&node, Kind::KernelStart), 5);
    agent.gate(0, Gate::Open);
    trainer.ran(&node, 20);
    trainer.ends(&node);
}

/// P-LEASE-2: units run within a lease or behind an open gate, and nowhere else.
#[test]
fn a_lease_that_is_withdrawn_ends_with_the_unit_that_runs() {
    let (node, agent, trainer) = stage(&["late", "2000000"]);
    agent.lend(0, &lease(1, 50, 60 * SECOND));
    wait_for("a unit to begin", || {
        (trainer.kernels(&node, Kind::KernelStart) > 0).then_some(())
    });
    agent.withdraw(0, 1);
    let ran = agent.over(0, 1);
    let began = usize::try_from(ran).expect("few");
    trainer.ran(&node, began);
    assert_eq!(trainer.kernels(&node, Kind::KernelStart), began);
    agent.take_back(0, 1);
    // One that nobody has used yet.
    agent.lend(0, &lease(2, 1, 60 * SECOND));
    assert_eq!(agent.over(0, 2), 1);
    agent.withdraw(0, 3);
    assert_eq!(agent.over(0, 3), 0);
    agent.take_back(0, 3);
    trainer.ran(&node, began + 1);
    assert_eq!(trainer.kernels(&node, Kind::KernelStart), began + 1);
    trainer.ends(&node);
}

/// P-LEASE-2: units run within a lease or behind an open gate, and nowhere else.
#[test]
fn a_lease_ends_where_no_unit_follows() {
    let (node, agent, trainer) = stage(&["obedient", "1000000", "2"]);
    agent.lend(0, &lease(1, 50, 60 * SECOND));
    assert_eq!(agent.over(0, 1), 2);
    agent.take_back(0, 1);
    trainer.ends(&node);
}

/// P-LEASE-2: a client without a page hears and says the same on its stream.
#[test]
fn a_trainer_without_a_page_is_lent_units_on_its_stream() {
    let node = Node::device_only(&[]);
    let agent = StandIn::start(&node, Role::Offline);
    let command = node.sandboxed("trainer", "offline");
    let trainer = Trainer::start(command, &["obedient", "1000000"]);
    let gate = |closed| Order::LaunchGate(v1::LaunchGate { slot: 0, closed });
    let unit = agent.hear(0, "a unit", |event| match event {
        Event::TrainingUnit(unit) => Some(*unit),
        _ => None,
    });
    assert_eq!(
        (unit.most, unit.tokens, unit.unit_ns),
        (1000, 512, 1_000_000)
    );
    agent.say(0, gate(true));
    let mut began = Vec::new();
    for (number, units) in [(1, 2), (2, 3)] {
        agent.say(0, Order::Lease(lease(number, units, 60 * SECOND)));
        agent.say(0, gate(false));
        let over = agent.hear(0, "the end of a lease", |event| match event {
            Event::LeaseOver(over) if over.lease == number => Some(*over),
            _ => None,
        });
        assert_eq!((over.slot, over.units), (0, units));
        began.push(trainer.kernels(&node, Kind::KernelStart));
        agent.say(0, gate(true));
        agent.say(0, Order::Lease(v1::Lease::default()));
    }
    // Before it had heard of its closed gate it ran freely.
    assert_eq!(began[1] - began[0], 3);
    trainer.ends(&node);
}

/// P-LEASE-3: a trainer without an agent waits for a unit no longer than for a launch.
#[test]
fn a_trainer_without_an_agent_runs() {
    let node = Node::device_only(&[]);
    for (role, patience) in [("", ""), ("offline", "1ms")] {
        let mut command = node.preloaded(compile("trainer", &["-lcuda"]), role);
        if !patience.is_empty() {
            command.env("TIDEGATE_ATTACH_TIMEOUT", patience);
        }
        let trainer = Trainer::start(command, &["obedient", "1000000"]);
        trainer.ran(&node, 5);
        trainer.ends(&node);
    }
}
