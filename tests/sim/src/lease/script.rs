//! What a schedule of leases does, drawn from its seed before it starts.

use crate::dice::{Dice, MS, US};
use std::fmt;

/// One request of the engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub at: u64,
    /// What reading its prompt takes, ns.
    pub prompt: u64,
    /// Tokens after the first.
    pub tokens: u64,
}

/// How a trainer behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It does what the library tells it, and its units take what it says.
    Obedient,
    /// The same, but now and then a unit takes several times as long.
    Late,
    /// It says that its lease is over, and leaves work on the device.
    Returns,
    /// It runs units of another length than it says, and miscounts them.
    Miscounts,
    /// It launches without asking anybody.
    Greedy,
    /// It stops in mid-unit for a while, with work on the device.
    Freezes,
    /// It dies in mid-unit, and another starts.
    Dies,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::Obedient,
        Self::Late,
        Self::Returns,
        Self::Miscounts,
        Self::Greedy,
        Self::Freezes,
        Self::Dies,
    ];
}

/// What goes wrong with the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Another starts after so long.
    Killed(u64),
    Stopped(u64),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Killed(ns) => write!(f, "the agent is killed, another in {} ms", ns / MS),
            Self::Stopped(ns) => write!(f, "the agent is stopped for {} ms", ns / MS),
        }
    }
}

/// A whole schedule.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub seed: u64,
    /// A decode iteration: of none, and what each request adds, ns.
    pub decode: (u64, u64),
    /// Between two iterations, ns.
    pub gap: u64,
    /// The engine rings at each request that comes, not only at the first.
    pub rings: bool,
    pub requests: Vec<Request>,
    pub ttft: u64,
    pub tpot: u64,
    pub grace: u64,
    /// Each a job of its own, with what a unit of it takes by its own account.
    pub trainers: Vec<(Kind, u64)>,
    /// At that time, or at the first lease after it.
    pub faults: Vec<(u64, bool, Fault)>,
}

impl Script {
    pub fn draw(seed: u64, dice: &mut Dice) -> Self {
        let decode = (dice.scale(2 * MS, 12 * MS), dice.between(20 * US, 200 * US));
        let gap = dice.scale(100 * US, 1_500 * US);
        let rate = dice.scale(30 * MS, 150 * MS);
        let mut at = 1_500 * MS;
        let mut requests = Vec::new();
        for _ in 0..dice.between(100, 140) {
            // Bursts, and pauses that are long enough for the gate.
            at += match dice.between(0, 19) {
                0..=7 => dice.between(0, 2 * MS),
                8..=18 => dice.between(0, 3 * rate),
                _ => dice.between(200 * MS, 600 * MS),
            };
            requests.push(Request {
                at,
                prompt: dice.scale(MS, 40 * MS),
                tokens: dice.between(4, 40),
            });
        }
        let pace = decode.0 + 4 * decode.1 + gap;
        let count = if dice.percent(35) { 2 } else { 1 };
        let trainers = (0..count).map(|_| {
            let kind = dice.one_of(&Kind::ALL).unwrap_or(Kind::Obedient);
            (kind, dice.scale(300 * US, 5 * MS))
        });
        let trainers = trainers.collect();
        let faults = if dice.percent(30) {
            let ns = dice.scale(5 * MS, 800 * MS);
            let fault = if dice.percent(70) {
                Fault::Killed(ns)
            } else {
                Fault::Stopped(ns)
            };
            vec![(dice.between(1_800 * MS, at), dice.percent(70), fault)]
        } else {
            Vec::new()
        };
        Self {
            seed,
            decode,
            gap,
            rings: dice.percent(70),
            requests,
            ttft: dice.scale(300 * MS, 1_500 * MS),
            tpot: dice.between(pace * 14 / 10, pace * 5),
            grace: dice.scale(200 * US, 2 * MS),
            trainers,
            faults,
        }
    }

    /// The same without trainers.
    pub fn alone(&self) -> Self {
        Self {
            trainers: Vec::new(),
            ..self.clone()
        }
    }

    /// What the nth decode iteration of so many requests takes, ns: the same beside trainers and without.
    pub fn decode_ns(&self, nth: u64, batch: u64) -> u64 {
        let ns = self.decode.0 + batch * self.decode.1;
        let noise = Dice::new(self.seed ^ nth.wrapping_mul(0x9e37_79b9)).between(980, 1_020);
        ns * noise / 1_000
    }
}
