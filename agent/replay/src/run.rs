//! Runs one [`Spec`] in virtual time.
//!
//! Every policy is compared on the same arrivals, lengths and decode gaps, and some policies know
//! what online does by itself (the oracles all of it, others one figure), so a run of online alone
//! comes first: [`alone`]. It is the same for every policy of a scenario and seed.

pub mod beside;
mod one_engine;
mod slots;
mod world;

use crate::kv::blocks_of;
use crate::memory::oracle::HORIZONS;
use crate::plan::Alone;
use crate::record::Outcome;
use crate::spec::{Compute, Memory, Spec, SpecError};

/// Checks what a run takes for granted.
///
/// # Errors
/// No requests, zero tokens, or a request that never fits.
pub fn check(spec: &Spec) -> Result<(), SpecError> {
    if spec.online.trace.is_empty() {
        return Err(SpecError::NoRequests);
    }
    if spec.offline.lengths.is_empty() {
        return Err(SpecError::NoOffline);
    }
    let pool = spec.kv_pool_bytes;
    let fits = |side, index, bytes_per_token: u64, tokens: u32| {
        let blocks = u64::from(blocks_of(tokens));
        let needs = blocks * u64::from(crate::kv::BLOCK_TOKENS) * bytes_per_token;
        if needs <= pool {
            Ok(())
        } else {
            Err(SpecError::TooLarge {
                side,
                index,
                needs,
                pool,
            })
        }
    };
    let online = spec.online.model.shape.kv_bytes_per_token();
    for (index, request) in spec.online.trace.requests().iter().enumerate() {
        let tokens = request.input_tokens.saturating_add(request.output_tokens);
        fits("online", index, online, tokens)?;
    }
    let offline = spec.offline.model.shape.kv_bytes_per_token();
    for (index, lengths) in spec.offline.lengths.iter().enumerate() {
        for (what, tokens) in [
            ("input", lengths.input_tokens),
            ("output", lengths.output_tokens),
        ] {
            if tokens == 0 {
                return Err(SpecError::ZeroTokens { index, what });
            }
        }
        let tokens = lengths.input_tokens.saturating_add(lengths.output_tokens);
        fits("offline", index, offline, tokens)?;
    }
    Ok(())
}

/// Runs the online workload of `spec` by itself, with the whole pool; its policies are not asked.
///
/// # Errors
/// See [`check`].
pub fn alone(spec: &Spec) -> Result<Alone, SpecError> {
    check(spec)?;
    let alone = Spec {
        compute: Compute::Standalone,
        memory: Memory::Bound,
        ..spec.clone()
    };
    let mut world = world::World::new(&alone, None, None);
    let outcome = world.run();
    let (stretches, demand) = world.into_plan();
    Ok(Alone {
        longest_gap: outcome.cooldown.longest_gap,
        kv_peak_bytes: outcome.online_kv_peak_bytes,
        stretches,
        demand,
        outcome,
    })
}

/// One of the runs that a spec asks for. Only the oracle's memory asks for several: what it should
/// have looked for is known afterwards, and the last of those with the most tokens counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempt(Option<u64>);

impl Attempt {
    /// Those of `memory`, in order.
    #[must_use]
    pub fn of(memory: Memory) -> Vec<Self> {
        match memory {
            Memory::Oracle => HORIZONS.map(Self).to_vec(),
            _ => vec![Self::default()],
        }
    }
}

/// One attempt at `spec`; `alone` is what [`alone`] gave for the same scenario, seed and costs of
/// online. The same arguments give the same outcome, byte for byte.
///
/// # Errors
/// See [`check`].
pub fn attempt(spec: &Spec, alone: &Alone, attempt: Attempt) -> Result<Outcome, SpecError> {
    check(spec)?;
    if spec.compute == Compute::Standalone {
        return Ok(alone.outcome.clone());
    }
    if let Compute::OneEngine(cap) = spec.compute {
        return Ok(one_engine::run(spec, cap, alone));
    }
    Ok(world::World::new(spec, Some(alone), attempt.0).run())
}

/// Runs `spec`: the best of its attempts.
///
/// # Errors
/// See [`check`].
pub fn paired(spec: &Spec, alone: &Alone) -> Result<Outcome, SpecError> {
    let mut best = Outcome::default();
    for one in Attempt::of(spec.memory) {
        let outcome = attempt(spec, alone, one)?;
        if outcome.offline.tokens() >= best.offline.tokens() {
            best = outcome;
        }
    }
    Ok(best)
}

/// Runs `spec` under the agent, who keeps a history for placement in slices of `slice` ns.
///
/// # Errors
/// See [`check`].
pub fn watched(spec: &Spec, slice: u64) -> Result<Outcome, SpecError> {
    check(spec)?;
    let agents = Spec {
        compute: Compute::Tidegate,
        memory: Memory::Tidegate,
        ..spec.clone()
    };
    let mut world = world::World::new(&agents, None, None);
    world.watch(slice);
    Ok(world.run())
}

/// Runs `spec`, and before it online alone. For several policies of one scenario use [`alone`] once
/// and [`paired`] for each.
///
/// # Errors
/// See [`check`].
pub fn run(spec: &Spec) -> Result<Outcome, SpecError> {
    paired(spec, &alone(spec)?)
}

#[cfg(test)]
mod tests;
