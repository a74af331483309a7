//! Who decides in a world: two policies, one for the GPU's time and one for its memory; the agent, for
//! both; or the agent for memory, under another policy's gate.

use crate::compute::{
    self, Command, Event, NEVER, channel, gpreempt, kernel_preempt, layer_preempt, no_control,
    oracle, standalone, temporal_share,
};
use crate::memory::{self, Pool, Wants};
use crate::plan::Alone;
use crate::record::CooldownRecord;
use crate::spec::{Compute, Spec};
use crate::tidegate::Tidegate;
use std::time::Duration;
use tidegate_policy::placement::Slice;

/// Those who decide.
#[derive(Debug)]
pub enum Policies {
    /// One for each.
    Apart {
        /// The GPU's time.
        compute: Box<dyn compute::Policy>,
        /// Its memory.
        memory: Box<dyn memory::Policy>,
    },
    /// The agent.
    Tidegate(Box<Tidegate>),
    /// The agent for memory; the other pauses and resumes the job.
    Under {
        /// The GPU's time.
        compute: Box<dyn compute::Policy>,
        /// Its memory.
        agent: Box<Tidegate>,
        /// What the first says, before it is carried out.
        said: Vec<Command>,
    },
}

/// Who decides about the GPU's time under `spec`.
#[must_use]
pub fn make_compute(spec: &Spec, alone: Option<&Alone>) -> Box<dyn compute::Policy> {
    let costs = &spec.costs;
    let longest_gap = alone.map_or(Duration::ZERO, |alone| alone.longest_gap);
    match spec.compute {
        // One engine has nobody to share the GPU with: `run` has its iterations.
        Compute::Standalone | Compute::OneEngine(_) => Box::new(standalone::Standalone),
        Compute::NoControl => Box::new(no_control::NoControl::new(costs)),
        Compute::KernelPreempt => Box::new(kernel_preempt::KernelPreempt),
        Compute::LayerPreempt => Box::new(layer_preempt::LayerPreempt),
        Compute::GPreempt => Box::new(gpreempt::GPreempt::new(costs)),
        Compute::TemporalShare(every) => Box::new(temporal_share::TemporalShare::new(every)),
        Compute::Channel => Box::new(channel::Channel::with_cooldown(costs, longest_gap)),
        Compute::ChannelNoCooldown => {
            Box::new(channel::Channel::with_cooldown(costs, Duration::ZERO))
        }
        Compute::Tidegate | Compute::TidegateHints => Box::new(Tidegate::gate(spec)),
        Compute::Oracle => Box::new(oracle::Oracle::at_most_once(costs, alone)),
        Compute::OracleUnlimited => Box::new(oracle::Oracle::unlimited(costs, alone)),
    }
}

/// Whether online can submit an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// It can; the iteration is so many ns longer.
    Yes(u64),
    /// Not before [`Command::Retry`].
    NotYet,
}

impl Policies {
    /// Those of `spec`; `horizon` is the memory oracle's.
    #[must_use]
    pub fn of(spec: &Spec, alone: Option<&Alone>, horizon: Option<u64>) -> Self {
        let agents = spec.memory.is_agents();
        match spec.compute {
            Compute::Tidegate | Compute::TidegateHints if agents => {
                Self::Tidegate(Box::new(Tidegate::whole(spec)))
            }
            _ if agents && spec.compute != Compute::Standalone => Self::Under {
                compute: make_compute(spec, alone),
                agent: Box::new(Tidegate::under(spec)),
                said: Vec::new(),
            },
            _ => Self::Apart {
                compute: make_compute(spec, alone),
                memory: memory::make(spec, alone, horizon),
            },
        }
    }

    /// Takes an event.
    pub fn step(&mut self, event: Event, now: u64, pool: &mut Pool, out: &mut Vec<Command>) {
        let (compute, agent, said) = match self {
            Self::Apart { compute, .. } => return compute.step(event, now, out),
            Self::Tidegate(agent) => return agent.step(event, now, Some(pool), out),
            Self::Under {
                compute,
                agent,
                said,
            } => (compute, agent, said),
        };
        match event {
            Event::Due if agent.next() <= now => agent.step(event, now, Some(pool), out),
            Event::Stopped => agent.stopped(now, out),
            Event::Due | Event::Running | Event::OfflineDone => {}
            _ => agent.step(event, now, Some(pool), out),
        }
        if event != Event::Due || compute.next() <= now {
            compute.step(event, now, said);
        }
        for command in said.drain(..) {
            match command {
                Command::Run { takes } => agent.resume(takes, now, out),
                Command::Stop { .. } => {
                    if agent.stops(now, out) {
                        out.push(command);
                    }
                }
                Command::Share { .. } => {
                    out.push(command);
                    agent.resume(0, now, out);
                }
                Command::Hold { .. } | Command::Retry => out.push(command),
            }
        }
    }

