//! An online program that reports its iterations and a trainer beside it, with the agent and the library that ship. What was
//! granted and taken away is read off the agent's recording, which is made again meanwhile.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use tidegate_policy::effect::{Effect, Report};
use tidegate_policy::event::Event;
use tidegate_policy::lease::event::{Event as Learnt, LeaseEvent};
use tidegate_policy::time::nanos;
use tidegate_record::{Entry, replay_with};
use tidegate_vgpu::history::Kind;

use crate::watch::Testimony;
use crate::{Node, Running, TRUSTING, compile, wait_for};

/// Starts a program with the library, as a job that has the role's name.
fn start(node: &Node, program: &str, role: &str, args: &[&str]) -> Running {
    let mut command = node.preloaded(compile(program, &["-lcuda"]), role);
    Running::start(program, command.env("TIDEGATE_JOB", role).args(args))
}

/// Starts an agent that records.
fn start_agent(node: &mut Node, config: &str, number: usize) {
    let recording = node.recording(number);
    node.start_agent_by(config, |mut agent| {
        agent.arg("--record").arg(&recording);
        agent
    });
}

/// Nothing opens by itself, and a promise that a loaded machine keeps as well.
const LEASES: &str =
    "[gate]\ncooldown = \"1h\"\n[lease]\ntpot = \"400ms\"\nttft = \"10s\"\ngrace = \"300ms\"\n";
/// Tokens of each request of online.
pub const TOKENS: u64 = 16;
/// What an iteration of it takes, ns.
pub const ITERATION_NS: u64 = 3_000_000;

/// A lease, as the policy saw it.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    /// Which.
    pub number: u64,
    /// So many units at most.
    pub units: u32,
    /// What they may take, ns.
    pub granted_ns: u64,
    /// When it was given.
    pub given_ns: u64,
    /// When the gate shuts, whatever runs.
    pub until_ns: u64,
    /// When it was over, and whether the trainer said so.
    pub over: Option<(u64, bool)>,
    /// Units that ran, as the trainer said.
    pub ran: u32,
    /// When it was withdrawn.
    pub withdrawn_ns: Option<u64>,
}

/// The leases of a recording, in their order.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn leases(recording: &Path) -> Vec<Lease> {
    let file = File::open(recording).expect("the agent records");
    let mut leases = Vec::<Lease>::new();
    fn of(leases: &mut [Lease], number: u64) -> Option<&mut Lease> {
        leases.iter_mut().find(|lease| lease.number == number)
    }
    let replayed = replay_with(BufReader::new(file), |now, entry| {
        let now = now.as_nanos();
        match entry {
            Entry::Effect(Effect::Lease {
                lease,
                units,
                granted,
                until,
                ..
            }) => leases.push(Lease {
                number: lease.0,
                units: *units,
                granted_ns: nanos(*granted),
                given_ns: now,
                until_ns: until.as_nanos(),
                over: None,
                ran: 0,
                withdrawn_ns: None,
            }),
            Entry::Effect(Effect::Withdraw { lease, .. }) => {
                if let Some(own) = of(&mut leases, lease.0) {
                    own.withdrawn_ns = Some(now);
                }
            }
            Entry::Event(Event::Lease(LeaseEvent::Returned { lease, units, .. })) => {
                if let Some(own) = of(&mut leases, lease.0).filter(|own| own.over.is_none()) {
                    (own.over, own.ran) = (Some((now, true)), *units);
                }
            }
            Entry::Effect(Effect::Emit(Report::LeaseOverrun { lease, .. })) => {
                if let Some(own) = of(&mut leases, lease.0).filter(|own| own.over.is_none()) {
                    own.over = Some((now, false));
                }
            }
            _ => {}
        }
    });
    // What is written at this moment may end in half a line.
    drop(replayed);
    leases
}

/// The two programs, and their node.
#[derive(Debug)]
pub struct Pair {
    /// The node.
    pub node: Node,
    /// The engine.
    pub online: Running,
    /// The trainer, of job `offline`.
    pub trainer: Running,
    config: String,
}

impl Pair {
    /// An engine that decodes one request after the other, in iterations of 3 ms and 1 ms apart, and then a trainer.
    #[must_use]
    pub fn new(trainer: &[&str]) -> Self {
        Self::with(|_| String::new(), 1_000_000, trainer)
    }

    /// The same with more configuration, and iterations so far apart.
    ///
    /// # Panics
    /// When online does not run.
    #[must_use]
    pub fn with(config: impl FnOnce(&Node) -> String, apart_ns: u64, trainer: &[&str]) -> Self {
        let mut node = Node::device_only(&[]);
        let config = format!("{TRUSTING}{LEASES}{}", config(&node));
        start_agent(&mut node, &config, 0);
        let (each, apart) = (ITERATION_NS.to_string(), apart_ns.to_string());
        let tokens = TOKENS.to_string();
        let online = start(&node, "decodes", "online", &[&each, &apart, &tokens]);
        wait_for("online to run", || {
            let history = Testimony::of(&node);
            let ran = history.all(&[online.pid()], Kind::KernelEnd).count();
            (ran > 2).then_some(())
        });
        let trainer = start(&node, "trainer", "offline", trainer);
        Self {
            online,
            trainer,
            node,
            config,
        }
    }

    /// Starts the agent again, the one of this number, which records.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn start_agent(&mut self, number: usize) {
        start_agent(&mut self.node, &self.config, number);
    }

    /// The leases so far.
    ///
    /// # Panics
    /// When the agent records nothing.
    #[must_use]
    pub fn leases(&self) -> Vec<Lease> {
        leases(&self.node.recording(0))
    }

    /// When requests of online came and iterations of it ended, as the policy heard of it, ns.
    ///
    /// # Panics
    /// When the agent records nothing.
    #[must_use]
    pub fn arrivals_and_beats(&self) -> (Vec<u64>, Vec<u64>) {
        let file = File::open(self.node.recording(0)).expect("the agent records");
        let (mut arrivals, mut beats) = (Vec::new(), Vec::new());
        let replayed = replay_with(BufReader::new(file), |now, entry| {
            let Entry::Event(Event::Lease(LeaseEvent::Seen { event, .. })) = entry else {
                return;
            };
            match event {
                Learnt::Arrived { .. } => arrivals.push(now.as_nanos()),
                Learnt::Beat { .. } => beats.push(now.as_nanos()),
                _ => {}
            }
        });
        drop(replayed);
        (arrivals, beats)
    }

    /// Both end; what the device saw, and the leases of all of it.
    ///
    /// # Panics
    /// When a program is gone.
    #[must_use]
    #[track_caller]
    pub fn ends(self) -> (Testimony, Vec<Lease>, [u32; 2]) {
        let pids = [self.online.pid(), self.trainer.pid()];
        let leases = self.leases();
        let history = Testimony::of(&self.node);
        for program in [self.trainer, self.online] {
            program.signal(libc::SIGCONT);
            program.signal(libc::SIGTERM);
        }
        (history, leases, pids)
    }
}
