//! Who trains when, beside online: ours and what it is compared with, one file each.
//!
//! A policy is asked at four moments, and hears of everything that happens, as the lease policy of the
//! agent does ([`tidegate_policy::lease::event`]):
//!
//! ```text
//!   iteration over -> before    units that run before the next one (both take turns)
//!   iteration      -> beside    training tokens in its own pass, or units on a share of the GPU
//!   online away    -> idle      from which age on, and how it is stopped
//! ```
//!
//! What a policy may know is in what it is given. [`Seen`] is what an agent sees; [`Profile`] is what a
//! published scheduler is given by hours of profiling, here without error unless one is asked for;
//! [`Truth`] is the future, for the oracle alone. Ours reads the first only.

pub mod chunked;
pub mod fine_infer;
pub mod flexllm;
pub mod gate;
pub mod harli;
pub mod llmstation;
pub mod mcgill;
pub mod oracle;
pub mod static_mps;
pub mod temporal;
pub mod tidegate;

use tidegate_device::sharing::{Contention, Demand, Shares};
use tidegate_policy::lease::event::{Event, Iteration, Unit};

use crate::iteration::Cost;
use crate::trainer::{Phase, Trainer};

use gate::Gate;

/// What an agent sees.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Now, ns.
    pub now: u64,
    /// Online's next iteration; its prompt tokens are one where some wait and nobody counted them.
    pub next: Iteration,
    /// The trainer's next unit.
    pub unit: Unit,
    /// What that is.
    pub phase: Phase,
    /// Tokens that may go forward in another's pass.
    pub forward_tokens: u32,
    /// Requests that are not done.
    pub in_flight: u32,
}

/// What was profiled before: exact times, off by a factor where that is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Profile<'a> {
    pub(crate) cost: &'a Cost,
    pub(crate) trainer: &'a Trainer,
    pub(crate) contention: Contention,
    /// By what every time is multiplied.
    pub(crate) off: f64,
    /// The iteration, where it is composed already.
    pub(crate) known_ns: Option<f64>,
}

impl Profile<'_> {
    /// An iteration by itself, ns.
    #[must_use]
    pub fn iteration_ns(&self, next: &Iteration) -> f64 {
        let ns = self
            .known_ns
            .unwrap_or_else(|| self.cost.decode_ms(next.batch, next.cached) * 1e6);
        self.off * ns
    }

    /// `f(c, s)`: the same with so many training tokens in its pass, ns.
    #[must_use]
    pub fn pass_ns(&self, next: &Iteration, tokens: u32) -> f64 {
        let alone = self.iteration_ns(next) / self.off;
        self.off * fused_ns(self.cost, self.trainer, next, alone, tokens)
    }

    /// The trainer's next unit alone, ns.
    #[must_use]
    pub fn unit_ns(&self) -> f64 {
        self.off * self.trainer.unit().demand.alone_ns()
    }

    /// An iteration and the trainer's next unit beside each other, ns each.
    #[must_use]
    pub fn beside_ns(&self, next: &Iteration, shares: Shares) -> [f64; 2] {
        let alone = self.iteration_ns(next) / self.off;
        let online = demand(self.cost, self.trainer, next, alone);
        let works = [online, self.trainer.unit().demand];
        let [online, unit] = self.contention.together(works, shares);
        [self.off * online, self.off * unit]
    }
}

/// What online's iteration computes and reads, where it takes `alone_ns`.
pub(crate) fn demand(cost: &Cost, trainer: &Trainer, of: &Iteration, alone_ns: f64) -> Demand {
    let compute = trainer.compute_ns(of.prompt + of.batch, 0);
    let memory = cost.decode_ms(of.batch.max(1), of.cached) * 1e6;
    if compute > memory {
        Demand {
            compute_ns: alone_ns,
            memory_ns: memory.min(alone_ns),
        }
    } else {
        Demand {
            compute_ns: compute.min(alone_ns),
            memory_ns: alone_ns,
        }
    }
}

