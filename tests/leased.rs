//! Leases, as the library has its part in them: a trainer obeys them, and an online program says its iterations. What runs
//! is judged by the device's history.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{ChildStdout, Command};
use std::sync::atomic::Ordering;

use tidegate_abi::beats::{BATCH_KNOWN, MAGIC};
use tidegate_agent::sys::{self, SharedBeats};
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

/// The page of iterations that session `at` sent, as its agent opens it, and its descriptor.
#[track_caller]
fn page_of_iterations(agent: &StandIn, at: usize, pid: u32) -> (SharedBeats, i32) {
    let fd = agent.hear(at, "the page of iterations", |event| match event {
        Event::BeatPage(page) => Some(page.fd),
        _ => None,
    });
    let process = sys::pidfd_open(pid.cast_signed()).expect("it runs");
    let file = sys::pidfd_getfd(process.as_fd(), fd).expect("it is open there");
    (SharedBeats::map(file.as_fd()).expect("it is sealed"), fd)
}

/// One iteration, as the page says it: of version, count, begin, end and which one it is.
fn iteration(page: &SharedBeats) -> Option<[u64; 4]> {
    let words = &page.devices[0];
    let version = words.version.load(Ordering::Acquire);
    let read = [
        &words.count,
        &words.begin_ns,
        &words.end_ns,
        &words.free_blocks,
    ]
    .map(|word| word.load(Ordering::Acquire));
    let rest = [&words.batch, &words.prompt, &words.cached, &words.blocks]
        .map(|word| word.load(Ordering::Acquire));
    let stands = version.is_multiple_of(2) && version == words.version.load(Ordering::Acquire);
    if !stands || read[0] == 0 {
        return None;
    }
    let (prompt, decode) = ([BATCH_KNOWN, 100, 0, 1 << 20], [BATCH_KNOWN | 1, 0]);
    assert!(rest == prompt || rest[..2] == decode, "{rest:?}");
    Some(read)
}

/// P-LEASE-4: what an online program says of its iterations is what the device saw of them.
#[test]
fn an_online_program_says_its_iterations_to_the_agent_that_asks_for_them() {
    let node = Node::device_only(&[]);
    let agent = StandIn::start(&node, Role::Online);
    let mut command = node.preloaded(compile("decodes", &["-lcuda"]), "online");
    let program = Running::start("decodes", command.args(["2000000", "1000000", "7"]));
    let pid = program.pid();
    let records = || history::read(&node.vgpu_dir()).expect("the device keeps a history");
    let ran = |kind: Kind| -> BTreeMap<u64, u64> {
        let records = records();
        let own = records
            .iter()
            .filter(|record| record.kind == kind && record.pid == pid);
        own.map(|record| (record.tag, record.at_ns)).collect()
    };
    let maps = || std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    let bells = || {
        let bell = |page: &tidegate_abi::page::Page| page.process.doorbell.load(Ordering::Acquire);
        agent.with(0, |session| bell(session.page()))
    };
    wait_for("iterations", || {
        (ran(Kind::KernelEnd).len() > 10).then_some(())
    });
    assert!(!maps().contains("tidegate-beats"), "nobody asked");
    let mut last = 0;
    let mut descriptors = Vec::new();
    for session in 0..3 {
        wait_for("a session", || agent.with(session, |_| ()));
        agent.say(session, Order::BeatsWanted(v1::BeatsWanted {}));
        let (page, fd) = page_of_iterations(&agent, session, pid);
        descriptors.push(fd);
        assert_eq!(page.header.magic.load(Ordering::Acquire), MAGIC);
        let number = agent.with(session, |session| {
            session.page().header.session.load(Ordering::Acquire)
        });
        assert_eq!(Some(page.header.session.load(Ordering::Acquire)), number);
        let before = bells();
        let mut said = BTreeMap::new();
        wait_for("iterations that are said", || {
            let [count, begin, end, nth] = iteration(&page)?;
            said.insert(nth, (count, begin, end));
            (said.len() >= 20).then_some(())
        });
        assert!(session > 0 || bells() > before, "the agent is woken");
        let (starts, ends) = wait_for("the history of them", || {
            let all = (ran(Kind::KernelStart), ran(Kind::KernelEnd));
            all.1.contains_key(said.last_key_value()?.0).then_some(all)
        });
        for (nth, (_, begin, end)) in &said {
            assert!(
                *begin <= starts[nth] && ends[nth] <= *end,
                "{nth} of {said:?}"
            );
            assert!(*begin >= ends[&(nth - 1)], "{nth} of {said:?}");
        }
        let numbers = said.iter().map(|(nth, (count, ..))| nth - count);
        let numbers: Vec<u64> = numbers.collect();
        assert!(numbers.windows(2).all(|two| two[0] == two[1]), "{said:?}");
        assert!(said.first_key_value().is_some_and(|(nth, _)| *nth > last));
        last = *said.last_key_value().expect("twenty").0;
        if session == 1 {
            program.signal(libc::SIGUSR1);
            let link = format!("/proc/{pid}/fd/{fd}");
            wait_for("it to be closed", || {
                std::fs::read_link(&link).is_err().then_some(())
            });
        }
        agent.cut(session);
    }
    assert_eq!(descriptors[0], descriptors[1], "one serves all agents");
    assert_eq!(maps().matches("tidegate-beats").count(), 1, "{}", maps());
    program.signal(libc::SIGTERM);
    let output = program.succeed();
    let (all, said) = output
        .lines()
        .last()
        .and_then(|line| line.split_once(' '))
        .expect("two");
    let [all, said] = [all, said].map(|count| count.parse::<u64>().expect("a count"));
    assert!(0 < said && said < all, "{output}");
}