    /// When the compute policy, or the agent, wants [`Event::Due`].
    #[must_use]
    pub fn next(&self) -> u64 {
        match self {
            Self::Apart { compute, .. } => compute.next(),
            Self::Tidegate(agent) => agent.next(),
            Self::Under { compute, agent, .. } => compute.next().min(agent.next()),
        }
    }

    /// The most that offline can ever have, bytes, where that is known before it makes its cache.
    #[must_use]
    pub fn offline_cache(&self, pool: u64) -> u64 {
        match self {
            Self::Apart { memory, .. } => memory.offline_cache(pool),
            Self::Tidegate(_) | Self::Under { .. } => pool,
        }
    }

    /// When the memory policy wants [`Self::memory_due`].
    #[must_use]
    pub fn memory_next(&self) -> u64 {
        match self {
            Self::Apart { memory, .. } => memory.next(),
            Self::Tidegate(_) | Self::Under { .. } => NEVER,
        }
    }

    /// That time has come.
    pub fn memory_due(&mut self, now: u64, pool: &mut Pool) {
        if let Self::Apart { memory, .. } = self {
            memory.due(now, pool);
        }
    }

    /// Online is about to submit an iteration.
    pub fn online_wants(&mut self, wants: Wants, now: u64, pool: &mut Pool) -> Grant {
        match self {
            Self::Apart { memory, .. } => Grant::Yes(memory.online_wants(wants, now, pool)),
            Self::Tidegate(agent) | Self::Under { agent, .. } => {
                if agent.online_wants(wants, now, pool) {
                    Grant::Yes(0)
                } else {
                    Grant::NotYet
                }
            }
        }
    }

    /// A request came while online computes: what its next iteration will want. Who learns of it only then does nothing.
    pub fn online_expects(&mut self, bytes: u64, now: u64) {
        match self {
            Self::Apart { .. } => {}
            Self::Tidegate(agent) | Self::Under { agent, .. } => agent.online_expects(bytes, now),
        }
    }

    /// An iteration of online is done, and what its requests gave back is free.
    pub fn online_done(&mut self, now: u64, pool: &mut Pool) {
        if let Self::Apart { memory, .. } = self {
            memory.online_done(now, pool);
        }
    }

    /// Offline is about to submit an iteration: how many ns longer it takes.
    pub fn offline_wants(&mut self, now: u64, pool: &mut Pool) -> u64 {
        match self {
            Self::Apart { memory, .. } => memory.offline_wants(now, pool),
            Self::Tidegate(agent) | Self::Under { agent, .. } => {
                agent.offline_wants(now);
                0
            }
        }
    }

    /// Offline has just been stopped, or is about to be let in: how many ns the gate stays shut for
    /// memory that moves.
    pub fn gate(&mut self, opens: bool, now: u64, pool: &mut Pool) -> u64 {
        match self {
            Self::Apart { memory, .. } => memory.gate(opens, now, pool),
            Self::Tidegate(_) | Self::Under { .. } => 0,
        }
    }

    /// What was learnt of decode gaps.
    pub fn learnt(&self, now: u64, record: &mut CooldownRecord) {
        match self {
            Self::Apart { compute, .. } | Self::Under { compute, .. } => {
                compute.learnt(now, record);
            }
            Self::Tidegate(agent) => agent.learnt(now, record),
        }
    }

    /// Has the agent keep a history for placement, in slices of `every` ns.
    pub fn watch(&mut self, every: u64) {
        if let Self::Tidegate(agent) = self {
            agent.watch(every);
        }
    }

    /// The agent's history up to `now`, and when its gate was open; none of others.
    pub fn history(&mut self, now: u64) -> (Vec<Slice>, Vec<(u64, u64)>) {
        match self {
            Self::Tidegate(agent) => agent.history(now),
            Self::Apart { .. } | Self::Under { .. } => Default::default(),
        }
    }

    /// Most that was held beyond the pool, bytes.
    #[must_use]
    pub fn overdrawn(&self) -> u64 {
        match self {
            Self::Apart { .. } => 0,
            Self::Tidegate(agent) | Self::Under { agent, .. } => agent.overdrawn(),
        }
    }
}
