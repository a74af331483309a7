//! The data types of a schedule of leases.

use super::judge::Judge;
use super::script::{Kind, Script};
use std::collections::VecDeque;
use std::sync::Arc;
use tidegate_abi::beats::BeatPage;

/// What is broken on purpose, to see that the judge notices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Break {
    /// Nothing.
    #[default]
    Nothing,
    /// The agent ends no lease by itself.
    NoEnd,
    /// The agent does not hear of a prompt until the next iteration.
    Deaf,
    /// Leases are off: an empty run.
    Off,
}

impl Break {
    /// Each with its name on the command line.
    pub const NAMES: [(&'static str, Self); 4] = [
        ("nothing", Self::Nothing),
        ("no-end", Self::NoEnd),
        ("deaf", Self::Deaf),
        ("off", Self::Off),
    ];

    pub(super) const fn deaf(self) -> bool {
        matches!(self, Self::Deaf)
    }
}

/// What is of this play.
#[derive(Debug)]
pub(super) struct Leases {
    pub script: Script,
    pub judge: Judge,
    pub broken: Break,
}

/// What happens to programs.
#[derive(Debug)]
pub(super) enum Happening {
    Request(usize),
    Turn(usize),
    /// A trainer launches a unit, of a lease.
    Unit(usize, Option<u64>),
    Thaws(usize),
    Dies(usize),
    Fault(usize),
    /// The engine has made its page of beats.
    Beats(usize),
}

/// What a process is doing.
#[derive(Debug)]
pub(super) enum Own {
    Engine(Box<Engine>),
    Trainer(Trainer),
}

impl Own {
    pub fn engine(&mut self) -> Option<&mut Engine> {
        match self {
            Self::Engine(engine) => Some(engine),
            Self::Trainer(_) => None,
        }
    }

    pub fn trainer(&mut self) -> Option<&mut Trainer> {
        match self {
            Self::Trainer(trainer) => Some(trainer),
            Self::Engine(_) => None,
        }
    }
}

/// A request that decodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decodes {
    pub request: usize,
    pub left: u64,
    pub first: u64,
}

/// An iteration that runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub began: u64,
    /// Whose prompt it reads; None: it decodes.
    pub prompt: Option<usize>,
}

#[derive(Debug, Default)]
pub(super) struct Engine {
    pub page: Option<Arc<BeatPage>>,
    pub waiting: VecDeque<usize>,
    pub decodes: Vec<Decodes>,
    pub turn: Option<Turn>,
    /// Its next iteration is on its way.
    pub begins: bool,
    pub iterations: u64,
}

impl Engine {
    pub fn in_flight(&self) -> u64 {
        let reads = usize::from(self.turn.is_some_and(|turn| turn.prompt.is_some()));
        (self.waiting.len() + self.decodes.len() + reads) as u64
    }
}

#[derive(Debug)]
pub(super) struct Trainer {
    pub kind: Kind,
    /// What a unit takes, ns.
    pub unit: u64,
    /// Units on the device: of which lease, if of one.
    pub units: VecDeque<Option<u64>>,
    /// A unit is about to be launched.
    pub begins: bool,
    pub frozen_until: u64,
    /// The words as they were seen last: number and state.
    pub seen: u64,
}

impl Trainer {
    pub fn new(kind: Kind, unit: u64) -> Self {
        Self {
            kind,
            unit,
            units: VecDeque::new(),
            begins: false,
            frozen_until: 0,
            seen: 0,
        }
    }

    /// What it says that a unit takes, ns.
    pub fn claimed(&self) -> u64 {
        match self.kind {
            Kind::Miscounts => self.unit / 4,
            _ => self.unit,
        }
    }

    /// Its units are what it says, and end where the library says.
    pub fn keeps(&self) -> bool {
        matches!(self.kind, Kind::Obedient | Kind::Late | Kind::Dies)
    }
}