/// An iteration of `alone_ns` with `tokens` more in its pass, ns: as an engine batches prompts beside
/// decodes, whose longer part is what it takes.
pub(crate) fn fused_ns(
    cost: &Cost,
    trainer: &Trainer,
    of: &Iteration,
    alone_ns: f64,
    tokens: u32,
) -> f64 {
    if tokens == 0 {
        return alone_ns;
    }
    let more = trainer.compute_ns(tokens, trainer.forwarded());
    let reads = cost.decode_ms(of.batch.max(1), of.cached) * 1e6;
    if of.prompt > 0 && alone_ns > reads {
        // Computing is what it waits for already.
        return alone_ns + more;
    }
    let attention = cost.attention_ms(tokens, trainer.forwarded());
    let pass = cost.prefill_ms(of.prompt + tokens, attention, of.batch, of.cached) * 1e6;
    alone_ns.max(pass)
}

/// What nobody knows.
#[derive(Clone, Copy, Debug)]
pub struct Truth {
    /// The next arrival, ns; the end of time if there is none.
    pub arrival: u64,
    /// When online would launch its next iteration by itself, ns.
    pub launch: u64,
    /// What that takes, ns.
    pub iteration_ns: f64,
}

/// Units between two iterations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lease {
    /// So many units.
    pub units: u32,
    /// What they were granted for, ns.
    pub granted_ns: u64,
    /// None begins that by its own account would not end within that.
    pub by_time: bool,
    /// The gate shuts so long after the lease began, ns; zero for a trainer that nobody stops.
    pub until_ns: u64,
    /// A request that comes ends it at the end of a unit.
    pub withdrawn: bool,
    /// Without units: it runs in the gap from this age on, ns, and the gate stops it.
    pub gap_from: Option<u64>,
    /// It keeps this share of the GPU, and online need not wait.
    pub keeps: Option<f64>,
}

/// Beside an iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Beside {
    /// Tokens that go forward in its pass.
    pub fused: u32,
    /// Units at most on a share of the GPU.
    pub units: u32,
    /// Online's share and the trainer's.
    pub shares: (f64, f64),
    /// The shares stay what they are when the units or the iteration are over.
    pub fixed: bool,
}

/// How a trainer that has the GPU to itself is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// By the gate in mid-unit, or at the unit's end if that is sooner.
    Gate,
    /// At the end of the unit.
    Unit,
    /// At the end of the pass: all layers of its window.
    Pass,
    /// At the end of the sample.
    Sample,
    /// Not: it keeps its share.
    Never,
}

/// While online is away.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Idle {
    /// From this age on, ns; nothing for not at all.
    pub from: Option<u64>,
    /// How it ends.
    pub stop: Stop,
    /// Share of the GPU.
    pub share: f64,
    /// A request that comes may wait so long, ns, before it is stopped.
    pub defer_ns: u64,
}

impl Idle {
    /// All of the GPU at once, to the end of the unit in which online comes back.
    pub const UNITS: Self = Self {
        from: Some(0),
        stop: Stop::Unit,
        share: 1.0,
        defer_ns: 0,
    };
}

/// A trainer's policy.
pub trait Policy: std::fmt::Debug {
    /// Something happened at `now`, ns.
    fn see(&mut self, _event: &Event, _now: u64) {}

    /// An iteration is over and another will come.
    fn before(&mut self, _seen: &Seen, _profile: &Profile<'_>, _truth: &Truth) -> Lease {
        Lease::default()
    }

    /// An iteration begins.
    fn beside(&mut self, _seen: &Seen, _profile: &Profile<'_>) -> Beside {
        Beside::default()
    }

    /// An iteration is over that took `took` ns with that beside it; the trainer did what takes it `trained` ns alone.
    fn ran(&mut self, _seen: &Seen, _beside: &Beside, _took: f64, _trained: f64) {}

    /// Online has nothing left to do.
    fn idle(&mut self, _seen: &Seen, _truth: &Truth) -> Idle {
        Idle::UNITS
    }

    /// It opens and shuts a gate and leases nothing: the replay's own gate decides.
    fn gate(&mut self) -> Option<&mut Gate> {
        None
    }
}

impl Policy for Gate {
    fn idle(&mut self, _seen: &Seen, _truth: &Truth) -> Idle {
        Idle {
            from: None,
            stop: Stop::Gate,
            ..Idle::UNITS
        }
    }

    fn gate(&mut self) -> Option<&mut Gate> {
        Some(self)
    }
}
