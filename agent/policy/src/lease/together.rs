//! Training beside an iteration in one process: tokens that ride in online's own pass, or units on a share of the
//! multiprocessors.
//!
//! The cost of either is learnt from the run: how many tokens ride for free, how much longer an iteration takes with
//! each share, and how much is trained meanwhile. No figure of a GPU is known here.
//!
//! ```text
//!   cost of a share  = (1 - trained) x slower        what an iteration takes of the GPU, of what it takes alone
//!   the share        = the least cost, of those whose iterations are no slower than they may be
//!   the tokens       = a rate times the iteration, up while it is not slower, down when it is
//! ```
//!
//! A share that was never tried is assumed to slow online in proportion to the multiprocessors that online keeps, which
//! no work on fewer multiprocessors exceeds, and to be better than all that were tried. So each allowed share is tried.
//! Every [`ALONE`] iterations one runs by itself, for comparison with the others.

use crate::words::lease::Iteration;

/// Steps of a partition (HARLI, section 6.1: 10 % each).
pub const STEPS: usize = 10;
/// One iteration in so many runs by itself. No source: it costs a sixteenth of what is trained beside.
pub const ALONE: u32 = 16;
/// Tokens of a tile of a tensor core: fewer cost the same.
pub const TILE: u32 = 16;

/// Seen so often, a share is taken for what it did.
const KNOWN: u32 = 2;
/// Weight of the newest value.
const WEIGHT: f64 = 0.1;
/// An iteration that takes this much longer than alone counts as slower: less than any promise allows.
const SLOWER: f64 = 0.003;
/// Of so many plans one may try a share whose bound is above what is allowed. Ours: it is one iteration.
const TRIED: u32 = 200;
/// What a pass that was slower takes of the rate, and one that was not adds to it.
const DOWN: f64 = 0.9;
const UP: f64 = 1.002;
/// The latter until a pass was slower for the first time.
const UP_AT_FIRST: f64 = 1.05;
/// Tokens a ns at first: a tile in 2 ms.
const BEGIN: f64 = 16.0 / 2e6;
/// Beyond the bound of a share that was not tried: a neighbour asks for bandwidth as well. Ours.
const NEIGHBOUR: f64 = 1.25;

/// What runs beside one iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Plan {
    /// Training tokens in its pass.
    pub fused: u32,
    /// The trainer's steps of the partition; online has the rest.
    pub trainer: u32,
    /// What the iteration is expected to take more than alone, ns.
    pub more_ns: f64,
}

/// What there is to plan for.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// The iteration.
    pub next: Iteration,
    /// What it takes alone, by prediction, ns.
    pub alone_ns: f64,
    /// What it may take more, ns.
    pub room_ns: f64,
    /// Tokens that may go forward in its pass.
    pub forward_tokens: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Share {
    seen: u32,
    /// Times as slow as alone: mean, and about the slowest.
    slower: f64,
    slowest: f64,
    /// Trained a ns, in ns of the trainer alone.
    trained: f64,
}

/// What was learnt.
#[derive(Clone, Copy, Debug)]
pub struct Together {
    shares: [Share; STEPS],
    rate: f64,
    /// A pass was slower once.
    found: bool,
    /// What iterations took alone, of what was predicted.
    right: f64,
    since: u32,
    /// Plans for shares since one was tried.
    untried: u32,
}

impl Default for Together {
    fn default() -> Self {
        Self {
            shares: [Share::default(); STEPS],
            rate: BEGIN,
            found: false,
            right: 1.0,
            since: 0,
            untried: 0,
        }
    }
}

impl Together {
    /// What runs beside the iteration; nothing beside prompts, and where nothing is predicted.
    pub fn plan(&mut self, ask: &Ask) -> Plan {
        self.since += 1;
        if ask.next.prompt > 0 || ask.next.batch == 0 || !ask.alone_ns.is_finite() {
            return Plan::default();
        }
        if self.since >= ALONE {
            return Plan::default();
        }
        let alone = ask.alone_ns * self.right;
        let fused = (self.rate * alone) as u32 / TILE * TILE;
        if ask.forward_tokens > 0 && fused > 0 {
            return Plan {
                fused: fused.min(ask.forward_tokens),
                ..Plan::default()
            };
        }
        self.untried += 1;
        let (trainer, slower) = self.share(1.0 + ask.room_ns.max(0.0) / alone.max(1.0));
        Plan {
            trainer: trainer as u32,
            more_ns: (slower - 1.0).max(0.0) * alone,
            fused: 0,
        }
    }

    /// The share that costs the least, and how slow it may turn out; at most `most` times as slow as alone.
    fn share(&mut self, most: f64) -> (usize, f64) {
        let (mut best, mut least) = ((0, 1.0), 1.0);
        let mut known = (0, 1.0);
        for trainer in 1..STEPS {
            let share = &self.shares[trainer];
            let (slowest, cost) = if share.seen >= KNOWN {
                known = (trainer, share.slowest);
                (share.slowest, (1.0 - share.trained).max(0.0) * share.slower)
            } else {
                let less = (STEPS - known.0) as f64 / (STEPS - trainer) as f64;
                // Not below what is known to be best, but before it.
                (known.1 * less * NEIGHBOUR, least - 1e-3)
            };
            // It is no more than one iteration, and what is next to it is well within.
            let tried = share.seen < KNOWN
                && trainer == known.0 + 1
                && known.1 < most
                && self.untried > TRIED;
            if tried {
                self.untried = 0;
                return (trainer, known.1);
            }
            if slowest <= most && cost < least {
                (best, least) = ((trainer, slowest), cost);
            }
        }
        best
    }

    /// An iteration that was predicted to take `alone_ns` took `took_ns` beside this plan, and the trainer did what
    /// takes it `trained_ns` alone. What it took more, ns.
    pub fn ran(&mut self, plan: Plan, alone_ns: f64, took_ns: f64, trained_ns: f64) -> f64 {
        if !(alone_ns > 0.0 && alone_ns.is_finite() && took_ns > 0.0) {
            return 0.0;
        }
        let slower = took_ns / (alone_ns * self.right);
        if plan.fused > 0 {
            let late = slower > 1.0 + SLOWER;
            self.found |= late;
            self.rate *= match (late, self.found) {
                (true, _) => DOWN,
                (_, true) => UP,
                _ => UP_AT_FIRST,
            };
            return (slower - 1.0) * alone_ns * self.right;
        }
        let Some(share) = self
            .shares
            .get_mut(plan.trainer as usize)
            .filter(|_| plan.trainer > 0)
        else {
            self.since = 0;
            self.right += WEIGHT * (took_ns / alone_ns - self.right);
            return 0.0;
        };
        share.seen = share.seen.saturating_add(1);
        let weight = WEIGHT.max(1.0 / f64::from(share.seen));
        share.slower += weight * (slower - share.slower);
        share.trained += weight * (trained_ns / took_ns - share.trained);
        // The slowest fades, and never lies below the mean.
        share.slowest += WEIGHT * (share.slower - share.slowest) / 4.0;
        share.slowest = share.slowest.max(slower).max(share.slower);
        (slower - 1.0) * alone_ns * self.right
    }
}
